"""One pass of the router: scan the outbox, read, decide, commit, log (docs/routing.md).

The pass is stateless: all it knows of the past is the delivery log, by way of its index. Batches are bounded, so that
memory does not grow with the backlog, and each batch is one commit (docs/states.md).
"""

import os
import signal
import time
from collections.abc import Callable
from typing import Final

from postmaster import (
    commit,
    delivery_log,
    durable,
    journal,
    maildir,
    outbox,
    reasons,
    removals,
    times,
)
from postmaster.backlog import BATCH_COPIES, Backlog, copies
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.history import History
from postmaster.journal import Batch
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.open_items import WITHDRAWN
from postmaster.outbox import Source
from postmaster.posting import Posting, UnsyncedDevice
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView
from postmaster.removals import Remover
from postmaster.report import Report
from postmaster.settings import Settings, load_settings

_ATTEMPTS: Final = 20


def route(
    office: Office,
    *,
    wait: bool = False,
    on_record: Callable[[Record], None] | None = None,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
) -> Report:
    """Route everything in the outbox.

    Args:
        wait: wait for a router that is at work instead of leaving it to do the mail.
        on_record: called with every record that this pass put in the log.
        clock: nanoseconds since the epoch.
        open_view: how the address book is opened, once for the pass.

    Raises:
        ConfigurationFault: no office, or a registry or settings that cannot be used; the outbox is untouched.
        DiskFault: the pass could not go on; the next one does.
    """
    office.require()
    signal.signal(signal.SIGIO, signal.SIG_IGN)  # sent if a writer opens a file while we hold a lease on it
    settings = load_settings(office)  # before the lock, which notes the time of this run: see idle.py
    with office.lock(wait=wait) as alone:
        if not alone:
            return Report(busy=True)
        with open_view(office) as registry:
            run = _Pass(office, settings, on_record, clock)
            run.recover()
            history = History(office)
            try:
                run.route(Posting(office, settings, registry, history, writes=True), history)
            finally:
                history.close()
        return run.report


def preview(
    office: Office,
    *,
    on_record: Callable[[Record], None] | None = None,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
) -> Report:
    """Tell what `route` would do now, touching nothing (`route --dry-run`)."""
    office.require()
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    settings = load_settings(office)
    with open_view(office, write=False) as registry:
        run = _Pass(office, settings, on_record, clock)
        if os.path.exists(office.journal):
            run.report.problems.append("a run was cut off in the middle; the next one ends its work first")
        history = History(office, write=False)
        try:
            run.preview(Posting(office, settings, registry, history, writes=False))
        finally:
            history.close()
    return run.report


