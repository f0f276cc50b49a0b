"""What is decided on, and what was decided. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from postmaster import reasons
from postmaster.parties import Agent


@dataclass(frozen=True, slots=True)
class Envelope:
    """The fields of a readable message that routing looks at. Texts are as the sender typed them."""

    id: str
    fields: Mapping[str, Any]  # all that the sender wrote in the header
    to: tuple[str, ...]
    sender: str
    type: str
    subject: str
    correlation_id: str
    sent_at: str | None = None
    in_reply_to: str | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a message for one recipient.

    Attributes:
        recipient: the address in `to` this is about, as typed.
        agent: whose inbox; None when nobody has the address.
        reason: a name in the table of reasons; None means deliver.
        detail: what in particular, for the log and the reason file.
    """

    recipient: str
    agent: Agent | None = field(default=None)
    reason: str | None = None
    detail: str | None = None

    @property
    def action(self) -> str:
        """The word for the log's `action`."""
        if self.reason is not None:
            return reasons.REASONS[self.reason].action
        return reasons.RELAYED if self.agent is not None and self.agent.remote else reasons.DELIVERED
