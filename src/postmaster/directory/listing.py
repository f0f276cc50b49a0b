"""Who is alive, as `postmaster directory` tells it. Changes nothing."""

import contextlib
import os
from typing import Any

from postmaster import delivery_log, maildir, times
from postmaster.directory import store
from postmaster.directory.claims import Claim
from postmaster.errors import DiskFault
from postmaster.office import Office
from postmaster.reading import READ


def survey(office: Office, *, every: bool) -> dict[str, Any]:
    """Return the live instances as plain data, and with `every` the archived ones too. Times are RFC 3339.

    `last_read` is the time of the last `read` line that the log has of an instance; a receiver that moves its mail by
    itself leaves none. What this account may not look at is None.
    """
    office.require()
    living = sorted(store.living(office), key=lambda claim: claim.id)
    past = sorted(store.past(office), key=lambda claim: claim.archived or "") if every else []
    ids = {claim.id for claim in (*living, *past)}
    problems: list[str] = []
    last = _last_read(office, ids, problems) if ids else {}
    problems += [f"{office.shown(path)}: no claim that can be read; look at it" for path in store.damaged(office)]
    answer: dict[str, Any] = {"office": office.root, "live": [_row(office, claim, last) for claim in living]}
    if every:
        answer["archived"] = [_row(office, claim, last) | {"archived": claim.archived} for claim in past]
    return answer | {"problems": problems}


def describe(office: Office, claim: Claim) -> dict[str, Any]:
    """Return an instance as plain data."""
    return {
        "id": claim.id,
        "name": claim.name,
        "address": claim.address,
        "class": claim.class_id,
        "roles": list(claim.roles),
        "inbox": office.shown(office.default_inbox(claim.id)),
        "since": claim.since,
    }


def _row(office: Office, claim: Claim, last: dict[str, str]) -> dict[str, Any]:
    inbox = office.default_inbox(claim.id)
    oldest: str | None = None
    found: list[str] | None = None
    with contextlib.suppress(PermissionError):  # that of another account
        found = maildir.messages(inbox, maildir.UNREAD)
    for name in (found or ())[:1]:  # names sort by time
        with contextlib.suppress(OSError):
            oldest = times.timestamp(os.lstat(os.path.join(inbox, maildir.UNREAD, name)).st_mtime_ns)
    return {
        **describe(office, claim),
        "unread": None if found is None else len(found),
        "oldest_unread": oldest,
        "last_read": last.get(claim.id),
    }


def _last_read(office: Office, ids: set[str], problems: list[str]) -> dict[str, str]:
    """Return when each of these last had a message acknowledged. Only lines that can be about that are parsed."""
    found: dict[str, str] = {}
    mark = b'"action":"%s"' % READ.encode()
    try:
        files = delivery_log.log_files(office)
    except PermissionError:  # that of another account, which says nothing to this one
        return found
    for path in files:
        try:
            with delivery_log.open_log(path) as stream:
                for line in stream:
                    record = delivery_log.decode(line) if mark in line else None
                    if record is not None and record["action"] == READ and record.get("agent") in ids:
                        found[record["agent"]] = record["time"]
        except (*delivery_log.DAMAGE, DiskFault) as fault:
            problems.append(f"{office.shown(path)}: cannot be read: {fault}")
    return found
