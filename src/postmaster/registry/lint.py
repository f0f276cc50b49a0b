"""What a valid registry says that will not work, or that nobody uses. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address, per_flow, reports
from postmaster.parties import Agent
from postmaster.printable import brief
from postmaster.registry import flows
from postmaster.registry.view import EntriesView, Entry, emitted_to

FINDING: Final = "finding"
NOTE: Final = "note"

DANGLING_EMIT: Final = "emits-not-accepted"
NO_SUCH_SENDER: Final = "accepts-from-nobody"
NEVER_SENT: Final = "type-never-sent"
CLOSED: Final = "accepts-nothing"
FINAL_NOWHERE: Final = "final-message-nowhere"
FINAL_UNTYPED: Final = "final-message-untyped"
ONE_ORIGIN: Final = "one-origin"

_CLAIM_NO_ROLES: Final = ("single", per_flow.PER_FLOW)  # instances that nobody registers


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """One thing to look at.

    Attributes:
        level: `finding`, or `note` for what may well be meant.
        kind: `emits-not-accepted`, `accepts-from-nobody`, `type-never-sent`, `accepts-nothing`,
            `final-message-nowhere`, `final-message-untyped` or `one-origin`.
    """

    declared_in: str
    agent: str
    level: str
    kind: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the finding as plain data."""
        return {
            "declared_in": self.declared_in,
            "agent": self.agent,
            "level": self.level,
            "kind": self.kind,
            "message": self.message,
        }


def lint(entries: Sequence[Entry]) -> list[Finding]:
    """Return what is worth a look in valid entries, sorted by declaration and agent."""
    view = EntriesView(entries)
    map_edges = flows.edges(entries)
    arriving = flows.arrivals(map_edges)
    declared_in = {entry["id"]: str(entry.get("declared_in", "")) for entry in entries}
    classes = any(entry.get("instances", "single") not in _CLAIM_NO_ROLES for entry in entries)  # else any role is held
    silent = {entry["id"] for entry in entries if not entry.get("emits")}
    patterns = _Patterns(view)
    found = [
        Finding(
            declared_in[edge.sender],
            edge.sender,
            NOTE if classes and edge.to.startswith(address.ROLE) and not patterns.holders(edge.to) else FINDING,
            DANGLING_EMIT,
            f"emits {edge.type} to {edge.to}, which nobody accepts: {edge.why}",
        )
        for edge in map_edges
        if edge.state == flows.DANGLING
    ]
    for entry in entries:
        for level, kind, message in _accepts(entry, patterns, arriving.get(entry["id"], ()), silent, classes):
            found.append(Finding(declared_in[entry["id"]], entry["id"], level, kind, message))
        for level, kind, message in _turns(entry, view, arriving.get(entry["id"], ())):
            found.append(Finding(declared_in[entry["id"]], entry["id"], level, kind, message))
    return sorted(set(found))


def _turns(entry: Entry, view: EntriesView, arriving: Sequence[flows.Edge]) -> Iterator[tuple[str, str, str]]:
    """Yield (level, kind, message) for where the final message of a turn goes."""
    if entry.get("final_message") != "default_thread":
        return
    if entry.get("default_thread") == "none":
        yield (
            FINDING,
            FINAL_NOWHERE,
            "says `final_message: default_thread` and `default_thread: none`: it is never sent",
        )
        return
    for edge in {edge.sender: edge for edge in arriving}.values():
        types = emitted_to(entry.get("emits", ()), view.agent(edge.sender), edge.sender_address)
        if len(types) != 1:
            yield (
                FINDING,
                FINAL_UNTYPED,
                f"answers {edge.sender} with its final message, and emits {brief(sorted(types)) or 'nothing'} to it: a "
                f"turn for it fails; `emits` one type to {edge.sender_address}, or `final_message: discard`",
            )
    if entry.get("instances", "single") == "single":
        message = (
            "sends every final message to the flow of its first message, for good; `instances: per-flow` gives each"
        )
        yield NOTE, ONE_ORIGIN, f"{message} flow an instance of its own"


