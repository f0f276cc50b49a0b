"""The redo journal: what one batch will do, written down before any of it is visible.

A batch is committed when its journal stands under its name. From then on it is carried out, by this run or by the
next one (docs/states.md). Before that nothing of it counts, and what was written is cleared.
"""

import json
import os
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import durable
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.maildir import Temporary
from postmaster.office import Office
from postmaster.outbox import Source

_VERSION: Final = 1

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


@dataclass(slots=True)
class Batch:
    """What one commit does. `log_position` is (inode, size) of the log when it was committed."""

    entries: list[Entry]
    log_position: tuple[int, int]


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
    os.unlink(office.journal)


def _encode(batch: Batch) -> bytes:
    content = {"version": _VERSION, "log": batch.log_position, "entries": [_plain(one) for one in batch.entries]}
    return json.dumps(content, separators=(",", ":")).encode("ascii")


def _plain(entry: Entry) -> list[Any]:
    """Return an entry as JSON takes it; `_entry` reads it back."""
    source = entry.source
    return [
        [source.name, source.device, source.inode, source.size, source.mtime_ns],
        entry.ending,
        [[one.temporary.path, one.temporary.inode, one.target, one.agent, one.lines] for one in entry.publications],
        entry.records,
        entry.moved_to,
    ]


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
        content = json.loads(raw)
        if content["version"] != _VERSION:
            raise ValueError("written by another version of postmaster")
        inode, size = content["log"]
        return Batch([_entry(item) for item in content["entries"]], (inode, size))
    except (ValueError, KeyError, TypeError) as fault:
        raise DiskFault(
            f"{office.journal}: is damaged ({fault}). Every message it names is still in the outbox or already in "
            "an inbox: move the journal away, run again, then `postmaster verify`"
        ) from fault


def _entry(plain: list[Any]) -> Entry:
    source, ending, publications, records, moved_to = plain
    return Entry(
        Source(*source),
        ending,
        [Publication(Temporary(path, inode), *rest) for path, inode, *rest in publications],
        records,
        moved_to,
    )
