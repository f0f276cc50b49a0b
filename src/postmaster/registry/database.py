"""The tables of the compiled lookup: how they are filled, and how one row is found whatever their size.

A row of `agent` carries the CRC of its entry, and `meta` what must be there, so that damage shows as damage
(sqlite3.DatabaseError) and not as an agent that is unknown.
"""

import contextlib
import json
import os
import sqlite3
import zlib
from collections.abc import Iterator, Sequence
from typing import Final

from postmaster import address
from postmaster.registry.view import Entry

VERSION: Final = 3  # of the tables; a file of another version is built again
_NEIGHBOURS: Final = 100  # on each side, in each order: what `suggest` looks at

# `reversed` lets the names that end alike stand together, as the primary key does with those that begin alike.
_TABLES: Final = """
CREATE TABLE meta (agents INTEGER NOT NULL, names INTEGER NOT NULL, users INTEGER NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE agent (position INTEGER PRIMARY KEY, entry TEXT NOT NULL, crc INTEGER NOT NULL);
CREATE TABLE name (
  kind TEXT NOT NULL, folded TEXT NOT NULL, position INTEGER NOT NULL, shown TEXT NOT NULL, reversed TEXT NOT NULL,
  PRIMARY KEY (kind, folded, position)
) WITHOUT ROWID;
CREATE INDEX name_reversed ON name (kind, reversed);
"""

# What a damaged file can answer with; sqlite3 decodes its texts, and even its own messages, as it meets them.
DAMAGE: Final = (sqlite3.DatabaseError, UnicodeDecodeError)

ID: Final = "id"
ADDRESS: Final = "address"
ROLE: Final = "role"
NUDGED: Final = "nudge"  # the id of an agent that says how it is to be nudged
RUN: Final = "run"  # that of one that says how its turns are taken
PER_FLOW: Final = "per-flow"  # that of a class that has an instance for each flow


def fill(connection: sqlite3.Connection, entries: Sequence[Entry]) -> None:
    """Write entries, which are in the order of their ids, into an empty database."""
    connection.executescript(_TABLES)
    names: list[tuple[str, str, int, str, str]] = []
    rows = []
    for position, entry in enumerate(entries):
        text = json.dumps(entry, separators=(",", ":"))
        rows.append((position, text, zlib.crc32(text.encode())))
        names += _names(position, entry)
    with connection:
        connection.executemany("INSERT INTO agent VALUES (?, ?, ?)", rows)
        connection.executemany("INSERT INTO name VALUES (?, ?, ?, ?, ?)", sorted(set(names)))
        counts = (len(rows), len(set(names)), sum("user" in entry for entry in entries))
        connection.execute("INSERT INTO meta VALUES (?, ?, ?, ?)", (*counts, _crc(*counts)))
        connection.execute(f"PRAGMA user_version = {VERSION}")


def _names(position: int, entry: Entry) -> Iterator[tuple[str, str, int, str, str]]:
    kinds = ((ID, [entry["id"]]), (ADDRESS, [entry["address"], *entry.get("aliases", ())]))
    marks = ((NUDGED, entry.get("nudge")), (RUN, entry.get("run")), (PER_FLOW, entry.get("instances") == PER_FLOW))
    marked = [(kind, [entry["id"]]) for kind, holds in marks if holds]
    for kind, names in (*kinds, (ROLE, entry.get("roles", ())), *marked):
        for folded, shown in {address.fold(name): name for name in names}.items():
            yield kind, folded, position, shown, folded[::-1]


def in_memory(entries: Sequence[Entry]) -> sqlite3.Connection:
    """Return a database that lives as long as its connection."""
    connection = sqlite3.connect(":memory:")
    fill(connection, entries)
    return connection


def write(path: str, entries: Sequence[Entry]) -> None:
    """Write a database file, synced. `path` is a temporary name that its caller renames.

    Raises:
        OSError, sqlite3.Error: it cannot be written; what was begun is left for the caller to remove.
    """
    # Created here, so that it is new, ours alone, and no link to something else.
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode = OFF")  # a crash leaves a temporary, not a database to mend
        connection.execute("PRAGMA synchronous = OFF")  # synced once, below
        fill(connection, entries)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _uri_path(path: str) -> bytes:
    """Return a path as it stands in an SQLite URI (sqlite.org/uri.html section 3.1), whatever its bytes."""
    raw = os.fsencode(path)
    for special in (b"%", b"?", b"#"):
        raw = raw.replace(special, b"%%%02x" % ord(special))
    return raw


def open_file(path: str) -> sqlite3.Connection:
    """Open a database file that nobody will change (it is replaced, never written to).

    Raises:
        sqlite3.DatabaseError: it is damaged, cut short, or of another version.
    """
    connection = sqlite3.connect(b"file:%s?mode=ro&immutable=1" % _uri_path(path), uri=True)
    try:
        _check(connection, os.stat(path).st_size)
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection, size: int) -> None:
    """Look at what shows most damage, at a cost that does not grow with the registry."""
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    (page_size,) = connection.execute("PRAGMA page_size").fetchone()
    if version != VERSION or pages * page_size != size:
        raise sqlite3.DatabaseError("of another version, or cut short")
    agents, _, _ = _counts(connection)
    (last,) = connection.execute("SELECT coalesce(max(position), -1) FROM agent").fetchone()
    if agents != last + 1:
        raise sqlite3.DatabaseError("rows are missing")


