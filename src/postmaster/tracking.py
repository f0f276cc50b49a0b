"""Following letters that were put in the outbox: whether they have left it, and what the log says of them."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postmaster import delivery_log, reasons
from postmaster.delivery_log import Record
from postmaster.office import Office, visible

FINAL: Final = (reasons.DELIVERED, reasons.DEAD_LETTER, reasons.REJECTED)


@dataclass(slots=True)
class Outcome:
    """What has become of a letter so far.

    Attributes:
        left: it is no longer in the outbox.
        records: the log's lines about it.
    """

    left: bool
    records: list[Record]

    @property
    def exit_code(self) -> int:
        """0 all delivered, 65 refused for somebody, 75 not known yet (sysexits.h)."""
        actions = {record["action"] for record in self.records}
        if actions & {reasons.DEAD_LETTER, reasons.REJECTED}:
            return 65
        return 0 if self.over else 75

    @property
    def state(self) -> str:
        """One word: delivered, refused (for somebody), deferred, waiting (in the outbox), gone (nobody logged it)."""
        actions = {record["action"] for record in self.records}
        if not self.left:
            return "deferred" if reasons.DEFERRED in actions else "waiting"
        if not self.over:
            return "gone"
        return "delivered" if self.exit_code == 0 else "refused"

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.left and any(record["action"] in FINAL for record in self.records)


class Watch:
    """Follows the log for lines about letters that were put in the outbox, by their names there.

    Args:
        since: where the log ended before they were put there.
        after: the time from which on lines are about these letters, as the log writes it.
    """

    def __init__(self, office: Office, files: list[str], since: tuple[int, int], after: str) -> None:
        self._office = office
        self._inode, self._offset = since
        self._after = after
        self._names = files
        self._found: dict[str, dict[bytes, Record]] = {visible(name): {} for name in files}

    def outcomes(self) -> dict[str, Outcome]:
        """Return what the outbox and the log say now. A letter's lines are there before it leaves (docs/states.md)."""
        left = {name: not os.path.lexists(os.path.join(self._office.outbox, name)) for name in self._names}
        with contextlib.suppress(PermissionError):  # a log that is closed to this account says nothing
            self._read()
        return {name: Outcome(left[name], list(self._found[visible(name)].values())) for name in self._names}

    def wait(self, seconds: float, *, pause: Callable[[float], None] = time.sleep) -> dict[str, Outcome]:
        """Return as soon as every letter's fate is known, or when the time is over."""
        end = time.monotonic() + seconds
        interval = 0.02
        while True:
            found = self.outcomes()
            rest = end - time.monotonic()
            if rest <= 0 or all(outcome.over for outcome in found.values()):
                return found
            pause(min(interval, rest))
            interval = min(interval * 1.5, 0.5)

    def _read(self) -> None:
        inode, size = delivery_log.position(self._office)
        if inode != self._inode or size < self._offset:
            if self._inode:  # rotated or cut
                for record in delivery_log.records(self._office):
                    self._take(record)
            self._inode, self._offset = inode, 0
        if size == self._offset:
            return
        with open(self._office.log, "rb") as stream:
            stream.seek(self._offset)
            while (line := stream.readline()).endswith(b"\n"):
                self._offset += len(line)
                if (told := delivery_log.decode(line)) is not None:
                    self._take(told)

    def _take(self, record: Record) -> None:
        file = record.get("file")
        if isinstance(file, str) and file in self._found and str(record.get("time", "")) >= self._after:
            self._found[file][delivery_log.encode(record)] = record
