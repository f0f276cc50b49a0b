"""The outbox as `status` shows it: what waits, what is held back and why, what was deferred. Changes nothing."""

import contextlib
import os
from collections.abc import Mapping
from typing import Any, Final

from postmaster import letter, message, names, outbox, reasons, times
from postmaster.errors import ConfigurationFault, PostmasterError
from postmaster.history import History
from postmaster.office import Office, visible
from postmaster.open_items import OpenItem
from postmaster.outbox import Waiting
from postmaster.settings import Settings

DAY: Final = 24 * 3600

Answer = dict[str, Any]


def age(since_ns: int, now_ns: int) -> Answer:
    """Return a time and how long ago that is, as plain data."""
    return {"since": times.timestamp(since_ns), "age_seconds": max(0, (now_ns - since_ns) // 10**9)}


def survey(office: Office, settings: Settings, now_ns: int, problems: list[str]) -> Answer:
    """Look at the outbox: what waits, what is held back and why, and stray names that will never be mail.

    `names` has for each letter when it came or was changed, in nanoseconds.
    """
    outbox.survive_lease_breaks()
    answer: Answer = {"waiting": 0, "oldest": None, "held_back": [], "unfinished": 0, "stray": [], "names": {}}
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
            if now_ns - seen.st_mtime_ns > DAY * 10**9:
                why = "its name says that it is not finished; rename it to have it sent, or remove it"
                answer["stray"].append({"file": visible(name), "why": why, **age(seen.st_mtime_ns, now_ns)})
            continue
        answer["waiting"] += 1
        answer["names"][visible(name)] = max(seen.st_ctime_ns, seen.st_mtime_ns)
        oldest = min(oldest or (seen.st_mtime_ns, name), (seen.st_mtime_ns, name))
        young = outbox.is_young(seen.st_mtime_ns, now_ns, settle_seconds)
        why_held = _held_back(office, name, max_bytes if young else 0, settle_seconds, now_ns)
        if why_held is not None:
            answer["held_back"].append({"file": visible(name), "why": why_held, **age(seen.st_mtime_ns, now_ns)})
    if oldest is not None:
        answer["oldest"] = {"file": visible(oldest[1]), **age(oldest[0], now_ns)}
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


def open_items(
    office: Office, waiting: Mapping[str, int], now_ns: int, problems: list[str]
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
            aged: Answer = {"since": since, "age_seconds": None}
            with contextlib.suppress(ValueError):
                aged = age(times.parse_time(since), now_ns)
            one = {"file": file, "to": recipient or None, "agent": agent or None, "reason": reason or None, **aged}
            found[is_deferred].append(one)
    history.close()
    for listed in found.values():
        listed.sort(key=lambda one: (one["since"], one["file"], one["to"] or ""))
    return found[True], found[False]


def _is_deferral(item: OpenItem, reason: str) -> bool:
    """Tell deferred copies from retried ones, which have the reason they died of until a run has dealt with them."""
    return not item.retried or reasons.action_of(reason) == reasons.DEFERRED


def overlooked(arrived: Mapping[str, int], told_of: set[str], last_run: float | None, settle_seconds: int) -> list[str]:
    """Return the letters that a run should have dealt with, and has neither moved nor called deferred.

    Args:
        arrived: by name, when a letter came (nanoseconds).
        told_of: the names of those that are known to wait.
        last_run: when the last run began (seconds); None if there was none.
    """
    if last_run is None:
        return []
    before = (last_run - max(settle_seconds, 1)) * 1e9
    return sorted(name for name, since in arrived.items() if since < before and name not in told_of)
