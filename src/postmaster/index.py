"""A table on disk whose answers are checked: for every key a list of values, and one text that is read as a whole.

SQLite keeps the rows, but does not notice a flipped bit in them, or in the tree that leads to them: a row could have
another value, or be missed. So keys are gathered in buckets, each one row with a checksum over all that it holds and
over its number. Every bucket is there from the beginning. An answer comes from a bucket that is whole, "there is no
such key" too; anything else raises `Damaged`.
"""

import contextlib
import json
import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import md5
from typing import Final

Value = str | int  # texts are gathered, each once; of numbers the highest is kept

_VERSION: Final = 3
_FEWEST: Final = 64  # buckets
_CROWDED: Final = 8  # keys in a bucket, on average, before there are more buckets
_SCHEMA: Final = """
    CREATE TABLE head (sum BLOB NOT NULL, text BLOB NOT NULL);
    CREATE TABLE bucket (number INTEGER PRIMARY KEY, sum BLOB NOT NULL, text BLOB NOT NULL);
"""
_EMPTY: Final = b"{}"


class Damaged(Exception):
    """The table is not what was written, or cannot be used."""


class CannotWrite(Exception):
    """The table is as it was: there is no room for more, or no permission."""


@contextlib.contextmanager
def _checked(*, writing: bool = False) -> Iterator[None]:
    """Turn whatever damage shows itself as into `Damaged`."""
    try:
        yield
    except sqlite3.OperationalError as fault:
        raise (CannotWrite if writing else Damaged)(str(fault)) from fault
    except (sqlite3.Error, ValueError, TypeError, KeyError, OverflowError, RecursionError, MemoryError) as fault:
        raise Damaged(str(fault)) from fault


class Index:
    """The table. Make one with `open_index` or `create`; close it after use.

    Attributes:
        text: what was last written with it, as a whole.
    """

    def __init__(self, connection: sqlite3.Connection, buckets: int, keys: int, text: str) -> None:
        self._connection = connection
        self._buckets = buckets
        self._keys = keys
        self.text = text

    def close(self) -> None:
        """Close the table."""
        self._connection.close()

    def get(self, key: bytes) -> list[Value]:
        """Return the values of a key (16 bytes, evenly spread); none if there is no such key. Raises Damaged."""
        with _checked():
            if not self._connection.in_transaction:
                self._connection.execute("BEGIN")  # one lock for many questions
            raw = self._read(self._place(key))
            shown = key.hex()
            if shown.encode("ascii") not in raw:
                return []
            found: list[Value] = json.loads(raw).get(shown, [])
            return found

    def put(self, rows: Mapping[bytes, Sequence[Value]], text: str) -> None:
        """Add values and replace the text: all of it or, after a fault or a crash, nothing.

        Raises:
            Damaged: something that had to be read is not what was written.
            CannotWrite: the system refused.
        """
        with _checked(writing=True):
            if self._connection.in_transaction:
                self._connection.execute("COMMIT")
            self._connection.execute("BEGIN IMMEDIATE")
            before = self._buckets, self._keys
            try:
                while self._keys + len(rows) > _CROWDED * self._buckets:
                    self._split()
                self._add(rows)
                self._write_head(text)
                self._connection.execute("COMMIT")
            except BaseException:
                self._buckets, self._keys = before
                with contextlib.suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
        self.text = text

    # -- buckets -----------------------------------------------------------------------------------------------

    def _place(self, key: bytes) -> int:
        return int.from_bytes(key[:8], "big") % self._buckets

    def _read(self, number: int) -> bytes:
        found = self._connection.execute("SELECT sum, text FROM bucket WHERE number = ?", (number,)).fetchall()
        if len(found) != 1 or found[0][0] != _sum(number, self._buckets, found[0][1]):
            raise ValueError(f"bucket {number} is damaged")
        raw: bytes = found[0][1]
        return raw

    def _write(self, numbered: Iterable[tuple[int, bytes]]) -> None:
        rows = ((number, _sum(number, self._buckets, raw), raw) for number, raw in numbered)
        self._connection.executemany("INSERT OR REPLACE INTO bucket VALUES (?, ?, ?)", rows)

    def _add(self, rows: Mapping[bytes, Sequence[Value]]) -> None:
        placed: dict[int, list[bytes]] = {}
        for key in rows:
            placed.setdefault(self._place(key), []).append(key)
        for number in sorted(placed):
            bucket = json.loads(self._read(number))
            before = len(bucket)
            for key in placed[number]:
                shown = key.hex()
                bucket[shown] = _merged(bucket.get(shown, []), rows[key])
            self._keys += len(bucket) - before
            self._write([(number, _encode(bucket))])

    def _split(self) -> None:
        """Make four times as many buckets. Of each, the keys go to the four whose numbers are congruent to its own."""
        old, self._buckets = self._buckets, 4 * self._buckets
        for number in range(old):
            self._buckets = old
            bucket = json.loads(self._read(number))
            self._buckets = 4 * old
            parts: dict[int, dict[str, list[Value]]] = {number + old * part: {} for part in range(4)}
            for shown, values in bucket.items():
                parts[self._place(bytes.fromhex(shown))][shown] = values
            self._write((place, _encode(part)) for place, part in parts.items())

    def _write_head(self, text: str) -> None:
        raw = json.dumps([_VERSION, self._buckets, self._keys, text]).encode("ascii")
        self._connection.execute("DELETE FROM head")
        self._connection.execute("INSERT INTO head VALUES (?, ?)", (_sum(-1, 0, raw), raw))


def open_index(path: str) -> Index | None:
    """Open the table; None if there is none. Raises Damaged."""
    if not os.path.lexists(path):
        return None
    with _checked():
        connection = _connect(path, "rw")
        try:
            ((checksum, raw),) = connection.execute("SELECT sum, text FROM head").fetchall()
            if checksum != _sum(-1, 0, raw):
                raise ValueError("the head is damaged")
            version, buckets, keys, text = json.loads(raw)
            if version != _VERSION:
                raise ValueError("another version")
            return Index(connection, buckets, keys, text)
        except BaseException:
            connection.close()
            raise


def create(path: str) -> Index:
    """Make an empty table where there is none. Raises Damaged, CannotWrite."""
    with _checked(writing=True):
        connection = _connect(path, "rwc")
        try:
            connection.execute("BEGIN IMMEDIATE")
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
            made = Index(connection, _FEWEST, 0, "")
            made._write((number, _EMPTY) for number in range(_FEWEST))
            made._write_head("")
            connection.execute("COMMIT")
            return made
        except BaseException:
            connection.close()
            raise


def _connect(path: str, mode: str) -> sqlite3.Connection:
    shown = path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")
    return sqlite3.connect(f"file:{shown}?mode={mode}", uri=True, isolation_level=None, timeout=1)


def _sum(number: int, buckets: int, raw: bytes) -> bytes:
    return md5(b"%d %d " % (number, buckets) + raw, usedforsecurity=False).digest()


def _encode(bucket: Mapping[str, Sequence[Value]]) -> bytes:
    return json.dumps(bucket, separators=(",", ":")).encode("ascii")


def _merged(old: Sequence[Value], new: Sequence[Value]) -> list[Value]:
    numbers = [value for value in (*old, *new) if isinstance(value, int)]
    texts = dict.fromkeys(value for value in (*old, *new) if isinstance(value, str))
    return [*([max(numbers)] if numbers else []), *texts]
