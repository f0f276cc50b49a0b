"""Neighbours of the fault cases: the same faults a step further along, each held to the written contract."""

import contextlib
import gzip
import json
import os
import shutil
import socket
import stat
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import (
    LAB,
    Box,
    added_lines,
    arrived,
    died,
    header,
    letter,
    limited,
    md5,
    obeying_permissions,
    outcomes,
    permissions_count,
    shown,
    standing,
)

BUILDER = "lab.builder"
DELIVERED = ("delivered", None)
BOTH = ("builder@lab.internal", "checker@lab.internal")


def sequences(box: Box, agent: str = BUILDER) -> dict[str, int]:
    """Return subject -> sequence of an agent's new mail."""
    return {mail.fields["subject"]: mail.sequence for mail in box.unread(agent)}


def logged(box: Box, action: str) -> list[str]:
    """Return the files of the log lines with this action."""
    return [line["file"] for line in box.log() if line["action"] == action]


# ---------------------------------------------------------------------- the header


REPEATED = {
    "top level": "note: a\nnote: b",
    "a required field": "subject: again",
    "quoted and plain": 'note: a\n"note": b',
    "block mapping": "x:\n  note: a\n  note: b",
    "flow mapping": "x: {note: a, note: b}",
    "flow mapping in a list": "x: [{note: a, note: b}]",
    "deep": "x:\n  - y:\n      - {note: {note: a, note: b}}",
    "the sender's own id": "id: a\nid: b",
}


@pytest.mark.parametrize("extra", REPEATED.values(), ids=REPEATED.keys())
def test_repeated_key(lab: Box, extra: str) -> None:
    """A key that stands twice, wherever it is, makes the header malformed: no value is picked silently."""
    sent = letter(extra=extra)
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    line = died(lab, "a.md", sent, "malformed-header")
    assert ("subject" if "subject" in extra else "id" if "id:" in extra else "note") in line["detail"]
    assert "line" in line["detail"]
    standing(lab, before)


def test_same_key_in_two_mappings(lab: Box) -> None:
    """The same key in two different mappings is no repetition."""
    sent = letter(extra="x: {note: a}\ny: {note: a}\nnote: [{note: a}, {note: a}]")
    lab.drop("a.md", sent)
    lab.route()
    arrived(lab, BUILDER, sent)


TYPED_LOOKING = (
    *("0123", "no", "Yes", "on", "12:30:45", "1e5", "1_000", "0x1F", "0o17", "2026-01-01", "2026-01-01T00:00:00Z"),
    *("~", "null", ".nan", "-.inf", "1.0", "+1", "true", "<<", "="),
)


@pytest.mark.parametrize("field", ["subject", "correlation_id", "type", "in_reply_to"])
def test_text_stays_text(lab: Box, field: str) -> None:
    """A value that looks like a number, a date, a truth value or nothing is text, letter for letter."""
    for number, value in enumerate(TYPED_LOOKING):
        if field == "in_reply_to":
            sent = letter(correlation_id=f"c{number}", extra=f"in_reply_to: {value}")
        elif field == "correlation_id":
            sent = letter(correlation_id=value)
        elif field == "subject":
            sent = letter(correlation_id=f"c{number}", subject=value)
        else:
            sent = letter(correlation_id=f"c{number}", type=value)
        lab.drop(f"{number}.md", sent)
    before = lab.census()
    lab.route()
    for number, value in enumerate(TYPED_LOOKING):
        line = lab.line(f"{number}.md")
        assert line[field] == value
        if field in ("subject", "correlation_id"):
            assert line["action"] == "delivered"
            assert line["sequence"] == 1
    if field == "type":
        assert set(outcomes(lab).values()) == {("rejected", "type-not-accepted")}
    standing(lab, before)


def test_text_addresses(lab: Box) -> None:
    """A number where an address belongs is a wrong address, not a crash."""
    lab.drop("to.md", letter(to="0123"))
    lab.drop("from.md", letter(from_="1e5", correlation_id="other"))
    before = lab.census()
    lab.route()
    assert lab.line("to.md")["reason"] == "unknown-recipient"
    assert lab.line("to.md")["to"] == "0123"
    assert lab.line("from.md")["action"] in ("dead-letter", "rejected")
    assert "1e5" in json.dumps(lab.line("from.md"))
    standing(lab, before)


@pytest.mark.parametrize(
    "to", ["[]", "{}", "{a: b}", "[[builder@lab.internal]]", "[{a: b}]", '""', '[builder@lab.internal, ""]']
)
def test_odd_recipients(lab: Box, to: str) -> None:
    """A `to` that is no address or list of addresses costs one letter, with a reason that can be acted on."""
    sent = letter(to=to)
    lab.drop("a.md", sent)
    lab.drop("ok.md", ok := letter(subject="ok"))
    lab.route()
    arrived(lab, BUILDER, ok)
    lines = [line for line in lab.log() if line["file"] == "a.md"]
    dead = [line for line in lines if line["action"] == "dead-letter"]
    assert len(dead) == 1
    assert dead[0]["reason"] in ("invalid-header", "unknown-recipient")
    assert (lab.root / dead[0]["path"]).read_bytes() == sent
    assert lab.outbox() == []


@pytest.mark.parametrize("field", ["to", "from", "type", "subject", "correlation_id"])
def test_missing_field(lab: Box, field: str) -> None:
    """A required field that is missing is named."""
    sent = b"".join(line for line in letter().splitlines(True) if not line.startswith(field.encode() + b":"))
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    line = died(lab, "a.md", sent, "invalid-header")
    assert field in line["detail"]
    assert ("sequence" in line) == (field != "correlation_id")
    standing(lab, before)


@pytest.mark.parametrize("field", ["from", "type", "subject", "correlation_id", "sent_at", "in_reply_to"])
@pytest.mark.parametrize("value", ["[a, b]", "{a: b}"])
def test_field_that_is_no_text(lab: Box, field: str, value: str) -> None:
    """A list or a mapping where text belongs is an invalid header that names the field."""
    lines = [line for line in letter().splitlines(True) if not line.startswith(field.encode() + b":")]
    sent = b"".join([lines[0], f"{field}: {value}\n".encode(), *lines[1:]])
    lab.drop("a.md", sent)
    lab.route()
    assert field in died(lab, "a.md", sent, "invalid-header")["detail"]


def test_crlf_header(lab: Box) -> None:
    """The lines inserted into a CR LF header end in CR LF, and the body keeps whatever ends it has."""
    sent = letter(newline="\r\n", body=b"a\nb\r\nc\rd")
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    mail = arrived(lab, BUILDER, sent)
    added = added_lines(sent, mail)
    assert len(added) == 2
    assert all(line.endswith(b"\r\n") for line in added)
    assert mail.raw.endswith(b"\r\n---\r\na\nb\r\nc\rd")
    standing(lab, before)


def test_no_final_newline(lab: Box) -> None:
    """A body without a final newline gets none."""
    sent = letter(body=b"last line, no newline")
    lab.drop("a.md", sent)
    lab.route()
    assert arrived(lab, BUILDER, sent).raw.endswith(b"\n---\nlast line, no newline")


BODIES = {
    "nul": b"a\0b\0\n",
    "latin-1": "Grüße\n".encode("latin-1"),
    "every byte": bytes(range(256)),
    "byte-order mark": b"\xef\xbb\xbftext\n",
    "spaces around": b"\n\n  \n text \n\n\n",
    "rules": b"---\n---\n---",
    "header again": letter(),
    "a megabyte": b"0123456789abcdef" * 65536,
}


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES.keys())
def test_body_bytes(lab: Box, body: bytes) -> None:
    """A body is bytes: none is changed, and their MD5 is the id."""
    sent = letter(body=body)
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    mail = arrived(lab, BUILDER, sent)
    assert (mail.body, mail.fields["id"]) == (body, md5(body))
    standing(lab, before)


