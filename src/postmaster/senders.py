"""Who may write in whose name: what the system knows of a letter against what the letter says of itself. Pure."""

from dataclasses import dataclass
from typing import Protocol

from postmaster import address
from postmaster.parties import Agent, RegistryView
from postmaster.printable import quoted


class AccountsView(Protocol):
    """What `decide` asks of the machine's accounts."""

    def uid(self, user: str) -> int | None:
        """Return the number of the account that a declaration calls `user`, or None if there is none."""

    def shown(self, uid: int) -> str:
        """Return an account, by its number, as people read it."""


@dataclass(frozen=True, slots=True)
class Origin:
    """What the system knows of where a letter comes from; a letter cannot say it of itself.

    Attributes:
        owner: the uid that its file belongs to.
        open_to_all: everybody may write to its file.
        folder: whose drop folder it lay in (an agent's id); None for the outbox itself.
        carrier: its file belongs to the account that exchanges mail with other offices.
    """

    owner: int
    open_to_all: bool = False
    folder: str | None = None
    carrier: bool = False


class Senders:
    """Who may write in whose name. Asks the registry once for each sender.

    Args:
        required: whether every sender must be an agent that has a `user` (`require_owner`).
    """

    _KEPT = 10_000

    def __init__(self, registry: RegistryView, accounts: AccountsView, *, required: bool) -> None:
        self._registry = registry
        self._accounts = accounts
        self._required = required
        self._known: dict[str, Agent | None] = {}

    def find(self, sender: str) -> Agent | None:
        """Return the agent that has this address."""
        if sender not in self._known:
            if len(self._known) >= self._KEPT:
                self._known.clear()
            self._known[sender] = self._registry.find(sender)
        return self._known[sender]

    def check(self, sender: str, origin: Origin, *, carried: bool = False) -> tuple[str | None, str | None]:
        """Return (None, None) if a letter from there may say that it is from `sender`, else (reason, detail).

        Args:
            carried: its name says that a remote has brought it, to which its sender belongs. Then nobody here owns it,
                and with `require_owner` the file must belong to the account of the carrier.
        """
        agent = self.find(sender)
        who = f"{quoted(sender)} is {agent.id}" if agent is not None else f"{quoted(sender)} is no agent's address"
        if origin.folder is not None and (agent is None or address.fold(agent.id) != address.fold(origin.folder)):
            return "sender-not-authentic", f"it lay in outbox/{quoted(origin.folder, 200)}/, but {who}"
        if agent is None or agent.user is None:
            elsewhere = carried and agent is None and origin.carrier and not origin.open_to_all
            if elsewhere or not self._required:
                return None, None
            why = f"{who}, which has no `user`" if agent is not None else who
            return "sender-not-authentic", f"{why}, and this office says `require_owner: true`"
        expected = self._accounts.uid(agent.user)
        if expected is None:
            return "account-unknown", f"{who}, whose `user` is {quoted(agent.user)}: there is no such account here"
        if expected != origin.owner:
            belongs = f"the letter belongs to {self._accounts.shown(origin.owner)}"
            return "sender-not-authentic", f"{belongs}, but {who}, whose `user` is {quoted(agent.user)}"
        if origin.open_to_all:
            return "sender-not-authentic", f"everybody may write to the file of the letter: `chmod o-w`; {who}"
        return None, None
