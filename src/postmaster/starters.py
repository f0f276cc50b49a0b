"""What starts the runs of an office: lines of crontabs, units of systemd, a `watch` that is at work. Changes nothing.

Read are the account's crontab (crontab(1)), /etc/crontab and /etc/cron.d (crontab(5)), for root the crontabs of other
accounts, the units that are enabled (the links in `*.wants/`, systemd.unit(5)), and the processes (proc(5)).
"""

import contextlib
import os
import pwd
import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from postmaster import crontab
from postmaster.errors import ConfigurationFault
from postmaster.office import DEFAULT_ROOT, ENVIRONMENT, Office, absolute

_SYSTEM_CRONTABS: Final = ("/etc/crontab", "/etc/cron.d")
_SPOOLS: Final = ("/var/spool/cron/crontabs", "/var/spool/cron")
_UNITS: Final = ("/etc/systemd/system", "/etc/systemd/user")
_CRON_DAEMONS: Final = frozenset({"cron", "crond", "fcron", "dcron", "bcron-start"})
_CRON_GENERATOR: Final = "/usr/lib/systemd/system-generators/systemd-crontab-generator"  # systemd-cron has no daemon
_FIELDS: Final = re.compile(r"(@\w+|\S+(?:\s+\S+){4})\s+(.*)", re.DOTALL)
_ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*)")
_ROUTES: Final = ("route", "cycle", "watch")
_STEPS: Final = (*_ROUTES, "carry", "wake")
_INTERPRETERS: Final = ("python", "pypy", "postmaster")  # how processes are called that may be ours
_MAX_BYTES: Final = 1 << 20


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


@dataclass(slots=True)
class Starters:
    """All that starts runs of any office. `crontab_fault`: why the account's crontab cannot be told."""

    account: str
    found: list[Starter] = field(default_factory=list)
    crontab_fault: str | None = None
    cron_runs: bool | None = None

    def of(self, root: str) -> list[Starter]:
        """Return those that route the mail of one office."""
        return [one for one in self.found if one.root == root and one.routes]


def look(run: crontab.Run = crontab.run) -> Starters:
    """Return what starts runs, as far as this account can see."""
    account = account_name(os.geteuid())
    answer = Starters(account)
    try:
        own = crontab.read(run).decode("utf-8", "surrogateescape")
        answer.found += _lines("crontab", own, account, system=False)
    except ConfigurationFault as fault:
        answer.crontab_fault = str(fault)
    for path in _crontabs():
        answer.found += _lines(path, _text(path), account, system=True)
    for spool in _SPOOLS:
        for name in _names(spool):
            if name != account and os.path.isfile(os.path.join(spool, name)):
                answer.found += _lines(os.path.join(spool, name), _text(os.path.join(spool, name)), name, system=False)
    answer.found += _units(account)
    processes = list(_processes())
    answer.found += [one for number, _, words in processes if (one := _watching(number, words)) is not None]
    if processes:
        answer.cron_runs = any(name in _CRON_DAEMONS for _, name, _ in processes) or os.path.exists(_CRON_GENERATOR)
    return answer


def describe(starters: Starters, office: Office) -> dict[str, object]:
    """Return what starts runs of one office, as plain data."""
    ours = starters.of(office.root)
    lines = [one for one in ours if one.is_cron]
    known = "unknown" if starters.crontab_fault is not None else "absent"
    return {
        "account": starters.account,
        "crontab": "present" if any(one.account == starters.account for one in lines) else known,
        "crontab_detail": starters.crontab_fault,
        "cron_runs": starters.cron_runs,
        "started_by": [{"source": one.source, "account": one.account, "text": one.text} for one in ours],
    }


