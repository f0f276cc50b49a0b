"""Reading an agent's mail: who is meant, which message is meant, what it says.

Nothing in a mailbox is trusted: a name is looked at before it is opened, links are not followed, and of each file only
so much is read as is asked for.
"""

import errno
import heapq
import os
import re
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import address, maildir, message, outbox, times, waiting
from postmaster.errors import BadData
from postmaster.header import Refused
from postmaster.office import Office, visible
from postmaster.parties import Agent, RegistryView
from postmaster.printable import quoted

MIN_PREFIX: Final = 4
SHOWN_ID: Final = 12

# As posting.py names what it delivers; `-2` and so on where a name was taken.
_DELIVERED: Final = re.compile(r"(\d{8}T\d{6}Z)-(\d{6,})-([0-9a-f]{32})(?:-\d+)?\.md")
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{MIN_PREFIX},32}}")
_SEQUENCE: Final = re.compile(r"[1-9][0-9]{0,17}")


@dataclass(frozen=True, slots=True)
class Name:
    """One name in a mailbox. `kind` says what it is if it is no regular file."""

    folder: str
    name: str
    kind: str | None = None

    @property
    def shown(self) -> str:
        """The name as people and JSON see it."""
        return f"{self.folder}/{visible(self.name)}"


@dataclass(frozen=True, slots=True)
class Message:
    """What a file holds.

    Attributes:
        fields: every header field as typed, in order; empty if the header cannot be read.
        problem: why it cannot be read as a message.
        raw: its bytes, or only its beginning.
        body: where the body starts in `raw`.
        size: of the whole file, in bytes.
    """

    raw: bytes
    size: int
    fields: dict[str, Any] = field(default_factory=dict)
    body: int = 0
    problem: str | None = None

    def text(self, key: str) -> str | None:
        """Return a field that is text."""
        value = self.fields.get(key)
        return value if isinstance(value, str) else None

    @property
    def sequence(self) -> int | None:
        """The number in the header, if it is one."""
        value = self.text("sequence")
        return int(value) if value and _SEQUENCE.fullmatch(value) else None

    @property
    def to(self) -> list[str]:
        """The addresses in `to`."""
        value = self.fields.get("to")
        return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, str)]


# -- safe reading ----------------------------------------------------------------------------------------------


def open_regular(path: str) -> tuple[int, os.stat_result]:
    """Open a regular file for reading and nothing else: no link is followed, no pipe waited for.

    Raises:
        BadData: it is something else.
        OSError: it is gone or closed.
    """
    seen = os.lstat(path)
    if not stat.S_ISREG(seen.st_mode):
        raise BadData(f"{visible(path)}: it is {outbox.kind(seen.st_mode)}, not a file; it is not opened")
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    seen = os.fstat(descriptor)
    if not stat.S_ISREG(seen.st_mode):
        os.close(descriptor)
        raise BadData(f"{visible(path)}: it changed while it was looked at")
    return descriptor, seen


def read_bytes(path: str, limit: int) -> tuple[bytes, int]:
    """Return the first `limit` bytes of a regular file, and its size. Raises as `open_regular`."""
    descriptor, seen = open_regular(path)
    with open(descriptor, "rb", buffering=0) as stream:
        parts = []
        while limit > 0 and (part := stream.read(min(limit, 1 << 20))):
            parts.append(part)
            limit -= len(part)
    return b"".join(parts), seen.st_size


def chunks(path: str, start: int = 0) -> Iterator[bytes]:
    """Yield the bytes of a regular file from `start` on. Raises as `open_regular`."""
    descriptor, _ = open_regular(path)
    with open(descriptor, "rb", buffering=0) as stream:
        stream.seek(start)
        while part := stream.read(1 << 20):
            yield part


def load(path: str, limit: int = message.HEAD_BYTES) -> Message:
    """Read a message; of its bytes the first `limit`, which are enough for the header. Raises as `open_regular`."""
    raw, size = read_bytes(path, max(limit, message.HEAD_BYTES))
    try:
        start, end, body = message.split(raw, complete=size <= len(raw), delivered=True)
        return Message(raw, size, message.all_fields(raw, start, end), body)
    except Refused as fault:
        return Message(raw, size, problem=fault.detail)


def load_wherever(inbox: str, item: Name, limit: int) -> tuple[Name, Message]:
    """Read a message as `load` does, also if it is moved to another folder of its mailbox just now; say where it is."""
    for folder in (item.folder, maildir.READ, maildir.UNREAD):
        try:
            return Name(folder, item.name), load(os.path.join(inbox, folder, item.name), limit)
        except FileNotFoundError:
            continue
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), os.path.join(inbox, item.folder, item.name))


# -- who ---------------------------------------------------------------------------------------------------------


def find_agent(registry: RegistryView, text: str) -> Agent:
    """Return the agent that `text` (an id, address, alias or ``agent:ID``) names.

    Raises:
        BadData: nobody; says who may have been meant.
    """
    if text.startswith(address.ROLE):
        names = ", ".join(agent.id for agent in registry.holders(text[len(address.ROLE) :])[:5])
        raise BadData(f"{quoted(text)} is a role, not an agent" + (f"; it is held by {names}" if names else ""))
    found = registry.agent(text.removeprefix(address.AGENT)) or registry.find(text)
    if found is None:
        near = registry.suggest(text)
        hint = f"; did you mean {near.removeprefix(address.AGENT)}?" if near else ""
        raise BadData(
            f"no agent has the id or address {quoted(text)}{hint} (`postmaster registry show` lists the agents)"
        )
    return found


