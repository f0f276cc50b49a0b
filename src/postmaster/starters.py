"""What starts the runs of an office: lines of crontabs, units of systemd, a `watch` that is at work. Changes nothing.

Read are the account's crontab (crontab(1)), /etc/crontab and /etc/cron.d (crontab(5)), for root the crontabs of other
accounts, the units that are enabled (the links in `*.wants/`, systemd.unit(5)), and the processes (proc(5)).
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

from postmaster import crontab, lock_holders, run_lines
from postmaster.errors import ConfigurationFault
from postmaster.office import ENVIRONMENT, Office
from postmaster.run_lines import Starter
from postmaster.shell_words import UNKNOWN, Command

_SYSTEM_CRONTABS: Final = ("/etc/crontab", "/etc/cron.d")
_SPOOLS: Final = ("/var/spool/cron/crontabs", "/var/spool/cron")
_UNITS: Final = ("/etc/systemd/system", "/etc/systemd/user")
_UNIT_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"  # systemd.exec(5)
_SYSTEMD: Final = "/run/systemd/system"  # sd_booted(3): it is there if systemd runs
_LINGERING: Final = "/var/lib/systemd/linger"  # loginctl(1): a file for each account that lingers
_CRON_DAEMONS: Final = frozenset({"cron", "crond", "fcron", "dcron", "bcron-start"})
_CRON_GENERATOR: Final = "/usr/lib/systemd/system-generators/systemd-crontab-generator"  # systemd-cron has no daemon
_INTERPRETERS: Final = ("python", "pypy", "postmaster")  # how processes are called that may be ours
_MAX_BYTES: Final = 1 << 20


@dataclass(slots=True)
class Starters:
    """All that starts runs of any office. `crontab_fault`: why the account's crontab cannot be told."""

    account: str
    found: list[Starter] = field(default_factory=list)
    crontab_fault: str | None = None
    cron_runs: bool | None = None

    def of(self, root: str) -> list[Starter]:
        """Return those that route the mail of one office (links followed), and can."""
        return [one for one in self.found if one.root == root and one.routes and not one.trouble]

    def hindered(self, root: str) -> list[Starter]:
        """Return those that are there to route the mail of one office, and cannot."""
        return [one for one in self.found if one.root == root and one.routes and one.trouble]

    @property
    def unclear(self) -> list[Starter]:
        """Those of which nobody can tell whose mail they route."""
        return [one for one in self.found if not one.root]


def look(run: crontab.Run = crontab.run) -> Starters:
    """Return what starts runs, as far as this account can see."""
    account = run_lines.account_name(os.geteuid())
    answer = Starters(account)
    try:
        own = crontab.read(run).decode("utf-8", "surrogateescape")
        answer.found += run_lines.of_crontab("crontab", own, account, system=False)
    except ConfigurationFault as fault:
        answer.crontab_fault = str(fault)
    for path in _crontabs():
        answer.found += run_lines.of_crontab(path, _text(path), account, system=True)
    for spool in _SPOOLS:
        for name in _names(spool):
            if name != account and os.path.isfile(os.path.join(spool, name)):
                answer.found += run_lines.of_crontab(
                    os.path.join(spool, name), _text(os.path.join(spool, name)), name, system=False
                )
    answer.found += _units(account)
    processes = list(_processes())
    answer.found += [one for number, _, words in processes if (one := _watching(number, words)) is not None]
    if processes:
        answer.cron_runs = any(name in _CRON_DAEMONS for _, name, _ in processes) or os.path.exists(_CRON_GENERATOR)
    return answer


def describe(starters: Starters, office: Office) -> dict[str, object]:
    """Return what starts runs of one office, as plain data."""
    ours = starters.of(os.path.realpath(office.root))
    lines = [one for one in ours if one.is_cron]
    why = starters.crontab_fault
    if why is None and starters.unclear:
        why = f"cannot tell which office this is about: {starters.unclear[0].text}"
    known = "unknown" if why is not None else "absent"
    return {
        "account": starters.account,
        "crontab": "present" if any(one.account == starters.account for one in lines) else known,
        "crontab_detail": why,
        "cron_runs": starters.cron_runs,
        "started_by": [{"source": one.source, "account": one.account, "text": one.text} for one in ours],
    }


# -- crontabs ------------------------------------------------------------------------------------------------------


def _crontabs() -> Iterator[str]:
    for place in _SYSTEM_CRONTABS:
        if os.path.isdir(place):
            yield from (os.path.join(place, name) for name in _names(place) if "." not in name)  # cron(8)
        elif os.path.isfile(place):
            yield place


# -- systemd -------------------------------------------------------------------------------------------------------


def _units(account: str) -> Iterator[Starter]:
    """Yield the units that are enabled and start runs."""
    own = os.path.join(
        os.environ.get("XDG_CONFIG_HOME") or os.path.join(run_lines.home_of(account), ".config"), "systemd", "user"
    )
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
    of_user = place.endswith("/user")
    user = dict(keys).get("User", account if of_user else "root")
    home = run_lines.home_of(user)
    variables = {"PATH": _UNIT_PATH}
    for key, value in keys:
        if key == "Environment" and "=" in value:
            variables[value.strip("\"'").partition("=")[0]] = value.strip("\"'").partition("=")[2]
    directory = dict(keys).get("WorkingDirectory", home if of_user else "/").lstrip("-").replace("%h", home)
    start = Command(user, home, directory, variables, settled="EnvironmentFile" not in dict(keys))
    for key, value in keys:
        if key == "ExecStart":
            command = value.lstrip("-@:+!").replace("%h", home).replace("%%", "%")
            for one in run_lines.of_command(path, value, command, start, once=kind == "service"):
                yield replace(one, trouble=_trouble(one, command, lingers=not of_user or _lingers(user)))


def _trouble(one: Starter, command: str, *, lingers: bool) -> str:
    """Return why a unit that is enabled starts nothing."""
    first = command.split()[0].strip("\"'")
    programs = [path for path in (first, one.program) if path.startswith("/")]
    if not all(os.path.isfile(path) and os.access(path, os.X_OK) for path in programs):
        return "program"
    if not os.path.isdir(_SYSTEMD):
        return "systemd"
    return "" if lingers else "lingering"


def _lingers(account: str) -> bool:
    """Tell whether the units of an account run while it is not logged in."""
    return os.path.exists(os.path.join(_LINGERING, account))


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
        account = run_lines.account_name(os.stat(f"/proc/{number}").st_uid)
    except OSError:
        return None
    pairs = (one.partition("=") for one in _text(f"/proc/{number}/environ").split("\0"))
    variables = {key: value for key, _, value in pairs if key == ENVIRONMENT}
    try:
        directory = os.readlink(f"/proc/{number}/cwd")
    except OSError:
        directory = UNKNOWN
    known = bool(_text(f"/proc/{number}/environ"))
    start = Command(account, run_lines.home_of(account), directory, variables, known, tuple(words))
    one = run_lines.of_words(f"process {number}", shlex.join(words), start)
    if one is None or "watch" not in one.steps:
        return None
    return replace(one, trouble="stopped" if lock_holders.is_stopped(number) else "")


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
