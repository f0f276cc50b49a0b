"""Carrying out a committed batch: publish, log, clear the outbox. The same steps for a run and for its recovery.

Order (each is durable before the next begins): names in the mailboxes, lines in the log, names out of the outbox,
the journal. Every step can be done again.
"""

import contextlib
import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postmaster import delivery_log, durable, journal, maildir, outbox, reasons, refusals, removals
from postmaster.delivery_log import Appended, Record
from postmaster.errors import guarded
from postmaster.journal import Batch, Entry, Publication
from postmaster.office import Office, visible
from postmaster.outbox import Source
from postmaster.removals import Remover

# What a fault means for the mail, by errno; one that is not here means `io-error`. All are tried again.
_FAULTS: Final = {
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
    errno.EFBIG: "disk-full",
    errno.ENOENT: "inbox-unavailable",
    errno.ENOTDIR: "inbox-unavailable",
    errno.EACCES: "inbox-unavailable",
    errno.EPERM: "inbox-unavailable",
    errno.EROFS: "inbox-unavailable",
    errno.ELOOP: "inbox-unavailable",
    errno.ENAMETOOLONG: "inbox-unavailable",
    errno.EEXIST: "inbox-unavailable",
}


def fault_reason(fault: OSError) -> str:
    """Return the reason that stands for this fault of a mailbox."""
    return _FAULTS.get(fault.errno or 0, "io-error")


def deferral(record: Record, reason: str, detail: str) -> Record:
    """Return the log record that says: what `record` was to say is put off."""
    left_out = {"path", "detail"}
    kept = {key: value for key, value in record.items() if key not in left_out}
    status = reasons.REASONS[reason].status
    return {**kept, "action": reasons.DEFERRED, "reason": reason, "status": status, "detail": detail}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was published of a batch.

    Attributes:
        records: what is in the log now; `lines` as they stand there.
        appended: where this run has put them.
    """

    records: list[Record]
    lines: list[bytes]
    appended: Appended | None


def publish(office: Office, batch: Batch, *, again: bool) -> Outcome:
    """Do what a committed batch says, as far as others see it: give names, write the log. `finish` does the rest.

    Args:
        again: the batch is recovered from a run that ended in the middle.

    Raises:
        DiskFault: it cannot go on; the journal stays and the next run goes on from here.
    """
    work = _Work(office, batch, again)
    if again:
        guarded(durable.sync_directory, office.private)
    for entry in batch.entries:
        work.deliver(entry)
    work.sync_mailboxes()
    for entry in batch.entries:
        work.bury(entry)
    work.sync_dead_letters()
    for entry in batch.entries:
        work.report(entry)
    work.sync_outbox()
    pairs = [pair for entry in batch.entries for pair in _deferred_first(entry)]
    records, lines = [record for record, _ in pairs], [line for _, line in pairs]
    missing = delivery_log.missing_lines(office, lines, batch.log_position) if again else lines
    appended = delivery_log.append(office, missing, sync_always=again)
    return Outcome(records, lines, appended)


def begin_to_finish(office: Office, batch: Batch, remover: Remover, *, again: bool = False) -> None:
    """Begin to take what a published batch has delivered out of the outbox. `finish` does the rest.

    Raises:
        DiskFault: what a killed run has left of this cannot be brought in order.
    """
    sources = [entry.source for entry in batch.entries if entry.ending == journal.REMOVE]
    if again:
        for place in outbox.places(office.outbox, sources):
            guarded(outbox.recover_taken, place, sources)
    remover.begin(sources)


def finish(office: Office, batch: Batch, remover: Remover) -> list[str]:
    """Wait until the delivered letters are out of the outbox, make that durable, then drop the journal.

    No temporary is removed before the journal is dropped: while it stands, "the temporary is gone" means "it was
    renamed", and nothing else.

    Returns:
        what could not be removed, in words; later runs try again.

    Raises:
        DiskFault: it cannot go on; the journal stays and the next run goes on from here.
    """
    problems = remover.end()
    changed = [entry.source for entry in batch.entries if entry.ending != journal.KEEP]
    if changed:
        for place in outbox.places(office.outbox, changed):
            guarded(_sync_place, place, office.outbox)
    guarded(journal.drop, office)
    for temporary in batch.dropped:
        durable.remove(temporary.path)
    for entry in batch.entries:
        if entry.ending == journal.KEEP:
            for publication in entry.publications:
                durable.remove(publication.temporary.path)
    return problems


def _deferred_first(entry: Entry) -> list[tuple[Record, bytes]]:
    """Put an entry's deferrals first: whoever reads the log in order then knows that the letter stays."""
    pairs = list(zip(entry.records, entry.lines(), strict=True))
    return sorted(pairs, key=lambda pair: pair[0]["action"] != reasons.DEFERRED) if len(pairs) > 1 else pairs


