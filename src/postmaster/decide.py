"""Who gets a message, and why not: one pure function. No file, clock or environment.

The order of the checks is the order of the table in docs/routing.md: sender authentic, recipient known, type accepted,
sender accepted, not a duplicate.
"""

from dataclasses import dataclass, replace
from typing import Final, Protocol

from postmaster import address, reports
from postmaster.parties import Accept, Agent, RegistryView
from postmaster.printable import brief, quoted
from postmaster.recipients import Hints, Relay, resolve
from postmaster.remotes import Stated
from postmaster.senders import Origin, Senders
from postmaster.verdict import Envelope, Verdict


class HistoryView(Protocol):
    """What `decide` asks of the past."""

    def earlier(self, envelope: "Envelope", agent_id: str) -> str | None:
        """Return where the identical message that this agent was given before is (or was), or None."""

    def made(self, envelope: "Envelope") -> bool:
        """Tell whether the office itself has made this very message."""


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
    senders: Senders | None = None,
    origin: Origin | None = None,
    relay: Relay | None = None,
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


def find_routes(envelope: Envelope, registry: RegistryView, relay: Relay | None = None) -> tuple[Route, ...]:
    """Return what the registry says of `envelope`.

    Looked at are `to`, `sender`, `type`, and `correlation_id` for classes that have an instance for each flow.
    """
    returned = envelope.type == reports.RETURN  # the office's own: nobody has to declare that
    foreign = relay is not None and relay.remotes.of(envelope.sender) is not None
    hinted = Hints(registry)
    routes: list[Route] = []
    served: set[str] = set()
    for recipient in dict.fromkeys(envelope.to):
        agents, refusal = resolve(recipient, envelope, hinted, relay)
        if refusal is not None:
            routes.append(Route(refusal))
        for agent in agents:
            if agent.id in served:
                continue
            served.add(agent.id)
            asked = not returned and agent.remote is None  # what it accepts is known where it is
            reason, detail = (
                check_accepts(agent, envelope.type, envelope.sender, registry, foreign=foreign) if asked else _NOT_ASKED
            )
            if agent.terminated:
                reason, detail = "instance-terminated", f"{agent.id} was archived, and takes no more mail"
            repeats = reason is None and _takes_duplicates(agent, envelope, registry, foreign)
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
    class_ = registry.agent(holder.class_id) if holder.class_address is not None and holder.class_id else None
    if class_ is not None:
        admitted.update(class_.names)  # and who admits a class its subaddresses
    return any(address.matches_sender(one, name) for one in accept.accepts_from for name in admitted)


def _takes_duplicates(agent: Agent, envelope: Envelope, registry: RegistryView, foreign: bool) -> bool:
    return any(
        accept.duplicates == "deliver"
        for accept in agent.accepts
        if address.matches_type(accept.type, envelope.type) and _admits(accept, envelope.sender, registry, foreign)
    )
