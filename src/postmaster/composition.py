"""Composing a message: what its sender means, as a header that reads back the same and a body byte for byte."""

import math
import re
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import yaml
from frontmatter.default_handlers import YAMLHandler

from postmaster import message, times
from postmaster.errors import BadData, UsageProblem
from postmaster.header import Refused
from postmaster.printable import brief, quoted

RESERVED: Final = (*message.REQUIRED, "sent_at", "in_reply_to", *message.OURS)

_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,99}")
# Plain where no reader of YAML 1.1 or 1.2 can take it for more than text; the dumper quotes `yes` and `null`.
_PLAIN: Final = re.compile(r"[A-Za-z](?:[A-Za-z0-9 ._/@+-]*[A-Za-z0-9._/@+-])?")


@dataclass(frozen=True, slots=True)
class Draft:
    """A message as its sender means it. `headers` are fields of the sender's own."""

    to: tuple[str, ...]
    sender: str
    type: str
    subject: str
    correlation_id: str
    sent_at: str
    body: bytes
    in_reply_to: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> dict[str, Any]:
        """Return the header: text, and a list where there is more than one recipient."""
        found: dict[str, Any] = {
            "to": self.to[0] if len(self.to) == 1 else list(self.to),
            "from": self.sender,
            "type": self.type,
            "subject": self.subject,
            "correlation_id": self.correlation_id,
            "sent_at": self.sent_at,
        }
        if self.in_reply_to is not None:
            found["in_reply_to"] = self.in_reply_to
        return found | dict(self.headers)


class _Dumper(yaml.SafeDumper):
    """Writes text so that it is read back as that text: plain where that is safe, else in double quotes."""


def _scalar(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, None if _PLAIN.fullmatch(text) else '"')


_Dumper.add_representer(str, _scalar)


def compose(draft: Draft) -> bytes:
    """Return the message: a header that reads back as exactly the draft's fields, and its body byte for byte.

    Raises:
        BadData: there is a value that no header can hold.
    """
    wanted = draft.fields()
    for name, value in wanted.items():
        if any("\ud800" <= c <= "\udfff" for text in _texts(value) for c in text):
            raise BadData(f"invalid-header: `{name}` is not UTF-8; nothing was sent")
    header = YAMLHandler().export(wanted, Dumper=_Dumper, sort_keys=False, width=math.inf)
    raw = f"---\n{header}\n---\n".encode() + draft.body
    try:
        start, end, body = message.split(raw)
        read_back = message.all_fields(raw, start, end)
    except Refused as fault:
        raise BadData(f"{fault.reason}: {without_lines(fault.detail)}; nothing was sent") from fault
    if read_back != wanted or raw[body:] != draft.body:
        odd = [name for name in wanted if read_back.get(name) != wanted[name]]
        raise BadData(f"malformed-header: {brief(odd)} cannot be written as YAML; nothing was sent")
    return raw


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in the value of a field; its keys too, if it is a mapping."""
    if isinstance(value, dict):
        yield from value
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _texts(item)
    else:
        yield str(value)


def without_lines(detail: str) -> str:
    """Return a detail without the numbers of lines that its reader has never seen."""
    return re.sub(r"\bline \d+: ", "", detail)


def new_flow(now_ns: int) -> str:
    """Return a fresh `correlation_id`."""
    return f"flow-{times.compact_time(now_ns)}-{secrets.token_hex(4)}"


def own_fields(given: list[str]) -> dict[str, str]:
    """Return the header fields in a list of ``KEY=VALUE``.

    Raises:
        UsageProblem: one has another form, stands twice, or has its own option.
    """
    found: dict[str, str] = {}
    for item in given:
        key, equals, value = item.partition("=")
        if not equals:
            raise UsageProblem(f"--header {quoted(item)}: {_OWN_FORM}")
        if key in found:
            raise UsageProblem(f"--header {quoted(item)}: {key} is given twice")
        found |= own_header({key: value}, shown=f"--header {quoted(item)}")
    return found


_OWN_FORM: Final = "write KEY=VALUE; KEY is letters, digits and `_.-`"


def own_header(header: Mapping[str, str], *, shown: str | None = None) -> dict[str, str]:
    """Return header fields of a sender's own, checked.

    Args:
        shown: what to call the field in an error.

    Raises:
        UsageProblem: there can be no such field, or it has its own option.
    """
    for key in header:
        name = shown or f"header {quoted(key)}"
        if not _KEY.fullmatch(key):
            raise UsageProblem(f"{name}: {_OWN_FORM}")
        if key.casefold() in RESERVED:
            how = "only Postmaster writes it" if key.casefold() in message.OURS else "it has an option of its own"
            raise UsageProblem(f"{name}: {how}")
    return dict(header)


def recipients(given: list[str]) -> tuple[str, ...]:
    """Return the addresses in a list of addresses, some of them joined by commas."""
    return tuple(part for item in given for part in (one.strip() for one in item.split(",")) if part)


def reply_subject(subject: str) -> str:
    """Return the subject of an answer: ``Re: `` once (RFC 5322 section 3.6.5)."""
    return subject if subject[:3].casefold() == "re:" else f"Re: {subject}"
