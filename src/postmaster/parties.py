"""Who can be written to: an agent as routing sees it, and what is asked of a registry of them. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Accept:
    """One accepted type of an agent, with the senders it is accepted from."""

    type: str
    accepts_from: tuple[str, ...]
    duplicates: str = "refuse"  # or "deliver"
    remote: bool = False  # whether `*` means senders of other offices too


@dataclass(frozen=True, slots=True)
class Agent:
    """A registry entry or a live instance, as far as routing needs it. `inbox` is an absolute path.

    Attributes:
        class_id: of an instance, the id of the entry that it belongs to.
        user: the account that its letters belong to.
        per_flow: it is a class that has an instance for each flow, or one of these.
        class_address: of an instance for a flow, the address of its class, of which its own is a subaddress.
        terminated: it takes no mail any more.
        remote: where it is, if it is in another office; then `inbox` is where its mail waits for the carrier.
    """

    id: str
    address: str
    inbox: str
    accepts: tuple[Accept, ...]
    aliases: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    class_id: str | None = None
    user: str | None = None
    per_flow: bool = False
    class_address: str | None = None
    terminated: bool = False
    remote: str | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Its address, then its aliases."""
        return (self.address, *self.aliases)


class RegistryView(Protocol):
    """What `decide` asks of a registry. Every argument is as typed; the view folds case."""

    def find(self, mailbox: str) -> Agent | None:
        """Return the agent with this address or alias, or the live instance with this bare name."""

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent with this id."""

    def holders(self, role: str) -> Sequence[Agent]:
        """Return the agents that hold this role, in the order of their ids."""

    def in_flow(self, class_: Agent, correlation_id: str) -> Agent:
        """Return the instance of a class that has one for each flow, there already or not."""

    def suggest(self, recipient: str) -> str | None:
        """Return the known address nearest to one that is not known."""
