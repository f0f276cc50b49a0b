"""The compiled lookup: agent-registry.yml as a database beside it, so that a run loads only the agents it needs.

The file's name carries the stamp of the registry it was compiled from (registry.stamp). It is never written to
after its rename, can be deleted at any time, and is never trusted: damage leads back to the YAML.
"""

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Final, Protocol, TypeVar

from postmaster import address, durable, per_flow
from postmaster.errors import CannotCreate, ConfigurationFault, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent, RegistryView
from postmaster.registry import database
from postmaster.registry.stamp import PREFIX, SUFFIX, stamp_name
from postmaster.registry.view import Entry, agent_of

_T = TypeVar("_T")

LOCK: Final = "registry.lock"
_TEMPORARY: Final = (
    ".registry.sqlite.tmp"  # one name, under the lock: a crash leaves at most one, the next build takes it
)
# Two writes within one tick of the file system's clock can leave the same stamp (the "racy" files of git).
_TICK_NS: Final = 20_000_000

_MERGE: Final = "run `postmaster registry merge`"


class CompiledRegistry:
    """A registry view (decide.RegistryView) over the compiled lookup. Close it, or use it as a context manager."""

    def __init__(self, office: Office, connection: sqlite3.Connection, *, checked: bool, write: bool) -> None:
        self._office = office
        self._connection = connection
        self._checked = checked  # whether a name that is not found is known to be unknown
        self._write = write
        self._agents: dict[int, Agent] = {}

    def __enter__(self) -> "CompiledRegistry":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, fault: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self._connection.close()

    def __len__(self) -> int:
        return self._ask(lambda: database.count(self._connection))

    def find(self, mailbox: str) -> Agent | None:
        """Return the agent with this address or alias."""
        found = self._ask(lambda: self._named(database.ADDRESS, mailbox))
        return found[0] if found else None

    def agent(self, agent_id: str) -> Agent | None:
        """Return the agent with this id."""
        found = self._ask(lambda: self._named(database.ID, agent_id))
        return found[0] if found else None

    def holders(self, role: str) -> Sequence[Agent]:
        """Return the agents that hold this role, in the order of their ids."""
        return self._ask(lambda: self._named(database.ROLE, role))

    def suggest(self, recipient: str) -> str | None:
        """Return the known address nearest to one that is not known."""
        return self._ask(lambda: self._suggest(recipient))

    def with_local_part(self, name: str) -> Agent | None:
        """Return an agent that has an address or alias ``name@...``, whatever the domain."""

        def found() -> Agent | None:
            if not self._checked:
                database.check_whole(self._connection)
                self._checked = True
            for position in database.beginning(self._connection, database.ADDRESS, name + "@"):
                return self._agent_of(database.entry_at(self._connection, position))
            return None

        return self._ask(found)

    def has_users(self) -> bool:
        """Tell whether any agent says which account its letters belong to."""
        return self._ask(lambda: database.count_users(self._connection)) > 0

    def entry(self, agent_id: str) -> Entry | None:
        """Return all that the registry says of the agent with this id."""
        return self._ask(lambda: self._entry(agent_id))

    def has_nudges(self) -> bool:
        """Tell whether any agent says how it is to be nudged."""
        return bool(self._ask(lambda: database.names_of(self._connection, database.NUDGED, 1)))

    def nudged(self) -> Sequence[str]:
        """Return the ids of the agents that say how they are to be nudged."""
        return self._ask(lambda: database.names_of(self._connection, database.NUDGED))

    def running(self) -> Sequence[str]:
        """Return the ids of the agents that say how their turns are taken."""
        return self._ask(lambda: database.names_of(self._connection, database.RUN))

    def has_per_flow(self) -> bool:
        """Tell whether any agent is a class that has an instance for each flow."""
        return bool(self._ask(lambda: database.names_of(self._connection, database.PER_FLOW, 1)))

    def per_flow(self) -> Sequence[str]:
        """Return the ids of the classes that have an instance for each flow."""
        return self._ask(lambda: database.names_of(self._connection, database.PER_FLOW))

    def in_flow(self, class_: Agent, correlation_id: str) -> Agent:
        """Return the instance of a class that has one for each flow, as if it were not archived (DirectoryView)."""
        flow_key = per_flow.key(correlation_id)
        inbox = self._office.default_inbox(per_flow.instance_id(class_.id, flow_key))
        return per_flow.instance(class_, flow_key, inbox, terminated=False)

    def all_agents(self) -> Iterator[Agent]:
        """Yield every agent in the order of the ids."""
        for entry in self.all_entries():
            yield self._agent_of(entry)

    def all_entries(self) -> Iterator[Entry]:
        """Yield every entry in the order of the ids."""
        yield from self._ask(lambda: list(database.all_entries(self._connection)))

    def _ask(self, question: Callable[[], _T]) -> _T:
        """Answer from the database; if that shows damage, build it again from the YAML, once."""
        try:
            return question()
        except database.DAMAGE as fault:
            if isinstance(fault, sqlite3.ProgrammingError):
                raise  # closed: a mistake of the caller
            self._connection.close()
            self._agents.clear()
            self._connection = _build(self._office, write=self._write, reuse=False)
            self._checked = True
            return question()

    def _named(self, kind: str, name: str) -> tuple[Agent, ...]:
        positions = database.positions(self._connection, kind, name)
        if not self._checked and (not positions or kind == database.ROLE):
            database.check_whole(self._connection)  # a damaged page can hide a row
            self._checked = True
        return tuple(self._agent(position, kind, name) for position in positions)

    def _agent(self, position: int, kind: str, name: str) -> Agent:
        agent = self._agents.get(position)
        if agent is None:
            agent = self._agent_of(database.entry_at(self._connection, position))
            self._agents[position] = agent
        names = {database.ID: (agent.id,), database.ROLE: agent.roles}.get(kind, agent.names)
        if address.fold(name) not in {address.fold(one) for one in names}:
            raise sqlite3.DatabaseError("a name leads to the wrong agent")
        return agent

    def _agent_of(self, entry: Entry) -> Agent:
        return agent_of(entry, self._office.inbox)

    def _entry(self, agent_id: str) -> Entry | None:
        positions = database.positions(self._connection, database.ID, agent_id)
        return database.entry_at(self._connection, positions[0]) if positions else None

    def _suggest(self, recipient: str) -> str | None:
        def near(kind: str, name: str) -> str | None:
            return address.nearest(name, database.neighbours(self._connection, kind, name))

        for prefix, kind in ((address.ROLE, database.ROLE), (address.AGENT, database.ID)):
            if recipient.startswith(prefix):
                found = near(kind, recipient[len(prefix) :])
                return prefix + found if found else None
        if "@" in recipient:
            return near(database.ADDRESS, recipient)
        # A bare word: an id, a role, or the local part of an address.
        for prefix, kind in ((address.AGENT, database.ID), (address.ROLE, database.ROLE)):
            if database.positions(self._connection, kind, recipient):
                return prefix + recipient
        local = {
            known.rpartition("@")[0]: known
            for known in database.neighbours(self._connection, database.ADDRESS, recipient)
        }
        found = address.nearest(recipient, local)
        if found:
            return local[found]
        found = near(database.ID, recipient)
        return address.AGENT + found if found else None


