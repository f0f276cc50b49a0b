"""What the carrier has on disk: letters that wait to be taken away, letters handed in, and where it stands.

`carrier/` is durable; a crash leaves `carrier/unfinished`, which says since when the log has to be looked at.
"""

import contextlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from postmaster import delivery_log, durable, elsewhere, maildir, message, reasons, remotes, times
from postmaster.carrier.lines import DIGEST, Letter
from postmaster.composition import RESERVED, Draft, compose
from postmaster.delivery_log import Record
from postmaster.errors import BadData, CannotCreate, DiskFault
from postmaster.header import Refused
from postmaster.locks import locked
from postmaster.office import Office
from postmaster.remotes import Stated

ID: Final = "carried_id"  # the header field of a letter that came from another office
_STEM: Final = re.compile(r"(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z-(\d{6,})-([0-9a-f]{32})(?:-\d+)?\.md", re.ASCII)


@contextlib.contextmanager
def alone(office: Office) -> Iterator[bool]:
    """Hold the carrier's lock (flock(2)); give False if another carrier is at work.

    Raises:
        CannotCreate: there can be no lock.
    """
    office.make_private()
    with locked(office.carrier_lock) as descriptor:
        yield descriptor is not None


class Notes:
    """Small facts that outlive a pass, each a JSON file in `carrier/`."""

    def __init__(self, office: Office) -> None:
        self._office = office

    def read(self, name: str) -> Any:
        """Return a note; None if there is none that can be read."""
        return elsewhere.read_note(self._office, name)

    def write(self, name: str, value: Any) -> None:
        """Keep a note, durably. Raises OSError."""
        durable.make_directories(self._office.carrier)
        durable.replace(os.path.join(self._office.carrier, name), json.dumps(value).encode())

    def clear(self) -> None:
        """Remove what killed passes have left half written; nobody else writes notes now. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            for name in os.listdir(self._office.carrier):
                if name.startswith(durable.TEMPORARY):
                    durable.remove(os.path.join(self._office.carrier, name))

    def drop(self, name: str) -> None:
        """Forget a note."""
        durable.remove(os.path.join(self._office.carrier, name))


def log_since(office: Office, position: tuple[int, int]) -> tuple[list[Record], tuple[int, int], bool]:
    """Return the log's records since a position, where it ends, and whether that was all that came since.

    If the log was rotated or cut, everything is returned, and False.
    """
    inode, size = position
    here, now = delivery_log.position(office)
    if (here and here == inode and now >= size) or position == (here, now):
        found = []
        if now > size:
            with open(office.log, "rb") as stream:
                stream.seek(size)
                data = stream.read(now - size)
            whole = data[: data.rfind(b"\n") + 1]
            now = size + len(whole)
            found = [record for line in whole.splitlines() if (record := delivery_log.decode(line)) is not None]
        return found, (here, now), True
    everything = []
    for path in delivery_log.log_files(office):
        with contextlib.suppress(*delivery_log.DAMAGE), delivery_log.open_log(path) as lines:
            everything += [record for line in lines if (record := delivery_log.decode(line)) is not None]
    return everything, (here, now), False


# -- letters that wait ---------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Waiting:
    """A letter that the router has relayed: its mailbox and name there, and what it says."""

    mailbox: str
    name: str
    letter: Letter
    flow_id: str
    sequence: int


def outgoing(office: Office, remote: str, problems: list[str]) -> Iterator[Waiting]:
    """Yield the letters that wait to be taken to a remote; what cannot be read is told of, and stays."""
    place = os.path.join(office.carrier, "outgoing", remote)
    try:
        names = sorted(os.listdir(place))
    except FileNotFoundError:
        return
    for encoded in names:
        mailbox = os.path.join(place, encoded)
        for name in maildir.messages(mailbox, maildir.UNREAD):
            try:
                yield read_waiting(office, mailbox, maildir.UNREAD, name)
            except (OSError, ValueError, Refused) as fault:
                problems.append(f"{office.shown(os.path.join(mailbox, maildir.UNREAD, name))}: not taken: {fault}")


def read_waiting(office: Office, mailbox: str, folder: str, name: str) -> Waiting:
    """Read a letter of the queue. Raises OSError, ValueError, Refused."""
    stem = _STEM.fullmatch(name)
    if stem is None:
        raise ValueError("its name is not one that delivery gives")
    to = remotes.decode(os.path.basename(mailbox))
    with open(durable.open_regular(os.path.join(mailbox, folder, name)), "rb") as stream:
        raw = stream.read()
    start, end, body = message.split(raw, delivered=True)
    fields = message.all_fields(raw, start, end)
    year, month, day, hour, minute, second = stem.groups()[:6]
    letter = Letter(
        sender=fields["from"],
        to=to,
        type=fields["type"],
        subject=fields["subject"],
        correlation_id=fields["correlation_id"],
        sent_at=fields.get("sent_at", f"{year}-{month}-{day}T{hour}:{minute}:{second}Z"),
        body=raw[body:],
        origin=_name(office),
        in_reply_to=fields.get("in_reply_to"),
        headers={key: value for key, value in fields.items() if key not in RESERVED and key != ID},
    )
    return Waiting(mailbox, name, letter, stem[8], int(stem[7]))


def _name(office: Office) -> str:
    from postmaster.settings import load_settings

    return load_settings(office).name


def find_sent(office: Office, remote: str, to: str, message_id: str) -> Waiting | None:
    """Return the letter with this id that was taken to a remote before."""
    mailbox = office.outgoing(remote, remotes.encode(to))
    stamp = message_id[: -DIGEST - 1].rpartition("-")[2]
    for name in maildir.messages(mailbox, maildir.READ):
        if name.startswith(f"{stamp}-"):
            with contextlib.suppress(OSError, ValueError, Refused):
                found = read_waiting(office, mailbox, maildir.READ, name)
                if found.letter.id == message_id:
                    return found
    return None


# -- handing in ----------------------------------------------------------------------------------------------------


class Counter:
    """Hands letters in to the outbox, each once: also if an earlier pass was killed.

    Args:
        since: where the log ended when the unfinished pass before began; None if there is none.
    """

    def __init__(self, office: Office, since: tuple[int, int] | None) -> None:
        self._office = office
        self._since = since
        self._known: set[str] | None = None
        self.count = 0

    def hand_in(self, letter: Letter, brought_by: str, doubt: str = "") -> None:
        """Put a letter into the outbox unless it is or was there. `doubt`: see `remotes.Stated`.

        Commit point: the rename into its final name. Its name there is that of no other letter.

        Raises:
            CannotCreate: the outbox cannot be written to.
        """
        if self._known is None:
            self._known = self._look()
        if letter.digest in self._known:
            return
        place = self._office.outbox
        temporary = os.path.join(place, f".carry-{letter.digest}.tmp")
        try:
            durable.remove(temporary)
            durable.write_new(temporary, _letter(letter), sync=True, mode=0o664)
            name = remotes.file_name(Stated(brought_by, letter.digest, doubt))
            durable.rename_new(temporary, os.path.join(place, name))
        except OSError as fault:
            durable.remove(temporary)
            raise CannotCreate(f"{place}: cannot be written to: {fault.strerror}; it is handed in later") from fault
        self._known.add(letter.digest)
        self.count += 1

    def sync(self) -> None:
        """Make the names in the outbox durable.

        Raises:
            DiskFault: it cannot be done.
        """
        try:
            if self.count:
                durable.sync_directory(self._office.outbox)
        except OSError as fault:
            raise DiskFault(f"{self._office.outbox}: {fault.strerror}; the next run tries again") from fault

    def _look(self) -> set[str]:
        """Return the digests of letters that are in the outbox or, since the unfinished pass, were.

        The outbox first: a letter leaves it only after the log has its line.
        """
        found = {stated.digest for name in os.listdir(self._office.outbox) if (stated := remotes.stated(name))}
        if self._since is not None:
            for record in log_since(self._office, self._since)[0]:
                if stated := remotes.stated(os.path.basename(record.get("file", ""))):
                    found.add(stated.digest)
        return found


def _letter(letter: Letter) -> bytes:
    """Return a letter as it is handed in; one that no header can hold as it came, which the router refuses."""
    headers = {key: value for key, value in letter.headers.items() if key not in RESERVED}
    draft = Draft(
        to=(letter.to,),
        sender=letter.sender,
        type=letter.type,
        subject=letter.subject,
        correlation_id=letter.correlation_id,
        sent_at=letter.sent_at,
        body=letter.body,
        in_reply_to=letter.in_reply_to,
        headers={**headers, ID: letter.id},
    )
    try:
        return compose(draft)
    except BadData:
        return letter.line()


# -- what was read here --------------------------------------------------------------------------------------------


def carried_id(office: Office, path: str) -> str | None:
    """Return the id, between offices, of a message in a mailbox here, wherever in that it is by now."""
    folder, name = os.path.split(os.path.join(office.root, path))
    inbox = os.path.dirname(folder)
    for one in (folder, os.path.join(inbox, maildir.READ), os.path.join(inbox, maildir.UNREAD)):
        with contextlib.suppress(OSError, Refused):
            with open(durable.open_regular(os.path.join(one, name)), "rb") as stream:
                raw = stream.read(message.HEAD_BYTES)
            start, end, _ = message.split(raw, complete=False, delivered=True)
            found = message.all_fields(raw, start, end).get(ID)
            return found if isinstance(found, str) else None
    return None


def receipt(sent: Waiting, remote: str, at: str, office: str, now_ns: int) -> Record:
    """Return the log record that says that a letter was read in another office."""
    letter = sent.letter
    return {
        "time": times.timestamp(now_ns),
        "action": reasons.RECEIPT,
        "id": sent.flow_id,
        "sequence": sent.sequence,
        "correlation_id": letter.correlation_id,
        "from": letter.sender,
        "to": letter.to,
        "type": letter.type,
        "subject": letter.subject,
        "sent_at": letter.sent_at,
        "agent": f"{remote}:{letter.to}",
        "detail": f"read at {office}, {at}",
    }
