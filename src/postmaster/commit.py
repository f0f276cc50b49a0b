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

from postmaster import delivery_log, durable, journal, maildir, outbox, reasons
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.journal import Batch, Entry, Publication
from postmaster.office import Office
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

    Args:
        again: the batch is recovered from a run that ended in the middle.

    Returns:
        the records that are in the log now, and what could not be done (in words), which later runs try again.

    Raises:
        DiskFault: it cannot go on; the journal stays and the next run goes on from here.
    """
    logged: set[bytes] = set()
    if again:
        every = [delivery_log.encode(record) for entry in batch.entries for record in entry.records]
        logged = set(every) - set(delivery_log.missing_lines(office, every, batch.log_position))
    touched: set[str] = set()
    for entry in batch.entries:
        _publish(office, batch, entry, touched, logged, again=again)
    for directory in sorted(touched):
        _guarded(durable.sync_directory, directory)
    records = [record for entry in batch.entries for record in _deferred_first(entry.records)]
    lines = [delivery_log.encode(record) for record in records]
    delivery_log.append(office, [line for line in lines if line not in logged])
    problems = _clear_outbox(office, batch, again=again)
    _guarded(journal.drop, office)
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


def _publish(office: Office, batch: Batch, entry: Entry, touched: set[str], logged: set[bytes], *, again: bool) -> None:
    """Give every temporary of an entry its final name; turn what fails into deferrals."""
    failed = False
    for publication in entry.publications:
        if failed and publication.agent is None and entry.ending != journal.REMOVE:
            _put_off(entry, publication.lines, "io-error", "held back while another copy of the message waits")
            durable.remove(publication.temporary.path)
            continue
        if logged and all(delivery_log.encode(entry.records[line]) in logged for line in publication.lines):
            continue
        try:
            _publish_one(office, batch, entry, publication, again=again)
            touched.add(os.path.dirname(publication.target))
        except OSError as fault:
            failed = True
            where = office.shown(fault.filename or os.path.dirname(publication.target))
            _put_off(entry, publication.lines, fault_reason(fault), f"{where}: {fault.strerror}")
            with contextlib.suppress(OSError):
                os.unlink(publication.temporary.path)
    if not failed and entry.ending == journal.MOVE:
        assert entry.moved_to is not None
        try:
            _move(office, batch, entry)
            touched.add(os.path.dirname(entry.moved_to))
        except OSError as fault:
            failed = True
            _put_off_refusals(entry, f"{office.shown(entry.moved_to)}: {fault.strerror}")
    if failed:
        entry.ending = journal.KEEP


def _put_off_refusals(entry: Entry, detail: str) -> None:
    """Turn refusals whose letter cannot be moved into deferrals; their reason file is no longer true."""
    for publication in entry.publications:
        if publication.agent is None:
            _put_off(entry, publication.lines, "io-error", detail)
            durable.remove(publication.target)


def _publish_one(office: Office, batch: Batch, entry: Entry, publication: Publication, *, again: bool) -> None:
    while True:
        try:
            maildir.publish(publication.temporary, publication.target, again=again)
            return
        except FileExistsError:  # somebody else made this name since it was chosen
            directory, name = os.path.split(publication.target)
            publication.target = os.path.join(directory, maildir.free_name(directory, name))
            for line in publication.lines:
                if publication.agent is not None:
                    entry.records[line]["path"] = office.shown(publication.target)
            journal.recommit(office, batch)


def _move(office: Office, batch: Batch, entry: Entry) -> None:
    """Move a dead letter out of the outbox."""
    while True:
        assert entry.moved_to is not None
        try:
            outbox.move(office.outbox, entry.source, entry.moved_to)
            return
        except FileExistsError:
            directory, name = os.path.split(entry.moved_to)
            entry.moved_to = os.path.join(directory, maildir.free_name(directory, name))
            for record in entry.records:
                if record["action"] in (reasons.DEAD_LETTER, reasons.REJECTED):
                    record["path"] = office.shown(entry.moved_to)
            journal.recommit(office, batch)


def _put_off(entry: Entry, lines: list[int], reason: str, detail: str) -> None:
    for line in lines:
        entry.records[line] = deferral(entry.records[line], reason, detail)


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
