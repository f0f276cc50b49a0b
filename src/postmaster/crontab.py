"""The crontab line that runs the router, and putting it into the user's crontab.

Cron gives a command almost no environment (crontab(5)): every path in the line is absolute and quoted, `%` is escaped
because cron would end the command there, and a comment marks the line as that of one office.
"""

import errno
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postmaster.errors import ConfigurationFault, UsageProblem
from postmaster.office import Office

DEFAULT_MINUTES: Final = 10
_SECONDS: Final = 20.0  # for one run of crontab
_NONE_YET: Final = re.compile(rb"no crontab for|can't open .*: No such file")

Run = Callable[[list[str], bytes | None], "subprocess.CompletedProcess[bytes]"]


def run(command: list[str], data: bytes | None) -> "subprocess.CompletedProcess[bytes]":
    """Run a program with `data` on its standard input."""
    environment = {**os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(  # noqa: S603
            command, input=data or b"", capture_output=True, env=environment, timeout=_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as fault:
        raise TimeoutError(errno.ETIMEDOUT, f"no end after {_SECONDS:g} seconds") from fault


def schedule(minutes: int) -> str:
    """Return the five fields of a crontab line that runs every so many minutes.

    Raises:
        UsageProblem: cron has no such step.
    """
    if minutes == 1:
        return "* * * * *"
    if 1 < minutes < 60 and 60 % minutes == 0:
        return f"*/{minutes} * * * *"
    hours, rest = divmod(minutes, 60)
    if rest == 0 and hours == 1:
        return "0 * * * *"
    if rest == 0 and hours == 24:
        return "0 0 * * *"
    if rest == 0 and 1 < hours < 24 and 24 % hours == 0:
        return f"0 */{hours} * * *"
    steps = [n for n in range(1, 60) if 60 % n == 0] + [60 * n for n in range(1, 25) if 24 % n == 0]
    near = min(steps, key=lambda step: (abs(step - minutes), step))
    raise UsageProblem(
        f"cron cannot run something every {minutes} minutes: its steps begin anew each hour and day; try --every {near}"
    )


def command(office: Office, *job: str) -> list[str]:
    """Return a command for this office: this very interpreter, kept from importing from where it starts.

    Not the `postmaster` script: another program of that name may stand beside the interpreter.

    Raises:
        ConfigurationFault: the interpreter does not know its own path.
    """
    if not sys.executable:
        raise ConfigurationFault("the Python interpreter does not know its own path; write the crontab line by hand")
    return [os.path.abspath(sys.executable), "-P", "-m", "postmaster", "--root", office.root, *job]


@dataclass(frozen=True, slots=True)
class Job:
    """What is run every so many minutes.

    Attributes:
        turns: agents take their turns too: `cycle` in place of `route`.
        carries: mail is exchanged with other offices, between two of these.
    """

    minutes: int = DEFAULT_MINUTES
    turns: bool = False
    carries: bool = False

    @property
    def steps(self) -> list[tuple[str, ...]]:
        """The commands, one after the other, whatever the one before ends with."""
        seconds = str(self.minutes * (20 if self.carries else 50))
        route = ("cycle", "--max-seconds", seconds) if self.turns else ("route",)
        return [route, ("carry",), route] if self.carries else [route]


def line(office: Office, job: Job) -> bytes:
    """Return the crontab line, without its newline.

    Raises:
        ConfigurationFault: a path cannot stand in a crontab.
        UsageProblem: cron has no such step.
    """
    commands = [command(office, *step) for step in job.steps]
    for word in commands[0]:
        if "\n" in word or "\r" in word:
            raise ConfigurationFault(f"{word!a}: a path with a line break cannot stand in a crontab; rename it")
    text = os.fsencode("; ".join(map(shlex.join, commands)))
    return schedule(job.minutes).encode() + b" " + text.replace(b"%", rb"\%") + b" " + _marker(office)


def _marker(office: Office) -> bytes:
    return b"# postmaster " + os.fsencode(office.root).replace(b"%", rb"\%")


def _is_ours(found: bytes, office: Office) -> bool:
    """Tell whether a line is this office's; one that was commented out belongs to the user."""
    return found.rstrip(b"\r\n").endswith(b" " + _marker(office)) and not found.lstrip().startswith(b"#")


def read(run: Run = run) -> bytes:
    """Return the user's crontab; it is empty if there is none.

    Raises:
        ConfigurationFault: there is no crontab program, or it refuses.
    """
    done = _crontab(["crontab", "-l"], None, run)
    if done.returncode == 0:
        return done.stdout
    if _NONE_YET.search(done.stderr):
        return b""
    raise ConfigurationFault(f"`crontab -l` failed ({done.returncode}): {_words(done.stderr)}")


def write(content: bytes, run: Run = run) -> None:
    """Replace the user's crontab.

    Raises:
        ConfigurationFault: there is no crontab program, or it refuses.
    """
    done = _crontab(["crontab", "-"], content, run)
    if done.returncode != 0:
        raise ConfigurationFault(f"`crontab -` failed ({done.returncode}): {_words(done.stderr)}")


def _crontab(arguments: list[str], data: bytes | None, run: Run) -> "subprocess.CompletedProcess[bytes]":
    try:
        return run(arguments, data)
    except OSError as fault:
        raise ConfigurationFault(f"the program `crontab` cannot be run: {fault.strerror}") from fault


def _words(stderr: bytes) -> str:
    return " ".join(stderr.decode("utf-8", "backslashreplace").split()) or "it does not say why"


def install(office: Office, job: Job, run: Run = run) -> bool:
    """Put the line into the user's crontab, in the place of an older one; False if it is there already.

    Raises:
        ConfigurationFault: it cannot be done; the message has the line, for the user to put it there.
    """
    wanted = line(office, job)
    try:
        _check_starts(office, run)
        before = read(run)
        after = with_line(before, wanted, office)
        if after != before:
            write(after, run)
    except ConfigurationFault as fault:
        text = wanted.decode("utf-8", "backslashreplace")
        raise ConfigurationFault(
            f"{fault}\nthe line to put into the crontab yourself (`crontab -e`):\n{text}"
        ) from fault
    return after != before


def _check_starts(office: Office, run: Run) -> None:
    """Make sure that the command starts without the environment of this shell."""
    start = [*command(office)[:-2], "--version"]
    try:
        done = run(["/usr/bin/env", "-i", *start], None)
    except OSError as fault:
        raise ConfigurationFault(f"/usr/bin/env cannot be run: {fault.strerror}") from fault
    if done.returncode != 0:
        why = _words(done.stderr.splitlines()[-1] if done.stderr else b"")
        raise ConfigurationFault(
            f"`{shlex.join(start)}` does not start with an empty environment, as under cron: {why}"
        )


def remove(office: Office, run: Run = run) -> bool:
    """Take this office's line out of the user's crontab; False if it is not there.

    Raises:
        ConfigurationFault: it cannot be done.
    """
    before = read(run)
    after = with_line(before, None, office)
    if after != before:
        write(after, run)
    return after != before


def with_line(content: bytes, wanted: bytes | None, office: Office) -> bytes:
    """Return a crontab with `wanted` as this office's only line (None: without one); the others stay byte for byte."""
    kept: list[bytes] = []
    placed = wanted is None
    for found in content.splitlines(keepends=True):
        if not _is_ours(found, office):
            kept.append(found)
        elif not placed and wanted is not None:
            kept.append(wanted + b"\n")
            placed = True
    if not placed and wanted is not None:
        if kept and not kept[-1].endswith(b"\n"):
            kept[-1] += b"\n"
        kept.append(wanted + b"\n")
    return b"".join(kept)
