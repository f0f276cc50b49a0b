"""Acknowledging mail: a message is moved to read/, or back to unread/, and the log has a line of it."""

import os
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postmaster import delivery_log, maildir, message, outbox, times
from postmaster.delivery_log import Record
from postmaster.errors import BadData, ConfigurationFault, DiskFault
from postmaster.header import Refused
from postmaster.office import Office, visible
from postmaster.parties import Agent
from postmaster.reading import Message, Name, load, own_address

READ: Final = "read"  # the log's `action` for a message moved to read/
UNREAD: Final = "unread"  # and for one moved back


@dataclass(frozen=True, slots=True)
class Moved:
    """A message that was asked to be in another folder. `already`: it was there. `path` is relative to the root."""

    file: str
    path: str
    already: bool
    message: Message


def count_waiting(office: Office) -> int | None:
    """Return how many letters lie in the outbox, and in drop folders; None if this account may not list it.

    Raises:
        OSError: it cannot be listed.
    """
    try:
        return len(outbox.scan(office.outbox, drop_folders=True))
    except ConfigurationFault:
        return len(outbox.scan(office.outbox))
    except PermissionError:
        return None


def move(
    office: Office, agent: Agent, item: Name, destination: str, *, clock: Callable[[], int] = time.time_ns
) -> Moved:
    """Move a message of `agent` to the folder `destination` and log it; one that is there already stays.

    Where the log belongs to another account and is closed to this one, nothing is logged, as when a receiver moves its
    mail by hand.

    Commit point: the rename. A crash after it leaves the message moved and the log without its line, as a receiver
    that moves its mail by hand does.

    Raises:
        BadData: it is no file.
        DiskFault: it cannot be moved, or it was moved but not logged.
    """
    path = os.path.join(agent.inbox, item.folder, item.name)
    if item.kind is not None:
        raise BadData(f"{office.shown(path)}: it is {item.kind}, not a message; remove it by hand")
    try:
        content = load(path)
        if item.folder == destination:
            return Moved(visible(item.name), office.shown(path), True, content)
        name = maildir.move_message(agent.inbox, item.name, item.folder, destination)
    except FileNotFoundError:
        there = os.path.join(agent.inbox, destination, item.name)
        if not os.path.lexists(there):
            raise
        return Moved(visible(item.name), office.shown(there), True, load(there))  # another was faster
    except OSError as fault:
        raise DiskFault(f"{office.shown(path)}: cannot be moved to {destination}/: {fault.strerror}") from fault
    target = office.shown(os.path.join(agent.inbox, destination, name))
    record = {
        **log_fields(own_address(agent, content.to), content),
        "time": times.timestamp(clock()),
        "action": READ if destination == maildir.READ else UNREAD,
        "agent": agent.id,
        "path": target,
    }
    try:
        delivery_log.append(office, [delivery_log.encode(record)])
    except DiskFault as fault:
        if not (isinstance(fault.__cause__, PermissionError) and os.stat(office.logs).st_uid != os.geteuid()):
            raise DiskFault(f"{target}: it was moved there, but not logged: {fault}") from fault
    return Moved(visible(name), target, False, content)


def log_fields(reached: str | None, content: Message) -> Record:
    """Return what the log says of a message that is in a mailbox; `reached` is the address that it came to."""
    if content.problem is not None:
        return {}
    start, end, body = message.split(content.raw, complete=content.size <= len(content.raw), delivered=True)
    try:
        found: Record = message.examine(message.read_header(content.raw, start, end, body)).readable
    except Refused:
        return {}
    if reached:
        found["to"] = reached
    message_id = content.text("id") or ""
    if re.fullmatch(r"[0-9a-f]{32}", message_id):
        found["id"] = message_id
    found["sequence"] = content.sequence
    return found
