"""The delivery log: one JSON line per action, append only (docs/formats/delivery-log.md)."""

import contextlib
import errno
import fcntl
import importlib
import json
import os
import re
import stat
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, Final

from postmaster import durable
from postmaster.errors import DiskFault
from postmaster.office import Office

KEYS: Final = (
    "time",
    "action",
    "id",
    "sequence",
    "correlation_id",
    "from",
    "to",
    "type",
    "subject",
    "sent_at",
    "in_reply_to",
    "agent",
    "file",
    "path",
    "reason",
    "status",
    "detail",
)
_JSON: Final = json.JSONEncoder(separators=(",", ":"), allow_nan=False)
_NAME: Final = re.compile(r"delivery-log.*\.jsonl(\.\d+|-\d+)?(\.gz|\.zst)?")

_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", re.ASCII)
_MAX_SEQUENCE: Final = 2**53  # what every JSON reader and the index can hold

Record = dict[str, Any]
DAMAGE: Final = (OSError, EOFError, zlib.error)  # what reading a damaged or closed log file raises


def encode(record: Record) -> bytes:
    """Return the line for `record`: compact ASCII JSON, keys in the log's order, absent ones left out."""
    ordered = {key: record[key] for key in KEYS if record.get(key) is not None}
    return _JSON.encode(ordered).encode("ascii") + b"\n"


def decode(line: bytes) -> Record | None:
    """Return the record in a line, or None if the line is torn or foreign."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and _is_ours(record) else None


def _is_ours(record: Record) -> bool:
    """Tell whether a record has the form of ours: a time, text in every field, a whole number as `sequence`."""
    if "action" not in record or not _TIME.fullmatch(str(record.get("time", ""))):
        return False
    sequence = record.get("sequence", 1)
    if type(sequence) is not int or not 0 < sequence < _MAX_SEQUENCE:
        return False
    return all(type(value) is (int if key == "sequence" else str) for key, value in record.items() if key in KEYS)


def check(office: Office) -> None:
    """Make sure that the log can be written before anything is delivered.

    Raises:
        DiskFault: it cannot; says what is there instead.
    """
    try:
        with _locked(office):
            return
    except OSError as fault:
        raise DiskFault(
            f"{office.log}: cannot be written: {fault.strerror or fault}; nothing is routed without a log"
        ) from fault


@dataclass(frozen=True, slots=True)
class Appended:
    """Where in the log lines were put: bytes from its start, and the log's status after that."""

    start: int
    end: int
    status: os.stat_result


def append(office: Office, lines: Sequence[bytes], *, sync_always: bool = False) -> Appended | None:
    """Append whole lines with one write and make them durable.

    A torn last line that a crash or a full disk left is sealed off first: completed if it is the beginning of one
    of `lines`, else ended with a newline. When the disk is full the log is cut back to where it was.

    Args:
        sync_always: sync the log even if there are no lines: they may have been written but not synced.

    Returns:
        where the lines are; None if there were none, or a torn line was sealed off before them.

    Raises:
        DiskFault: the lines are not in the log, or not durably.
    """
    if not lines and not (sync_always and os.path.exists(office.log)):
        return None
    try:
        with _locked(office) as descriptor:
            end = os.fstat(descriptor).st_size
            if lines:
                _write_lines(descriptor, end, lines)
            os.fsync(descriptor)
            status = os.fstat(descriptor)
        if end == 0 or sync_always:
            durable.sync_directory(office.logs)
    except OSError as fault:
        raise DiskFault(f"{office.log}: cannot be written: {fault.strerror or fault}") from fault
    whole = bool(lines) and status.st_size == end + sum(map(len, lines))
    return Appended(end, status.st_size, status) if whole else None


def _write_lines(descriptor: int, end: int, lines: Sequence[bytes]) -> None:
    data = b"".join(lines)
    torn = _torn_tail(descriptor, end)
    if torn and data.startswith(torn):
        data = data[len(torn) :]
    elif torn:
        data = b"\n" + data
    try:
        durable.write_all(descriptor, data)
    except OSError:
        with contextlib.suppress(OSError):
            os.ftruncate(descriptor, end)
        raise