def test_latin_1_header(lab: Box) -> None:
    """A header that is not UTF-8 is malformed."""
    sent = letter().replace(b"nightly build", "nächtlich".encode("latin-1"))
    lab.drop("a.md", sent)
    lab.route()
    died(lab, "a.md", sent, "malformed-header")


KEPT = {
    "rule in a block scalar": "note: |\n  ---\n  text\n  ---",
    "rule in a quoted value": 'note: "a\n  ---\n  b"',
    "longer rules": "note: |\n  -----\n  --- x",
    "comment": "# a comment: with a colon\nnote: x # and more",
    "not ASCII": "Grüße: 漢字 🙂",
    "spaced": "note   :    x   ",
    "tab inside": "note: a\tb",
    "folded": "note: >-\n  a\n  b\n\n  c",
    "nested": "x: {a: [b, {c: [d, [e]]}]}",
}


@pytest.mark.parametrize("extra", KEPT.values(), ids=KEPT.keys())
def test_sender_lines_stay_as_typed(lab: Box, extra: str) -> None:
    """Whatever YAML the sender's other lines hold, they arrive as typed, and only two lines are added."""
    sent = letter(extra=extra)
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    assert len(added_lines(sent, arrived(lab, BUILDER, sent))) == 2
    standing(lab, before)


FORMS = {
    "flow": b"---\n{to: builder@lab.internal, from: conductor@lab.internal, type: job.run, subject: s,\n"
    b" correlation_id: c}\n---\nbody\n",
    "flow on one line": b'---\n{"to": "builder@lab.internal", "from": "conductor@lab.internal", "type": "job.run", '
    b'"subject": "s", "correlation_id": "c"}\n---\nbody\n',
    "flow with a final comma": b"---\n{to: builder@lab.internal, from: conductor@lab.internal, type: job.run,\n"
    b"subject: s, correlation_id: c,\n}\n---\nbody\n",
    "flow with the sender's id": b"---\n{id: 0, to: builder@lab.internal, from: conductor@lab.internal,\n"
    b"type: job.run, sequence: 9, subject: s, correlation_id: c}\n---\nbody\n",
    "indented": b"---\n  to: builder@lab.internal\n  from: conductor@lab.internal\n  type: job.run\n"
    b"  subject: s\n  correlation_id: c\n---\nbody\n",
    "indented, with the sender's id": b"---\n  id: 0\n  to: builder@lab.internal\n  from: conductor@lab.internal\n"
    b"  type: job.run\n  subject: s\n  correlation_id: c\n---\nbody\n",
    "comment first": b"---\n# a comment\n\n  to: builder@lab.internal\n  from: conductor@lab.internal\n"
    b"  type: job.run\n  subject: s\n  correlation_id: c\n# the end\n---\nbody\n",
    "block scalar last": b"---\nto: builder@lab.internal\nfrom: conductor@lab.internal\ntype: job.run\n"
    b"correlation_id: c\nsubject: |+\n  s\n\n\n---\nbody\n",
}


@pytest.mark.parametrize("sent", FORMS.values(), ids=FORMS.keys())
def test_header_forms(lab: Box, sent: bytes) -> None:
    """Every way to write the mapping gets its id and sequence, and says afterwards what it said before."""
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    mail = arrived(lab, BUILDER, sent)
    assert mail.sequence == 1
    assert mail.body == b"body\n"
    standing(lab, before)


OWN = {
    "plain": "id: 0000\nsequence: 99",
    "first and last": "id: 0000\nnote: x\nsequence: 99",
    "quoted key": "\"id\": 0000\n'sequence' : 99",
    "spaced key": "id   : 0000\nsequence:\t99",
    "block scalar": "id: |\n  0000\n  more\nnote: x",
    "folded over lines": "sequence: 9\n  9\nnote: x",
    "list value": "id:\n  - a\n  - b\nnote: x",
    "list at the margin": "id:\n- a\n- b\nnote: x",
    "quoted over lines": 'id: "00\n  00"\nnote: x',
    "with a comment": "id: 0000 # mine\nnote: x",
    "empty": "id:\nsequence: ''",
    "escaped key": '"\\x69d": 0000\nnote: x',
}


@pytest.mark.parametrize("extra", OWN.values(), ids=OWN.keys())
def test_sender_sets_id(lab: Box, extra: str) -> None:
    """A sender's own id or sequence goes, in whatever form it is written, and its other fields stay."""
    sent = letter(extra=extra)
    lab.drop("a.md", sent)
    lab.drop("b.md", other := letter(subject="second", sent_at="2026-03-04T11:00:00Z"))
    before = lab.census()
    lab.route()
    mail = arrived(lab, BUILDER, sent)
    assert mail.sequence == 1
    assert ("note" in mail.fields) == ("note" in extra)
    assert "overridden" in lab.line("a.md")["detail"]
    assert arrived(lab, BUILDER, other).sequence == 2
    standing(lab, before)


REFUSED = {
    "anchor": "note: &name value",
    "alias": "note: *name",
    "tag": "note: !x value",
    "explicit key": "? note\n: x",
    "explicit id": "? id\n: 0000",
    "merge key with an alias": "x: &a {b: c}\ny: {<<: *a}",
    "second document": "... \nnote: x",
    "directive": "%YAML 1.1",
    "tab for indentation": "x:\n\ty: z",
    "a lone word": "word",
    "an unclosed quote": 'note: "x',
    "colon in a value": "note: a: b",
    "a list item": "- note",
    "no value": "? note",
}


@pytest.mark.parametrize("extra", REFUSED.values(), ids=REFUSED.keys())
def test_refused_yaml(lab: Box, extra: str) -> None:
    """YAML that would make a value other than the text as typed is malformed; the reason names a line."""
    sent = letter(extra=extra)
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route()
    assert "line" in died(lab, "a.md", sent, "malformed-header")["detail"]
    standing(lab, before)


def test_nested_id_is_the_senders(lab: Box) -> None:
    """An `id` inside another field is none of the post office's business."""
    sent = letter(extra="x: {id: mine, sequence: 7}\ny:\n  id: mine\n  sequence: 7\nnote: |\n  id: text\nID: mine")
    lab.drop("a.md", sent)
    lab.route()
    mail = arrived(lab, BUILDER, sent)
    assert len(added_lines(sent, mail)) == 2
    assert mail.fields["y"] == {"id": "mine", "sequence": "7"}
    assert "detail" not in lab.line("a.md")


# ---------------------------------------------------------------------- order and numbers


def test_order_follows_the_instant(lab: Box) -> None:
    """Numbers follow the UTC instant of sent_at, whatever zone it is written in; no zone is UTC."""
    stamps = [
        ("z", "2026-03-04T11:59:00+05:00"),  # 06:59
        ("y", "2026-03-04T07:00:00"),
        ("x", "2026-03-04T07:00:00.25Z"),
        ("w", "2026-03-03T23:30:00-08:00"),  # 07:30
        ("v", "2026-03-04T08:00:00z"),
        ("u", "2026-03-04T19:00:00+10:30"),  # 08:30
        ("t", "2026-03-04t09:00:00Z"),
        ("s", "2026-03-04T10:00:00Z"),
        ("r", "2026-03-05T00:30:00+14:00"),  # 10:30
    ]
    for name, stamp in reversed(stamps):
        lab.drop(f"{name}.md", letter(subject=name, sent_at=stamp))
    before = lab.census()
    lab.route()
    assert sequences(lab) == {name: number for number, (name, _) in enumerate(stamps, 1)}
    assert {line["file"]: line["sent_at"] for line in lab.log()} == {f"{n}.md": stamp for n, stamp in stamps}
    names = [mail.fields["subject"] for mail in lab.unread(BUILDER)]
    assert names == [name for name, _ in stamps], "delivered names sort in the same order"
    standing(lab, before)


