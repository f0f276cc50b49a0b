"""The history index answers as the plain log does, whatever became of the log or of the index (DESIGN section 6, 5)."""

import gzip
import json
import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmaster import delivery_log, history
from postmaster.history import History
from postmaster.office import Office
from postmaster.open_items import OpenItem, follow
from postmaster.verdict import Envelope

FLOWS = [f"flow-{number}" for number in range(6)]
IDS = [f"{number:032x}" for number in range(4)]
AGENTS = ["lab.builder", "lab.checker"]
FILES = ["a.md", "b.md", "c.md"]

records = st.fixed_dictionaries(
    {
        "action": st.sampled_from(["delivered", "delivered", "dead-letter", "rejected", "deferred", "read"]),
        "id": st.sampled_from(IDS),
        "sequence": st.integers(1, 40),
        "correlation_id": st.sampled_from(FLOWS),
        "agent": st.sampled_from(AGENTS),
        "file": st.sampled_from(FILES),
    }
)
batches = st.lists(records, min_size=1, max_size=12)
steps = st.one_of(
    st.tuples(st.just("append"), batches),
    st.tuples(st.just("append"), batches),
    st.tuples(st.just("append while open"), batches),
    st.tuples(st.just("note"), st.tuples(batches, batches, st.booleans())),
    st.tuples(st.just("torn"), st.integers(1, 200)),
    st.tuples(st.just("rotate"), st.sampled_from(["rename", "gzip", "copytruncate"])),
    st.tuples(st.just("cut"), st.floats(0, 1)),
    st.tuples(st.just("delete a rotated log"), st.just(None)),
    st.tuples(st.just("look"), st.booleans()),
)


class Log:
    """An office of which only the log and its index matter."""

    def __init__(self, root: str) -> None:
        self.office = Office(root)
        os.makedirs(self.office.logs)
        os.makedirs(self.office.private)
        self._count = 0

    def append(self, batch: list[dict[str, Any]]) -> None:
        """Append records as the router does."""
        delivery_log.append(self.office, [delivery_log.encode(self._record(one)) for one in batch])

    def note(self, asked: History, batch: list[dict[str, Any]]) -> None:
        """Append records as the router does, and tell the history of them."""
        made = [self._record(one) for one in batch]
        lines = [delivery_log.encode(one) for one in made]
        appended = delivery_log.append(self.office, lines)
        position = asked.note(made, lines, appended)
        assert position == delivery_log.position(self.office)

    def _record(self, given: dict[str, Any]) -> dict[str, Any]:
        self._count += 1
        minutes, seconds = divmod(self._count, 60)
        return {
            **given,
            "time": f"2026-03-04T10:{minutes:02d}:{seconds:02d}.000000Z",
            "from": "conductor@lab.internal",
            "to": "builder@lab.internal",
            "type": "job.run",
            "subject": "history",
            "path": f"inboxes/{given['agent']}/unread/{self._count}.md",
            "reason": "disk-full" if given["action"] == "deferred" else None,
        }

    def tear(self, size: int) -> None:
        """Leave a torn last line, as a crash does."""
        with open(self.office.log, "ab") as stream:
            stream.write(json.dumps(self._record({"action": "delivered", "agent": "lab.builder"})).encode()[:size])

    def rotate(self, how: str) -> None:
        """Rotate the log, as logrotate does it."""
        if not os.path.exists(self.office.log):
            return
        self._count += 1
        target = os.path.join(self.office.logs, f"delivery-log.jsonl-{self._count}")
        if how == "gzip":
            Path(target + ".gz").write_bytes(gzip.compress(Path(self.office.log).read_bytes()))
            os.unlink(self.office.log)
        elif how == "copytruncate":
            shutil.copyfile(self.office.log, target)
            os.truncate(self.office.log, 0)
        else:
            os.rename(self.office.log, target)

    def cut(self, share: float) -> None:
        """Cut the log off in the middle."""
        if os.path.exists(self.office.log):
            os.truncate(self.office.log, int(os.path.getsize(self.office.log) * share))

    def forget(self) -> None:
        """Delete the oldest rotated log."""
        rotated = [path for path in delivery_log.log_files(self.office) if path != self.office.log]
        if rotated:
            os.unlink(rotated[0])