class _Pass:
    """The state of one pass."""

    def __init__(
        self,
        office: Office,
        settings: Settings,
        on_record: Callable[[Record], None] | None,
        clock: Callable[[], int],
    ) -> None:
        self._office = office
        self._settings = settings
        self._on_record = on_record
        self._clock = clock
        self._stuck: set[tuple[int, int]] = set()
        self._unfinished: Batch | None = None
        self.report = Report()

    def recover(self) -> None:
        """End what a killed run began."""
        try:
            durable.make_directories(self._office.logs)
            durable.make_directories(self._office.dead_letter)
        except OSError as fault:
            raise DiskFault(f"{fault.filename or self._office.root}: {fault.strerror}") from fault
        delivery_log.check(self._office)
        records, problems = commit.recover(self._office, self._folders())
        self._count(records)
        self.report.deferred += _deferred(records)
        self._cannot_remove(problems)
        try:
            maildir.clear_temporaries(self._office.private)  # not before: a journal may name some of them
        except OSError as fault:
            raise DiskFault(f"{fault.filename or self._office.private}: {fault.strerror}") from fault
        stuck, problems = removals.retry(self._office)
        self._stuck = {(source.device, source.inode) for source in stuck}
        self.report.problems.extend(problems)
        self.report.deferred += len(stuck)

    def route(self, posting: Posting, history: History) -> None:
        """Route the outbox, batch by batch."""
        self._notice_withdrawn(history)
        position = delivery_log.position(self._office)
        backlog = self._backlog()
        with Remover(self._office, beside=len(backlog) > BATCH_COPIES) as self._remover:
            try:
                for batch in backlog.batches():
                    position = self._post(batch, posting, history, position)
            finally:
                self._finish()

    def _folders(self) -> list[str]:
        try:
            return outbox.folders(self._office.outbox) if self._settings.drop_folders else []
        except OSError as fault:
            raise DiskFault(f"{self._office.outbox}: cannot be listed: {fault.strerror}") from fault

    def _backlog(self) -> Backlog:
        return Backlog(self._office, self._settings, self._clock, self._stuck, self.report)

    def _notice_withdrawn(self, history: History) -> None:
        """Log the open letters that are no longer in the outbox, so that their names can be used again."""
        if not history.open_items:
            return
        there = {visible(name) for name in self._backlog().names}
        time_text = times.timestamp(self._clock())
        records = [
            {
                **item.letter,
                "time": time_text,
                "action": WITHDRAWN,
                **({} if item.sequence is None else {"sequence": item.sequence}),
                "detail": f"no longer in the outbox; {len(item.pending)} of its copies had not been delivered",
            }
            for item in history.open_items.values()
            if item.letter["file"] not in there
        ]
        delivery_log.append(self._office, [delivery_log.encode(record) for record in records])
        self._count(records)
        history.catch_up()

    def preview(self, posting: Posting) -> None:
        """Decide on everything in the outbox, as one batch."""
        posting.begin(0, self._clock())
        for batch in self._backlog().batches():
            for item in batch:
                self._count(posting.post(item).records)
                self.report.deferred += posting.still_deferred
                posting.still_deferred = 0

    # -- posting a batch ---------------------------------------------------------------------------------------

    def _post(
        self, items: list[Item], posting: Posting, history: History, position: tuple[int, int]
    ) -> tuple[int, int]:
        """Make a batch ready, finish the one before, commit and publish this one; return the log's position after it.

        Args:
            position: up to where the history knows the log.

        Raises:
            DiskFault: it could not be committed (all stays in the outbox) or not be carried out to the end.
        """
        for _ in range(_ATTEMPTS):
            if delivery_log.position(self._office) != position:
                position = delivery_log.position(self._office)
                history.catch_up()
                items = [item for item in items if _still_there(self._office, item.source)]
            try:
                batch = self._ready(items, posting, position)
                if not batch.entries:
                    self.report.deferred += posting.still_deferred
                    return position
                try:
                    self._finish()
                except BaseException:
                    posting.abandon()
                    raise
                journal.commit(self._office, batch)
            except FileExistsError as fault:
                posting.abandon()
                raise DiskFault("another router works here, though we hold the lock; leaving it to its work") from fault
            except UnsyncedDevice as fault:
                posting.abandon()
                closed = posting.close_mailboxes(fault.device, fault.fault)
                self.report.problems.append(f"{', '.join(closed)}: cannot be synced: {fault.fault.strerror}")
                continue
            except OSError as fault:
                posting.abandon()
                raise DiskFault(
                    f"{fault.filename or self._office.private}: {fault.strerror}; nothing of this batch was sent"
                ) from fault
            if not self._still_right(items, posting, history, position):
                journal.drop(self._office)
                posting.abandon()
                continue
            planned = _deferred([record for entry in batch.entries for record in entry.records])
            outcome = commit.publish(self._office, batch, again=False)
            self._count(outcome.records)
            self.report.deferred += _deferred(outcome.records) - planned + posting.still_deferred
            history.forget()
            commit.begin_to_finish(self._office, batch, self._remover)
            self._unfinished = batch
            return history.note(outcome.records, outcome.lines, outcome.appended)
        raise DiskFault("other writers of the log leave no time to commit a batch; the next run tries again")

    def _finish(self) -> None:
        """Finish the batch that was published last: its journal must be gone before the next can be committed."""
        batch, self._unfinished = self._unfinished, None
        if batch is not None:
            self._cannot_remove(commit.finish(self._office, batch, self._remover))

    def _ready(self, items: list[Item], posting: Posting, position: tuple[int, int]) -> Batch:
        posting.begin(sum(copies(item) for item in items), self._clock())
        try:
            entries = [posting.post(item) for item in items]
            posting.sync()
        except BaseException:
            posting.abandon()
            raise
        return Batch([entry for entry in entries if entry.records or entry.ending != journal.KEEP], position)

    def _still_right(self, items: list[Item], posting: Posting, history: History, position: tuple[int, int]) -> bool:
        """Tell whether numbers and letters are still as the batch took them, if anyone has logged since.

        The journal is in place now, so nobody else can commit before we are done.
        """
        if delivery_log.position(self._office) == position:
            return True
        history.catch_up()
        return posting.numbers_hold() and all(_still_there(self._office, item.source) for item in items)

    # -- the report --------------------------------------------------------------------------------------------

    def _cannot_remove(self, problems: list[str]) -> None:
        """Report letters that are delivered but cannot be removed from the outbox."""
        self.report.problems.extend(problems)
        self.report.deferred += len(problems)

    def _count(self, records: list[Record]) -> None:
        for record in records:
            self.report.actions[record["action"]] += 1
            if record["action"] == reasons.DEFERRED:
                place = record.get("path") or f"outbox/{record['file']}"
                self.report.problems.append(f"{place}: deferred ({record['reason']}): {record['detail']}")
            if self._on_record is not None:
                self._on_record(record)


def _deferred(records: list[Record]) -> int:
    return sum(record["action"] == reasons.DEFERRED for record in records)


def _still_there(office: Office, source: Source) -> bool:
    try:
        return outbox.is_same(source, os.lstat(os.path.join(office.outbox, source.name)))
    except OSError:
        return False
