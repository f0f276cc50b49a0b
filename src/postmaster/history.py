"""What the delivery log says, held so that it can be asked: numbers, earlier messages, what is still open.

The log is the truth; this is its index. `.postmaster/history.sqlite` holds the part of the log up to an offset and
the rest is read at the start of a run, so that a small run never writes the index. It is rebuilt when it is missing,
damaged, or does not fit the log any more (rotated, cut, edited).
"""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b, md5
from typing import IO, Any, Final

from postmaster import delivery_log, durable, message, reasons, reports
from postmaster.delivery_log import Appended, Record
from postmaster.errors import DiskFault
from postmaster.header import Refused
from postmaster.index import CannotWrite, Damaged, Index, Value, create, open_index
from postmaster.maildir import READ
from postmaster.office import Office
from postmaster.open_items import OpenItem, follow, item_key, letter_key
from postmaster.verdict import Envelope

_KEEP_IN_MEMORY: Final = 5_000  # records read from the log before they are written to the index
_AT_ONCE: Final = 50_000  # the same, while the log is being read
_RECEIVERS: Final = ("read", "unread")


class _State:
    """The records of some stretch of the log, reduced to what is asked."""

    def __init__(self) -> None:
        self.flows: dict[str, int] = {}
        self.sent: dict[bytes, list[str]] = {}
        self.count = 0

    def apply(self, record: Record, open_items: dict[str, OpenItem]) -> None:
        self.count += 1
        action, flow, sequence = record["action"], record.get("correlation_id"), record.get("sequence")
        if isinstance(flow, str) and isinstance(sequence, int) and not _by_receiver(record):
            self.flows[flow] = max(sequence, self.flows.get(flow, 0))
        if action in (reasons.DELIVERED, reasons.RELAYED) and "agent" in record:
            key = _sent_key(letter_key(record), record["agent"])
            self.sent.setdefault(key, []).append(str(record.get("path", "")))
        elif action in reports.ACTIONS:
            self.sent[_made_key(letter_key(record), record.get("to", ""))] = [""]
            if action == reasons.RETURNED:
                self.sent[_returned_key(record.get("agent", ""), record.get("path", ""))] = [""]
        follow(record, open_items)


def _by_receiver(record: Record) -> bool:
    """Tell whether a line was told from a file that belongs to the receiver: it proves no number."""
    return record["action"] in _RECEIVERS or record.get("reason") == reasons.TURN_FAILED


def _sent_key(key: bytes, agent_id: str) -> bytes:
    return md5(key + agent_id.encode(), usedforsecurity=False).digest()


