"""Properties of reading and writing messages, held against the YAML parser itself."""

from typing import Any
from unittest import mock

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from postmaster import header_events, message, names, times
from postmaster.header import Reader, Refused

NASTY = st.text(alphabet=st.sampled_from("ab0 1.:#-'\"&*!%@`{}[],|>?~\\\n\r\tü\u2028\x85\x07"), max_size=40)
KEYS = st.sampled_from(["to", "from", "type", "id", "sequence", "x", "y-z", "a b", '"q"', "- l", "? k", "_u", "1"])
LINES = st.lists(st.tuples(KEYS, st.sampled_from([": ", ":", ":  ", " : ", ""]), NASTY), max_size=6)


def read(text: str, *, simple: bool) -> dict[str, Any] | str:
    """Return the fields of a header, or what is wrong with it; without the short way if not `simple`."""
    try:
        if simple:
            return Reader(text).fields
        with mock.patch.object(Reader, "_simple", return_value=False):
            return Reader(text).fields
    except Refused as fault:
        return fault.reason


@given(LINES)
@example([("to", ": ", "a: b")])
@example([("to", ": ", "a #b")])
@example([("to", ": ", "a b \r")])
@settings(max_examples=600)
def test_the_short_way_says_what_yaml_says(lines: list[tuple[str, str, str]]) -> None:
    """A header read without the YAML parser has the fields that the parser would give it."""
    text = "".join(f"{key}{colon}{value}\n" for key, colon, value in lines)
    assert read(text, simple=True) == read(text, simple=False)


@given(LINES)
@settings(max_examples=300)
def test_fields_are_those_of_the_base_loader(lines: list[tuple[str, str, str]]) -> None:
    """Whatever is accepted, the base loader of PyYAML reads the same from it."""
    text = "".join(f"{key}{colon}{value}\n" for key, colon, value in lines)
    found = read(text, simple=True)
    if isinstance(found, dict):
        assert yaml.load(text, Loader=yaml.CBaseLoader) == found


BODIES = st.binary(max_size=200)
STYLES = st.sampled_from(["block", "indented", "flow", "crlf", "bom"])
VALUES = st.sampled_from(
    ["plain", "'quo ted'", '"two: words"', "|\n  kept\n  lines\n", "[a, b]", "{a: b}", "x  # note"]
)


@given(body=BODIES, style=STYLES, own=st.lists(st.sampled_from(["id", "sequence"]), unique=True), value=VALUES)
@settings(max_examples=300)
def test_only_two_lines_are_added(body: bytes, style: str, own: list[str], value: str) -> None:
    """Delivered: the sender's fields and body as they were, one id and one sequence, whatever the header's style."""
    if style == "flow" and "\n" in value:
        value = "plain"
    value = value.replace("  # note", "") if style == "flow" else value
    entries = ["to: a@b.c", *(f"{name}: {value}" for name in own), "note: last"]
    if style == "flow":
        text = "{" + ", ".join(entries) + "}\n"
    else:
        pad = "  " if style == "indented" else ""
        text = "".join(pad + line + "\n" for entry in entries for line in entry.rstrip("\n").split("\n"))
    raw = f"---\n{text}---\n".encode()
    if style == "crlf":
        raw = raw.replace(b"\n", b"\r\n")
    raw = (b"\xef\xbb\xbf" if style == "bom" else b"") + raw + body
    start, end, at = message.split(raw)
    assert raw[at:] == body
    found = message.read_header(raw, start, end, at)
    assert found.fields == {"to": "a@b.c", "note": "last"}
    assert set(found.overridden) == set(own)
    sent = message.compose(found, "f" * 32, 7, body)
    start, end, at = message.split(sent)
    assert sent[at:] == body
    assert message.all_fields(sent, start, end) == {"id": "f" * 32, "sequence": "7", "to": "a@b.c", "note": "last"}
    assert (b"\r\n" in sent[:at]) == (style == "crlf") or b"\n" not in sent[:at].replace(b"\r\n", b"")


@given(st.binary(max_size=300))
@settings(max_examples=500)
def test_any_bytes_are_read_or_refused(raw: bytes) -> None:
    """No bytes make the reader do anything but read or refuse."""
    for candidate in (raw, b"---\n" + raw + b"\n---\n"):
        try:
            start, end, body = message.split(candidate)
            message.examine(message.read_header(candidate, start, end, body))
        except Refused as fault:
            assert fault.reason == "malformed-header"
            assert fault.detail


@given(st.datetimes(), st.sampled_from(["", "Z", "z", "+02:00", "-11:30"]))
def test_times_are_the_instants_they_name(moment: Any, offset: str) -> None:
    """An RFC 3339 time is the instant that Python's own parser finds, and one without an offset is UTC."""
    text = moment.isoformat() + offset
    try:
        expected = type(moment).fromisoformat(moment.isoformat() + (offset.upper() or "Z")).timestamp()
        found = times.parse_time(text)
    except (ValueError, OverflowError):
        return
    assert abs(found / 1e9 - expected) < 1e-3


@pytest.mark.parametrize("text", ["2026-02-30T00:00:00Z", "2026-03-04T24:00:00Z", "2026-03-04", "20260304T100000Z", ""])
def test_what_is_no_time(text: str) -> None:
    """A day that no calendar has, a bare date and the basic form are refused."""
    with pytest.raises(ValueError):
        times.parse_time(text)


@given(st.text(alphabet=st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=255))
def test_free_names_fit(name: str) -> None:
    """Every name offered is new and fits in 255 bytes."""
    found = []
    for candidate in names.free_names(name, 244):
        assert len(candidate.encode()) <= 244
        found.append(candidate)
        if len(found) == 5:
            break
    assert len(set(found)) == 5


def test_header_is_bounded() -> None:
    """Nesting stops at the limit, whatever comes after it."""
    deepest = "[" * header_events.MAX_DEPTH + "]" * header_events.MAX_DEPTH
    assert read(f"x: {deepest}\n", simple=True) == "malformed-header"