def assert_agrees(asked: History, office: Office) -> None:
    """Every question has the answer that the plain log gives."""
    found = list(delivery_log.records(office))
    open_items: dict[str, OpenItem] = {}
    for record in found:
        follow(record, open_items)
    assert dict(asked.open_items) == open_items
    for flow in FLOWS:
        given = [one["sequence"] for one in found if one.get("correlation_id") == flow and one["action"] != "read"]
        assert asked.highest(flow) == max(given, default=0), flow
    for flow in FLOWS:
        for id_ in IDS:
            for agent in AGENTS:
                wanted = {"action": "delivered", "correlation_id": flow, "id": id_, "agent": agent}
                paths = {one["path"] for one in found if wanted.items() <= one.items()}
                answer = asked.earlier(_envelope(flow, id_), agent)
                assert answer in paths if paths else answer is None, (flow, id_, agent)


def _envelope(flow: str, id_: str) -> Envelope:
    return Envelope(
        id=id_,
        fields={},
        to=("builder@lab.internal",),
        sender="conductor@lab.internal",
        type="job.run",
        subject="history",
        correlation_id=flow,
    )


@contextmanager
def log() -> Iterator[Log]:
    """A log in a directory in memory, if there is one."""
    memory = "/dev/shm"
    made = tempfile.mkdtemp(dir=memory if os.access(memory, os.W_OK) else None)
    try:
        yield Log(os.path.join(made, "office"))
    finally:
        shutil.rmtree(made)


@contextmanager
def looking(office: Office, *, write: bool = True) -> Iterator[History]:
    """Open the history, and close it."""
    asked = History(office, write=write)
    try:
        yield asked
    finally:
        asked.close()


def thresholds(keep: int) -> Any:
    """Write the index when so many records are in memory."""
    return mock.patch.multiple(history, _KEEP_IN_MEMORY=keep, _AT_ONCE=2 * keep)


slow = settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))


@slow
@given(st.lists(steps, min_size=1, max_size=15), st.integers(1, 30))
def test_the_index_agrees_with_the_log(todo: list[tuple[str, Any]], keep: int) -> None:
    """Appended to, torn, rotated, cut, deleted, and looked at in between: every answer is the plain log's."""
    with log() as made, thresholds(keep):
        for what, how in [*todo, ("look", True)]:
            if what == "append":
                made.append(how)
            elif what == "append while open":
                with looking(made.office) as asked:
                    made.append(how)
                    asked.catch_up()
                    assert_agrees(asked, made.office)
            elif what == "note":
                with looking(made.office) as asked:
                    made.note(asked, how[0])
                    if how[2]:  # somebody else writes in between
                        made.append(how[1])
                    made.note(asked, how[1])
                    asked.catch_up()
                    assert_agrees(asked, made.office)
            elif what == "torn":
                made.tear(how)
            elif what == "rotate":
                made.rotate(how)
            elif what == "cut":
                made.cut(how)
            elif what == "delete a rotated log":
                made.forget()
            else:
                with looking(made.office, write=how) as asked:
                    assert_agrees(asked, made.office)


def _many(seed: int, count: int) -> list[dict[str, Any]]:
    chosen = random.Random(seed)
    return [
        {
            "action": chosen.choice(["delivered", "delivered", "dead-letter", "deferred"]),
            "id": chosen.choice(IDS),
            "sequence": number,
            "correlation_id": chosen.choice(FLOWS[:4]),
            "agent": chosen.choice(AGENTS),
            "file": chosen.choice(FILES),
        }
        for number in range(1, count + 1)
    ]


def _indexed(made: Log) -> Path:
    """Fill a log and write its index in several parts; a little is in the log only."""
    for part in range(4):
        with looking(made.office):
            made.append(_many(part, 40))
        with looking(made.office):
            pass
    made.append(_many(9, 5))
    path = Path(made.office.history)
    assert path.stat().st_size > 0
    return path


