"""What the delivery log says, held so that it can be asked: numbers, earlier messages, what is still open.

The log is the truth; this is its index. `.postmaster/history.sqlite` holds the part of the log up to an offset and
the rest is read at the start of a run, so that a small run never writes the index. It is rebuilt when it is missing,
damaged, or does not fit the log any more (rotated, cut, edited).
"""

import json
import os
import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from postmaster import delivery_log, durable, message, reasons
from postmaster.decide import Envelope
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.header import Refused
from postmaster.maildir import READ
from postmaster.office import Office

_VERSION: Final = 1
_KEEP_IN_MEMORY: Final = 5_000  # records read from the log before they are written to the index
_FINAL: Final = (reasons.DELIVERED, reasons.DEAD_LETTER, reasons.REJECTED)
_RECEIVERS: Final = ("read", "unread")  # told from files that belong to the receiver: they prove no number
RETRIED: Final = "retried"
ALLOW_DUPLICATE: Final = "duplicate allowed"

_SCHEMA: Final = """
    CREATE TABLE meta (version INTEGER NOT NULL);
    CREATE TABLE segment (mark TEXT PRIMARY KEY, offset INTEGER NOT NULL, last TEXT NOT NULL) WITHOUT ROWID;
    CREATE TABLE flow (correlation_id TEXT PRIMARY KEY, highest INTEGER NOT NULL) WITHOUT ROWID;
    CREATE TABLE sent (key BLOB, path TEXT, PRIMARY KEY (key, path)) WITHOUT ROWID;
    CREATE TABLE open (key TEXT PRIMARY KEY, item TEXT NOT NULL) WITHOUT ROWID;
"""


@dataclass(slots=True)
class OpenItem:
    """A letter that is in the outbox and in the log: deferred, or sent again.

    Attributes:
        sequence: its number, if a copy of it was delivered or refused before.
        pending: for every (recipient, agent id) still to be served: the reason and time (text) of the deferral.
        allow_duplicate: it was sent again with `--allow-duplicate`.
    """

    sequence: int | None = None
    pending: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    allow_duplicate: bool = False

    def waits_for(self, recipient: str, agent_id: str | None) -> tuple[str, str] | None:
        """Return the deferral of this recipient, if it is pending."""
        return self.pending.get((recipient, agent_id or "")) or self.pending.get((recipient, ""))

    def is_over_for(self, recipient: str, agent_id: str | None) -> bool:
        """Tell whether this recipient was served in an earlier run."""
        if self.sequence is None or self.waits_for(recipient, agent_id) is not None:
            return False
        # Refused now, though an agent's copy was deferred: its entry has gone from the registry since.
        return not (agent_id is None and any(waiting == recipient for waiting, _ in self.pending))

    def names_any(self, recipients: Iterable[str]) -> bool:
        """Tell whether one of `recipients` is pending."""
        waiting = {recipient for recipient, _ in self.pending}
        return any(recipient in waiting for recipient in recipients)

    def to_json(self) -> str:
        """Return the item as the index keeps it."""
        pending = [[*who, *what] for who, what in self.pending.items()]
        return json.dumps([self.sequence, pending, self.allow_duplicate])

    @classmethod
    def from_json(cls, text: str) -> "OpenItem":
        """Return the item that `to_json` wrote."""
        sequence, pending, allow = json.loads(text)
        return cls(sequence, {(to, agent): (reason, time) for to, agent, reason, time in pending}, allow)


class _State:
    """The records of some stretch of the log, reduced to what is asked."""

    def __init__(self) -> None:
        self.flows: dict[str, int] = {}
        self.sent: dict[bytes, list[str]] = {}
        self.count = 0

    def apply(self, record: Record, open_items: dict[str, OpenItem]) -> None:
        self.count += 1
        action, flow, sequence = record["action"], record.get("correlation_id"), record.get("sequence")
        if isinstance(flow, str) and isinstance(sequence, int) and action not in _RECEIVERS:
            self.flows[flow] = max(sequence, self.flows.get(flow, 0))
        if action == reasons.DELIVERED and "agent" in record:
            key = _sent_key(letter_key(record), record["agent"])
            self.sent.setdefault(key, []).append(str(record.get("path", "")))
        follow(record, open_items)


def follow(record: Record, open_items: dict[str, OpenItem]) -> None:
    """Take one more record into `open_items`: the letters that stay in the outbox, by their `item_key`."""
    if "file" in record and record["action"] in (reasons.DEFERRED, RETRIED, *_FINAL):
        _apply_open(record, record["action"], record.get("sequence"), open_items)