class Roster(RegistryView, Protocol):
    """A registry view that can be listed."""

    def all_agents(self) -> Iterator[Agent]:
        """Yield every agent."""

    def has_users(self) -> bool:
        """Tell whether any agent says which account its letters belong to."""


class OpenView(Protocol):
    """How a view is opened: `open_view` here, or that of a layer which knows of more agents."""

    def __call__(self, office: Office, *, write: bool = True) -> AbstractContextManager[Roster]: ...


def open_view(office: Office, *, write: bool = True) -> CompiledRegistry:
    """Open the registry of an office, compiling it first if that was not done yet.

    Args:
        write: whether the compiled lookup may be kept on disk; else it is built in memory.

    Raises:
        ConfigurationFault: agent-registry.yml is missing, cannot be read or is invalid; says where and what to do.
    """
    path = os.path.join(office.private, stamp_name(_status(office)))
    try:
        return CompiledRegistry(office, database.open_file(path), checked=False, write=write)
    except (*database.DAMAGE, OSError):
        connection = _build(office, write=write, reuse=write)
        return CompiledRegistry(office, connection, checked=True, write=write)


def _status(office: Office) -> os.stat_result:
    try:
        return os.stat(office.registry)
    except OSError as fault:
        raise _unreadable(office, fault) from fault


