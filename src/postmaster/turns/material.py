"""What a turn's command gets: the messages, its standard input, its environment."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from postmaster import durable, maildir, reading
from postmaster.errors import BadData, DiskFault
from postmaster.office import ENVIRONMENT, Office
from postmaster.reading import Message
from postmaster.turns import inside
from postmaster.turns.home import Home, unread
from postmaster.turns.instances import Instance
from postmaster.turns.rules import Rules

_MOST_NAMES: Final = 96 * 1024  # bytes of all paths of a turn's messages: one variable has at most 128 KiB (execve(2))


@dataclass(frozen=True, slots=True)
class Letter:
    """An unread message that a turn gets."""

    name: str
    content: Message

    def text(self, key: str) -> str:
        """Return a header field on one line; empty if there is none."""
        return "".join(c if c.isprintable() else " " for c in self.content.text(key) or "")


def letters_of(instance: Instance, rules: Rules, attempts: Mapping[str, object]) -> list[Letter]:
    """Return the messages of the next turn, oldest first. After a failure a message is tried alone.

    Args:
        attempts: the messages that were tried before, by name.

    Raises:
        DiskFault: one cannot be read.
    """
    waiting = unread(instance.inbox)
    if not rules.all_messages or any(name in attempts for name in waiting):
        waiting = waiting[:1]
    found: list[Letter] = []
    room = _MOST_NAMES
    for name in waiting:
        room -= len(os.fsencode(instance.inbox)) + len(os.fsencode(name)) + 16
        if found and room < 0:
            break  # the next turn gets the others
        try:
            content = reading.load(os.path.join(instance.inbox, maildir.UNREAD, name))
        except FileNotFoundError:
            continue  # acknowledged by hand just now
        except (OSError, BadData) as fault:
            raise DiskFault(f"{instance.inbox}: {name}: cannot be read: {fault}") from fault
        found.append(Letter(name, content))
    return found


def write_stdin(home: Home, instance: Instance, rules: Rules, letters: Sequence[Letter]) -> None:
    """Write what the command reads: for each message its thread, its sender, `---`, its text. Raises OSError."""
    durable.remove(home.stdin)
    with open(os.open(home.stdin, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600), "wb") as out:
        for one in letters:
            head = f"thread: {one.text('correlation_id')}\nfrom: {one.text('from')}\n"
            if rules.all_messages:  # else a text could pass for the next message
                head += f"bytes: {one.content.size - one.content.body}\n"
            out.write(f"{head}---\n".encode("utf-8", "backslashreplace"))
            path = os.path.join(instance.inbox, maildir.UNREAD, one.name)
            for part in reading.chunks(path, one.content.body):
                out.write(part)
            if rules.all_messages:
                out.write(b"\n")


def environment(
    office: Office,
    instance: Instance,
    rules: Rules,
    letters: Sequence[Letter],
    *,
    turn_id: str,
    attempt: int,
    stage: str,
) -> dict[str, str]:
    """Return the environment of the command: this process's own, and what it is told of its turn (docs/turns.md)."""
    found = {name: value for name, value in os.environ.items() if name not in inside.VARIABLES}
    folder = os.path.join(instance.inbox, maildir.UNREAD)
    found["PATH"] = f"{found.get('PATH', os.defpath)}:{os.path.dirname(sys.executable)}"  # `postmaster` is there
    found |= {
        ENVIRONMENT: office.root,
        inside.AGENT: instance.address,
        inside.AGENT_ID: instance.id,
        inside.TURN: turn_id,
        inside.ATTEMPT: str(attempt),
        inside.MESSAGES: "\n".join(os.path.join(folder, one.name) for one in letters),
        inside.STAGE: stage,
    }
    origin = instance.origin
    if rules.default_thread == "origin" and origin is not None:
        found[inside.THREAD] = origin.correlation_id
    return found