def _made_key(key: bytes, to: str) -> bytes:
    return md5(key + b"\0made\0" + to.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def _returned_key(agent_id: str, path: str) -> bytes:
    text = f"returned\0{agent_id}\0{path}"
    return md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def _flow_key(flow: str) -> bytes:
    return blake2b(flow.encode("utf-8", "surrogatepass"), digest_size=16).digest()


@dataclass(frozen=True, slots=True)
class _Segment:
    """How far a log file was read: bytes from its start, and the length and MD5 of the last line there.

    `stamp` is that of the file (`_stamp`) when it was read to its end: while it is the same, nothing is to be read.
    """

    offset: int = 0
    length: int = 0
    last: str = ""
    stamp: str = ""

    @classmethod
    def from_json(cls, values: Any) -> "_Segment":
        """Read what `astuple` gave. Raises ValueError or TypeError for anything else."""
        offset, length, last, stamp = values
        return cls(int(offset), int(length), str(last), str(stamp))


class History:
    """The log's past, as `decide` and the router ask for it. Close it after use.

    Args:
        write: whether the index may be written; without, the whole log is read where there is none.
    """

    def __init__(self, office: Office, *, write: bool = True) -> None:
        self._office = office
        self._write = write
        self._index: Index | None = None
        self._started_over = False
        self._recent = _State()
        self._open: dict[str, OpenItem] = {}
        self._segments: dict[str, _Segment] = {}
        self._live = ""  # the mark of the log that is being written
        self._keyed: tuple[Envelope | None, bytes] = (None, b"")
        self._given: dict[bytes, list[tuple[Envelope, str]]] = {}
        try:
            self._load()
        except (Damaged, ValueError, TypeError):
            self._start_over()
        self._catch_up()

    def close(self) -> None:
        """Close the index."""
        if self._index is not None:
            self._index.close()
            self._index = None

    # -- questions ---------------------------------------------------------------------------------------------

    def highest(self, flow: str) -> int:
        """Return the highest number given in this flow; 0 if none was."""
        known = self._ask(_flow_key(flow))  # first: it may have to read all of the log into memory
        return max(self._recent.flows.get(flow, 0), *(value for value in known if isinstance(value, int)), 0)

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        """Return where the identical message that this agent was given before is, or was."""
        key = _sent_key(self._key(envelope), agent_id)
        for given, where in self._given.get(key, ()):
            if given.fields == envelope.fields:
                return where
        known = self._ask(key)
        for path in (*self._recent.sent.get(key, ()), *(value for value in known if isinstance(value, str))):
            fields = self._delivered_fields(path)
            if fields is None or fields == envelope.fields:
                return path or "an earlier message"
        return None

    def made(self, envelope: Envelope) -> bool:
        """Tell whether the office itself has made this very message: not one that has another line besides."""
        if len(envelope.to) != 1 or not envelope.fields.keys() <= reports.FIELDS:
            return False
        return self._knows(_made_key(self._key(envelope), envelope.to[0]))

    def returned(self, agent_id: str, path: str) -> bool:
        """Tell whether the message at `path`, in the mailbox of an archived instance, was given back to its sender."""
        return self._knows(_returned_key(agent_id, path))

    def delivered(self, record: Record, agent_id: str) -> list[str]:
        """Return where an agent was given this message: the paths in the log, of which there may be several."""
        key = _sent_key(letter_key(record), agent_id)
        known = self._ask(key)
        return [*self._recent.sent.get(key, ()), *(value for value in known if isinstance(value, str))]

    def _knows(self, key: bytes) -> bool:
        known = self._ask(key)  # first: it may have to read all of the log into memory
        return bool(known) or key in self._recent.sent

    def open_item(self, record: Record) -> OpenItem | None:
        """Return what the log says of the letter that `record` tells of, if it is still in the outbox."""
        return self._open.get(item_key(record["file"], letter_key(record))) if self._open else None

    def _key(self, envelope: Envelope) -> bytes:
        """Return `envelope_key`, which is asked for several times running."""
        if self._keyed[0] is not envelope:
            self._keyed = (envelope, envelope_key(envelope))
        return self._keyed[1]

    @property
    def open_items(self) -> Mapping[str, OpenItem]:
        """The letters that are in the outbox and in the log, by their `item_key`."""
        return self._open

    def _delivered_fields(self, path: str) -> dict[str, Any] | None:
        """Return the sender's fields of a delivered message, unread or read by now; None if it is gone."""
        absolute = os.path.join(self._office.root, path)
        directory, name = os.path.split(absolute)
        for candidate in (absolute, os.path.join(os.path.dirname(directory), READ, name)):
            try:
                with open(candidate, "rb") as stream:
                    raw = stream.read(message.HEAD_BYTES)
                start, end, body = message.split(raw, complete=False, delivered=True)
                return message.read_header(raw, start, end, body).fields
            except (OSError, Refused):
                continue
        return None

    def _ask(self, key: bytes) -> list[Value]:
        """Return what the index holds under a key; the rest is in memory."""
        while self._index is not None:
            try:
                return self._index.get(key)
            except Damaged:
                self._start_over()
                self._catch_up()
        return []

    # -- what this run adds ------------------------------------------------------------------------------------

    def expect(self, envelope: Envelope, agent_id: str, where: str) -> None:
        """Remember a message that the batch in hand is to deliver, until `forget`."""
        key = _sent_key(self._key(envelope), agent_id)
        self._given.setdefault(key, []).append((envelope, where))

    def forget(self) -> None:
        """Forget what was expected: the batch is in the log by now, or given up."""
        self._given.clear()

    def catch_up(self) -> None:
        """Take in what has been logged since."""
        self._catch_up()

    def note(self, records: Sequence[Record], lines: Sequence[bytes], appended: Appended | None) -> tuple[int, int]:
        """Take in what this run has put in the log, without reading it again if nobody else wrote meanwhile.

        Returns:
            the position of the log (delivery_log.position) up to which it is taken in.
        """
        if appended is not None:
            mark = self._live if appended.start else _mark(lines[0])
            segment = self._segments.get(mark, _Segment())
            if segment.offset == appended.start and appended.start + sum(map(len, lines)) == appended.end:
                for record in records:  # as they would be read: what is None was left out
                    told = {key: value for key, value in record.items() if value is not None}
                    self._recent.apply(told, self._open)
                self._live = mark
                self._segments[mark] = _Segment(appended.end, len(lines[-1]), _mark(lines[-1]), _stamp(appended.status))
                self._flush_if_full()
                return appended.status.st_ino, appended.end
        position = delivery_log.position(self._office)
        self._catch_up()
        return position

    # -- the index ---------------------------------------------------------------------------------------------

    def _load(self) -> None:
        self._index = open_index(self._office.history)
        if self._index is None:
            return
        segments, items = json.loads(self._index.text)
        self._segments = {str(mark): _Segment.from_json(values) for mark, values in segments.items()}
        self._open = {key: OpenItem.from_json(item) for key, item in items.items()}

    def _start_over(self) -> None:
        """Forget the index; the log says it all again. If that happens twice in a run, go on without one."""
        self.close()
        self._remove()
        self._write = self._write and not self._started_over
        self._started_over = True
        self._recent = _State()
        self._open = {}
        self._segments = {}

    def _remove(self) -> None:
        if self._write:
            for suffix in ("", "-journal", "-wal", "-shm"):
                durable.remove(self._office.history + suffix)

    def _catch_up(self) -> None:
        try:
            if not self._read_new():
                self._start_over()
                self._read_new()
            self._flush_if_full()
        except delivery_log.DAMAGE as fault:
            raise DiskFault(f"{self._office.logs}: the log cannot be read: {fault}") from fault

    def _flush_if_full(self) -> None:
        if self._write and self._recent.count >= _KEEP_IN_MEMORY:
            self._flush()

    def _read_new(self) -> bool:
        """Read every log file on from where it was read to; False if one is gone, or not what was read before."""
        gone = set(self._segments)
        for path in delivery_log.log_files(self._office):
            stamp = _stamp(os.stat(path))
            with delivery_log.open_log(path) as stream:
                first = _first_record(stream)
                if not first:
                    continue
                mark = _mark(first)
                if path == self._office.log:
                    self._live = mark
                segment = self._segments.get(mark, _Segment())
                if segment.stamp != stamp:
                    if segment.offset and not _still_fits(stream, segment):
                        continue  # it was edited, or is a copy of the beginning of another file, which fits
                    self._read_on(stream, mark, segment, stamp)
                gone.discard(mark)
        return not gone

    def _read_on(self, stream: IO[bytes], mark: str, segment: "_Segment", stamp: str) -> None:
        """Take in what follows a segment of a log file."""
        offset, line = segment.offset, b""
        stream.seek(offset)
        while (line_read := stream.readline()).endswith(b"\n"):
            offset, line = offset + len(line_read), line_read
            if (record := delivery_log.decode(line)) is not None:
                self._recent.apply(record, self._open)
            if self._write and self._recent.count >= _AT_ONCE:
                self._segments[mark] = _Segment(offset, len(line), _mark(line))
                self._flush()
        # A whole record whose newline was cut off counts; its place is read again once it is sealed.
        if line_read and (record := delivery_log.decode(line_read)) is not None:
            self._recent.apply(record, self._open)
        if line:
            segment = _Segment(offset, len(line), _mark(line))
        if segment.offset:
            self._segments[mark] = replace(segment, stamp="" if line_read else stamp)

    def _flush(self) -> None:
        """Write what was read to the index. A fault only costs time: the next run reads the log again."""
        rows: dict[bytes, list[Value]] = {_flow_key(flow): [number] for flow, number in self._recent.flows.items()}
        for key, paths in self._recent.sent.items():
            rows[key] = [*paths]
        segments = {mark: astuple(segment) for mark, segment in self._segments.items()}
        text = json.dumps([segments, {key: item.to_json() for key, item in self._open.items()}])
        try:
            if self._index is None:
                self._index = create(self._office.history)
            self._index.put(rows, text)
        except CannotWrite:
            self._write = False  # go on in memory
            return
        except Damaged:
            self._remove()
            self._write = False
            return
        self._recent = _State()


def envelope_key(envelope: Envelope) -> bytes:
    """Return the `letter_key` of the log lines that will be written about `envelope`."""
    return letter_key(
        {
            "id": envelope.id,
            "correlation_id": envelope.correlation_id,
            "from": envelope.sender,
            "type": envelope.type,
            "subject": envelope.subject,
            "sent_at": envelope.sent_at or "",
            "in_reply_to": envelope.in_reply_to or "",
        }
    )


def _first_record(stream: IO[bytes]) -> bytes:
    """Return the first line that is a record, by which a log file is known: torn lines may be alike."""
    return next((line for line in stream if delivery_log.decode(line) is not None), b"")


def _mark(line: bytes) -> str:
    return md5(line, usedforsecurity=False).hexdigest()


def _still_fits(stream: IO[bytes], segment: _Segment) -> bool:
    """Tell whether the last line read before still ends where it did."""
    stream.seek(segment.offset - segment.length)
    return _mark(stream.read(segment.length)) == segment.last


def _stamp(status: os.stat_result) -> str:
    """Return what changes when a log file does."""
    return f"{status.st_ino} {status.st_size} {status.st_mtime_ns}"
