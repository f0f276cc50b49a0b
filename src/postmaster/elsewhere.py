"""What `status` says of other offices: mail that waits for the carrier, how each answered last, the last receipts."""

import json
import os
from typing import Any, Final

from postmaster import delivery_log, durable, maildir, reasons, times
from postmaster.office import Office
from postmaster.settings import Settings

LATER: Final = ".later"  # of the name of the carrier's note that a remote did not answer
LOOKS: Final = ".looks"  # ... that it looks wrong, and what of it
_SHOWN: Final = 5
_BYTES: Final = 256 * 1024  # of the end of the log: older receipts are in `postmaster log --action receipt`


def read_note(office: Office, name: str) -> Any:
    """Return a note of the carrier's (JSON in `carrier/`); None if there is none that can be read."""
    try:
        with open(durable.open_regular(os.path.join(office.carrier, name)), "rb") as stream:
            return json.load(stream)
    except (OSError, ValueError):
        return None


def survey(office: Office, settings: Settings, problems: list[str], now_ns: int) -> list[dict[str, Any]]:
    """Return for each remote how it is: `name`, what waits for it, how it answered, and the last receipts.

    `waiting` counts letters, and `oldest_seconds` is the age of the oldest; `failures` says how often in a row it did
    not answer, `unanswered_seconds` for how long, `why` what was said then, `next_try` when it is tried again; `wrong`
    is what looks wrong with it; `receipts` are the last, newest first. A queue or log that cannot be read is told of in
    `problems`.
    """
    if not settings.remotes:
        return []
    found: list[dict[str, Any]] = []
    try:
        receipts = _receipts(office)
        for remote in settings.remotes:
            own = [one for one in receipts if one["agent"].startswith(f"{remote.name}:")]
            row = {
                "name": remote.name,
                **_waiting(office, remote.name, now_ns),
                **_answers(office, remote.name, now_ns),
            }
            found.append({**row, "receipts": own[:_SHOWN]})
    except OSError as fault:
        problems.append(f"{fault.filename or office.carrier}: cannot be read: {fault.strerror}")
    return found


def _waiting(office: Office, remote: str, now_ns: int) -> dict[str, Any]:
    place = os.path.dirname(office.outgoing(remote, "_"))
    count, oldest = 0, now_ns
    for name in os.listdir(place) if os.path.isdir(place) else ():
        mailbox = os.path.join(place, name)
        there = maildir.messages(mailbox, maildir.UNREAD)
        count += len(there)
        first = maildir.waits_longest(mailbox, there)
        oldest = min(oldest, first[0] if first is not None else oldest)
    return {"waiting": count, "oldest_seconds": (now_ns - oldest) // 10**9 if count else None}


def _answers(office: Office, remote: str, now_ns: int) -> dict[str, Any]:
    later, looks = read_note(office, remote + LATER), read_note(office, remote + LOOKS)
    later = later if isinstance(later, dict) else {}
    next_try, since = later.get("not_before"), later.get("since")
    return {
        "failures": later.get("failures", 0),
        "unanswered_seconds": max(0, now_ns // 10**9 - since) if isinstance(since, int) else None,
        "why": later.get("why"),
        "next_try": times.timestamp(next_try * 10**9) if isinstance(next_try, int) else None,
        "wrong": looks if isinstance(looks, str) else None,
    }


def _receipts(office: Office) -> list[dict[str, Any]]:
    try:
        with open(office.log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _BYTES))
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return []
    records = [one for line in reversed(lines) if (one := delivery_log.decode(line)) is not None]
    wanted = ("time", "to", "subject", "correlation_id", "sequence", "agent", "detail")
    return [{key: one.get(key) for key in wanted} for one in records if one["action"] == reasons.RECEIPT]
