"""`postmaster verify`: is every message where the log says, as it was sent, and nothing else? Changes nothing.

The sum at the end is a conservation law: what came in is unread, read, dead or waiting, or a difference names it.
No lock is taken. A router or a receiver at work can make the disk and the log differ for a moment, so an audit that
finds differences while anything moves is done again, and only what both saw is told.
What cannot be read is one difference; the mail that could not be checked for that is counted in a note, not accused.
"""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any, Final

from postmaster import delivery_log, inspection, journal, ledger, names, outbox, removals
from postmaster.errors import ConfigurationFault, DiskFault
from postmaster.inspection import Inspected
from postmaster.inventory import File, Findings, Inventory, Mailbox, home_of
from postmaster.ledger import At, Copy, Dead, Difference, Letter
from postmaster.office import Office, visible
from postmaster.outbox import Source
from postmaster.refusals import REASON_SUFFIX
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView
from postmaster.settings import load_settings

FIELDS: Final = ("id", "sequence", "correlation_id", "from", "type", "subject", "sent_at", "in_reply_to")
_ATTEMPTS: Final = 3
_COUNTED: Final = (
    *("letters", "copies", "unread", "read", "dead", "waiting"),
    *("elsewhere", "missing", "unlogged", "unchecked", "hashed"),
)
_LOG: Final = "logs"  # the place of what cannot be checked for want of the whole log
_RESTORE: Final = "restore it from a backup"
_PUT_BACK: Final = "put back what the log line says, or restore it from a backup"


class Audit(Findings):
    """What an audit found. `counts` are those of the sum (`total`)."""

    def total(self) -> str:
        """Return the sum in words: what came in, and where it is."""
        counts = self.counts
        parts = [f"{counts[name]} {name}" for name in ("unread", "read", "dead", "waiting")]
        parts += [f"{counts['elsewhere']} elsewhere"] if counts["elsewhere"] else []
        there = sum(counts[name] for name in ("unread", "read", "dead", "waiting", "elsewhere"))
        balanced = counts["copies"] == there
        came = f"in: {counts['letters']} letters ({counts['copies']} copies)"
        text = f"{came} {'=' if balanced else 'are not the'} {' + '.join(parts)}"
        text += "" if balanced else f" ({there}) that are here"
        odd = [f"{counts[name]} {name}" for name in ("missing", "unlogged", "unchecked") if counts[name]]
        return text + (f": {', '.join(odd)}" if odd else "")


def verify(
    office: Office, *, pause: Callable[[float], None] = time.sleep, open_view: OpenView = compiled.open_view
) -> Audit:
    """Audit an office.

    Raises:
        ConfigurationFault: this root is no office.
    """
    office.require()
    position = _position(office)
    found = _Auditor(office, open_view).audit()
    for attempt in range(1, _ATTEMPTS):
        quiet = _is_quiet(office, position)
        if not found.differences or (quiet and attempt > 1):
            break  # a receiver's rename shows nowhere, so that what differs is always looked at twice
        if not quiet:
            pause(0.5)
        position = _position(office)
        before = {(one.kind, one.place) for one in found.differences}
        found = _Auditor(office, open_view).audit()
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


