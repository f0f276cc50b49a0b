"""The office's own mail: reports about mail that was not delivered, or not read. Pure (docs/formats/report.md).

A report is a letter from `postmaster@` that the office puts into its own outbox, together with a line in the log that
says so; then it is routed like any other. The line is what tells it from a letter that only claims to be one.
"""

import re
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address, reasons

LOCAL_PART: Final = "postmaster"  # RFC 5321 section 4.5.1: the office itself, at every domain
TYPES: Final = "postmaster."  # types that begin so are the office's own
BOUNCE: Final = "postmaster.bounce"
RETURN: Final = "postmaster.returned"
ACTIONS: Final = (reasons.BOUNCED, reasons.RETURNED)
FIELDS: Final = frozenset(("to", "from", "type", "subject", "correlation_id", "sent_at", "in_reply_to"))
ROOM: Final = 128 * 1024  # bytes: how much larger than what it attaches a report can be

_SENDER: Final = LOCAL_PART + "@"
_ATTACHED: Final = re.compile(
    rb"^Original-Message: (?:first ([0-9]{1,15}) of )?([0-9]{1,15}) bytes, md5 ([0-9a-f]{32})\n", re.MULTILINE
)


@dataclass(frozen=True, slots=True)
class Report:
    """A report that is to be made.

    Attributes:
        file: the name that it is to have in the outbox.
        content: the letter.
        record: what the log says of it, without `time` and `file`; its `path` is that of the mail it is about.
    """

    file: str
    content: bytes
    record: dict[str, Any]


def office_address(near: str) -> str:
    """Return the office's address at the domain of `near`, an address."""
    return _SENDER + address.fold(near.rpartition("@")[2])


def is_reserved(sender: str, message_type: str) -> bool:
    """Tell whether only the office may send mail of this type from this address."""
    return message_type.startswith(TYPES) or address.fold(sender[: len(_SENDER)]) == _SENDER


def attachment(part: bytes, size: int) -> bytes:
    """Return the end of a report's body: a line that says what is attached, and that, byte for byte.

    Args:
        part: what is attached: all of a message of `size` bytes, or its beginning.
    """
    how = f"first {len(part)} of {size}" if len(part) < size else f"{size}"
    return f"Original-Message: {how} bytes, md5 {_md5(part)}\n".encode() + part


def attached(body: bytes) -> tuple[bytes, bool] | None:
    """Return what a report's body has attached, and whether it is the whole message; None if there is nothing whole."""
    found = _ATTACHED.search(body)
    if found is None:
        return None
    part = body[found.end() :]
    right = len(part) == int(found[1] or found[2]) and _md5(part).encode() == found[3]
    return (part, found[1] is None) if right else None


def _md5(part: bytes) -> str:
    from hashlib import md5  # late: few runs make or read a report

    return md5(part, usedforsecurity=False).hexdigest()
