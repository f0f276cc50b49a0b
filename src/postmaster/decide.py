"""Who gets a message, and why not: one pure function. No file, clock or environment.

The order of the checks is the order of the table in docs/routing.md: sender authentic, recipient known, type accepted,
sender accepted, not a duplicate.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from postmaster import address, reasons, reports
from postmaster.remotes import Remotes, Stated, encode


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


class HistoryView(Protocol):
    """What `decide` asks of the past."""

    def earlier(self, envelope: "Envelope", agent_id: str) -> str | None:
        """Return where the identical message that this agent was given before is (or was), or None."""

    def made(self, envelope: "Envelope") -> bool:
        """Tell whether the office itself has made this very message."""


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


@dataclass(frozen=True, slots=True)
class Route:
    """What the registry says of a message for one recipient, whatever was sent before.

    Attributes:
        verdict: as if it were no repeat.
        repeats: whether the agent takes the identical message again.
    """

    verdict: Verdict
    repeats: bool = False


# What find_routes has said for (to, from, type). It holds as long as the registry is the same.
Routes = dict[tuple[tuple[str, ...], str, str], tuple[Route, ...]]

_MOST_ROUTES: Final = 4096
_NOT_ASKED: Final[tuple[str | None, str | None]] = (None, None)  # in place of `check_accepts`


def decide(
    envelope: Envelope,
    registry: RegistryView,
    history: HistoryView,
    *,
    allow_duplicate: bool = False,
    known: Routes | None = None,
    senders: "Senders | None" = None,
    origin: Origin | None = None,
    relay: "Relay | None" = None,
    brought_by: Stated | None = None,
) -> list[Verdict]:
    """Decide for every recipient of `envelope`; an agent reached by two of them gets one copy.

    Args:
        allow_duplicate: the letter was sent again on purpose (`dead-letter retry --allow-duplicate`).
        known: the routes found so far in this registry; added to.
        senders: who may write in whose name; None where nothing in the office restricts that.
        origin: where the letter comes from; needed with `senders`.
        relay: who is elsewhere, if the office has remotes.
        brought_by: what its name says of where it came from. That can only lower trust.
    """
    if relay is not None and brought_by is not None:
        why_not = relay.remotes.mismatch(brought_by, envelope.sender)
        if why_not is not None:
            return [Verdict(one, None, *why_not) for one in dict.fromkeys(envelope.to)]
    is_own = reports.is_reserved(envelope.sender, envelope.type)
    if is_own and not history.made(envelope):
        why = f"only the office sends as {reports.LOCAL_PART}@, and mail of types that begin with `{reports.TYPES}`"
        return [Verdict(one, None, "sender-not-authentic", why) for one in dict.fromkeys(envelope.to)]
    if senders is not None and not is_own:
        assert origin is not None
        carried = relay is not None and brought_by is not None  # and its sender is one that the remote may bring
        reason, detail = senders.check(envelope.sender, origin, carried=carried)
        if reason is not None:  # nothing is said to it of who there is
            return [Verdict(recipient, None, reason, detail) for recipient in dict.fromkeys(envelope.to)]
    question = (envelope.to, envelope.sender, envelope.type)
    routes = known.get(question) if known is not None else None
    if routes is None:
        routes = find_routes(envelope, registry, relay)
        if known is not None and len(envelope.to) == 1 and not any(map(_depends_on_flow, routes)):
            if len(known) >= _MOST_ROUTES:
                known.clear()
            known[question] = routes
    if allow_duplicate:
        return [route.verdict for route in routes]
    return [_unless_repeated(route, envelope, history) for route in routes]


def find_routes(envelope: Envelope, registry: RegistryView, relay: "Relay | None" = None) -> tuple[Route, ...]:
    """Return what the registry says of `envelope`.

    Looked at are `to`, `sender`, `type`, and `correlation_id` for classes that have an instance for each flow.
    """
    returned = envelope.type == reports.RETURN  # the office's own: nobody has to declare that
    hinted = _Hints(registry)
    routes: list[Route] = []
    served: set[str] = set()
    for recipient in dict.fromkeys(envelope.to):
        agents, refusal = _resolve(recipient, envelope, hinted, relay)
        if refusal is not None:
            routes.append(Route(refusal))
        for agent in agents:
            if agent.id in served:
                continue
            served.add(agent.id)
            asked = not returned and agent.remote is None  # what it accepts is known where it is
            foreign = relay is not None and relay.remotes.of(envelope.sender) is not None
            reason, detail = (
                check_accepts(agent, envelope.type, envelope.sender, registry, foreign=foreign) if asked else _NOT_ASKED
            )
            if agent.terminated:
                reason, detail = "instance-terminated", f"{agent.id} was archived, and takes no more mail"
            repeats = reason is None and _takes_duplicates(agent, envelope, registry)
            routes.append(Route(Verdict(recipient, agent, reason, detail), repeats))
    return tuple(routes)


def _depends_on_flow(route: Route) -> bool:
    return route.verdict.agent is not None and route.verdict.agent.per_flow


def _unless_repeated(route: Route, envelope: Envelope, history: HistoryView) -> Verdict:
    verdict = route.verdict
    if verdict.agent is None or verdict.reason is not None or route.repeats:
        return verdict
    earlier = history.earlier(envelope, verdict.agent.id)
    return verdict if earlier is None else replace(verdict, reason="duplicate", detail=f"identical to {earlier}")


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


class _Hints:
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


def _resolve(
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


def check_accepts(
    agent: Agent, message_type: str, sender: str, registry: RegistryView, *, foreign: bool = False
) -> tuple[str | None, str | None]:
    """Return (None, None) if `agent` accepts this type from this sender, else (reason, detail).

    Args:
        foreign: the sender belongs to another office: `*` does not mean it, nor do roles and classes.
    """
    of_type = [accept for accept in agent.accepts if address.matches_type(accept.type, message_type)]
    if not of_type:
        types = [accept.type for accept in agent.accepts]
        near = address.nearest(message_type, types)
        accepted = "; did you mean " + near + "?" if near else "; it accepts " + (brief(types) or "nothing")
        return "type-not-accepted", f"{agent.id} does not accept type {quoted(message_type)}{accepted}"
    if any(_admits(accept, sender, registry, foreign) for accept in of_type):
        return None, None
    allowed = dict.fromkeys(pattern for accept in of_type for pattern in accept.accepts_from)
    return (
        "sender-not-accepted",
        f"{agent.id} accepts {message_type} from {brief(list(allowed)) or 'nobody'}, not from {quoted(sender)}"
        + (", who is at another office (`*` means this office only, without `remote: true`)" if foreign else ""),
    )


def _admits(accept: Accept, sender: str, registry: RegistryView, foreign: bool = False) -> bool:
    if foreign:
        names = (sender, address.without_detail(sender))  # who has an address has its subaddresses: RFC 5233
        return any(
            accept.remote if one == "*" else any(address.matches_sender(one, name) for name in names)
            for one in accept.accepts_from
        )
    holder = None
    if any(pattern.startswith((address.ROLE, address.CLASS)) for pattern in accept.accepts_from):
        holder = registry.find(sender)
    roles = holder.roles if holder else ()
    classes = () if holder is None else (holder.id,) if holder.class_id is None else (holder.id, holder.class_id)
    if any(address.matches_sender(pattern, sender, roles=roles, classes=classes) for pattern in accept.accepts_from):
        return True
    holder = holder or registry.find(sender)
    if holder is None:
        return False
    admitted = set(holder.names)  # who admits an agent admits it under each of its names
    if holder.class_address is not None:
        admitted.add(holder.class_address)  # and who admits a class its subaddresses
    return any(address.matches_sender(one, name) for one in accept.accepts_from for name in admitted)


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
