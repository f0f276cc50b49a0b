"""One pass of the router: scan the outbox, read, decide, commit, log (docs/routing.md).

The pass is stateless: all it knows of the past is the delivery log, by way of its index. Batches are bounded, so that
memory does not grow with the backlog, and each batch is one commit (docs/states.md).
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from postmaster import commit, delivery_log, durable, journal, letter, maildir, message, outbox, reasons, reports, times
from postmaster.decide import RegistryView
from postmaster.delivery_log import Record
from postmaster.errors import CannotCreate, DiskFault
from postmaster.history import History
from postmaster.journal import Batch
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.open_items import WITHDRAWN
from postmaster.outbox import Waiting
from postmaster.posting import Posting, Reporter, UnsyncedDevice
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView
from postmaster.settings import Settings, load_settings

BATCH_COPIES: Final = 1_000
BATCH_BYTES: Final = 64 * 1024 * 1024
_KEEP_MESSAGES: Final = 20_000  # letters kept in memory between ordering and posting; the rest are read again
_KEEP_BYTES: Final = 32 * 1024 * 1024
_ATTEMPTS: Final = 20

Posted = Item | reports.Report  # what a batch is made of
_T = TypeVar("_T")


@dataclass(slots=True)
class Report:
    """What a pass did.

    Attributes:
        busy: another router was at work, and nothing was done.
        actions: how many log lines of each action (for a dry run: would be written).
        deferred: how many copies wait in the outbox, told of in the log now or before.
        waiting: names that are left alone for now, with why.
        problems: what a person should look at, in words.
    """

    busy: bool = False
    actions: Counter[str] = field(default_factory=Counter)
    deferred: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def route(
    office: Office,
    *,
    wait: bool = False,
    on_record: Callable[[Record], None] | None = None,
    clock: Callable[[], int] = time.time_ns,
    open_view: OpenView = compiled.open_view,
    reporter: Reporter | None = None,
) -> Report:
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
) -> Report:
    """Tell what `route` would do now, touching nothing (`route --dry-run`)."""
    office.require()
    signal.signal(signal.SIGIO, signal.SIG_IGN)
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
        self._own: set[str] = set()  # names under which the outbox has reports of the office
        self._made: list[str] = []  # and those that this pass has put there since it looked
        self.report = Report()

    def recover(self) -> None:
        """End what a killed run began."""
        try:
            durable.make_directories(self._office.logs)
            durable.make_directories(self._office.dead_letter)
        except OSError as fault:
            raise DiskFault(f"{fault.filename or self._office.root}: {fault.strerror}") from fault
        delivery_log.check(self._office)
        records, problems = commit.recover(self._office)
        self._account(records, problems, put_off=_deferred(records))
        try:
            maildir.clear_temporaries(self._office.private)  # not before: a journal may name some of them
        except OSError as fault:
            raise DiskFault(f"{fault.filename or self._office.private}: {fault.strerror}") from fault
        stuck, problems = commit.retry_removals(self._office)
        self._stuck = {(source.device, source.inode) for source in stuck}
        self.report.problems.extend(problems)
        self.report.deferred += len(stuck)

    def route(self, posting: Posting, history: History) -> None:
        """Route the outbox, batch by batch."""
        self._notice_withdrawn(history)
        position = delivery_log.position(self._office)
        self._made = []  # those are found as well
        for names in (self._scan(), self._made):  # a report is about no report: twice is enough
            for batch in self._batches(names, history):
                position = self._post(batch, posting, history, position)

    def report_overdue(self, reporter: Reporter, registry: RegistryView, posting: Posting, history: History) -> None:
        """Put the reports that are due into the outbox; what prevents that is told of, and stops no other mail.

        Raises:
            DiskFault: a batch was committed and cannot be carried out.
        """
        try:
            due = reporter.overdue(registry, history, self._settings, self._clock(), self.report.problems)
            position = delivery_log.position(self._office)
            for batch in _bounded(due, lambda report: (1, len(report.content))):
                position = self._post(batch, posting, history, position)
            reporter.close()
        except (CannotCreate, DiskFault) as fault:
            if os.path.lexists(self._office.journal):
                raise
            self.report.problems.append(str(fault))
            history.catch_up()  # a batch may be in the log that it has not read: its reports would pass for forged
        self.report.deferred += os.path.lexists(self._office.returning)

    def _notice_withdrawn(self, history: History) -> None:
        """Log the open letters that are no longer in the outbox, so that their names can be used again."""
        if not history.open_items:
            return
        there = {visible(name) for name in self._scan()}
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
        for batch in self._batches(self._scan(), history):
            for item in batch:
                self._count(posting.post(item).records)
                self.report.deferred += posting.still_deferred
                posting.still_deferred = 0

    # -- reading, in order -------------------------------------------------------------------------------------

    def _batches(self, names: Sequence[str], history: History) -> Iterator[list[Item]]:
        """Yield these letters in the order they were sent (ties: by name), in bounded batches."""
        if not names:
            return
        self._own = {item.letter["file"] for item in history.open_items.values() if item.is_report}
        queue, kept = self._survey(names)
        read = (kept.pop(name, None) or self._read(name) for _, name, _ in queue)
        yield from _bounded((item for item in read if item is not None), _weight)

    def _scan(self) -> list[str]:
        try:
            return outbox.scan(self._office.outbox)
        except OSError as fault:
            raise DiskFault(f"{self._office.outbox}: cannot be listed: {fault.strerror}") from fault

    def _survey(self, names: Sequence[str]) -> tuple[list[tuple[int, str, int]], dict[str, Item]]:
        """Look at every letter once: (time, name, size) of each, sorted, and as many letters as memory may hold."""
        queue: list[tuple[int, str, int]] = []
        kept: dict[str, Item] = {}
        kept_bytes = 0
        for name in names:
            item = self._read(name, note=True)
            if item is None:
                continue
            queue.append((item.time_ns, name, item.source.size))
            if len(kept) < _KEEP_MESSAGES and kept_bytes + len(item.raw) <= _KEEP_BYTES:
                kept[name] = item
                kept_bytes += len(item.raw)
        queue.sort()
        return queue, kept

    def _read(self, name: str, *, note: bool = False) -> Item | None:
        """Read one letter; None if it is gone, or left for a later run (told of in the report when `note`)."""
        now_ns = self._clock()
        max_bytes = self._settings.max_message_bytes
        if visible(name) in self._own:  # what came in within the limit can be given back
            max_bytes += reports.ROOM
        reading = outbox.read(
            self._office.outbox,
            name,
            max_bytes=max_bytes,
            head_bytes=message.HEAD_BYTES,
            settle_seconds=self._settings.settle_seconds,
            now_ns=now_ns,
        )
        if reading is None:
            return None
        result = letter.assess(
            reading,
            visible(name),
            now_ns=now_ns,
            settle_seconds=self._settings.settle_seconds,
            max_bytes=max_bytes,
        )
        if isinstance(result, Waiting):
            if note:
                self.report.waiting.append(Waiting(visible(name), result.why))
            if isinstance(reading, outbox.Unreadable):  # not a writer that needs time, but a fault
                self.report.problems.append(f"outbox/{visible(name)}: {result.why}")
                self.report.deferred += 1
            return None
        if (result.source.device, result.source.inode) in self._stuck:
            return None
        return result

    # -- posting a batch ---------------------------------------------------------------------------------------

    def _post(
        self, items: Sequence[Posted], posting: Posting, history: History, position: tuple[int, int]
    ) -> tuple[int, int]:
        """Make a batch ready, commit it and carry it out; return the position of the log after it.

        Raises:
            DiskFault: it could not be committed (all stays in the outbox) or not be carried out to the end.
        """
        for _ in range(_ATTEMPTS):
            if delivery_log.position(self._office) != position:
                position = delivery_log.position(self._office)
                history.catch_up()
                items = [item for item in items if _still_there(self._office, item)]
            try:
                batch = self._ready(items, posting, position)
                if not batch.entries:
                    self.report.deferred += posting.still_deferred
                    return position
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
            before = _deferred([record for entry in batch.entries for record in entry.records])
            records, problems = commit.carry_out(self._office, batch, again=False)
            self._account(records, problems, put_off=_deferred(records) - before)
            self._made.extend(record["file"] for record in records if record["action"] in reports.ACTIONS)
            self.report.deferred += posting.still_deferred
            history.forget()
            history.catch_up()
            return delivery_log.position(self._office)
        raise DiskFault("other writers of the log leave no time to commit a batch; the next run tries again")

    def _ready(self, items: Sequence[Posted], posting: Posting, position: tuple[int, int]) -> Batch:
        posting.begin(sum(_copies(item) for item in items), self._clock())
        try:
            entries = [posting.post(item) if isinstance(item, Item) else posting.report(item) for item in items]
            posting.sync()
        except BaseException:
            posting.abandon()
            raise
        return Batch([entry for entry in entries if entry.records or entry.ending != journal.KEEP], position)

    def _still_right(
        self, items: Sequence[Posted], posting: Posting, history: History, position: tuple[int, int]
    ) -> bool:
        """Tell whether numbers and letters are still as the batch took them, if anyone has logged since.

        The journal is in place now, so nobody else can commit before we are done.
        """
        if delivery_log.position(self._office) == position:
            return True
        history.catch_up()
        return posting.numbers_hold() and all(_still_there(self._office, item) for item in items)

    # -- the report --------------------------------------------------------------------------------------------

    def _account(self, records: list[Record], problems: list[str], *, put_off: int) -> None:
        """Report what a batch did; `put_off` copies were deferred while it was carried out."""
        self._count(records)
        self.report.problems.extend(problems)
        self.report.deferred += len(problems) + put_off

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


def _copies(item: Posted) -> int:
    """Return how many copies an item may become, at least."""
    return len(item.envelope.to) if isinstance(item, Item) and item.envelope is not None else 1


def _weight(item: Item) -> tuple[int, int]:
    """Return how many copies an item may become, at least, and how many bytes they are."""
    return _copies(item), _copies(item) * len(item.raw)


def _bounded(items: Iterable[_T], weight: Callable[[_T], tuple[int, int]]) -> Iterator[list[_T]]:
    """Yield items in batches that hold so much as a commit may; `weight` gives (copies, bytes)."""
    batch: list[_T] = []
    size = copies = 0
    for item in items:
        more_copies, more_bytes = weight(item)
        if batch and (copies + more_copies > BATCH_COPIES or size + more_bytes > BATCH_BYTES):
            yield batch
            batch, size, copies = [], 0, 0
        batch.append(item)
        size += more_bytes
        copies += more_copies
    if batch:
        yield batch


def _still_there(office: Office, item: Posted) -> bool:
    """Tell whether a letter is in the outbox still; a report is yet to be made."""
    if not isinstance(item, Item):
        return True
    try:
        return outbox.is_same(item.source, os.lstat(os.path.join(office.outbox, item.source.name)))
    except OSError:
        return False
