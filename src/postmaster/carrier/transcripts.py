"""Transcripts: what an agent writes down for itself, in its own ref of the mail repository (docs/transcripts.md).

`refs/postmaster/entity/<encoded address>` is a linear history with one writer. Each commit adds one entry, the file
`entry`; the transcript is all entries, oldest first. Commit point of a change: the ref's move, from the head that was
read and no other, so that of two at once one follows the other and none is lost. The carrier has no refspec for it.
"""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postmaster import times
from postmaster.carrier.copies import Written
from postmaster.carrier.git import Git
from postmaster.carrier.refs import Change, Entity, Oid
from postmaster.errors import BadData, DiskFault
from postmaster.office import Office

MOST_BYTES: Final = 16 * 1024 * 1024  # of one entry
_FILE: Final = "entry"
_TEXT: Final = "entry"  # of each commit
_ATTEMPTS: Final = 20  # to follow others who append at the same time
_PAUSE: Final = 0.05  # seconds
_READ_AT_ONCE: Final = 100
_BEGINNING: Final = 80  # bytes of an entry's first line, to tell it by


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its commit, its number from 1, and when it was written (RFC 3339)."""

    commit: str
    number: int
    time: str


class Transcript:
    """The transcript of one agent: of its address, or while there is none of that, of one of its aliases."""

    def __init__(self, office: Office, names: Sequence[str]) -> None:
        """Args: names: the address of its agent, then its aliases."""
        self._git = Git(office.mail_repository, ())
        self._names = [Entity(one) for one in names]

    def append(self, content: bytes) -> Entry:
        """Add an entry, durably.

        Raises:
            BadData: it is empty, or larger than MOST_BYTES.
            DiskFault: the disk refused, or others were faster again and again; nothing was added.
            Missing: git is not installed.
        """
        check(content)
        self._git.make()
        tree = self._git.write_tree({_FILE: ("100644", self._git.write_blob(content))})
        for attempt in range(_ATTEMPTS):
            where, head = self._head()
            commit = self._git.write_commit(tree, [head] if head is not None else [], _TEXT)
            try:
                self._move(where, head, commit)
            except DiskFault:
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE)  # another holds the ref, or has moved it; what is wrong with a disk stays wrong
                continue
            return self._entries(commit)[-1]
        raise AssertionError("the last attempt returns or raises")

    def entries(self) -> list[Entry]:
        """Return what there is, oldest first; nothing if there is no transcript."""
        _, head = self._head()
        return self._entries(head) if head is not None else []

    def contents(self, entries: Sequence[Entry]) -> Iterator[bytes]:
        """Yield the content of entries, byte for byte. Raises BadData: the history is not one of entries."""
        for start in range(0, len(entries), _READ_AT_ONCE):
            part = entries[start : start + _READ_AT_ONCE]
            yield from self._git.files([Oid(one.commit) for one in part], _FILE)

    def written(self, entries: Sequence[Entry]) -> Iterator[Written]:
        """Yield entries with their content."""
        for one, content in zip(entries, self.contents(entries), strict=True):
            yield Written(one.commit, times.parse_time(one.time) // 10**9, content)

    def replace(self, known: Sequence[Entry], common: int, added: Sequence[Written]) -> None:
        """Make the history the first `common` entries of `known`, and then `added`.

        What follows the common entries now is kept as it is, in `refs/postmaster/kept/`. The commits of `added` are
        those that they have there.

        Args:
            known: the entries that there are, as they were read.

        Raises:
            DiskFault: the disk refused, or the transcript has changed since; it is as it was.
        """
        self._git.make()
        where, head = self._head()
        if (known[-1].commit if known else None) != (head.hex if head is not None else None):
            raise DiskFault("the transcript was changed meanwhile; look at both again")
        new, building = self._build(known, common, added)
        self._move(where, head, new, building, keep=common < len(known))

    def set_aside(self, known: Sequence[Entry], common: int, other: Sequence[Written]) -> None:
        """Keep another history, which has the first `common` entries of `known`, in `refs/postmaster/kept/`.

        Raises:
            DiskFault: the disk refused.
        """
        own = self._names[0]
        self._git.make()
        new, building = self._build(known, common, other)
        self._git.move([*building, *([(own.kept(new), new, None)] if new.hex not in self.aside() else [])])

    def aside(self) -> frozenset[str]:
        """Return the newest commits of the histories that were set aside."""
        start = self._names[0].kept_below
        refs = self._git.refs() if self._git.exists() else {}
        return frozenset(tip.hex for ref, tip in refs.items() if ref.startswith(start))

    def _build(self, known: Sequence[Entry], common: int, added: Sequence[Written]) -> tuple[Oid, list[Change]]:
        """Return the newest commit of a history that nothing leads to yet, and the change that ends its building."""
        parent = Oid(known[common - 1].commit) if common else None
        if not added:
            assert parent is not None
            return parent, []
        place = self._names[0].building
        made = self._git.add_history(place, parent, _FILE, _TEXT, [(one.seconds, one.content) for one in added])
        return made[-1], [(place, None, made[-1])]

    def settle(self) -> None:
        """Let the transcript stand under the agent's address, if it stands under an alias."""
        if self._git.exists():
            where, head = self._head()
            if head is not None:
                self._move(where, head, head)

    def _move(
        self, where: Entity, head: Oid | None, new: Oid, more: Sequence[Change] = (), *, keep: bool = False
    ) -> None:
        own = self._names[0]
        changes = list(more)
        if where != own:
            changes += [(where.ref, None, head), (own.ref, new, None)]
        elif head != new:
            changes.append((own.ref, new, head))
        if keep and head is not None and head.hex not in self.aside():
            changes.append((own.kept(head), head, None))
        if changes:
            self._git.move(changes)

    def _entries(self, head: Oid) -> list[Entry]:
        found = reversed(self._git.history(head))
        return [
            Entry(oid.hex, number, times.timestamp(seconds * 10**9)) for number, (oid, seconds) in enumerate(found, 1)
        ]

    def _head(self) -> tuple[Entity, Oid | None]:
        """Return under which name of the agent the transcript stands, and its newest commit."""
        refs = self._git.refs() if self._git.exists() else {}
        return next(((one, refs[one.ref]) for one in self._names if one.ref in refs), (self._names[0], None))


def beginning(content: bytes) -> str:
    """Return the first line of an entry, cut short, as text."""
    return content.split(b"\n", 1)[0][:_BEGINNING].decode("utf-8", "backslashreplace")


def check(content: bytes) -> None:
    """Raise BadData if this cannot be an entry."""
    if not content:
        raise BadData("an entry that says nothing is not kept")
    if len(content) > MOST_BYTES:
        raise BadData(f"an entry of {len(content)} bytes; at most {MOST_BYTES} are kept: write a file, and name it")
