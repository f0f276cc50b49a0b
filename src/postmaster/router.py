"""One pass of the router: scan the outbox, read, decide, commit, log (docs/routing.md).

The pass is stateless: all it knows of the past is the delivery log, by way of its index. Batches are bounded, so that
memory does not grow with the backlog, and each batch is one commit (docs/states.md).
"""

import os
import time
from collections.abc import Callable, Iterable, Sequence
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
    reports,
    times,
)
from postmaster.backlog import BATCH_COPIES, Backlog, bounded, copies
from postmaster.delivery_log import Record
from postmaster.errors import CannotCreate, DiskFault
from postmaster.history import History
from postmaster.journal import Batch
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.open_items import WITHDRAWN
from postmaster.parties import RegistryView
from postmaster.posting import Posting, Reporter
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView
from postmaster.removals import Remover
from postmaster.settings import Settings, load_settings
from postmaster.spool import UnsyncedDevice
from postmaster.summary import Summary

_ATTEMPTS: Final = 20

Posted = Item | reports.Report  # what a batch is made of


def route(
    office: Office,
    *,
    wait: bool = False,
    on_record: Callable[[Record], None] | None = None,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
    reporter: Reporter | None = None,
) -> Summary:
    """Route everything in the outbox.

    Args:
        wait: wait for a router that is at work instead of leaving it to do the mail.
        on_record: called with every record that this pass put in the log.
        clock: nanoseconds since the epoch.
        open_view: how the address book is opened, once for the pass.
        reporter: who writes the office's own mail.

    Raises:
        ConfigurationFault: no office, or a registry or settings that cannot be used; the outbox is untouched.
        DiskFault: the pass could not go on; the next one does.
    """
    office.require()
    outbox.survive_lease_breaks()
    settings = load_settings(office)  # before the lock, which notes the time of this run: see idle.py
    with office.lock(wait=wait) as alone:
        if not alone:
            return Summary(busy=True)
        with open_view(office) as registry:
            run = _Pass(office, settings, on_record, clock)
            run.recover()
            history = History(office)
            try:
                posting = Posting(office, settings, registry, history, writes=True, reporter=reporter)
                if reporter is not None and os.path.lexists(office.returning):
                    run.report_overdue(reporter, registry, posting, history)
                run.route(posting, history)
            finally:
                history.close()
        return run.report


