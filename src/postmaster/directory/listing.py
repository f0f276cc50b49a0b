"""Who is alive, as `postmaster directory` tells it. Changes nothing."""

from typing import Any

from postmaster import delivery_log, maildir, reasons, times
from postmaster.acknowledging import READ
from postmaster.directory import open_view, registration, returning, store
from postmaster.directory.claims import Claim
from postmaster.errors import ConfigurationFault, DiskFault
from postmaster.office import Office
from postmaster.registry.compiled import CompiledRegistry


def survey(office: Office, *, every: bool) -> dict[str, Any]:
    """Return the live instances as plain data, and with `every` the archived ones too. Times are RFC 3339.

    `last_read` is the time of the last `read` line that the log has of an instance; a receiver that moves its mail by
    itself leaves none. `returned`, of an archived one, is what the log says was given back: when, from where, which
    message, and to whom. What this account may not look at is None.
    """
    office.require()
    living = sorted([*store.living(office), *_for_flows(office)], key=lambda claim: claim.id)
    past = sorted(store.past(office), key=lambda claim: claim.archived or "") if every else []
    ids = {claim.id for claim in (*living, *past)}
    problems: list[str] = []
    last, returned = _logged(office, ids, problems) if ids else ({}, {})
    problems += [f"{office.shown(path)}: no claim that can be read; look at it" for path in store.damaged(office)]
    answer: dict[str, Any] = {"office": office.root, "live": [_row(office, claim, last, problems) for claim in living]}
    if every:
        answer["archived"] = [
            _row(office, claim, last, problems)
            | {
                "archived": claim.archived,
                "returned": returned.get(claim.id, []),
                "still_to_return": returning.is_marked(office, claim.id),
            }
            for claim in past
        ]
    return answer | {"problems": problems}


def _for_flows(office: Office) -> list[Claim]:
    """Return the instances for flows that are alive, as claims; none while there is no usable registry."""
    try:
        with open_view(office, write=False) as view:
            if not isinstance(view, CompiledRegistry):
                return [registration.flow_claim(office, agent) for agent in view.for_flows()]
    except ConfigurationFault:
        pass  # the claims tell who is alive all the same
    return []


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


def _row(office: Office, claim: Claim, last: dict[str, str], problems: list[str]) -> dict[str, Any]:
    inbox = office.default_inbox(claim.id)
    found: list[str] | None = None
    try:
        found = maildir.messages(inbox, maildir.UNREAD)
    except PermissionError:
        pass  # that of another account
    except OSError as fault:
        problems.append(f"{office.shown(inbox)}: cannot be read: {fault.strerror}; look what is in its place")
    oldest = maildir.waits_longest(inbox, found or ())
    return {
        **describe(office, claim),
        "unread": None if found is None else len(found),
        "oldest_unread": None if oldest is None else times.timestamp(oldest[0]),
        "last_read": last.get(claim.id),
    }


def _logged(
    office: Office, ids: set[str], problems: list[str]
) -> tuple[dict[str, str], dict[str, list[dict[str, Any]]]]:
    """Return when each of these last had a message acknowledged, and what of its mail was returned.

    Only lines that can be about that are parsed.
    """
    found: dict[str, str] = {}
    returned: dict[str, list[dict[str, Any]]] = {}
    marks = [b'"action":"%s"' % action.encode() for action in (READ, reasons.RETURNED)]
    try:
        files = delivery_log.log_files(office)
    except PermissionError:  # that of another account, which says nothing to this one
        return found, returned
    for path in files:
        try:
            with delivery_log.open_log(path) as stream:
                for line in stream:
                    record = delivery_log.decode(line) if any(mark in line for mark in marks) else None
                    if record is None or record.get("agent") not in ids:
                        continue
                    if record["action"] == READ:
                        found[record["agent"]] = record["time"]
                    elif record["action"] == reasons.RETURNED:
                        told = {name: record.get(name) for name in ("time", "path", "correlation_id", "to")}
                        told["id"] = record.get("in_reply_to")
                        returned.setdefault(record["agent"], []).append(told)
        except (*delivery_log.DAMAGE, DiskFault) as fault:
            problems.append(f"{office.shown(path)}: cannot be read: {fault}")
    return found, returned