def assert_never_trusted(made: Log) -> None:
    """A reader and a writer get the right answers, also when more is logged while they ask, and the next run too."""
    with looking(made.office, write=False) as asked:
        assert_agrees(asked, made.office)
    with looking(made.office) as asked:
        assert_agrees(asked, made.office)
        made.append(_many(10, 3))
        asked.catch_up()
        assert_agrees(asked, made.office)
    with looking(made.office) as asked:
        assert_agrees(asked, made.office)


@slow
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 7)), min_size=1, max_size=6))
def test_flipped_bits_change_no_answer(flips: list[tuple[float, int]]) -> None:
    """Bits that flip anywhere in the index cost time, not truth."""
    with log() as made, thresholds(20):
        path = _indexed(made)
        raw = bytearray(path.read_bytes())
        for place, bit in flips:
            raw[int(place * len(raw))] ^= 1 << bit
        path.write_bytes(raw)
        assert_never_trusted(made)


@pytest.mark.parametrize("first", range(8))
def test_every_flipped_byte_in_the_rows(first: int) -> None:
    """The same at places that hold text and numbers, one at a time."""
    with log() as made, thresholds(20):
        path = _indexed(made)
        raw = path.read_bytes()
        held = [place for place, byte in enumerate(raw) if byte]
        chosen = random.Random(first).sample(held, 40)
        for place in chosen:
            damaged = bytearray(raw)
            damaged[place] ^= random.Random(place).randrange(1, 256)
            path.write_bytes(damaged)
            with looking(made.office, write=False) as asked:
                assert_agrees(asked, made.office)


_REPLACED = ["nothing", "zeros", "half", "garbage", "text", "database", "another version", "directory", "dangling link"]


@pytest.mark.parametrize("damage", _REPLACED)
def test_a_useless_index_is_never_fatal(damage: str) -> None:
    """What stands in the place of the index, if it is no index, is passed over; the answers are the log's."""
    with log() as made, thresholds(20):
        path = _indexed(made)
        raw = path.read_bytes()
        path.unlink()
        if damage in ("zeros", "half", "garbage", "text", "nothing"):
            noise = random.Random(1).randbytes(len(raw))
            contents = {"zeros": bytes(len(raw)), "half": raw[: len(raw) // 2], "garbage": noise, "text": b"hello\n"}
            path.write_bytes(contents.get(damage, b""))
        elif damage == "directory":
            path.mkdir()
            (path / "occupied").write_text("yes")
        elif damage == "dangling link":
            path.symlink_to("nowhere")
        else:
            _database(path, damage)
        assert_never_trusted(made)


def _database(path: Path, what: str) -> None:
    import sqlite3

    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE meta (version INTEGER)")
    connection.execute("INSERT INTO meta VALUES (?)", (999 if what == "another version" else 1,))
    connection.commit()
    connection.close()


@pytest.mark.parametrize("size", [1, 100, 4096, 10000])
def test_garbage_in_the_middle(size: int) -> None:
    """A stretch of the index that was overwritten (a bad sector) changes no answer."""
    for seed in range(10):
        with log() as made, thresholds(20):
            path = _indexed(made)
            raw = bytearray(path.read_bytes())
            start = random.Random(seed).randrange(len(raw))
            raw[start : start + size] = random.Random(seed).randbytes(size) if seed % 2 else bytes(size)
            path.write_bytes(raw)
            assert_never_trusted(made)


def test_logs_that_begin_with_the_same_torn_line() -> None:
    """A log file is known by its first record: two may begin with the same rest of a line."""
    with log() as made, thresholds(4):
        for part in range(3):
            made.tear(30)
            made.append(_many(part, 20 * part + 3))
            made.rotate("rename")
        for part in range(2):
            made.tear(30)
            made.append(_many(part, 2))
            with looking(made.office) as asked:
                assert_agrees(asked, made.office)
