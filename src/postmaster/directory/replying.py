"""Writing the answer to a message: to its sender, in its flow, from the address that it reached its reader under."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Union

from postmaster import composition, message, reading, submission, times
from postmaster.address import is_mailbox
from postmaster.composition import Draft
from postmaster.directory.view import DirectoryView
from postmaster.errors import BadData
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.reading import Name
from postmaster.registry.compiled import CompiledRegistry
from postmaster.settings import Settings

View = Union[CompiledRegistry, DirectoryView]  # noqa: UP007


@dataclass(frozen=True, slots=True)
class Answer:
    """What an answer says besides what follows from the message.

    Attributes:
        type: None: the one that its writer declares to send there.
        subject: None: that of the message, after `Re: `.
        sent_at: RFC 3339; None: now.
        headers: fields of the writer's own.
    """

    body: bytes
    type: str | None = None
    subject: str | None = None
    sent_at: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)


def draft(
    office: Office, replier: Agent, item: Name, answer: Answer, registry: View, settings: Settings, now_ns: int
) -> Draft:
    """Return the letter that answers a message in the mailbox of `replier`.

    Raises:
        BadData: it cannot be answered, or the answer would not be delivered.
    """
    original = reading.load(os.path.join(replier.inbox, item.folder, item.name))
    sender, flow, message_id = _origin(office, replier, item, original)
    kind = answer.type
    if kind is None:
        emits = (registry.entry(replier.id) or {}).get("emits", [])
        kind = submission.reply_type(replier, emits, registry.find(sender), sender)
    reached = reading.own_address(replier, original.to) or replier.address
    subject = composition.reply_subject(original.text("subject") or "") if answer.subject is None else answer.subject
    written = Draft(
        to=(sender,),
        sender=reached,
        type=kind,
        subject=subject,
        correlation_id=flow,
        sent_at=times.timestamp(now_ns) if answer.sent_at is None else answer.sent_at,
        in_reply_to=message_id,
        headers=dict(answer.headers),
        body=answer.body,
    )
    senders = list(dict.fromkeys([reached, replier.address]))
    may_repeat = answer.sent_at is not None
    return submission.choose_sender(office, written, senders, registry, settings, may_repeat=may_repeat)


def _origin(office: Office, agent: Agent, item: Name, original: reading.Message) -> tuple[str, str, str]:
    """Return the sender, the flow and the id of the message that is answered."""
    path = os.path.join(agent.inbox, item.folder, item.name)
    if original.problem is not None:
        raise BadData(f"{office.shown(path)}: it cannot be answered: {original.problem}")
    sender, flow = original.text("from"), original.text("correlation_id")
    if sender is None or not is_mailbox(sender):
        raise BadData(f"{office.shown(path)}: it cannot be answered: its `from` is no address")
    if not flow:
        raise BadData(f"{office.shown(path)}: it cannot be answered: it has no `correlation_id`")
    message_id = original.text("id")
    if message_id is None:  # put there by hand
        message_id = message.body_id(b"".join(reading.chunks(path, original.body)))
    return sender, flow, message_id