def _apply_open(record: Record, action: str, sequence: int | None, open_items: dict[str, OpenItem]) -> None:
    """Follow a letter that stays in the outbox: opened by `deferred` or `retried`, closed by its last outcome."""
    key = item_key(record["file"], letter_key(record))
    who = (record.get("to", ""), record.get("agent", ""))
    item = open_items.get(key)
    if action in (reasons.DEFERRED, RETRIED):
        if item is None:
            item = open_items[key] = OpenItem()
        if action == RETRIED:
            item.allow_duplicate = record.get("detail") == ALLOW_DUPLICATE
        reason = str(record.get("reason", ""))
        since = item.pending.get(who, ("", record["time"]))[1]
        item.pending[who] = (reason, since)
        item.sequence = sequence if sequence is not None else item.sequence
        return
    if not record.get("id"):
        open_items.pop(key, None)
    else:  # a letter that could not even be read has left after all
        open_items.pop(item_key(record["file"], letter_key({})), None)
    if item is None:
        return
    item.sequence = sequence if sequence is not None else item.sequence
    for waiting in [one for one in item.pending if one[0] == who[0] and one[1] in ("", who[1])]:
        del item.pending[waiting]
    if not who[1]:  # refused: nobody is left to be served under this address
        for waiting in [one for one in item.pending if one[0] == who[0]]:
            del item.pending[waiting]
    if not item.pending:
        open_items.pop(key, None)


def letter_key(record: Record) -> bytes:
    """Return what two log lines about the same text from the same sender have in common."""
    get = record.get
    text = (
        f"{get('id', '')}\0{get('correlation_id', '')}\0{get('from', '')}\0{get('type', '')}\0{get('subject', '')}\0"
        f"{get('sent_at', '')}\0{get('in_reply_to', '')}"
    )
    return md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def item_key(file: str, key: bytes) -> str:
    """Return the name under which an open letter is kept: its file in the outbox and its text."""
    return f"{key.hex()} {file}"


def _sent_key(key: bytes, agent_id: str) -> bytes:
    return md5(key + agent_id.encode(), usedforsecurity=False).digest()


