"""`postmaster verify`: is every message where the log says, as it was sent, and nothing else? Changes nothing.

The sum at the end is a conservation law: what came in is unread, read, dead or waiting, or a difference names it.
No lock is taken. A router or a receiver at work can make the disk and the log differ for a moment, so an audit that
finds differences while anything moves is done again, and only what both saw is told.
What cannot be read is one difference; the mail that could not be checked for that is counted in a note, not accused.
"""

import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

from postmaster import delivery_log, journal, ledger, removals
from postmaster.audit.letters import check_dead_letters, check_outbox
from postmaster.audit.mailboxes import check_mailboxes
from postmaster.audit.sheet import Audit, Sheet
from postmaster.errors import DiskFault
from postmaster.ledger import Copy, Dead, Difference
from postmaster.office import Office, visible
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView

FIELDS: Final = ("id", "sequence", "correlation_id", "from", "type", "subject", "sent_at", "in_reply_to")
_ATTEMPTS: Final = 3
_PUT_BACK: Final = "put back what the log line says, or restore it from a backup"


def verify(
    office: Office, *, pause: Callable[[float], None] = time.sleep, open_view: OpenView = compiled.open_view
) -> Audit:
    """Audit an office.

    Raises:
        ConfigurationFault: this root is no office.
    """
    office.require()
    position = _position(office)
    found = _audit(office, open_view)
    for attempt in range(1, _ATTEMPTS):
        quiet = _is_quiet(office, position)
        if not found.differences or (quiet and attempt > 1):
            break  # a receiver's rename shows nowhere, so that what differs is always looked at twice
        if not quiet:
            pause(0.5)
        position = _position(office)
        before = {(one.kind, one.place) for one in found.differences}
        found = _audit(office, open_view)
        found.differences = [one for one in found.differences if (one.kind, one.place) in before]
        if not quiet:
            found.note(
                "mail moved while it was audited; only what two audits saw is told, and the sum is not of one moment"
            )
    return found


def _position(office: Office) -> tuple[int, int] | None:
    """Return where the log ends; None if nobody can tell."""
    try:
        return delivery_log.position(office)
    except OSError:
        return None


def _is_quiet(office: Office, position: tuple[int, int] | None) -> bool:
    """Tell whether nothing was logged since, and no batch is being carried out."""
    return _position(office) == position and not os.path.lexists(office.journal)


def _audit(office: Office, open_view: OpenView) -> Audit:
    sheet = Sheet(office, open_view)
    _journal(sheet)
    sheet.report.differences.extend(sheet.ledger.differences)
    sheet.report.notes.extend(sheet.ledger.notes)
    mailboxes = check_mailboxes(sheet)
    check_dead_letters(sheet)
    waiting = check_outbox(sheet)
    _compare_edited(sheet)
    sheet.tell_unchecked()
    _count(sheet, waiting)
    sheet.counts.update({"lines": sheet.ledger.lines, "mailboxes": mailboxes})
    sheet.report.differences = _order(sheet.report.differences)
    return sheet.report


def _journal(sheet: Sheet) -> None:
    try:
        batch = journal.load(sheet.office)
        stuck = removals.pending(sheet.office)
    except DiskFault as fault:
        path, _, what = str(fault).partition(": ")
        sheet.report.differs("journal", sheet.office.shown(path), what, "the office cannot route until then")
        return
    sheet.done.extend(stuck)
    for source in stuck:
        sheet.report.note(
            f"outbox/{visible(source.name)}: delivered, but could not be removed; the next run tries again"
        )
    if batch is None:
        return
    sheet.report.note(
        f"{sheet.office.shown(sheet.office.journal)}: a run is at work or was cut off; the next one ends it"
    )
    lines = [delivery_log.encode(record) for entry in batch.entries for record in entry.records]
    try:
        missing = set(delivery_log.missing_lines(sheet.office, lines, batch.log_position))
    except (*delivery_log.DAMAGE, DiskFault):
        missing = set(lines)
    for entry in batch.entries:
        if any(delivery_log.encode(record) in missing for record in entry.records):
            sheet.unfinished.update(publication.target for publication in entry.publications)
            if entry.moved_to is not None:
                sheet.unfinished.add(entry.moved_to)
        elif entry.ending == journal.REMOVE:
            sheet.done.append(entry.source)


def _compare_edited(sheet: Sheet) -> None:
    """Say of every file that does not agree with its line, or with itself, in which fields."""
    records = sheet.ledger.records_at(at for at, _, _ in sheet.edited)
    for at, shown, seen in sheet.edited:
        record = records.get(at, {})
        wrong = list(seen.faults)
        if seen.fields:
            changed = [
                f"`{name}` is {_brief(seen.fields.get(name))}, in the log {_brief(record.get(name))}"
                for name in FIELDS
                if (name != "id" or name in record) and _text(seen.fields.get(name)) != _text(record.get(name))
            ]
            wrong += [", ".join(changed)] if changed else []
        what = "; ".join(wrong or ["it is not as it was when it was refused"])
        body = seen.body is not None and record.get("id") not in (None, seen.body)
        kind = "body-changed" if body else "header-changed"
        identity = ledger.identity(record)
        remedy = _PUT_BACK
        if seen.unreadable:
            kind, what, remedy = "unreadable", "; ".join(seen.faults), "mend it"
        sheet.report.differs(kind, shown, f"{what} ({sheet.ledger.place(at)})", remedy, identity)


def _count(sheet: Sheet, waiting: set[str]) -> None:
    """Count what came in: copies by the log, and letters, which may have several copies."""
    placed: list[Copy | Dead] = [*sheet.ledger.copies, *sheet.ledger.dead.values()]
    numbered = {(one.flow, one.letter[1]) for one in placed if one.letter[1] is not None}
    unnumbered = sum(one.letter[1] is None for one in placed)
    items = sheet.ledger.open_items.items()
    counted = {key.partition(" ")[2] for key, item in items if item.sequence is not None}
    sheet.counts["copies"] = len(placed) + len(waiting)
    sheet.counts["letters"] = len(numbered) + unnumbered + len(waiting - counted)


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _brief(value: Any) -> str:
    if value is None:
        return "missing"
    text = str(value)
    return ascii(text if len(text) <= 60 else text[:57] + "...")


def _order(found: list[Difference]) -> list[Difference]:
    """Return differences by place, without repeats."""
    unique = {(one.kind, one.place, one.what): one for one in found}
    return [replace(unique[key]) for key in sorted(unique, key=lambda key: (key[1], key[0], key[2]))]
