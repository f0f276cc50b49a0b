"""Sending dead letters again: back into the outbox, to those who have not been served (docs/dead-letters.md).

The log is told before a letter moves. Its `retried` lines carry the letter's number and name the recipients that are
still to be served, so that whoever has a copy gets no second one.
"""

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from postmaster import commit, dead_letters, delivery_log, durable, letter, message, names, outbox, reasons, times
from postmaster.dead_letters import DeadLetter
from postmaster.delivery_log import Record
from postmaster.errors import BadData
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.open_items import ALLOW_DUPLICATE, RETRIED, letter_key
from postmaster.refusals import REASON_SUFFIX
from postmaster.settings import Settings, load_settings
from postmaster.verdict import Envelope

_IDENTITY: Final = ("id", "correlation_id", "from", "type", "subject", "sent_at", "in_reply_to")
_REFUSED: Final = (reasons.DEAD_LETTER, reasons.REJECTED)
_DEALT_WITH: Final = (reasons.DELIVERED, reasons.RELAYED, reasons.DEFERRED, *_REFUSED)
_ATTEMPTS: Final = 100


@dataclass(slots=True)
class Retried:
    """A dead letter that is sent again.

    Attributes:
        file: its name in dead-letter/; `target` is the one in the outbox.
        lines: what the log says of it.
        mended: it is not what the log knows: it gets a new number and goes to everybody in its `to`.
        problem: why it is still in dead-letter/, if it is.
    """

    file: str
    target: str
    lines: list[Record]
    mended: bool
    problem: str | None = None

    @property
    def file_shown(self) -> str:
        """`file` as people and JSON see it."""
        return visible(self.file)


