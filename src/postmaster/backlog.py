"""The mail that waits in the outbox, in the order in which it was sent, in batches that memory can hold.

Numbers follow the time at which letters were sent, so all are looked at before the first is posted.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final, TypeVar

from postmaster import letter, message, outbox, reports
from postmaster.errors import DiskFault
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.outbox import Letter, Special, Unreadable, Waiting
from postmaster.settings import Settings
from postmaster.summary import Summary

BATCH_COPIES: Final = 1_000
BATCH_BYTES: Final = 64 * 1024 * 1024
_KEEP_MESSAGES: Final = 20_000  # letters kept in memory between ordering and posting; the rest are read again
_KEEP_BYTES: Final = 32 * 1024 * 1024

_T = TypeVar("_T")


class Backlog:
    """What lies in the outbox when it is made.

    Args:
        clock: nanoseconds since the epoch.
        stuck: (device, inode) of letters that are delivered but could not be removed: no mail.
        own: names of reports of the office's own, which may be larger than what they give back.
        report: told of letters that are left for a later run.
        names: what to look at; the whole outbox by default.

    Raises:
        DiskFault: the outbox cannot be listed.
        ConfigurationFault: there can be no drop folders in it.
    """

    def __init__(
        self,
        office: Office,
        settings: Settings,
        clock: Callable[[], int],
        stuck: set[tuple[int, int]],
        own: frozenset[str],
        report: Summary,
        names: Sequence[str] | None = None,
    ) -> None:
        self._office = office
        self._settings = settings
        self._clock = clock
        self._stuck = stuck
        self._own = own
        self._report = report
        try:
            self.names: Final = (
                outbox.scan(office.outbox, drop_folders=settings.drop_folders) if names is None else names
            )
        except OSError as fault:
            raise DiskFault(f"{fault.filename or office.outbox}: cannot be listed: {fault.strerror}") from fault

    def __len__(self) -> int:
        return len(self.names)

    def batches(self) -> Iterator[list[Item]]:
        """Yield the letters in the order they were sent (ties: by name), in bounded batches."""
        queue, kept = self._survey()
        read = (kept.pop(name, None) or self._read(name) for _, name in queue)
        yield from bounded((item for item in read if item is not None), _weight)

    def _survey(self) -> tuple[list[tuple[int, str]], dict[str, Item]]:
        """Look at every letter once: (time, name) of each, sorted, and as many letters as memory may hold."""
        queue: list[tuple[int, str]] = []
        kept: dict[str, Item] = {}
        kept_bytes = 0
        for name in self.names:
            now_ns = self._clock()
            reading = self._look(name, now_ns)
            room = len(kept) < _KEEP_MESSAGES and kept_bytes < _KEEP_BYTES
            if not room and isinstance(reading, Letter):
                time_ns = letter.glance(reading, now_ns=now_ns, settle_seconds=self._settings.settle_seconds)
                if time_ns is not None:
                    queue.append((time_ns, name))
                    continue
            item = self._assess(reading, name, now_ns, note=True)
            if item is None:
                continue
            queue.append((item.time_ns, name))
            if room and kept_bytes + len(item.raw) <= _KEEP_BYTES:
                kept[name] = item
                kept_bytes += len(item.raw)
        queue.sort()
        return queue, kept

    def _read(self, name: str) -> Item | None:
        """Read one letter again; None if it is gone, or left for a later run."""
        now_ns = self._clock()
        return self._assess(self._look(name, now_ns), name, now_ns)

    def _look(self, name: str, now_ns: int) -> Letter | Special | Unreadable | Waiting | None:
        return outbox.read(
            self._office.outbox,
            name,
            max_bytes=self._max_bytes(name),
            head_bytes=message.HEAD_BYTES,
            settle_seconds=self._settings.settle_seconds,
            now_ns=now_ns,
        )

    def _assess(
        self,
        reading: Letter | Special | Unreadable | Waiting | None,
        name: str,
        now_ns: int,
        *,
        note: bool = False,
    ) -> Item | None:
        """Return what is to be done with a name; None if it is left for a later run (told of when `note`)."""
        if reading is None:
            return None
        result = letter.assess(
            reading,
            visible(name),
            now_ns=now_ns,
            settle_seconds=self._settings.settle_seconds,
            max_bytes=self._max_bytes(name),
        )
        if isinstance(result, Waiting):
            if note:
                self._report.waiting.append(Waiting(visible(name), result.why))
            if isinstance(reading, Unreadable):  # not a writer that needs time, but a fault
                self._report.problems.append(f"outbox/{visible(name)}: {result.why}")
                self._report.deferred += 1
            return None
        if (result.source.device, result.source.inode) in self._stuck:
            return None
        return result

    def _max_bytes(self, name: str) -> int:
        """Return how large a letter may be: what came in within the limit can be given back."""
        return self._settings.max_message_bytes + (reports.ROOM if self._own and visible(name) in self._own else 0)


def bounded(items: Iterable[_T], weight: Callable[[_T], tuple[int, int]]) -> Iterator[list[_T]]:
    """Yield items in batches that hold so much as one commit may; `weight` gives (copies, bytes)."""
    batch: list[_T] = []
    size = pending = 0
    for item in items:
        more_copies, more_bytes = weight(item)
        if batch and (pending + more_copies > BATCH_COPIES or size + more_bytes > BATCH_BYTES):
            yield batch
            batch, size, pending = [], 0, 0
        batch.append(item)
        size += more_bytes
        pending += more_copies
    if batch:
        yield batch


def _weight(item: Item) -> tuple[int, int]:
    return copies(item), copies(item) * len(item.raw)


def copies(item: Item) -> int:
    """Return how many copies an item may become, at least."""
    return len(item.envelope.to) if item.envelope is not None else 1