class _Work:
    """The visible part of carrying out a batch: names in the mailboxes and in dead-letter/."""

    def __init__(self, office: Office, batch: Batch, again: bool) -> None:
        self._office = office
        self._batch = batch
        self._again = again
        self._logged: set[bytes] = set()
        if again:
            every = [line for entry in batch.entries for line in entry.lines()]
            self._logged = set(every) - set(delivery_log.missing_lines(office, every, batch.log_position))
        self._touched: dict[str, list[tuple[Entry, Publication]]] = {}
        self._buried = False
        self._reported = False

    def deliver(self, entry: Entry) -> None:
        """Give the copies in mailboxes their final names; put off what fails."""
        for publication in entry.publications:
            if publication.agent in (None, journal.OUTBOX) or self._is_logged(entry, publication):
                continue
            try:
                self._publish(entry, publication)
            except OSError as fault:
                where = self._office.shown(fault.filename or os.path.dirname(publication.target))
                _put_off(entry, publication.lines, fault_reason(fault), f"{where}: {fault.strerror}")
            else:
                self._touched.setdefault(os.path.dirname(publication.target), []).append((entry, publication))

    def _is_logged(self, entry: Entry, publication: Publication) -> bool:
        return bool(self._logged) and all(entry.lines()[line] in self._logged for line in publication.lines)

    def _publish(self, entry: Entry, publication: Publication) -> None:
        while True:
            try:
                maildir.publish(publication.temporary, publication.target, again=self._again)
                return
            except FileExistsError:  # somebody else made this name since it was chosen
                directory, name = os.path.split(publication.target)
                publication.target = os.path.join(directory, maildir.free_name(directory, name))
                for line in publication.lines:
                    entry.amend(line, path=self._office.shown(publication.target))
                journal.recommit(self._office, self._batch)

    def sync_mailboxes(self) -> None:
        """Make the new names durable; copies in a mailbox that refuses are put off, and found there by the next run."""
        for directory, published in sorted(self._touched.items()):
            try:
                durable.sync_directory(directory)
            except OSError as fault:
                for entry, publication in published:
                    detail = f"{self._office.shown(directory)}: cannot be synced: {fault.strerror}"
                    _put_off(entry, publication.lines, fault_reason(fault), detail)

    def bury(self, entry: Entry) -> None:
        """Put the refused letter and its reason into dead-letter/; only if no other copy was put off since."""
        parts = [one for one in entry.publications if one.agent is None]
        lines = [line for one in parts for line in one.lines]
        prepared_to_stay = entry.ending == journal.KEEP
        if not prepared_to_stay and any(record["action"] == reasons.DEFERRED for record in entry.records):
            entry.ending = journal.KEEP
            _put_off(entry, lines, "io-error", "held back while another copy of the message waits")
            return
        if not parts or all(self._is_logged(entry, one) for one in parts):
            return
        done: list[Publication] = []
        try:
            self._choose_pair(entry, parts)
            for part in parts:
                maildir.publish(part.temporary, part.target, again=self._again)
                done.append(part)
            self._buried = True
            if entry.ending == journal.MOVE and not self._move(entry):
                self._vanished(entry, parts)
        except OSError as fault:
            for part in done:
                _undo(part)
            entry.ending = journal.KEEP
            where = self._office.shown(fault.filename or self._office.dead_letter)
            reason = "disk-full" if fault_reason(fault) == "disk-full" else "io-error"
            _put_off(entry, lines, reason, f"{where}: {fault.strerror}")

    def _move(self, entry: Entry) -> bool:
        assert entry.moved_to is not None
        if outbox.move(self._office.outbox, entry.source, entry.moved_to):
            return True
        return self._again or _is_there(entry.source, entry.moved_to)

    def _vanished(self, entry: Entry, parts: list[Publication]) -> None:
        """Say of a refused letter that its sender took it back, or replaced it, before it could be moved."""
        for part in parts:
            _undo(part)
            durable.remove(part.temporary.path)
        for line, record in enumerate(entry.records):
            if record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED):
                detail = "; ".join(filter(None, (record.get("detail"), "its sender has taken it back")))
                entry.amend(line, path=None, detail=detail)
        entry.ending = journal.REMOVE  # nothing is left under its name, or another letter, which stays

    def _choose_pair(self, entry: Entry, parts: list[Publication]) -> None:
        """Make sure that letter and reason have names that are free and belong together."""
        old = next(part.target for part in parts if part.target.endswith(refusals.REASON_SUFFIX))
        name = old.removesuffix(refusals.REASON_SUFFIX)
        clear = all(
            not os.path.lexists(part.target) or not os.path.lexists(part.temporary.path) for part in parts
        ) and (entry.moved_to is None or not os.path.lexists(entry.moved_to) or _is_there(entry.source, entry.moved_to))
        if clear:
            return
        new = os.path.join(
            self._office.dead_letter, refusals.free_pair(self._office.dead_letter, os.path.basename(name))
        )
        for part in parts:
            part.target = part.target.replace(name, new, 1)
        entry.moved_to = new if entry.moved_to is not None else None
        for line, record in enumerate(entry.records):
            if record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED):
                entry.amend(line, path=self._office.shown(new))
        journal.recommit(self._office, self._batch)

    def sync_dead_letters(self) -> None:
        """Make the names in dead-letter/ durable."""
        if self._buried or self._again:
            guarded(durable.sync_directory, self._office.dead_letter)

    def report(self, entry: Entry) -> None:
        """Put the report that goes with an entry into the outbox; none about a refusal that was put off since."""
        parts = [one for one in entry.publications if one.agent == journal.OUTBOX]
        refused = any(record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED) for record in entry.records)
        for part in parts:
            (line,) = part.lines  # behind all that are in `lines` of other publications
            if entry.records[line]["action"] == reasons.BOUNCED and not refused:
                entry.unsay(line)
                entry.publications.remove(part)
                self._batch.dropped.append(part.temporary)
                continue
            self._reported = True
            if not self._is_logged(entry, part):
                guarded(self._publish_report, entry, part)

    def _publish_report(self, entry: Entry, part: Publication) -> None:
        while True:
            try:
                maildir.publish(part.temporary, part.target, again=self._again)
                return
            except FileExistsError:  # a sender made this name since it was chosen
                name = maildir.free_name(self._office.outbox, os.path.basename(part.target))
                part.target = os.path.join(self._office.outbox, name)
                entry.amend(part.lines[0], file=visible(name))
                journal.recommit(self._office, self._batch)

    def sync_outbox(self) -> None:
        """Make the names of reports durable."""
        if self._reported:
            guarded(durable.sync_directory, self._office.outbox)


