"""The delivery log in memory, as it grows: by flow, by copy, by edge of the map. It costs about the log's size."""

import os
import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import address, delivery_log, reasons
from postmaster.acknowledging import READ
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault
from postmaster.office import Office
from postmaster.tail import Tail

NUDGED: Final = "nudged"
_NO_MAIL: Final = ("registered", "archived", "renamed", "nudge-failed")  # lines that are about no message
_SEARCHED: Final = ("from", "type", "subject", "correlation_id", "id")


@dataclass(slots=True)
class Flow:
    """What the log says of one correlation_id: its lines, their times, how many messages have a number."""

    name: str
    first: str
    last: str
    lines: list[bytes] = field(default_factory=list)
    highest: int = 0
    subject: str = ""


class LogIndex:
    """What the log says, kept up by `refresh`. Its attributes are read by other threads; they only ever grow.

    Attributes:
        flows: by correlation_id.
        told: by (agent id, file name), the `nudged` lines, which have no correlation_id.
        texts: by agent id and file name, what a search looks through.
        counts: how many copies were delivered, by (sender folded, type, agent id or its class).
        problems: log files that cannot be read.
        mail_lines: how many lines about mail were read so far.
    """

    def __init__(self, office: Office) -> None:
        self._office = office
        self._tail = Tail(office)
        self._lock = threading.Lock()
        self._begun = False
        self.flows: dict[str, Flow] = {}
        self.told: dict[tuple[str, str], list[bytes]] = {}
        self.texts: dict[str, dict[str, str]] = {}
        self.counts: Counter[tuple[str, str, str]] = Counter()
        self.last_read: dict[str, str] = {}
        self.returned: Counter[str] = Counter()
        self.problems: list[str] = []
        self.mail_lines = 0
        self._lines = 0
        self._newest: tuple[int, list[Flow]] = (0, [])

    def refresh(self) -> None:
        """Read what was appended."""
        with self._lock:
            if not self._begun:
                self._begun = True
                self._read_rotated()
            try:
                for line in self._tail.read():
                    self._take(line)
            except (*delivery_log.DAMAGE, DiskFault) as fault:
                self._note(f"{self._office.shown(self._office.log)}: cannot be read: {fault}")

    def _read_rotated(self) -> None:
        try:
            files = delivery_log.log_files(self._office)
        except OSError as fault:
            self._note(f"{self._office.shown(self._office.logs)}: cannot be read: {fault.strerror}")
            return
        for path in files:
            if path == self._office.log:
                continue
            try:
                with delivery_log.open_log(path) as stream:
                    for line in stream:
                        self._take(line)
            except (*delivery_log.DAMAGE, DiskFault) as fault:
                self._note(f"{self._office.shown(path)}: cannot be read to its end: {fault}")

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def _take(self, line: bytes) -> None:
        record = delivery_log.decode(line)
        if record is None:
            return
        action, agent = record["action"], record.get("agent", "")
        if "correlation_id" in record:
            self._add(record, line)
        name = os.path.basename(record.get("path", ""))
        if action == NUDGED:
            self.told.setdefault((agent, name), []).append(line)
        elif action == READ:
            self.last_read[agent] = record["time"]
        elif action == reasons.RETURNED:
            self.returned[agent] += 1
        elif action == reasons.DELIVERED:
            self.texts.setdefault(agent, {})[name] = searched(record)
            self.counts[address.fold(record.get("from", "")), record.get("type", ""), agent.partition("+")[0]] += 1
        self.mail_lines += action not in _NO_MAIL

    def _add(self, record: Record, line: bytes) -> None:
        name, moment = record["correlation_id"], record["time"]
        flow = self.flows.get(name)
        if flow is None:
            flow = self.flows[name] = Flow(name, moment, moment, subject=record.get("subject", ""))
        flow.lines.append(line)
        self._lines += 1
        flow.last = max(flow.last, moment)
        flow.highest = max(flow.highest, record.get("sequence", 0))

    def records(self, flow: str) -> list[Record]:
        """Return the lines of one flow, each once, in the order of the log."""
        found = self.flows.get(flow)
        lines = dict.fromkeys(found.lines) if found is not None else {}
        return [record for line in lines if (record := delivery_log.decode(line)) is not None]

    def nudges(self, agent: str, name: str) -> list[Record]:
        """Return the `nudged` lines of one copy."""
        lines = dict.fromkeys(self.told.get((agent, name), ()))
        return [record for line in lines if (record := delivery_log.decode(line)) is not None]

    def newest_flows(self, query: str) -> list[Flow]:
        """Return the flows whose name or first subject has every word of `query`, the one last changed first."""
        with self._lock:
            if self._newest[0] != self._lines:
                newest = sorted(self.flows.values(), key=lambda flow: (flow.last, flow.name), reverse=True)
                self._newest = (self._lines, newest)
            found = self._newest[1]
        words = query.casefold().split()
        if not words:
            return found
        return [flow for flow in found if all(word in f"{flow.name}\n{flow.subject}".casefold() for word in words)]


def searched(fields: dict[str, Any]) -> str:
    """Return what a search looks through, of a log line or of a message's fields."""
    return "\n".join(str(fields.get(key) or "") for key in _SEARCHED).casefold()
