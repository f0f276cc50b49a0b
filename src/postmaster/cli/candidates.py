"""What an office has for a word that is being typed: agents, addresses, messages, flows ... Changes nothing."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address, dead_letters, delivery_log, maildir, reading, reasons
from postmaster.directory import open_view
from postmaster.errors import BadData
from postmaster.office import Office, find_root
from postmaster.parties import Agent
from postmaster.refusals import REASON_SUFFIX
from postmaster.registry.compiled import Roster
from postmaster.settings import load_settings

AGENTS: Final = "agents"  # ids; addresses and aliases if what is typed begins none
ADDRESSES: Final = "addresses"
RECIPIENTS: Final = "recipients"
ROLES: Final = "roles"
TYPES: Final = "types"
MESSAGES: Final = "messages"  # of the agent on the line: unread ones; read ones if there is no such
UNREAD: Final = "unread"
READ: Final = "read"
ANSWERABLE: Final = "answerable"  # what whoever sends has in the mailbox
FLOWS: Final = "flows"
IDS: Final = "ids"
ACTIONS: Final = "actions"
REASONS: Final = "reasons"
DEAD_LETTERS: Final = "dead letters"
REMOTES: Final = "remotes"

_MOST: Final = 100  # candidates of what grows without end: messages, flows, dead letters
_LOG_TAIL: Final = 256 * 1024  # bytes of the log that are looked into

# As docs/formats/delivery-log.md lists them, which a test compares.
_ACTIONS: Final = (
    "delivered",
    "relayed",
    "receipt",
    "dead-letter",
    "rejected",
    "deferred",
    "retried",
    "withdrawn",
    "read",
    "unread",
    "registered",
    "renamed",
    "returned",
    "bounced",
    "archived",
    "nudged",
    "nudge-failed",
    "turn-started",
    "turn-done",
    "turn-failed",
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A word that could stand there, and a few words about it."""

    value: str
    help: str = ""


@dataclass(frozen=True, slots=True)
class Given:
    """What the line says already. `taken`: the words that an argument of several has."""

    agent: str | None = None
    sender: str | None = None
    to: tuple[str, ...] = ()
    taken: frozenset[str] = frozenset()


def find(kind: str, root: str | None, given: Given, begun: str) -> list[Candidate]:
    """Return the candidates of a kind that begin with `begun`.

    Raises:
        PostmasterError, OSError: the office cannot tell.
    """
    office = Office(find_root(root))
    if kind in _OF_VIEW:
        with open_view(office, write=False) as view:
            found = list(_begun(_OF_VIEW[kind](view, given, begun), begun))
    else:
        found = list(_begun(_OF_OFFICE[kind](office, given, begun), begun))
    return [one for one in {one.value: one for one in reversed(found)}.values() if one.value not in given.taken][::-1]


def _begun(found: Iterable[Candidate], begun: str) -> Iterator[Candidate]:
    folded = begun.casefold()
    return (one for one in found if one.value.casefold().startswith(folded))


# -- who ---------------------------------------------------------------------------------------------------------------


def _agents(view: Roster, given: Given, begun: str) -> Iterable[Candidate]:
    agents = list(view.all_agents())
    by_id = [Candidate(agent.id, agent.address) for agent in agents]
    return by_id if any(_begun(by_id, begun)) else _names(agents)


def _addresses(view: Roster, given: Given, begun: str) -> Iterable[Candidate]:
    return _names(view.all_agents())


def _names(agents: Iterable[Agent]) -> Iterator[Candidate]:
    for agent in agents:
        for name in agent.names:
            yield Candidate(name, agent.id)


def _recipients(view: Roster, given: Given, begun: str) -> Iterator[Candidate]:
    agents = list(view.all_agents())
    if not begun.startswith(address.AGENT):
        yield from _names(agents)
        yield from (Candidate(address.ROLE + one.value, one.help) for one in _roles(view, given, begun))
    if begun:
        yield from (Candidate(address.AGENT + agent.id, agent.address) for agent in agents)


def _roles(view: Roster, given: Given, begun: str) -> Iterable[Candidate]:
    held: dict[str, list[str]] = {}
    for agent in view.all_agents():
        for role in agent.roles:
            held.setdefault(role, []).append(agent.id)
    return [Candidate(role, ", ".join(ids)) for role, ids in sorted(held.items())]


def _types(view: Roster, given: Given, begun: str) -> Iterable[Candidate]:
    """Return what the recipients on the line accept; what anybody accepts if there is none."""
    agents = list(view.all_agents())
    recipients = [agent for text in given.to for agent in _meant(view, text)] or agents
    known = {one.type for agent in agents for one in agent.accepts if not one.type.endswith(".*")}
    accepted: dict[str, set[str]] = {}
    for agent in recipients:
        for one in agent.accepts:
            for name in {name for name in known if address.matches_type(one.type, name)} or {one.type[:-1]}:
                accepted.setdefault(name, set()).add(agent.id)
    return [Candidate(name, ", ".join(sorted(ids))) for name, ids in sorted(accepted.items())]


