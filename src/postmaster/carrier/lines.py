"""The lines of a mailbox ref, and what a set of them says. Pure.

A line is a message, a mark that one was read (or is unread again), or the signature of one. It has one form only,
so that a set of lines is a set of byte strings, and the union of two is a merge: commutative, associative, idempotent.
"""

import base64
import binascii
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, Final

from postmaster import address, times

_TEXTS: Final = ("from", "to", "type", "subject", "correlation_id", "sent_at")
_KEYS: Final = (
    "id", "from", "to", "type", "subject", "correlation_id", "sent_at", "in_reply_to", "headers",
    "body", "body_base64", "origin",
)  # fmt: skip
READ: Final = "read"
UNREAD: Final = "unread"
_SIGNED: Final = "signed"
_ARMOUR: Final = re.compile(
    r"-----BEGIN SSH SIGNATURE-----\n[A-Za-z0-9+/=\n]{1,16000}\n-----END SSH SIGNATURE-----\n", re.ASCII
)
DIGEST: Final = 32  # hex characters at the end of an id


@dataclass(frozen=True, slots=True)
class Letter:
    """A message between offices. `headers` are fields of the sender's own; `origin` the office it was sent in."""

    sender: str
    to: str
    type: str
    subject: str
    correlation_id: str
    sent_at: str
    body: bytes
    origin: str
    in_reply_to: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """`<sender>-<timestamp>-<hash>`: the same for the same message, wherever it is made."""
        return self._fields()["id"]  # type: ignore[no-any-return]

    @property
    def digest(self) -> str:
        """The hash at the end of the id."""
        return self.id[-DIGEST:]

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = {
            "from": self.sender,
            "to": self.to,
            "type": self.type,
            "subject": self.subject,
            "correlation_id": self.correlation_id,
            "sent_at": self.sent_at,
        }
        if self.in_reply_to is not None:
            fields["in_reply_to"] = self.in_reply_to
        if self.headers:
            fields["headers"] = dict(self.headers)
        try:
            fields["body"] = self.body.decode("utf-8")
        except UnicodeDecodeError:
            fields["body_base64"] = base64.b64encode(self.body).decode()
        digest = sha256(_dump(fields, sort=True)).hexdigest()[:DIGEST]
        fields["origin"] = self.origin  # not in the hash: an office may be given another name while mail waits
        stamp = times.compact_time(times.parse_time(self.sent_at))
        return {"id": f"{self.sender}-{stamp}-{digest}", **fields}

    def line(self) -> bytes:
        """Return its line."""
        fields = self._fields()
        return _dump({key: fields[key] for key in _KEYS if key in fields}) + b"\n"


@dataclass(frozen=True, slots=True)
class Mark:
    """That the message `id` was read (a tombstone), or is unread again, at this time in this office."""

    kind: str
    id: str
    at: str
    office: str

    def line(self) -> bytes:
        """Return its line."""
        return _dump({self.kind: self.id, "at": self.at, "office": self.office}) + b"\n"


@dataclass(frozen=True, slots=True)
class Signature:
    """That somebody has signed the line of the message `id`: the signature as ssh-keygen(1) writes it."""

    id: str
    signature: str

    def __post_init__(self) -> None:
        if not _ARMOUR.fullmatch(self.signature):
            raise ValueError("no SSH signature")

    def line(self) -> bytes:
        """Return its line."""
        return _dump({_SIGNED: self.id, "signature": self.signature}) + b"\n"


def _dump(fields: Mapping[str, Any], *, sort: bool = False) -> bytes:
    return json.dumps(fields, separators=(",", ":"), sort_keys=sort, allow_nan=False).encode("ascii")