class _Patterns:
    """Which agents an `accepts_from` pattern admits."""

    def __init__(self, view: EntriesView) -> None:
        self._view = view
        self._by_domain: dict[str, list[Agent]] = {}
        for agent in view.agents:
            names = agent.names
            for domain in dict.fromkeys(address.fold(name.rpartition("@")[2]) for name in names):
                self._by_domain.setdefault(domain, []).append(agent)

    def holders(self, pattern: str) -> Sequence[Agent]:
        """Return the agents that `pattern`, which is not ``*``, admits."""
        if pattern.startswith("*@"):
            return self._by_domain.get(address.fold(pattern[2:]), ())
        if pattern.startswith(address.ROLE):
            return self._view.holders(pattern[len(address.ROLE) :])
        if pattern.startswith(address.CLASS):
            found = self._view.agent(pattern[len(address.CLASS) :])
        else:
            found = self._view.find(pattern)
        return (found,) if found else ()

    def nobody(self, pattern: str) -> str:
        """Return what to say of a pattern that admits no agent."""
        if pattern.startswith("*@"):
            return f"no agent has an address at {pattern[2:]}"
        if pattern.startswith(address.ROLE):
            near = self._view.suggest(pattern)
            return "no agent holds this role" + (f"; did you mean {near}?" if near else "")
        if pattern.startswith(address.CLASS):
            near = self._view.suggest(address.AGENT + pattern[len(address.CLASS) :])
            hint = f"; did you mean {address.CLASS}{near[len(address.AGENT) :]}?" if near else ""
            return "no agent has this id" + hint
        near = self._view.suggest(pattern)
        return "no agent has this address" + (f"; did you mean {near}?" if near else "")


def _is_office(pattern: str) -> bool:
    return "@" in pattern and address.fold(pattern.rpartition("@")[0]) == reports.LOCAL_PART


def _admits_office(patterns: Sequence[str], entry: Entry) -> bool:
    """Tell whether reports of the office reach an entry: they come from its own domain."""
    office = reports.office_address(str(entry["address"]))
    return any(address.matches_sender(pattern, office) for pattern in patterns)


def _accepts(
    entry: Entry, patterns: _Patterns, arriving: Sequence[flows.Edge], silent: set[str], classes: bool
) -> Iterator[tuple[str, str, str]]:
    """Yield (level, kind, message) for what an entry accepts."""
    if entry.get("accepts_from") and not entry.get("accepts"):
        message = "says `accepts_from` but accepts no type: no mail reaches it; list the types in `accepts`"
        yield FINDING, CLOSED, message
    for accept in entry.get("accepts", ()):
        admitted: list[Agent] = []
        for pattern in accept["accepts_from"]:
            if pattern == "*" or _is_office(pattern):
                continue
            holders = patterns.holders(pattern)
            admitted += holders
            if not holders:
                message = f"accepts {accept['type']} from {pattern}, but {patterns.nobody(pattern)}"
                yield NOTE if classes and pattern.startswith(address.ROLE) else FINDING, NO_SUCH_SENDER, message
        if flows.senders_of(accept["type"], arriving):
            continue
        if address.matches_type(accept["type"], reports.BOUNCE) and _admits_office(accept["accepts_from"], entry):
            continue
        message = f"accepts {accept['type']}, which no agent declares to send"
        if "*" in accept["accepts_from"]:
            yield NOTE, NEVER_SENT, f"{message} (anyone may)"
        elif any(agent.id in silent for agent in admitted):
            names = sorted({agent.id for agent in admitted if agent.id in silent})
            yield NOTE, NEVER_SENT, f"{message} ({names[0]} may, and does not say what it emits)"
        elif admitted:
            yield FINDING, NEVER_SENT, message
