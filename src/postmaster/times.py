"""Times as text: RFC 3339, as senders and the log write it, the compact form in file names, spans of time. Pure.

A time is an integer: nanoseconds since 1970-01-01T00:00:00Z. A file system keeps times that no calendar has (tmpfs and
btrfs take any number of seconds): as text they are the first or the last moment of the years 1 to 9999.
"""

import re
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Final

# RFC 3339 section 5.6, and its note that a space may stand for the `T`; the offset may be left out (UTC).
_RFC3339: Final = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)[Tt ](\d\d):(\d\d):(\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)?", re.ASCII
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_NS: Final = -62_135_596_800 * 10**9  # 0001-01-01T00:00:00Z
_LAST_NS: Final = 253_402_300_800 * 10**9 - 1  # the end of the year 9999

UNITS: Final = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}  # of a span of time, in seconds
_SPAN: Final = re.compile(r"([0-9]{1,15}) ?([A-Za-z]?)", re.ASCII)


def parse_span(text: str) -> int:
    """Return a span of time (``90``, ``90s``, ``15m``, ``2h``, ``1d``) in seconds.

    Raises:
        ValueError: it is none.
    """
    match = _SPAN.fullmatch(text)
    factor = UNITS.get(match[2].casefold()) if match else None
    if match is None or factor is None:
        raise ValueError("not a span of time such as 90s, 15m, 2h or 1d")
    return int(match[1]) * factor


@lru_cache(maxsize=256)
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
    return _compact(_clamped(time_ns) // 10**9)


@lru_cache(maxsize=256)
def _compact(seconds: int) -> str:
    moment = _EPOCH + timedelta(seconds=seconds)
    return f"{moment.year:04d}{moment.month:02d}{moment.day:02d}T{moment:%H%M%S}Z"


def timestamp(time_ns: int) -> str:
    """Return a time as the log writes it: RFC 3339, UTC, microseconds."""
    time_ns = _clamped(time_ns)
    moment = _EPOCH + timedelta(seconds=time_ns // 10**9)
    return f"{moment.year:04d}-{moment:%m-%dT%H:%M:%S}.{time_ns // 1000 % 10**6:06d}Z"


def _clamped(time_ns: int) -> int:
    return min(max(time_ns, _FIRST_NS), _LAST_NS)