def decode(line: bytes) -> Letter | Mark | Signature:
    """Read a line.

    Raises:
        ValueError: it is not a line that this office could have written, byte for byte.
    """
    try:
        fields = json.loads(line)
        if not isinstance(fields, dict):
            raise ValueError("no object")  # noqa: TRY004
        found = _decode(fields)
        same = found.line() == line
    except (ValueError, RecursionError, binascii.Error, KeyError, TypeError) as fault:
        raise ValueError(f"not a line of mail: {type(fault).__name__}: {fault}") from fault
    if not same:
        raise ValueError("not a line of mail: it is not in the one form that lines have, or its id is not its own")
    return found


def _decode(fields: dict[str, Any]) -> Letter | Mark | Signature:
    if _SIGNED in fields:
        return Signature(_text(fields, _SIGNED), _text(fields, "signature"))
    return _mark(fields) if READ in fields or UNREAD in fields else _letter(fields)


def _mark(fields: dict[str, Any]) -> Mark:
    kind = READ if READ in fields else UNREAD
    mark = Mark(kind, _text(fields, kind), _text(fields, "at"), _text(fields, "office"))
    times.parse_time(mark.at)
    return mark


def _letter(fields: dict[str, Any]) -> Letter:
    sender, to, kind, subject, flow, sent_at = (_text(fields, name) for name in _TEXTS)
    if not address.is_mailbox(sender) or not address.is_mailbox(to):
        raise ValueError("`from` and `to` are not addresses")
    body = base64.b64decode(fields["body_base64"], validate=True) if "body_base64" in fields else None
    headers = fields.get("headers", {})
    if not isinstance(headers, dict) or not _is_text(headers):
        raise ValueError("`headers` is no object of texts")
    return Letter(
        sender,
        to,
        kind,
        subject,
        flow,
        sent_at,
        _text(fields, "body").encode() if body is None else body,
        _text(fields, "origin"),
        _text(fields, "in_reply_to") if "in_reply_to" in fields else None,
        headers,
    )


def _is_text(value: Any) -> bool:
    """Tell whether a value is text, or made of texts: what a header can hold."""
    if isinstance(value, list):
        return all(map(_is_text, value))
    return all(map(_is_text, value.values())) if isinstance(value, dict) else isinstance(value, str)


def _text(fields: dict[str, Any], name: str) -> str:
    value = fields[name]
    if not isinstance(value, str):
        raise ValueError(f"`{name}` is no text")  # noqa: TRY004
    return value


@dataclass(frozen=True, slots=True)
class State:
    """What a set of lines says: messages, last marks and signatures, by id. Each may come without the others."""

    letters: dict[str, Letter]
    marks: dict[str, Mark]
    signatures: dict[str, frozenset[str]]

    def unread(self) -> list[Letter]:
        """Return the messages that nobody has read, in the order in which they were sent."""
        open_ = [one for key, one in self.letters.items() if key not in self.marks or self.marks[key].kind == UNREAD]
        return sorted(open_, key=lambda one: (times.parse_time(one.sent_at), one.id))


def merge(*sides: Iterable[bytes]) -> frozenset[bytes]:
    """Return the union of sets of lines: what every exchange in any order leads to."""
    return frozenset().union(*sides)


def state(lines: Iterable[bytes]) -> State:
    """Return what lines say, in whatever order they stand, however often. Of the marks of a message the last counts.

    Raises:
        ValueError: one is no line of mail.
    """
    letters: dict[str, Letter] = {}
    marks: dict[str, Mark] = {}
    signatures: dict[str, frozenset[str]] = {}
    for line in lines:
        found = decode(line)
        if isinstance(found, Letter):
            known = letters.get(found.id)
            if known is None or found.origin < known.origin:  # the same letter from an office under two names
                letters[found.id] = found
        elif isinstance(found, Signature):
            signatures[found.id] = signatures.get(found.id, frozenset()) | {found.signature}
        elif found.id not in marks or _rank(marks[found.id]) < _rank(found):
            marks[found.id] = found
    return State(letters, marks, signatures)


def _rank(mark: Mark) -> tuple[int, str, str, str]:
    return times.parse_time(mark.at), mark.kind, mark.at, mark.office
