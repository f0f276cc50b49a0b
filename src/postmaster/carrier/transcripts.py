"""Transcripts: what an agent writes down for itself, in its own ref of the mail repository (docs/transcripts.md).

`refs/postmaster/entity/<encoded address>` is a linear history with one writer. Each commit adds one entry, the file
`entry`; the transcript is all entries, oldest first. Commit point of an append: the ref's move, from the head that was
read and no other, so that of two at once one follows the other and none is lost. The carrier has no refspec for it.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postmaster import times
from postmaster.carrier.git import Entity, Git, Oid
from postmaster.decide import Agent
from postmaster.errors import BadData, DiskFault
from postmaster.office import Office

MOST_BYTES: Final = 16 * 1024 * 1024  # of one entry
_FILE: Final = "entry"
_ATTEMPTS: Final = 20  # to follow others who append at the same time
_PAUSE: Final = 0.05  # seconds
_READ_AT_ONCE: Final = 100


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry: its commit, its number from 1, and when it was written (RFC 3339)."""

    commit: str
    number: int
    time: str


class Transcript:
    """The transcript of one agent."""

    def __init__(self, office: Office, agent: Agent) -> None:
        self._git = Git(office.mail_repository, ())
        self._entity = Entity(agent.address)

    def append(self, content: bytes) -> Entry:
        """Add an entry, durably.

        Raises:
            BadData: it is empty, or larger than MOST_BYTES.
            DiskFault: the disk refused, or others were faster again and again; nothing was added.
            Missing: git is not installed.
        """
        if not content:
            raise BadData("an entry that says nothing is not kept")
        if len(content) > MOST_BYTES:
            raise BadData(f"an entry of {len(content)} bytes; at most {MOST_BYTES} are kept: write a file, and name it")
        self._git.make()
        tree = self._git.write_tree({_FILE: ("100644", self._git.write_blob(content))})
        for attempt in range(_ATTEMPTS):
            head = self._head()
            commit = self._git.write_commit(tree, [head] if head is not None else [], "entry")
            try:
                self._git.move([(self._entity.ref, commit, head)])
            except DiskFault:
                if attempt + 1 == _ATTEMPTS:
                    raise
                time.sleep(_PAUSE)  # another holds the ref, or has moved it; what is wrong with a disk stays wrong
                continue
            return self._entries(commit)[-1]
        raise AssertionError("the last attempt returns or raises")

    def entries(self) -> list[Entry]:
        """Return what there is, oldest first; nothing if there is no transcript."""
        head = self._head()
        return self._entries(head) if head is not None else []

    def contents(self, entries: list[Entry]) -> Iterator[bytes]:
        """Yield the content of entries, byte for byte. Raises BadData: the history is not one of entries."""
        for start in range(0, len(entries), _READ_AT_ONCE):
            part = entries[start : start + _READ_AT_ONCE]
            yield from self._git.files([Oid(one.commit) for one in part], _FILE)

    def _entries(self, head: Oid) -> list[Entry]:
        found = reversed(self._git.history(head))
        return [
            Entry(oid.hex, number, times.timestamp(seconds * 10**9)) for number, (oid, seconds) in enumerate(found, 1)
        ]

    def _head(self) -> Oid | None:
        return self._git.refs().get(self._entity.ref) if self._git.exists() else None
