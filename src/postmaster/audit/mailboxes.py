"""The log against the mailboxes: for every copy its file, for every file its line."""

import os
from collections.abc import Iterable

from postmaster import inspection, ledger
from postmaster.audit.sheet import LOG, RESTORE, Sheet, named
from postmaster.inventory import File, Mailbox, home_of
from postmaster.ledger import Copy, Letter


def check_mailboxes(sheet: Sheet) -> int:
    """Match mailboxes with the log, and tell of what has no counterpart; return how many mailboxes there are."""
    mailboxes, by_path = sheet.inventory.mailboxes(sheet.ledger.copies)
    _expect(sheet, by_path, {mailbox.agent: mailbox for mailbox in mailboxes if mailbox.agent})
    for mailbox in mailboxes:
        _match(sheet, sheet.inventory.files(mailbox), mailbox)
    _missing(sheet, mailboxes)
    _unlogged(sheet)
    return len(mailboxes)


def _expect(sheet: Sheet, by_path: dict[str, Mailbox], by_agent: dict[str, Mailbox]) -> None:
    """Note in which mailbox each copy may be: where it was put, or where its agent's inbox is now."""
    for copy in sheet.ledger.copies:
        base = ledger.base_name(copy.path)
        places = {box.path for box in (by_path.get(home_of(sheet.office, copy) or ""), by_agent.get(copy.agent)) if box}
        for place in places:
            sheet.expected.setdefault((place, base), []).append(copy)


def _match(sheet: Sheet, files: Iterable[File], mailbox: Mailbox) -> None:
    """Find for every file of a mailbox the line that delivered it: first those that agree in all, then by name."""
    left = [found for found in files if not _claim(sheet, found, _agreeing(sheet, found, mailbox))]
    for found in left:
        copy = next(iter(_candidates(sheet, found, mailbox)), None)
        if copy is None:
            sheet.alone.append(found)
            continue
        copy.found = found.shown
        sheet.edited.append((copy.at, found.shown, found.seen))


def _claim(sheet: Sheet, found: File, copy: Copy | None) -> bool:
    if copy is None:
        return False
    copy.found = found.shown
    if found.seen.faults:
        sheet.edited.append((copy.at, found.shown, found.seen))
    return True


def _candidates(sheet: Sheet, found: File, mailbox: Mailbox) -> list[Copy]:
    """Return the copies, not found yet, that this file may be by name; those of its very name first."""
    expected = sheet.expected.get((mailbox.path, ledger.base_name(found.name)), ())
    copies = [copy for copy in expected if copy.found is None]
    return sorted(copies, key=lambda copy: os.path.basename(copy.path) != found.name)


def _agreeing(sheet: Sheet, found: File, mailbox: Mailbox) -> Copy | None:
    return next((copy for copy in _candidates(sheet, found, mailbox) if copy.letter == found.letter), None)


def _missing(sheet: Sheet, mailboxes: list[Mailbox]) -> None:
    """Tell of copies that the log delivered and no mailbox holds."""
    strays: dict[Letter, File] = {one.letter: one for one in sheet.alone if one.letter is not None}
    explained: set[str] = set()
    agents = {mailbox.agent for mailbox in mailboxes}
    lost: dict[str, list[Copy]] = {}
    gone: list[tuple[Copy, str]] = []
    for copy in sheet.ledger.copies:
        if copy.found is not None:
            continue
        home = home_of(sheet.office, copy)
        if home is None and os.path.lexists(os.path.join(sheet.office.root, copy.path)):
            sheet.counts["elsewhere"] += 1
            copy.found = copy.path
        elif not sheet.ledger.is_last_word(copy.at):
            sheet.leave_unchecked(LOG)
        elif (stray := strays.pop(copy.letter, None)) is not None:
            copy.found = stray.shown
            explained.add(stray.shown)
            what = f"delivered to {copy.agent} as {copy.path}, but it lies in {stray.shown}"
            sheet.report.differs("misplaced", sheet.ledger.place(copy.at), what, "move it back", named(stray.seen))
        elif (closed := sheet.inventory.closed(copy)) is not None:
            sheet.leave_unchecked(closed)
        elif home is not None and copy.agent not in agents and not os.path.isdir(home):
            lost.setdefault(home, []).append(copy)
        else:
            gone.append((copy, "is in neither unread/ nor read/" if home else "is not there"))
    sheet.alone = [one for one in sheet.alone if one.shown not in explained]
    records = sheet.ledger.records_at(copy.at for copy, _ in gone)
    for copy, what in gone:
        sheet.counts["missing"] += 1
        message = ledger.identity(records.get(copy.at, {}))
        where = f"(delivered to {copy.agent or 'nobody'}: {sheet.ledger.place(copy.at)})"
        remedy = "it was deleted or renamed: restore it from a backup"
        sheet.report.differs("gone", copy.path, f"{what} {where}", remedy, message)
    for home, copies in lost.items():
        sheet.counts["missing"] += len(copies)
        what = f"the inbox is gone, and with it {len(copies)} delivered messages (first: "
        what += f"{sheet.ledger.place(copies[0].at)})"
        sheet.report.differs("inbox-missing", sheet.office.shown(home), what, "mount it, or restore it from a backup")


def _unlogged(sheet: Sheet) -> None:
    """Tell of files in mailboxes that no line delivered."""
    for found in sheet.alone:
        copy = sheet.ledger.given.get((found.letter, found.mailbox.agent)) if found.letter else None
        is_second = copy is not None and copy.found is not None
        if not is_second and _is_left_unchecked(sheet, found):
            continue
        sheet.counts["unlogged"] += 1
        if copy is not None and is_second:
            what = f"a second copy of {copy.found} ({sheet.ledger.place(copy.at)} delivered one)"
            sheet.report.differs("second-copy", found.shown, what, "keep one of the two", named(found.seen))
            continue
        faults = "".join(f", and {fault}" for fault in found.seen.faults)
        what = "mail written straight into an inbox without a log line" + faults
        remedy = "move it to outbox/ to have it routed; if lines were cut from the log, bring them back"
        sheet.report.differs("unlogged", found.shown, what, remedy, named(found.seen))


def _is_left_unchecked(sheet: Sheet, found: File) -> bool:
    """Tell whether a file has no line only because it, or the log, cannot be read. Its hash is checked still."""
    if found.seen.unreadable:
        sheet.report.differs("unreadable", found.shown, "; ".join(found.seen.faults), "mend it")
        sheet.counts["unchecked"] += 1
        return True
    numbered = inspection.is_numbered(found.name)
    if not sheet.ledger.unreadable and not (sheet.ledger.gone and numbered):
        return False
    if numbered and found.seen.faults:
        sheet.report.differs("header-changed", found.shown, "; ".join(found.seen.faults), RESTORE, named(found.seen))
    sheet.leave_without_line("messages")
    return True
