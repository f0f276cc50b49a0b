"""One flow as a thread: its messages in sequence, where each copy is and what became of it. Touches no file."""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from postmaster import maildir, reasons, times
from postmaster.acknowledging import READ
from postmaster.acknowledging import UNREAD as MOVED_BACK
from postmaster.delivery_log import Record
from postmaster.screen.log_index import NUDGED

UNREAD: Final = "unread"
DEAD: Final = "dead letter"
_STATES: Final = {
    reasons.DELIVERED: UNREAD,
    MOVED_BACK: UNREAD,
    NUDGED: "nudged",
    READ: "read",
    reasons.RETURNED: "returned",
    reasons.DEAD_LETTER: DEAD,
    reasons.REJECTED: DEAD,
    reasons.DEFERRED: "waiting",
    reasons.RELAYED: "relayed",
    "retried": "sent again",
    "withdrawn": "withdrawn",
}
_TURNS: Final = ("turn-started", "turn-done", reasons.TURN_FAILED)  # of turns that were taken with a copy
_ABOUT: Final = (reasons.RETURNED, reasons.BOUNCED)  # lines of a report that is made: `path` is the mail's it is about


@dataclass(slots=True)
class Copy:
    """One message for one recipient. `agent` is empty if it reached nobody; `name` is that of its file."""

    agent: str
    to: str
    name: str
    state: str = ""
    records: list[Record] = field(default_factory=list)

    def take(self, record: Record) -> None:
        """Take one more line of the log."""
        self.records.append(record)
        self.state = _STATES.get(record["action"], self.state)


@dataclass(slots=True)
class Step:
    """One message of a flow. `sequence` is 0 for one without a number."""

    sequence: int
    id: str
    sender: str
    type: str
    subject: str
    time: str
    copies: list[Copy] = field(default_factory=list)

    def copy(self, agent: str, to: str, name: str) -> Copy:
        """Return the copy that a line is about, a new one if there was none."""
        for one in self.copies:
            same = (one.agent, one.name) == (agent, name) if agent else (not one.agent and one.to == to)
            if same:
                return one
        found = Copy(agent, to, name)
        self.copies.append(found)
        return found


def thread(records: list[Record], nudges: Callable[[str, str], list[Record]]) -> list[Step]:
    """Return the messages of one flow in sequence, each with its copies and their lines in the order of time.

    Args:
        records: the lines of the log that have this correlation_id.
        nudges: returns the `nudged` lines of a copy, by agent id and file name.
    """
    steps: dict[tuple[int, str], Step] = {}
    by_path: dict[str, Copy] = {}
    by_owner: dict[tuple[str, str], Copy] = {}  # the last one of a message that an agent has
    about = []
    turns = []
    for record in records:
        if record["action"] in _ABOUT:
            about.append(record)
            continue
        if record["action"] in _TURNS:
            turns.append(record)
            continue
        owner = (_text(record, "id"), record.get("agent", ""))
        number = record.get("sequence", 0)
        key = (number, "" if number else record.get("file") or record.get("id", ""))
        step = steps.get(key)
        if step is None:
            sender, kind, subject, sent = (_text(record, k) for k in ("from", "type", "subject", "sent_at"))
            step = steps[key] = Step(number, _text(record, "id"), sender, kind, subject, sent)
            step.time = utc(step.time or record["time"])
        name = os.path.basename(record.get("path", ""))
        if record.get("reason") == reasons.TURN_FAILED and owner in by_owner:
            copy = by_owner[owner]  # the very copy that was delivered has moved
            copy.name = name
        else:
            copy = step.copy(record.get("agent", ""), _text(record, "to"), name)
        copy.take(record)
        by_path[_where(record)] = by_owner[owner] = copy
    for record in about:
        if (found := by_path.get(_where(record))) is not None:
            found.take(record)
    for record in turns:
        if (found := by_owner.get((_text(record, "id"), record.get("agent", "")))) is not None:
            found.records.append(record)
            found.records.sort(key=lambda one: str(one["time"]))
    for step in steps.values():
        for copy in step.copies:
            _add_nudges(copy, nudges(copy.agent, copy.name) if copy.agent else [])
    return sorted(steps.values(), key=lambda step: (step.sequence or 10**18, step.time))


def _text(record: Record, key: str) -> str:
    return str(record.get(key, ""))


def _where(record: Record) -> str:
    """Return the place of a copy whichever folder of its mailbox it is in."""
    folder, name = os.path.split(record.get("path", ""))
    home, last = os.path.split(folder)
    return f"{home if last in (maildir.UNREAD, maildir.READ) else folder}/{name}"


def _add_nudges(copy: Copy, told: list[Record]) -> None:
    if told:
        copy.records = sorted([*copy.records, *told], key=lambda record: str(record["time"]))
        copy.state = UNREAD
        for record in copy.records:
            copy.state = _STATES.get(record["action"], copy.state)


def settle(copy: Copy, folder: str | None) -> None:
    """Let the disk have the last word: a receiver that moves its mail by hand leaves no line.

    Args:
        folder: where the copy's file is now; None if it is in no folder of its mailbox.
    """
    if copy.state in (UNREAD, "nudged") and folder == maildir.READ:
        copy.state = "read"
    elif copy.state in (UNREAD, "nudged", "read") and folder is None:
        copy.state = "gone from the mailbox"
    elif copy.state == "read" and folder == maildir.UNREAD:
        copy.state = UNREAD


def seconds_between(earlier: str, later: str) -> float | None:
    """Return the seconds from one time to another; None if one of them is no time."""
    try:
        return (times.parse_time(later) - times.parse_time(earlier)) / 1e9
    except ValueError:
        return None


def utc(text: str) -> str:
    """Return a time as the log writes it, whatever offset its sender gave; as typed if it is none."""
    try:
        return times.timestamp(times.parse_time(text))
    except (ValueError, OverflowError, OSError):
        return text


def duration(seconds: float) -> str:
    """Return a time span for people: ``850 ms``, ``12 s``, ``3 min 5 s``, ``2 h 10 min``, ``3 d 4 h``."""
    if seconds < 1:
        return f"{max(0, round(seconds * 1000))} ms"
    whole = int(seconds)
    units = (("d", 86400), ("h", 3600), ("min", 60), ("s", 1))
    parts = []
    for name, size in units:
        if whole >= size:
            parts.append(f"{whole // size} {name}")
            whole %= size
    return " ".join(parts[:2])
