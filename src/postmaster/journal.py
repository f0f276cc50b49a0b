"""The redo journal: what one batch will do, written down before any of it is visible.

A batch is committed when its journal stands under its name. From then on it is carried out, by this run or by the
next one (docs/states.md). Before that nothing of it counts, and what was written is cleared.
"""

import contextlib
import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import delivery_log, durable
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.maildir import Temporary
from postmaster.office import Office
from postmaster.outbox import Source

_VERSION: Final = 2
_JSON: Final = json.JSONEncoder(separators=(",", ":"))

# What happens to a letter's name in the outbox at the end.
KEEP: Final = "keep"
REMOVE: Final = "remove"
MOVE: Final = "move"

OUTBOX: Final = ""  # as the `agent` of a publication: a report of the office's own
NOWHERE: Final = Source("", 0, 0, 0, 0)  # the source of an entry that is about no letter; it is to be kept


@dataclass(slots=True)
class Publication:
    """A temporary that becomes `target`, and which of its entry's log lines say so.

    Attributes:
        agent: whose mailbox; None for the dead-letter directory, OUTBOX for the outbox.
        lines: indices into the entry's `records`.
    """

    temporary: Temporary
    target: str
    agent: str | None
    lines: list[int]


@dataclass(slots=True)
class Entry:
    """All that is done with one letter.

    Attributes:
        ending: KEEP, REMOVE or MOVE (to `moved_to`, a path).
    """

    source: Source
    ending: str
    publications: list[Publication] = field(default_factory=list)
    records: list[Record] = field(default_factory=list)
    moved_to: str | None = None
    _lines: list[bytes] | None = None

    def lines(self) -> list[bytes]:
        """Return the records as the log has them. Records are changed by `amend` only, once this was asked."""
        if self._lines is None:
            self._lines = [delivery_log.encode(record) for record in self.records]
        return self._lines

    def amend(self, line: int, **changes: Any) -> None:
        """Change what a record says."""
        self.records[line] |= changes
        self._lines = None

    def unsay(self, line: int) -> None:
        """Take a record back. No publication's `lines` may name one behind it."""
        del self.records[line]
        self._lines = None


@dataclass(slots=True)
class Batch:
    """What one commit does.

    Attributes:
        log_position: (inode, size) of the log when it was committed.
        dropped: temporaries of publications that came to nothing; they go when the journal is gone.
    """

    entries: list[Entry]
    log_position: tuple[int, int]
    dropped: list[Temporary] = field(default_factory=list)


def commit(office: Office, batch: Batch) -> None:
    """Write the journal and make it durable. Commit point: the rename.

    Raises:
        FileExistsError: another router has committed a batch that is not carried out yet.
        OSError: it cannot be written; the batch is not committed.
    """
    temporary = office.journal + ".tmp"
    durable.remove(temporary)
    durable.write_new(temporary, _encode(batch), sync=True, mode=0o600)
    try:
        durable.rename_new(temporary, office.journal)
    except OSError:
        durable.remove(temporary)
        raise
    try:
        durable.sync_directory(office.private)
    except OSError:
        drop(office)
        raise


def recommit(office: Office, batch: Batch) -> None:
    """Replace the journal by one that has other target names."""
    durable.replace(office.journal, _encode(batch))


def clear(office: Office) -> None:
    """Remove a journal that was never committed."""
    durable.remove(office.journal + ".tmp")


def drop(office: Office) -> None:
    """Remove the journal of a batch that is carried out, or that is given up before anything was visible."""
    with contextlib.suppress(FileNotFoundError):  # another router has: then the lock does not work here
        os.unlink(office.journal)


def _encode(batch: Batch) -> bytes:
    head = _JSON.encode([_VERSION, batch.log_position, len(batch.entries)]).encode("ascii")
    return b"%s\n%s" % (head, b"".join(map(_line, batch.entries)))


def _line(entry: Entry) -> bytes:
    """Return an entry as a line of JSON, its records as the log will have them; `_entry` reads it back."""
    plain = _JSON.encode(
        [
            entry.source,
            entry.ending,
            [[one.temporary.path, one.temporary.inode, one.target, one.agent, one.lines] for one in entry.publications],
            entry.moved_to,
        ]
    )
    records = b",".join(line[:-1] for line in entry.lines())
    return b"%s,[%s]]\n" % (plain[:-1].encode("ascii"), records)


def load(office: Office) -> Batch | None:
    """Return the batch that a crash left to be carried out, or None.

    Raises:
        DiskFault: the journal cannot be read or is damaged (the rename that commits it comes after its sync, so
            no crash does that).
    """
    try:
        with open(office.journal, "rb") as stream:
            raw = stream.read()
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise DiskFault(f"{office.journal}: cannot be read: {fault.strerror}") from fault
    try:
        head, *lines = raw.splitlines()
        version, (inode, size), count = json.loads(head)
        if version != _VERSION:
            raise ValueError("written by another version of postmaster")
        if count != len(lines):
            raise ValueError("cut short")
        return Batch([_entry(json.loads(line)) for line in lines], (inode, size))
    except (ValueError, TypeError) as fault:
        raise DiskFault(
            f"{office.journal}: is damaged ({fault}). Every message it names is still in the outbox or already in "
            "an inbox: move the journal away, run again, then `postmaster verify`"
        ) from fault


def _entry(plain: list[Any]) -> Entry:
    source, ending, publications, moved_to, records = plain
    return Entry(
        Source(*source),
        ending,
        [Publication(Temporary(path, inode), *rest) for path, inode, *rest in publications],
        records,
        moved_to,
    )
