"""Reading the command lines that start runs: of crontabs (crontab(5)), of units, of processes.

The office that a line is about is that of `--root`, else of $POSTMASTER_ROOT as the line or the crontab sets it, else
the default of the account. Where nobody can tell, the root is empty.
"""

import os
import pwd
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from postmaster import shell_words
from postmaster.errors import ConfigurationFault
from postmaster.office import DEFAULT_ROOT, ENVIRONMENT, absolute
from postmaster.shell_words import ASSIGNMENT, UNKNOWN, Command

PATH: Final = "/usr/bin:/bin"  # of cron (crontab(5))
_FIELDS: Final = re.compile(r"(@\w+|\S+(?:\s+\S+){4})\s+(.*)", re.DOTALL)
_LOOP: Final = re.compile(r"\b(?:while|until)\b")
_ROUTES: Final = ("route", "cycle", "watch")
_STEPS: Final = (*_ROUTES, "carry", "wake")
_IDLE: Final = frozenset(("--dry-run", "--help", "-h", "--version"))  # with these nothing is done


@dataclass(frozen=True, slots=True)
class Starter:
    """Something that starts runs of an office.

    Attributes:
        source: `crontab`, the path of a system crontab or of a unit, or `process N`.
        account: whose it runs as.
        text: the line, the unit's command, or the command line.
        root: the office, links followed; empty where nobody can tell which.
        program: what is run; empty where nobody can tell.
        steps: which commands of ours (`route`, `cycle`, `watch`, `carry`, `wake`).
        path: the PATH that its commands are looked for in; empty where nobody can tell.
        marked: `postmaster cron` knows the line as its own.
        trouble: why it starts nothing: `program`, `lingering`, `systemd`, `stopped`; empty if it can.
    """

    source: str
    account: str
    text: str
    root: str
    program: str
    steps: tuple[str, ...]
    path: str = PATH
    marked: bool = False
    trouble: str = ""

    @property
    def routes(self) -> bool:
        """Whether it takes mail out of the outbox."""
        return any(step in _ROUTES for step in self.steps)

    @property
    def is_unit(self) -> bool:
        """Whether systemd has to run for it."""
        return self.source.endswith((".timer", ".path", ".service"))

    @property
    def is_cron(self) -> bool:
        """Whether cron has to run for it."""
        return not self.source.startswith("process ") and not self.is_unit


def account_name(uid: int) -> str:
    """Return the name of an account, or its number as text."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def of_crontab(source: str, text: str, account: str, *, system: bool) -> Iterator[Starter]:
    """Yield the lines of a crontab that start runs. A system crontab names the account after the five fields."""
    variables: dict[str, str] = {}
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#"):
            continue
        assigned = ASSIGNMENT.fullmatch(line)
        if assigned is not None:
            variables[assigned[1]] = assigned[2].strip().strip("\"'")
            continue
        found = _FIELDS.fullmatch(line)
        if found is None or "postmaster" not in line:
            continue
        user, command = account, found[2]
        if system:
            user, command = (*command.split(None, 1), "")[:2]
        command = re.split(r"(?<!\\)%", command)[0].replace("\\%", "%")
        marked = source == "crontab" and " # postmaster " in line
        start = Command(user, home_of(user), home_of(user), {"PATH": PATH, **variables})
        yield from of_command(source, line, command, start, marked=marked, once=found[1] == "@reboot")


def of_command(
    source: str, line: str, text: str, start: Command, *, marked: bool = False, once: bool = False
) -> Iterator[Starter]:
    """Yield one starter for each office that a command routes; with `once` what it does a single time is none."""
    found: dict[str, Starter] = {}
    try:
        read = [one for command in shell_words.read(text, start) if (one := of_words(source, line, command))]
    except ValueError:  # an open quote: the shell would not run it either
        read = [Starter(source, start.account, line, "", "", ("route",))]
    for one in read:
        if once and "watch" not in one.steps and not _LOOP.search(text):
            continue
        before = found.get(one.root, one)
        steps = (*before.steps, *one.steps) if one.root in found else one.steps
        found[one.root] = Starter(
            source, one.account, line, one.root, before.program, steps, before.path, marked, one.trouble
        )
    yield from found.values()


def of_words(source: str, line: str, command: Command) -> Starter | None:
    """Return what a command starts; None if it is no run of ours."""
    words = command.words
    at = next((number for number, word in enumerate(words) if _is_ours(words, number)), None)
    if at is None:
        return Starter(source, command.account, line, "", "", ("route",)) if _may_be_ours(words) else None
    rest, given = list(words[at + 1 :]), None
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option == "--root" and rest:
            given = rest.pop(0)
        elif option.startswith("--root="):
            given = option.removeprefix("--root=")
        elif option in _IDLE:
            return None
    step = "route" if words[at].endswith("postmaster.sh") else rest[0] if rest else ""
    if step not in _STEPS or _IDLE.intersection(rest):
        return None
    program = words[0]
    program = command.at(program) if "/" in program else program
    path = command.variables.get("PATH", PATH) if command.settled else ""
    return Starter(
        source,
        command.account,
        line,
        _root(given, command),
        "" if UNKNOWN in program else program,
        (step,),
        "" if UNKNOWN in path else path,
    )


def _root(given: str | None, command: Command) -> str:
    """Return the office that a command is about, links followed; empty if nobody can tell."""
    named = given or (command.variables.get(ENVIRONMENT) if command.settled else UNKNOWN) or DEFAULT_ROOT
    try:
        root = command.at(absolute(command.expand(named), command.directory))
    except ConfigurationFault:
        return ""
    return "" if UNKNOWN in root else os.path.realpath(root)


def _is_ours(words: tuple[str, ...], number: int) -> bool:
    if os.path.basename(words[number]) in ("postmaster", "postmaster.sh"):
        return number == 0 or words[number - 1] != "--root"
    return False


def _may_be_ours(words: tuple[str, ...]) -> bool:
    """Tell whether a program that is not known to us may route: a script with our name in its own."""
    if any(UNKNOWN in word for word in words[:1]):
        return any(word in _STEPS for word in words)
    return any("postmaster" in os.path.basename(word) for word in words[:1]) or (
        len(words) > 1 and os.path.basename(words[0]) in ("sh", "bash", "dash") and "postmaster" in words[1]
    )


def home_of(account: str) -> str:
    """Return the home directory of an account."""
    own = os.environ.get("HOME")
    if own and account == account_name(os.geteuid()):
        return own
    try:
        return pwd.getpwnam(account).pw_dir
    except KeyError:
        return "/nonexistent"