def test_order_by_file_time(lab: Box) -> None:
    """A letter without sent_at is ordered by its file's time, among those that have one."""
    now = int(time.time())
    stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(now - 1800))
    lab.drop("c.md", letter(subject="first", sent_at=None), mtime=now - 3600)
    lab.drop("b.md", letter(subject="second", sent_at=stamp), mtime=now - 7200)
    lab.drop("a.md", letter(subject="third", sent_at=None), mtime=now - 900)
    lab.route()
    assert sequences(lab) == {"first": 1, "second": 2, "third": 3}
    assert "sent_at" not in lab.line("a.md")


def test_ties_by_file_name(lab: Box) -> None:
    """Letters of the same instant are ordered by file name, character by character."""
    names = ["10.md", "9.md", "C.md", "a.md", "b.md"]
    for name in reversed(names):
        lab.drop(name, letter(subject=name))
    lab.route()
    assert sequences(lab) == {name: number for number, name in enumerate(names, 1)}


def test_flows_are_numbered_apart(lab: Box) -> None:
    """Each flow counts from 1; flows that differ only in case or space are two."""
    for number, flow in enumerate(["run-1", "Run-1", "'run-1 '", "run-2"]):
        lab.drop(f"{number}.md", letter(correlation_id=flow, subject=f"s{number}"))
    lab.route()
    assert {line["sequence"] for line in lab.log()} == {1}


def test_every_letter_is_numbered(lab: Box) -> None:
    """A dead letter with a readable correlation_id takes a number too."""
    lab.drop("a.md", letter(subject="a", to="nobody@lab.internal", sent_at="2026-03-04T10:00:00Z"))
    lab.drop("b.md", letter(subject="b", from_="stranger@lab.internal", sent_at="2026-03-04T10:01:00Z"))
    lab.drop("c.md", letter(subject="c", type="song", sent_at="2026-03-04T10:02:00Z"))
    lab.drop("d.md", letter(subject="d", sent_at="2026-03-04T10:03:00Z"))
    before = lab.census()
    lab.route()
    assert [(line["file"], line["sequence"]) for line in sorted(lab.log(), key=lambda line: line["file"])] == [
        ("a.md", 1),
        ("b.md", 2),
        ("c.md", 3),
        ("d.md", 4),
    ]
    assert outcomes(lab) == {
        "a.md": ("dead-letter", "unknown-recipient"),
        "b.md": ("rejected", "sender-not-accepted"),
        "c.md": ("rejected", "type-not-accepted"),
        "d.md": DELIVERED,
    }
    assert [lab.line(f"{name}.md")["status"] for name in "abcd"] == ["5.1.1", "5.7.1", "5.7.1", "2.1.5"]
    for name in "abc":
        assert lab.reason(f"{name}.md")["reason"] == lab.line(f"{name}.md")["reason"]
    standing(lab, before)


def rotated(box: Box, name: str) -> None:
    """Rotate the log away under `name`, compressed if the name says so."""
    log = box.root / "logs" / "delivery-log.jsonl"
    if name.endswith(".gz"):
        with gzip.open(log.parent / name, "wb") as stream:
            stream.write(log.read_bytes())
        log.unlink()
    else:
        log.rename(log.parent / name)


AFTERWARDS: dict[str, Callable[[Box], None]] = {
    "nothing": lambda box: None,
    "state deleted": lambda box: shutil.rmtree(box.root / ".postmaster"),
    "log rotated": lambda box: rotated(box, "delivery-log.1.jsonl"),
    "log rotated and compressed": lambda box: rotated(box, "delivery-log.1.jsonl.gz"),
    "log rotated by date": lambda box: rotated(box, "delivery-log-20260304.jsonl"),
    "log rotated, state deleted": lambda box: (
        rotated(box, "delivery-log.1.jsonl"),
        shutil.rmtree(box.root / ".postmaster"),
    )[1],
    "log compressed, state deleted": lambda box: (
        rotated(box, "delivery-log.1.jsonl.gz"),
        shutil.rmtree(box.root / ".postmaster"),
    )[1],
    "index damaged": lambda box: [
        path.write_bytes(b"garbage" * 100)
        for path in (box.root / ".postmaster").rglob("*")
        if path.is_file() and "lock" not in path.name and "journal" not in path.name
    ][:0],
}


@pytest.mark.parametrize("happening", AFTERWARDS.values(), ids=AFTERWARDS.keys())
def test_history_goes_on(lab: Box, happening: Callable[[Box], None]) -> None:
    """Numbers go on and duplicates are known in a later run, whatever became of the log and the index."""
    first, second = letter(subject="first"), letter(subject="second", sent_at="2026-03-04T11:00:00Z")
    lab.drop("1.md", first)
    lab.drop("2.md", second)
    lab.route()
    happening(lab)
    third = letter(subject="third", sent_at="2026-03-04T09:00:00Z")
    lab.drop("again.md", first)
    lab.drop("3.md", third)
    before = lab.census()
    lab.route()
    assert sequences(lab) == {"first": 1, "second": 2, "third": 3}
    line = died(lab, "again.md", first, "duplicate")
    assert line["sequence"] == 4
    standing(lab, before)


@pytest.mark.parametrize("wipe", [False, True], ids=["index kept", "index deleted"])
@pytest.mark.parametrize(
    "tail", [b'{"time":"2026-03-04T10:00:00.000000Z","action":"deli', b"\0\0\0\0", b"{", b'"'], ids=ascii
)
def test_torn_log_line(lab: Box, tail: bytes, wipe: bool) -> None:
    """A torn last line is sealed off: the next line stands alone, and numbers go on."""
    lab.drop("1.md", letter(subject="first"))
    lab.route()
    log = lab.root / "logs" / "delivery-log.jsonl"
    whole = log.read_bytes()
    log.write_bytes(whole + tail)
    if wipe:
        shutil.rmtree(lab.root / ".postmaster")
    lab.drop("2.md", letter(subject="second", sent_at="2026-03-04T09:00:00Z"))
    lab.route()
    assert sequences(lab) == {"first": 1, "second": 2}
    raw = log.read_bytes()
    assert raw.startswith(whole)
    assert raw.endswith(b"\n")
    last = json.loads(raw.split(b"\n")[-2])
    assert (last["action"], last["file"], last["sequence"]) == ("delivered", "2.md", 2)
    settled = lab.snapshot()
    lab.route()
    assert lab.snapshot() == settled


@pytest.mark.parametrize("wipe", [False, True], ids=["index kept", "index deleted"])
def test_log_without_final_newline(lab: Box, wipe: bool) -> None:
    """A last line that only lacks its newline counts, and is not fused with the next."""
    lab.drop("1.md", first := letter(subject="first"))
    lab.route()
    log = lab.root / "logs" / "delivery-log.jsonl"
    log.write_bytes(log.read_bytes().removesuffix(b"\n"))
    if wipe:
        shutil.rmtree(lab.root / ".postmaster")
    lab.drop("2.md", letter(subject="second"))
    lab.drop("again.md", first)
    before = lab.census()
    lab.route()
    assert [(line["file"], line["sequence"]) for line in lab.log()] == [
        ("1.md", 1),
        ("2.md", 2),
        ("again.md", 3),
    ]
    standing(lab, before)


