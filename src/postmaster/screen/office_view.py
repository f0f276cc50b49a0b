"""What there is in the office, as the pages need it: kept in memory, and looked at again where the disk has changed."""

import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from postmaster import address, dead_letters, outbox
from postmaster.dead_letters import DeadLetter
from postmaster.directory import claims, open_view, store
from postmaster.errors import ConfigurationFault, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.registry import compiled, flows
from postmaster.screen.listings import Listings, Stamp, is_settled, stamp
from postmaster.screen.log_index import LogIndex
from postmaster.turns import instances


@dataclass(frozen=True, slots=True)
class Box:
    """A mailbox.

    Attributes:
        agent: whose it is.
        kind: ``agent``, ``instance`` or ``archived``.
        since: when that began, of the last two.
        takes_turns: its declaration has `run`.
    """

    agent: Agent
    kind: str = "agent"
    since: str | None = None
    takes_turns: bool = False


class OfficeView:
    """The office, for looking only. Safe to use from several threads."""

    def __init__(self, office: Office) -> None:
        self.office = office
        self.index = LogIndex(office)
        self.listings = Listings(office)
        self._lock = threading.Lock()
        self._boxes: tuple[tuple[Stamp, ...], list[Box]] = ((), [])
        self._dead: tuple[Stamp, list[DeadLetter]] | None = None
        self._map: tuple[Stamp, dict[str, Any]] | None = None
        self.problem: str | None = None

    def boxes(self) -> list[Box]:
        """Return every mailbox: agents and live instances by id, then the archived, the last archived first."""
        with self._lock:
            try:
                seen = tuple(stamp(path) for path in (self.office.registry, self.office.live, self.office.archive))
                if self._boxes[0] != seen or not all(map(is_settled, seen)):
                    self._boxes = (seen, self._find_boxes())
                self.problem = None
            except (ConfigurationFault, DiskFault) as fault:
                self.problem = str(fault)
                self._boxes = ((), [])
            except OSError as fault:
                self.problem = f"{self.office.shown(fault.filename or self.office.directory)}: {fault.strerror}"
            return self._boxes[1]

    def _find_boxes(self) -> list[Box]:
        living = {claim.id: claim for claim in store.living(self.office)}
        with open_view(self.office, write=False) as view:
            agents = sorted(view.all_agents(), key=lambda agent: agent.id)
            running = {address.fold(agent_id) for agent_id in view.running()}

            def takes(agent: Agent) -> bool:
                return address.fold(agent.class_id or agent.id) in running

            found = [
                Box(agent, "instance", living[agent.id].since, takes_turns=takes(agent))
                if agent.id in living
                else Box(agent, takes_turns=takes(agent))
                for agent in agents
            ]
            past = sorted(store.past(self.office), key=lambda claim: claim.archived or "", reverse=True)
            for claim in past:
                inbox = self.office.default_inbox(claim.id)
                found.append(Box(claims.as_agent(claim, view.agent(claim.class_id), inbox), "archived", claim.archived))
        return found

    def box(self, agent_id: str) -> Box | None:
        """Return the mailbox of the agent with this id."""
        return next((box for box in self.boxes() if box.agent.id == agent_id), None)

    def state(self, box: Box) -> str | None:
        """Return whether an agent that takes turns is busy, paused or idle; None of one that takes none."""
        if not box.takes_turns or box.kind == "archived":
            return None
        if self.office.is_in_turn(box.agent.id):
            return "busy"
        return "paused" if instances.is_paused(self.office, box.agent.id) else "idle"

    def inboxes(self) -> Sequence[str]:
        """Return the paths of the mailboxes in which mail can come or go."""
        return [box.agent.inbox for box in self.boxes() if box.kind != "archived"]

    def waiting(self) -> list[str] | None:
        """Return the names in the outbox, sorted; None if it is closed to us."""
        try:
            try:
                return sorted(outbox.scan(self.office.outbox, drop_folders=True))
            except ConfigurationFault:
                return sorted(outbox.scan(self.office.outbox))
        except OSError:
            return None

    def dead(self) -> list[DeadLetter]:
        """Return the dead letters, newest first."""
        with self._lock:
            try:
                seen = stamp(self.office.dead_letter)
                if self._dead is None or self._dead[0] != seen or not is_settled(seen):
                    self._dead = (seen, dead_letters.scan(self.office)[0])
            except OSError:
                return []
            return self._dead[1]

    def map(self) -> dict[str, Any]:
        """Return the map of the office (registry.flows.to_json). Raises ConfigurationFault."""
        with self._lock:
            seen = stamp(self.office.registry)
            if self._map is None or self._map[0] != seen or not is_settled(seen):
                with compiled.open_view(self.office, write=False) as view:
                    self._map = (seen, flows.to_json(list(view.all_entries())))
            return self._map[1]

    def folder_of(self, inbox: str, name: str) -> str | None:
        """Return in which folder of a mailbox a file is now, the folder of read mail last; None: in none."""
        for folder in ("unread", "read"):
            if os.path.lexists(os.path.join(inbox, folder, name)):
                return folder
        return None
