"""What the delivery log says must be on disk: every copy, every dead letter, every number. Read in one pass.

Of a line only a digest of its fields is kept, with its place, so that a log of a hundred thousand lines fits easily;
a line that is asked for again is read again (`Ledger.records_at`).
"""

import errno
import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import delivery_log, reasons
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.office import Office
from postmaster.open_items import RETRIED, OpenItem, follow, item_key, letter_key

At = tuple[int, int]  # which log file (index into Ledger.files), which line
Letter = tuple[bytes, int | None]  # letter_key, sequence

_NUMBERED: Final = (reasons.DELIVERED, reasons.RELAYED, reasons.DEAD_LETTER, reasons.REJECTED, reasons.DEFERRED)
_UNIQUE: Final = len('{"time":"2026-03-04T10:00:00.123456Z')  # the beginning of a line that tells it from others
_COLLIDED: Final = re.compile(r"-\d+(?=(\.[^.]*)?$)")
_COLLISION: Final = re.compile(r"(.*-[0-9a-f]{32})-\d+(\.md)")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the log says, or that the log does not say.

    Attributes:
        kind: a word for programs.
        place: a path, or ``file:line`` of the log.
        what: what is wrong there.
        remedy: what to do.
        message: `id`, `sequence` and `correlation_id` of the message it is about, as far as they are known.
    """

    kind: str
    place: str
    what: str
    remedy: str
    message: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.place}: {self.what}; {self.remedy}"


@dataclass(slots=True)
class Copy:
    """One delivered copy: where the log says it went. `found` is where it was found, as shown to people."""

    at: At
    letter: Letter
    flow: str
    agent: str
    path: str
    found: str | None = None


@dataclass(slots=True)
class Dead:
    """One dead letter. `hashed` tells whether the log knows its id; `special` that it is no regular file."""

    at: At
    letter: Letter
    flow: str
    path: str
    hashed: bool
    special: bool


@dataclass(slots=True)
class Ledger:
    """The log, taken together.

    Attributes:
        files: the log files, oldest first, as paths.
        gone: there is no log file at all.
        unreadable: which of `files` cannot be read to their ends; -1: nobody can tell which files there are.
        copies: every delivered copy.
        dead: what must be in dead-letter/, by the path in the log.
        released: dead letters that were put back in the outbox, and under which name there.
        open_items: letters that must be in the outbox still (open_items.follow), and where the log opened each.
    """

    office: Office
    files: list[str] = field(default_factory=list)
    gone: bool = False
    unreadable: set[int] = field(default_factory=set)
    lines: int = 0
    copies: list[Copy] = field(default_factory=list)
    given: dict[tuple[Letter, str], Copy] = field(default_factory=dict)
    dead: dict[str, Dead] = field(default_factory=dict)
    released: dict[str, tuple[Dead, str]] = field(default_factory=dict)
    open_items: dict[str, OpenItem] = field(default_factory=dict)
    opened_at: dict[str, At] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _numbers: dict[str, dict[int, tuple[bytes, At]]] = field(default_factory=dict)
    _dead_of: dict[bytes, list[str]] = field(default_factory=dict)  # letter -> paths of its dead letters
    _retries: set[tuple[str, str]] = field(default_factory=set)
    _torn: list[tuple[At, bytes]] = field(default_factory=list)

    def place(self, at: At) -> str:
        """Return ``file:line`` as it is shown."""
        return f"{self.office.shown(self.files[at[0]])}:{at[1]}"

    def is_last_word(self, at: At) -> bool:
        """Tell whether every line that may follow the one at `at` was read. The log itself is known to be last."""
        return not self.unreadable or (at[0] not in self.unreadable and self.files[at[0]] == self.office.log)

    def records_at(self, places: Iterable[At]) -> dict[At, Record]:
        """Read lines again; one whose file has gone since is left out."""
        wanted: dict[int, set[int]] = {}
        for index, number in places:
            wanted.setdefault(index, set()).add(number)
        found: dict[At, Record] = {}
        for index, numbers in wanted.items():
            try:
                for number, record in delivery_log.read_records(self.files[index]):
                    if number in numbers:
                        found[index, number] = record
            except DiskFault:
                continue
        return found

    # -- reading -----------------------------------------------------------------------------------------------

    def _line(self, at: At, line: bytes) -> None:
        whole = line.endswith(b"\n")
        record = delivery_log.decode(line)
        if self._torn:
            self._torn = [(torn, text) for torn, text in self._torn if not self._completed(torn, text, at, line)]
        if record is None or not whole:
            self._torn.append((at, line.rstrip(b"\n")))
            return
        self.lines += 1
        self._number(at, record)
        action = record["action"]
        if action in (reasons.DELIVERED, reasons.RELAYED) and "path" in record:
            self._delivered(at, record)
        elif action in (reasons.DEAD_LETTER, reasons.REJECTED) and "path" in record:
            self._dead(at, record)
            if record.get("reason") == reasons.TURN_FAILED:
                self._died_after_delivery(record)
        elif action == RETRIED:
            self._retried(record)
        elif action not in _NUMBERED and "path" in record and "agent" in record:
            self._moved(record)
        self._follow(at, record)

    def _completed(self, torn: At, text: bytes, at: At, line: bytes) -> bool:
        """Tell whether a torn line stands whole at `at`: what a crash cut was written again (states.md)."""
        if not text or not line.startswith(text):
            return False
        whole = f"it stands whole at {self.place(at)}" if len(text) >= _UNIQUE else "whole ones follow it"
        self.notes.append(f"{self.place(torn)}: a line that was cut off; {whole}")
        return True

    def _number(self, at: At, record: Record) -> None:
        flow, sequence = record.get("correlation_id"), record.get("sequence")
        if flow is None or sequence is None or record["action"] not in _NUMBERED:
            return
        if record.get("reason") == reasons.TURN_FAILED:
            return  # told from a file that belongs to the receiver: it proves no number
        key = letter_key(record)
        first = self._numbers.setdefault(flow, {}).setdefault(sequence, (key, at))
        if first[0] != key:
            self._differs(
                "numbering",
                self.place(at),
                f"number {sequence} of {flow!a} was given before, to another message ({self.place(first[1])})",
                "tell the messages apart by their id, and look who else writes this log",
                record,
            )

    def _delivered(self, at: At, record: Record) -> None:
        agent = record.get("agent", "")
        letter = (letter_key(record), record.get("sequence"))
        before = self.given.get((letter, agent))
        if before is not None:
            self._differs(
                "delivered-twice",
                self.place(at),
                f"delivered to {agent} before: {self.place(before.at)}",
                "one of the lines, or one of the files, is too many: look at both",
                record,
            )
            if before.path == record["path"]:
                return
        copy = Copy(at, letter, record.get("correlation_id", ""), agent, record["path"])
        self.given[letter, agent] = copy
        self.copies.append(copy)

    def _dead(self, at: At, record: Record) -> None:
        letter = (letter_key(record), record.get("sequence"))
        flow, path = record.get("correlation_id", ""), record["path"]
        before = self.dead.get(path)
        known = before is not None and (before.at[0] == at[0] or not self.unreadable)  # else: it may have been retried
        if before is not None and known and before.letter != letter:
            self._differs(
                "dead-letter-gone",
                self.place(before.at),
                f"{path} was its dead letter, and is that of another message since ({self.place(at)})",
                "restore it from a backup",
                record,
            )
        special = record.get("reason") == "not-a-regular-file"
        self.released.pop(path, None)
        if path not in self._dead_of.setdefault(letter[0], []):
            self._dead_of[letter[0]].append(path)
        self.dead[path] = Dead(at, letter, flow, path, "id" in record, special)

    def _died_after_delivery(self, record: Record) -> None:
        """Forget a copy that its recipient could do nothing with: it is a dead letter now, and may be sent again."""
        copy = self.given.pop(((letter_key(record), record.get("sequence")), record.get("agent", "")), None)
        if copy is not None:
            self.copies.remove(copy)

    def _retried(self, record: Record) -> None:
        """Take out the dead letter that was put back in the outbox; its header may have been mended since."""
        file, letter = record.get("file", ""), letter_key(record)
        if (record["time"], file) in self._retries:
            return  # one letter, a line for each recipient
        self._retries.add((record["time"], file))
        folder = self.office.shown(self.office.dead_letter)
        named = [f"{folder}/{name}" for name in dict.fromkeys((file, _COLLIDED.sub("", file)))]
        same = [path for path in self._dead_of.get(letter, ()) if path in self.dead]
        found = [path for path in same if path == named[0]] or same or [path for path in named if path in self.dead]
        # A letter that was mended is known by its name only, and that may have had to change on the way.
        absent = [path for path in found if not os.path.lexists(os.path.join(self.office.root, path))]
        for path in (absent or found)[:1]:
            self.released[path] = (self.dead.pop(path), file)

    def _moved(self, record: Record) -> None:
        """Follow a copy that a later line puts elsewhere (archived, returned, read)."""
        letter = (letter_key(record), record.get("sequence"))
        copy = self.given.get((letter, record["agent"]))
        if copy is not None:
            copy.path = record["path"]

    def _follow(self, at: At, record: Record) -> None:
        before = len(self.open_items)
        follow(record, self.open_items)
        if len(self.open_items) > before:
            self.opened_at[item_key(record["file"], letter_key(record))] = at

    def _differs(self, kind: str, place: str, what: str, remedy: str, record: Record) -> None:
        self.differences.append(Difference(kind, place, what, remedy, identity(record)))

    def _cannot_read(self, index: int, path: str, fault: Exception) -> None:
        self.unreadable.add(index)
        what = fault.strerror if isinstance(fault, OSError) and fault.strerror else str(fault)
        remedy = "mend it, or restore it from a backup: numbers and duplicates are told from it"
        self._differs("log-unreadable", self.office.shown(path), f"cannot be read: {what}", remedy, {})

    # -- when all is read --------------------------------------------------------------------------------------

    def _finish(self) -> None:
        for at, text in self._torn:
            kind = "torn, or foreign" if text.lstrip().startswith(b"{") else "foreign"
            if not text:
                kind = "empty"
            self._differs(
                "log-line",
                self.place(at),
                f"no line of this log ({kind}): {text[:60]!a}",
                "routing passes it over; take it out with an editor while nothing runs",
                {},
            )
        self._torn.clear()
        for flow, numbers in self._numbers.items():
            missing = "" if self.unreadable else _ranges(numbers)
            if missing:
                self._differs(
                    "numbering",
                    self.office.shown(self.office.log),
                    f"flow {flow!a} lacks the numbers {missing} of 1-{max(numbers)}: lines were cut, "
                    "or a rotated log was taken away",
                    "bring the missing part back to logs/",
                    {"correlation_id": flow},
                )
        self._numbers.clear()


def read(office: Office) -> Ledger:
    """Read the whole log."""
    ledger = Ledger(office)
    try:
        ledger.files, ledger.gone = find(office)
    except OSError as fault:
        ledger._cannot_read(-1, fault.filename or office.logs, fault)
    for index, path in enumerate(ledger.files):
        try:
            with delivery_log.open_log(path) as stream:
                for number, line in enumerate(stream, 1):
                    ledger._line((index, number), line)
        except (*delivery_log.DAMAGE, DiskFault) as fault:
            ledger._cannot_read(index, path, fault)
    ledger._finish()
    return ledger


def find(office: Office) -> tuple[list[str], bool]:
    """Return the log files, oldest first, and whether there is none, and nothing in the log's place.

    Raises:
        OSError: nobody can tell, or what is in the log's place is no file.
    """
    files = delivery_log.log_files(office)
    if office.log in files:
        return files, False
    try:
        mode = os.lstat(office.log).st_mode
    except FileNotFoundError:
        return files, not files
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, "it is not a regular file", office.log)
    return files, False  # it was made just now


def base_name(path: str) -> str:
    """Return the file name in `path` without the ``-2`` that a name gets when it is taken."""
    name = os.path.basename(path)
    collision = _COLLISION.fullmatch(name)
    return collision[1] + collision[2] if collision else name


def identity(record: Record) -> dict[str, Any]:
    """Return what names a message: those of `id`, `sequence` and `correlation_id` that are known."""
    return {key: record[key] for key in ("id", "sequence", "correlation_id") if record.get(key) is not None}


def _ranges(numbers: dict[int, Any], limit: int = 5) -> str:
    """Return the numbers from 1 on that are missing, as text; an empty text if none is."""
    gaps: list[str] = []
    expected = 1
    for number in sorted(numbers):
        if number > expected:
            gaps.append(str(expected) if number == expected + 1 else f"{expected}-{number - 1}")
        expected = max(expected, number + 1)
    return ", ".join(gaps[:limit]) + (f" and {len(gaps) - limit} more ranges" if len(gaps) > limit else "")
