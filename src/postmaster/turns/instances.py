"""The instances that take turns: who they are, where their mail and their disk are, in which state they are.

On disk, below turns/<instance id>/: `disk/` (the working directory of its turns), `origin.json` (set once), `paused`
(there while it is). An instance that was archived is terminated.
"""

import json
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Final, Literal, Union

from postmaster import address, durable, maildir, message, per_flow, reading
from postmaster.directory.view import DirectoryView
from postmaster.errors import BadData, CannotCreate, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent
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
        has_instances: it is a class that has an instance for each flow, and takes no turns itself.
    """

    id: str
    address: str
    class_id: str
    inbox: str
    disk: str
    state: State
    origin: Origin | None = None
    has_instances: bool = False


def find(office: Office, view: View, name: str) -> Instance:
    """Return the instance that `name` (an id, an address or a live name) names, whatever its state.

    Raises:
        BadData: nobody; says who may have been meant.
        DiskFault: its state cannot be read.
    """
    return _instance(office, reading.find_agent(view, name))


def require_turns(view: View, instance: Instance) -> None:
    """Raise BadData for one that was archived, or whose declaration has no `run`."""
    if instance.state == TERMINATED:
        raise BadData(f"{instance.id} was archived: it takes no turns any more, and its mail is refused")
    entry = view.entry(instance.class_id)
    if entry is None or not entry.get("run"):
        raise BadData(
            f"{instance.id} takes no turns: the declaration of {instance.class_id} has no `run`; write "
            "`run: [a-program, its-arguments]` there, then `postmaster registry merge`"
        )


def require_one(instance: Instance) -> None:
    """Raise BadData for a class that has an instance for each flow: it is not said whose turn is meant."""
    if instance.has_instances:
        raise BadData(
            f"{instance.id} has an instance for each flow: say which (`postmaster turns` lists those that are there)"
        )


def runnable(office: Office, view: View, on_fault: Callable[[str], None]) -> Iterator[Instance]:
    """Yield every instance of an agent with `run` that is not terminated.

    Args:
        on_fault: told of an instance whose state cannot be read; the others are no worse for it.

    A class that has an instance for each flow takes no turns itself; any other class does, with its own mail.
    """
    running = {address.fold(agent_id) for agent_id in view.running()}
    for agent in view.all_agents() if running else ():
        declares = agent.class_id or agent.id
        if address.fold(declares) in running:
            try:
                found = _instance(office, agent)
            except DiskFault as fault:
                on_fault(f"{agent.id}: {fault}")
                continue
            if not found.has_instances:
                yield found


def begin_origin(office: Office, instance: Instance, first: Origin) -> Instance:
    """Set the origin of an instance, once and for all; return the instance with the origin that it has.

    Commit point: a rename that replaces nothing. Of two at once one is first, and both get its origin.

    Args:
        first: what the first message that it takes says. The instance for a flow has that flow as its origin all the
            same, and who began it is looked up in its mailbox.

    Raises:
        CannotCreate: the disk refused.
    """
    if instance.origin is not None:
        return instance
    first = _flow_began(instance, first)
    home = office.turn_home(instance.id)
    path = os.path.join(home, "origin.json")
    temporary = os.path.join(home, f"{durable.TEMPORARY}{os.getpid()}-origin-{threading.get_native_id()}")
    try:
        durable.make_directories(home)
        for name in maildir.stale_temporaries(home):
            if not name.startswith(f"{durable.TEMPORARY}{os.getpid()}-"):
                durable.remove(os.path.join(home, name))
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


def _flow_began(instance: Instance, first: Origin) -> Origin:
    """Return the origin of an instance for a flow: the earliest message of that flow in its mailbox."""
    parts = per_flow.split_id(instance.id)
    if parts is None or instance.class_id == instance.id or per_flow.key(first.correlation_id) == parts[1]:
        return first
    named = [item for folder in (maildir.READ, maildir.UNREAD) for item in reading.names(instance.inbox, folder)]
    for item in sorted(named, key=lambda one: one.name):
        try:
            _, found = reading.load_wherever(instance.inbox, item, message.HEAD_BYTES)
        except OSError:
            continue
        flow, sender, message_id = (found.text(name) for name in ("correlation_id", "from", "id"))
        if flow and sender and message_id and per_flow.key(flow) == parts[1]:
            return Origin(flow, sender, message_id)
    return first


# -- the state -----------------------------------------------------------------------------------------------------


def pause(office: Office, instance: Instance) -> bool:
    """Let the mail of an instance, or of all instances of a class, wait; return whether it did not already.

    Commit point: the name of a file. A turn that is under way ends as it would.

    Raises:
        CannotCreate: the disk refused.
    """
    path = _paused_path(office, instance.id)
    if os.path.lexists(path):
        return False
    try:
        durable.make_directories(os.path.dirname(path))
        durable.replace(path, b"")
    except OSError as fault:
        raise CannotCreate(f"{fault.filename or path}: {fault.strerror}") from fault
    return True


def resume(office: Office, instance: Instance) -> bool:
    """Let an instance take turns again; return whether it was paused.

    Raises:
        DiskFault: the disk refused.
    """
    path = _paused_path(office, instance.id)
    try:
        os.unlink(path)
        durable.sync_directory(os.path.dirname(path))
    except FileNotFoundError:
        return False
    except OSError as fault:
        raise DiskFault(f"{path}: {fault.strerror}") from fault
    return True


def is_paused(office: Office, instance_id: str) -> bool:
    """Tell whether an instance or its class is paused. Cheap: to be asked again once the instance's lock is held."""
    class_id = instance_id.partition("+")[0]
    return any(os.path.lexists(_paused_path(office, one)) for one in dict.fromkeys((instance_id, class_id)))


def _paused_path(office: Office, instance_id: str) -> str:
    return os.path.join(office.turn_home(instance_id), "paused")


# -- its directory -------------------------------------------------------------------------------------------------


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
        agent.id,
        agent.address,
        agent.class_id or agent.id,
        agent.inbox,
        disk,
        state,
        _origin(office, agent.id),
        agent.per_flow and agent.class_id is None,
    )


def _state(office: Office, agent: Agent) -> State:
    if agent.terminated:
        return "terminated"
    return "paused" if is_paused(office, agent.id) else "active"


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