@dataclass(slots=True)
class Result:
    """What `retry` did.

    Attributes:
        since: where the log ended before; `time` is when it began, as the log writes it.
        left: (name, why) of letters that cannot be sent again and were not asked for by name.
    """

    since: tuple[int, int]
    time: str
    retried: list[Retried] = field(default_factory=list)
    left: list[tuple[str, str]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Candidate:
    """A dead letter as it is now, and what was said of it when it died (empty: nobody knows); `file`: then its name."""

    dead: DeadLetter
    item: Item
    old: Record
    refused: list[tuple[str, str | None]]
    file: str | None


class Unable(Exception):
    """A dead letter that cannot be sent again."""


def retry(
    office: Office,
    chosen: list[str],
    *,
    every: bool = False,
    reason: str | None = None,
    allow_duplicate: bool = False,
    clock: Callable[[], int] = time.time_ns,
) -> Result:
    """Put dead letters back in the outbox, alone with the office (the router's lock is held).

    Order: lines in the log, letters into the outbox, reason files away; each is durable before the next begins.
    Commit point: the rename. A crash before it leaves the letter dead, with lines that say it was to be retried: it
    can be retried again. A crash after it may leave a reason file without a letter, which the next retry removes.

    Args:
        chosen: names, or beginnings of ids.
        every: all of them; `reason`: all that died of this.

    Raises:
        BadData: one of those chosen by name is unknown or cannot be sent again; nothing was done.
        DiskFault: the log cannot be written; nothing was moved.
    """
    office.require()
    outbox.survive_lease_breaks()
    settings = load_settings(office)  # before the lock, which notes the time of a run: see idle.py
    with office.lock(wait=True):
        commit.recover(office)  # a batch that is half done may be about to make or move these very names
        letters, orphans = dead_letters.scan(office)
        for name in orphans:
            durable.remove(os.path.join(office.dead_letter, name))
        by_name = not every and reason is None
        if by_name:
            found = [dead_letters.find(office, text, letters) for text in chosen]
            wanted = list({one.name: one for one in found}.values())
        else:
            wanted = [one for one in letters if reason is None or one.text("reason") == reason]
        now_ns = clock()
        result = Result(delivery_log.position(office), times.timestamp(now_ns))
        _prepare_all(office, settings, wanted, result, now_ns, ALLOW_DUPLICATE if allow_duplicate else None)
        if result.left and by_name:
            raise BadData("\n".join([*(f"{name}: {why}" for name, why in result.left), "nothing was retried"]))
        delivery_log.append(office, [delivery_log.encode(line) for one in result.retried for line in one.lines])
        _carry_out(office, result)
    return result


# -- what is to be done --------------------------------------------------------------------------------------------


def _prepare_all(
    office: Office, settings: Settings, wanted: list[DeadLetter], result: Result, now_ns: int, detail: str | None
) -> None:
    """Fill `result` with what is to be done and what cannot be."""
    past = _Past(office)
    taken: set[str] = set()
    for dead in sorted(wanted, key=lambda one: (one.time, one.name)):
        try:
            candidate = _candidate(office, settings, dead, past, now_ns)
            lines, mended = _lines(candidate, past)
            folder = _folder(office, settings, candidate)
        except Unable as fault:
            result.left.append((dead.shown, str(fault)))
            continue
        target = _free(office, os.path.join(folder, dead.name), taken)
        time_ = times.timestamp(now_ns)
        reason = candidate.old.get("reason")
        full = [
            _place(office, {**line, "time": time_, "action": RETRIED, "reason": reason, "detail": detail}, target)
            for line in lines
        ]
        result.retried.append(Retried(dead.name, target, full, mended))


def _candidate(office: Office, settings: Settings, dead: DeadLetter, past: "_Past", now_ns: int) -> _Candidate:
    """Read a dead letter as the router will read it. Raises Unable."""
    reading = outbox.read(
        office.dead_letter,
        dead.name,
        max_bytes=settings.max_message_bytes,
        head_bytes=message.HEAD_BYTES,
        settle_seconds=0,
        now_ns=now_ns,
    )
    if reading is None:
        raise Unable("it is gone")
    item = letter.assess(reading, dead.shown, now_ns=now_ns, settle_seconds=0, max_bytes=settings.max_message_bytes)
    if isinstance(item, outbox.Waiting):
        raise Unable(item.why)
    if not item.regular:
        assert item.refusal is not None
        raise Unable(f"{item.refusal[1]}; only a letter can be sent again")
    if dead.reason is not None:
        old: Record = {key: dead.text(key) for key in (*_IDENTITY, "reason")} | {"sequence": dead.sequence}
        refused = [(one["to"], one.get("agent")) for one in dead.recipients if "to" in one]
        file = dead.text("file")
    else:
        lines = past.refusals(office.shown(os.path.join(office.dead_letter, dead.name)))
        old = {key: lines[0].get(key) for key in (*_IDENTITY, "reason", "sequence")} if lines else {}
        refused = [(line["to"], line.get("agent")) for line in lines if "to" in line]
        file = lines[0].get("file") if lines else None
    known = {key: value for key, value in old.items() if value is not None}
    return _Candidate(dead, item, known, refused, file)


def _lines(candidate: _Candidate, past: "_Past") -> tuple[list[Record], bool]:
    """Return the fields of the `retried` lines, one for each recipient to be served, and whether it was mended.

    Raises:
        Unable: nobody is left to be served.
    """
    item, old = candidate.item, candidate.old
    base: Record = {**item.record}
    mended = letter_key(base) != letter_key(old)  # so is one that was too large, and had no id
    if not mended:
        base["sequence"] = old.get("sequence")
    if item.envelope is None:
        return [base], mended
    if mended:
        return [{**base, "to": recipient} for recipient in item.envelope.to], mended
    return [{**base, "to": to, "agent": agent} for to, agent in _unserved(candidate, item.envelope, past)], mended


def _unserved(candidate: _Candidate, envelope: Envelope, past: "_Past") -> list[tuple[str, str | None]]:
    """Return (recipient, agent id) of everybody in `to` who was refused, or is in it only since it was corrected."""
    found = [(to, agent) for to, agent in candidate.refused if to in envelope.to]
    new = [to for to in envelope.to if to not in {known for known, _ in found}]
    if new:
        dealt_with = past.recipients(candidate.old)
        found += [(to, None) for to in new if to not in dealt_with]
    if not found:
        raise Unable("everybody who is in its `to` now has been served")
    return found


def _folder(office: Office, settings: Settings, candidate: _Candidate) -> str:
    """Return the drop folder that a letter came from, and goes back to; an empty text if there is none.

    Raises:
        Unable: it is gone, and the letter was refused for where it lay: elsewhere nobody would ask.
    """
    folder = os.path.dirname(candidate.file or "")
    if not folder or not settings.drop_folders:
        return ""
    if folder in outbox.folders(office.outbox):
        return folder
    if candidate.old.get("reason") == "sender-not-authentic":
        raise Unable(f"it came from outbox/{folder}/, which is not there; make it, or send the message anew")
    return ""


class _Past:
    """What the log says of dead letters; it is read only if somebody asks."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._records: list[Record] | None = None

    def _relevant(self) -> list[Record]:
        if self._records is None:
            found = (record for record in delivery_log.records(self._office) if record["action"] in _DEALT_WITH)
            self._records = list(found)
        return self._records

    def refusals(self, path: str) -> list[Record]:
        """Return the lines of the last letter that died under this path."""
        lines = [line for line in self._relevant() if line.get("path") == path and line["action"] in _REFUSED]
        return [line for line in lines if line["time"] == lines[-1]["time"]]

    def recipients(self, old: Record) -> set[str]:
        """Return whom the log names as served, refused or waiting, of the letter that has this number."""
        key = letter_key(old)
        same = (line for line in self._relevant() if line.get("sequence") == old.get("sequence"))
        return {line.get("to", "") for line in same if letter_key(line) == key}


# -- doing it ------------------------------------------------------------------------------------------------------


def _place(office: Office, line: Record, target: str) -> Record:
    """Return a line that says where the letter is put."""
    return {**line, "file": visible(target), "path": office.shown(os.path.join(office.outbox, target))}


def _free(office: Office, name: str, taken: set[str]) -> str:
    """Return a name for a letter in the outbox: its own if it can be; and keep it."""
    folder, own = os.path.split(name)
    wanted = own if names.is_mail(own) else f"{own}.md"
    for free in names.free_names(wanted):
        candidate = os.path.join(folder, free)
        if candidate not in taken and not os.path.lexists(os.path.join(office.outbox, candidate)):
            taken.add(candidate)
            return candidate
    raise AssertionError("free_names is endless")


def _carry_out(office: Office, result: Result) -> None:
    """Move the letters, then remove their reason files; a fault of one is told in its `problem`."""
    taken = {one.target for one in result.retried}
    for one in result.retried:
        try:
            _move(office, one, taken)
        except OSError as fault:
            one.problem = f"it is logged as retried, but cannot be moved to the outbox: {fault.strerror}"
    moved = [one for one in result.retried if one.problem is None]
    if not moved:
        return
    for folder in sorted({"", *(os.path.dirname(one.target) for one in moved)}):
        durable.sync_directory(os.path.join(office.outbox, folder) if folder else office.outbox)
    for one in moved:
        durable.remove(os.path.join(office.dead_letter, one.file + REASON_SUFFIX))
    durable.sync_directory(office.dead_letter)


def _move(office: Office, one: Retried, taken: set[str]) -> None:
    """Rename a letter into the outbox; choose another name, and log it, if a sender has just made this one."""
    source = os.path.join(office.dead_letter, one.file)
    for attempt in range(_ATTEMPTS):
        try:
            durable.rename_new(source, os.path.join(office.outbox, one.target))
            return
        except FileExistsError:
            if attempt == _ATTEMPTS - 1:
                raise
        one.target = _free(office, os.path.join(os.path.dirname(one.target), one.file), taken)
        one.lines = [_place(office, line, one.target) for line in one.lines]
        delivery_log.append(office, [delivery_log.encode(line) for line in one.lines])
