"""What people have opened: kept with the person who looks, never in the office, so that looking changes nothing there.

The marks of an office are one SQLite file in $XDG_STATE_HOME/postmaster (default ~/.local/state), named after its root.
Deleting it makes all mail unseen again, and nothing else.
"""

import contextlib
import hashlib
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from typing import Final

from postmaster.office import Office

_SCHEMA: Final = "CREATE TABLE IF NOT EXISTS seen (place TEXT, name TEXT, time REAL, PRIMARY KEY (place, name))"


def state_file(office: Office) -> str:
    """Return where the marks of an office are kept."""
    home = os.environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(home):  # as the XDG Base Directory Specification has it
        home = os.path.join(os.path.expanduser("~"), ".local", "state")
    name = hashlib.sha256(os.fsencode(os.path.realpath(office.root))).hexdigest()[:16]
    return os.path.join(home, "postmaster", f"seen-{name}.sqlite")


class Seen:
    """The marks of one office. Where they cannot be kept on disk, `problem` says why and they last while this does."""

    def __init__(self, office: Office) -> None:
        self._lock = threading.Lock()
        self.problem: str | None = None
        path = state_file(office)
        try:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            self._connection = self._open(path)
        except (OSError, sqlite3.Error) as fault:
            self.problem = f"{path}: what you have seen cannot be kept there: {fault}"
            self._connection = self._open(":memory:")

    @staticmethod
    def _open(path: str) -> sqlite3.Connection:
        connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=1)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=NORMAL")  # with WAL: no sync for a mark, which may be lost
        connection.execute(_SCHEMA)
        return connection

    def add(self, place: str, name: str) -> None:
        """Mark a message as seen. `place` is an agent's id, ``/outbox`` or ``/dead-letter``."""
        with self._lock, contextlib.suppress(sqlite3.Error):
            self._connection.execute("INSERT OR IGNORE INTO seen VALUES (?, ?, ?)", (place, name, time.time()))

    def which(self, place: str, names: Sequence[str]) -> set[str]:
        """Return those of `names` (some hundred at most) that were seen."""
        marks = ",".join("?" * len(names))
        query = f"SELECT name FROM seen WHERE place = ? AND name IN ({marks})"  # noqa: S608 - only question marks
        with self._lock, contextlib.suppress(sqlite3.Error):
            return {name for (name,) in self._connection.execute(query, (place, *names))}
        return set()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._connection.close()