def _unreadable(office: Office, fault: OSError | ValueError) -> ConfigurationFault:
    if isinstance(fault, FileNotFoundError):
        return ConfigurationFault(f"{office.registry}: there is no registry yet; {_MERGE}")
    why = fault.strerror if isinstance(fault, OSError) else str(fault)
    return ConfigurationFault(f"{office.registry}: cannot be read: {why}; mend that, then {_MERGE}")


def _build(office: Office, *, write: bool, reuse: bool) -> sqlite3.Connection:
    """Compile the registry and return the open result.

    Args:
        reuse: take the file that another process has just built, if it is whole.
    """
    if not write:
        return database.in_memory(read_entries(office)[0])
    try:
        with locked(office):
            if reuse:
                path = os.path.join(office.private, stamp_name(_status(office)))
                with contextlib.suppress(*database.DAMAGE, OSError):
                    return database.open_file(path)
            entries, status = read_entries(office)
            stored = store(office, entries, status)
            if stored is not None:
                with contextlib.suppress(*database.DAMAGE, OSError):
                    return database.open_file(stored)
            return database.in_memory(entries)
    except (CannotCreate, DiskFault):  # a disk that cannot be written to can still be read from
        return database.in_memory(read_entries(office)[0])


@contextlib.contextmanager
def locked(office: Office) -> Iterator[None]:
    """Hold the registry's lock (flock(2), close-on-exec): one merge or build at a time.

    Raises:
        CannotCreate, DiskFault: the lock cannot be had.
    """
    office.make_private()
    path = os.path.join(office.private, LOCK)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise CannotCreate(f"{path}: {fault.strerror}") from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as fault:
            raise DiskFault(f"{path}: cannot lock: {fault.strerror}") from fault
        yield
    finally:
        os.close(descriptor)


def read_settled(office: Office) -> tuple[bytes, os.stat_result]:
    """Read agent-registry.yml together with a stamp that no later change of it can share.

    Raises:
        OSError, ValueError: it cannot be read.
    """
    from postmaster.registry import declarations, source

    while True:
        changed = os.stat(office.registry).st_ctime_ns
        wait = changed + _TICK_NS - time.time_ns()
        if 0 < wait <= _TICK_NS:
            time.sleep(wait / 1e9)
        raw, status = source.read_file(office.registry, declarations.MAX_REGISTRY_BYTES)
        if status.st_ctime_ns == changed and stamp_name(status) == stamp_name(os.stat(office.registry)):
            return raw, status


def read_entries(office: Office) -> tuple[list[Entry], os.stat_result]:
    """Read and check agent-registry.yml.

    Raises:
        ConfigurationFault: it is missing, unreadable, half a file or invalid.
    """
    from postmaster.registry import declarations, rules, source, written

    try:
        raw, status = read_settled(office)
    except (OSError, ValueError) as fault:
        raise _unreadable(office, fault) from fault
    if written.is_cut_short(raw):
        why = "half a file: it does not end in the `# end of registry` line of a merge"
        raise ConfigurationFault(f"{office.registry}: {why}; {_MERGE}")
    trusted = written.is_as_written(raw)
    loaded = declarations.parse_merged(raw, office, trusted=trusted)
    problems = loaded.problems + ([] if trusted else rules.check(loaded.declared, office))
    if problems:
        raise source.fault(f"{office.registry}: not a valid registry; mend it, or {_MERGE}:", problems)
    return loaded.entries(), status


def store(office: Office, entries: Sequence[Entry], status: os.stat_result) -> str | None:
    """Write the compiled lookup of a registry with this stamp, and remove older ones. The lock is held.

    Commit point: the rename. A crash before it leaves one temporary, which the next build takes away.

    Returns:
        The path, or None if it cannot be written.
    """
    temporary = os.path.join(office.private, _TEMPORARY)
    path = os.path.join(office.private, stamp_name(status))
    durable.remove(temporary)
    try:
        database.write(temporary, entries)
        os.rename(temporary, path)
    except (OSError, sqlite3.Error):
        durable.remove(temporary)
        return None
    with contextlib.suppress(OSError):
        for name in os.listdir(office.private):
            if name.startswith(PREFIX) and name.endswith(SUFFIX) and name != os.path.basename(path):
                durable.remove(os.path.join(office.private, name))
    return path
