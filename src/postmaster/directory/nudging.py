"""Telling idle agents that they have mail, at most once for each message.

**Commit point: the `nudged` lines in the log.** They are synced before the command is run. A crash before them leaves
the messages untold, and a later run tells of them; a crash after them, or a command that fails, may leave an agent
without that nudge, and never with a second one. Of several routers that mean to tell of a message, one writes its line,
under the lock of the nudges, and the others find it there.
"""

import contextlib
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import address, delivery_log, maildir, reading, times
from postmaster.delivery_log import Record
from postmaster.directory import open_view, untold
from postmaster.directory.errands import Errands
from postmaster.directory.untold import Untold
from postmaster.errors import BadData, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.printable import brief
from postmaster.registry.view import Entry

COMMAND_SECONDS: Final = 10.0
TOTAL_SECONDS: Final = 30.0  # after which none is begun any more in this run
_AT_ONCE: Final = 16
_LOOKED_AT: Final = 20  # messages whose senders are named
_ODD: Final = re.compile(r"[^A-Za-z0-9@._+-]")
_ID: Final = re.compile(r"\d{8}T\d{6}Z-\d{6,}-([0-9a-f]{32})[.-].*", re.DOTALL)


@dataclass(slots=True)
class Told:
    """What came of it.

    Attributes:
        nudged: for each agent whose nudge was run: `agent`, `unread`, `new`, and `failed` (in words, or None).
        busy: the ids of those that have new mail and are not idle.
        later: the ids of those that there was no time for.
        problems: what a person should look at, in words.
    """

    nudged: list[dict[str, Any]] = field(default_factory=list)
    busy: list[str] = field(default_factory=list)
    later: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def tell(
    office: Office,
    *,
    clock: Callable[[], int] = time.time_ns,
    seconds: float = COMMAND_SECONDS,
    total_seconds: float = TOTAL_SECONDS,
) -> Told:
    """Nudge every idle agent with unread mail that it was not told of. The router's lock is not held meanwhile.

    Args:
        clock: nanoseconds since the epoch.
        seconds: how long one command may take.
        total_seconds: how long commands may be begun.

    Raises:
        ConfigurationFault: no office, or no usable registry.
        CannotCreate, DiskFault: the disk refused; who was not told is told by a later run.
    """
    office.require()
    with open_view(office) as view:
        if not view.has_nudges():
            untold.unmark(office)
            return Told()
        with untold.locked(office):
            waiting = untold.current(office, view)
            work: list[tuple[Agent, Entry]] = []
            for agent_id in list(waiting.names):
                agent, entry = view.agent(agent_id), view.entry(agent_id)
                if agent is None or agent.id != agent_id or not entry or not entry.get("nudge"):
                    waiting.drop(agent_id, list(waiting.names[agent_id]))  # archived since
                elif _news(waiting, agent)[1]:
                    work.append((agent, entry))
            untold.save(office, waiting)
    run = _Run(office, Errands(office.root, seconds), clock, time.monotonic() + total_seconds)
    run.all(work)
    return run.told


def _news(waiting: Untold, agent: Agent) -> tuple[list[str], list[str]]:
    """Return what is unread, and what of it the agent was not told of; forget what is unread no more."""
    try:
        os.stat(os.path.join(agent.inbox, maildir.UNREAD))
        unread = maildir.messages(agent.inbox, maildir.UNREAD)
    except OSError:
        return [], []  # closed, or on a disk that is not mounted: a later run may see more
    there = frozenset(unread)
    waiting.drop(agent.id, [name for name in waiting.names.get(agent.id, ()) if name not in there])
    new = waiting.names.get(agent.id, {})
    return unread, [name for name in unread if name in new]