@contextlib.contextmanager
def _locked(office: Office) -> Iterator[int]:
    """Open the log for appending, alone (flock(2)); look again if it was rotated while we waited."""
    while True:
        descriptor = os.open(
            office.log,
            os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK,
            0o666,
        )
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "it is not a regular file", office.log)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            try:
                current = os.stat(office.log).st_ino
            except FileNotFoundError:
                current = -1
            if current == os.fstat(descriptor).st_ino:
                yield descriptor
                return
        finally:
            os.close(descriptor)


def _torn_tail(descriptor: int, end: int) -> bytes:
    """Return what follows the last newline of the log."""
    size, tail = 4096, b""
    while end:
        start = max(0, end - size)
        tail = os.pread(descriptor, end - start, start)
        if b"\n" in tail or start == 0:
            break
        size *= 8
    return tail[tail.rfind(b"\n") + 1 :]


def position(office: Office) -> tuple[int, int]:
    """Return the log's (inode, size); (0, 0) if there is none."""
    try:
        seen = os.stat(office.log)
    except FileNotFoundError:
        return 0, 0
    return seen.st_ino, seen.st_size


def missing_lines(office: Office, lines: Sequence[bytes], since: tuple[int, int]) -> list[bytes]:
    """Return those of `lines` that the log does not hold, looking from `since`, a `position`.

    If the log was rotated or cut since then, all of it and of the rotated ones is searched.
    """
    inode, size = since
    here, now = position(office)
    wanted = set(lines)
    if wanted and here and here == inode and now >= size:
        with open(office.log, "rb") as stream:
            stream.seek(size)
            wanted.difference_update(stream)
    elif wanted:
        for path in log_files(office):
            with open_log(path) as stream:
                for line in stream:
                    wanted.discard(line)
    return [line for line in lines if line in wanted]


def log_files(office: Office) -> list[str]:
    """Return the paths of the log and the rotated logs, oldest first (by the time of their first line).

    Raises:
        OSError: the system does not say which there are.
    """
    try:
        names = os.listdir(office.logs)
    except FileNotFoundError:
        return []
    rotated = []
    for name in names:
        path = os.path.join(office.logs, name)
        if _NAME.fullmatch(name) and path != office.log and _is_file(path):
            rotated.append((first_time(path), path))
    files = [path for _, path in sorted(rotated)]
    if _is_file(office.log):
        files.append(office.log)
    return files


def _is_file(path: str) -> bool:
    """Tell whether there is a file. A log that the disk does not show for a moment must not pass for none."""
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except FileNotFoundError:
        return False


def first_time(path: str) -> str:
    """Return the time of the first record in a log file; an empty text if there is none, or no reading it."""
    with contextlib.suppress(*DAMAGE, DiskFault), open_log(path) as stream:
        for line in stream:
            if (record := decode(line)) is not None:
                return str(record["time"])
    return ""


def open_log(path: str) -> IO[bytes]:
    """Open a log file for reading, whatever it was compressed with.

    Raises:
        DiskFault: it needs a library that is not installed.
        OSError: it cannot be opened.
    """
    if path.endswith(".gz"):
        import gzip

        return gzip.open(path, "rb")  # type: ignore[return-value]  # GzipFile reads and iterates as IO[bytes] does
    if path.endswith(".zst"):
        try:
            zstandard = importlib.import_module("zstandard")
        except ImportError as fault:
            raise DiskFault(f"{path}: reading it needs `pip install zstandard` (or `unzstd` it)") from fault
        stream: IO[bytes] = zstandard.open(path, "rb")
        return stream
    return open(durable.open_regular(path), "rb")


def records(office: Office) -> Iterator[Record]:
    """Yield every record of the rotated logs and the log, oldest first. Torn lines are passed over.

    Raises:
        DiskFault: a log file cannot be read.
    """
    for path in log_files(office):
        yield from (record for _, record in read_records(path))


def read_records(path: str) -> Iterator[tuple[int, Record]]:
    """Yield (line number, record) of one log file.

    Raises:
        DiskFault: it cannot be read, or its compression is damaged.
    """
    try:
        with open_log(path) as stream:
            for number, line in enumerate(stream, 1):
                if (record := decode(line)) is not None:
                    yield number, record
    except DAMAGE as fault:
        raise DiskFault(f"{path}: cannot be read: {fault}") from fault
