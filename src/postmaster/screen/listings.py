"""The mailboxes as they are on disk, looked at again only where a directory has changed since."""

import contextlib
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Final

from postmaster import excerpts, maildir, reading
from postmaster.decide import Agent
from postmaster.office import Office, visible
from postmaster.reading import Name

_TICK_NS: Final = 20_000_000  # a directory that changed so lately may change again under the same time stamp
_ROWS: Final = 4096

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


@dataclass(slots=True)
class _Folder:
    seen: Stamp
    made: int  # by the monotonic clock, in nanoseconds
    ages: dict[str, str] = field(default_factory=dict)
    names: list[Name] = field(default_factory=list)  # the oldest first


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
                return len(self._folder(inbox, maildir.UNREAD).names)
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
            both = unread.ages.keys() & read.ages.keys()
            gone = {name for name in both if not os.path.lexists(os.path.join(inbox, maildir.UNREAD, name))}
            items = [*read.names, *(item for item in unread.names if item.name not in gone)]
            items.sort(key=lambda item: (unread if item.folder == maildir.UNREAD else read).ages[item.name])
            items.reverse()
            made = Mail(items, len(unread.names) - len(gone))
            self._mail[inbox] = (unread, read, made)
            return made

    def _folder(self, inbox: str, folder: str) -> _Folder:
        seen = stamp(os.path.join(inbox, folder))
        known = self._folders.get((inbox, folder))
        now = time.monotonic_ns()
        if known is not None and known.seen == seen and (is_settled(seen) or now - known.made < _TICK_NS):
            return known
        found = reading.names(inbox, folder)
        old = known.ages if known is not None else {}
        ages = {item.name: old.get(item.name) or _age(inbox, item) for item in found}
        found.sort(key=lambda item: ages[item.name])
        made = self._folders[inbox, folder] = _Folder(seen, now, ages, found)
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


def _age(inbox: str, item: Name) -> str:
    """Return reading.age as one text, which sorts the same and faster."""
    moment, number, name = reading.age(inbox, item)
    return f"{moment} {number:020d} {name}"