def account_name(uid: int) -> str:
    """Return the name of an account, or its number as text."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


# -- crontabs ------------------------------------------------------------------------------------------------------


def _crontabs() -> Iterator[str]:
    for place in _SYSTEM_CRONTABS:
        if os.path.isdir(place):
            yield from (os.path.join(place, name) for name in _names(place) if "." not in name)  # cron(8)
        elif os.path.isfile(place):
            yield place


def _lines(source: str, text: str, account: str, *, system: bool) -> Iterator[Starter]:
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
        yield from _starters(source, user, line, command, variables, marked=marked)


def _starters(
    source: str, account: str, line: str, command: str, variables: dict[str, str], *, marked: bool
) -> Iterator[Starter]:
    """Yield one starter for each office that a command routes."""
    found: dict[str, Starter] = {}
    for words in _commands(command):
        read = _read_command(words, account, variables)
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


def _read_command(words: Sequence[str], account: str, variables: dict[str, str]) -> tuple[str, str, str] | None:
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
    home = _home(account)
    root = (given or environment.get(ENVIRONMENT) or DEFAULT_ROOT).replace("$HOME", home)
    root = home + root[1:] if root == "~" or root.startswith("~/") else root
    with contextlib.suppress(ConfigurationFault):
        return absolute(root, home), words[0], step
    return None


def _is_ours(words: Sequence[str], number: int, word: str) -> bool:
    if os.path.basename(word) in ("postmaster", "postmaster.sh"):
        return word != "postmaster" or number == 0 or words[number - 1] != "--root"
    return False


def _home(account: str) -> str:
    own = os.environ.get("HOME")
    if own and account == account_name(os.geteuid()):
        return own
    try:
        return pwd.getpwnam(account).pw_dir
    except KeyError:
        return "/nonexistent"


# -- systemd -------------------------------------------------------------------------------------------------------


def _units(account: str) -> Iterator[Starter]:
    """Yield the units that are enabled and start runs."""
    own = os.path.join(os.environ.get("XDG_CONFIG_HOME") or os.path.join(_home(account), ".config"), "systemd", "user")
    for place in (own, *_UNITS):
        for wants in _names(place):
            if wants.endswith(".wants"):
                for name in _names(os.path.join(place, wants)):
                    yield from _unit(place, name, account)


def _unit(place: str, name: str, account: str) -> Iterator[Starter]:
    stem, _, kind = name.rpartition(".")
    if kind not in ("timer", "path", "service"):
        return
    path = os.path.join(place, name)
    service = dict(_keys(_text(path))).get("Unit", f"{stem}.service")
    keys = _keys(_text(os.path.join(place, service)))
    user = dict(keys).get("User", account if place.endswith("/user") else "root")
    variables = {}
    for key, value in keys:
        if key == "Environment" and "=" in value:
            variables[value.strip("\"'").partition("=")[0]] = value.strip("\"'").partition("=")[2]
    for key, value in keys:
        if key == "ExecStart":
            command = value.lstrip("-@:+!").replace("%h", _home(user)).replace("%%", "%")
            yield from _starters(path, user, value, command, variables, marked=False)


def _keys(text: str) -> list[tuple[str, str]]:
    joined = re.sub(r"\\\n\s*", " ", text)
    pairs = (line.partition("=") for line in joined.splitlines() if not line.lstrip().startswith(("#", ";")))
    return [(key.strip(), value.strip()) for key, equals, value in pairs if equals]


# -- processes -----------------------------------------------------------------------------------------------------


def _processes() -> Iterator[tuple[int, str, list[str]]]:
    """Yield number, name and words of every process that can be seen; nothing where there is no /proc."""
    for name in _names("/proc"):
        if name.isdecimal():
            called = _text(f"/proc/{name}/comm").strip()
            is_ours = called.startswith(_INTERPRETERS)
            yield int(name), called, _text(f"/proc/{name}/cmdline").split("\0")[:-1] if is_ours else []


def _watching(number: int, words: list[str]) -> Starter | None:
    """Return a process that is `postmaster watch`."""
    if "watch" not in words or not any("postmaster" in word for word in words):
        return None
    try:
        account = account_name(os.stat(f"/proc/{number}").st_uid)
    except OSError:
        return None
    pairs = (one.partition("=") for one in _text(f"/proc/{number}/environ").split("\0"))
    variables = {key: value for key, _, value in pairs if key == ENVIRONMENT}
    read = _read_command(words, account, variables)
    if read is None or read[2] != "watch":
        return None
    return Starter(f"process {number}", account, shlex.join(words), read[0], read[1], ("watch",))


def _names(directory: str) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []


def _text(path: str) -> str:
    """Return the text of a file; nothing if it cannot be read, or is no file."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            return stream.read(_MAX_BYTES).decode("utf-8", "surrogateescape")
    except OSError:
        return ""
