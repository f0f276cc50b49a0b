"""Carrying out a committed batch: publish, log, clear the outbox. The same steps for a run and for its recovery.

Order (each is durable before the next begins): names in the mailboxes, lines in the log, names out of the outbox,
the journal. Every step can be done again.
"""

import contextlib
import errno
import os
from collections.abc import Callable
from dataclasses import asdict
from typing import Final

from postmaster import delivery_log, durable, journal, maildir, outbox, reasons, refusals
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.journal import Batch, Entry, Publication
from postmaster.maildir import Temporary
from postmaster.office import Office, visible
from postmaster.outbox import Source

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


def carry_out(office: Office, batch: Batch, *, again: bool) -> tuple[list[Record], list[str]]:
    """Do what a committed batch says, then drop its journal.

    No temporary is removed before the journal is dropped: while it stands, "the temporary is gone" means "it was
    renamed", and nothing else.

    Args:
        again: the batch is recovered from a run that ended in the middle.

    Returns:
        the records that are in the log now, and what could not be done (in words), which later runs try again.

    Raises:
        DiskFault: it cannot go on; the journal stays and the next run goes on from here.
    """
    work = _Work(office, batch, again)
    if again:
        _guarded(durable.sync_directory, office.private)
    for entry in batch.entries:
        work.deliver(entry)
    work.sync_mailboxes()
    for entry in batch.entries:
        work.bury(entry)
    work.sync_dead_letters()
    for entry in batch.entries:
        work.report(entry)
    work.sync_outbox()
    records = [record for entry in batch.entries for record in _deferred_first(entry.records)]
    lines = [delivery_log.encode(record) for record in records]
    missing = delivery_log.missing_lines(office, lines, batch.log_position) if again else lines
    delivery_log.append(office, missing, sync_always=again)
    problems = _clear_outbox(office, batch, again=again)
    _guarded(journal.drop, office)
    for temporary in work.dropped:
        durable.remove(temporary.path)
    for entry in batch.entries:
        if entry.ending == journal.KEEP:
            for publication in entry.publications:
                durable.remove(publication.temporary.path)
    return records, problems


def _guarded(step: Callable[..., None], *arguments: object) -> None:
    try:
        step(*arguments)
    except FileNotFoundError as fault:
        if step is not journal.drop:
            raise DiskFault(f"{fault.filename}: {fault.strerror}") from fault
    except OSError as fault:
        where = fault.filename or arguments[0]
        raise DiskFault(f"{where}: {fault.strerror}; the next run goes on from here") from fault


def _deferred_first(records: list[Record]) -> list[Record]:
    """Put an entry's deferrals first: whoever reads the log in order then knows that the letter stays."""
    return sorted(records, key=lambda record: record["action"] != reasons.DEFERRED)


