"""The form of a message: reading its header, and writing Postmaster's two lines into it. Pure.

A message is a header between two ``---`` lines and a body (docs/formats/message.md). The header is YAML read with
libyaml's parser and no typing: every scalar is text as typed. The body is never decoded.
"""

import json
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from hashlib import md5
from typing import Any, Final

import yaml

from postmaster import address
from postmaster.decide import Envelope, brief, quoted

MAX_HEADER_BYTES: Final = 64 * 1024
MAX_DEPTH: Final = 20
MAX_TEXT: Final = 998  # RFC 5322 section 2.1.1: characters in a line, without its end

OURS: Final = ("id", "sequence")
REQUIRED: Final = ("to", "from", "type", "subject", "correlation_id")
_TEXTS: Final = ("from", "type", "subject", "correlation_id", "sent_at", "in_reply_to")
_IDENTIFIERS: Final = ("from", "type", "correlation_id", "sent_at", "in_reply_to")

_BOM: Final = b"\xef\xbb\xbf"
_OPENING: Final = re.compile(rb"---\r?\n")
_CLOSING: Final = re.compile(rb"^---\r?(?:\n|\Z)", re.MULTILINE)
_ODD_CLOSING: Final = re.compile(rb"^[ \t]*-{3,}[ \t]*\r?$", re.MULTILINE)
# RFC 3339 section 5.6, and its note that a space may stand for the `T`; the offset may be left out (UTC).
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


