"""What the parts of one pass of the carrier share: the office, its mail repository, the refs, and what was done."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import delivery_log, remotes, times
from postmaster.carrier import files, lines
from postmaster.carrier.files import Counter, Notes
from postmaster.carrier.git import Git
from postmaster.carrier.lines import READ
from postmaster.carrier.refs import Change, Oid
from postmaster.carrier.signatures import Keys
from postmaster.office import Office
from postmaster.remotes import Remote, Remotes
from postmaster.settings import Settings

_UNFINISHED: Final = "unfinished"


@dataclass(slots=True)
class Carried:
    """What a pass has done. `remotes`: for each its `remote`, `state` (done, later, unreachable, wrong) and `why`."""

    busy: bool = False
    sent: int = 0
    received: int = 0
    marked: int = 0
    receipts: int = 0
    remotes: list[dict[str, Any]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Desk:
    """The state of one pass. `carrier/unfinished` stands from when this is made until `close`.

    Attributes:
        since: where the log ended when a pass that was killed began; None if none was.
        refs: every ref of ours, as this pass knows them.
    """

    def __init__(
        self, office: Office, settings: Settings, local: set[str], clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.office: Final = office
        self.settings: Final = settings
        self.clock: Final = clock
        self.notes: Final = Notes(office)
        self.known: Final = Remotes(settings.remotes)
        self.keys: Final = Keys(office, settings.remotes)
        self.git: Final = Git(office.mail_repository, settings.remotes)
        self.done: Final = Carried()
        self._local = local
        self.notes.clear()
        unfinished = self.notes.read(_UNFINISHED)
        self.since: tuple[int, int] | None = (int(unfinished[0]), int(unfinished[1])) if unfinished else None
        if self.since is None:
            new = not self.git.exists()
            self.notes.write(_UNFINISHED, [0, 0] if new else delivery_log.position(office))
            self.since = (0, 0) if new else None
        self.git.make()
        self.git.clear_locks()
        self.counter: Final = Counter(office, self.since)
        self.refs: dict[str, Oid] = self.git.refs()

    def close(self) -> None:
        """Note that the pass went to its end."""
        self.git.pack()
        self.notes.drop(_UNFINISHED)
        self.done.received = self.counter.count

    def is_local(self, mailbox: str) -> bool:
        """Tell whether a mailbox is one of this office."""
        return remotes.domain_of(mailbox) in self._local

    def concerns(self, mailbox: str, remote: Remote) -> bool:
        """Tell whether a mailbox is exchanged with a remote."""
        domain = remotes.domain_of(mailbox)
        return domain in self._local or domain in remote.domains

    def today(self) -> str:
        """Return the day under which new lines are kept, ``YYYY-MM-DD``."""
        return times.timestamp(self.clock())[:10]

    def move(self, changes: Sequence[Change]) -> None:
        """Move refs, all or none. Raises DiskFault."""
        changes = [one for one in changes if one[1] != one[2]]
        if changes:
            self.git.move(changes)
            for ref, new, _ in changes:
                if new is None:
                    self.refs.pop(ref, None)
                else:
                    self.refs[ref] = new

    def hand_in(self, fresh: Sequence[bytes], mailbox: str, brought_by: Remote | None) -> None:
        """Hand in the messages among new lines of a mailbox that are for it, in the order in which they were sent.

        Args:
            brought_by: None if nobody can say who did: then whoever its sender belongs to.
        """
        said = lines.state(fresh)
        own = [one for one in said.letters.values() if one.to.casefold() == mailbox]
        for letter in sorted(own, key=lambda one: (times.parse_time(one.sent_at), one.id)):
            remote = brought_by or self.known.of(letter.sender)
            if remote is None:
                self.counter.hand_in(letter, remotes.UNKNOWN)
            else:
                doubt = self.keys.doubt(remote, letter, said.signatures.get(letter.id, ()))
                self.counter.hand_in(letter, remote.name, doubt)

    def note_receipts(self, fresh: Sequence[bytes], mailbox: str, remote: Remote) -> None:
        """Log which of our letters new lines of a mailbox elsewhere say were read there; the last word counts."""
        records = []
        for mark in lines.state(fresh).marks.values():
            sent = files.find_sent(self.office, remote.name, mailbox, mark.id) if mark.kind == READ else None
            if sent is not None:
                records.append(files.receipt(sent, remote.name, mark.at, mark.office, self.clock()))
        if records and self.since is not None:
            logged = {(one.get("id"), one.get("detail")) for one in files.log_since(self.office, self.since)[0]}
            records = [one for one in records if (one["id"], one["detail"]) not in logged]
        delivery_log.append(self.office, [delivery_log.encode(record) for record in records])
        self.done.receipts += len(records)


def mailbox_of(ref: str, under: str) -> str | None:
    """Return the address whose ref this is; None if it is another."""
    if not ref.startswith(under):
        return None
    try:
        return remotes.decode(ref[len(under) :])
    except ValueError:
        return None