def test_foreign_log_lines(lab: Box) -> None:
    """Lines that are no delivery of ours (blank, a list, odd types) hold up nothing."""
    log = lab.root / "logs" / "delivery-log.jsonl"
    log.parent.mkdir(exist_ok=True)
    foreign = b'\n[]\n17\n"text"\n{"correlation_id":7,"sequence":"x"}\n{"sequence":1e400}\n\xff\xfe\nnull\n'
    log.write_bytes(foreign)
    lab.drop("1.md", sent := letter())
    lab.route()
    assert arrived(lab, BUILDER, sent).sequence == 1
    raw = log.read_bytes()
    assert raw.startswith(foreign)
    assert raw.count(b"\n") == foreign.count(b"\n") + 1


# ---------------------------------------------------------------------- names


LONG = {"ascii": "a" * 252 + ".md", "two-byte letters": "ü" * 126 + ".md", "no extension": "b" * 255}


@pytest.mark.parametrize("name", LONG.values(), ids=LONG.keys())
def test_longest_name_delivered(lab: Box, name: str) -> None:
    """A file name at the limit of the file system is delivered like any other."""
    sent = letter()
    lab.drop(name, sent)
    before = lab.census()
    lab.route()
    arrived(lab, BUILDER, sent)
    assert lab.line(name)["action"] == "delivered"
    standing(lab, before)


@pytest.mark.parametrize("name", LONG.values(), ids=LONG.keys())
def test_longest_name_dead(lab: Box, name: str) -> None:
    """A file name with no room for .reason.yml still becomes a dead letter with a reason beside it."""
    sent = letter(to="nobody@lab.internal")
    lab.drop(name, sent)
    before = lab.census()
    lab.route()
    line = lab.line(name)
    assert (line["action"], line["reason"]) == ("dead-letter", "unknown-recipient")
    place = lab.root / line["path"]
    assert place.read_bytes() == sent
    assert lab.reason(place.name)["reason"] == "unknown-recipient"
    assert len(os.listdir(lab.root / "dead-letter")) == 2
    standing(lab, before)


def test_two_long_names_stay_apart(lab: Box) -> None:
    """Two long names that are alike for most of their length end as two dead letters."""
    names = ["a" * 251 + ".md", "a" * 252 + ".md", "a" * 253, "a" * 254, "a" * 255]
    sent = {name: letter(to="nobody@lab.internal", subject=f"s{len(name)}{name[-2:]}") for name in names}
    for name, data in sent.items():
        lab.drop(name, data)
    before = lab.census()
    lab.route()
    places = {name: lab.root / lab.line(name)["path"] for name in names}
    assert len(set(places.values())) == len(names)
    for name, place in places.items():
        assert place.read_bytes() == sent[name]
        assert lab.reason(place.name)["reason"] == "unknown-recipient"
    standing(lab, before)


def test_letter_called_like_a_reason(lab: Box) -> None:
    """A letter called `a.md.reason.yml` does not become, or overwrite, the reason of `a.md`."""
    sent = {name: letter(to="nobody@lab.internal", subject=name) for name in ("a.md", "a.md.reason.yml")}
    for name, data in sent.items():
        lab.drop(name, data)
    lab.route()
    for name, data in sent.items():
        place = lab.root / lab.line(name)["path"]
        assert place.read_bytes() == data
        assert lab.reason(place.name)["reason"] == "unknown-recipient"
    assert len(os.listdir(lab.root / "dead-letter")) == 4


def test_letter_called_like_a_later_letters_reason(lab: Box) -> None:
    """A dead letter called `a.md.reason.yml` from an earlier run is not overwritten by the reason of `a.md`."""
    sent = {name: letter(to="nobody@lab.internal", subject=name) for name in ("a.md.reason.yml", "a.md")}
    for name, data in sent.items():
        lab.drop(name, data)
        lab.route()
    for name, data in sent.items():
        place = lab.root / lab.line(name)["path"]
        assert place.read_bytes() == data
        assert lab.reason(place.name)["reason"] == "unknown-recipient"


def test_same_dead_name_again_and_again(lab: Box) -> None:
    """The same file name dead-lettered in three runs gives three dead letters with their own reasons."""
    for number in range(3):
        lab.drop("a.md", letter(to="nobody@lab.internal", subject=f"s{number}"))
        lab.route()
    places = [lab.root / line["path"] for line in lab.log()]
    assert len(set(places)) == 3
    for number, place in enumerate(places):
        assert header(place.read_bytes()).fields["subject"] == f"s{number}"
        assert lab.reason(place.name)["reason"] == "unknown-recipient"


def test_delivered_name_taken(box: Box, tmp_path: Path) -> None:
    """A file that already has the very name of a delivery is not overwritten."""
    twin = Box(tmp_path / "twin")
    twin.init()
    sent = letter()
    for office in (twin, box):
        office.declare("lab", LAB)
        office.merge()
        office.drop("a.md", sent)
    twin.route()
    (name,) = os.listdir(twin.inbox(BUILDER) / "unread")
    (box.inbox(BUILDER) / "unread" / name).write_bytes(b"already here\n")
    box.route()
    assert (box.inbox(BUILDER) / "unread" / name).read_bytes() == b"already here\n"
    (line,) = box.log()
    assert line["action"] == "delivered"
    place = box.root / line["path"]
    assert place.name != name
    assert header(place.read_bytes()).body == header(sent).body


@pytest.mark.parametrize("name", ["a.txt", "noextension", "a.md.gz", "a b.md", "*.md", "-n", "ümlaut.md", "a.tmp.md"])
def test_every_other_name_is_mail(lab: Box, name: str) -> None:
    """Whatever is not a private name is mail: handled, never ignored."""
    sent = letter()
    lab.drop(name, sent)
    lab.route()
    arrived(lab, BUILDER, sent)
    assert lab.line(name)["action"] == "delivered"


# ---------------------------------------------------------------------- letters that are not ready


def test_held_open_for_writing(lab: Box) -> None:
    """A letter somebody still holds open for writing waits, however old it looks, and goes when it is closed."""
    sent = letter()
    path = lab.drop("a.md", sent)
    lab.drop("ok.md", ok := letter(subject="ok"))
    before = lab.census()
    with path.open("ab"):
        os.utime(path, (time.time() - 3600,) * 2)
        lab.route()
        assert lab.outbox() == ["a.md"]
        assert outcomes(lab) == {"ok.md": DELIVERED}
        arrived(lab, BUILDER, ok)
    lab.route()
    arrived(lab, BUILDER, sent)
    standing(lab, before)


def test_writer_is_not_disturbed(lab: Box) -> None:
    """A writer that goes on after a pass finds its file where it was, and all it wrote is delivered."""
    path = lab.root / "outbox" / "slow.md"
    sent = letter(body=b"first half\nsecond half\n")
    with path.open("wb", buffering=0) as stream:
        stream.write(sent[:60])
        os.utime(path, (time.time() - 3600,) * 2)
        lab.route()
        stream.write(sent[60:])
    os.utime(path, (time.time() - 3600,) * 2)
    lab.route()
    arrived(lab, BUILDER, sent)
    assert len(lab.log()) == 1


def test_young_malformed_waits(lab: Box) -> None:
    """A malformed letter that was changed a moment ago may be unfinished: it waits, then it is a dead letter."""
    sent = letter()[:70]
    lab.drop("a.md", sent, age_seconds=0)
    before = lab.census()
    lab.route()
    assert (lab.outbox(), lab.log(), lab.dead()) == (["a.md"], [], [])
    lab.age(59 * 60)
    lab.route()
    died(lab, "a.md", sent, "malformed-header")
    standing(lab, before)


