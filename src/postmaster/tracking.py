"""Following letters that were put in the outbox: whether they have left it, what the log says, who answers."""

import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from postmaster import delivery_log, maildir, reading, reasons, waiting
from postmaster.delivery_log import Record
from postmaster.errors import BadData
from postmaster.office import Office, visible
from postmaster.parties import Agent

FINAL: Final = (reasons.DELIVERED, reasons.RELAYED, reasons.DEAD_LETTER, reasons.REJECTED)


@dataclass(slots=True)
class Outcome:
    """What has become of a letter so far.

    Attributes:
        left: it is no longer in the outbox.
        records: the log's lines about it.
    """

    left: bool
    records: list[Record]

    @property
    def exit_code(self) -> int:
        """0 all delivered, 65 refused for somebody, 75 not known yet (sysexits.h)."""
        actions = {record["action"] for record in self.records}
        if actions & {reasons.DEAD_LETTER, reasons.REJECTED}:
            return 65
        return 0 if self.over else 75

    @property
    def state(self) -> str:
        """One word: delivered, refused (for somebody), deferred, waiting (in the outbox), gone (nobody logged it)."""
        actions = {record["action"] for record in self.records}
        if not self.left:
            return "deferred" if reasons.DEFERRED in actions else "waiting"
        if not self.over:
            return "gone"
        return "delivered" if self.exit_code == 0 else "refused"

    @property
    def over(self) -> bool:
        """Whether there is nothing to wait for."""
        return self.left and any(record["action"] in FINAL for record in self.records)

    @property
    def unanswerable(self) -> bool:
        """Whether nobody has it, or ever will, so that no answer can come."""
        return self.left and not any(
            record["action"] in (reasons.DELIVERED, reasons.RELAYED) for record in self.records
        )


class Watch:
    """Follows the log for lines about letters that were put in the outbox, by their names there.

    Args:
        since: where the log ended before they were put there.
        after: the time from which on lines are about these letters, as the log writes it.
    """

    def __init__(self, office: Office, files: list[str], since: tuple[int, int], after: str) -> None:
        self._office = office
        self._inode, self._offset = since
        self._after = after
        self._names = files
        self.on_record: Callable[[Record], None] | None = None  # called with every record of the log from here on
        self._found: dict[str, dict[bytes, Record]] = {visible(name): {} for name in files}

    @property
    def files(self) -> list[str]:
        """The names in the outbox that are followed."""
        return self._names

    def outcomes(self) -> dict[str, Outcome]:
        """Return what the outbox and the log say now. A letter's lines are there before it leaves (docs/states.md)."""
        left = {name: not os.path.lexists(os.path.join(self._office.outbox, name)) for name in self._names}
        with contextlib.suppress(PermissionError):  # a log that is closed to this account says nothing
            self._read()
        return {name: Outcome(left[name], list(self._found[visible(name)].values())) for name in self._names}

    def wait(self, seconds: float, *, pause: Callable[[float], None] = time.sleep) -> dict[str, Outcome]:
        """Return as soon as every letter's fate is known, or when the time is over."""
        end = time.monotonic() + seconds
        interval = 0.02
        while True:
            found = self.outcomes()
            rest = end - time.monotonic()
            if rest <= 0 or all(outcome.over for outcome in found.values()):
                return found
            pause(min(interval, rest))
            interval = min(interval * 1.5, 0.5)

    def _read(self) -> None:
        inode, size = delivery_log.position(self._office)
        if inode != self._inode or size < self._offset:
            if self._inode:  # rotated or cut
                for record in delivery_log.records(self._office):
                    self._take(record)
            self._inode, self._offset = inode, 0
        if size == self._offset:
            return
        with open(self._office.log, "rb") as stream:
            stream.seek(self._offset)
            while (line := stream.readline()).endswith(b"\n"):
                self._offset += len(line)
                if (told := delivery_log.decode(line)) is not None:
                    self._take(told)

    def _take(self, record: Record) -> None:
        if self.on_record is not None:
            self.on_record(record)
        file = record.get("file")
        if isinstance(file, str) and file in self._found and str(record.get("time", "")) >= self._after:
            self._found[file][delivery_log.encode(record)] = record


class AnswerWatch:
    """Looks for an answer in the mailbox of who asks. Made before the question is sent: what is there is no answer.

    Raises:
        OSError: the mailbox cannot be looked into.
    """

    def __init__(self, office: Office, agent: Agent) -> None:
        self._office = office
        self.agent = agent
        self._unread = os.path.join(agent.inbox, maildir.UNREAD)
        self._seen = set(maildir.messages(agent.inbox, maildir.UNREAD))
        self._logged: list[str] = []

    def wait(
        self, watch: Watch, message_id: str, flow: str, seconds: float, *, on_delivered: Callable[[], None]
    ) -> tuple[reading.Name | None, Outcome]:
        """Wait for a message in the same flow with this `in_reply_to`; return where it is, and what became of ours.

        Ends early, with None, when no answer can come any more: ours was refused by everybody, or is gone.

        Args:
            watch: follows the one letter that asks.
            on_delivered: called once, when it is known that somebody has the letter.
        """
        (file,) = watch.files
        outcome = Outcome(False, [])
        told = False

        def is_answer(in_reply_to: object, correlation_id: object) -> bool:
            return str(in_reply_to).casefold() == message_id and correlation_id == flow

        def take(record: Record) -> None:
            of_ours = record.get("agent") == self.agent.id and record["action"] == reasons.DELIVERED
            if of_ours and is_answer(record.get("in_reply_to"), record.get("correlation_id")):
                self._logged.append(os.path.basename(record.get("path", "")))

        def look() -> tuple[reading.Name | None] | None:
            nonlocal outcome, told
            found = self._unseen(is_answer)
            outcome = watch.outcomes()[file]
            if outcome.over and not outcome.unanswerable and not told:
                told = True
                on_delivered()
            found = found or self._moved()
            return (found,) if found is not None or outcome.unanswerable else None

        watch.on_record = take
        result = waiting.wait_for(look, [self._unread, self._office.logs], seconds)
        return (result[0] if result is not None else None), outcome

    def _unseen(self, is_answer: Callable[[object, object], bool]) -> reading.Name | None:
        """Return the answer if it is among the messages that came since we looked last."""
        for name in maildir.messages(self.agent.inbox, maildir.UNREAD):
            if name in self._seen:
                continue
            try:
                content = reading.load(os.path.join(self._unread, name))
            except (OSError, BadData):
                continue  # moved on: the log tells
            self._seen.add(name)
            if is_answer(content.text("in_reply_to"), content.text("correlation_id")):
                return reading.Name(maildir.UNREAD, name)
        return None

    def _moved(self) -> reading.Name | None:
        """Return the answer if the log tells of it and somebody was quick to acknowledge it."""
        for name in self._logged:
            for folder in (maildir.UNREAD, maildir.READ):
                if os.path.isfile(os.path.join(self.agent.inbox, folder, name)):
                    return reading.Name(folder, name)
        return None


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a letter as plain data."""
    keys = ("action", "to", "agent", "sequence", "path", "reason", "status", "detail")
    shown = [{key: record[key] for key in keys if key in record} for record in outcome.records]
    return {"state": outcome.state, "outcomes": shown}


def explain(state: str) -> str:
    """Return what a state means that is not the end."""
    return {
        "deferred": "deferred; the next run tries again",
        "gone": "it has left the outbox, and the log does not say where to",
    }.get(state, "not routed yet; the next run takes it")