class Refused(Exception):
    """A message that cannot be routed as it stands.

    Attributes:
        reason: `malformed-header` or `invalid-header`.
        detail: the line and the field, and what is wrong there.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


@dataclass(frozen=True, slots=True)
class Header:
    """A header that could be read.

    Attributes:
        fields: the sender's fields: text, or lists and mappings of text; without `id` and `sequence`.
        lines: the line in the file (from 1) on which each field stands.
        overridden: those of `id` and `sequence` that the sender had written.
        head: every byte before the place where Postmaster's lines go.
        tail: every byte of the header after that place, closing line included, less what is `overridden`.
        inserts: the form of Postmaster's two lines, with ``%s`` for their values.
    """

    fields: dict[str, Any]
    lines: dict[str, int]
    overridden: tuple[str, ...]
    head: bytes
    tail: bytes
    inserts: bytes


def split(raw: bytes, *, complete: bool = True) -> tuple[int, int, int]:
    """Find the parts of a message: (start of the header's text, start of the closing line, start of the body).

    Args:
        complete: whether `raw` is the whole file; if it is only its beginning, a missing end may be further on.

    Raises:
        Refused: `malformed-header`.
    """
    start = len(_BOM) if raw.startswith(_BOM) else 0
    opening = _OPENING.match(raw, start)
    if opening is None:
        if not raw:
            raise Refused("malformed-header", "the file is empty: the header is missing")
        first = raw[start:].split(b"\n", 1)[0][:80].decode("utf-8", "backslashreplace")
        shown = f"it is {first.rstrip()!a}" if first.strip() else "it is blank"
        raise Refused("malformed-header", f"the header is missing: line 1 must be `---`, {shown}")
    closing = _CLOSING.search(raw, opening.end(), opening.end() + MAX_HEADER_BYTES + 5)
    if closing is not None and closing.end() == closing.start() + 3 and closing.end() < len(raw):
        closing = None  # the search window ended there, not the line
    if closing is not None and closing.start() - opening.end() <= MAX_HEADER_BYTES:
        return opening.end(), closing.start(), closing.end()
    if closing is not None or not complete or len(raw) - opening.end() > MAX_HEADER_BYTES:
        raise Refused("malformed-header", f"the header is not closed within {MAX_HEADER_BYTES // 1024} KiB")
    detail = "the header is not closed: no later line is exactly `---`"
    odd = _ODD_CLOSING.search(raw, opening.end())
    if odd is not None:
        line = raw.count(b"\n", 0, odd.start()) + 1
        detail += f" (line {line} is {odd.group().decode('ascii')!a})"
    raise Refused("malformed-header", detail)


def body_id(body: bytes | memoryview) -> str:
    """Return the `id` of a message with this body: its MD5, in lower-case hex."""
    return md5(body, usedforsecurity=False).hexdigest()


def read_header(raw: bytes, start: int, end: int, body: int) -> Header:
    """Read the header whose text is ``raw[start:end]``, the body beginning at `body`.

    Raises:
        Refused: `malformed-header`, with the line.
    """
    try:
        text = raw[start:end].decode("utf-8")
    except UnicodeDecodeError as fault:
        line = raw.count(b"\n", 0, start + fault.start) + 1
        raise Refused("malformed-header", f"line {line}: the header is not UTF-8") from fault
    reader = _Reader(text)
    newline = b"\r\n" if raw[start - 2 : start] == b"\r\n" else b"\n"
    cuts = [reader.extent(name) for name in OURS if name in reader.spans]
    at = reader.insert_at
    kept: list[str] = []
    position = at
    for cut_start, cut_end in sorted(cuts):
        kept.append(text[position:cut_start])
        position = cut_end
    kept.append(text[position:])
    if reader.flow:
        inserts = newline + b"id: %s," + newline + b"sequence: %s," + newline
    else:
        pad = b" " * reader.indent
        inserts = pad + b"id: %s" + newline + pad + b"sequence: %s" + newline
    header = Header(
        fields={name: value for name, value in reader.fields.items() if name not in OURS},
        lines={name: reader.line(span[0]) for name, span in reader.spans.items()},
        overridden=tuple(name for name in OURS if name in reader.fields),
        head=raw[:start] + text[:at].encode(),
        tail="".join(kept).encode() + raw[end:body],
        inserts=inserts,
    )
    if cuts or reader.flow:
        _check_rewrite(header)
    return header


def all_fields(raw: bytes, start: int, end: int) -> dict[str, Any]:
    """Return every field of the header whose text is ``raw[start:end]``, Postmaster's own two included.

    Raises:
        Refused: `malformed-header`, with the line.
    """
    try:
        return _Reader(raw[start:end].decode("utf-8")).fields
    except UnicodeDecodeError as fault:
        raise Refused("malformed-header", "the header is not UTF-8") from fault


def _check_rewrite(header: Header) -> None:
    """Make sure that cutting lines out left every other field as it was; refuse the message if it did not."""
    rewritten = compose(header, "0" * 32, 1, b"")
    try:
        start, end, _ = split(rewritten)
        fields = _Reader(rewritten[start:end].decode()).fields
    except Refused as fault:
        fields = {"unreadable": fault.detail}
    if fields != {"id": "0" * 32, "sequence": "1", **header.fields}:
        which = " and ".join(f"`{name}`" for name in header.overridden) or "the header"
        raise Refused("malformed-header", f"{which} cannot be taken over: write one `key: value` a line")


def compose(header: Header, message_id: str, sequence: int, body: bytes | memoryview) -> bytes:
    """Return the message as delivered: the sender's bytes with Postmaster's two lines put in."""
    lines = header.inserts % (message_id.encode(), b"%d" % sequence)
    return b"".join((header.head, lines, header.tail, body))


class _Reader:
    """One walk over the parser's events; the mapping it finds, and where its entries stand in the text."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields: dict[str, Any] = {}
        self.spans: dict[str, tuple[int, int]] = {}  # key start, value end: positions in `text`
        self.block_values: set[str] = set()  # keys whose value's end mark is the next token's start
        self.flow = False
        self.indent = 0
        self.insert_at = 0
        try:
            parser = _Loader(text)
        except (yaml.YAMLError, ValueError) as fault:  # the pure parser reads ahead when made
            raise self._syntax(fault) from fault
        try:
            self._document(parser)
        except yaml.YAMLError as fault:
            raise self._syntax(fault) from fault
        finally:
            parser.dispose()

    def line(self, position: int) -> int:
        """Return the line of the file that holds this position: the header's text starts on line 2."""
        return self.text.count("\n", 0, position) + 2

    def _syntax(self, fault: Exception) -> Refused:
        mark = getattr(fault, "problem_mark", None) or getattr(fault, "context_mark", None)
        position = getattr(fault, "position", None)
        problem = getattr(fault, "problem", None) or getattr(fault, "reason", None) or "unreadable"
        if mark is not None:
            where = f"line {mark.line + 2}: "
        elif isinstance(position, int) and position >= 0:
            where = f"line {self.line(position)}: "
        else:
            where = ""
        return Refused("malformed-header", f"{where}{quoted_problem(str(problem))}")

    def _refuse(self, event: Any, what: str) -> Refused:
        return Refused("malformed-header", f"line {event.start_mark.line + 2}: {what}")

    def _document(self, parser: Any) -> None:
        parser.get_event()  # stream start
        event: Any = parser.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            raise Refused("malformed-header", "the header is empty")
        if event.explicit or event.version or event.tags:
            raise self._refuse(event, "a second document or a directive inside the header")
        event = parser.get_event()
        if not _is(event, yaml.MappingStartEvent):
            raise self._refuse(event, "the header is not a mapping of `key: value` lines")
        self._plain(event)
        self.flow = bool(event.flow_style)
        start = event.start_mark.index
        self.insert_at = start + 1 if self.flow else self.text.rfind("\n", 0, start) + 1
        self.indent = start - self.insert_at
        while not _is(key := parser.get_event(), yaml.MappingEndEvent):
            name = self._key(key, self.fields)
            before = self.text[self.text.rfind("\n", 0, key.start_mark.index) + 1 : key.start_mark.index]
            if not self.flow and before.strip(" "):
                raise self._refuse(key, f"`{quoted(name)}` does not begin its line")
            value = parser.get_event()
            self.fields[name] = self._value(value, parser, 1)
            end = self._end
            self.spans[name] = (key.start_mark.index, end)
            if not isinstance(value, yaml.ScalarEvent) or value.style in ("|", ">"):
                self.block_values.add(name)
        event = parser.get_event()
        if event.explicit:
            raise self._refuse(event, "a document end `...` inside the header")
        event = parser.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._refuse(event, "a second document inside the header")

    def _plain(self, event: Any) -> None:
        """Refuse what makes a value mean something else than its text."""
        if _is(event, yaml.AliasEvent):
            raise self._refuse(event, f"an alias (`*{quoted(event.anchor, 30)}`); quote a value that begins with *")
        if event.anchor is not None:
            raise self._refuse(event, f"an anchor (`&{quoted(event.anchor, 30)}`); quote a value that begins with &")
        if event.tag is not None:
            raise self._refuse(event, f"a tag ({quoted(event.tag, 40)}); quote a value that begins with !")

    def _key(self, event: Any, into: dict[str, Any]) -> str:
        self._plain(event)
        if not _is(event, yaml.ScalarEvent):
            raise self._refuse(event, "a key that is not text")
        name = str(event.value)
        if name in into:
            raise self._refuse(event, f"the key {quoted(name)} stands twice")
        return name

    def _value(self, event: Any, parser: Any, depth: int) -> Any:
        self._plain(event)
        self._end = event.end_mark.index
        if isinstance(event, yaml.ScalarEvent):
            return event.value
        if depth >= MAX_DEPTH:
            raise self._refuse(event, f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not _is(item := parser.get_event(), yaml.SequenceEndEvent):
                items.append(self._value(item, parser, depth + 1))
            self._end = item.end_mark.index
            return items
        mapping: dict[str, Any] = {}
        while not _is(key := parser.get_event(), yaml.MappingEndEvent):
            name = self._key(key, mapping)
            mapping[name] = self._value(parser.get_event(), parser, depth + 1)
        self._end = key.end_mark.index
        return mapping

    def extent(self, name: str) -> tuple[int, int]:
        """Return the stretch of text to cut so that the entry `name` is gone and the others stay as typed."""
        start, end = self.spans[name]
        order = list(self.spans)
        place = order.index(name)
        following = self.spans[order[place + 1]][0] if place + 1 < len(order) else None
        if self.flow:
            if following is not None:
                return start, following
            comma = self.text.find(",", end)
            tail = self.text[end:comma] if comma >= 0 else "x"
            return start, (comma + 1 if not tail.strip() else end)
        start = self.text.rfind("\n", 0, start) + 1
        if name in self.block_values and following is not None:
            return start, self.text.rfind("\n", 0, following) + 1
        newline = self.text.find("\n", max(end - 1, start) if name in self.block_values else end)
        return start, len(self.text) if newline < 0 else newline + 1


def _is(event: Any, kind: type) -> bool:
    """Tell what an event is, without narrowing: the stubs of yaml's events leave out their marks."""
    return isinstance(event, kind)


def quoted_problem(problem: str) -> str:
    """Return the YAML parser's words, with a hint where a plain value is the usual culprit."""
    if "mapping values are not allowed" in problem:
        return problem + " (a value that holds `: ` needs quotes)"
    if "cannot start any token" in problem or "while scanning" in problem:
        return problem + " (quote the value)"
    return problem


def parse_time(text: str) -> int:
    """Return an RFC 3339 time (no offset: UTC) as nanoseconds since the epoch.

    Raises:
        ValueError: it is none, or there is no such day or hour. A leap second (:60) is none here.
    """
    match = _RFC3339.fullmatch(text)
    if match is None:
        raise ValueError("not an RFC 3339 time such as 2026-03-04T10:00:00Z")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    fraction, offset = match.group(7), match.group(8)
    try:
        moment = datetime(year, month, day, hour, minute, second, tzinfo=UTC)
        if offset and offset not in "Zz":
            hours, minutes = int(offset[1:3]), int(offset[4:6])
            if hours > 23 or minutes > 59:  # RFC 3339 section 5.6
                raise OverflowError
            shift = timedelta(hours=hours, minutes=minutes)
            moment = moment + shift if offset[0] == "-" else moment - shift
        since = moment - _EPOCH
    except (OverflowError, ValueError) as fault:
        raise ValueError("not a time that exists") from fault
    return (since.days * 86400 + since.seconds) * 10**9 + int((fraction or "0")[:9].ljust(9, "0"))


def compact_time(time_ns: int) -> str:
    """Return a time as it stands in a delivered file's name: ``20260304T100000Z``."""
    seconds = min(max(time_ns // 10**9, -62135596800), 253402300799)
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.year:04d}{moment.month:02d}{moment.day:02d}T{moment:%H%M%S}Z"


def envelope(header: Header, message_id: str) -> Envelope:
    """Return what routing looks at.

    Raises:
        Refused: `invalid-header`; names every field that is wrong, with its line.
    """
    problems: list[str] = []
    texts: dict[str, str] = {}
    for name in _TEXTS:
        if name not in header.fields:
            if name in REQUIRED:
                problems.append(_missing(name, header))
            continue
        value = header.fields[name]
        problem = _text_problem(name, value)
        if problem:
            problems.append(f"line {header.lines[name]}: `{name}` {problem}")
        else:
            texts[name] = value
    recipients, problem = _recipients(header)
    if problem:
        problems.append(problem)
    if problems:
        raise Refused("invalid-header", "; ".join(problems))
    return Envelope(
        id=message_id,
        fingerprint=fingerprint(header, message_id),
        to=recipients,
        sender=texts["from"],
        type=texts["type"],
        subject=texts["subject"],
        correlation_id=texts["correlation_id"],
        sent_at=texts.get("sent_at"),
        in_reply_to=texts.get("in_reply_to"),
    )


def fingerprint(header: Header, message_id: str) -> str:
    """Return what two messages share exactly if they are identical: all the sender wrote, and the body."""
    written = json.dumps(header.fields, sort_keys=True, separators=(",", ":"))
    return md5(f"{message_id}{written}".encode(), usedforsecurity=False).hexdigest()


def readable(header: Header) -> dict[str, str]:
    """Return those log fields of a header that can be read, valid or not, for mail that is refused."""
    found = {}
    for name in _TEXTS:
        value = header.fields.get(name)
        if isinstance(value, str) and _text_problem(name, value) is None:
            found[name] = value
    recipients, problem = _recipients(header)
    if not problem:
        found["to"] = ", ".join(recipients) if len(recipients) <= 5 else brief(list(recipients))
    return found


def _missing(name: str, header: Header) -> str:
    alike = next((key for key in header.fields if key.casefold().replace("-", "_") == name), None)
    near = alike or address.nearest(name, [key for key in header.fields if key not in (*_TEXTS, "to")])
    return f"`{name}` is missing" + (f" (line {header.lines[near]} has `{quoted(near, 40)}`)" if near else "")


def _text_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of a text field, or None."""
    if not isinstance(value, str):
        return "is a list or a mapping, not text"
    if not value.strip():
        return "is empty"
    if len(value) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    if name in _IDENTIFIERS and (odd := _control(value)):
        return f"holds a control character (U+{ord(odd):04X})"
    if name == "from" and not address.is_mailbox(value):
        return f"is not an address of the form local@domain: {quoted(value)}"
    if name == "sent_at":
        try:
            parse_time(value)
        except ValueError as fault:
            return f"is {fault}: {quoted(value)}"
    return None


def _control(value: str) -> str | None:
    """Return the first character of `value` that breaks lines or drives terminals, or None."""
    return next((c for c in value if c < " " or "\x7f" <= c <= "\x9f" or c in "\u2028\u2029"), None)


def _recipients(header: Header) -> tuple[tuple[str, ...], str | None]:
    """Return the addresses in `to` without repeats, and what is wrong with the field if anything is."""
    if "to" not in header.fields:
        return (), _missing("to", header)
    value, where = header.fields["to"], f"line {header.lines['to']}: `to` "
    items = value if isinstance(value, list) else [value]
    if not items:
        return (), where + "is an empty list"
    for item in items:
        if not isinstance(item, str):
            return (), where + "must be an address or a list of addresses"
        if not item.strip():
            return (), where + "is empty"
        if len(item) > MAX_TEXT:
            return (), where + f"is longer than {MAX_TEXT} characters"
    unique = {address.fold(item): item for item in reversed(items)}
    return tuple(reversed(unique.values())), None
