"""A mailbox ref as git holds it: days, in each of them files of lines that are named by what they hold.

A pass that adds lines adds one file, `<day>/<its blob id>.jsonl`, and changes none. So the union of two states is the
union of two sets of names, what is new between two commits is read without reading the rest, and two sides never
change the same file (`git merge` has nothing to resolve).
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from postmaster import remotes
from postmaster.carrier import lines
from postmaster.carrier.git import Git
from postmaster.carrier.refs import HANDED, INBOX, Change, Oid

_PATH: Final = re.compile(r"(\d{4}-\d\d-\d\d)/([0-9a-f]{40})\.jsonl", re.ASCII)
_FILE: Final = "100644"
_FOLDER: Final = "040000"


class Odd(Exception):
    """A ref that is not as a carrier would have made it. The text says what is wrong."""


def append(git: Git, tip: Oid | None, added: Iterable[bytes], day: str) -> Oid:
    """Return a state with these lines, on top of `tip`. `day`: under which they are kept, ``YYYY-MM-DD``."""
    blob = git.write_blob(b"".join(sorted(set(added))))
    top = git.entries(tip) if tip is not None else {}
    inside = git.entries(top[day][1]) if day in top else {}
    inside[f"{blob.hex}.jsonl"] = (_FILE, blob)
    top[day] = (_FOLDER, git.write_tree(inside))
    return git.write_commit(git.write_tree(top), [tip] if tip is not None else [], "mail\n")


def merge(git: Git, one: Oid, other: Oid) -> Oid:
    """Return a state that holds both: one of the two if it does, else their union, with both as its parents.

    That one has the other in its history does not say so: it may have removed lines since (`carry --accept`).
    """
    if one == other or (git.is_ancestor(other, one) and _has_all(git, other, one)):
        return one
    if git.is_ancestor(one, other) and _has_all(git, one, other):
        return other
    left, right = git.entries(one), git.entries(other)
    top = left | right
    for day in left.keys() & right.keys():
        if left[day] != right[day]:
            top[day] = (_FOLDER, git.write_tree(git.entries(left[day][1]) | git.entries(right[day][1])))
    return git.write_commit(git.write_tree(top), sorted((one, other), key=lambda oid: oid.hex), "union\n")


def _has_all(git: Git, old: Oid, new: Oid) -> bool:
    return all(how == "A" for how, *_ in git.changed(old, new))


def follow(git: Git, refs: Mapping[str, Oid], was: str, now: str) -> list[Change]:
    """Return the changes by which the mailbox of the new address has what that of the old one has.

    The old one stays: other offices hold it, and write to it as long as they use the old address.
    """
    name = remotes.encode(now)
    old, new = refs.get(INBOX + remotes.encode(was)), refs.get(INBOX + name)
    if old is None:
        return []
    both = merge(git, new, old) if new is not None else old
    if both == new:
        return []
    changes: list[Change] = [(INBOX + name, both, new)]
    if refs.get(HANDED + name) == new:  # nothing of it waits to be handed in, and of the old one is nothing for it
        changes.append((HANDED + name, both, new))
    return changes


def check(git: Git, old: Oid | None, new: Oid) -> None:
    """Make sure that `new` has all that `old` has, and nothing but good lines besides.

    Raises:
        Odd: something was removed or edited, or is no file of mail.
    """
    if old is not None and not git.is_ancestor(old, new):
        raise Odd(f"its history was rewound or rewritten: {old.hex} is not behind {new.hex} any more")
    files = []
    for how, mode, oid, path in git.changed(old, new):
        match = _PATH.fullmatch(path)
        if how == "D":
            raise Odd(f"lines were removed: {path} is gone")
        if how != "A" or mode != _FILE or match is None or match[2] != oid.hex:
            raise Odd(f"{path[:200]!a} was edited, or is no file of lines")
        files.append(oid)
    for oid, content in zip(files, git.blobs(files), strict=True):
        for line in content.splitlines(keepends=True):
            try:
                lines.decode(line)
            except ValueError as fault:
                raise Odd(f"{oid.hex}.jsonl: {fault}") from fault


def fresh(git: Git, known: Oid | None, new: Oid) -> list[bytes]:
    """Return the lines of the files that `new` has and `known` has not, whatever else differs."""
    files = [oid for how, _, oid, _ in git.changed(known, new) if how == "A"]
    return [line for content in git.blobs(files) for line in content.splitlines(keepends=True)]


def everything(git: Git, tip: Oid | None) -> frozenset[bytes]:
    """Return all lines of a state. Costs what the mailbox holds: asked only after a crash."""
    return frozenset(fresh(git, None, tip)) if tip is not None else frozenset()
