"""Carrying out a commit that puts a report into the outbox: under a free name, once, and not without its refusal."""

import json
import os
from pathlib import Path

import pytest

from postmaster import commit, delivery_log, durable, journal
from postmaster.journal import Batch, Entry, Publication
from postmaster.maildir import Temporary
from postmaster.office import Office
from postmaster.outbox import Source
from postmaster.removals import Remover

_TIME = "2026-03-04T10:00:00.000000Z"


@pytest.fixture
def office(tmp_path: Path) -> Office:
    """An office without anybody in it."""
    made = Office(str(tmp_path))
    for path in (made.outbox, made.dead_letter, made.logs, made.private):
        os.mkdir(path)
    return made


def _written(office: Office, name: str, content: bytes) -> Temporary:
    path = os.path.join(office.private, f"postmaster-{os.getpid()}-{name}")
    return Temporary(path, durable.write_new(path, content, sync=False))


def _returned(office: Office) -> Batch:
    record = {"time": _TIME, "action": "returned", "to": "a@lab.internal", "file": "r.md", "path": "inboxes/x/unread/y"}
    part = Publication(_written(office, "1", b"report"), os.path.join(office.outbox, "r.md"), journal.OUTBOX, [0])
    batch = Batch([Entry(journal.NOWHERE, journal.KEEP, [part], [record])], delivery_log.position(office))
    journal.commit(office, batch)
    return batch


def _log(office: Office) -> list[dict[str, str]]:
    return [json.loads(line) for line in Path(office.log).read_text().splitlines()]


def _content(office: Office) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in Path(office.outbox).iterdir()}


def _carry_out(office: Office, batch: Batch) -> None:
    commit.publish(office, batch, again=False)
    remover = Remover(office)
    commit.begin_to_finish(office, batch, remover)
    assert commit.finish(office, batch, remover) == []


def test_a_name_that_is_taken(office: Office) -> None:
    """A sender made the name since: neither is lost, and the log has the name that the report got."""
    batch = _returned(office)
    Path(office.outbox, "r.md").write_bytes(b"a letter")
    _carry_out(office, batch)
    assert _content(office) == {"r.md": b"a letter", "r-2.md": b"report"}
    assert [(line["action"], line["file"]) for line in _log(office)] == [("returned", "r-2.md")]
    assert os.listdir(office.private) == []


def test_a_name_that_is_taken_and_a_crash(office: Office) -> None:
    """Killed before the log was written: the next run logs it under the name that it got, and makes no second one."""
    batch = _returned(office)
    Path(office.outbox, "r.md").write_bytes(b"a letter")
    work = commit._Work(office, batch, again=False)
    work.report(batch.entries[0])
    records, problems = commit.recover(office)
    assert ([record["file"] for record in records], problems) == (["r-2.md"], [])
    assert _content(office) == {"r.md": b"a letter", "r-2.md": b"report"}
    assert len(_log(office)) == 1 and os.listdir(office.private) == []


def test_recovered_when_the_report_has_left_the_outbox(office: Office) -> None:
    """Logged or not, a report whose temporary is gone was put there: it is not made again."""
    _returned(office)
    os.rename(os.path.join(office.private, f"postmaster-{os.getpid()}-1"), os.path.join(office.outbox, "r.md"))
    os.unlink(os.path.join(office.outbox, "r.md"))
    commit.recover(office)
    assert _content(office) == {} and len(_log(office)) == 1


def test_no_report_of_a_refusal_that_is_put_off(office: Office) -> None:
    """The letter cannot be moved to dead-letter/: it waits, and nobody is told that it was refused."""
    Path(office.outbox, "a.md").write_bytes(b"letter")
    os.rmdir(office.dead_letter)
    base = {"time": _TIME, "file": "a.md", "to": "a@lab.internal"}
    refused = {**base, "action": "dead-letter", "reason": "unknown-recipient", "path": "dead-letter/a.md"}
    bounced = {**base, "action": "bounced", "file": "b.md"}
    dead = os.path.join(office.dead_letter, "a.md")
    parts = [
        Publication(_written(office, "1", b"reason"), dead + ".reason.yml", None, [0]),
        Publication(_written(office, "2", b"report"), os.path.join(office.outbox, "b.md"), journal.OUTBOX, [1]),
    ]
    source = Source.of("a.md", os.lstat(os.path.join(office.outbox, "a.md")))
    entry = Entry(source, journal.MOVE, parts, [refused, bounced], dead)
    batch = Batch([entry], delivery_log.position(office))
    journal.commit(office, batch)
    _carry_out(office, batch)
    assert _content(office) == {"a.md": b"letter"}
    assert [line["action"] for line in _log(office)] == ["deferred"]
    assert os.listdir(office.private) == []