def test_young_letter_goes_at_once(lab: Box) -> None:
    """A whole letter goes at once, however young it is."""
    lab.drop("a.md", sent := letter(), age_seconds=0)
    lab.drop("b.md", future := letter(subject="clock ahead"), age_seconds=-7200)
    lab.route()
    arrived(lab, BUILDER, sent)
    arrived(lab, BUILDER, future)


def test_young_second_link_waits(lab: Box) -> None:
    """A young letter with a second hard link waits: its writer may be between link and unlink."""
    path = lab.drop("a.md", sent := letter(), age_seconds=0)
    other = lab.root / "draft.md"
    os.link(path, other)
    lab.route()
    assert (lab.outbox(), lab.log()) == (["a.md"], [])
    other.unlink()
    lab.route()
    arrived(lab, BUILDER, sent)


def test_old_second_link_is_set_aside(lab: Box) -> None:
    """An old letter with a second hard link is set aside, and what the other name shows is not changed."""
    path = lab.drop("a.md", sent := letter())
    other = lab.root / "other.md"
    os.link(path, other)
    os.utime(path, (time.time() - 3600,) * 2)
    lab.route()
    died(lab, "a.md", sent, "not-a-regular-file")
    assert other.read_bytes() == sent
    assert lab.outbox() == []


# ---------------------------------------------------------------------- many recipients


def test_all_copies_share_id_and_number(lab: Box) -> None:
    """Many recipients: one id, one number, one log line each, and one delivery each."""
    to = ("builder@lab.internal", "checker@lab.internal", "agent:lab.echo")
    lab.drop("a.md", sent := letter(to=to, from_="conductor@lab.internal"))
    lab.drop("b.md", letter(subject="next", sent_at="2026-03-04T11:00:00Z"))
    lab.route()
    copies = [arrived(lab, agent, sent) for agent in (BUILDER, "lab.checker", "lab.echo")]
    assert {copy.sequence for copy in copies} == {1}
    lines = [line for line in lab.log() if line["file"] == "a.md"]
    assert len(lines) == 3
    assert {line["agent"] for line in lines} == {BUILDER, "lab.checker", "lab.echo"}
    assert {(line["id"], line["sequence"]) for line in lines} == {(copies[0].fields["id"], 1)}
    assert lab.line("b.md")["sequence"] == 2
    assert lab.outbox() == []
    settled = lab.snapshot()
    lab.route()
    assert lab.snapshot() == settled


@pytest.mark.parametrize(
    "to",
    [
        ("builder@lab.internal", "mason@lab.internal"),
        ("mason@lab.internal", "agent:lab.builder", "builder@lab.internal"),
        ("builder@lab.internal", "BUILDER@lab.internal"),
        ("builder@lab.internal", "builder@lab.internal"),
    ],
    ids=" ".join,
)
def test_one_agent_gets_one_copy(lab: Box, to: tuple[str, ...]) -> None:
    """An agent reached by two of its names gets one copy and one log line."""
    lab.drop("a.md", sent := letter(to=to))
    before = lab.census()
    lab.route()
    arrived(lab, BUILDER, sent)
    assert len(lab.log()) == 1
    standing(lab, before)


def test_one_known_one_unknown(lab: Box) -> None:
    """A known recipient gets its copy; for the unknown one there is a dead letter with its reason."""
    sent = letter(to=("builder@lab.internal", "nobody@lab.internal"))
    lab.drop("a.md", sent)
    lab.route()
    arrived(lab, BUILDER, sent)
    by_action = {line["action"]: line for line in lab.log()}
    assert sorted(by_action) == ["dead-letter", "delivered"]
    assert len(lab.log()) == 2
    dead = by_action["dead-letter"]
    assert dead["reason"] == "unknown-recipient"
    assert dead["sequence"] == by_action["delivered"]["sequence"] == 1
    assert "nobody@lab.internal" in json.dumps(dead)
    assert (lab.root / dead["path"]).read_bytes() == sent
    assert lab.reason(Path(dead["path"]).name)["reason"] == "unknown-recipient"
    assert lab.outbox() == []
    settled = lab.snapshot()
    lab.route()
    assert lab.snapshot() == settled


def test_one_open_one_closed(lab: Box) -> None:
    """The open inbox gets its copy now, the closed one later under the same number, nobody twice."""
    closed = lab.inbox("lab.checker")
    shutil.rmtree(closed)
    closed.write_bytes(b"")
    sent = letter(to=BOTH)
    lab.drop("a.md", sent)
    lab.route(check=75)
    first = arrived(lab, BUILDER, sent)
    actions = {line["action"]: line for line in lab.log()}
    assert sorted(actions) == ["deferred", "delivered"]
    assert (actions["deferred"]["reason"], actions["deferred"]["agent"]) == ("inbox-unavailable", "lab.checker")
    assert lab.outbox() == ["a.md"]
    assert (lab.root / "outbox" / "a.md").read_bytes() == sent

    lab.route(check=75)
    assert arrived(lab, BUILDER, sent).name == first.name
    lab.drop("b.md", letter(subject="in between", sent_at="2026-03-04T09:00:00Z"))
    lab.ack(BUILDER)
    lab.route(check=75)
    closed.unlink()
    shutil.rmtree(lab.root / ".postmaster")
    lab.route()
    late = arrived(lab, "lab.checker", sent)
    assert late.sequence == first.sequence == 1
    assert sequences(lab) == {"in between": 2}
    assert len(lab.read(BUILDER)) == 1
    delivered = [(line["file"], line["agent"]) for line in lab.log() if line["action"] == "delivered"]
    assert sorted(delivered) == [("a.md", BUILDER), ("a.md", "lab.checker"), ("b.md", BUILDER)]
    assert (lab.outbox(), lab.dead()) == ([], [])
    settled = lab.snapshot()
    lab.route()
    assert lab.snapshot() == settled


def test_deferred_expires(lab: Box) -> None:
    """What waited longer than expire_after since it was first deferred is a dead letter: expired, 4.4.7."""
    closed = lab.inbox(BUILDER)
    shutil.rmtree(closed)
    closed.write_bytes(b"")
    (lab.root / "post-office.yml").write_text("expire_after: 2s\n")
    sent = letter(sent_at="2020-01-01T00:00:00Z")
    lab.drop("a.md", sent, age_seconds=6 * 24 * 3600)
    lab.drop("ok.md", letter(subject="ok", to="checker@lab.internal"))
    before = lab.census()
    lab.route(check=75)
    assert lab.outbox() == ["a.md"], "an old stamp alone does not expire a letter"
    time.sleep(2.1)
    lab.route()
    expired = lab.log()[-1]
    assert (expired["file"], expired["action"], expired["reason"]) == ("a.md", "dead-letter", "expired")
    assert expired["status"] == "4.4.7"
    assert [line["action"] for line in lab.log() if line["file"] == "a.md"] == ["deferred", "dead-letter"]
    assert (lab.root / expired["path"]).read_bytes() == sent
    assert lab.reason(Path(expired["path"]).name)["reason"] == "expired"
    standing(lab, before)


# ---------------------------------------------------------------------- duplicates


def test_identical_twice_in_one_run(lab: Box) -> None:
    """Of two identical letters in one run the first by name is delivered, the other is a duplicate."""
    sent = letter()
    lab.drop("a.md", sent)
    lab.drop("b.md", sent)
    before = lab.census()
    lab.route()
    assert arrived(lab, BUILDER, sent).sequence == 1
    assert lab.line("a.md")["action"] == "delivered"
    line = died(lab, "b.md", sent, "duplicate")
    assert (line["sequence"], line["status"]) == (2, "5.5.0")
    standing(lab, before)