def preview(
    office: Office,
    *,
    on_record: Callable[[Record], None] | None = None,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
    reporter: Reporter | None = None,
) -> Summary:
    """Tell what `route` would do now, touching nothing (`route --dry-run`)."""
    office.require()
    outbox.survive_lease_breaks()
    settings = load_settings(office)
    with open_view(office, write=False) as registry:
        run = _Pass(office, settings, on_record, clock)
        if os.path.exists(office.journal):
            run.report.problems.append("a run was cut off in the middle; the next one ends its work first")
        if os.path.lexists(office.returning):
            run.report.problems.append("an archived instance left unread mail; the next run gives it back first")
        history = History(office, write=False)
        try:
            run.preview(Posting(office, settings, registry, history, writes=False, reporter=reporter), history)
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
        self._remover = Remover(office)
        self._position = (0, 0)  # of the log: up to where the history knows it
        self._made: list[str] = []  # names of reports that this pass has put into the outbox since it looked
        self.report = Summary()

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
        self._position = delivery_log.position(self._office)
        self._made = []  # those made until now are found like any other letter
        backlog = self._backlog(history)
        with Remover(self._office, beside=len(backlog) > BATCH_COPIES) as self._remover:
            self._post_all(backlog.batches(), posting, history)
            # A report is about no report: twice is enough.
            self._post_all(self._backlog(history, self._made).batches(), posting, history)

    def report_overdue(self, reporter: Reporter, registry: RegistryView, posting: Posting, history: History) -> None:
        """Put the reports that are due into the outbox; what prevents that is told of, and stops no other mail.

        Raises:
            DiskFault: a batch was committed and cannot be carried out.
        """
        self._position = delivery_log.position(self._office)
        try:
            due = reporter.overdue(registry, history, self._settings, self._clock(), self.report.problems)
            batches = bounded(due, lambda report: (1, len(report.content)))
            self._post_all(batches, posting, history)
            reporter.close()
        except (CannotCreate, DiskFault) as fault:
            if os.path.lexists(self._office.journal):
                raise
            self.report.problems.append(str(fault))
            history.catch_up()  # a batch may be in the log that it has not read: its reports would pass for forged
        self.report.deferred += os.path.lexists(self._office.returning)

    def _folders(self) -> list[str]:
        try:
            return outbox.folders(self._office.outbox) if self._settings.drop_folders else []
        except OSError as fault:
            raise DiskFault(f"{self._office.outbox}: cannot be listed: {fault.strerror}") from fault

    def _backlog(self, history: History, names: Sequence[str] | None = None) -> Backlog:
        own = frozenset(item.letter["file"] for item in history.open_items.values() if item.is_report)
        return Backlog(self._office, self._settings, self._clock, self._stuck, own, self.report, names)

    def _notice_withdrawn(self, history: History) -> None:
        """Log the open letters that are no longer in the outbox, so that their names can be used again."""
        if not history.open_items:
            return
        there = {visible(name) for name in self._backlog(history).names}
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

    def preview(self, posting: Posting, history: History) -> None:
        """Decide on everything in the outbox, as one batch."""
        posting.begin(0, self._clock())
        for batch in self._backlog(history).batches():
            for item in batch:
                self._count(posting.post(item).records)
                self.report.deferred += posting.still_deferred
                posting.still_deferred = 0

    # -- posting a batch ---------------------------------------------------------------------------------------

    def _post_all(self, batches: Iterable[Sequence[Posted]], posting: Posting, history: History) -> None:
        """Post batches one after the other, and finish the last, whatever happens."""
        try:
            for batch in batches:
                self._post(batch, posting, history)
        finally:
            self._finish()

    def _post(self, items: Sequence[Posted], posting: Posting, history: History) -> None:
        """Make a batch ready, finish the one before, commit and publish this one.

        Raises:
            DiskFault: it could not be committed (all stays in the outbox) or not be carried out to the end.
        """
        for _ in range(_ATTEMPTS):
            if delivery_log.position(self._office) != self._position:
                self._position = delivery_log.position(self._office)
                history.catch_up()
                items = [item for item in items if _still_there(self._office, item)]
            try:
                batch = self._ready(items, posting)
                if not batch.entries:
                    self.report.deferred += posting.still_deferred
                    return
                try:
                    self._finish()
                except BaseException:
                    posting.spool.abandon()
                    raise
                journal.commit(self._office, batch)
            except FileExistsError as fault:
                posting.spool.abandon()
                raise DiskFault("another router works here, though we hold the lock; leaving it to its work") from fault
            except UnsyncedDevice as fault:
                posting.spool.abandon()
                closed = posting.spool.close_mailboxes(fault.device, fault.fault)
                self.report.problems.append(f"{', '.join(closed)}: cannot be synced: {fault.fault.strerror}")
                continue
            except OSError as fault:
                posting.spool.abandon()
                raise DiskFault(
                    f"{fault.filename or self._office.private}: {fault.strerror}; nothing of this batch was sent"
                ) from fault
            if not self._still_right(items, posting, history):
                journal.drop(self._office)
                posting.spool.abandon()
                continue
            planned = _deferred([record for entry in batch.entries for record in entry.records])
            outcome = commit.publish(self._office, batch, again=False)
            self._count(outcome.records)
            self._made.extend(record["file"] for record in outcome.records if record["action"] in reports.ACTIONS)
            self.report.deferred += _deferred(outcome.records) - planned + posting.still_deferred
            history.forget()
            commit.begin_to_finish(self._office, batch, self._remover)
            self._unfinished = batch
            self._position = history.note(outcome.records, outcome.lines, outcome.appended)
            return
        raise DiskFault("other writers of the log leave no time to commit a batch; the next run tries again")

    def _finish(self) -> None:
        """Finish the batch that was published last: its journal must be gone before the next can be committed."""
        batch, self._unfinished = self._unfinished, None
        if batch is not None:
            self._cannot_remove(commit.finish(self._office, batch, self._remover))

    def _ready(self, items: Sequence[Posted], posting: Posting) -> Batch:
        posting.begin(sum(copies(item) if isinstance(item, Item) else 1 for item in items), self._clock())
        try:
            entries = [posting.post(item) if isinstance(item, Item) else posting.report(item) for item in items]
            posting.spool.sync()
        except BaseException:
            posting.spool.abandon()
            raise
        return Batch([entry for entry in entries if entry.records or entry.ending != journal.KEEP], self._position)

    def _still_right(self, items: Sequence[Posted], posting: Posting, history: History) -> bool:
        """Tell whether numbers and letters are still as the batch took them, if anyone has logged since.

        The journal is in place now, so nobody else can commit before we are done.
        """
        if delivery_log.position(self._office) == self._position:
            return True
        history.catch_up()
        return posting.numbers_hold() and all(_still_there(self._office, item) for item in items)

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


def _still_there(office: Office, item: Posted) -> bool:
    """Tell whether a letter is in the outbox still; a report is yet to be made."""
    if not isinstance(item, Item):
        return True
    try:
        return outbox.is_same(item.source, os.lstat(os.path.join(office.outbox, item.source.name)))
    except OSError:
        return False
