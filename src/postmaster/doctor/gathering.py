"""Asking the disk and the system for the facts of an office. Changes nothing, and takes no lock."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Final

from postmaster import delivery_log, disk_space, lock_holders, names, run_lines, starters, times
from postmaster.doctor import gathering_agents, mounts
from postmaster.doctor.facts import Facts, Node
from postmaster.doctor.nodes import listed, node
from postmaster.errors import ConfigurationFault
from postmaster.office import DEFAULT_ROOT, ENVIRONMENT, Office, absolute
from postmaster.registry import compiled, declarations, lag, merge, source, written
from postmaster.settings import Settings, load_settings

_TAIL_BYTES: Final = 64 * 1024
_FAULTS: Final = 20  # that are told of one file
_AHEAD_NS: Final = 300 * 10**9
_HELPERS: Final = ("apt-get", "setfacl")
_PLACES: Final = "/usr/sbin:/usr/bin:/sbin:/bin"
_MANY: Final = 1000  # files of .postmaster/ that are looked at
_NO_DECLARATIONS: Final = (".md", ".txt~", "~", ".bak", ".orig", ".swp", ".disabled")


def gather(office: Office, *, clock: Callable[[], int] = time.time_ns) -> Facts:
    """Return all that the checks are told of an office."""
    uid = os.geteuid()
    root = node(office, office.root)
    owner = run_lines.account_name(root.uid) if root.is_there else ""
    account = run_lines.account_name(uid)
    facts = Facts(office.root, clock(), uid, account, owner, starters.look())
    facts.real_root, facts.owner_group = os.path.realpath(office.root), gathering_agents.group_of(owner) or owner
    facts.helpers = frozenset(name for name in _HELPERS if shutil.which(name, path=_PLACES))
    facts.places = {name: node(office, path, router=facts.asked_for) for name, path in _places(office).items()}
    facts.other_offices = _other_offices(office)
    _starters(facts)
    if not facts.is_office:
        return facts
    settings = _settings(office, facts)
    _registry(office, facts)
    _mail(office, facts)
    _log(office, facts)
    _locks(office, facts)
    gathering_agents.gather(office, facts, settings)
    places = [(office.root, "office"), *((one.node.path, one.agent) for one in facts.inboxes)]
    facts.disks = disk_space.survey(places)
    facts.mounts = mounts.of([facts.places["root"], *(one.node for one in facts.inboxes)])
    return facts


def _places(office: Office) -> dict[str, str]:
    return {
        "root": office.root,
        "outbox": office.outbox,
        "inboxes": office.inboxes,
        "dead-letter": office.dead_letter,
        "logs": office.logs,
        "registry.d": office.declarations,
        ".postmaster": office.private,
        "post-office.yml": office.settings_file,
        "agent-registry.yml": office.registry,
        "log": office.log,
    }


def _other_offices(office: Office) -> list[tuple[str, str]]:
    """Return where another office is named, or stands in the way of this one."""
    here, found = os.path.realpath(office.root), []
    named = os.environ.get(ENVIRONMENT)
    with contextlib.suppress(ConfigurationFault):
        if named and os.path.realpath(absolute(named, os.getcwd())) != here:
            found.append((f"${ENVIRONMENT}", absolute(named, os.getcwd())))
    with contextlib.suppress(ConfigurationFault, OSError):
        for where, place in (("the current directory", os.getcwd()), ("the default", absolute(DEFAULT_ROOT, "/"))):
            if os.path.realpath(place) != here and _holds_mail(place) and place not in [one for _, one in found]:
                found.append((where, place))
    return found


def _holds_mail(root: str) -> bool:
    """Tell whether a directory is an office in which letters wait."""
    if not os.path.isdir(os.path.join(root, "registry.d")):
        return False
    try:
        return any(map(names.is_mail, os.listdir(os.path.join(root, "outbox"))))
    except OSError:
        return False


def _starters(facts: Facts) -> None:
    """Look whether the programs that crontab lines start are there."""
    for one in facts.starters.found:
        absolute_path = "/" in one.program
        for path in [one.program] if absolute_path else [os.path.join(p, one.program) for p in one.path.split(":")]:
            facts.runnable[path] = os.path.isfile(path) and os.access(path, os.X_OK)


def _settings(office: Office, facts: Facts) -> Settings:
    try:
        settings = load_settings(office)
    except ConfigurationFault as fault:
        lines = str(fault).split("\n")
        facts.settings_faults = (lines[1:] or lines)[:_FAULTS]
        return Settings()
    facts.drop_folders = settings.drop_folders
    return settings


def _registry(office: Office, facts: Facts) -> None:
    """Look at the registry, and at what a merge would make of the declarations."""
    try:
        compiled.read_entries(office)
        facts.registry = "merged"
    except ConfigurationFault as fault:
        facts.registry = "invalid" if os.path.lexists(office.registry) else "missing"
        facts.registry_detail = str(fault).removeprefix(f"{office.registry}: ")
    for one in listed(office, office.declarations, router=facts.asked_for):
        name = os.path.basename(one.path)
        if (
            one.kind == "file"
            and name.endswith(declarations.SUFFIXES)
            and not name.startswith(".")
            and not one.may_read
        ):
            facts.closed_declarations.append(one)
        if one.is_directory and not name.startswith("."):
            inner = listed(office, one.path)
            facts.folded_declarations += [
                x for x in inner if x.kind == "file" and x.path.endswith(declarations.SUFFIXES)
            ]
        is_known = name.endswith((*declarations.SUFFIXES, *_NO_DECLARATIONS)) or name.startswith((".", "README"))
        if one.kind == "file" and not is_known:
            facts.ignored_declarations.append(one)
    if not facts.places["registry.d"].is_directory:
        return
    report = None
    if facts.registry == "merged":
        with contextlib.suppress(OSError):
            report = lag.since_merge(office)
    else:
        report = merge.plan(office).report
    facts.declaration_faults = [str(one) for one in report.problems][:_FAULTS] if report is not None else []
    with contextlib.suppress(OSError, ValueError):
        raw, _ = source.read_file(office.registry, declarations.MAX_REGISTRY_BYTES)
        facts.edited = not written.is_as_written(raw)
    if facts.registry == "merged" and report is not None:
        facts.registry, facts.registry_detail = "stale", lag.told(report)


def _mail(office: Office, facts: Facts) -> None:
    facts.outbox = listed(office, office.outbox, router=facts.asked_for)
    letters = [one for one in facts.outbox if one.kind == "file" and names.is_mail(os.path.basename(one.path))]
    facts.closed_letters = [one for one in letters if not one.may_read]
    facts.closed_private = list(_closed(office, office.private, facts.asked_for))[:_MANY]
    facts.strays += [one for one in listed(office, office.root) if _is_letter(one)]
    facts.strays += [one for one in listed(office, office.inboxes) if one.kind == "file" and _is_letter(one)]
    facts.future = [one for one in facts.outbox if one.mtime_ns > facts.now_ns + _AHEAD_NS]
    facts.last_run_ns = int((office.last_run() or 0) * 1e9)


def _closed(office: Office, directory: str, router: str | None) -> Iterator[Node]:
    """Yield what is below a directory of the router's, and closed to it."""
    for one in listed(office, directory, router=router)[:_MANY]:
        if one.kind in ("file", "directory") and not (one.may_read and one.may_write):
            yield one
        elif one.is_directory:
            yield from _closed(office, one.path, router)