def own_address(agent: Agent, to: Sequence[str]) -> str | None:
    """Return the address or alias of `agent` under which a message to `to` reached it, as its registry writes it."""
    own = {address.fold(name): name for name in agent.names}
    return next((own[address.fold(item)] for item in to if address.fold(item) in own), None)


# -- which ---------------------------------------------------------------------------------------------------------


def names(inbox: str, folder: str) -> list[Name]:
    """Return every name in one folder of a mailbox, in no order; none if the folder is missing."""
    try:
        with os.scandir(os.path.join(inbox, folder)) as entries:
            return [named(folder, entry) for entry in entries if not entry.name.startswith(".")]
    except FileNotFoundError:
        return []


def named(folder: str, entry: os.DirEntry[str]) -> Name:
    """Return one name of a folder."""
    return Name(folder, entry.name, None if entry.is_file(follow_symlinks=False) else _kind(entry))


def _kind(entry: os.DirEntry[str]) -> str:
    try:
        return outbox.kind(entry.stat(follow_symlinks=False).st_mode)
    except OSError:
        return "gone"


def newest(inbox: str, found: Sequence[Name], limit: int) -> list[Name]:
    """Return the newest `limit` (0: all) of `found`, newest first: by `age`."""
    return heapq.nlargest(limit or len(found), found, key=lambda item: age(inbox, item))


def age(inbox: str, item: Name) -> tuple[str, int, str]:
    """Return what messages are ordered by, the newest last: the time and number in the name, or mtime."""
    if match := _DELIVERED.fullmatch(item.name):
        return match[1], int(match[2]), item.name
    try:
        mtime_ns = os.lstat(os.path.join(inbox, item.folder, item.name)).st_mtime_ns
    except OSError:
        mtime_ns = 0
    return times.compact_time(mtime_ns), 0, item.name


def mail(inbox: str) -> list[Name]:
    """Return every name in a mailbox; one that is moved to read/ while we look is told of once."""
    unread = names(inbox, maildir.UNREAD)
    read = names(inbox, maildir.READ)
    both = {item.name for item in read} & {item.name for item in unread}
    gone = {name for name in both if not os.path.lexists(os.path.join(inbox, maildir.UNREAD, name))}
    return [*(item for item in unread if item.name not in gone), *read]


def wait_for_mail(inbox: str, seconds: float) -> bool:
    """Wait until there is unread mail; tell whether there is. Raises OSError if the mailbox is closed."""

    def look() -> bool | None:
        return bool(maildir.messages(inbox, maildir.UNREAD)) or None

    return waiting.wait_for(look, [os.path.join(inbox, maildir.UNREAD)], seconds) is not None


def find_message(office: Office, agent: Agent, text: str) -> Name:
    """Return the message of `agent` that `text` names: a file name, or an unambiguous beginning of an id.

    Raises:
        BadData: there is none, or more than one; says what there is.
    """
    check_name(text)
    found = mail(agent.inbox)
    matches = [item for item in found if text in (item.name, visible(item.name))]
    if not matches and _PREFIX.fullmatch(text.casefold()):
        prefix = text.casefold()
        matches = [item for item in found if _id_of(agent.inbox, item).startswith(prefix)]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = "".join(f"\n  {item.shown}" for item in newest(agent.inbox, matches, 10))
        raise BadData(f"{quoted(text)} names {len(matches)} messages of {agent.id}; give a file name:{listed}")
    short = f" (an id needs at least {MIN_PREFIX} characters)" if len(text) < MIN_PREFIX else ""
    there = "".join(f"\n  {item.shown}" for item in newest(agent.inbox, found, 5))
    held = f"its newest are:{there}" if there else f"its mailbox {office.shown(agent.inbox)} is empty"
    raise BadData(f"{agent.id} has no message {quoted(text)}{short}; {held}")


def path_of(office: Office, agent: Agent, item: Name) -> str:
    """Return the path of a message.

    Raises:
        BadData: it is a link, a directory, a pipe ..., which nobody opens.
    """
    path = os.path.join(agent.inbox, item.folder, item.name)
    if item.kind is not None:
        raise BadData(f"{office.shown(path)}: it is {item.kind}, not a message; it is not opened")
    return path


def check_name(text: str) -> None:
    """Refuse what is not the name of one file in a directory.

    Raises:
        BadData: it could lead elsewhere.
    """
    if not text or "/" in text or "\0" in text or ".." in text or text.startswith("."):
        raise BadData(f"{quoted(text)} is neither a file name nor the beginning of an id")


def id_in(name: str) -> str | None:
    """Return the id in the name that delivery gave a message; None if it is another name."""
    match = _DELIVERED.fullmatch(name)
    return match[3] if match else None


def _id_of(inbox: str, item: Name) -> str:
    """Return the id of a message: from the name that delivery gave it, else from the file."""
    if found := id_in(item.name):
        return found
    if item.kind is not None:
        return ""
    try:
        return (load(os.path.join(inbox, item.folder, item.name)).text("id") or "").casefold()
    except (OSError, BadData):
        return ""
