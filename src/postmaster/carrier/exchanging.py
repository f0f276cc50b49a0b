"""The exchange with one remote: fetch, judge, hand in, merge, push."""

from typing import Any, Final

from postmaster import remotes
from postmaster.carrier import alarms, marks, segments
from postmaster.carrier.desk import Desk, mailbox_of
from postmaster.carrier.git import Unreachable, Wrong
from postmaster.carrier.refs import HANDED, INBOX, Change, Inbox, Oid
from postmaster.carrier.segments import Odd
from postmaster.carrier.taking_up import take_in_pushed
from postmaster.remotes import Remote

_ATTEMPTS: Final = 5  # to push to a remote that moves meanwhile


def exchange(desk: Desk, remote: Remote, *, asked: bool) -> None:
    row: dict[str, Any] = {"remote": remote.name, "state": "done", "why": None}
    desk.done.remotes.append(row)
    now = desk.clock() // 10**9
    if not asked and (later := alarms.not_before(desk.notes, remote.name, now)) > now:
        row.update(state="later", why=f"it did not answer; it is tried again in {later - now} seconds")
        return
    try:
        for _ in range(_ATTEMPTS):
            _fetch(desk, remote)
            if _push(desk, remote):
                break
        else:
            row.update(state="later", why=f"it moved {_ATTEMPTS} times while it was pushed to")
        alarms.answered(desk.notes, remote.name)
        alarms.looks_right(desk.notes, remote.name)
    except Unreachable as fault:
        row.update(state="unreachable", why=str(fault))
        alarms.failed(desk.notes, remote.name, now, str(fault))
    except (Odd, Wrong) as fault:
        row.update(state="wrong", why=str(fault))
        alarms.looks_wrong(desk.notes, remote.name, str(fault))
        alarms.raise_alarm(desk.office, desk.settings, desk.notes, remote, str(fault), desk.clock())


def _fetch(desk: Desk, remote: Remote) -> None:
    """Fetch, judge, hand in and merge.

    Raises:
        Unreachable, Wrong: see `Git.fetch`.
        Odd: it looks wrong; nothing of it is merged.
    """
    desk.git.fetch(remote.name)
    desk.refs = desk.git.refs()
    take_in_pushed(desk)  # what was pushed here meanwhile is dealt with before it is merged
    fetched, seen = f"refs/postmaster/fetched/{remote.name}/", f"refs/postmaster/seen/{remote.name}/"
    for ref in desk.refs:
        if ref.startswith(seen) and fetched + ref[len(seen) :] not in desk.refs:
            raise Odd(f"the mailbox {ref[len(seen) :]} is gone from it")
    new: dict[str, tuple[Oid, list[bytes]]] = {}
    size = count = 0
    for ref, tip in desk.refs.items():
        mailbox = mailbox_of(ref, fetched)
        if mailbox is None or not desk.concerns(mailbox, remote):
            continue
        name = remotes.encode(mailbox)
        before = desk.refs.get(seen + name)
        if before == tip:
            continue
        segments.check(desk.git, before, tip)
        here = desk.refs.get(INBOX + name)
        # A mailbox that is new here may be that of a renamed agent, whose history is known under its old name.
        known = here or next(iter(desk.git.behind(tip, INBOX)), None)
        fresh = segments.fresh(desk.git, known, tip)
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
        here = desk.refs.get(INBOX + name)
        merged = segments.merge(desk.git, here, tip) if here is not None else tip
        if desk.is_local(mailbox):
            desk.hand_in(fresh, mailbox, remote)
        else:
            desk.note_receipts(fresh, mailbox, remote)
        handed = HANDED + name
        changes += [(handed, merged, desk.refs.get(handed)), (INBOX + name, merged, here)]
        changes.append((seen + name, tip, desk.refs.get(seen + name)))
    desk.counter.sync()
    desk.move(changes)


def _push(desk: Desk, remote: Remote) -> bool:
    """Give a remote the inboxes that concern it; tell whether it has them all. Raises Unreachable."""
    fetched, seen = f"refs/postmaster/fetched/{remote.name}/", f"refs/postmaster/seen/{remote.name}/"
    states: dict[str, Oid] = {}
    due: list[tuple[Inbox, Oid]] = []
    for name, tip in marks.tips(desk.git, desk.refs).items():
        mailbox = mailbox_of(name, "")
        if mailbox is not None and desk.concerns(mailbox, remote):
            states[name] = tip
            if desk.refs.get(fetched + name) != tip:
                due.append((Inbox(mailbox), tip))
    if due and not desk.git.push(remote.name, due):
        return False
    changes: list[Change] = [(seen + one.name, tip, desk.refs.get(seen + one.name)) for one, tip in due]
    for name, tip in states.items():
        changes += marks.settle(desk.refs, name, tip)
    desk.move(changes)
    return True


def forget(desk: Desk, name: str) -> None:
    """Take a remote as it is now: what it has shown before does not bind it."""
    old = [(ref, tip) for ref, tip in desk.refs.items() if ref.startswith(f"refs/postmaster/seen/{name}/")]
    if old:
        desk.git.move([(ref, None, tip) for ref, tip in old])
        desk.refs = desk.git.refs()
