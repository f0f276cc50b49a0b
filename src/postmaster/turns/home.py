"""What an instance's turns keep on disk, below turns/<instance id>/, and the locks that make them one at a time.

`lock` is held by whoever takes a turn (flock(2)). `running` is held by the command itself and all that it starts, which
inherit it: what a killed runner leaves behind never runs beside the next turn. `state.json` holds the attempts, the
turn that is under way, and the last one; `commit.json` a turn that has ended and is being carried out.
"""

import contextlib
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from postmaster import durable, maildir
from postmaster.errors import DiskFault
from postmaster.locks import locked
from postmaster.office import Office, is_held


@dataclass(slots=True)
class State:
    """What is known of an instance's turns.

    Attributes:
        attempts: for each message (its file name) that a turn was begun with: how often, and when it may be tried again
            (nanoseconds since the epoch).
        current: the turn that is under way, or was when its runner was killed: `turn`, `names`, `lines`, `since`.
        last: the last turn that ended: `turn`, `time`, `exit`, `outcome`.
    """

    attempts: dict[str, tuple[int, int]] = field(default_factory=dict)
    current: dict[str, Any] | None = None
    last: dict[str, Any] | None = None

    def next_try(self, name: str) -> int:
        """Return when a message may be tried again; 0 if at once."""
        return self.attempts.get(name, (0, 0))[1]


class Home:
    """The directory of an instance's turns. Making this object touches no disk."""

    def __init__(self, office: Office, instance_id: str) -> None:
        self.path = office.turn_home(instance_id)
        self.lock_file = os.path.join(self.path, "lock")
        self.running_file = os.path.join(self.path, "running")
        self.state_file = os.path.join(self.path, "state.json")
        self.commit_file = os.path.join(self.path, "commit.json")
        self.staged = os.path.join(self.path, "staged")
        self.stdin, self.stdout, self.stderr = (os.path.join(self.path, name) for name in ("stdin", "stdout", "stderr"))

    def stage(self, turn: str) -> str:
        """Return where the letters of a turn wait for its end."""
        return os.path.join(self.staged, turn)

    def read_state(self) -> State:
        """Return the state. Raises DiskFault if it cannot be read."""
        found = self._read(self.state_file)
        if found is None:
            return State()
        return state_of(found)

    def write_state(self, state: State) -> None:
        """Write the state durably. Raises OSError."""
        durable.replace(self.state_file, json.dumps(asdict(state)).encode("ascii"))

    def read_commit(self) -> dict[str, Any] | None:
        """Return the turn that has ended and is not carried out. Raises DiskFault if it cannot be read."""
        return self._read(self.commit_file)

    def _read(self, path: str) -> dict[str, Any] | None:
        try:
            with open(durable.open_regular(path), "rb") as stream:
                found = json.loads(stream.read())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as fault:
            raise DiskFault(f"{path}: cannot be read: {fault}") from fault
        if not isinstance(found, dict):
            raise DiskFault(f"{path}: damaged; look what it says, then remove it")
        return found

    def is_running(self) -> bool:
        """Tell whether anything that a turn has started runs, without waiting."""
        return is_held(self.running_file)


def state_of(found: dict[str, Any]) -> State:
    """Return the state that `asdict` gave."""
    attempts = {str(name): (int(one[0]), int(one[1])) for name, one in found.get("attempts", {}).items()}
    return State(attempts, found.get("current"), found.get("last"))


def unread(inbox: str) -> list[str]:
    """Return the names of an instance's unread messages in the order in which they were delivered.

    That is the order of the numbers of each flow too, also where a letter that came later says that it was sent before.
    The names alone would put messages of one second in the order of their sums.
    """
    found = []
    for name in maildir.messages(inbox, maildir.UNREAD):
        with contextlib.suppress(FileNotFoundError):  # acknowledged by hand just now
            found.append((os.lstat(os.path.join(inbox, maildir.UNREAD, name)).st_mtime_ns, name))
    return [name for _, name in sorted(found)]


@contextlib.contextmanager
def slot(office: Office, class_id: str, places: int | None) -> Iterator[bool]:
    """Hold one of the places that a class has for turns at once; False if all are taken. None: any number."""
    if places is None:
        yield True
        return
    for number in range(places):
        with locked(os.path.join(office.turn_home(class_id), f"slot-{number}")) as descriptor:
            if descriptor is not None:
                yield True
                return
    yield False
