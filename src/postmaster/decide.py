"""Who gets a message, and why not: one pure function. No file, clock or environment.

The order of the checks is the order of the table in docs/routing.md: recipient known, type accepted, sender
accepted, not a duplicate.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from postmaster import address, reasons, reports


@dataclass(frozen=True, slots=True)
class Accept:
    """One accepted type of an agent, with the senders it is accepted from."""

    type: str
    accepts_from: tuple[str, ...]
    duplicates: str = "refuse"  # or "deliver"


@dataclass(frozen=True, slots=True)
class Agent:
    """A registry entry or a live instance, as far as routing needs it. `inbox` is an absolute path.

    `class_id` is the id of the entry that an instance belongs to.
    """

    id: str
    address: str
    inbox: str
    accepts: tuple[Accept, ...]
    aliases: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    class_id: str | None = None


class RegistryView(Protocol):
    """What `decide` asks of a registry. Every argument is as typed; the view folds case."""

    def find(self, mailbox: str) -> Agent | None:
        """Return the agent with this address or alias, or the live instance with this bare name."""

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent with this id."""

    def holders(self, role: str) -> Sequence[Agent]:
        """Return the agents that hold this role, in the order of their ids."""

    def suggest(self, recipient: str) -> str | None:
        """Return the known address nearest to one that is not known."""


class HistoryView(Protocol):
    """What `decide` asks of the past."""

    def earlier(self, envelope: "Envelope", agent_id: str) -> str | None:
        """Return where the identical message that this agent was given before is (or was), or None."""

    def made(self, envelope: "Envelope") -> bool:
        """Tell whether the office itself has made this very message."""


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
        return reasons.DELIVERED if self.reason is None else reasons.REASONS[self.reason].action


_NOT_ASKED: Final[tuple[str | None, str | None]] = (None, None)  # in place of `check_accepts`


def decide(
    envelope: Envelope,
    registry: RegistryView,
    history: HistoryView,
    *,
    allow_duplicate: bool = False,
) -> list[Verdict]:
    """Decide for every recipient of `envelope`; an agent reached by two of them gets one copy.

    Args:
        allow_duplicate: the letter was sent again on purpose (`dead-letter retry --allow-duplicate`).
    """
    is_own = reports.is_reserved(envelope.sender, envelope.type)
    if is_own and not history.made(envelope):
        why = f"only the office sends as {reports.LOCAL_PART}@, and mail of types that begin with `{reports.TYPES}`"
        return [Verdict(one, None, "sender-not-authentic", why) for one in dict.fromkeys(envelope.to)]
    returned = is_own and envelope.type == reports.RETURN  # nobody has to declare that
    hinted = _Hints(registry)
    verdicts: list[Verdict] = []
    served: set[str] = set()
    for recipient in dict.fromkeys(envelope.to):
        agents, refusal = _resolve(recipient, envelope.sender, hinted)
        if refusal is not None:
            verdicts.append(refusal)
        for agent in agents:
            if agent.id in served:
                continue
            served.add(agent.id)
            reason, detail = _NOT_ASKED if returned else check_accepts(agent, envelope.type, envelope.sender, registry)
            if reason is None and not allow_duplicate and not _takes_duplicates(agent, envelope, registry):
                earlier = history.earlier(envelope, agent.id)
                if earlier is not None:
                    reason, detail = "duplicate", f"identical to {earlier}"
            verdicts.append(Verdict(recipient, agent, reason, detail))
    return verdicts


class _Hints:
    """A registry view that looks for near addresses a few times only: a hint costs more than the refusal itself."""

    _LIMIT = 20

    def __init__(self, registry: RegistryView) -> None:
        self.find = registry.find
        self.agent = registry.agent
        self.holders = registry.holders
        self._suggest = registry.suggest
        self._left = self._LIMIT

    def suggest(self, recipient: str) -> str | None:
        self._left -= 1
        return self._suggest(recipient) if self._left >= 0 else None


