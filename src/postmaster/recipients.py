"""Whom a recipient of a message means, here or at another office, or the verdict that it means nobody. Pure."""

from collections.abc import Callable, Sequence
from typing import Final

from postmaster import address
from postmaster.parties import Agent, RegistryView
from postmaster.printable import brief, quoted
from postmaster.remotes import Remotes, encode
from postmaster.verdict import Envelope, Verdict


class Relay:
    """Who is elsewhere: an address at a domain of a remote that no agent of this office has.

    Args:
        queue: gives the mailbox in which mail to an address (encoded) waits for the carrier, by the remote's name.
    """

    def __init__(self, remotes: Remotes, queue: Callable[[str, str], str]) -> None:
        self.remotes: Final = remotes
        self._queue = queue

    def find(self, recipient: str, sender: str) -> tuple[Agent | None, str | None]:
        """Return the agent that stands for an address elsewhere, or why there is none; (None, None) if it is not."""
        remote = self.remotes.of(recipient)
        if remote is None or not address.is_mailbox(recipient):
            return None, None
        if self.remotes.of(sender) is not None:
            return None, f"{recipient} is at {remote.name}, and so is, or may be, its sender: nothing is passed on"
        try:
            name = encode(recipient)
        except ValueError as fault:
            return None, str(fault)
        folded = address.fold(recipient)
        return Agent(f"{remote.name}:{folded}", folded, self._queue(remote.name, name), (), remote=remote.name), None


class Hints:
    """A registry view that looks for near addresses a few times only: a hint costs more than the refusal itself."""

    _LIMIT = 20

    def __init__(self, registry: RegistryView) -> None:
        self.find = registry.find
        self.agent = registry.agent
        self.holders = registry.holders
        self.in_flow = registry.in_flow
        self._suggest = registry.suggest
        self._left = self._LIMIT

    def suggest(self, recipient: str) -> str | None:
        self._left -= 1
        return self._suggest(recipient) if self._left >= 0 else None


def resolve(
    recipient: str, envelope: Envelope, registry: RegistryView, relay: Relay | None
) -> tuple[Sequence[Agent], Verdict | None]:
    """Return the agents that `recipient` names in the flow of `envelope`, or the verdict that it names none."""
    named, refusal = _named(recipient, envelope, registry, relay)
    return [_in_flow(agent, envelope, registry) for agent in named], refusal


def _in_flow(agent: Agent, envelope: Envelope, registry: RegistryView) -> Agent:
    if agent.per_flow and agent.class_id is None:
        return registry.in_flow(agent, envelope.correlation_id)
    return agent


def _named(
    recipient: str, envelope: Envelope, registry: RegistryView, relay: Relay | None
) -> tuple[Sequence[Agent], Verdict | None]:
    if not address.is_recipient(recipient):
        is_name = address.is_name(recipient)
        named = registry.find(recipient) if is_name else None
        if named is not None:
            return (named,), None
        detail = f"{quoted(recipient)} is not an address (local@domain, role:NAME, agent:ID or the name of the living)"
        if is_name:
            detail = f"nobody is alive under the name {quoted(recipient)}"
        return (), Verdict(recipient, None, "unknown-recipient", detail + _did_you_mean(recipient, registry))
    if recipient.startswith(address.ROLE):
        holders = registry.holders(recipient[len(address.ROLE) :])
        others = [agent for agent in holders if not _is_sender(_in_flow(agent, envelope, registry), envelope.sender)]
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
    if found is None and relay is not None:
        found, why_not = relay.find(recipient, envelope.sender)
        if why_not is not None:
            return (), Verdict(recipient, None, "unknown-recipient", why_not)
    if found is None:
        detail = f"no agent has the address {recipient}" + _did_you_mean(recipient, registry)
        return (), Verdict(recipient, None, "unknown-recipient", detail)
    return (found,), None


def _is_sender(agent: Agent, sender: str) -> bool:
    return address.fold(sender) in {address.fold(name) for name in agent.names}


def _did_you_mean(recipient: str, registry: RegistryView) -> str:
    near = registry.suggest(recipient)
    if not near:
        return ""
    if near.startswith(address.ROLE):
        held = brief([agent.address for agent in registry.holders(near[len(address.ROLE) :])])
        return f"; did you mean {near}, held by {held}?" if held else f"; did you mean {near}?"
    return f"; did you mean {near}?"
