"""Running an agent's command: without a shell, in a session of its own, never outliving its runner or its time."""

import contextlib
import ctypes
import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from postmaster.turns import inside
from postmaster.turns.home import Home

_PR_SET_PDEATHSIG: Final = 1  # prctl(2)
_GRACE_SECONDS: Final = 5.0  # between TERM and KILL
_ORPHAN_SECONDS: Final = 3.0
_CANNOT_RUN: Final = 127  # as the shell says
_libc: Final = ctypes.CDLL(None, use_errno=True)
_prctl: Final = getattr(_libc, "prctl", None)


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended. `code` is negative for a signal; `timed_out`: it was ended by us."""

    code: int
    timed_out: bool = False

    @property
    def shown(self) -> str:
        """In words."""
        if self.timed_out:
            return "timed out"
        return f"exit {self.code}" if self.code >= 0 else f"killed by signal {-self.code}"


def run(
    argv: Sequence[str], home: Home, disk: str, environment: Mapping[str, str], running: int, timeout: float | None
) -> Ended:
    """Run a command to its end: stdin, stdout and stderr are files of `home`, the working directory is `disk`.

    Whatever it has started and left in its process group is killed when it ends; when its time is over, all that it has
    started is.

    Args:
        running: the descriptor of the lock that the command and all that it starts hold.
        timeout: seconds, after which its process group gets TERM, then KILL.
    """
    runner = os.getpid()
    child = os.fork()
    if child == 0:
        _become(argv, home, disk, environment, running, runner)
    try:
        timed_out = not _wait(child, timeout)
        if timed_out:
            _signal(child, signal.SIGTERM)
            _wait(child, _GRACE_SECONDS)
    finally:
        _signal(child, signal.SIGKILL)  # it, and what is left of its group: its number is in use until it is reaped
        _, status = os.waitpid(child, 0)
    if timed_out:
        _kill_turn(environment.get(inside.TURN, ""))
    return Ended(os.waitstatus_to_exitcode(status), timed_out)


def end_orphans(home: Home) -> None:
    """Kill what an earlier turn has started and runs still, though its runner is gone. The instance's lock is held.

    They are known by the turn in their environment (proc(5)); where that cannot be read they hold the lock until they
    end by themselves. A turn whose runner was killed is looked for also where nobody holds the lock: many programs
    close what their children would inherit.
    """
    state = home.read_state()
    if state.current is not None or home.is_running():
        _end_all(str((state.current or state.last or {}).get("turn", "")), home)


def _end_all(turn: str, home: Home) -> None:
    """Kill every process of a turn, and wait until they have gone, for a while."""
    end = time.monotonic() + _ORPHAN_SECONDS
    while turn and time.monotonic() < end:
        if not _kill_turn(turn) and not home.is_running():
            return
        time.sleep(0.02)


def _kill_turn(turn: str) -> int:
    """Kill every process of a turn; return how many there were."""
    found = _of_turn(turn)
    for number in found:
        with contextlib.suppress(OSError):
            os.kill(number, signal.SIGKILL)
    return len(found)


def _of_turn(turn: str) -> list[int]:
    """Return the processes that have this turn in their environment."""
    mark = f"{inside.TURN}={turn}".encode()
    found = []
    for name in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if name.isdecimal() and int(name) != os.getpid():
            with contextlib.suppress(OSError), open(f"/proc/{name}/environ", "rb") as stream:
                if mark in stream.read().split(b"\0"):
                    found.append(int(name))
    return found


def _become(
    argv: Sequence[str], home: Home, disk: str, environment: Mapping[str, str], running: int, runner: int
) -> NoReturn:
    """Be the child: the command, or an end with the reason on its stderr."""
    try:
        os.setsid()
        if _prctl is not None:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != runner:
            os._exit(_CANNOT_RUN)  # the runner died before we could hear of it
        for number, path, flags in (
            (0, home.stdin, os.O_RDONLY),
            (1, home.stdout, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW),
            (2, home.stderr, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_APPEND),
        ):
            descriptor = os.open(path, flags, 0o600)
            os.dup2(descriptor, number)
            if descriptor != number:
                os.close(descriptor)
        os.chdir(disk)
        os.set_inheritable(running, True)
        for name in (signal.SIGPIPE, signal.SIGINT, signal.SIGIO):
            signal.signal(name, signal.SIG_DFL)
        program = os.path.expanduser(argv[0]) if os.sep in argv[0] else argv[0]
        os.execvpe(program, [program, *argv[1:]], dict(environment))  # noqa: S606 - a program and its arguments, no shell
    except BaseException as fault:
        with contextlib.suppress(BaseException):
            why = fault.strerror if isinstance(fault, OSError) else str(fault)
            os.write(2, f"{argv[0]}: cannot be run: {why}\n".encode("utf-8", "backslashreplace"))
        os._exit(_CANNOT_RUN)


def _wait(child: int, seconds: float | None) -> bool:
    """Wait until the child has ended, without reaping it; False when the time is over."""
    end = None if seconds is None else time.monotonic() + seconds
    try:
        watched = os.pidfd_open(child)
    except (AttributeError, OSError):
        return _poll(child, end)
    try:
        poller = select.poll()
        poller.register(watched, select.POLLIN)
        return bool(poller.poll(None if seconds is None else max(0, int(seconds * 1000))))
    finally:
        os.close(watched)


def _poll(child: int, end: float | None) -> bool:
    while os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT | os.WNOHANG) is None:
        if end is not None and time.monotonic() >= end:
            return False
        time.sleep(0.02)
    return True


def _signal(child: int, number: int) -> None:
    for send in (os.killpg, os.kill):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            send(child, number)
            return
