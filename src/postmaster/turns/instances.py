"""The instances that take turns: who they are, where their mail and their disk are, in which state they are.

On disk, below turns/<instance id>/: `disk/` (the working directory of its turns), `origin.json` (set once), `state`
(there while it is paused). An instance that was archived is terminated.
"""

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, Union

from postmaster import durable, reading
from postmaster.decide import Agent
from postmaster.directory.view import DirectoryView
from postmaster.errors import CannotCreate, DiskFault
from postmaster.office import Office
from postmaster.registry.compiled import CompiledRegistry

View = Union[CompiledRegistry, DirectoryView]  # noqa: UP007
State = Literal["active", "paused", "terminated"]

ACTIVE: Final = "active"
PAUSED: Final = "paused"
TERMINATED: Final = "terminated"
_MAX_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Origin:
    """The flow that an instance was made to serve: who asked there, and the id of the message that began it."""

    correlation_id: str
    asker: str
    message_id: str


@dataclass(frozen=True, slots=True)
class Instance:
    """One that takes turns: an agent with `run`, or an instance of a class that has it.

    Attributes:
        id: of its mailbox, and of its directory below turns/.
        class_id: the id of the entry that declares it; its own if it is the one instance of that.
        inbox: absolute path of its mailbox.
        disk: absolute path of its own directory, the working directory of its turns (`make_disk`).
        origin: None until its first turn.
    """

    id: str
    address: str
    class_id: str
    inbox: str
    disk: str
    state: State
    origin: Origin | None = None


def find(office: Office, view: View, name: str) -> Instance:
    """Return the instance that `name` (an id, an address or a live name) names, whatever its state.

    Raises:
        BadData: nobody; says who may have been meant.
        DiskFault: its state cannot be read.
    """
    return _instance(office, reading.find_agent(view, name))


def runnable(office: Office, view: View) -> Iterator[Instance]:
    """Yield every instance of an agent with `run` that is not terminated, in the order of the ids."""
    for agent in view.all_agents():
        entry = view.entry(agent.id)
        if entry and entry.get("run"):
            yield _instance(office, agent)


def begin_origin(office: Office, instance: Instance, first: Origin) -> Instance:
    """Set the origin of an instance, once and for all; return the instance with the origin that it has.

    Commit point: a rename that replaces nothing. Of two at once one is first, and both get its origin.

    Raises:
        CannotCreate: the disk refused.
    """
    if instance.origin is not None:
        return instance
    home = office.turn_home(instance.id)
    path = os.path.join(home, "origin.json")
    temporary = os.path.join(home, f"{durable.TEMPORARY}{os.getpid()}-origin")
    try:
        durable.make_directories(home)
        durable.remove(temporary)
        durable.write_new(temporary, json.dumps(asdict(first)).encode("ascii"), sync=True)
        try:
            durable.rename_new(temporary, path)
            durable.sync_directory(home)
        except FileExistsError:
            durable.remove(temporary)
    except OSError as fault:
        raise CannotCreate(f"{fault.filename or path}: {fault.strerror}") from fault
    return replace(instance, origin=_origin(office, instance.id))


def make_disk(instance: Instance) -> None:
    """Make the directory of an instance if it is not there.

    Raises:
        CannotCreate: the disk refused.
    """
    try:
        durable.make_directories(instance.disk)
    except OSError as fault:
        raise CannotCreate(f"{fault.filename or instance.disk}: {fault.strerror}") from fault


def _instance(office: Office, agent: Agent) -> Instance:
    disk = os.path.join(office.turn_home(agent.id), "disk")
    state = _state(office, agent)
    return Instance(
        agent.id, agent.address, agent.class_id or agent.id, agent.inbox, disk, state, _origin(office, agent.id)
    )


def _state(office: Office, agent: Agent) -> State:
    return "paused" if os.path.lexists(os.path.join(office.turn_home(agent.id), "state")) else "active"


def _origin(office: Office, instance_id: str) -> Origin | None:
    path = os.path.join(office.turn_home(instance_id), "origin.json")
    try:
        with open(durable.open_regular(path), "rb") as stream:
            found = json.loads(stream.read(_MAX_BYTES))
        return Origin(str(found["correlation_id"]), str(found["asker"]), str(found["message_id"]))
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise DiskFault(f"{path}: cannot be read: {fault.strerror}") from fault
    except (ValueError, KeyError, TypeError) as fault:
        raise DiskFault(f"{path}: damaged; look what it says, then remove it: {fault}") from fault
