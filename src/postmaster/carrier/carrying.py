"""One pass of the carrier: what is new here into the inbox refs, then each remote: fetch, judge, hand in, merge, push.

Order, and what a kill leaves: a letter is in the outbox before the ref says that it was handed in, and in the ref
before it leaves the queue. `carrier/unfinished` stands while a pass is at work; the next one then looks whether a line
or a letter is there before it makes it again (docs/carrier.md).
"""

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import delivery_log, maildir, remotes, times
from postmaster.carrier import alarms, files, lines, segments
from postmaster.carrier.files import Counter, Notes, Waiting
from postmaster.carrier.git import HANDED, INBOX, Change, Git, Inbox, Oid, Unreachable, Wrong
from postmaster.carrier.lines import READ, UNREAD, Mark
from postmaster.carrier.segments import Odd
from postmaster.carrier.signatures import Keys, Unsigned
from postmaster.errors import BadData, ConfigurationFault, DiskFault
from postmaster.office import Office
from postmaster.registry import renames
from postmaster.registry.compiled import OpenView
from postmaster.remotes import Remote, Remotes
from postmaster.settings import Settings, load_settings

_ATTEMPTS: Final = 5  # to push to a remote that moves meanwhile
_UNFINISHED: Final = "unfinished"
_CURSOR: Final = "cursor"


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


def carry(
    office: Office,
    only: Sequence[str] = (),
    *,
    accept: Sequence[str] = (),
    open_view: OpenView,
    clock: Callable[[], int] = time.time_ns,
) -> Carried:
    """Exchange mail with the remotes, one pass.

    Args:
        only: the remotes to exchange with, whether or not it is time to try them again; empty: all.
        accept: the remotes that are taken as they are now, though they looked wrong.

    Raises:
        ConfigurationFault: no office, registry or remotes, or settings that cannot be used.
        BadData: there is no remote of that name.
        DiskFault, CannotCreate: the pass could not go on; the next one does.
    """
    office.require()
    settings = load_settings(office)
    if not settings.remotes:
        raise ConfigurationFault(
            f"{office.settings_file}: names no `remotes`; add e.g. "
            "`remotes: {laptop: {url: /srv/mail.git, domains: [laptop.internal]}}`"
        )
    names = [remote.name for remote in settings.remotes]
    for name in (*only, *accept):
        if name not in names:
            raise BadData(f"there is no remote {name}; post-office.yml names {', '.join(names)}")
    with open_view(office, write=False) as registry:
        local = {remotes.domain_of(one) for a in registry.all_agents() for one in a.names}
    for remote in settings.remotes:
        if both := local.intersection(remote.domains):
            raise ConfigurationFault(
                f"{office.settings_file}: remote {remote.name}: the domain {min(both)} is this office's own; nobody "
                "else may bring mail from it: take it out of `domains`"
            )
    with files.alone(office) as free:
        if not free:
            return Carried(busy=True)
        try:
            return _Pass(office, settings, local, clock).run(only, accept)
        except OSError as fault:
            raise DiskFault(f"{fault.filename or office.carrier}: {fault.strerror or fault}") from fault


