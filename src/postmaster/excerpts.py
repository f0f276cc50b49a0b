"""One message as plain data, as listings and pages show it."""

import base64
import os
from typing import Any

from postmaster import acknowledging, maildir, reading
from postmaster.errors import BadData
from postmaster.office import Office, visible
from postmaster.parties import Agent
from postmaster.reading import Message, Name


def mailbox(office: Office, agent: Agent, limit: int, *, every: bool) -> dict[str, Any]:
    """Return a mailbox as plain data: what both the human and the JSON form say. Reads only what it shows."""
    found = reading.mail(agent.inbox)
    unread_mail = [item for item in found if item.folder == maildir.UNREAD]
    listed = found if every else unread_mail
    shown = reading.newest(agent.inbox, listed, limit)
    return {
        "office": office.root,
        "agent": agent.id,
        "address": agent.address,
        "inbox": office.shown(agent.inbox),
        "unread": len(unread_mail),
        "read": len(found) - len(unread_mail),
        "waiting": acknowledging.count_waiting(office),
        "hidden": len(listed) - len(shown),
        "messages": [row(office, agent, item) for item in shown],
    }


def row(office: Office, agent: Agent, item: Name) -> dict[str, Any]:
    """Return what a listing says of a message in a mailbox; `problem` says why it is none. Reads its header."""
    where = place(office, agent, item)
    if item.kind is not None:
        return {**where, "problem": f"it is {item.kind}, not a message"}
    try:
        content = reading.load(os.path.join(agent.inbox, item.folder, item.name))
    except FileNotFoundError:
        return {**where, "problem": "it was moved while it was looked at"}
    except (OSError, BadData) as fault:
        return {**where, "problem": fault.strerror if isinstance(fault, OSError) else "it is not a file"}
    return {**where, **fields(content)}


def place(office: Office, agent: Agent, item: Name) -> dict[str, Any]:
    """Return where a message is."""
    path = os.path.join(agent.inbox, item.folder, item.name)
    return {"folder": item.folder, "file": visible(item.name), "path": office.shown(path)}


def fields(content: Message) -> dict[str, Any]:
    """Return what a listing says of a message."""
    if content.problem is not None:
        return {"problem": content.problem}
    found: dict[str, Any] = {"id": content.text("id"), "sequence": content.sequence, "to": content.to}
    keys = ("from", "type", "subject", "correlation_id", "sent_at", "in_reply_to")
    return found | {key: content.text(key) for key in keys}


def describe_content(content: Message) -> dict[str, Any]:
    """Return a message as plain data. A body that is not UTF-8 is given in base 64."""
    found: dict[str, Any] = {"size": content.size, "cut": content.size > len(content.raw), "header": content.fields}
    if content.problem is not None:
        found["problem"] = content.problem
    body = content.raw[content.body :]
    try:
        found["body"] = body.decode("utf-8")
    except UnicodeDecodeError:
        found["body_base64"] = base64.b64encode(body).decode("ascii")
    return found
