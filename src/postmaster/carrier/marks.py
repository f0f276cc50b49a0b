"""Acknowledgements that no remote has yet: `refs/postmaster/marks/<encoded address>`, on top of the mailbox.

A mailbox's ref gets a mark when a remote has it. Until then an acknowledgement can be taken back by rolling back its
commit, and no office that fetches from here can have seen it; afterwards a line is added that revives the message.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Final

from postmaster import times
from postmaster.carrier import lines, segments
from postmaster.carrier.git import Git
from postmaster.carrier.lines import READ, UNREAD, Mark
from postmaster.carrier.refs import HANDED, INBOX, Change, Oid

MARKS: Final = "refs/postmaster/marks/"


def pending(git: Git, refs: Mapping[str, Oid], name: str) -> frozenset[bytes]:
    """Return the marks of a mailbox (its encoded address) that no remote has yet."""
    tip = refs.get(MARKS + name)
    if tip is None:
        return frozenset()
    return frozenset(segments.fresh(git, refs.get(INBOX + name), tip))


def after(waiting: Iterable[bytes], said: Iterable[Mark]) -> frozenset[bytes]:
    """Return which marks wait after some more were made; one that takes back another that waits removes it. Pure."""
    left = {line: mark for line in waiting if isinstance(mark := lines.decode(line), Mark)}
    for mark in said:
        taken_back = [line for line, old in left.items() if old.id == mark.id and old.kind == READ]
        if mark.kind == UNREAD and taken_back:
            for line in taken_back:
                del left[line]
        else:
            left[mark.line()] = mark
    return frozenset(left)


def outliving(known: Mapping[str, Mark], said: Iterable[Mark]) -> list[Mark]:
    """Return marks of which each that takes back is later than what it takes back, whatever the clocks said. Pure.

    Args:
        known: the last marks of the mailbox, by message.
    """
    found = []
    for mark in said:
        old = known.get(mark.id)
        if mark.kind == UNREAD and old is not None and old.kind == READ:
            least = times.parse_time(old.at) + 1000  # a microsecond, as fine as it is written
            if times.parse_time(mark.at) < least:
                mark = replace(mark, at=times.timestamp(least))
        found.append(mark)
    return found


def stage(git: Git, refs: Mapping[str, Oid], name: str, wanted: frozenset[bytes], day: str) -> list[Change]:
    """Return the changes by which exactly these marks wait. A commit that is not wanted any more is rolled back."""
    tip = refs.get(MARKS + name)
    new = segments.append(git, refs.get(INBOX + name), wanted, day) if wanted else None
    return [(MARKS + name, new, tip)] if new != tip else []


def tips(git: Git, refs: Mapping[str, Oid]) -> dict[str, Oid]:
    """Return what the remotes are to have: for each mailbox (its encoded address) its state, with what waits."""
    found = {ref[len(INBOX) :]: tip for ref, tip in refs.items() if ref.startswith(INBOX)}
    for ref, tip in refs.items():
        if ref.startswith(MARKS):
            name = ref[len(MARKS) :]
            found[name] = segments.merge(git, found[name], tip) if name in found else tip
    return found


def settle(refs: Mapping[str, Oid], name: str, tip: Oid) -> list[Change]:
    """Return the changes by which the marks of a mailbox wait no more: a remote has them, in its state `tip`."""
    waiting, here = refs.get(MARKS + name), refs.get(INBOX + name)
    if waiting is None:
        return []
    changes: list[Change] = [(MARKS + name, None, waiting), (INBOX + name, tip, here)]
    if refs.get(HANDED + name) == here:  # marks are nothing that is handed in
        changes.append((HANDED + name, tip, here))
    return changes
