"""Running the commands that a declaration names: no shell, a time limit, nothing of a message on the command line
but the text that `nudging` makes.
"""

import contextlib
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO, Final

_PLACEHOLDER: Final = re.compile(r"\{(text|agent|name|unread|inbox|root)\}")
_SAID_BYTES: Final = 400  # of what a failing command wrote on stderr


@dataclass(frozen=True, slots=True)
class Ending:
    """How a command ended. `code` is None if it was not started or not let run to its end; then `why` says so."""

    code: int | None
    why: str = ""

    def __bool__(self) -> bool:
        return self.code == 0


@dataclass(slots=True)
class Errands:
    """Runs commands, from several threads at once. `stop` ends those that run and lets no more begin."""

    directory: str
    seconds: float
    _running: set[int] = field(default_factory=set)
    _stopped: bool = False
    _guard: threading.Lock = field(default_factory=threading.Lock)

    def run(self, command: Sequence[str], values: Mapping[str, str]) -> Ending:
        """Run a command and wait for its end, or kill it and all its children when the time is over.

        Args:
            values: what stands for ``{text}`` and the other placeholders in the arguments; for the command itself
                they are in its environment as ``POSTMASTER_TEXT`` and so on.
        """
        program = os.path.expanduser(command[0])
        arguments = [program, *(_filled(one, values) for one in command[1:])]
        environment = os.environ | {f"POSTMASTER_{name.upper()}": value for name, value in values.items()}
        with _scratch() as said:
            try:
                with self._guard:
                    if self._stopped:
                        return Ending(None, "we were told to stop")
                    process = subprocess.Popen(  # noqa: S603
                        arguments,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.DEVNULL,
                        stderr=said if said is not None else subprocess.DEVNULL,
                        cwd=self.directory,
                        env=environment,
                        start_new_session=True,  # so that its children can be killed with it
                    )
                    self._running.add(process.pid)
            except (OSError, ValueError) as fault:
                why = fault.strerror or str(fault) if isinstance(fault, OSError) else str(fault)
                return Ending(None, f"{program} cannot be run: {why}")
            try:
                code = process.wait(self.seconds)
            except subprocess.TimeoutExpired:
                _kill(process.pid)
                process.wait()
                return Ending(None, f"{program} was killed after {self.seconds:g} seconds")
            except BaseException:
                _kill(process.pid)
                raise
            finally:
                with self._guard:
                    self._running.discard(process.pid)
            if code == 0:
                return Ending(0)
            how = f"ended with {code}" if code > 0 else f"was killed by signal {-code}"
            return Ending(code, f"{program} {how}{_last_words(said)}")

    def stop(self) -> None:
        """Kill what runs, and begin nothing more."""
        with self._guard:
            self._stopped = True
            for pid in self._running:
                _kill(pid)


def _filled(argument: str, values: Mapping[str, str]) -> str:
    return _PLACEHOLDER.sub(lambda match: values[match[1]], argument)


def _kill(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


@contextlib.contextmanager
def _scratch() -> Iterator[IO[bytes] | None]:
    """Yield a file for what a command says; None where none can be made. No pipe: a child that stays would hold it."""
    try:
        stream: IO[bytes] | None = tempfile.TemporaryFile()  # noqa: SIM115
    except OSError:
        stream = None
    try:
        yield stream
    finally:
        if stream is not None:
            stream.close()


def _last_words(said: IO[bytes] | None) -> str:
    if said is None:
        return ""
    said.seek(0)
    text = " ".join(said.read(_SAID_BYTES).decode("utf-8", "replace").split())
    return f": {text}" if text else ""
