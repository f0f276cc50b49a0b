"""What the parts of one audit share: what the log says, what was found, and what could not be checked."""

from collections import Counter
from typing import Any, Final

from postmaster import ledger
from postmaster.inspection import Inspected
from postmaster.inventory import File, Findings, Inventory
from postmaster.ledger import At, Copy
from postmaster.office import Office
from postmaster.outbox import Source
from postmaster.registry.compiled import OpenView

_COUNTED: Final = (
    *("letters", "copies", "unread", "read", "dead", "waiting"),
    *("elsewhere", "missing", "unlogged", "unchecked", "hashed"),
)
LOG: Final = "logs"  # the place of what cannot be checked for want of the whole log
RESTORE: Final = "restore it from a backup"


class Audit(Findings):
    """What an audit found. `counts` are those of the sum (`total`)."""

    def total(self) -> str:
        """Return the sum in words: what came in, and where it is."""
        counts = self.counts
        parts = [f"{counts[name]} {name}" for name in ("unread", "read", "dead", "waiting")]
        parts += [f"{counts['elsewhere']} elsewhere"] if counts["elsewhere"] else []
        there = sum(counts[name] for name in ("unread", "read", "dead", "waiting", "elsewhere"))
        balanced = counts["copies"] == there
        came = f"in: {counts['letters']} letters ({counts['copies']} copies)"
        text = f"{came} {'=' if balanced else 'are not the'} {' + '.join(parts)}"
        text += "" if balanced else f" ({there}) that are here"
        odd = [f"{counts[name]} {name}" for name in ("missing", "unlogged", "unchecked") if counts[name]]
        return text + (f": {', '.join(odd)}" if odd else "")


class Sheet:
    """The state of one audit.

    Attributes:
        unfinished: paths of a batch that the next run ends.
        expected: copies by mailbox and base name.
        edited: (log line, path, file) that do not agree.
        alone: files without a log line.
        done: letters that are delivered and logged, and in the outbox still.
        unchecked: how much could not be checked, by the place that cannot be read.
        without_log: of what only a log can have put here, numbered mail and dead letters, how much there is.
        held_back: names under which dead letters were to be in the outbox again.
    """

    def __init__(self, office: Office, open_view: OpenView) -> None:
        self.office: Final = office
        self.report: Final = Audit()
        self.counts: Final = self.report.counts
        self.counts.update(dict.fromkeys(_COUNTED, 0))
        self.ledger: Final = ledger.read(office)
        self.unfinished: Final[set[str]] = set()
        self.inventory: Final = Inventory(office, self.report, self.unfinished, open_view)
        self.expected: Final[dict[tuple[str, str], list[Copy]]] = {}
        self.edited: Final[list[tuple[At, str, Inspected]]] = []
        self.alone: list[File] = []
        self.done: Final[list[Source]] = []
        self.unchecked: Final[Counter[str]] = Counter()
        self.without_log: Final[Counter[str]] = Counter()
        self.held_back: Final[set[str]] = set()

    def leave_without_line(self, kind: str) -> None:
        """Count something of this kind that has no line, and may have had one in a log that is gone."""
        if self.ledger.gone:
            self.without_log[kind] += 1
            self.counts["unchecked"] += 1
        else:
            self.leave_unchecked(LOG)

    def leave_unchecked(self, place: str) -> None:
        """Count something that cannot be checked for want of this place."""
        self.unchecked[place] += 1
        self.counts["unchecked"] += 1

    def tell_unchecked(self) -> None:
        """Say how much could not be checked, and that the log is gone if it is."""
        for place, count in sorted((+self.unchecked).items()):
            self.report.note(f"{place}: {_number(count, 'message')} could therefore not be checked")
        messages, dead = self.without_log["messages"], self.without_log["dead letters"]
        if not messages and not dead:
            return
        are = "is" if messages == 1 else "are"
        there = f"{_number(messages, 'numbered message')} {are} in the inboxes" if messages else ""
        there = there or f"{_number(dead, 'dead letter')} {'is' if dead == 1 else 'are'} here"
        remedy = "restore it from a backup before anything is routed: numbers start again without it"
        place = self.office.shown(self.office.log)
        self.report.differs("log-gone", place, f"the delivery log is gone, though {there}", remedy)
        if dead and messages:
            self.report.note(f"dead-letter: {_number(dead, 'dead letter')} could not be checked without the log")


def named(seen: Inspected) -> dict[str, Any]:
    """Return what a file says of itself, to tell it by."""
    found = ledger.identity(seen.fields)
    return {**found, "sequence": seen.sequence} if seen.sequence is not None else found


def _number(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")
