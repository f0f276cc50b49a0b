"""The mailboxes as they are on disk, looked at again only where a directory has changed since."""

import contextlib
import operator
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from postmaster import excerpts, maildir, reading
from postmaster.office import Office, visible
from postmaster.parties import Agent
from postmaster.reading import Name

_TICK_NS: Final = 20_000_000  # a directory that changed so lately may change again under the same time stamp
_ROWS: Final = 4096
_BY_AGE: Final = operator.itemgetter(0)

Stamp = tuple[int, int]  # inode, mtime in nanoseconds; (0, 0): there is none


def stamp(path: str) -> Stamp:
    """Return what changes when a directory or a file does. Raises OSError, but not for what is missing."""
    try:
        seen = os.stat(path)
    except FileNotFoundError:
        return 0, 0
    return seen.st_ino, seen.st_mtime_ns


def is_settled(seen: Stamp) -> bool:
    """Tell whether every later change of what has this stamp will give it another."""
    return abs(time.time_ns() - seen[1]) > _TICK_NS


_Row = tuple[str, Name]  # its age (_age), and what it is


@dataclass(slots=True)
class _Folder:
    seen: Stamp
    made: int  # by the monotonic clock, in nanoseconds
    rows: list[_Row]  # the oldest first
    names: set[str]


@dataclass(slots=True)
class Mail:
    """A mailbox: its messages, the newest first; how many are unread; and `find` by shown name."""

    items: list[Name] = field(default_factory=list)
    unread: int = 0

    def find(self, name: str) -> Name | None:
        """Return the message whose name is shown as `name`."""
        plain = next((item for item in self.items if item.name == name), None)
        return plain or next((item for item in self.items if visible(item.name) == name), None)


class Listings:
    """What is in the mailboxes. Safe to use from several threads."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._lock = threading.Lock()
        self._folders: dict[tuple[str, str], _Folder] = {}
        self._mail: dict[str, tuple[_Folder, _Folder, Mail]] = {}
        self._rows: OrderedDict[tuple[str, str, Stamp], dict[str, object]] = OrderedDict()

    def unread(self, inbox: str) -> int | None:
        """Return how many messages are unread; None if the mailbox is closed to us."""
        try:
            with self._lock:
                return len(self._folder(inbox, maildir.UNREAD).rows)
        except OSError:
            return None

    def mail(self, inbox: str) -> Mail:
        """Return what is in a mailbox. Raises OSError."""
        with self._lock:
            unread = self._folder(inbox, maildir.UNREAD)
            read = self._folder(inbox, maildir.READ)
            known = self._mail.get(inbox)
            if known is not None and known[0] is unread and known[1] is read:
                return known[2]
            both = unread.names & read.names
            gone = {name for name in both if not os.path.lexists(os.path.join(inbox, maildir.UNREAD, name))}
            waiting = [row for row in unread.rows if row[1].name not in gone] if gone else unread.rows
            rows = sorted([*read.rows, *waiting], key=_BY_AGE, reverse=True)
            made = Mail([item for _, item in rows], len(waiting))
            self._mail[inbox] = (unread, read, made)
            return made

    def _folder(self, inbox: str, folder: str) -> _Folder:
        seen = stamp(os.path.join(inbox, folder))
        known = self._folders.get((inbox, folder))
        now = time.monotonic_ns()
        if known is not None and known.seen == seen and (is_settled(seen) or now - known.made < _TICK_NS):
            return known
        made = self._folders[inbox, folder] = _look(inbox, folder, seen, now, known)
        return made

    def row(self, agent: Agent, item: Name) -> dict[str, object]:
        """Return what a list says of a message (excerpts.row); of one that has not changed, from memory."""
        path = os.path.join(agent.inbox, item.folder, item.name)
        with contextlib.suppress(OSError):
            key = (agent.id, path, stamp(path))
            with self._lock:
                if (known := self._rows.get(key)) is not None:
                    self._rows.move_to_end(key)
                    return known
            made = excerpts.row(self._office, agent, item)
            with self._lock:
                self._rows[key] = made
                while len(self._rows) > _ROWS:
                    self._rows.popitem(last=False)
            return made
        return excerpts.row(self._office, agent, item)


def _look(inbox: str, folder: str, seen: Stamp, now: int, known: _Folder | None) -> _Folder:
    """Look at a folder; of the many names in it only those that are new cost more than being read."""
    old = known.names if known is not None else frozenset[str]()
    names: set[str] = set()
    rows = []
    with contextlib.suppress(FileNotFoundError), os.scandir(os.path.join(inbox, folder)) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            names.add(entry.name)
            if entry.name not in old:
                item = reading.named(folder, entry)
                rows.append((_age(inbox, item), item))
    if known is not None:
        kept = known.rows if old <= names else [row for row in known.rows if row[1].name in names]
        rows = [*kept, *rows]
    rows.sort(key=_BY_AGE)
    return _Folder(seen, now, rows, names)


def _age(inbox: str, item: Name) -> str:
    """Return reading.age as one text, which sorts the same and faster."""
    moment, number, name = reading.age(inbox, item)
    return f"{moment} {number:020d} {name}"
