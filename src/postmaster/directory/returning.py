"""Returned mail: what an archived instance has not read goes back to its senders (docs/directory.md).

directory/returning/ has a file for each archived instance whose mail has to be given back. It is there before the
instance is archived, and goes when the log has a line for each message. The mailbox stays as it is.
"""

import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from postmaster import durable, inventory, maildir, message, reports
from postmaster.delivery_log import Record
from postmaster.directory import claims, store
from postmaster.directory.claims import Claim
from postmaster.directory.reporting import Failure, Original, write
from postmaster.errors import DiskFault
from postmaster.header import Refused
from postmaster.history import History
from postmaster.office import Office, visible
from postmaster.parties import RegistryView
from postmaster.printable import quoted
from postmaster.reports import Report
from postmaster.settings import Settings

REASON: Final = "recipient-archived"


# -- which mailboxes -----------------------------------------------------------------------------------------------


def mark(office: Office, instance_id: str) -> None:
    """Note that the mail of an instance is to be given back once it is archived. Raises OSError."""
    durable.make_directories(office.returning)
    path = _marker(office, instance_id)
    if claims.key(instance_id) not in _listed(office):
        durable.write_new(path, b"", sync=True)
    durable.sync_directory(office.returning)


def unmark(office: Office, instance_id: str) -> None:
    """Take a mark away, if it is there. Raises OSError."""
    listed = _listed(office)
    if claims.key(instance_id) in listed:
        os.unlink(_marker(office, instance_id))
    if listed == [claims.key(instance_id)]:
        os.rmdir(office.returning)


def forget(office: Office, done: Iterable[Claim]) -> None:
    """Take away the marks of instances whose mail was given back.

    Raises:
        CannotCreate, DiskFault: that cannot be done; the next run looks again.
    """
    try:
        with store.locked(office):  # who archives makes marks under it
            for claim in done:
                unmark(office, claim.id)
    except OSError as fault:
        raise DiskFault(f"{fault.filename or office.returning}: {fault.strerror}; the next run tries again") from fault


def is_marked(office: Office, instance_id: str) -> bool:
    """Tell whether the mail of an instance is still to be given back."""
    return os.path.lexists(_marker(office, instance_id))


def _marker(office: Office, instance_id: str) -> str:
    return os.path.join(office.returning, claims.key(instance_id))


def _marked(office: Office, problems: list[str]) -> list[Claim]:
    """Return the archived instances that are marked; a mark of one that was not archived after all goes.

    The directory's lock is taken: whoever holds it may be about to archive what it has marked.

    Raises:
        CannotCreate, DiskFault, OSError: it cannot be told which.
    """
    found = []
    with store.locked(office):
        for name in sorted(_listed(office)):
            if claims.name_of(name) is None:
                problems.append(f"{office.shown(_marker(office, name))}: no mark of ours; remove it")
            elif (claim := store.archived(office, name)) is not None:
                found.append(claim)
            elif not os.path.lexists(path := store.archive_path(office, name)):
                unmark(office, name)
            else:
                problems.append(
                    f"{office.shown(path)}: no claim that can be read; what is unread there is not returned"
                )
        if os.path.lexists(office.returning) and not _listed(office):
            os.rmdir(office.returning)  # of a mark that was not made to the end
    return found


def _listed(office: Office) -> list[str]:
    """Return the names of the marks. A link is not followed. Raises OSError."""
    try:
        descriptor = os.open(office.returning, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise NotADirectoryError(fault.errno, "is no directory, or closed", office.returning) from fault
    try:
        return os.listdir(descriptor)
    finally:
        os.close(descriptor)


# -- what they hold ------------------------------------------------------------------------------------------------


class Unfit(Exception):
    """A file that cannot be given back, however often one tries; says why."""


@dataclass(slots=True)
class Returns:
    """The reports of returned mail that are due.

    Attributes:
        done: the instances of which every message has had its report made ready.
    """

    office: Office
    registry: RegistryView
    history: History
    settings: Settings
    now_ns: int
    problems: list[str]
    done: list[Claim]

    def due(self) -> Iterator[Report]:
        """Yield a report for each unread message that was not given back. Notes what cannot be read in `problems`."""
        try:
            marked = _marked(self.office, self.problems)
        except OSError as fault:
            where = fault.filename or self.office.returning
            raise DiskFault(f"{where}: {fault.strerror}; unread mail of archived instances is not returned") from fault
        for claim in marked:
            if (yield from self._of(claim)):
                self.done.append(claim)

    def _of(self, claim: Claim) -> Generator[Report, None, bool]:
        """Yield the reports of one mailbox; return whether all of it could be read."""
        inbox = self.office.default_inbox(claim.id)
        unread = os.path.join(inbox, maildir.UNREAD)
        try:
            kind = inventory.obstacle(unread)
            names = maildir.messages(inbox, maildir.UNREAD) if kind is None else []
        except OSError as fault:
            self._later(unread, fault.strerror or str(fault))
            return False
        if kind is not None:
            self._later(unread, f"is {kind}, not a directory")
            return False
        whole = True
        for name in names:
            path = os.path.join(unread, name)
            shown = self.office.shown(path)
            try:
                report = None if self.history.returned(claim.id, shown) else self._report(claim, path, shown)
            except FileNotFoundError:
                continue  # read after all
            except OSError as fault:
                self._later(path, fault.strerror or str(fault))
                whole = False
                continue
            except Unfit as why:
                self.problems.append(f"{shown}: cannot be returned, and stays there: {why}")
                continue
            if report is not None:
                yield report
        return whole

    def _later(self, path: str, why: str) -> None:
        self.problems.append(f"{self.office.shown(path)}: {why}; what is unread there is returned by a later run")

    def _report(self, claim: Claim, path: str, shown: str) -> Report | None:
        """Return the report of one message; None if it is a report itself.

        Raises:
            Unfit: it is no message, or none that the office has delivered there.
            OSError: it cannot be read.
        """
        raw = self._read(path)
        try:
            start, end, body = message.split(raw, delivered=True)
            found = message.examine(message.read_header(raw, start, end, body)).readable
            ours = message.all_fields(raw, start, end)
        except Refused as fault:
            raise Unfit(f"it is no message: {fault.detail}") from fault
        if "from" not in found:
            raise Unfit("its header does not say who sent it")
        if reports.is_reserved(found["from"], found.get("type", "")):
            return None
        record: Record = {**found, "id": message.body_id(memoryview(raw)[body:])}
        if shown not in self.history.delivered(record, claim.id):  # its owner can write what it likes there
            raise Unfit("the log does not say that this message was delivered there")
        record["sequence"] = ours.get("sequence")
        sender = self.registry.find(found["from"])
        moment = f"was archived at {claim.archived}"
        return write(
            reports.RETURN,
            found["from"],
            reports.office_address(sender.address if sender is not None else found["from"]),
            Original(record, shown, raw, len(raw)),
            [Failure(found.get("to"), claim.id, REASON, f"{claim.address} {moment}")],
            f"Your message was not read: {claim.address} ({claim.id}) {moment}. It is returned below, byte for byte.",
            agent=claim.id,
            office_name=self.settings.name,
            now_ns=self.now_ns,
        )

    def _read(self, path: str) -> bytes:
        limit = self.settings.max_message_bytes + message.HEAD_BYTES
        with open(durable.open_regular(path), "rb") as stream:
            raw = stream.read(limit + 1)
        if len(raw) > limit:
            why = f"larger than max_message_bytes ({quoted(str(self.settings.max_message_bytes))}) by now; raise that"
            raise OSError(27, why, visible(path))
        return raw