def _is_letter(one: Node) -> bool:
    name = os.path.basename(one.path)
    return one.kind == "file" and name.endswith(".md") and names.is_mail(name) and not name.startswith("README")


def _log(office: Office, facts: Facts) -> None:
    """Look at the end of the log, and whether it was ever rotated."""
    with contextlib.suppress(OSError):
        facts.log_parts = len([path for path in delivery_log.log_files(office) if path != office.log])
    if facts.places["log"].kind != "file":
        return
    with contextlib.suppress(OSError), open(office.log, "rb") as stream:
        stream.seek(max(0, facts.places["log"].size - _TAIL_BYTES))
        for line in reversed(stream.read().splitlines()):
            if (record := delivery_log.decode(line)) is not None:
                facts.last_logged_ns = times.parse_time(record["time"])
                return


def _locks(office: Office, facts: Facts) -> None:
    """Look who holds a lock, and what was left by those who hold none any more."""
    held: dict[str, bool] = {}
    for path in (office.lock_file, office.directory_lock, office.nudges_lock, office.carrier_lock, office.log):
        found = lock_holders.holders(path) or []
        held[path] = bool(found)
        facts.holders += [(office.shown(path), one) for one in found]
    for path, lock, command in (
        (office.journal, office.lock_file, "route --now"),
        (office.removals, office.lock_file, "route --now"),
        (office.pending, office.directory_lock, "route --now"),
        (os.path.join(office.carrier, "unfinished"), office.carrier_lock, "carry"),
    ):
        if os.path.lexists(path) and not held[lock] and not held[office.lock_file]:
            facts.unfinished.append((node(office, path), command))