class _Run:
    """One run over the agents that have something to be told."""

    def __init__(self, office: Office, errands: Errands, clock: Callable[[], int], end: float) -> None:
        self._office = office
        self._errands = errands
        self._clock = clock
        self._end = end
        self.told = Told()

    def all(self, work: Sequence[tuple[Agent, Entry]]) -> None:
        """Tell all of them, several at once, so that one command that hangs holds up nobody else."""
        if len(work) == 1:
            self._one(*work[0])
            return
        with ThreadPoolExecutor(max_workers=max(1, min(_AT_ONCE, len(work)))) as pool:
            try:
                for done in [pool.submit(self._one, agent, entry) for agent, entry in work]:
                    done.result()
            except BaseException:
                self._errands.stop()
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _one(self, agent: Agent, entry: Entry) -> None:
        if time.monotonic() >= self._end:
            self.told.later.append(agent.id)
            return
        if not self._is_idle(agent, entry):
            self.told.busy.append(agent.id)
            return
        new = self._write_down(agent)
        if not new:
            return
        unread = self._unread(agent)
        still = [name for name in new if name in unread]
        if not still:
            return  # read in this very moment
        ending = self._errands.run(entry["nudge"], self._values(agent, unread, still))
        if not ending:
            self._complain(agent, f"nudge: {ending.why}")
        row = {"agent": agent.id, "unread": len(unread), "new": len(still), "failed": None if ending else ending.why}
        self.told.nudged.append(row)

    def _is_idle(self, agent: Agent, entry: Entry) -> bool:
        """Ask the agent's `idle` command. What cannot be asked counts as busy, and is told of once.

        Without such a command an agent is busy only while a turn of it is under way.
        """
        command = entry.get("idle")
        if not command:
            return not (entry.get("run") and self._office.is_in_turn(agent.id))
        unread = self._unread(agent)
        ending = self._errands.run(command, self._values(agent, unread, unread))
        why = f"idle: {ending.why}" if ending.code is None else ""
        with untold.locked(self._office):
            waiting = untold.again(self._office)
            if waiting is not None and waiting.trouble.get(agent.id, "") != why:
                if why:
                    self._complain(agent, why)
                    waiting.trouble[agent.id] = why
                else:
                    del waiting.trouble[agent.id]
                with contextlib.suppress(DiskFault):
                    untold.save(self._office, waiting)
        return bool(ending)

    def _write_down(self, agent: Agent) -> list[str]:
        """Write durably of which messages the agent is told now, and return their names. The commit point."""
        with untold.locked(self._office):
            waiting = untold.again(self._office)
            if waiting is None:
                self.told.later.append(agent.id)
                return []
            unread, new = _news(waiting, agent)
            moment = times.timestamp(self._clock())
            said = f"told of {len(new)} new of {len(unread)} unread"
            records = [self._record(agent, moment, name, said) for name in new]
            delivery_log.append(self._office, [delivery_log.encode(record) for record in records])
            waiting.drop(agent.id, new)
            with contextlib.suppress(DiskFault):  # the lines are in the log, and that is what counts
                untold.save(self._office, waiting)
            return new

    def _record(self, agent: Agent, moment: str, name: str, detail: str) -> Record:
        record = {"time": moment, "action": untold.NUDGED, "agent": agent.id, "detail": detail}
        record["path"] = self._office.shown(os.path.join(agent.inbox, maildir.UNREAD, name))
        if named := _ID.fullmatch(name):
            record["id"] = named[1]
        return record

    def _complain(self, agent: Agent, why: str) -> None:
        self.told.problems.append(f"{agent.id}: {why}")
        record = {
            "time": times.timestamp(self._clock()),
            "action": untold.FAILED,
            "agent": agent.id,
            "detail": why,
        }
        try:
            delivery_log.append(self._office, [delivery_log.encode(record)])
        except DiskFault as fault:
            self.told.problems.append(str(fault))

    def _unread(self, agent: Agent) -> list[str]:
        try:
            return maildir.messages(agent.inbox, maildir.UNREAD)
        except OSError:
            return []

    def _values(self, agent: Agent, unread: Sequence[str], new: Sequence[str]) -> dict[str, str]:
        """Return what the command is told. Nothing in it is as a sender wrote it, but for harmless characters."""
        name = agent.id.split("+")[1] if "+" in agent.id else agent.address.rpartition("@")[0]
        return {
            "root": self._office.root,
            "agent": agent.id,
            "name": plain(name),
            "inbox": agent.inbox,
            "unread": str(len(unread)),
            "text": text(agent.id, len(unread), len(new), _senders(agent, new)),
        }


def text(agent_id: str, unread: int, new: int, senders: Sequence[str]) -> str:
    """Return the one line that is said: how many messages, from whom, how to read them. Pure.

    It holds letters, digits, blanks and ``@.,:_+-`` only, and begins with a letter: typed where a shell or another
    program reads it, it does nothing; as an argument it is no option.
    """
    messages = "1 unread message" if unread == 1 else f"{unread} unread messages"
    fresh = "" if new == unread else f", {new} of them new"
    named = [plain(one) for one in senders]
    whom = f", from {brief(named)}" if named else ""
    return f"Mail for {agent_id}: {messages}{fresh}{whom}. To read: postmaster inbox {agent_id}"


def plain(sender: str) -> str:
    """Return an address as it may stand in a line that is typed somewhere: short, nothing that any reader obeys."""
    return _ODD.sub("_", sender[:80]).lstrip("-") or "_"


def _senders(agent: Agent, new: Sequence[str]) -> list[str]:
    """Return who sent the newest of these messages, each once."""
    found: dict[str, None] = {}
    for name in reversed(new[-_LOOKED_AT:]):
        try:
            sender = reading.load(os.path.join(agent.inbox, maildir.UNREAD, name)).text("from")
        except (OSError, BadData):
            continue
        if sender is not None and address.is_mailbox(sender):
            found[sender] = None
    return list(found)