@pytest.mark.parametrize("acknowledged", [False, True], ids=["unread", "read"])
def test_identical_in_two_runs(lab: Box, acknowledged: bool) -> None:
    """An identical letter in a later run is a duplicate, also after the first was read."""
    sent = letter(sent_at=None)
    lab.drop("a.md", sent)
    lab.route()
    if acknowledged:
        lab.ack(BUILDER)
    lab.drop("a.md", sent, age_seconds=120)
    before = lab.census()
    lab.route()
    assert [(line["action"], line.get("reason")) for line in lab.log()] == [
        DELIVERED,
        ("dead-letter", "duplicate"),
    ]
    assert lab.dead() == ["a.md"]
    standing(lab, before)


FIRST = letter(subject="ok", body=b"ok\n")
OTHERS = {
    "sent_at": letter(subject="ok", body=b"ok\n", sent_at="2026-03-04T10:00:01Z"),
    "subject": letter(subject="ok!", body=b"ok\n"),
    "in_reply_to": letter(subject="ok", body=b"ok\n", extra=f"in_reply_to: {md5(b'ok' + bytes([10]))}"),
    "another header": letter(subject="ok", body=b"ok\n", extra="x-attempt: 2"),
    "body": letter(subject="ok", body=b"ok"),
    "flow": letter(subject="ok", body=b"ok\n", correlation_id="run-2"),
    "sender": letter(subject="ok", body=b"ok\n", from_="checker@lab.internal"),
    "type": letter(subject="ok", body=b"ok\n", type="job.walk"),
}


@pytest.mark.parametrize("runs", [1, 2], ids=["one run", "two runs"])
@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS.keys())
def test_almost_identical(lab: Box, other: bytes, runs: int) -> None:
    """Letters that differ in one field the sender wrote, or in one byte of the body, are two letters."""
    lab.drop("a.md", FIRST)
    if runs == 2:
        lab.route()
    lab.drop("b.md", other)
    lab.route()
    assert outcomes(lab) == {"a.md": DELIVERED, "b.md": DELIVERED}
    arrived(lab, BUILDER, FIRST)
    arrived(lab, BUILDER, other)


def test_duplicates_deliver(lab: Box) -> None:
    """An entry that says `duplicates: deliver` gets every copy, each with its own number."""
    sent = letter(to="echo@lab.internal")
    for name in ("a.md", "b.md"):
        lab.drop(name, sent)
    lab.route()
    lab.drop("c.md", sent)
    lab.route()
    copies = lab.unread("lab.echo")
    assert sorted(copy.sequence for copy in copies) == [1, 2, 3]
    assert {copy.header.body for copy in copies} == {header(sent).body}
    assert lab.dead() == []


def test_duplicate_for_one_of_two(lab: Box) -> None:
    """A letter again to one who refuses duplicates and one who takes them: one dead letter, one delivery."""
    sent = letter(to=("builder@lab.internal", "echo@lab.internal"))
    lab.drop("a.md", sent)
    lab.route()
    lab.drop("b.md", sent)
    lab.route()
    again = [(line.get("agent"), line["action"], line.get("reason")) for line in lab.log() if line["file"] == "b.md"]
    assert sorted(again, key=str) == sorted(
        [(BUILDER, "dead-letter", "duplicate"), ("lab.echo", "delivered", None)], key=str
    )
    assert len(lab.unread(BUILDER)) == 1
    assert len(lab.unread("lab.echo")) == 2


# ---------------------------------------------------------------------- the registry


def cut(path: Path) -> None:
    """Leave a registry as a writer that was stopped half way would."""
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b"accepts_from") + 4])


def cut_between_entries(path: Path) -> None:
    """Leave a registry that was stopped at the end of an entry: what is there reads well."""
    text = path.read_bytes()
    path.write_bytes(text[: text.rindex(b"  - id:")])


def replaced_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


SPOILED: dict[str, Callable[[Path], object]] = {
    "half written": cut,
    "cut between entries": cut_between_entries,
    "a directory": replaced_by_directory,
    "missing": Path.unlink,
    "empty": lambda path: path.write_bytes(b""),
    "garbage": lambda path: path.write_bytes(b"\x00\xff\xfe\x80" * 50),
    "text": lambda path: path.write_bytes(b"hello\n"),
    "a tag": lambda path: path.write_bytes(b"!!python/object/apply:os.system ['true']\n"),
    "entry without address": lambda path: path.write_bytes(b"agents:\n  - id: x\n    accepts: []\n"),
}


@pytest.mark.parametrize("mail", [True, False], ids=["mail waits", "empty outbox"])
@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "not compiled"])
@pytest.mark.parametrize("spoil", SPOILED.values(), ids=SPOILED.keys())
def test_spoiled_registry(lab: Box, spoil: Callable[[Path], object], compiled: bool, mail: bool) -> None:
    """Without a valid registry nothing is routed: exit 78, a reason on stderr, the outbox as it was."""
    if compiled:
        lab.drop("earlier.md", letter(subject="earlier"))
        lab.route()
    if mail:
        lab.drop("a.md", letter())
        lab.drop("bad.md", b"no header")
    spoil(lab.root / "agent-registry.yml")
    before = lab.snapshot()
    done = lab.route(check=78)
    assert "agent-registry.yml" in done.stderr
    assert lab.snapshot() == before
    lab.declare("lab", LAB)
    with contextlib.suppress(IsADirectoryError, FileNotFoundError):
        (lab.root / "agent-registry.yml").unlink()
    if (lab.root / "agent-registry.yml").is_dir():
        (lab.root / "agent-registry.yml").rmdir()
    lab.merge()
    lab.route()
    assert lab.outbox() == []


def test_unreadable_registry(lab: Box) -> None:
    """A registry that may not be read is a set-up fault too: exit 78, outbox untouched."""
    if not permissions_count(lab):
        pytest.skip("permission bits cannot be made to count for this user")
    lab.drop("a.md", letter())
    registry = lab.root / "agent-registry.yml"
    registry.chmod(0)
    try:
        before = lab.snapshot()
        done = lab.route(check=78, prefix=obeying_permissions())
        assert "agent-registry.yml" in done.stderr
        assert lab.snapshot() == before
    finally:
        registry.chmod(0o644)


def test_registry_changes_count_at_once(lab: Box) -> None:
    """The next run after a merge goes by the new registry."""
    lab.drop("a.md", letter(subject="a"))
    lab.route()
    lab.declare("lab", LAB.replace("builder@lab.internal", "carpenter@lab.internal"))
    lab.merge()
    lab.drop("b.md", letter(subject="b"))
    lab.drop("c.md", letter(subject="c", to="carpenter@lab.internal"))
    lab.route()
    assert outcomes(lab) == {
        "a.md": DELIVERED,
        "b.md": ("dead-letter", "unknown-recipient"),
        "c.md": DELIVERED,
    }


def test_no_office(tmp_path: Path) -> None:
    """Where there is no office the command says so and makes nothing."""
    box = Box(tmp_path / "world")
    done = box.route(check=78)
    assert str(box.root) in done.stderr
    assert not box.root.exists()


# ---------------------------------------------------------------------- hostile input


