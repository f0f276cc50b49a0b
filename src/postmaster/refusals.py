"""Dead letters on disk: a letter as it was sent, and beside it the file that says why.

The two have one free name between them, so that neither is ever taken for part of another pair.
"""

import json
import os
from collections.abc import Collection
from typing import Any, Final

from postmaster import names, reasons

REASON_SUFFIX: Final = ".reason.yml"
_NAME_BYTES: Final = 255 - len(REASON_SUFFIX)

Record = dict[str, Any]


def free_pair(directory: str, name: str, taken: Collection[str] = ()) -> str:
    """Return `name`, or the name near it, that is free for a letter and its reason file, in `taken` (paths) too."""
    for candidate in names.free_names(name, _NAME_BYTES):
        paths = pair(directory, candidate)
        if not any(path in taken or os.path.lexists(path) for path in paths):
            return candidate
    raise AssertionError("free_names is endless")


def pair(directory: str, name: str) -> tuple[str, str]:
    """Return the paths of a dead letter and of its reason file."""
    path = os.path.join(directory, name)
    return path, path + REASON_SUFFIX


def reason_file(records: list[Record]) -> bytes:
    """Return the text of a reason file: YAML whose values are JSON texts, so that any YAML reader takes them."""
    first = records[0]
    lines = [f"# {reasons.REASONS[first['reason']].meaning}"]
    for key in ("reason", "action", "status", "detail"):
        if first.get(key) is not None:
            lines.append(f"{key}: {_yaml(first[key])}")
    lines.append(f"remedy: {_yaml(reasons.remedy(first['reason']))}")
    for key in (
        "time",
        "file",
        "id",
        "sequence",
        "correlation_id",
        "from",
        "type",
        "subject",
        "sent_at",
        "in_reply_to",
    ):
        if first.get(key) is not None:
            lines.append(f"{key}: {_yaml(first[key])}")
    lines.append("recipients:")
    for record in records:
        shown = {key: record.get(key) for key in ("to", "agent", "action", "reason", "status", "detail")}
        lines.append("  - {" + ", ".join(f"{k}: {_yaml(v)}" for k, v in shown.items() if v is not None) + "}")
    return ("\n".join(lines) + "\n").encode()


def _yaml(value: object) -> str:
    """Return a number as it is and text as a YAML double-quoted scalar: JSON, with what YAML cannot print escaped."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in text)
