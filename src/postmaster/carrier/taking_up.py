"""What is new here goes into the refs: letters that wait, and what was acknowledged; what was pushed is handed in."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

from postmaster import delivery_log, maildir, remotes
from postmaster.carrier import files, lines, marks, segments
from postmaster.carrier.desk import Desk, mailbox_of
from postmaster.carrier.files import Waiting
from postmaster.carrier.lines import READ, UNREAD, Mark
from postmaster.carrier.refs import HANDED, INBOX, Change
from postmaster.carrier.segments import Odd
from postmaster.carrier.signatures import Unsigned
from postmaster.registry import renames

_CURSOR: Final = "cursor"


def follow_renames(desk: Desk) -> None:
    """Make the mailboxes of new addresses, where `rename` could not."""
    for one in renames.load(desk.office)[0]:
        if INBOX + remotes.encode(one.now) not in desk.refs:
            desk.move(segments.follow(desk.git, desk.refs, one.was, one.now))


def take_in_pushed(desk: Desk) -> None:
    """Deal with what somebody has pushed into the repository of this office: letters for it, and marks of its own."""
    changes: list[Change] = []
    for ref, tip in desk.refs.items():
        mailbox = mailbox_of(ref, INBOX)
        if mailbox is None:
            continue
        name = remotes.encode(mailbox)
        local = desk.is_local(mailbox)
        remote = None if local else desk.known.of(mailbox)
        before = known = desk.refs.get(HANDED + name)
        if before == tip or (remote is None and not local):
            continue
        if known is None and remote is not None:
            known = desk.refs.get(f"refs/postmaster/seen/{remote.name}/{name}")
        try:
            segments.check(desk.git, known, tip)
        except Odd as fault:
            desk.done.problems.append(f"{ref} in {desk.office.shown(desk.office.mail_repository)}: {fault}")
            continue
        fresh = segments.fresh(desk.git, known, tip)
        if remote is None:
            desk.hand_in(fresh, mailbox, None)
        else:
            desk.note_receipts(fresh, mailbox, remote)
        changes.append((HANDED + name, tip, before))
    desk.counter.sync()
    desk.move(changes)


def take_up(desk: Desk) -> None:
    """Put what was sent and read here since the last pass into the refs."""
    cursor = desk.notes.read(_CURSOR) or (0, 0)
    records, end, whole = files.log_since(desk.office, (int(cursor[0]), int(cursor[1])))
    again = desk.since is not None or not whole  # some of it may have been taken up before
    _take_letters(desk, again)
    _take_marks(desk, records, again)
    if end != tuple(cursor):
        desk.notes.write(_CURSOR, end)


def _take_letters(desk: Desk, again: bool) -> None:
    found: dict[str, set[bytes]] = defaultdict(set)
    waiting: list[Waiting] = []
    for remote in desk.settings.remotes:
        for one in files.outgoing(desk.office, remote.name, desk.done.problems):
            waiting.append(one)
            found[one.letter.to].add(one.letter.line())
    changes: list[Change] = []
    kept: set[str] = set()
    unable: set[str] = set()
    for mailbox, added in found.items():
        name = remotes.encode(mailbox)
        tip = desk.refs.get(INBOX + name)
        if again:
            added -= segments.everything(desk.git, tip)
        if not _sign(desk, mailbox, added, unable):
            kept.add(mailbox)
            continue
        if added:
            new = segments.append(desk.git, tip, added, desk.today())
            changes.append((INBOX + name, new, tip))
            if desk.refs.get(HANDED + name) == tip:  # these are nothing new to us
                changes.append((HANDED + name, new, tip))
    desk.move(changes)
    taken = [one for one in waiting if one.letter.to not in kept]
    for one in taken:
        maildir.move_message(one.mailbox, one.name, maildir.UNREAD, maildir.READ)
    desk.done.sent = len(taken)


def _take_marks(desk: Desk, records: Sequence[delivery_log.Record], again: bool) -> None:
    said: dict[str, list[Mark]] = defaultdict(list)
    for mailbox, mark in _marks(desk, records):
        said[remotes.encode(mailbox)].append(mark)
        desk.done.marked += 1
    changes: list[Change] = []
    for name, some in said.items():
        waiting = marks.pending(desk.git, desk.refs, name)
        revives = any(mark.kind == UNREAD for mark in some)
        # Only then is all of the mailbox read.
        there = segments.everything(desk.git, desk.refs.get(INBOX + name)) if again or revives else frozenset()
        if revives:
            some = marks.outliving(lines.state(there).marks, some)
        wanted = marks.after(waiting, some)
        if again:
            wanted -= there
        if wanted != waiting:
            changes += marks.stage(desk.git, desk.refs, name, wanted, desk.today())
    desk.move(changes)


def _sign(desk: Desk, mailbox: str, added: set[bytes], unable: set[str]) -> bool:
    """Add signatures to lines of a mailbox; tell whether that worked. `unable`: the remotes where it does not."""
    remote = desk.known.of(mailbox)
    if remote is None:
        return True
    if remote.name not in unable:
        try:
            added |= desk.keys.sign(remote, added)
        except Unsigned as fault:
            unable.add(remote.name)
            desk.done.problems.append(f"{remote.name}: its mail stays here: {fault}")
    return remote.name not in unable


def _marks(desk: Desk, records: Sequence[delivery_log.Record]) -> list[tuple[str, Mark]]:
    """Return what was acknowledged or taken back here, of the mail of other offices; the last word counts."""
    last: dict[str, tuple[str, Mark]] = {}
    first: dict[str, str] = {}
    for record in records:
        kind, to = record["action"], record.get("to", "")
        if kind not in (READ, UNREAD) or desk.known.of(record.get("from", "")) is None:
            continue
        message_id = files.carried_id(desk.office, record.get("path", ""))
        if message_id is None or not desk.is_local(to):
            continue
        first.setdefault(message_id, kind)
        last[message_id] = (to.casefold(), Mark(kind, message_id, record["time"], desk.settings.name))
    # Acknowledged and taken back before anybody was told: nothing has happened.
    return [one for key, one in last.items() if (first[key], one[1].kind) != (READ, UNREAD)]