HUGE = {
    "10 MiB header": letter(extra="x: " + "y" * (9 * 1024 * 1024)),
    "10 MiB of header lines": letter(extra="\n".join(f"x{n}: y" for n in range(700_000))),
    "header just too long": letter(extra="\n".join(f"x{n:05}: {'y' * 56}" for n in range(1024))),
    "never closed, 9 MiB": b"---\n" + b"a: b\n" * (9 * 1024 * 1024 // 5),
    "100,000 brackets": letter(extra="x: " + "[" * 100_000),
    "30,000 brackets": letter(extra="x: " + "[" * 30_000),
    "30,000 closed brackets": letter(extra="x: " + "[" * 30_000 + "]" * 30_000),
    "30,000 braces": letter(extra="x: " + "{a: " * 10_000 + "}" * 10_000),
    "30,000 dashes": letter(extra="x:\n  " + "- " * 30_000 + "a"),
    "30,000 question marks": letter(extra="? " * 30_000 + "a"),
    "nested 30 deep": letter(extra="x: " + "[" * 30 + "]" * 30),
    "60,000 quotes": letter(extra="x: " + "'" * 60_001),
    "60,000 backslashes": letter(extra='x: "' + "\\" * 60_000),
    "60,000 anchors": letter(extra="x: [" + "&a b, " * 10_000 + "*a]"),
}


@pytest.mark.parametrize("sent", HUGE.values(), ids=HUGE.keys())
def test_huge_header(lab: Box, sent: bytes) -> None:
    """A huge or deep header costs one dead letter, little memory and little time."""
    lab.drop("a.md", sent)
    lab.drop("ok.md", ok := letter(subject="ok"))
    before = lab.census()
    lab.route(prefix=limited(), timeout=20)
    arrived(lab, BUILDER, ok)
    line = died(lab, "a.md", sent, "malformed-header")
    assert len(json.dumps(line)) < 4096
    standing(lab, before)


def test_largest_header(lab: Box) -> None:
    """A header of almost 64 KiB, nested fifteen deep, is still mail."""
    sent = letter(extra="\n".join(f"x{n:05}: {'y' * 53}" for n in range(1000)) + "\nz: " + "[" * 15 + "]" * 15)
    assert 60 * 1024 < len(header(sent).head) < 64 * 1024
    lab.drop("a.md", sent)
    lab.route(prefix=limited(), timeout=20)
    arrived(lab, BUILDER, sent)


def test_too_large(lab: Box) -> None:
    """A letter over the limit is a dead letter, 5.2.3, moved and not read: a sparse gigabyte costs nothing."""
    path = lab.drop("a.md", letter())
    os.truncate(path, 1 << 30)
    os.utime(path, (time.time() - 3600,) * 2)
    inode = path.stat().st_ino
    lab.drop("b.md", b"---\n" + b"x" * (11 * 1024 * 1024))
    lab.drop("ok.md", ok := letter(subject="ok"))
    lab.route(prefix=limited(), timeout=20)
    arrived(lab, BUILDER, ok)
    for name in ("a.md", "b.md"):
        line = lab.line(name)
        assert (line["action"], line["reason"], line["status"]) == ("dead-letter", "too-large", "5.2.3")
    moved = lab.root / lab.line("a.md")["path"]
    assert (moved.stat().st_size, moved.stat().st_ino) == (1 << 30, inode)
    assert moved.stat().st_blocks * 512 < 1 << 20
    assert lab.outbox() == []


@pytest.mark.parametrize(
    "to",
    [
        *("../../../etc", "/etc/passwd", "agent:../../../etc", "agent:lab.builder/../lab.checker", "role:../x"),
        *(
            "'agent:'",
            "'role:'",
            "role:nobody",
            "class:lab.builder",
            "'@'",
            "a@",
            "'@b'",
            "a@b@c",
            "~root/x",
            "$(id)@x.y",
        ),
        *("'*'", "'*@lab.internal'", "'builder@lab.internal, checker@lab.internal'", '"builder@lab.internal\\n"'),
        *('" builder@lab.internal"', '"builder@lab.internal\\u202e"', "http://lab.internal/builder", "builder"),
    ],
)
def test_hostile_recipient(lab: Box, to: str) -> None:
    """A recipient that is no known address leads to a dead letter and nowhere else."""
    sent = letter(to=to)
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route(prefix=limited(), timeout=20)
    assert len(lab.log()) == 1
    line = lab.line("a.md")
    assert line["action"] == "dead-letter"
    assert line["reason"] in ("unknown-recipient", "invalid-header")
    standing(lab, before)


@pytest.mark.parametrize("field", ["subject", "correlation_id", "type", "x-path"])
@pytest.mark.parametrize(
    "value", ["../../../tmp/PWNED3", "/etc/passwd", '"a/../b\\0c"', '"a\\nb"', '"\\ud800"', "'%s%n'"]
)
def test_hostile_texts(lab: Box, field: str, value: str) -> None:
    """A path, a control character or a format in any text is text, or one dead letter."""
    sent = (
        letter(extra=f"x-path: {value}") if field == "x-path" else letter(**{field: value})  # type: ignore[arg-type]
    )
    lab.drop("a.md", sent)
    before = lab.census()
    lab.route(prefix=limited(), timeout=20)
    assert len(lab.log()) == 1
    assert lab.outbox() == []
    standing(lab, before)


def test_special_files(lab: Box) -> None:
    """A pipe, a socket, a directory and links to a secret are set aside unread, within the limits."""
    outbox = lab.root / "outbox"
    secret = lab.world / "office" / "secret.md"
    secret.write_bytes(letter(subject="SECRET"))
    os.mkfifo(outbox / "pipe.md")
    (outbox / "folder.md").mkdir()
    (outbox / "folder.md" / "letter.md").write_bytes(letter())
    os.symlink(secret, outbox / "link.md")
    os.symlink("../secret.md", outbox / "relative.md")
    os.symlink("link.md", outbox / "chain.md")
    os.symlink("loop.md", outbox / "loop.md")
    os.symlink(lab.inbox("lab.checker") / "unread", outbox / "inbox-link")
    with socket.socket(socket.AF_UNIX) as plug:
        here = os.open(".", os.O_RDONLY)
        try:
            os.chdir(outbox)  # a socket's path must be short
            plug.bind("plug.md")
        finally:
            os.fchdir(here)
            os.close(here)
    names = sorted(os.listdir(outbox))
    lab.age()
    before = lab.census()
    lab.route(prefix=limited(), timeout=20)
    assert outcomes(lab) == dict.fromkeys(names, ("dead-letter", "not-a-regular-file"))
    assert lab.dead() == names
    dead = lab.root / "dead-letter"
    assert os.readlink(dead / "link.md") == str(secret)
    assert os.readlink(dead / "loop.md") == "loop.md"
    assert stat.S_ISFIFO((dead / "pipe.md").lstat().st_mode)
    assert (dead / "folder.md" / "letter.md").read_bytes() == letter()
    assert "SECRET" not in (lab.root / "logs" / "delivery-log.jsonl").read_text()
    standing(lab, before)


def test_unreadable_letter(lab: Box) -> None:
    """A letter that the post office may not read holds up no other, and is not lost."""
    if not permissions_count(lab):
        pytest.skip("permission bits cannot be made to count for this user")
    path = lab.drop("a.md", sent := letter())
    lab.drop("ok.md", ok := letter(subject="ok"))
    path.chmod(0)
    done = lab.route(check=None, prefix=obeying_permissions())
    assert done.returncode in (0, 75)
    arrived(lab, BUILDER, ok)
    places = [place for place in lab.root.rglob("a.md") if place.is_file()]
    assert len(places) == 1
    places[0].chmod(0o644)
    assert places[0].read_bytes() == sent
    assert {line["file"] for line in lab.log()} == {"a.md", "ok.md"}


# ---------------------------------------------------------------------- inboxes


def test_inbox_is_a_file(lab: Box) -> None:
    """An inbox that is a file: the letter waits, the file is not touched, and others go through."""
    inbox = lab.inbox(BUILDER)
    shutil.rmtree(inbox)
    inbox.write_bytes(b"a file\n")
    lab.drop("a.md", sent := letter())
    lab.drop("b.md", other := letter(to="checker@lab.internal"))
    before = lab.census()
    done = lab.route(check=75)
    assert done.stderr.strip()
    arrived(lab, "lab.checker", other)
    line = lab.line("a.md")
    assert (line["action"], line["reason"], line["status"]) == ("deferred", "inbox-unavailable", "4.2.1")
    assert inbox.read_bytes() == b"a file\n"
    assert (lab.root / "outbox" / "a.md").read_bytes() == sent
    standing(lab, before, again=75)


@pytest.mark.parametrize("part", ["unread", "tmp"])
def test_part_of_inbox_is_a_file(lab: Box, part: str) -> None:
    """An inbox whose unread/ or tmp/ is a file: the letter waits, or goes, but is not lost or half seen."""
    path = lab.inbox(BUILDER) / part
    shutil.rmtree(path, ignore_errors=True)
    path.write_bytes(b"a file\n")
    lab.drop("a.md", sent := letter())
    before = lab.census()
    done = lab.route(check=None)
    assert done.returncode in (0, 75)
    assert path.read_bytes() == b"a file\n"
    if done.returncode == 75:
        assert (lab.root / "outbox" / "a.md").read_bytes() == sent
    else:
        arrived(lab, BUILDER, sent)
    standing(lab, before, again=done.returncode)


def test_missing_parts_are_made(lab: Box) -> None:
    """Missing tmp/, unread/ and read/ are made again; mail is delivered."""
    shutil.rmtree(lab.inbox(BUILDER))
    shutil.rmtree(lab.inbox("lab.checker") / "unread")
    lab.drop("a.md", sent := letter(to=BOTH))
    lab.route()
    arrived(lab, BUILDER, sent)
    arrived(lab, "lab.checker", sent)


@pytest.mark.parametrize("dangling", [False, True], ids=["to a directory", "to nowhere"])
def test_inbox_is_a_link(lab: Box, dangling: bool) -> None:
    """An inbox that is a symbolic link loses nothing: the letter is delivered through it, or waits."""
    inbox = lab.inbox(BUILDER)
    target = lab.root / "elsewhere"
    shutil.rmtree(inbox)
    inbox.symlink_to(target)
    if not dangling:
        target.mkdir()
    lab.drop("a.md", sent := letter())
    done = lab.route(check=None)
    assert done.returncode in (0, 75)
    assert inbox.is_symlink()
    if done.returncode == 0:
        arrived(lab, BUILDER, sent)
        assert lab.outbox() == []
    else:
        assert lab.line("a.md")["reason"] == "inbox-unavailable"
        assert (lab.root / "outbox" / "a.md").read_bytes() == sent
    settled = lab.snapshot()
    lab.route(check=done.returncode)
    assert lab.snapshot() == settled


@pytest.mark.parametrize("folder", ["dead-letter", "logs", "inboxes"])
def test_missing_office_folder(lab: Box, folder: str) -> None:
    """A folder of the office that was deleted is made again where it is needed; no letter is lost."""
    shutil.rmtree(lab.root / folder)
    lab.drop("a.md", sent := letter())
    lab.drop("b.md", dead := letter(to="nobody@lab.internal"))
    lab.route()
    arrived(lab, BUILDER, sent)
    died(lab, "b.md", dead, "unknown-recipient")


# ---------------------------------------------------------------------- the command


def mixed(box: Box) -> None:
    """Hand in one letter of every fate."""
    box.drop("good.md", letter(subject="good"))
    box.drop("unknown.md", letter(subject="unknown", to="nobody@lab.internal"))
    box.drop("refused.md", letter(subject="refused", type="song"))
    box.drop("bad.md", b"no header\n")


def test_dry_run(lab: Box) -> None:
    """A dry run says what would happen and changes nothing at all."""
    lab.drop("first.md", letter(subject="first"))
    lab.route()
    mixed(lab)
    before = lab.snapshot(private=True)
    done = lab.route("--dry-run")
    assert lab.snapshot(private=True) == before
    for name in ("good.md", "unknown.md", "refused.md", "bad.md"):
        assert name in done.stdout
    for word in ("unknown-recipient", "type-not-accepted", "malformed-header"):
        assert word in done.stdout
    lab.route()
    assert outcomes(lab)["good.md"] == DELIVERED
    assert lab.line("good.md")["sequence"] >= 2


def test_dry_run_in_a_new_office(lab: Box) -> None:
    """A dry run before the first run makes neither an index nor a log."""
    mixed(lab)
    before = lab.snapshot(private=True)
    lab.route("--dry-run")
    assert lab.snapshot(private=True) == before


def test_dry_run_says_what_happens(lab: Box) -> None:
    """What a dry run foretells as JSON comes true in the run."""
    mixed(lab)
    foretold = lab.route("--dry-run", "--json").stdout
    json.loads(foretold)
    lab.route()
    for line in lab.log():
        assert json.dumps(line["file"]) in foretold
        assert line.get("reason", "delivered") in foretold


def test_quiet_on_success(lab: Box) -> None:
    """A run that leaves nothing waiting prints nothing, dead letters or not."""
    mixed(lab)
    done = lab.route()
    assert (done.stdout, done.stderr) == ("", "")
    done = lab.route()
    assert (done.stdout, done.stderr) == ("", "")


def test_verbose(lab: Box) -> None:
    """With -v the run counts what it did on standard output."""
    mixed(lab)
    done = lab.route("-v")
    assert done.stderr == ""
    assert "1" in done.stdout
    assert "delivered" in done.stdout
    assert "dead" in done.stdout


def test_json(lab: Box) -> None:
    """With --json the outcome is one JSON document, ASCII or UTF-8, with the counts in it."""
    mixed(lab)
    done = lab.route("--json")
    parsed = json.loads(done.stdout)
    assert parsed
    assert "delivered" in done.stdout
    json.loads(lab.route("--json").stdout)


def test_wrong_option(lab: Box) -> None:
    """A wrong option is a usage fault: 64, nothing touched."""
    lab.drop("a.md", letter())
    before = lab.snapshot()
    lab.route("--no-such-option", check=64)
    assert lab.snapshot() == before


def test_root_from_environment(lab: Box) -> None:
    """$POSTMASTER_ROOT names the office where --root does not."""
    lab.drop("a.md", sent := letter())
    inner = lab.command("route")
    at = inner.index("--root")
    done = lab.run("route", env={"POSTMASTER_ROOT": str(lab.world / "wrong")})
    assert done.returncode == 0, "--root goes before the environment"
    arrived(lab, BUILDER, sent)
    lab.drop("b.md", other := letter(subject="other"))
    subprocess.run(
        [*inner[:at], *inner[at + 2 :]],
        env=lab.environment({"POSTMASTER_ROOT": str(lab.root)}),
        cwd=lab.world / "cwd",
        check=True,
        timeout=60,
    )
    arrived(lab, BUILDER, other)
    assert lab.outside() == []


def test_log_names_the_file(lab: Box) -> None:
    """A name that is no UTF-8 stands in the log with its bytes spelled out."""
    name = b"odd\xff\x80name.md"
    lab.drop(name, letter(to="nobody@lab.internal"))
    before = lab.census()
    lab.route()
    assert lab.line(name)["file"] == shown(name) == "odd\\xff\\x80name.md"
    assert os.fsencode(os.path.join(lab.root, "dead-letter")) + b"/" + name in [
        os.path.join(os.fsencode(lab.root / "dead-letter"), entry)
        for entry in os.listdir(os.fsencode(lab.root / "dead-letter"))
    ]
    standing(lab, before)
