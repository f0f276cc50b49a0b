"""Dead letters: which there are, and what their reason files say (docs/dead-letters.md).

Neither a letter nor its reason file is trusted: what is no regular file is named and never opened.
"""

import os
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import yaml

from postmaster import message, outbox, reading, times
from postmaster.errors import BadData
from postmaster.office import Office, visible
from postmaster.printable import quoted
from postmaster.refusals import REASON_SUFFIX

_MAX_REASON_BYTES: Final = 8 * 1024 * 1024  # the largest `to` that fits a header, with a line for each recipient
_MAX_DEPTH: Final = 5
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{reading.MIN_PREFIX},32}}")
_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One name in dead-letter/.

    Attributes:
        kind: what it is, if it is no regular file.
        reason: what its reason file says; None if there is none that can be read.
    """

    name: str
    mtime_ns: int
    size: int
    kind: str | None
    reason: dict[str, Any] | None

    @property
    def shown(self) -> str:
        """The name as people and JSON see it."""
        return visible(self.name)

    @property
    def time(self) -> str:
        """When it died; without a reason file, when it was last changed."""
        return self.text("time") or times.timestamp(self.mtime_ns)

    def text(self, key: str) -> str | None:
        """Return one text of the reason file."""
        value = (self.reason or {}).get(key)
        return value if isinstance(value, str) else None

    @property
    def sequence(self) -> int | None:
        """The number that the letter was given."""
        value = self.text("sequence") or ""
        return int(value) if re.fullmatch(r"[1-9][0-9]{0,17}", value) else None

    @property
    def recipients(self) -> list[dict[str, str]]:
        """For every recipient that was refused: `to`, `agent`, `action`, `reason`, `status`, `detail`."""
        found = (self.reason or {}).get("recipients")
        items = [item for item in found if isinstance(item, dict)] if isinstance(found, list) else []
        return [{key: value for key, value in item.items() if isinstance(value, str)} for item in items]


# -- looking -------------------------------------------------------------------------------------------------------


def scan(office: Office) -> tuple[list[DeadLetter], list[str]]:
    """Return the dead letters, newest first, and the reason files whose letter is gone."""
    try:
        with os.scandir(office.dead_letter) as entries:
            found = {entry.name: entry for entry in entries if not entry.name.startswith(".")}
    except FileNotFoundError:
        return [], []
    orphans = [name for name in found if _is_orphan(office, name, found)]
    letters = []
    for name in found:
        is_reason = name.endswith(REASON_SUFFIX) and name.removesuffix(REASON_SUFFIX) in found
        if (not is_reason or name + REASON_SUFFIX in found) and name not in orphans:
            one = look(office, name)
            if one is not None:
                letters.append(one)
    return sorted(letters, key=lambda one: (one.time, one.name), reverse=True), sorted(orphans)


def _is_orphan(office: Office, name: str, found: Iterable[str]) -> bool:
    """Tell whether a name is a reason file that Postmaster wrote for a letter that is no longer there."""
    base = name.removesuffix(REASON_SUFFIX)
    if not name.endswith(REASON_SUFFIX) or not base or base in found or name + REASON_SUFFIX in found:
        return False
    reason = _read_reason(os.path.join(office.dead_letter, name))
    return reason is not None and {"reason", "action", "recipients"} <= reason.keys()


def look(office: Office, name: str) -> DeadLetter | None:
    """Look at one dead letter, without opening it; None if it is gone."""
    path = os.path.join(office.dead_letter, name)
    try:
        seen = os.lstat(path)
    except FileNotFoundError:
        return None
    regular = stat.S_ISREG(seen.st_mode)
    kind = None if regular else outbox.kind(seen.st_mode)
    return DeadLetter(name, seen.st_mtime_ns, seen.st_size, kind, _read_reason(path + REASON_SUFFIX))


def _read_reason(path: str) -> dict[str, Any] | None:
    """Return what a reason file says, all of it text; None if it is missing, or is none."""
    try:
        raw, size = reading.read_bytes(path, _MAX_REASON_BYTES)
        if size > len(raw):
            return None
        depth = 0
        for event in yaml.parse(raw, Loader=_Loader):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > _MAX_DEPTH or isinstance(event, yaml.AliasEvent):
                return None
        found = yaml.load(raw, Loader=_Loader)  # noqa: S506 - the base loader makes text, lists and mappings only
    except (OSError, BadData, yaml.YAMLError, ValueError, TypeError):
        return None
    return found if isinstance(found, dict) else None


def find(office: Office, text: str, letters: list[DeadLetter]) -> DeadLetter:
    """Return the one of `letters` that `text` names: a file name, or an unambiguous beginning of an id.

    Raises:
        BadData: there is none, or more than one; says what there is.
    """
    reading.check_name(text)
    matches = [one for one in letters if text in (one.name, one.shown)]
    if not matches and _PREFIX.fullmatch(text.casefold()):
        matches = [one for one in letters if _id_of(office, one).startswith(text.casefold())]
    if len(matches) == 1:
        return matches[0]
    if matches:
        listed = "".join(f"\n  {quoted(one.shown, 255)}" for one in matches[:10])
        raise BadData(f"{quoted(text)} names {len(matches)} dead letters; give a file name:{listed}")
    listed = "".join(f"\n  {quoted(one.shown, 255)}" for one in letters[:5])
    there = f"the newest are:{listed}" if letters else f"{office.dead_letter} is empty"
    raise BadData(f"there is no dead letter {quoted(text)}; {there}")


def _id_of(office: Office, one: DeadLetter) -> str:
    if one.reason is not None or one.kind is not None:
        return one.text("id") or ""
    try:
        content = reading.load(os.path.join(office.dead_letter, one.name), one.size)
    except (OSError, BadData):
        return ""
    return "" if content.problem else message.body_id(memoryview(content.raw)[content.body :])
