"""`postmaster status`: what the office holds and what waits, counted without opening delivered mail.

Inboxes are only listed; of the outbox only what is young is read, to tell what is held back. Changes nothing.
"""

import contextlib
import os
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, Final

from postmaster import (
    disk_space,
    elsewhere,
    health,
    inspection,
    inventory,
    ledger,
    lock_holders,
    maildir,
    reading,
    starters,
    times,
    waiting_room,
)
from postmaster.errors import ConfigurationFault
from postmaster.health import Limits
from postmaster.office import Office
from postmaster.reading import Name
from postmaster.refusals import REASON_SUFFIX
from postmaster.registry import compiled, lag
from postmaster.registry.compiled import OpenView
from postmaster.settings import load_settings
from postmaster.waiting_room import DAY, age

_USUAL: Final = Limits()

Answer = dict[str, Any]


def survey(
    office: Office,
    *,
    limits: Limits = _USUAL,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
) -> Answer:
    """Return everything that `status` tells, as plain data; times are RFC 3339, ages are seconds.

    Raises:
        ConfigurationFault: this root is no office, or its settings cannot be used.
    """
    office.require()
    now_ns = clock()
    settings = load_settings(office)
    problems: list[str] = []
    registry, inboxes = _registry(office, open_view)
    agents = [_mailbox(office, path, agent, problems) for path, agent in inboxes]
    own = len(problems)
    waiting = waiting_room.survey(office, settings, now_ns, problems)
    arrived = waiting.pop("names")
    items = waiting_room.open_items(office, arrived, now_ns, problems)
    deferred, retried = items or ([], [])
    if items is not None:
        _check_log(office, sum(one["numbered"] for one in agents), problems)
    log_problems = problems[own:]
    last, at_work = office.last_run(), bool(lock_holders.holders(office.lock_file))
    known = {one["file"] for one in (*deferred, *retried, *waiting["held_back"])}
    settle = settings.settle_seconds
    waiting["overlooked"] = [] if at_work else waiting_room.overlooked(arrived, known, last, settle)
    unfinished = _unfinished(office, at_work)
    if os.path.lexists(office.returning):
        where = office.shown(office.returning)
        problems.append(f"{where}: unread mail of an archived instance is still to be returned; the next run goes on")
    dead, lately = _dead(office, now_ns, problems)
    places = [(office.root, "office"), *((path, agent) for path, agent in inboxes if agent is not None)]
    answer = {
        "office": office.root,
        "name": settings.name,
        "last_run": times.timestamp(int(last * 1e9)) if last is not None else None,
        "last_run_age_seconds": max(0, now_ns // 10**9 - int(last)) if last is not None else None,
        "at_work": at_work,
        "unfinished_run": os.path.lexists(office.journal),
        "unfinished": unfinished,
        "registry": registry,
        "totals": {
            "agents": len(agents),
            "unread": sum(one["unread"] for one in agents if not one["archived"]),
            "read": sum(one["read"] for one in agents),
            "waiting": waiting["waiting"],
            "deferred": len(deferred),
            "dead": sum(dead.values()),
        },
        "oldest_unread": _oldest([one for one in agents if not one["archived"]], now_ns),
        "agents": [{key: one[key] for key in one if key not in ("oldest", "numbered")} for one in agents],
        "outbox": waiting,
        "deferred": deferred,
        "retried": retried,
        "dead_letters": dead,
        "dead_letters_last_day": lately,
        "max_message_bytes": settings.max_message_bytes,
        "disks": [{**one, "percent_free": disk_space.least_percent(one)} for one in disk_space.survey(places)],
        "starters": starters.describe(starters.look(), office),
        "remotes": elsewhere.survey(office, settings, problems, now_ns),
        "problems": problems,
        "log_problems": log_problems,
    }
    return {**answer, **health.verdict(health.judge(answer, limits))}


def _unfinished(office: Office, at_work: bool) -> list[Answer]:
    """Return what somebody who was cut off has left, or who is at work has under way."""
    runs = "the next run ends it (`postmaster route --now`)"
    kinds = (
        (office.journal, "a run was cut off in the middle", runs, at_work, True),
        (office.removals, "letters that were delivered and could not be taken out of the outbox", runs, at_work, False),
        (
            office.pending,
            "a register or archive was cut off",
            "the next `postmaster register`, `archive` or `route` ends it",
            at_work or bool(lock_holders.holders(office.directory_lock)),
            False,
        ),
        (
            os.path.join(office.carrier, "unfinished"),
            "an exchange with other offices was cut off",
            "the next `postmaster carry` ends it",
            bool(lock_holders.holders(office.carrier_lock)),
            False,
        ),
    )
    return [
        {"path": office.shown(path), "what": what, "remedy": remedy, "at_work": busy, "holds_mail": holds}
        for path, what, remedy, busy, holds in kinds
        if os.path.lexists(path)
    ]


# -- the registry --------------------------------------------------------------------------------------------------


def _registry(office: Office, open_view: OpenView) -> tuple[Answer, list[tuple[str, str | None]]]:
    """Return the registry's state, and every inbox (path, agent id) there is: also those of agents that left."""
    answer: Answer = {"state": "merged", "agents": 0, "instances": 0, "detail": None}
    inboxes: list[tuple[str, str | None]] = []
    try:
        with open_view(office, write=False) as view:
            for agent in view.all_agents():
                inboxes.append((agent.inbox, agent.id))
                answer["agents" if agent.class_id is None else "instances"] += 1
        if (stale := _stale(office)) is not None:
            answer |= {"state": "stale", "detail": f"{stale}; run `postmaster registry merge`"}
    except ConfigurationFault as fault:
        state = "invalid" if os.path.lexists(office.registry) else "missing"
        answer |= {"state": state, "detail": str(fault)}
    known = {path for path, _ in inboxes}
    with contextlib.suppress(OSError), os.scandir(office.inboxes) as entries:
        listed = [one for one in entries if one.path not in known and not one.name.startswith(".")]
        others = [one for one in listed if one.is_dir(follow_symlinks=False)]
        inboxes.extend((one.path, None) for one in sorted(others, key=lambda one: one.name))
    return answer, inboxes


def _stale(office: Office) -> str | None:
    """Tell, in words, how the declarations have changed since the merge; None if they have not."""
    try:
        report = lag.since_merge(office)
    except OSError as fault:
        return f"{fault.filename or office.declarations}: {fault.strerror}"
    return lag.told(report) if report is not None else None


# -- inboxes -------------------------------------------------------------------------------------------------------


def _mailbox(office: Office, path: str, agent: str | None, problems: list[str]) -> Answer:
    """Count an inbox as `postmaster inbox` does: every name that is not hidden."""
    found: dict[str, list[Name]] = {maildir.UNREAD: [], maildir.READ: []}
    if agent is not None and (not os.path.isdir(path) or inventory.is_empty_mount_point(office, path)):
        problems.append(_missing(office, path, agent))
    else:
        told = {_obstruction(office, path, folder, agent) for folder in maildir.FOLDERS} if agent is not None else set()
        for folder in found:
            try:
                found[folder] = reading.names(path, folder)
            except OSError as fault:
                where = office.shown(os.path.join(path, folder))
                whose = f"mail for {agent} waits, or cannot be counted" if agent is not None else "it is not counted"
                told.add(f"{where}: cannot be read: {fault.strerror}: {whose}; mend or mount it")
        problems.extend(sorted(filter(None, told)))
    oldest = maildir.waits_longest(path, [one.name for one in found[maildir.UNREAD] if one.kind is None])
    shown = office.shown(os.path.join(path, maildir.UNREAD, oldest[1])) if oldest is not None else None
    return {
        "agent": agent,
        "archived": agent is None and office.is_archived(path),
        "inbox": office.shown(path),
        "unread": len(found[maildir.UNREAD]),
        "read": len(found[maildir.READ]),
        "numbered": sum(
            not one.kind and inspection.is_numbered(one.name) for listed in found.values() for one in listed
        ),
        "oldest": oldest[0] if oldest is not None else None,
        "oldest_unread": shown,
    }


def _missing(office: Office, path: str, agent: str) -> str:
    """Say that an agent's inbox is not there, or cannot be looked at, and what to do."""
    where = office.shown(path)
    try:
        os.stat(path)
    except FileNotFoundError:
        return f"{where}: the inbox of {agent} is missing; {inventory.remedy_of_missing(office, path)}"
    except OSError as fault:
        return f"{where}: {fault.strerror}: mail for {agent} waits; mend or mount it"
    if os.path.isdir(path):
        return f"{where}: has no {maildir.UNREAD}/: mail for {agent} waits; {inventory.remedy_of_missing(office, path)}"
    return f"{where}: is no directory: mail for {agent} waits; move away what is in its place"


def _obstruction(office: Office, path: str, folder: str, agent: str) -> str | None:
    """Say what stands in the place of a folder of a mailbox, if anything does."""
    try:
        kind = inventory.obstacle(os.path.join(path, folder))
    except OSError:
        return None  # told of when it is listed
    if kind is None:
        return None
    waits = f"{agent} can acknowledge nothing" if folder == maildir.READ else f"mail for {agent} waits"
    return (
        f"{office.shown(os.path.join(path, folder))}: is {kind}, not a directory: {waits}; put a directory in its place"
    )


def _oldest(agents: list[Answer], now_ns: int) -> Answer | None:
    """Return the unread message that has waited longest: by the time it was delivered, the file's own."""
    found = [(one["oldest"], one) for one in agents if one["oldest"] is not None]
    if not found:
        return None
    since, one = min(found, key=lambda pair: (pair[0], pair[1]["inbox"]))
    return {"agent": one["agent"], "file": one["oldest_unread"], **age(since, now_ns)}


def _check_log(office: Office, numbered: int, problems: list[str]) -> None:
    """Say it loudly if the log is gone while there is mail that it numbered."""
    try:
        _, is_gone = ledger.find(office)
    except OSError as fault:
        where = office.shown(fault.filename or office.logs)
        problems.append(f"{where}: cannot be read: {fault.strerror}: nothing is routed without a log; mend it")
        return
    if is_gone and numbered and not os.path.lexists(office.journal):  # else: the first run is about to write it
        there = f"{numbered} numbered messages are" if numbered != 1 else "1 numbered message is"
        problems.append(
            f"{office.shown(office.log)}: the delivery log is gone, though {there} in the inboxes; restore it from a "
            "backup before anything is routed: numbers start again without it"
        )


# -- dead letters --------------------------------------------------------------------------------------------------


def _dead(office: Office, now_ns: int, problems: list[str]) -> tuple[dict[str, int], dict[str, int]]:
    """Count the dead letters by reason, which their reason files say on a line of its own: all, those of a day."""
    try:
        listed = set(os.listdir(office.dead_letter))
    except OSError as fault:
        problems.append(f"dead-letter: cannot be listed: {fault.strerror}")
        return {}, {}
    counts: Counter[str] = Counter()
    lately: Counter[str] = Counter()
    for name in listed:
        is_reason = name.endswith(REASON_SUFFIX) and name + REASON_SUFFIX not in listed
        if name.startswith(".") or is_reason:
            continue
        reason, written_ns = _reason(os.path.join(office.dead_letter, name + REASON_SUFFIX))
        counts[reason] += 1
        lately[reason] += now_ns - written_ns < DAY * 10**9
    return dict(sorted(counts.items())), dict(sorted((+lately).items()))


def _reason(path: str) -> tuple[str, int]:
    """Return the reason in a reason file, and when that was written (nanoseconds; 0 if there is none)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "unknown", 0
    try:
        head, written_ns = os.read(descriptor, 4096), os.fstat(descriptor).st_mtime_ns
    except OSError:
        return "unknown", 0
    finally:
        os.close(descriptor)
    for line in head.splitlines():
        if line.startswith(b"reason: "):
            word = line[8:].decode("utf-8", "replace").strip().strip("\"'")
            return (word if word.isprintable() and word else "unknown"), written_ns
    return "unknown", written_ns
