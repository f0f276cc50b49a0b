"""What is known of one letter once it has been read: pure, apart from nothing.

A letter is either fit to be decided on (it has an envelope) or refused as a whole (it has a refusal). Both carry
what the log will say of it.
"""

from dataclasses import dataclass

from postmaster import message
from postmaster.delivery_log import Record
from postmaster.header import Refused
from postmaster.message import Header
from postmaster.outbox import Letter, Source, Special, Unreadable, Waiting, is_young
from postmaster.times import parse_time
from postmaster.verdict import Envelope


@dataclass(slots=True)
class Item:
    """One letter of this pass. (Not frozen, as other values are: that would triple the cost of making one.)

    Attributes:
        source: its name in the outbox, and what that meant.
        time_ns: when it was sent, for the order within its flow.
        raw: its bytes; `body` is where its body starts in them.
        envelope: what is decided on; None if the letter is refused as a whole or unreadable.
        refusal: (reason, detail) if it is refused, or put off, as a whole.
        record: what the log says of it, whatever becomes of it.
        notes: what else the log's detail says.
        owner, mode: those of its file (outbox.Letter).
    """

    source: Source
    time_ns: int
    record: Record
    raw: bytes = b""
    body: int = 0
    header: Header | None = None
    envelope: Envelope | None = None
    refusal: tuple[str, str] | None = None
    notes: str | None = None
    regular: bool = True
    owner: int = -1
    mode: int = 0


def glance(letter: Letter, *, now_ns: int, settle_seconds: int) -> int | None:
    """Return when a letter was sent if a look at its header tells; None: `assess` it.

    For a letter that is read again later, this saves all that the order does not depend on.
    """
    if letter.too_large or is_young(letter.source.mtime_ns, now_ns, settle_seconds):
        return None
    try:
        start, end, _ = message.split(letter.raw)
        sent_at = message.all_fields(letter.raw, start, end).get("sent_at")
        return parse_time(sent_at) if isinstance(sent_at, str) else None
    except (Refused, ValueError):
        return None


def assess(
    reading: Letter | Special | Unreadable | Waiting,
    file: str,
    *,
    now_ns: int,
    settle_seconds: int,
    max_bytes: int,
) -> Item | Waiting:
    """Tell what the router has to do with what it read.

    Args:
        file: the letter's name as the log writes it.
    """
    if isinstance(reading, Waiting):
        return reading
    if isinstance(reading, Unreadable):
        if reading.source is None:
            return Waiting(reading.name, f"it cannot be looked at: {reading.fault.strerror}")
        detail = f"outbox/{file}: {reading.fault.strerror}"
        return _refused(reading.source, file, "io-error", detail, regular=False)
    if isinstance(reading, Special):
        return _refused(reading.source, file, "not-a-regular-file", f"it is {reading.kind}", regular=False)
    item = _read(reading, file, max_bytes)
    malformed = item.refusal is not None and item.refusal[0] in ("malformed-header", "invalid-header")
    if malformed and is_young(reading.source.mtime_ns, now_ns, settle_seconds):
        assert item.refusal is not None
        return Waiting(reading.source.name, f"it may not be finished: {item.refusal[1]}")
    return item


def _refused(source: Source, file: str, reason: str, detail: str, *, regular: bool = True) -> Item:
    return Item(source, source.mtime_ns, {"file": file}, refusal=(reason, detail), regular=regular)


def _read(letter: Letter, file: str, max_bytes: int) -> Item:
    source, raw = letter.source, letter.raw
    size = f"{source.size} bytes are more than max_message_bytes ({max_bytes})"
    try:
        start, end, body = message.split(raw, complete=not letter.too_large)
        header = message.read_header(raw, start, end, body)
    except Refused as fault:
        why = ("too-large", size) if letter.too_large else (fault.reason, fault.detail)
        return _refused(source, file, *why)
    examined = message.examine(header)
    found = examined.readable
    message_id = None if letter.too_large else message.body_id(memoryview(raw)[body:])
    time_ns = parse_time(found["sent_at"]) if "sent_at" in found else source.mtime_ns
    record: Record = {"file": file, **found}
    if message_id is not None:
        record["id"] = message_id
    notes = "overridden: " + ", ".join(header.overridden) if header.overridden else None
    envelope: Envelope | None = None
    refusal: tuple[str, str] | None = None
    if message_id is None:
        refusal = ("too-large", size)
    else:
        try:
            envelope = message.envelope(header, message_id, examined)
        except Refused as fault:
            refusal = (fault.reason, fault.detail)
    return Item(
        source,
        time_ns,
        record,
        raw,
        body,
        header,
        envelope,
        refusal,
        notes,
        owner=letter.owner,
        mode=letter.mode,
    )