class _Auditor:
    def __init__(self, office: Office, open_view: OpenView) -> None:
        self._office = office
        self._report = Audit()
        self._counts = self._report.counts = dict.fromkeys(_COUNTED, 0)
        self._ledger = ledger.Ledger(office)
        self._unfinished: set[str] = set()  # paths of a batch that the next run ends
        self._inventory = Inventory(office, self._report, self._unfinished, open_view)
        self._expected: dict[tuple[str, str], list[Copy]] = {}  # by mailbox and base name
        self._edited: list[tuple[At, str, Inspected]] = []  # (log line, path, file) that do not agree
        self._alone: list[File] = []  # without a log line
        self._done: list[Source] = []  # letters that are delivered and logged, and in the outbox still
        self._unchecked: Counter[str] = Counter()  # by the place that cannot be read
        self._without_log: Counter[str] = Counter()  # what only a log can have put here: numbered mail, dead letters
        self._held_back: set[str] = set()  # names under which dead letters were to be in the outbox again

    def audit(self) -> Audit:
        self._ledger = ledger.read(self._office)
        self._journal()
        self._report.differences.extend(self._ledger.differences)
        self._report.notes.extend(self._ledger.notes)
        mailboxes, by_path = self._inventory.mailboxes(self._ledger.copies)
        self._expect(by_path, {mailbox.agent: mailbox for mailbox in mailboxes if mailbox.agent})
        for mailbox in mailboxes:
            self._match(self._inventory.files(mailbox), mailbox)
        self._missing(mailboxes)
        self._unlogged()
        self._dead_letters()
        waiting = self._outbox()
        self._compare_edited()
        self._tell_unchecked()
        self._count(waiting)
        self._counts |= {"lines": self._ledger.lines, "mailboxes": len(mailboxes)}
        self._report.differences = _order(self._report.differences)
        return self._report

    # -- a run that was cut off --------------------------------------------------------------------------------

    def _journal(self) -> None:
        try:
            batch = journal.load(self._office)
            stuck = removals.pending(self._office)
        except DiskFault as fault:
            path, _, what = str(fault).partition(": ")
            self._report.differs("journal", self._office.shown(path), what, "the office cannot route until then")
            return
        self._done.extend(stuck)
        for source in stuck:
            self._report.note(
                f"outbox/{visible(source.name)}: delivered, but could not be removed; the next run tries again"
            )
        if batch is None:
            return
        self._report.note(
            f"{self._office.shown(self._office.journal)}: a run is at work or was cut off; the next one ends it"
        )
        lines = [delivery_log.encode(record) for entry in batch.entries for record in entry.records]
        try:
            missing = set(delivery_log.missing_lines(self._office, lines, batch.log_position))
        except (*delivery_log.DAMAGE, DiskFault):
            missing = set(lines)
        for entry in batch.entries:
            if any(delivery_log.encode(record) in missing for record in entry.records):
                self._unfinished.update(publication.target for publication in entry.publications)
                if entry.moved_to is not None:
                    self._unfinished.add(entry.moved_to)
            elif entry.ending == journal.REMOVE:
                self._done.append(entry.source)

    # -- the log against the mailboxes -------------------------------------------------------------------------

    def _expect(self, by_path: dict[str, Mailbox], by_agent: dict[str, Mailbox]) -> None:
        """Note in which mailbox each copy may be: where it was put, or where its agent's inbox is now."""
        for copy in self._ledger.copies:
            base = ledger.base_name(copy.path)
            places = {
                box.path for box in (by_path.get(home_of(self._office, copy) or ""), by_agent.get(copy.agent)) if box
            }
            for place in places:
                self._expected.setdefault((place, base), []).append(copy)

    def _match(self, files: Iterable[File], mailbox: Mailbox) -> None:
        """Find for every file of a mailbox the line that delivered it: first those that agree in all, then by name."""
        left = [found for found in files if not self._claim(found, self._agreeing(found, mailbox))]
        for found in left:
            copy = next(iter(self._candidates(found, mailbox)), None)
            if copy is None:
                self._alone.append(found)
                continue
            copy.found = found.shown
            self._edited.append((copy.at, found.shown, found.seen))

    def _claim(self, found: File, copy: Copy | None) -> bool:
        if copy is None:
            return False
        copy.found = found.shown
        if found.seen.faults:
            self._edited.append((copy.at, found.shown, found.seen))
        return True

    def _candidates(self, found: File, mailbox: Mailbox) -> list[Copy]:
        """Return the copies, not found yet, that this file may be by name; those of its very name first."""
        expected = self._expected.get((mailbox.path, ledger.base_name(found.name)), ())
        copies = [copy for copy in expected if copy.found is None]
        return sorted(copies, key=lambda copy: os.path.basename(copy.path) != found.name)

    def _agreeing(self, found: File, mailbox: Mailbox) -> Copy | None:
        return next((copy for copy in self._candidates(found, mailbox) if copy.letter == found.letter), None)

    def _missing(self, mailboxes: list[Mailbox]) -> None:
        """Tell of copies that the log delivered and no mailbox holds."""
        strays: dict[Letter, File] = {one.letter: one for one in self._alone if one.letter is not None}
        explained: set[str] = set()
        agents = {mailbox.agent for mailbox in mailboxes}
        lost: dict[str, list[Copy]] = {}
        gone: list[tuple[Copy, str]] = []
        for copy in self._ledger.copies:
            if copy.found is not None:
                continue
            home = home_of(self._office, copy)
            if home is None and os.path.lexists(os.path.join(self._office.root, copy.path)):
                self._counts["elsewhere"] += 1
                copy.found = copy.path
            elif not self._ledger.is_last_word(copy.at):
                self._leave_unchecked(_LOG)
            elif (stray := strays.pop(copy.letter, None)) is not None:
                copy.found = stray.shown
                explained.add(stray.shown)
                what = f"delivered to {copy.agent} as {copy.path}, but it lies in {stray.shown}"
                self._report.differs("misplaced", self._ledger.place(copy.at), what, "move it back", _named(stray.seen))
            elif (closed := self._inventory.closed(copy)) is not None:
                self._leave_unchecked(closed)
            elif home is not None and copy.agent not in agents and not os.path.isdir(home):
                lost.setdefault(home, []).append(copy)
            else:
                gone.append((copy, "is in neither unread/ nor read/" if home else "is not there"))
        self._alone = [one for one in self._alone if one.shown not in explained]
        records = self._ledger.records_at(copy.at for copy, _ in gone)
        for copy, what in gone:
            self._counts["missing"] += 1
            message = ledger.identity(records.get(copy.at, {}))
            where = f"(delivered to {copy.agent or 'nobody'}: {self._ledger.place(copy.at)})"
            remedy = "it was deleted or renamed: restore it from a backup"
            self._report.differs("gone", copy.path, f"{what} {where}", remedy, message)
        for home, copies in lost.items():
            self._counts["missing"] += len(copies)
            what = f"the inbox is gone, and with it {len(copies)} delivered messages (first: "
            what += f"{self._ledger.place(copies[0].at)})"
            self._report.differs(
                "inbox-missing", self._office.shown(home), what, "mount it, or restore it from a backup"
            )

    def _unlogged(self) -> None:
        """Tell of files in mailboxes that no line delivered."""
        for found in self._alone:
            copy = self._ledger.given.get((found.letter, found.mailbox.agent)) if found.letter else None
            is_second = copy is not None and copy.found is not None
            if not is_second and self._is_left_unchecked(found):
                continue
            self._counts["unlogged"] += 1
            if copy is not None and is_second:
                what = f"a second copy of {copy.found} ({self._ledger.place(copy.at)} delivered one)"
                self._report.differs("second-copy", found.shown, what, "keep one of the two", _named(found.seen))
                continue
            faults = "".join(f", and {fault}" for fault in found.seen.faults)
            what = "mail written straight into an inbox without a log line" + faults
            remedy = "move it to outbox/ to have it routed; if lines were cut from the log, bring them back"
            self._report.differs("unlogged", found.shown, what, remedy, _named(found.seen))

    def _is_left_unchecked(self, found: File) -> bool:
        """Tell whether a file has no line only because it, or the log, cannot be read. Its hash is checked still."""
        if found.seen.unreadable:
            self._report.differs("unreadable", found.shown, "; ".join(found.seen.faults), "mend it")
            self._counts["unchecked"] += 1
            return True
        numbered = inspection.is_numbered(found.name)
        if not self._ledger.unreadable and not (self._ledger.gone and numbered):
            return False
        if numbered and found.seen.faults:
            self._report.differs(
                "header-changed", found.shown, "; ".join(found.seen.faults), _RESTORE, _named(found.seen)
            )
        self._leave_without_line("messages")
        return True

    def _leave_without_line(self, kind: str) -> None:
        if self._ledger.gone:
            self._without_log[kind] += 1
            self._counts["unchecked"] += 1
        else:
            self._leave_unchecked(_LOG)

    def _leave_unchecked(self, place: str) -> None:
        self._unchecked[place] += 1
        self._counts["unchecked"] += 1

    def _tell_unchecked(self) -> None:
        """Say how much could not be checked, and that the log is gone if it is."""
        for place, count in sorted((+self._unchecked).items()):
            self._report.note(f"{place}: {_number(count, 'message')} could therefore not be checked")
        messages, dead = self._without_log["messages"], self._without_log["dead letters"]
        if not messages and not dead:
            return
        are = "is" if messages == 1 else "are"
        there = f"{_number(messages, 'numbered message')} {are} in the inboxes" if messages else ""
        there = there or f"{_number(dead, 'dead letter')} {'is' if dead == 1 else 'are'} here"
        remedy = "restore it from a backup before anything is routed: numbers start again without it"
        place = self._office.shown(self._office.log)
        self._report.differs("log-gone", place, f"the delivery log is gone, though {there}", remedy)
        if dead and messages:
            self._report.note(f"dead-letter: {_number(dead, 'dead letter')} could not be checked without the log")

    def _compare_edited(self) -> None:
        """Say of every file that does not agree with its line, or with itself, in which fields."""
        records = self._ledger.records_at(at for at, _, _ in self._edited)
        for at, shown, seen in self._edited:
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
            self._report.differs(kind, shown, f"{what} ({self._ledger.place(at)})", remedy, identity)

    # -- dead letters ------------------------------------------------------------------------------------------

    def _dead_letters(self) -> None:
        self._inventory.temporaries(self._office.private)
        try:
            with os.scandir(self._office.dead_letter) as entries:
                found = {visible(entry.name): entry for entry in entries if not entry.name.startswith(".")}
            os.stat(os.path.join(self._office.dead_letter, os.curdir))
        except OSError as fault:
            self._report.differs("unreadable", "dead-letter", f"cannot be read: {fault.strerror}", "mend it")
            for _ in self._ledger.dead:
                self._leave_unchecked("dead-letter")
            return
        folder = self._office.shown(self._office.dead_letter)
        for path, (dead, file) in self._ledger.released.items():
            if os.path.basename(path) in found:
                self._ledger.dead[path] = dead
                self._held_back.add(file)
                self._report.note(
                    f"{path}: was to be sent again, and was not; `postmaster dead-letter retry` can be repeated"
                )
        logged = {os.path.basename(path): dead for path, dead in self._ledger.dead.items()}
        for name, entry in sorted(found.items()):
            path = f"{folder}/{name}"
            if entry.path in self._unfinished or entry.path.removesuffix(REASON_SUFFIX) in self._unfinished:
                continue
            if name.endswith(REASON_SUFFIX) and name not in logged and name + REASON_SUFFIX not in found:
                if name.removesuffix(REASON_SUFFIX) not in found:
                    self._report.differs("reason-alone", path, "a reason file without its letter", "restore the letter")
                continue
            self._counts["dead"] += 1
            has_reason = name + REASON_SUFFIX in found
            if name not in logged and (self._ledger.unreadable or (self._ledger.gone and has_reason)):
                self._leave_without_line("dead letters")
            elif name not in logged:
                self._counts["unlogged"] += 1
                remedy = "to have it sent, move it to outbox/"
                self._report.differs("unlogged", path, "a dead letter without a log line", remedy)
            else:
                self._dead_letter(entry, path, logged[name])
            if not has_reason:
                remedy = "its log line has the reason: `postmaster log --json | grep` for the name"
                self._report.differs("reason-missing", path, "a dead letter without its reason file", remedy)
        missing = [dead for name, dead in logged.items() if name not in found]
        absent = [dead for dead in missing if self._ledger.is_last_word(dead.at)]
        for _ in range(len(missing) - len(absent)):
            self._leave_unchecked(_LOG)
        records = self._ledger.records_at(dead.at for dead in absent)
        for dead in absent:
            self._counts["missing"] += 1
            what = f"the dead letter is gone ({self._ledger.place(dead.at)})"
            remedy = "it was deleted, or sent again by hand (use `dead-letter retry`): restore it from a backup"
            self._report.differs("dead-letter-gone", dead.path, what, remedy, ledger.identity(records.get(dead.at, {})))

    def _dead_letter(self, entry: os.DirEntry[str], path: str, dead: Dead) -> None:
        if not entry.is_file(follow_symlinks=False) or dead.special:
            if not dead.special:
                self._report.differs("not-a-file", path, "is no regular file any more", "restore it from a backup")
            return
        try:
            seen = inspection.refused(entry.path, hashed=dead.hashed)
        except FileNotFoundError:
            return
        except OSError as fault:
            self._report.differs("unreadable", path, f"cannot be read: {fault.strerror}", "mend it")
            return
        self._counts["hashed"] += 1
        if seen.key == dead.letter[0]:
            return
        if not self._ledger.is_last_word(dead.at):  # another may have died under this name since
            self._leave_unchecked(_LOG)
            return
        if seen.fields:
            seen.fields = {**seen.fields, "id": seen.body, "sequence": dead.letter[1]}
        self._edited.append((dead.at, path, seen))

    # -- the outbox --------------------------------------------------------------------------------------------

    def _outbox(self) -> set[str]:
        """Return the names that wait, as the log writes them; tell of letters that were to wait and do not."""
        opened = self._ledger.opened_at
        try:
            listed = outbox.scan(self._office.outbox, drop_folders=self._drop_folders(), every=True)
        except OSError as fault:
            self._report.differs("unreadable", "outbox", f"cannot be read: {fault.strerror}", "mend it")
            self._unchecked["outbox"] += len(self._ledger.open_items)
            return set()
        waiting = {visible(name) for name in listed if names.is_mail(os.path.basename(name))}
        if names.TAKEN in listed:
            self._report.note(f"outbox/{names.TAKEN}: a run is at work or was cut off; the next one ends it")
        gone = {
            key: opened[key]
            for key in self._ledger.open_items
            if key in opened and key.partition(" ")[2] not in waiting | self._held_back
        }
        unsure = [key for key, at in gone.items() if not self._ledger.is_last_word(at)]
        self._unchecked[_LOG] += len(unsure)
        gone = {key: at for key, at in gone.items() if key not in unsure}
        records = self._ledger.records_at(gone.values())
        later = self._handled_later(gone)
        for key, at in gone.items():
            file = key.partition(" ")[2]
            if file not in later:
                what = f"deferred, but outbox/{file} is gone"
                remedy = "its sender took it back or changed it: nothing, if that was meant"
                identity = ledger.identity(records.get(at, {}))
                self._report.differs("waiting-gone", self._ledger.place(at), what, remedy, identity)
        waiting -= {visible(source.name) for source in self._done if self._is_there(source)}
        self._counts["waiting"] = len(waiting)
        return waiting

    def _drop_folders(self) -> bool:
        """Tell whether the office has drop folders that can be looked into."""
        try:
            there = load_settings(self._office).drop_folders
            return there and bool(outbox.folders(self._office.outbox))
        except ConfigurationFault as fault:
            self._report.note(str(fault))
            return False

    def _is_there(self, source: Source) -> bool:
        """Tell whether a letter that is delivered is in the outbox still, and not another one under its name."""
        try:
            return outbox.is_same(source, os.lstat(os.path.join(self._office.outbox, source.name)))
        except OSError:
            return False

    def _handled_later(self, gone: dict[str, At]) -> set[str]:
        """Return those files that were handled later with another text: changed by their senders as they waited."""
        opened = {key.partition(" ")[2]: at for key, at in gone.items()}
        later: set[str] = set()
        if not opened:
            return later
        for index, path in enumerate(self._ledger.files):
            try:
                for number, record in delivery_log.read_records(path):
                    file = record.get("file")
                    if file in opened and (index, number) > opened[file] and record["action"] != "deferred":
                        later.add(file)
            except DiskFault:
                continue
        return later

    # -- the sum -----------------------------------------------------------------------------------------------

    def _count(self, waiting: set[str]) -> None:
        """Count what came in: copies by the log, and letters, which may have several copies."""
        placed: list[Copy | Dead] = [*self._ledger.copies, *self._ledger.dead.values()]
        numbered = {(one.flow, one.letter[1]) for one in placed if one.letter[1] is not None}
        unnumbered = sum(one.letter[1] is None for one in placed)
        items = self._ledger.open_items.items()
        counted = {key.partition(" ")[2] for key, item in items if item.sequence is not None}
        self._counts["copies"] = len(placed) + len(waiting)
        self._counts["letters"] = len(numbered) + unnumbered + len(waiting - counted)


def _named(seen: Inspected) -> dict[str, Any]:
    named = ledger.identity(seen.fields)
    return {**named, "sequence": seen.sequence} if seen.sequence is not None else named


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


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