def _resolve(recipient: str, sender: str, registry: RegistryView) -> tuple[Sequence[Agent], Verdict | None]:
    """Return the agents that `recipient` names, or the verdict that it names none."""
    if not address.is_recipient(recipient):
        named = registry.find(recipient) if address.is_name(recipient) else None
        if named is not None:
            return (named,), None
        detail = f"{quoted(recipient)} is not an address (local@domain, role:NAME or agent:ID)"
        return (), Verdict(recipient, None, "unknown-recipient", detail + _did_you_mean(recipient, registry))
    if recipient.startswith(address.ROLE):
        holders = registry.holders(recipient[len(address.ROLE) :])
        others = [agent for agent in holders if not _is_sender(agent, sender)]
        if others:
            return others, None
        if holders:
            return (), Verdict(recipient, None, "unknown-recipient", f"no live holder but the sender of {recipient}")
        detail = f"no live holder of {recipient}" + _did_you_mean(recipient, registry)
        return (), Verdict(recipient, None, "unknown-recipient", detail)
    if recipient.startswith(address.AGENT):
        found = registry.agent(recipient[len(address.AGENT) :])
    else:
        found = registry.find(recipient)
    if found is None:
        detail = f"no agent has the address {recipient}" + _did_you_mean(recipient, registry)
        return (), Verdict(recipient, None, "unknown-recipient", detail)
    return (found,), None


def _is_sender(agent: Agent, sender: str) -> bool:
    return address.fold(sender) in {address.fold(name) for name in (agent.address, *agent.aliases)}


def _did_you_mean(recipient: str, registry: RegistryView) -> str:
    near = registry.suggest(recipient)
    if not near:
        return ""
    if near.startswith(address.ROLE):
        held = brief([agent.address for agent in registry.holders(near[len(address.ROLE) :])])
        return f"; did you mean {near}, held by {held}?" if held else f"; did you mean {near}?"
    return f"; did you mean {near}?"


def check_accepts(
    agent: Agent, message_type: str, sender: str, registry: RegistryView
) -> tuple[str | None, str | None]:
    """Return (None, None) if `agent` accepts this type from this sender, else (reason, detail)."""
    of_type = [accept for accept in agent.accepts if address.matches_type(accept.type, message_type)]
    if not of_type:
        types = [accept.type for accept in agent.accepts]
        near = address.nearest(message_type, types)
        accepted = "; did you mean " + near + "?" if near else "; it accepts " + (brief(types) or "nothing")
        return "type-not-accepted", f"{agent.id} does not accept type {quoted(message_type)}{accepted}"
    if any(_admits(accept, sender, registry) for accept in of_type):
        return None, None
    allowed = dict.fromkeys(pattern for accept in of_type for pattern in accept.accepts_from)
    return (
        "sender-not-accepted",
        f"{agent.id} accepts {message_type} from {brief(list(allowed)) or 'nobody'}, not from {quoted(sender)}",
    )


def _admits(accept: Accept, sender: str, registry: RegistryView) -> bool:
    holder = None
    if any(pattern.startswith((address.ROLE, address.CLASS)) for pattern in accept.accepts_from):
        holder = registry.find(sender)
    roles = holder.roles if holder else ()
    classes = () if holder is None else (holder.id,) if holder.class_id is None else (holder.id, holder.class_id)
    return any(address.matches_sender(pattern, sender, roles=roles, classes=classes) for pattern in accept.accepts_from)


def _takes_duplicates(agent: Agent, envelope: Envelope, registry: RegistryView) -> bool:
    return any(
        accept.duplicates == "deliver"
        for accept in agent.accepts
        if address.matches_type(accept.type, envelope.type) and _admits(accept, envelope.sender, registry)
    )


def quoted(text: str, limit: int = 80) -> str:
    """Return `text` fit to stand in a detail: short, printable, in quotes if it is odd."""
    shown = text if len(text) <= limit else text[: limit - 3] + "..."
    plain = shown.isprintable() and shown and " " not in shown
    return shown if plain else ascii(shown)


def brief(names: list[str], limit: int = 5) -> str:
    """Return the first few of `names` as a comma-separated list that says how many it leaves out."""
    more = f" and {len(names) - limit} more" if len(names) > limit else ""
    return ", ".join(names[:limit]) + more
