"""The log against the letters that nobody has: dead letters, and what waits in the outbox."""

import os

from postmaster import delivery_log, inspection, ledger, names, outbox
from postmaster.audit.sheet import LOG, Sheet
from postmaster.errors import ConfigurationFault, DiskFault
from postmaster.ledger import At, Dead
from postmaster.office import visible
from postmaster.outbox import Source
from postmaster.refusals import REASON_SUFFIX
from postmaster.settings import load_settings


def check_dead_letters(sheet: Sheet) -> None:
    """Tell of dead letters that are not as the log says, and of what the log says and is not there."""
    sheet.inventory.temporaries(sheet.office.private)
    try:
        with os.scandir(sheet.office.dead_letter) as entries:
            found = {visible(entry.name): entry for entry in entries if not entry.name.startswith(".")}
        os.stat(os.path.join(sheet.office.dead_letter, os.curdir))
    except OSError as fault:
        sheet.report.differs("unreadable", "dead-letter", f"cannot be read: {fault.strerror}", "mend it")
        for _ in sheet.ledger.dead:
            sheet.leave_unchecked("dead-letter")
        return
    folder = sheet.office.shown(sheet.office.dead_letter)
    for path, (dead, file) in sheet.ledger.released.items():
        if os.path.basename(path) in found:
            sheet.ledger.dead[path] = dead
            sheet.held_back.add(file)
            sheet.report.note(
                f"{path}: was to be sent again, and was not; `postmaster dead-letter retry` can be repeated"
            )
    logged = {os.path.basename(path): dead for path, dead in sheet.ledger.dead.items()}
    for name, entry in sorted(found.items()):
        path = f"{folder}/{name}"
        if entry.path in sheet.unfinished or entry.path.removesuffix(REASON_SUFFIX) in sheet.unfinished:
            continue
        if name.endswith(REASON_SUFFIX) and name not in logged and name + REASON_SUFFIX not in found:
            if name.removesuffix(REASON_SUFFIX) not in found:
                sheet.report.differs("reason-alone", path, "a reason file without its letter", "restore the letter")
            continue
        sheet.counts["dead"] += 1
        has_reason = name + REASON_SUFFIX in found
        if name not in logged and (sheet.ledger.unreadable or (sheet.ledger.gone and has_reason)):
            sheet.leave_without_line("dead letters")
        elif name not in logged:
            sheet.counts["unlogged"] += 1
            remedy = "to have it sent, move it to outbox/"
            sheet.report.differs("unlogged", path, "a dead letter without a log line", remedy)
        else:
            _dead_letter(sheet, entry, path, logged[name])
        if not has_reason:
            remedy = "its log line has the reason: `postmaster log --json | grep` for the name"
            sheet.report.differs("reason-missing", path, "a dead letter without its reason file", remedy)
    missing = [dead for name, dead in logged.items() if name not in found]
    absent = [dead for dead in missing if sheet.ledger.is_last_word(dead.at)]
    for _ in range(len(missing) - len(absent)):
        sheet.leave_unchecked(LOG)
    records = sheet.ledger.records_at(dead.at for dead in absent)
    for dead in absent:
        sheet.counts["missing"] += 1
        what = f"the dead letter is gone ({sheet.ledger.place(dead.at)})"
        remedy = "it was deleted, or sent again by hand (use `dead-letter retry`): restore it from a backup"
        sheet.report.differs("dead-letter-gone", dead.path, what, remedy, ledger.identity(records.get(dead.at, {})))


def _dead_letter(sheet: Sheet, entry: os.DirEntry[str], path: str, dead: Dead) -> None:
    if not entry.is_file(follow_symlinks=False) or dead.special:
        if not dead.special:
            sheet.report.differs("not-a-file", path, "is no regular file any more", "restore it from a backup")
        return
    try:
        seen = inspection.refused(entry.path, hashed=dead.hashed)
    except FileNotFoundError:
        return
    except OSError as fault:
        sheet.report.differs("unreadable", path, f"cannot be read: {fault.strerror}", "mend it")
        return
    sheet.counts["hashed"] += 1
    if seen.key == dead.letter[0]:
        return
    if not sheet.ledger.is_last_word(dead.at):  # another may have died under this name since
        sheet.leave_unchecked(LOG)
        return
    if seen.fields:
        seen.fields = {**seen.fields, "id": seen.body, "sequence": dead.letter[1]}
    sheet.edited.append((dead.at, path, seen))


def check_outbox(sheet: Sheet) -> set[str]:
    """Return the names that wait, as the log writes them; tell of letters that were to wait and do not."""
    opened = sheet.ledger.opened_at
    try:
        listed = outbox.scan(sheet.office.outbox, drop_folders=_drop_folders(sheet), every=True)
    except OSError as fault:
        sheet.report.differs("unreadable", "outbox", f"cannot be read: {fault.strerror}", "mend it")
        sheet.unchecked["outbox"] += len(sheet.ledger.open_items)
        return set()
    waiting = {visible(name) for name in listed if names.is_mail(os.path.basename(name))}
    if names.TAKEN in listed:
        sheet.report.note(f"outbox/{names.TAKEN}: a run is at work or was cut off; the next one ends it")
    gone = {
        key: opened[key]
        for key in sheet.ledger.open_items
        if key in opened and key.partition(" ")[2] not in waiting | sheet.held_back
    }
    unsure = [key for key, at in gone.items() if not sheet.ledger.is_last_word(at)]
    sheet.unchecked[LOG] += len(unsure)
    gone = {key: at for key, at in gone.items() if key not in unsure}
    records = sheet.ledger.records_at(gone.values())
    later = _handled_later(sheet, gone)
    for key, at in gone.items():
        file = key.partition(" ")[2]
        if file not in later:
            what = f"deferred, but outbox/{file} is gone"
            remedy = "its sender took it back or changed it: nothing, if that was meant"
            identity = ledger.identity(records.get(at, {}))
            sheet.report.differs("waiting-gone", sheet.ledger.place(at), what, remedy, identity)
    waiting -= {visible(source.name) for source in sheet.done if _is_there(sheet, source)}
    sheet.counts["waiting"] = len(waiting)
    return waiting


def _drop_folders(sheet: Sheet) -> bool:
    """Tell whether the office has drop folders that can be looked into."""
    try:
        there = load_settings(sheet.office).drop_folders
        return there and bool(outbox.folders(sheet.office.outbox))
    except ConfigurationFault as fault:
        sheet.report.note(str(fault))
        return False


def _is_there(sheet: Sheet, source: Source) -> bool:
    """Tell whether a letter that is delivered is in the outbox still, and not another one under its name."""
    try:
        return outbox.is_same(source, os.lstat(os.path.join(sheet.office.outbox, source.name)))
    except OSError:
        return False


def _handled_later(sheet: Sheet, gone: dict[str, At]) -> set[str]:
    """Return those files that were handled later with another text: changed by their senders as they waited."""
    opened = {key.partition(" ")[2]: at for key, at in gone.items()}
    later: set[str] = set()
    if not opened:
        return later
    for index, path in enumerate(sheet.ledger.files):
        try:
            for number, record in delivery_log.read_records(path):
                file = record.get("file")
                if file in opened and (index, number) > opened[file] and record["action"] != "deferred":
                    later.add(file)
        except DiskFault:
            continue
    return later