class History:
    """The log's past, as `decide` and the router ask for it. Close it after use.

    Args:
        write: whether the index may be written; without, the whole log is read where there is none.
    """

    def __init__(self, office: Office, *, write: bool = True) -> None:
        self._office = office
        self._write = write
        self._database: sqlite3.Connection | None = None
        self._recent = _State()
        self._open: dict[str, OpenItem] = {}
        self._segments: dict[str, tuple[int, str]] = {}
        self._keyed: tuple[Envelope | None, bytes] = (None, b"")
        self._given: dict[bytes, list[tuple[Envelope, str]]] = {}
        try:
            self._load()
        except (sqlite3.DatabaseError, ValueError, TypeError):
            self._start_over()
        self._catch_up()

    def close(self) -> None:
        """Close the index."""
        if self._database is not None:
            self._database.close()
            self._database = None

    # -- questions ---------------------------------------------------------------------------------------------

    def highest(self, flow: str) -> int:
        """Return the highest number given in this flow; 0 if none was."""
        known = self._recent.flows.get(flow, 0)
        rows = self._ask("SELECT highest FROM flow WHERE correlation_id = ?", flow)
        return max(known, int(rows[0][0]) if rows else 0)

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        """Return where the identical message that this agent was given before is, or was."""
        key = _sent_key(self._key(envelope), agent_id)
        for given, where in self._given.get(key, ()):
            if given.fields == envelope.fields:
                return where
        paths = list(self._recent.sent.get(key, ()))
        paths.extend(row[0] for row in self._ask("SELECT path FROM sent WHERE key = ?", key))
        for path in paths:
            fields = self._delivered_fields(path)
            if fields is None or fields == envelope.fields:
                return path or "an earlier message"
        return None

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
                start, end, body = message.split(raw, complete=False)
                return message.read_header(raw, start, end, body).fields
            except (OSError, Refused):
                continue
        return None

    def _ask(self, query: str, *values: object) -> list[Any]:
        if self._database is None:
            return []
        try:
            return self._database.execute(query, values).fetchall()
        except sqlite3.DatabaseError:
            self._start_over()
            self._catch_up()
            return [] if self._database is None else self._database.execute(query, values).fetchall()

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

    # -- the index ---------------------------------------------------------------------------------------------

    def _load(self) -> None:
        if not os.path.exists(self._office.history):
            return
        self._database = sqlite3.connect(f"file:{_uri(self._office.history)}?mode=rw", uri=True, isolation_level=None)
        if self._database.execute("SELECT version FROM meta").fetchall() != [(_VERSION,)]:
            raise ValueError("another version")
        for mark, offset, last in self._database.execute("SELECT mark, offset, last FROM segment"):
            self._segments[mark] = (int(offset), str(last))
        for key, item in self._database.execute("SELECT key, item FROM open"):
            self._open[key] = OpenItem.from_json(item)

    def _start_over(self) -> None:
        """Forget the index; the log says it all again."""
        self.close()
        if self._write:
            for suffix in ("", "-journal", "-wal", "-shm"):
                durable.remove(self._office.history + suffix)
        self._recent = _State()
        self._open = {}
        self._segments = {}

    def _catch_up(self) -> None:
        try:
            if not self._read_new():
                self._start_over()
                self._read_new()
            if self._write and self._recent.count >= _KEEP_IN_MEMORY:
                self._flush()
        except delivery_log.DAMAGE as fault:
            raise DiskFault(f"{self._office.logs}: the log cannot be read: {fault}") from fault

    def _read_new(self) -> bool:
        """Read every log file on from where it was read to; False if one does not fit what was read before."""
        for path in delivery_log.log_files(self._office):
            with delivery_log.open_log(path) as stream:
                first = stream.readline()
                if not first:
                    continue
                mark = _mark(first)
                offset, last = self._segments.get(mark, (0, ""))
                if offset and not _still_fits(stream, offset, last):
                    return False
                stream.seek(offset)
                line = b""
                while (line_read := stream.readline()).endswith(b"\n"):
                    offset, line = offset + len(line_read), line_read
                    if (record := delivery_log.decode(line)) is not None:
                        self._recent.apply(record, self._open)
                    if self._write and self._recent.count >= 50_000:
                        self._segments[mark] = (offset, f"{len(line)} {_mark(line)}")
                        self._flush()
                # A whole record whose newline was cut off counts; its place is read again once it is sealed.
                if line_read and (record := delivery_log.decode(line_read)) is not None:
                    self._recent.apply(record, self._open)
                if line:
                    self._segments[mark] = (offset, f"{len(line)} {_mark(line)}")
        return True

    def _flush(self) -> None:
        """Write what was read to the index. A fault only costs time: the next run reads the log again."""
        try:
            if self._database is None:
                self._database = sqlite3.connect(self._office.history, isolation_level=None)
                self._database.executescript(_SCHEMA)
                self._database.execute("INSERT INTO meta VALUES (?)", (_VERSION,))
            database = self._database
            database.execute("BEGIN IMMEDIATE")
            database.executemany(
                "INSERT INTO flow VALUES (?, ?) ON CONFLICT DO UPDATE SET highest = max(highest, excluded.highest)",
                self._recent.flows.items(),
            )
            database.executemany(
                "INSERT OR IGNORE INTO sent VALUES (?, ?)",
                ((key, path) for key, paths in self._recent.sent.items() for path in paths),
            )
            database.execute("DELETE FROM open")
            database.executemany(
                "INSERT INTO open VALUES (?, ?)", ((key, item.to_json()) for key, item in self._open.items())
            )
            database.executemany(
                "INSERT OR REPLACE INTO segment VALUES (?, ?, ?)",
                ((mark, offset, last) for mark, (offset, last) in self._segments.items()),
            )
            database.execute("COMMIT")
        except sqlite3.Error:
            self._write = False  # go on in memory
            if self._database is not None and self._database.in_transaction:
                self._database.execute("ROLLBACK")
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


def _uri(path: str) -> str:
    return path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def _mark(line: bytes) -> str:
    return md5(line, usedforsecurity=False).hexdigest()


def _still_fits(stream: Any, offset: int, last: str) -> bool:
    """Tell whether the last line read before still ends at `offset`."""
    length, _, mark = last.partition(" ")
    stream.seek(offset - int(length))
    return _mark(stream.read(int(length))) == mark


def highest_numbers(found: Iterable[Record]) -> dict[str, int]:
    """Return the highest number of every flow in `found`, the plain way (the index must agree)."""
    state = _State()
    for record in found:
        state.apply(record, {})
    return state.flows