def check_whole(connection: sqlite3.Connection) -> None:
    """Look at every row, before a name is said to be unknown on the word of this database.

    Raises:
        sqlite3.DatabaseError: it is damaged.
    """
    found = connection.execute("PRAGMA integrity_check(1)").fetchone()
    counts = connection.execute("SELECT (SELECT count(*) FROM agent), (SELECT count(*) FROM name)").fetchone()
    if found != ("ok",) or _counts(connection)[:2] != counts:
        raise sqlite3.DatabaseError("damaged")
    for row in connection.execute("SELECT shown, folded, reversed FROM name"):
        _name(*row)


def _name(shown: object, folded: object, backwards: object) -> str:
    if isinstance(shown, str) and (folded, backwards) == (address.fold(shown), address.fold(shown)[::-1]):
        return shown
    raise sqlite3.DatabaseError("a name is damaged")


def _key(name: str) -> str:
    """Return what a name is looked up by; arguments of a command may hold what is no Unicode text."""
    return address.fold(name).encode("utf-8", "replace").decode()


def positions(connection: sqlite3.Connection, kind: str, name: str) -> list[int]:
    """Return the positions of the agents that have this name of this kind, in the order of their ids."""
    rows = connection.execute(
        "SELECT position FROM name WHERE kind = ? AND folded = ? ORDER BY position", (kind, _key(name))
    )
    return [position for (position,) in rows]


def entry_at(connection: sqlite3.Connection, position: int) -> Entry:
    """Return the entry at a position.

    Raises:
        sqlite3.DatabaseError: it is not there or not as it was written.
    """
    row = connection.execute("SELECT entry, crc FROM agent WHERE position = ?", (position,)).fetchone()
    return _entry(row)


def all_entries(connection: sqlite3.Connection) -> Iterator[Entry]:
    """Yield every entry in the order of the ids."""
    for row in connection.execute("SELECT entry, crc FROM agent ORDER BY position"):
        yield _entry(row)


def _entry(row: tuple[str, int] | None) -> Entry:
    if row is None or not isinstance(row[0], str) or zlib.crc32(row[0].encode()) != row[1]:
        raise sqlite3.DatabaseError("an entry is damaged")
    entry: Entry = json.loads(row[0])
    return entry


def _crc(*counts: object) -> int:
    return zlib.crc32(" ".join(map(str, counts)).encode())


def _counts(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Return how many agents there are, how many names, and how many agents that have a `user`."""
    rows = connection.execute("SELECT agents, names, users, crc FROM meta").fetchall()
    if len(rows) != 1 or _crc(*rows[0][:3]) != rows[0][3]:
        raise sqlite3.DatabaseError("the counts are damaged")
    agents, found, users, _ = rows[0]
    return agents, found, users


def count(connection: sqlite3.Connection) -> int:
    """Return how many agents there are."""
    return _counts(connection)[0]


def count_users(connection: sqlite3.Connection) -> int:
    """Return how many agents have a `user`."""
    return _counts(connection)[2]


def names_of(connection: sqlite3.Connection, kind: str, limit: int = -1) -> list[str]:
    """Return the names of a kind, as they were written, in order; at most `limit` of them."""
    query = "SELECT shown, folded, reversed FROM name WHERE kind = ? ORDER BY folded LIMIT ?"
    return [_name(*row) for row in connection.execute(query, (kind, limit))]


def beginning(connection: sqlite3.Connection, kind: str, text: str) -> list[int]:
    """Return the positions of the agents that have a name of this kind that begins with `text`."""
    folded = _key(text)
    end = folded[:-1] + chr(ord(folded[-1]) + 1)
    rows = connection.execute(
        "SELECT position FROM name WHERE kind = ? AND folded >= ? AND folded < ? ORDER BY position", (kind, folded, end)
    )
    return [position for (position,) in rows]


def neighbours(connection: sqlite3.Connection, kind: str, name: str) -> list[str]:
    """Return known names of a kind that begin or end like `name`: those next to it in either order."""
    found: list[str] = []
    folded = _key(name)
    for column, text in (("folded", folded), ("reversed", folded[::-1])):
        for comparison, order in ((">=", "ASC"), ("<", "DESC")):
            query = (
                f"SELECT shown, folded, reversed FROM name WHERE kind = ? AND {column} {comparison} ? "  # noqa: S608
                f"ORDER BY kind {order}, {column} {order} LIMIT ?"
            )
            found += [_name(*row) for row in connection.execute(query, (kind, text, _NEIGHBOURS))]
    return list(dict.fromkeys(found))
