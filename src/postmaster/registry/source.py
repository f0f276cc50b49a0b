"""YAML as people write it, read with the place of every key and value, and the problems found in it.

Scalars stay text as typed (no YAML typing). What makes a value mean something else than its text (an alias,
an anchor, a tag) is refused, and so is a repeated key, of which other readers silently keep one.
"""

import os
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster.errors import ConfigurationFault
from postmaster.printable import printable

MAX_DECLARATION_BYTES: Final = 1024 * 1024

Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True, order=True)
class Problem:
    """What is wrong at one place, and what to do. Lines and columns count from 1; line 0: the whole file."""

    file: str
    line: int
    column: int
    message: str

    def __str__(self) -> str:
        where = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        return printable(f"{where}: {self.message}")


@dataclass(slots=True)
class Document:
    """One YAML document and where its parts stand.

    Attributes:
        file: its name for people.
        data: text, lists and mappings of text.
        values: path of a value -> (line, column).
        keys: path of a value -> (line, column) of the key it stands under.
    """

    file: str
    data: Any = None
    values: dict[Path, tuple[int, int]] = field(default_factory=dict)
    keys: dict[Path, tuple[int, int]] = field(default_factory=dict)

    def problem(self, path: Path, message: str, *, at_key: bool = False) -> Problem:
        """Return a problem at the value at `path` (or its key), or at the nearest thing around it."""
        if at_key and path in self.keys:
            return Problem(self.file, *self.keys[path], message)
        while path and path not in self.values:
            path = path[:-1]
        return Problem(self.file, *self.values.get(path, (0, 0)), message)

    def where(self, path: Path) -> str:
        """Return ``file:line`` of the value at `path`."""
        found = self.problem(path, "")
        return f"{found.file}:{found.line}" if found.line else found.file


def fault(summary: str, problems: Iterable[Problem]) -> ConfigurationFault:
    """Return the error that tells all `problems`, one a line, under a summary."""
    return ConfigurationFault("\n".join([summary, *map(str, sorted(set(problems)))]))


def read_file(path: str, limit: int) -> tuple[bytes, os.stat_result]:
    """Read a regular file whole; symlinks are followed, anything else (a pipe, a directory) is never opened.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not a regular file, or larger than `limit` bytes.
    """
    _check_kind(os.stat(path), limit)  # before open(2): opening a device can have effects
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with open(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        _check_kind(status, limit)
        raw = stream.read(limit + 1)
    if len(raw) > limit:
        raise ValueError(_too_large(limit))
    return raw, status


def _check_kind(status: os.stat_result, limit: int) -> None:
    if not stat.S_ISREG(status.st_mode):
        kind = "a directory" if stat.S_ISDIR(status.st_mode) else "a pipe, socket or device"
        raise ValueError(f"is {kind}, not a file")
    if status.st_size > limit:
        raise ValueError(_too_large(limit))


def _too_large(limit: int) -> str:
    return f"is larger than {limit // 1024} KiB"


def parse(raw: bytes, file: str) -> tuple[Document, list[Problem]]:
    """Read one YAML document; with problems, `data` may be incomplete or None.

    Args:
        file: the name to give in problems.
    """
    from postmaster.registry import events  # late: the YAML parser takes as long as the interpreter to start

    return events.parse(raw, file)
