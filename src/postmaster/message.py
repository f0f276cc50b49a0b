"""The form of a message: reading its header, and writing Postmaster's two lines into it. Pure.

A message is a header between two ``---`` lines and a body (docs/formats/message.md). The header is YAML read with
libyaml's parser and no typing: every scalar is text as typed. The body is never decoded.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address
from postmaster.header import Reader, Refused
from postmaster.printable import brief, quoted
from postmaster.times import parse_time
from postmaster.verdict import Envelope

MAX_HEADER_BYTES: Final = 64 * 1024
_OUR_BYTES: Final = 256  # what our two lines take up at most, so that what is delivered can be read again
HEAD_BYTES: Final = MAX_HEADER_BYTES + _OUR_BYTES + 16  # enough of a file to read the largest header
MAX_RECIPIENTS: Final = 1000
MAX_TEXT: Final = 998  # RFC 5322 section 2.1.1: characters in a line, without its end

OURS: Final = ("id", "sequence")
REQUIRED: Final = ("to", "from", "type", "subject", "correlation_id")
TEXTS: Final = ("from", "type", "subject", "correlation_id", "sent_at", "in_reply_to")
IDENTIFIERS: Final = ("from", "type", "correlation_id", "sent_at", "in_reply_to")

_BOM: Final = b"\xef\xbb\xbf"
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_OPENING: Final = re.compile(rb"---\r?\n")
_CLOSING: Final = re.compile(rb"^---\r?(?:\n|\Z)", re.MULTILINE)
_ODD_CLOSING: Final = re.compile(rb"^[ \t]*-{3,}[ \t]*\r?$", re.MULTILINE)


@dataclass(slots=True)
class Header:
    """A header that could be read. (Not frozen, for speed: one is made for every letter.)

    Attributes:
        fields: the sender's fields: text, or lists and mappings of text; without `id` and `sequence`.
        text: the header's text, in which `starts` says where each field begins.
        overridden: those of `id` and `sequence` that the sender had written.
        head: every byte before the place where Postmaster's lines go.
        tail: every byte of the header after that place, closing line included, less what is `overridden`.
        inserts: the form of Postmaster's two lines, with ``%s`` for their values.
    """

    fields: dict[str, Any]
    text: str
    starts: dict[str, int]
    overridden: tuple[str, ...]
    head: bytes
    tail: bytes
    inserts: bytes

    def line(self, name: str) -> int:
        """Return the line in the file (from 1) on which a field stands."""
        return self.text.count("\n", 0, self.starts[name]) + 2


def split(raw: bytes, *, complete: bool = True, delivered: bool = False) -> tuple[int, int, int]:
    """Find the parts of a message: (start of the header's text, start of the closing line, start of the body).

    Args:
        complete: whether `raw` is the whole file; if it is only its beginning, a missing end may be further on.
        delivered: its header holds our two lines besides what its sender may write.

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
    limit = MAX_HEADER_BYTES + (_OUR_BYTES if delivered else 0)
    closing = _CLOSING.search(raw, opening.end(), opening.end() + limit + 5)
    if closing is not None and closing.end() == closing.start() + 3 and closing.end() < len(raw):
        closing = None  # the search window ended there, not the line
    if closing is not None and closing.start() - opening.end() <= limit:
        return opening.end(), closing.start(), closing.end()
    if closing is not None or not complete or len(raw) - opening.end() > limit:
        raise Refused("malformed-header", f"the header is not closed within {MAX_HEADER_BYTES // 1024} KiB")
    detail = "the header is not closed: no later line is exactly `---`"
    odd = _ODD_CLOSING.search(raw, opening.end())
    if odd is not None:
        line = raw.count(b"\n", 0, odd.start()) + 1
        detail += f" (line {line} is {odd.group().decode('ascii')!a})"
    raise Refused("malformed-header", detail)


def body_id(body: bytes | memoryview) -> str:
    """Return the `id` of a message with this body: its MD5, in lower-case hex."""
    from hashlib import md5  # late: to acknowledge mail takes no sum

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
    reader = Reader(text)
    newline = b"\r\n" if raw[start - 2 : start] == b"\r\n" else b"\n"
    overridden = tuple(name for name in OURS if name in reader.fields)
    at = start + len(text[: reader.insert_at].encode())
    if reader.flow:
        inserts = newline + b"id: %s," + newline + b"sequence: %s," + newline
    else:
        pad = b" " * reader.indent
        inserts = pad + b"id: %s" + newline + pad + b"sequence: %s" + newline
    header = Header(
        fields={name: value for name, value in reader.fields.items() if name not in OURS}
        if overridden
        else reader.fields,
        text=text,
        starts={name: span[0] for name, span in reader.spans.items()},
        overridden=overridden,
        head=raw[:at],
        tail=_without(reader, overridden) + raw[end:body] if overridden else raw[at:body],
        inserts=inserts,
    )
    if overridden or reader.flow:
        _check_rewrite(header)
    return header


def _without(reader: Reader, left_out: tuple[str, ...]) -> bytes:
    """Return the header's text after the place of Postmaster's lines, less the entries called `left_out`."""
    kept: list[str] = []
    position = reader.insert_at
    for cut_start, cut_end in sorted(reader.extent(name) for name in left_out):
        kept.append(reader.text[position:cut_start])
        position = cut_end
    kept.append(reader.text[position:])
    return "".join(kept).encode()


def all_fields(raw: bytes, start: int, end: int) -> dict[str, Any]:
    """Return every field of the header whose text is ``raw[start:end]``, Postmaster's own two included.

    Raises:
        Refused: `malformed-header`, with the line.
    """
    try:
        return Reader(raw[start:end].decode("utf-8")).fields
    except UnicodeDecodeError as fault:
        raise Refused("malformed-header", "the header is not UTF-8") from fault


def _check_rewrite(header: Header) -> None:
    """Make sure that cutting lines out left every other field as it was; refuse the message if it did not."""
    rewritten = compose(header, "0" * 32, 1, b"")
    try:
        start, end, _ = split(rewritten, delivered=True)
        fields = Reader(rewritten[start:end].decode()).fields
    except Refused as fault:
        fields = {"unreadable": fault.detail}
    if fields != {"id": "0" * 32, "sequence": "1", **header.fields}:
        which = " and ".join(f"`{name}`" for name in header.overridden) or "the header"
        raise Refused("malformed-header", f"{which} cannot be taken over: write one `key: value` a line")


def compose(header: Header, message_id: str, sequence: int, body: bytes | memoryview) -> bytes:
    """Return the message as delivered: the sender's bytes with Postmaster's two lines put in."""
    lines = header.inserts % (message_id.encode(), b"%d" % sequence)
    return b"".join((header.head, lines, header.tail, body))


@dataclass(frozen=True, slots=True)
class Examined:
    """What the fields of a header are worth.

    Attributes:
        texts: the text fields that are valid.
        to: the recipients, without repeats; empty if the field is not valid.
        problems: what is wrong with the others, each with its line.
    """

    texts: dict[str, str]
    to: tuple[str, ...]
    problems: list[str]

    @property
    def readable(self) -> dict[str, str]:
        """The valid fields as the log writes them, also of mail that is refused."""
        found = dict(self.texts)
        if self.to:
            found["to"] = ", ".join(self.to) if len(self.to) <= 5 else brief(list(self.to))
        return found


def examine(header: Header) -> Examined:
    """Look at every field that means something to the router."""
    problems: list[str] = []
    texts: dict[str, str] = {}
    for name in TEXTS:
        if name not in header.fields:
            if name in REQUIRED:
                problems.append(_missing(name, header))
            continue
        value = header.fields[name]
        problem = _text_problem(name, value)
        if problem:
            problems.append(f"line {header.line(name)}: `{name}` {problem}")
        else:
            texts[name] = value
    recipients, problem = _recipients(header)
    if problem:
        problems.append(problem)
    return Examined(texts, recipients, problems)


def envelope(header: Header, message_id: str, examined: Examined | None = None) -> Envelope:
    """Return what routing looks at.

    Args:
        examined: what `examine` said of this header, if it was asked already.

    Raises:
        Refused: `invalid-header`; names every field that is wrong, with its line.
    """
    examined = examined or examine(header)
    if examined.problems:
        raise Refused("invalid-header", "; ".join(examined.problems))
    texts = examined.texts
    return Envelope(
        id=message_id,
        fields=header.fields,
        to=examined.to,
        sender=texts["from"],
        type=texts["type"],
        subject=texts["subject"],
        correlation_id=texts["correlation_id"],
        sent_at=texts.get("sent_at"),
        in_reply_to=texts.get("in_reply_to"),
    )


def _missing(name: str, header: Header) -> str:
    alike = next((key for key in header.fields if key.casefold().replace("-", "_") == name), None)
    near = alike or address.nearest(name, [key for key in header.fields if key not in (*TEXTS, "to")])
    return f"`{name}` is missing" + (f" (line {header.line(near)} has `{quoted(near, 40)}`)" if near else "")


def _text_problem(name: str, value: Any) -> str | None:
    """Return what is wrong with the value of a text field, or None."""
    if not isinstance(value, str):
        return "is a list or a mapping, not text"
    if not value or value.isspace():
        return "is empty"
    if len(value) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    if name in IDENTIFIERS and (odd := _control(value)):
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
    found = _CONTROL.search(value)
    return found.group() if found else None


def _recipients(header: Header) -> tuple[tuple[str, ...], str | None]:
    """Return the addresses in `to` without repeats, and what is wrong with the field if anything is."""
    if "to" not in header.fields:
        return (), _missing("to", header)
    value, where = header.fields["to"], f"line {header.line('to')}: `to` "
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
    if len(items) == 1:
        return (items[0],), None
    unique = {address.fold(item): item for item in reversed(items)}
    if len(unique) > MAX_RECIPIENTS:
        return (), where + f"names more than {MAX_RECIPIENTS} recipients; give them a role"
    return tuple(reversed(unique.values())), None
