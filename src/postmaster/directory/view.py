"""The registry together with the live instances: what routing asks (decide.RegistryView), and who there is.

Opened once a run. A claim is read when it is asked for, and once, so that a run's cost follows its mail and not the
number of the living; only a role, which anyone may hold, makes it read them all. The instances that a class has for
each flow claim nothing: such an instance is there if its mailbox is.
"""

import bisect
import contextlib
import os
from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Final

from postmaster import address, maildir, per_flow
from postmaster.directory import claims, store
from postmaster.directory.claims import Claim
from postmaster.errors import CannotCreate
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.registry.compiled import CompiledRegistry
from postmaster.registry.view import Entry

_NEIGHBOURS: Final = 20


class DirectoryView:
    """A registry view with the live instances in it. Close it, or use it as a context manager.

    Where the registry and a live instance have the same address, the registry has it.
    """

    def __init__(self, office: Office, registry: CompiledRegistry, *, write: bool) -> None:
        if write and store.is_unfinished(office):
            with contextlib.suppress(CannotCreate), store.locked(office):
                pass  # which ends what was cut off; who may not lock leaves that to others
        self._office = office
        self.registry: Final = registry
        self._claims: dict[str, Claim | None] = {}
        self._agents: dict[str, Agent] = {}
        self._names: list[str] | None = None
        self._all: list[Claim] | None = None

    def __enter__(self) -> "DirectoryView":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the registry."""
        self.registry.close()

    def find(self, mailbox: str) -> Agent | None:
        """Return the agent with this address or alias, or the live instance with this address or bare name."""
        found = self._with_key(mailbox) or self.registry.find(mailbox)
        if found is not None:
            return found
        claim = self._holder(mailbox.rpartition("@")[0] or mailbox)
        if claim is None or ("@" in mailbox and address.fold(claim.address) != address.fold(mailbox)):
            claim = self._with_name(mailbox)
        return self._agent(claim) if claim is not None else None

    def _with_key(self, mailbox: str) -> Agent | None:
        """Return the instance for a flow that has this address, if it is there."""
        parts = per_flow.split_address(mailbox)
        class_ = self.registry.find(parts[0]) if parts is not None else None
        return self._if_there(class_, parts[1]) if parts is not None and class_ is not None else None

    def _with_name(self, mailbox: str) -> Claim | None:
        """Return the live instance that ``class+name@domain`` names (RFC 5233)."""
        local, _, domain = mailbox.rpartition("@")
        base, plus, name = local.rpartition("+")
        claim = self._holder(name) if base and plus else None
        class_ = self.registry.find(f"{base}@{domain}") if claim is not None else None
        if claim is None or class_ is None or claims.key(class_.id) != claims.key(claim.class_id):
            return None
        return claim

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent or live instance with this id."""
        claim = self.claim(agent_id)
        if claim is not None:
            return self._agent(claim)
        parts = per_flow.split_id(agent_id)
        if parts is None:
            return self.registry.agent(agent_id)
        class_ = self.registry.agent(parts[0])
        return self._if_there(class_, parts[1]) if class_ is not None else None

    def in_flow(self, class_: Agent, correlation_id: str) -> Agent:
        """Return the instance of a class that has one for each flow, there already or not."""
        return self._instance(class_, per_flow.key(correlation_id))

    def _if_there(self, class_: Agent, flow_key: str) -> Agent | None:
        """Return the instance of a class with this key, if there is one: it has a mailbox."""
        if not class_.per_flow:
            return None
        found = self._instance(class_, flow_key)
        return found if os.path.isdir(os.path.join(found.inbox, maildir.UNREAD)) else None

    def _instance(self, class_: Agent, flow_key: str) -> Agent:
        agent_id = per_flow.instance_id(class_.id, flow_key)
        found = self._agents.get(agent_id)
        if found is None:
            inbox = self._office.default_inbox(agent_id)
            ended = os.path.lexists(self._office.archived_claim(agent_id))
            found = self._agents[agent_id] = per_flow.instance(class_, flow_key, inbox, terminated=ended)
        return found

    def for_flows(self) -> Iterator[Agent]:
        """Yield the instances for flows that are there and were not archived, in the order of the ids."""
        classes = {address.fold(class_id) for class_id in self.registry.per_flow()}
        if not classes:
            return
        try:
            listed = sorted(os.listdir(self._office.inboxes))
        except FileNotFoundError:
            return
        for name in listed:
            parts = per_flow.split_id(name)
            if parts is not None and address.fold(parts[0]) in classes:
                found = self.agent(name)
                if found is not None and found.id == name and not found.terminated:
                    yield found

    def claim(self, agent_id: str) -> Claim | None:
        """Return the claim of the live instance with this id."""
        name = claims.name_of(agent_id)
        claim = self._holder(name) if name is not None else None
        return claim if claim is not None and claims.key(claim.id) == claims.key(agent_id) else None

    def holders(self, role: str) -> Sequence[Agent]:
        """Return the agents and live instances that hold this role, in the order of their ids."""
        live = [self._agent(claim) for claim in self._living() if claim.holds(role)]
        return sorted([*self.registry.holders(role), *live], key=lambda agent: agent.id)

    def suggest(self, recipient: str) -> str | None:
        """Return the known address nearest to one that is not known."""
        parts = per_flow.split_address(recipient)
        if parts is not None and self.registry.find(parts[0]) is not None:
            return parts[0]
        in_registry = self.registry.suggest(recipient)
        if recipient.startswith(address.ROLE):
            roles = {role for claim in self._living() for role in claim.roles}
            return self._nearer(recipient, in_registry, [address.ROLE + role for role in sorted(roles)])
        local = recipient.removeprefix(address.AGENT)
        local = claims.name_of(local) or local.rpartition("@")[0] or local
        near = [claim for name in self._near(claims.key(local)) if (claim := self._holder(name)) is not None]
        if recipient.startswith(address.AGENT):
            return self._nearer(recipient, in_registry, [address.AGENT + claim.id for claim in near])
        return self._nearer(recipient, in_registry, [claim.address for claim in near])

    def has_users(self) -> bool:
        """Tell whether any agent, or class, says which account its letters belong to."""
        return self.registry.has_users()

    def entry(self, agent_id: str) -> Entry | None:
        """Return all that the registry says of the agent with this id, or of a live instance's class."""
        claim = self.claim(agent_id)
        parts = per_flow.split_id(agent_id) if claim is None else None
        return self.registry.entry(claim.class_id if claim is not None else parts[0] if parts is not None else agent_id)

    def has_nudges(self) -> bool:
        """Tell whether any agent or class says how it is to be nudged."""
        return self.registry.has_nudges()

    def nudged(self) -> Sequence[str]:
        """Return the ids of the agents and classes that say how they are to be nudged."""
        return self.registry.nudged()

    def all_agents(self) -> Iterator[Agent]:
        """Yield every agent of the registry, then every live instance, then those for flows, each in the ids' order."""
        yield from self.registry.all_agents()
        for claim in self._living():
            yield self._agent(claim)
        yield from self.for_flows()

    def running(self) -> Sequence[str]:
        """Return the ids of the agents and classes that say how their turns are taken."""
        return self.registry.running()

    def _holder(self, name: str) -> Claim | None:
        folded = claims.key(name)
        if folded not in self._claims:
            self._claims[folded] = store.holder(self._office, name) if address.is_name(name) else None
        return self._claims[folded]

    def _living(self) -> list[Claim]:
        if self._all is None:
            held = (self._holder(name) for name in store.live_names(self._office))
            self._all = sorted((claim for claim in held if claim is not None), key=lambda claim: claim.id)
        return self._all

    def _agent(self, claim: Claim) -> Agent:
        found = self._agents.get(claim.id)
        if found is None:
            class_ = self.registry.agent(claim.class_id)
            found = self._agents[claim.id] = claims.as_agent(claim, class_, self._office.default_inbox(claim.id))
        return found

    def _near(self, name: str) -> list[str]:
        """Return the live names that stand next to `name`: so many that looking for a near one stays cheap."""
        if self._names is None:
            self._names = store.live_names(self._office)
        place = bisect.bisect_left(self._names, name)
        return self._names[max(0, place - _NEIGHBOURS) : place + _NEIGHBOURS]

    @staticmethod
    def _nearer(recipient: str, in_registry: str | None, live: list[str]) -> str | None:
        near = address.nearest(recipient, live)
        if near is None or in_registry is None:
            return near or in_registry
        return address.nearest(recipient, [in_registry, near]) or in_registry
