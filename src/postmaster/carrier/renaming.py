"""Renaming an agent: a new address, under which its mailbox and its transcript stand; the old one stays an alias.

Commit point: the line in renames.yml. What follows it (the registry, the refs, the log) can be done again, and is by
the next `rename` of the same; until then the old names lead to all of it.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from postmaster import address, delivery_log, reading, remotes, reports, times
from postmaster.carrier import segments
from postmaster.carrier.files import alone
from postmaster.carrier.git import Git
from postmaster.carrier.refs import Entity
from postmaster.carrier.transcripts import Transcript
from postmaster.delivery_log import Record
from postmaster.directory import open_view
from postmaster.errors import BadData, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.printable import quoted
from postmaster.registry import compiled, merge, renames
from postmaster.registry.merge import MergeReport
from postmaster.registry.renames import Rename
from postmaster.registry.source import fault
from postmaster.settings import load_settings

RENAMED: Final = "renamed"  # the log's `action`
_ATTEMPTS: Final = 50  # to find no carrier at work
_PAUSE: Final = 0.2  # seconds


@dataclass(frozen=True, slots=True)
class Renamed:
    """What was done.

    Attributes:
        agent: its id.
        report: what the merge of the registry says.
        carried: its mailbox for other offices has moved too; else the next pass of the carrier does that.
    """

    agent: str
    was: str
    now: str
    report: MergeReport
    carried: bool


def rename(office: Office, old: str, new: str, *, clock: Callable[[], int] = time.time_ns) -> Renamed:
    """Give an agent of the registry another address. To do it again does what may be left of it, and else nothing.

    Args:
        old: its id, its address or an alias.
        new: an address, or what stands before the `@` of its present one.

    Raises:
        BadData: there is no such agent, or the new address cannot be had; nothing was changed.
        ConfigurationFault: the declarations have problems; nothing was changed.
        CannotCreate, DiskFault: the disk refused; do it again.
    """
    agent, now = _asked(office, old, new)
    said = [one for one in _load(office) if address.fold(one.agent) == address.fold(agent.id)]
    if said and said[-1].now == now and agent.address in (said[-1].was, now):
        done = said[-1]  # what follows the commit point may be left to do
    elif address.fold(now) == address.fold(agent.address):
        raise BadData(f"{agent.id} has the address {agent.address} already")
    else:
        _check_free(office, agent, now)
        done = Rename(agent.id, agent.address, now, times.timestamp(clock()))
        planned = merge.plan(office, [done])
        if planned.report.problems:
            summary = f"{quoted(now)} cannot be the address of {agent.id}; nothing was changed:"
            raise fault(summary, planned.report.problems)
        if not any(entry["id"] == agent.id and entry["address"] == now for entry in planned.entries):
            raise BadData(
                f"{agent.id} is not declared with the address {agent.address} in {office.shown(office.declarations)}/: "
                "merge the registry first (`postmaster registry merge`)"
            )
        with compiled.locked(office):
            renames.save(office, [*_load(office), done])
    report = merge.merge(office)
    if report.problems:
        raise fault("the registry cannot be merged; mend this, and rename again:", report.problems)
    carried = _move(office, agent, done)
    _log(office, [one for one in _load(office) if address.fold(one.agent) == address.fold(agent.id)])
    return Renamed(agent.id, done.was, done.now, report, carried)


def _load(office: Office) -> list[Rename]:
    found, problems = renames.load(office)
    if problems:
        raise fault("the renames cannot be read; nothing was changed:", problems)
    return found


def _asked(office: Office, old: str, new: str) -> tuple[Agent, str]:
    """Return the agent, and its new address as a whole."""
    with open_view(office, write=False) as view:
        agent = reading.find_agent(view, old)
    if agent.class_id is not None:
        raise BadData(
            f"{agent.id} is a live instance, and called what it has claimed: archive it, and register another under "
            "the new name"
        )
    now = new if "@" in new else f"{new}@{agent.address.rpartition('@')[2]}"
    if not address.is_mailbox(now):
        raise BadData(f"{quoted(new)} is no address (local@domain)")
    if reports.is_reserved(now, ""):
        raise BadData(f"{now} is the office itself; choose another")
    return agent, now


def _check_free(office: Office, agent: Agent, now: str) -> None:
    """Raise BadData if somebody else has the address, or has left a transcript under it."""
    for remote in load_settings(office).remotes:
        if remotes.domain_of(now) in remote.domains:
            raise BadData(f"{now}: its domain is that of {remote.name}, another office")
    with open_view(office, write=False) as view:
        other = view.find(now)
    if other is not None and other.id != agent.id:
        raise BadData(f"{now} is taken: it is {other.id}")
    own = {address.fold(one) for one in agent.names}
    git = Git(office.mail_repository, ())
    if address.fold(now) not in own and git.exists() and Entity(now).ref in git.refs():
        raise BadData(
            f"{now} has a transcript, of whoever had that address before: choose another, or declare an agent with "
            "that address, to which it belongs"
        )


def _move(office: Office, agent: Agent, done: Rename) -> bool:
    """Let the transcript and the mailbox stand under the new address; tell whether no carrier was in the way."""
    git = Git(office.mail_repository, ())
    if not git.exists():
        return True
    names = dict.fromkeys((done.was, *agent.names))
    names.pop(done.now, None)
    Transcript(office, [done.now, *names]).settle()
    for _ in range(_ATTEMPTS):
        with alone(office) as free:
            if free:
                refs = git.refs()
                if changes := segments.follow(git, refs, done.was, done.now):
                    git.move(changes)
                return True
        time.sleep(_PAUSE)
    return False


def _log(office: Office, done: Sequence[Rename]) -> None:
    lines = [delivery_log.encode(_record(one)) for one in done]
    try:
        missing = delivery_log.missing_lines(office, lines, (0, 0))
    except delivery_log.DAMAGE as damage:
        raise DiskFault(f"{office.logs}: cannot be read: {damage}") from damage
    delivery_log.append(office, missing, sync_always=True)


def _record(one: Rename) -> Record:
    return {"time": one.at, "action": RENAMED, "agent": one.agent, "detail": f"{one.was} is {one.now} now"}
