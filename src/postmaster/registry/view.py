"""What routing asks of a registry, answered from entries in memory. Pure.

The compiled lookup answers the same questions from disk; this one is for the message map, and is what the
compiled one is tested against.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from postmaster import address, per_flow
from postmaster.parties import Accept, Agent

# An entry in its one form (registry.declarations says what it holds); here, because routing needs no YAML.
Entry = dict[str, Any]


def agent_of(entry: Entry, inbox_path: Callable[[str], str] = str) -> Agent:
    """Return the part of an entry that routing needs.

    Args:
        inbox_path: turns an inbox as written into an absolute path.
    """
    return Agent(
        id=entry["id"],
        address=entry["address"],
        inbox=inbox_path(entry["inbox"]),
        accepts=tuple(
            Accept(
                item["type"],
                tuple(item.get("accepts_from", ())),
                item.get("duplicates", "refuse"),
                item.get("remote") == "true",
            )
            for item in entry.get("accepts", ())
        ),
        aliases=tuple(entry.get("aliases", ())),
        roles=tuple(entry.get("roles", ())),
        user=entry.get("user"),
        per_flow=entry.get("instances") == per_flow.PER_FLOW,
    )


def emitted_to(emits: Iterable[dict[str, Any]], recipient: Agent | None, address_: str) -> set[str]:
    """Return the types that an entry's `emits` says are sent to this address, whose agent is `recipient`."""
    own = {address.fold(address_)}
    if recipient is not None:
        own |= {address.fold(name) for name in recipient.names}
        if recipient.class_address is not None and recipient.class_id is not None:
            own |= {address.fold(recipient.class_address), address.fold(address.AGENT + recipient.class_id)}
        own |= {address.fold(address.AGENT + recipient.id), *(address.fold(address.ROLE + r) for r in recipient.roles)}
    return {
        str(item["type"])
        for item in emits
        if any(address.fold(target) in own for target in item.get("to", ())) and not item["type"].endswith(".*")
    }


class EntriesView:
    """A registry view (decide.RegistryView) over a sequence of valid entries."""

    def __init__(self, entries: Iterable[Entry], inbox_path: Callable[[str], str] = str) -> None:
        self.agents: Final = sorted((agent_of(entry, inbox_path) for entry in entries), key=lambda agent: agent.id)
        self._by_id: Final = {address.fold(agent.id): agent for agent in self.agents}
        self._by_address: Final = {address.fold(name): agent for agent in self.agents for name in agent.names}
        self._by_role: Final[dict[str, list[Agent]]] = {}
        for agent in self.agents:
            for role in dict.fromkeys(address.fold(name) for name in agent.roles):
                self._by_role.setdefault(role, []).append(agent)

    def find(self, mailbox: str) -> Agent | None:
        """Return the agent with this address or alias."""
        return self._by_address.get(address.fold(mailbox))

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent with this id."""
        return self._by_id.get(address.fold(agent_id))

    def holders(self, role: str) -> Sequence[Agent]:
        """Return the agents that hold this role, in the order of their ids."""
        return tuple(self._by_role.get(address.fold(role), ()))

    def in_flow(self, class_: Agent, correlation_id: str) -> Agent:
        """Return the class itself, which stands for all its instances on a map of the registry."""
        return class_

    def suggest(self, recipient: str) -> str | None:
        """Return the known address nearest to one that is not known."""
        for prefix, known in ((address.ROLE, self._by_role), (address.AGENT, self._by_id)):
            if recipient.startswith(prefix):
                near = address.nearest(recipient[len(prefix) :], known)
                return prefix + near if near else None
        return address.nearest(recipient, self._by_address)
