"""Writing the office's own mail: what a report says, and how (docs/formats/report.md)."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import md5
from typing import Final

from postmaster import message, reasons, reports, times
from postmaster.composition import Draft, compose
from postmaster.delivery_log import Record
from postmaster.reports import Report

_KIND: Final = (
    "x-postmaster"  # RFC 3464 section 2.1.2: of addresses, names and diagnostics that are not of the Internet
)
_MAX_LINE: Final = 500
_MAX_RECIPIENTS: Final = 50
_SUBJECTS: Final = {reports.RETURN: "Returned", reports.BOUNCE: "Not delivered"}
_ACTIONS: Final = {reports.RETURN: reasons.RETURNED, reports.BOUNCE: reasons.BOUNCED}


@dataclass(frozen=True, slots=True)
class Failure:
    """One recipient that does not get a message: as the sender wrote it, whose mailbox, and why."""

    to: str | None
    agent: str | None
    reason: str
    detail: str | None


@dataclass(frozen=True, slots=True)
class Original:
    """The message that a report is about.

    Attributes:
        record: what the log says of it, as far as that is known.
        path: where it is, as shown.
        part: all of it, or its beginning; of `size` bytes.
    """

    record: Record
    path: str
    part: bytes
    size: int


def write(
    type_: str,
    to: str,
    sender: str,
    original: Original,
    failures: Sequence[Failure],
    opening: str,
    *,
    agent: str | None,
    office_name: str,
    now_ns: int,
) -> Report:
    """Return a report.

    Args:
        to, sender: whom it goes to, and the office's own address.
        failures: at least one.
        opening: what a person reads first, in one line.
        agent: whose mail it is about, for the log.
    """
    record = original.record
    flow = record.get("correlation_id")
    first = failures[0]
    remedies = dict.fromkeys(reasons.remedy(failure.reason) for failure in failures)
    text = [
        _line(opening),
        *(_line(f"What to do: {remedy}.") for remedy in remedies),
        "",
        *_about(original, office_name),
    ]
    for failure in failures[:_MAX_RECIPIENTS]:
        text += ["", *_recipient(failure)]
    if len(failures) > _MAX_RECIPIENTS:
        text += ["", f"X-Postmaster-More: {len(failures) - _MAX_RECIPIENTS} other recipients"]
    body = "\n".join([*text, "", ""]).encode() + reports.attachment(original.part, original.size)
    alone = f"undelivered-{md5(original.part, usedforsecurity=False).hexdigest()}"
    draft = Draft(
        to=(to,),
        sender=sender,
        type=type_,
        subject=_line(f"{_SUBJECTS[type_]}: {record.get('subject', 'a message')}"),
        correlation_id=flow or alone,
        sent_at=times.timestamp(now_ns),
        body=body,
        in_reply_to=record.get("id") if flow else None,
    )
    report_id = message.body_id(body)
    line: Record = {
        "action": _ACTIONS[type_],
        "id": report_id,
        "correlation_id": draft.correlation_id,
        "from": draft.sender,
        "to": to,
        "type": type_,
        "subject": draft.subject,
        "sent_at": draft.sent_at,
        "in_reply_to": draft.in_reply_to,
        "agent": agent,
        "path": original.path,
        "reason": first.reason,
        "status": reasons.REASONS[first.reason].status,
        "detail": first.detail,
    }
    order = f"{record.get('sequence') or 0:0>6}"  # reports of one batch are sent at one time: ties go by name
    return Report(f"{type_}-{order}-{report_id}.md", compose(draft), line)


def _about(original: Original, office_name: str) -> list[str]:
    """Return the fields about the message as a whole (RFC 3464 section 2.2)."""
    record = original.record
    fields = {
        "Reporting-MTA": f"{_KIND}; {office_name}",
        "Original-Envelope-Id": record.get("id"),
        "X-Postmaster-Correlation-Id": record.get("correlation_id"),
        "X-Postmaster-Sequence": record.get("sequence"),
        "X-Postmaster-Type": record.get("type"),
        "X-Postmaster-Subject": record.get("subject"),
        "X-Postmaster-Sent-At": record.get("sent_at"),
        "X-Postmaster-Path": original.path,
    }
    return [_line(f"{name}: {value}") for name, value in fields.items() if value is not None]


def _recipient(failure: Failure) -> list[str]:
    """Return the fields about one recipient (RFC 3464 section 2.3)."""
    reason = reasons.REASONS[failure.reason]
    detail = f"{reason.name}: {failure.detail}" if failure.detail else reason.name
    fields = {
        "Original-Recipient": f"{_KIND}; {failure.to}" if failure.to else None,
        "Final-Recipient": f"{_KIND}; {failure.agent or failure.to or 'unknown'}",
        "Action": "failed",
        "Status": reason.status,
        "Diagnostic-Code": f"{_KIND}; {detail}",
    }
    return [_line(f"{name}: {value}") for name, value in fields.items() if value is not None]


def _line(text: str) -> str:
    """Return `text` fit to be one line of a report: nothing in it breaks a line, drives a terminal or has no end."""
    plain = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
    return plain if len(plain) <= _MAX_LINE else plain[: _MAX_LINE - 3] + "..."
