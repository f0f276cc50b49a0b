"""What the public API gives: plain, frozen values."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from postmaster import parties, reading
from postmaster.office import visible
from postmaster.parties import Accept

LogLine = dict[str, Any]  # one line of the delivery log (docs/formats/delivery-log.md)


@dataclass(frozen=True, slots=True)
class Agent:
    """An agent of the registry, or a live instance of one (`class_id` is the id of that one then)."""

    id: str
    address: str
    aliases: tuple[str, ...]
    roles: tuple[str, ...]
    accepts: tuple[Accept, ...]
    inbox: str
    class_id: str | None


@dataclass(frozen=True, slots=True)
class Sent:
    """A message that is in the outbox: `id` is the MD5 of its body, `file` its name there."""

    id: str
    correlation_id: str
    file: str


@dataclass(frozen=True, slots=True)
class Mail:
    """What the header of a message in a mailbox says; every value is text as its sender typed it, or None.

    Attributes:
        file: its name; with `agent` it says which message is meant.
        folder: `unread` or `read`.
        sequence: its number within its flow (`correlation_id`).
        header: all fields, those of the sender's own too.
        problem: why it is no message that can be read; all else is empty then.
    """

    agent: str
    file: str
    folder: str
    id: str | None
    sequence: int | None
    sender: str | None
    to: tuple[str, ...]
    type: str | None
    subject: str | None
    correlation_id: str | None
    sent_at: str | None
    in_reply_to: str | None
    header: Mapping[str, Any] = field(hash=False)
    problem: str | None


@dataclass(frozen=True, slots=True)
class Message(Mail):
    """A message with its body, byte for byte."""

    body: bytes

    @property
    def text(self) -> str:
        """The body as text; bytes that are not UTF-8 are replaced."""
        return self.body.decode("utf-8", "replace")


@dataclass(frozen=True, slots=True)
class Routed:
    """What a pass of the router did.

    Attributes:
        busy: another was at work, and takes the mail; nothing was done.
        lines: what was added to the log.
        deferred: how many copies wait in the outbox for a later pass.
        problems: what a person should look at, in words.
    """

    busy: bool
    lines: tuple[LogLine, ...]
    deferred: int
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """What a merge of the registry changed: ids of agents. `warnings`: what the operator should know, in words."""

    added: tuple[str, ...]
    changed: tuple[str, ...]
    removed: tuple[str, ...]
    warnings: tuple[str, ...]


def agent(found: parties.Agent) -> Agent:
    """Return an agent as the public API gives it."""
    return Agent(
        found.id, found.address, found.aliases, found.roles, found.accepts, inbox=found.inbox, class_id=found.class_id
    )


def mail(owner: parties.Agent, item: reading.Name, content: reading.Message) -> Mail:
    """Return what a listing says of a message in the mailbox of `owner`."""
    return Mail(**_header(owner, item, content))


def message(owner: parties.Agent, item: reading.Name, content: reading.Message) -> Message:
    """Return a whole message in the mailbox of `owner`."""
    return Message(**_header(owner, item, content), body=content.raw[content.body :])


def _header(owner: parties.Agent, item: reading.Name, content: reading.Message) -> dict[str, Any]:
    keys = ("id", "type", "subject", "correlation_id", "sent_at", "in_reply_to")
    return {
        **{key: content.text(key) for key in keys},
        "agent": owner.id,
        "file": visible(item.name),
        "folder": item.folder,
        "sequence": content.sequence,
        "sender": content.text("from"),
        "to": tuple(content.to),
        "header": content.fields,
        "problem": content.problem,
    }