def _is_there(source: Source, path: str) -> bool:
    try:
        return outbox.is_same(source, os.lstat(path))
    except OSError:
        return False


def _undo(publication: Publication) -> None:
    """Give a published file its temporary name back; where that fails it stays, and says no more than it knows."""
    with contextlib.suppress(OSError):
        durable.rename_new(publication.target, publication.temporary.path)


def _put_off(entry: Entry, lines: list[int], reason: str, detail: str) -> None:
    for line in lines:
        entry.amend(line, **(dict.fromkeys(entry.records[line]) | deferral(entry.records[line], reason, detail)))
    entry.ending = journal.KEEP if entry.ending == journal.REMOVE else entry.ending


def _sync_place(place: str, outbox: str) -> None:
    try:
        durable.sync_directory(place)
    except (FileNotFoundError, NotADirectoryError):
        if place == outbox:
            raise
        # else: a drop folder that was emptied, and removed since


def recover(office: Office, folders: Sequence[str] = ()) -> tuple[list[Record], list[str]]:
    """Carry out the batch that a killed run left, if there is one, and tidy the outbox and its drop folders.

    Returns:
        the batch's records, and what could not be removed from the outbox, in words.

    Raises:
        DiskFault: it cannot go on.
    """
    journal.clear(office)
    batch = journal.load(office)
    if batch is not None:
        records = publish(office, batch, again=True).records
        remover = Remover(office)
        begin_to_finish(office, batch, remover, again=True)
        return records, finish(office, batch, remover)
    finished = removals.pending(office)
    for place in (office.outbox, *(os.path.join(office.outbox, folder) for folder in folders)):
        guarded(outbox.recover_taken, place, finished)
    return [], []
