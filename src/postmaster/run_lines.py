"""Reading the command lines that start runs: of crontabs (crontab(5)), of units, of processes.

The office that a line is about is that of `--root`, else of $POSTMASTER_ROOT as the line or the crontab sets it, else
the default of the account.
"""

import contextlib
import os
import pwd
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from postmaster.errors import ConfigurationFault
from postmaster.office import DEFAULT_ROOT, ENVIRONMENT, absolute

_FIELDS: Final = re.compile(r"(@\w+|\S+(?:\s+\S+){4})\s+(.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*)")
_ROUTES: Final = ("route", "cycle", "watch")
_STEPS: Final = (*_ROUTES, "carry", "wake")


@dataclass(frozen=True, slots=True)
class Starter:
    """Something that starts runs of an office.

    Attributes:
        source: `crontab`, the path of a system crontab or of a unit, or `process N`.
        account: whose it runs as.
        text: the line, the unit's command, or the command line.
        root: the office.
        program: what is run.
        steps: which commands of ours (`route`, `cycle`, `watch`, `carry`, `wake`).
        path: the PATH that its commands are looked for in.
        marked: `postmaster cron` knows the line as its own.
    """

    source: str
    account: str
    text: str
    root: str
    program: str
    steps: tuple[str, ...]
    path: str = "/usr/bin:/bin"
    marked: bool = False

    @property
    def routes(self) -> bool:
        """Whether it takes mail out of the outbox."""
        return any(step in _ROUTES for step in self.steps)

    @property
    def is_cron(self) -> bool:
        """Whether cron has to run for it."""
        return not self.source.startswith("process ") and not self.source.endswith((".timer", ".path", ".service"))


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
        assigned = _ASSIGNMENT.fullmatch(line)
        if assigned is not None:
            variables[assigned[1]] = assigned[2].strip().strip("\"'")
            continue
        found = _FIELDS.fullmatch(line)
        if found is None or "postmaster" not in line:
            continue
        user, command = account, found[2]
        if system:
            user, _, command = command.partition(" ")
        command = re.split(r"(?<!\\)%", command)[0].replace("\\%", "%")
        marked = source == "crontab" and " # postmaster " in line
        yield from of_command(source, user, line, command, variables, marked=marked)


def of_command(
    source: str, account: str, line: str, command: str, variables: dict[str, str], *, marked: bool
) -> Iterator[Starter]:
    """Yield one starter for each office that a command routes."""
    found: dict[str, Starter] = {}
    for words in _commands(command):
        read = read_command(words, account, variables)
        if read is None:
            continue
        root, program, step = read
        steps = (*found[root].steps, step) if root in found else (step,)
        first = found[root].program if root in found else program
        path = variables.get("PATH", "/usr/bin:/bin")
        found[root] = Starter(source, account, line, root, first, steps, path, marked)
    yield from found.values()


def _commands(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a shell command, as words."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars=";&|()")
    lexer.whitespace_split = True
    words: list[str] = []
    with contextlib.suppress(ValueError):  # an open quote: the shell would not run it either
        for word in lexer:
            if word and set(word) <= set(";&|()"):
                yield words
                words = []
            else:
                words.append(word)
    yield words


def read_command(words: Sequence[str], account: str, variables: dict[str, str]) -> tuple[str, str, str] | None:
    """Return the office, the program and the command that words start; None if they start no run of ours."""
    environment = dict(variables)
    words = list(words)
    while words and (assigned := _ASSIGNMENT.fullmatch(words[0])):
        environment[assigned[1]] = assigned[2]
        words.pop(0)
    at = next((number for number, word in enumerate(words) if _is_ours(words, number, word)), None)
    if at is None:
        return None
    rest = words[at + 1 :]
    script = words[at].endswith("postmaster.sh")
    step = "route" if script else next((word for word in rest if word in _STEPS), None)
    if step is None:
        return None
    given = None
    for number, word in enumerate(rest):
        if word == "--root" and number + 1 < len(rest):
            given = rest[number + 1]
        elif word.startswith("--root="):
            given = word.removeprefix("--root=")
    home = home_of(account)
    root = (given or environment.get(ENVIRONMENT) or DEFAULT_ROOT).replace("$HOME", home)
    root = home + root[1:] if root == "~" or root.startswith("~/") else root
    with contextlib.suppress(ConfigurationFault):
        return absolute(root, home), words[0], step
    return None


def _is_ours(words: Sequence[str], number: int, word: str) -> bool:
    if os.path.basename(word) in ("postmaster", "postmaster.sh"):
        return word != "postmaster" or number == 0 or words[number - 1] != "--root"
    return False


def home_of(account: str) -> str:
    own = os.environ.get("HOME")
    if own and account == account_name(os.geteuid()):
        return own
    try:
        return pwd.getpwnam(account).pw_dir
    except KeyError:
        return "/nonexistent"
