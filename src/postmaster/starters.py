"""What starts the runs of an office: lines of crontabs, units of systemd, a `watch` that is at work. Changes nothing.

Read are the account's crontab (crontab(1)), /etc/crontab and /etc/cron.d (crontab(5)), for root the crontabs of other
accounts, the units that are enabled (the links in `*.wants/`, systemd.unit(5)), and the processes (proc(5)).
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from postmaster import crontab, run_lines
from postmaster.errors import ConfigurationFault
from postmaster.office import ENVIRONMENT, Office
from postmaster.run_lines import Starter

_SYSTEM_CRONTABS: Final = ("/etc/crontab", "/etc/cron.d")
_SPOOLS: Final = ("/var/spool/cron/crontabs", "/var/spool/cron")
_UNITS: Final = ("/etc/systemd/system", "/etc/systemd/user")
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
        """Return those that route the mail of one office."""
        return [one for one in self.found if one.root == root and one.routes]


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
    user = dict(keys).get("User", account if place.endswith("/user") else "root")
    variables = {}
    for key, value in keys:
        if key == "Environment" and "=" in value:
            variables[value.strip("\"'").partition("=")[0]] = value.strip("\"'").partition("=")[2]
    for key, value in keys:
        if key == "ExecStart":
            command = value.lstrip("-@:+!").replace("%h", run_lines.home_of(user)).replace("%%", "%")
            yield from run_lines.of_command(path, user, value, command, variables, marked=False)


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
    read = run_lines.read_command(words, account, variables)
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
