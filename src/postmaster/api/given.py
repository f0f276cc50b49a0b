"""What a caller of the public API gives: checked, so that what cannot be meant is told as one of our errors."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence

from postmaster.api.forms import Agent, Mail
from postmaster.errors import BadData, UsageProblem

Path = str | os.PathLike[str]


def root(path: Path | None) -> str | None:
    """Return the root of an office; None if none is given.

    Raises:
        UsageProblem: it is empty, or no path.
    """
    if path is None:
        return None
    found = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(found, str):
        raise _wrong("root", "a path (str or os.PathLike)", path)
    if not found or "\0" in found:
        raise UsageProblem(f"`root` is {found!r}: name a directory, or None for the default")
    return found


def text(name: str, value: str) -> str:
    """Return `value`. Raises UsageProblem if it is no text, BadData if it cannot be UTF-8; they call it `name`."""
    if not isinstance(value, str):
        raise _wrong(name, "text (str)", value)
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise BadData(f"`{name}` has a lone surrogate, which is not UTF-8: {value[:40]!r}")
    return value


def optional(name: str, value: str | None) -> str | None:
    """Return `value` as `text` does, or None."""
    return None if value is None else text(name, value)


def moment(name: str, value: str | None) -> str | None:
    """Return a time as `optional` does."""
    if value is not None and not isinstance(value, str):
        raise _wrong(name, "RFC 3339 text (str), such as 2026-03-04T10:00:00Z", value)
    return optional(name, value)


def body(value: str | bytes) -> bytes:
    """Return a body as bytes; text as UTF-8."""
    if isinstance(value, bytes):
        return value
    if not isinstance(value, str):
        raise _wrong("body", "text (str) or bytes", value)
    return text("body", value).encode()


def agent(value: str | Agent) -> str:
    """Return the name of an agent: its id, if it is an Agent."""
    return value.id if isinstance(value, Agent) else text("agent", value)


def address(name: str, value: str | Agent) -> str:
    """Return an address: that of an Agent, if it is one."""
    return value.address if isinstance(value, Agent) else text(name, value)


def addresses(value: str | Agent | Sequence[str | Agent]) -> list[str]:
    """Return addresses: one, or those in a list."""
    if isinstance(value, str | Agent):
        return [address("to", value)]
    if not isinstance(value, Iterable):
        raise _wrong("to", "an address, or a list of addresses", value)
    return [address("to", one) for one in value]


def message(value: str | Mail) -> str:
    """Return the name of a message: its file, if it is a Mail. Names that are not UTF-8 are names too."""
    if isinstance(value, Mail):
        return value.file
    if not isinstance(value, str):
        raise _wrong("message", "a file name or the beginning of an id (str), or a Mail", value)
    return value


def header(value: Mapping[str, str] | None) -> dict[str, str]:
    """Return fields of a sender's own, of which keys and values are text."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise _wrong("header", "a mapping of text to text", value)
    return {text("header", key): text(f"header[{key!r}]", one) for key, one in value.items()}


def seconds(value: float) -> float:
    """Return a span of time in seconds."""
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise _wrong("seconds", "a number of seconds", value)
    return value


def _wrong(name: str, wanted: str, value: object) -> UsageProblem:
    return UsageProblem(f"`{name}` must be {wanted}, not {type(value).__name__}")
