"""Two copies of one transcript, as text and side by side. Pure.

A copy is JSON lines, one for each entry. The commit that a line names is computed from what it says and from the line
before, as git does (a commit is the SHA-1 of its tree, parent, author and text): an edited line does not fit any more,
and two copies agree up to where their commits do.
"""

import base64
import binascii
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any

from postmaster import times
from postmaster.errors import BadData


@dataclass(frozen=True, slots=True)
class Written:
    """An entry with its content: its commit, when it was written (seconds since the epoch), and its bytes."""

    commit: str
    seconds: int
    content: bytes

    def line(self, number: int) -> bytes:
        """Return it as a line of a copy, the entry as text if it is UTF-8."""
        fields: dict[str, Any] = {
            "number": number,
            "time": times.timestamp(self.seconds * 10**9),
            "commit": self.commit,
        }
        try:
            fields["entry"] = self.content.decode("utf-8")
        except UnicodeDecodeError:
            fields["entry_base64"] = base64.b64encode(self.content).decode("ascii")
        return json.dumps(fields).encode("ascii") + b"\n"


def commit_id(parent: str | None, seconds: int, content: bytes) -> str:
    """Return the commit that git makes of an entry (transcripts.py), as 40 hex digits."""
    tree = _object(b"tree", b"100644 entry\0" + _object(b"blob", content))
    lines = [f"tree {tree.hex()}", *([f"parent {parent}"] if parent else [])]
    lines += [f"{role} postmaster <postmaster> {seconds} +0000" for role in ("author", "committer")]
    return _object(b"commit", "\n".join([*lines, "", "entry"]).encode("ascii")).hex()


def _object(kind: bytes, content: bytes) -> bytes:
    return sha1(b"%s %d\0%s" % (kind, len(content), content), usedforsecurity=False).digest()


def read(lines: Iterable[bytes], name: str) -> Iterator[Written]:
    """Yield the entries of a copy.

    Args:
        name: of the copy, for errors.

    Raises:
        BadData: a line is not one of a transcript, or does not follow the one before.
    """
    parent: str | None = None
    for number, line in enumerate(lines, 1):
        try:
            found = _entry(line, parent)
        except (ValueError, KeyError, TypeError, RecursionError, binascii.Error) as fault:
            raise BadData(
                f"{name}:{number}: no entry of a transcript, as `postmaster transcript export` writes them: "
                f"{type(fault).__name__}: {fault}"
            ) from fault
        parent = found.commit
        yield found


def _entry(line: bytes, parent: str | None) -> Written:
    fields = json.loads(line)
    if not isinstance(fields, dict) or not isinstance(fields["commit"], str):
        raise ValueError("it has no commit")  # noqa: TRY004
    if "entry_base64" in fields:
        content = base64.b64decode(fields["entry_base64"], validate=True)
    else:
        content = fields["entry"].encode("utf-8")
    seconds = times.parse_time(fields["time"]) // 10**9
    if commit_id(parent, seconds, content) != fields["commit"]:
        raise ValueError("its commit is not that of what it says after the line before: it was edited, or moved")
    return Written(fields["commit"], seconds, content)


def common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return up to which entry two histories, given as their commits, are the same."""
    shorter = min(len(one), len(other))
    return next((at for at in range(shorter) if one[at] != other[at]), shorter)
