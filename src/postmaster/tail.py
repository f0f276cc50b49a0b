"""Reading the delivery log as it grows: whole lines only, through rotation and truncation."""

import contextlib
import os
from collections.abc import Iterator
from typing import IO

from postmaster import delivery_log
from postmaster.office import Office


class Tail:
    """The log from its beginning, and then what is appended to it.

    `read` yields every line that is whole by now, once; a line without its newline waits. When the log was renamed
    (rotated), the rest of the old file comes first, then every newer one. A log that was cut is read from its start,
    unless only a part of a line was cut off.
    """

    def __init__(self, office: Office) -> None:
        self._office = office
        self._stream: IO[bytes] | None = None
        self._inode = 0
        self._offset = 0  # behind the last whole line

    def close(self) -> None:
        """Close the log."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def read(self) -> Iterator[bytes]:
        """Yield the lines that have come since, those of rotated logs that were not read yet included."""
        if self._stream is None:
            self._open_current()
        while self._stream is not None:
            yield from self._rest()
            if not self._is_rotated():
                return
            yield from self._rest()
            yield from self._next()

    def _rest(self) -> Iterator[bytes]:
        assert self._stream is not None
        if os.fstat(self._stream.fileno()).st_size < self._offset:
            self._offset = 0
        self._stream.seek(self._offset)
        while (line := self._stream.readline()).endswith(b"\n"):
            self._offset += len(line)
            yield line

    def _is_rotated(self) -> bool:
        try:
            return os.stat(self._office.log).st_ino != self._inode
        except FileNotFoundError:
            return False  # between the rename and the next append

    def _next(self) -> Iterator[bytes]:
        """Yield what is in files between the one that was open and the current log, and open that."""
        inode = self._inode
        files = delivery_log.log_files(self._office)
        inodes = [_inode(path) for path in files]
        newer = files[inodes.index(inode) + 1 :] if inode in inodes else []
        for path in (one for one in newer if one != self._office.log):
            with delivery_log.open_log(path) as stream:
                yield from stream
        self.close()
        self._open_current()

    def _open_current(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            descriptor = os.open(self._office.log, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            self._stream = open(descriptor, "rb")  # noqa: SIM115
            self._inode = os.fstat(descriptor).st_ino
            self._offset = 0


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except FileNotFoundError:
        return -1