def _meant(view: Roster, text: str) -> Iterable[Agent]:
    if text.startswith(address.ROLE):
        return view.holders(text.removeprefix(address.ROLE))
    found = view.agent(text.removeprefix(address.AGENT)) or view.find(text)
    return [found] if found is not None else []


# -- messages ----------------------------------------------------------------------------------------------------------


def _messages(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    unread = list(_mail(office, given.agent, maildir.UNREAD, begun))
    return iter(unread or _mail(office, given.agent, maildir.READ, begun))


def _unread(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    return _mail(office, given.agent, maildir.UNREAD, begun)


def _read(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    return _mail(office, given.agent, maildir.READ, begun)


def _answerable(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    """Yield whole ids: `in_reply_to` takes no beginnings."""
    for folder in (maildir.UNREAD, maildir.READ):
        yield from _mail(office, given.sender, folder, begun, whole=True)


def _mail(office: Office, who: str | None, folder: str, begun: str, *, whole: bool = False) -> Iterator[Candidate]:
    """Yield the newest messages in a folder of an agent's mailbox: ids, or file names if that is what is typed."""
    if who is None:
        return
    with open_view(office, write=False) as view:
        agent = reading.find_agent(view, who)
    shown = {item: _shown(item.name, begun, whole=whole) for item in reading.names(agent.inbox, folder)}
    times = Counter(shown.values())
    fitting = [item for item, value in shown.items() if item.kind is None and value.startswith(begun)]
    for item in reading.newest(agent.inbox, fitting, _MOST):
        value = shown[item] if times[shown[item]] == 1 or whole else item.name
        yield Candidate(value, _about(os.path.join(agent.inbox, folder, item.name)))


def _shown(name: str, begun: str, *, whole: bool) -> str:
    """Return what a message is called on a command line: by its id if its file name has one, else by that name."""
    found = reading.id_in(name)
    if found is None or (begun and name.startswith(begun) and not found.startswith(begun)):
        return name
    return found if whole else found[: max(reading.SHOWN_ID, len(begun))]


def _about(path: str) -> str:
    try:
        content = reading.load(path)
    except (OSError, BadData):
        return ""
    return " ".join(text for key in ("from", "type", "subject") if (text := content.text(key)))


# -- what was, and what is waiting -------------------------------------------------------------------------------------


def _flows(office: Office, given: Given, begun: str) -> Iterable[Candidate]:
    return _from_log(office, lambda record: (record.get("correlation_id"), record.get("subject")))


def _ids(office: Office, given: Given, begun: str) -> Iterable[Candidate]:
    return _from_log(office, lambda record: (record.get("id"), record.get("subject")))


def _from_log(office: Office, part: Callable[[dict[str, Any]], tuple[Any, Any]]) -> list[Candidate]:
    """Return the newest values of a field of the log with what goes with each, the newest first."""
    found: dict[str, str] = {}
    with open(office.log, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - _LOG_TAIL))
        for line in reversed(stream.read(_LOG_TAIL).split(b"\n")):
            value, said = part(delivery_log.decode(line) or {})
            if value:
                found.setdefault(value, said or "")
    return [Candidate(value, said) for value, said in list(found.items())[:_MOST]]


def _dead_letters(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    names = {name for name in os.listdir(office.dead_letter) if not name.startswith(".")}
    reasons_of = {name + REASON_SUFFIX for name in names}
    fitting = sorted(name for name in names - reasons_of if name.startswith(begun))
    for name in fitting[::-1][:_MOST]:  # `send` names letters by their times
        letter = dead_letters.look(office, name)
        yield Candidate(name, (letter and letter.text("reason")) or "")


def _remotes(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    return (Candidate(one.name, one.url) for one in load_settings(office).remotes)


def _actions(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    return (Candidate(name) for name in _ACTIONS)


def _reasons(office: Office, given: Given, begun: str) -> Iterator[Candidate]:
    return (Candidate(one.name, one.meaning) for one in reasons.REASONS.values())


_OF_VIEW: Final[dict[str, Callable[[Roster, Given, str], Iterable[Candidate]]]] = {
    AGENTS: _agents,
    ADDRESSES: _addresses,
    RECIPIENTS: _recipients,
    ROLES: _roles,
    TYPES: _types,
}
_OF_OFFICE: Final[dict[str, Callable[[Office, Given, str], Iterable[Candidate]]]] = {
    MESSAGES: _messages,
    UNREAD: _unread,
    READ: _read,
    ANSWERABLE: _answerable,
    FLOWS: _flows,
    IDS: _ids,
    ACTIONS: _actions,
    REASONS: _reasons,
    DEAD_LETTERS: _dead_letters,
    REMOTES: _remotes,
}