class _Pass:
    """The state of one pass."""

    def __init__(self, office: Office, settings: Settings, local: set[str], clock: Callable[[], int]) -> None:
        self._office = office
        self._settings = settings
        self._local = local
        self._clock = clock
        self._notes = Notes(office)
        self._known = Remotes(settings.remotes)
        self._keys = Keys(office, settings.remotes)
        self._git = Git(office.mail_repository, settings.remotes)
        self._notes.clear()
        unfinished = self._notes.read(_UNFINISHED)
        self._since: tuple[int, int] | None = (int(unfinished[0]), int(unfinished[1])) if unfinished else None
        if self._since is None:
            new = not self._git.exists()
            self._notes.write(_UNFINISHED, [0, 0] if new else delivery_log.position(office))
            self._since = (0, 0) if new else None
        self._git.make()
        self._git.clear_locks()
        self._counter = Counter(office, self._since)
        self._refs = self._git.refs()
        self.done = Carried()

    def run(self, only: Sequence[str], accept: Sequence[str]) -> Carried:
        for name in accept:
            self._forget(name)
        self._follow_renames()
        self._take_in_pushed()
        self._take_up()
        for remote in self._settings.remotes:
            if not only or remote.name in only:
                self._exchange(remote, asked=remote.name in (*only, *accept))
        self._notes.drop(_UNFINISHED)
        self.done.received = self._counter.count
        return self.done

    # -- here --------------------------------------------------------------------------------------------------

    def _follow_renames(self) -> None:
        """Make the mailboxes of new addresses, where `rename` could not."""
        for one in renames.load(self._office)[0]:
            if INBOX + remotes.encode(one.now) not in self._refs:
                self._move(segments.follow(self._git, self._refs, one.was, one.now))

    def _take_in_pushed(self) -> None:
        """Hand in what somebody has pushed into the repository of this office."""
        changes: list[Change] = []
        for ref, tip in self._refs.items():
            mailbox = _mailbox(ref, INBOX)
            if mailbox is None or not self._is_local(mailbox):
                continue
            handed = HANDED + remotes.encode(mailbox)
            if self._refs.get(handed) == tip:
                continue
            try:
                segments.check(self._git, self._refs.get(handed), tip)
            except Odd as fault:
                self.done.problems.append(f"{ref} in {self._office.shown(self._office.mail_repository)}: {fault}")
                continue
            self._hand_in(segments.fresh(self._git, self._refs.get(handed), tip), mailbox, None)
            changes.append((handed, tip, self._refs.get(handed)))
        self._counter.sync()
        self._move(changes)

    def _hand_in(self, fresh: Sequence[bytes], mailbox: str, brought_by: Remote | None) -> None:
        """Hand in the messages among new lines of a mailbox that are for it, in the order in which they were sent.

        Args:
            brought_by: None if nobody can say who did: then whoever its sender belongs to.
        """
        said = lines.state(fresh)
        own = [one for one in said.letters.values() if one.to.casefold() == mailbox]
        for letter in sorted(own, key=lambda one: (times.parse_time(one.sent_at), one.id)):
            remote = brought_by or self._known.of(letter.sender)
            if remote is None:
                self._counter.hand_in(letter, remotes.UNKNOWN)
            else:
                doubt = self._keys.doubt(remote, letter, said.signatures.get(letter.id, ()))
                self._counter.hand_in(letter, remote.name, doubt)

    def _take_up(self) -> None:
        """Put what was sent and read here since the last pass into the inbox refs."""
        found: dict[str, set[bytes]] = defaultdict(set)
        waiting: list[Waiting] = []
        for remote in self._settings.remotes:
            for one in files.outgoing(self._office, remote.name, self.done.problems):
                waiting.append(one)
                found[one.letter.to].add(one.letter.line())
        cursor = self._notes.read(_CURSOR) or (0, 0)
        records, end, whole = files.log_since(self._office, (int(cursor[0]), int(cursor[1])))
        for mailbox, mark in self._marks(records):
            found[mailbox].add(mark.line())
            self.done.marked += 1
        changes: list[Change] = []
        day = times.timestamp(self._clock())[:10]
        kept: set[str] = set()
        unable: set[str] = set()
        for mailbox, added in found.items():
            name = remotes.encode(mailbox)
            tip = self._refs.get(INBOX + name)
            if self._since is not None or not whole:
                added -= segments.everything(self._git, tip)
            if not self._sign(mailbox, added, unable):
                kept.add(mailbox)
                continue
            if added:
                new = segments.append(self._git, tip, added, day)
                changes.append((INBOX + name, new, tip))
                if self._is_local(mailbox):
                    changes.append((HANDED + name, new, self._refs.get(HANDED + name)))
        self._move(changes)
        taken = [one for one in waiting if one.letter.to not in kept]
        for one in taken:
            maildir.move_message(one.mailbox, one.name, maildir.UNREAD, maildir.READ)
        self.done.sent = len(taken)
        if end != tuple(cursor):
            self._notes.write(_CURSOR, end)

    def _sign(self, mailbox: str, added: set[bytes], unable: set[str]) -> bool:
        """Add signatures to lines of a mailbox; tell whether that worked. `unable`: the remotes where it does not."""
        remote = self._known.of(mailbox)
        if remote is None:
            return True
        if remote.name not in unable:
            try:
                added |= self._keys.sign(remote, added)
            except Unsigned as fault:
                unable.add(remote.name)
                self.done.problems.append(f"{remote.name}: its mail stays here: {fault}")
        return remote.name not in unable

    def _marks(self, records: Sequence[delivery_log.Record]) -> list[tuple[str, Mark]]:
        """Return what was acknowledged or taken back here, of the mail of other offices; the last word counts."""
        last: dict[str, tuple[str, Mark]] = {}
        first: dict[str, str] = {}
        for record in records:
            kind, to = record["action"], record.get("to", "")
            if kind not in (READ, UNREAD) or self._known.of(record.get("from", "")) is None:
                continue
            message_id = files.carried_id(self._office, record.get("path", ""))
            if message_id is None or not self._is_local(to):
                continue
            first.setdefault(message_id, kind)
            last[message_id] = (to.casefold(), Mark(kind, message_id, record["time"], self._settings.name))
        # Acknowledged and taken back before anybody was told: nothing has happened.
        return [one for key, one in last.items() if (first[key], one[1].kind) != (READ, UNREAD)]

    # -- a remote ----------------------------------------------------------------------------------------------

    def _exchange(self, remote: Remote, *, asked: bool) -> None:
        row: dict[str, Any] = {"remote": remote.name, "state": "done", "why": None}
        self.done.remotes.append(row)
        now = self._clock() // 10**9
        if not asked and (later := alarms.not_before(self._notes, remote.name)) > now:
            row.update(state="later", why=f"it did not answer; it is tried again in {later - now} seconds")
            return
        try:
            for _ in range(_ATTEMPTS):
                self._fetch(remote)
                if self._push(remote):
                    break
            else:
                row.update(state="later", why=f"it moved {_ATTEMPTS} times while it was pushed to")
            alarms.answered(self._notes, remote.name)
            alarms.looks_right(self._notes, remote.name)
        except Unreachable as fault:
            row.update(state="unreachable", why=str(fault))
            alarms.failed(self._notes, remote.name, now)
        except (Odd, Wrong) as fault:
            row.update(state="wrong", why=str(fault))
            alarms.raise_alarm(self._office, self._settings, self._notes, remote, str(fault), self._clock())

    def _fetch(self, remote: Remote) -> None:
        """Fetch, judge, hand in and merge.

        Raises:
            Unreachable, Wrong: see `Git.fetch`.
            Odd: it looks wrong; nothing of it is merged.
        """
        self._git.fetch(remote.name)
        self._refs = self._git.refs()
        self._take_in_pushed()  # what was pushed here meanwhile is handed in before it is merged
        fetched, seen = f"refs/postmaster/fetched/{remote.name}/", f"refs/postmaster/seen/{remote.name}/"
        for ref in self._refs:
            if ref.startswith(seen) and fetched + ref[len(seen) :] not in self._refs:
                raise Odd(f"the mailbox {ref[len(seen) :]} is gone from it")
        new: dict[str, tuple[Oid, list[bytes]]] = {}
        size = count = 0
        for ref, tip in self._refs.items():
            mailbox = _mailbox(ref, fetched)
            if mailbox is None or not self._concerns(mailbox, remote):
                continue
            name = remotes.encode(mailbox)
            before = self._refs.get(seen + name)
            if before == tip:
                continue
            segments.check(self._git, before, tip)
            fresh = segments.fresh(self._git, self._refs.get(INBOX + name), tip)
            size, count = size + sum(map(len, fresh)), count + len(fresh)
            new[mailbox] = (tip, fresh)
        if count > remote.max_messages or size > remote.max_bytes:
            raise Odd(
                f"over the limits: {count} new lines of {size} bytes; it may bring {remote.max_messages} "
                f"(max_messages) of {remote.max_bytes} bytes (max_bytes) in one pass"
            )
        changes: list[Change] = []
        for mailbox, (tip, fresh) in new.items():
            name = remotes.encode(mailbox)
            here = self._refs.get(INBOX + name)
            merged = segments.merge(self._git, here, tip) if here is not None else tip
            if self._is_local(mailbox):
                self._hand_in(fresh, mailbox, remote)
                changes.append((HANDED + name, merged, self._refs.get(HANDED + name)))
            else:
                self._note_receipts(remote, mailbox, fresh)
            changes += [(INBOX + name, merged, here), (seen + name, tip, self._refs.get(seen + name))]
        self._counter.sync()
        self._move(changes)

    def _note_receipts(self, remote: Remote, mailbox: str, fresh: Sequence[bytes]) -> None:
        """Log which of our letters were read there."""
        records = []
        for found in map(lines.decode, fresh):
            if isinstance(found, Mark) and found.kind == READ:
                sent = files.find_sent(self._office, remote.name, mailbox, found.id)
                if sent is not None:
                    records.append(files.receipt(sent, remote.name, found.at, found.office, self._clock()))
        if records and self._since is not None:
            logged = {(one.get("id"), one.get("detail")) for one in files.log_since(self._office, self._since)[0]}
            records = [one for one in records if (one["id"], one["detail"]) not in logged]
        delivery_log.append(self._office, [delivery_log.encode(record) for record in records])
        self.done.receipts += len(records)

    def _push(self, remote: Remote) -> bool:
        """Give a remote the inboxes that concern it; tell whether it has them all. Raises Unreachable."""
        fetched, seen = f"refs/postmaster/fetched/{remote.name}/", f"refs/postmaster/seen/{remote.name}/"
        due: list[tuple[Inbox, Oid]] = []
        for ref, tip in self._refs.items():
            mailbox = _mailbox(ref, INBOX)
            if mailbox is not None and self._concerns(mailbox, remote):
                inbox = Inbox(mailbox)
                if self._refs.get(fetched + inbox.name) != tip:
                    due.append((inbox, tip))
        if not due:
            return True
        if not self._git.push(remote.name, due):
            return False
        self._move([(seen + inbox.name, tip, self._refs.get(seen + inbox.name)) for inbox, tip in due])
        return True

    # -- refs --------------------------------------------------------------------------------------------------

    def _is_local(self, mailbox: str) -> bool:
        return remotes.domain_of(mailbox) in self._local

    def _concerns(self, mailbox: str, remote: Remote) -> bool:
        domain = remotes.domain_of(mailbox)
        return domain in self._local or domain in remote.domains

    def _move(self, changes: list[Change]) -> None:
        changes = [one for one in changes if one[1] != one[2]]
        if changes:
            self._git.move(changes)
            self._refs.update({ref: new for ref, new, _ in changes if new is not None})

    def _forget(self, name: str) -> None:
        """Take a remote as it is now: what it has shown before does not bind it."""
        old = [(ref, tip) for ref, tip in self._refs.items() if ref.startswith(f"refs/postmaster/seen/{name}/")]
        if old:
            self._git.move([(ref, None, tip) for ref, tip in old])
            self._refs = self._git.refs()


def _mailbox(ref: str, under: str) -> str | None:
    """Return the address whose ref this is; None if it is another."""
    if not ref.startswith(under):
        return None
    try:
        return remotes.decode(ref[len(under) :])
    except ValueError:
        return None