class _Work:
    """The visible part of carrying out a batch: names in the mailboxes and in dead-letter/."""

    def __init__(self, office: Office, batch: Batch, again: bool) -> None:
        self._office = office
        self._batch = batch
        self._again = again
        self._logged: set[bytes] = set()
        if again:
            every = [delivery_log.encode(record) for entry in batch.entries for record in entry.records]
            self._logged = set(every) - set(delivery_log.missing_lines(office, every, batch.log_position))
        self._touched: dict[str, list[tuple[Entry, Publication]]] = {}
        self._buried = False
        self._reported = False
        self.dropped: list[Temporary] = []  # of reports about refusals that were put off

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
        lines = (delivery_log.encode(entry.records[line]) for line in publication.lines)
        return bool(self._logged) and all(line in self._logged for line in lines)

    def _publish(self, entry: Entry, publication: Publication) -> None:
        while True:
            try:
                maildir.publish(publication.temporary, publication.target, again=self._again)
                return
            except FileExistsError:  # somebody else made this name since it was chosen
                directory, name = os.path.split(publication.target)
                publication.target = os.path.join(directory, maildir.free_name(directory, name))
                for line in publication.lines:
                    entry.records[line]["path"] = self._office.shown(publication.target)
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
        for record in entry.records:
            if record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED):
                record["path"] = None
                record["detail"] = "; ".join(filter(None, (record.get("detail"), "its sender has taken it back")))
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
        for record in entry.records:
            if record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED):
                record["path"] = self._office.shown(new)
        journal.recommit(self._office, self._batch)

    def sync_dead_letters(self) -> None:
        """Make the names in dead-letter/ durable."""
        if self._buried or self._again:
            _guarded(durable.sync_directory, self._office.dead_letter)

    def report(self, entry: Entry) -> None:
        """Put the report that goes with an entry into the outbox; none about a refusal that was put off since."""
        parts = [one for one in entry.publications if one.agent == journal.OUTBOX]
        refused = any(record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED) for record in entry.records)
        for part in parts:
            (line,) = part.lines  # behind all that are in `lines` of other publications
            if entry.records[line]["action"] == reasons.BOUNCED and not refused:
                del entry.records[line]
                entry.publications.remove(part)
                self.dropped.append(part.temporary)
                continue
            self._reported = True
            if not self._is_logged(entry, part):
                _guarded(self._publish_report, entry.records[line], part)

    def _publish_report(self, record: Record, part: Publication) -> None:
        while True:
            try:
                maildir.publish(part.temporary, part.target, again=self._again)
                return
            except FileExistsError:  # a sender made this name since it was chosen
                name = maildir.free_name(self._office.outbox, os.path.basename(part.target))
                part.target, record["file"] = os.path.join(self._office.outbox, name), visible(name)
                journal.recommit(self._office, self._batch)

    def sync_outbox(self) -> None:
        """Make the names of reports durable."""
        if self._reported:
            _guarded(durable.sync_directory, self._office.outbox)


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
        entry.records[line] = deferral(entry.records[line], reason, detail)
    entry.ending = journal.KEEP if entry.ending == journal.REMOVE else entry.ending


def _clear_outbox(office: Office, batch: Batch, *, again: bool) -> list[str]:
    """Remove what is delivered from the outbox; what cannot be removed is remembered for the next run."""
    sources = [entry.source for entry in batch.entries if entry.ending == journal.REMOVE]
    changed = bool(sources) or any(entry.ending == journal.MOVE for entry in batch.entries)
    if again:
        finished = {(source.device, source.inode) for source in sources}
        _guarded(outbox.recover_taken, office.outbox, finished)
    stuck, problems = _take_all(office, sources)
    if stuck:
        _guarded(_remember, office, [*pending_removals(office), *stuck])
    if changed:
        _guarded(durable.sync_directory, office.outbox)
    return problems


def _take_all(office: Office, sources: list[Source]) -> tuple[list[Source], list[str]]:
    stuck: list[Source] = []
    problems: list[str] = []
    for source in sources:
        try:
            outbox.take(office.outbox, source)
        except OSError as fault:
            stuck.append(source)
            path = office.shown(os.path.join(office.outbox, source.name))
            problems.append(f"{path}: delivered, but cannot be removed from the outbox: {fault.strerror}")
    return stuck, problems


def pending_removals(office: Office) -> list[Source]:
    """Return the letters that are delivered and logged but could not be removed from the outbox."""
    import json

    try:
        with open(office.removals, "rb") as stream:
            return [Source(**item) for item in json.loads(stream.read())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as fault:
        raise DiskFault(f"{office.removals}: cannot be read: {fault}") from fault


def _remember(office: Office, sources: list[Source]) -> None:
    import json

    unique = {(source.name, source.inode): source for source in sources}
    durable.replace(office.removals, json.dumps([asdict(source) for source in unique.values()]).encode("ascii"))


def retry_removals(office: Office) -> tuple[list[Source], list[str]]:
    """Try again to remove what could not be removed; return what still cannot, and in words why."""
    sources = pending_removals(office)
    if not sources:
        return [], []
    stuck, problems = _take_all(office, sources)
    if stuck:
        _guarded(_remember, office, stuck)
    else:
        _guarded(os.unlink, office.removals)
    return stuck, problems


def recover(office: Office) -> tuple[list[Record], list[str]]:
    """Carry out the batch that a killed run left, if there is one, and tidy the outbox."""
    journal.clear(office)
    batch = journal.load(office)
    if batch is not None:
        return carry_out(office, batch, again=True)
    finished = {(source.device, source.inode) for source in pending_removals(office)}
    _guarded(outbox.recover_taken, office.outbox, finished)
    return [], []
