"""`postmaster status`: what the office holds and what waits, counted without opening delivered mail.

Inboxes are only listed; of the outbox only what is young is read, to tell what is held back. Changes nothing.
"""

import contextlib
import os
import time
from collections.abc import Callable
from typing import Any, Final

from postmaster import (
    elsewhere,
    inspection,
    inventory,
    ledger,
    letter,
    maildir,
    message,
    names,
    outbox,
    reading,
    reasons,
    times,
)
from postmaster.errors import ConfigurationFault, PostmasterError
from postmaster.history import History
from postmaster.office import Office, visible
from postmaster.open_items import OpenItem
from postmaster.outbox import Waiting
from postmaster.reading import Name
from postmaster.refusals import REASON_SUFFIX
from postmaster.registry import compiled, declarations, merge
from postmaster.registry.compiled import OpenView
from postmaster.settings import Settings, load_settings

_DAY: Final = 24 * 3600

Answer = dict[str, Any]


def survey(
    office: Office, *, clock: Callable[[], int] = time.time_ns, open_view: OpenView = compiled.open_view
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
    waiting = _outbox(office, settings, now_ns, problems)
    items = _open_items(office, waiting["names"], now_ns, problems)
    deferred, retried = items or ([], [])
    del waiting["names"]
    if items is not None:
        _check_log(office, sum(one["numbered"] for one in agents), problems)
    if os.path.lexists(office.returning):
        where = office.shown(office.returning)
        problems.append(f"{where}: unread mail of an archived instance is still to be returned; the next run goes on")
    dead = _dead(office, problems)
    last = office.last_run()
    return {
        "office": office.root,
        "name": settings.name,
        "last_run": times.timestamp(int(last * 1e9)) if last is not None else None,
        "last_run_age_seconds": max(0, now_ns // 10**9 - int(last)) if last is not None else None,
        "unfinished_run": os.path.lexists(office.journal),
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
        "remotes": elsewhere.survey(office, settings, problems),
        "problems": problems,
    }


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
        stale = _stale(office)
        if stale is not None:
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
    """Tell, in words, how the declarations have changed since the merge. Only if one looks newer are they read."""
    merged = os.stat(office.registry).st_mtime_ns
    try:
        changed = [os.stat(office.declarations).st_mtime_ns]
        with os.scandir(office.declarations) as entries:
            listed = [entry for entry in entries if entry.name.endswith(declarations.SUFFIXES)]
            changed += [entry.stat().st_mtime_ns for entry in listed]
    except OSError as fault:
        return f"{fault.filename or office.declarations}: {fault.strerror}"
    if max(changed) < merged:
        return None
    report = merge.plan(office).report
    if report.problems:
        count = len(report.problems)
        return f"the declarations have changed since the merge, and {count} of their lines cannot be merged"
    if report.unchanged:
        return None
    changes = {
        "added": report.added,
        "moved": report.moved,
        "changed": report.changed,
        "removed": report.removed,
    }
    told = ", ".join(f"{len(found)} {what}" for what, found in changes.items() if found)
    return "the declarations have changed since the merge" + (f" ({told})" if told else "")


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
    return {"agent": one["agent"], "file": one["oldest_unread"], **_age(since, now_ns)}


def _age(since_ns: int, now_ns: int) -> Answer:
    return {"since": times.timestamp(since_ns), "age_seconds": max(0, (now_ns - since_ns) // 10**9)}


# -- the outbox ----------------------------------------------------------------------------------------------------


def _outbox(office: Office, settings: Settings, now_ns: int, problems: list[str]) -> Answer:
    """Look at the outbox: what waits, what is held back and why, and stray names that will never be mail."""
    outbox.survive_lease_breaks()
    answer: Answer = {"waiting": 0, "oldest": None, "held_back": [], "unfinished": 0, "stray": [], "names": set()}
    oldest: tuple[int, str] | None = None
    max_bytes, settle_seconds = settings.max_message_bytes, settings.settle_seconds
    try:
        listed = sorted(outbox.scan(office.outbox, drop_folders=settings.drop_folders, every=True))
    except OSError as fault:
        problems.append(f"outbox: cannot be listed: {fault.strerror}")
        return answer
    except ConfigurationFault as fault:
        problems.append(str(fault))
        return answer
    for name in listed:
        path = os.path.join(office.outbox, name)
        try:
            seen = os.lstat(path)
        except OSError:
            continue
        if not names.is_mail(os.path.basename(name)):
            answer["unfinished"] += 1
            if now_ns - seen.st_mtime_ns > _DAY * 10**9:
                why = "its name says that it is not finished; rename it to have it sent, or remove it"
                answer["stray"].append({"file": visible(name), "why": why, **_age(seen.st_mtime_ns, now_ns)})
            continue
        answer["waiting"] += 1
        answer["names"].add(visible(name))
        oldest = min(oldest or (seen.st_mtime_ns, name), (seen.st_mtime_ns, name))
        young = outbox.is_young(seen.st_mtime_ns, now_ns, settle_seconds)
        why_held = _held_back(office, name, max_bytes if young else 0, settle_seconds, now_ns)
        if why_held is not None:
            answer["held_back"].append({"file": visible(name), "why": why_held, **_age(seen.st_mtime_ns, now_ns)})
    if oldest is not None:
        answer["oldest"] = {"file": visible(oldest[1]), **_age(oldest[0], now_ns)}
    return answer


def _held_back(office: Office, name: str, max_bytes: int, settle_seconds: int, now_ns: int) -> str | None:
    """Return why the router would leave a letter alone for now. A settled one (`max_bytes` 0) is not read."""
    head = message.HEAD_BYTES if max_bytes else 0
    reading = outbox.read(
        office.outbox, name, max_bytes=max_bytes, head_bytes=head, settle_seconds=settle_seconds, now_ns=now_ns
    )
    if reading is None:
        return None
    if not max_bytes:
        return reading.why if isinstance(reading, Waiting) else None
    found = letter.assess(reading, visible(name), now_ns=now_ns, settle_seconds=settle_seconds, max_bytes=max_bytes)
    return found.why if isinstance(found, Waiting) else None


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


def _open_items(
    office: Office, waiting: set[str], now_ns: int, problems: list[str]
) -> tuple[list[Answer], list[Answer]] | None:
    """Return what the log calls deferred, and what it calls retried, and is in the outbox still, by recipient.

    None if the log cannot be read.
    """
    try:
        history = History(office, write=False)
    except PostmasterError as fault:
        problems.append(str(fault))
        return None
    found: dict[bool, list[Answer]] = {True: [], False: []}
    for key, item in history.open_items.items():
        file = key.partition(" ")[2]
        if file not in waiting:
            continue
        if item.is_report and not item.retried and not any(reason for reason, _ in item.pending.values()):
            continue  # not put off: the next run routes it
        tried = {to for (to, _), (reason, _) in item.pending.items() if _is_deferral(item, reason)}
        for (recipient, agent), (reason, since) in item.pending.items():
            is_deferred = _is_deferral(item, reason)
            if not is_deferred and recipient in tried:
                continue  # a run has found since whose address it is
            age: Answer = {"since": since, "age_seconds": None}
            with contextlib.suppress(ValueError):
                age = _age(times.parse_time(since), now_ns)
            one = {"file": file, "to": recipient or None, "agent": agent or None, "reason": reason or None, **age}
            found[is_deferred].append(one)
    history.close()
    for listed in found.values():
        listed.sort(key=lambda one: (one["since"], one["file"], one["to"] or ""))
    return found[True], found[False]


def _is_deferral(item: OpenItem, reason: str) -> bool:
    """Tell deferred copies from retried ones, which have the reason they died of until a run has dealt with them."""
    return not item.retried or reasons.action_of(reason) == reasons.DEFERRED


# -- dead letters --------------------------------------------------------------------------------------------------


def _dead(office: Office, problems: list[str]) -> dict[str, int]:
    """Count the dead letters by reason, which their reason files say on a line of its own."""
    try:
        listed = set(os.listdir(office.dead_letter))
    except OSError as fault:
        problems.append(f"dead-letter: cannot be listed: {fault.strerror}")
        return {}
    counts: dict[str, int] = {}
    for name in listed:
        is_reason = name.endswith(REASON_SUFFIX) and name + REASON_SUFFIX not in listed
        if name.startswith(".") or is_reason:
            continue
        reason = _reason(os.path.join(office.dead_letter, name + REASON_SUFFIX))
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items()))


def _reason(path: str) -> str:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return "unknown"
    try:
        head = os.read(descriptor, 4096)
    except OSError:
        return "unknown"
    finally:
        os.close(descriptor)
    for line in head.splitlines():
        if line.startswith(b"reason: "):
            word = line[8:].decode("utf-8", "replace").strip().strip("\"'")
            return word if word.isprintable() and word else "unknown"
    return "unknown"
