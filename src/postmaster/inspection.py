"""Looking at one file of mail the way an auditor does: nothing is followed, nothing is believed, all is hashed."""

import os
import re
import stat
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from postmaster import message, open_items
from postmaster.header import Refused

_NAMED: Final = re.compile(r".*Z-(\d{6,})-([0-9a-f]{32})(?:-\d+)?\.md")
_CHUNK: Final = 1 << 20


@dataclass(slots=True)
class Inspected:
    """What a file of mail says of itself.

    Attributes:
        fields: the log's fields as its header has them (`sequence` as text).
        key: open_items.letter_key of them; None if they cannot be read.
        sequence: the number in its header; None if there is none.
        faults: what does not fit within the file itself, in words.
        body: the MD5 of its body.
        unreadable: the system does not let us read it; `faults` says why.
    """

    fields: dict[str, Any] = field(default_factory=dict)
    key: bytes | None = None
    sequence: int | None = None
    faults: list[str] = field(default_factory=list)
    body: str | None = None
    unreadable: bool = False


def kind_of(mode: int) -> str | None:
    """Return what a name is in words; None for a regular file."""
    if stat.S_ISREG(mode):
        return None
    kinds = {stat.S_IFLNK: "a symbolic link", stat.S_IFDIR: "a directory", stat.S_IFIFO: "a named pipe"}
    return kinds.get(stat.S_IFMT(mode), "a socket or a device")


def is_numbered(name: str) -> bool:
    """Tell whether a file has a name that only delivery gives: with its number and its id."""
    return _NAMED.fullmatch(name) is not None


def delivered(path: str) -> Inspected:
    """Inspect a message in an inbox: its header, its hash, its name.

    Raises:
        OSError: it cannot be read (FileNotFoundError: it has been moved since).
    """
    found = _read(path, ours=True)
    if found.key is None:
        return found
    named = _NAMED.fullmatch(os.path.basename(path))
    written = found.fields.get("id")
    if written != found.body:
        found.faults.append(f"its id is {_shown(written)}, but the MD5 of its body is {found.body}")
    if found.sequence is None:
        found.faults.append(f"its sequence is {_shown(found.fields.get('sequence'))}, not a number")
    if named is not None and named[2] != written:
        found.faults.append(f"its name says id {named[2]}, its header {_shown(written)}")
    if named is not None and found.sequence is not None and int(named[1]) != found.sequence:
        found.faults.append(f"its name says number {int(named[1])}, its header {found.sequence}")
    return found


def refused(path: str, *, hashed: bool) -> Inspected:
    """Inspect a dead letter, which is as its sender wrote it.

    Args:
        hashed: whether the log knows its id; else the body is not read.

    Raises:
        OSError: it cannot be read.
    """
    return _read(path, ours=False, hashed=hashed)


def _read(path: str, *, ours: bool, hashed: bool = True) -> Inspected:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    found = Inspected()
    try:
        head = _head(descriptor)
        complete = len(head) < message.HEAD_BYTES
        try:
            start, end, body = message.split(head, complete=complete, delivered=True)
            if ours:
                found.fields = message.all_fields(head, start, end)
            else:
                found.fields = message.examine(message.read_header(head, start, end, body)).readable
        except Refused as fault:
            found.faults.append(f"its header cannot be read: {fault.detail}")
            if not ours:
                found.key = open_items.letter_key({})
            return found
        digest = md5(memoryview(head)[body:], usedforsecurity=False)
        while hashed and not complete and (part := os.read(descriptor, _CHUNK)):
            digest.update(part)
        found.body = digest.hexdigest() if hashed else None
    finally:
        os.close(descriptor)
    if not ours:
        known = {} if found.body is None else {"id": found.body}
        found.key = open_items.letter_key({**found.fields, **known})
        return found
    number = found.fields.get("sequence")
    if isinstance(number, str) and re.fullmatch(r"[1-9]\d{0,17}", number, re.ASCII):
        found.sequence = int(number)
    found.key = open_items.letter_key(found.fields)
    return found


def _head(descriptor: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while size < message.HEAD_BYTES and (part := os.read(descriptor, message.HEAD_BYTES - size)):
        parts.append(part)
        size += len(part)
    return b"".join(parts)


def _shown(value: Any) -> str:
    if value is None:
        return "missing"
    return value if isinstance(value, str) and len(value) <= 40 and value.isprintable() else ascii(value)[:60]
