"""What a pass of the router tells of itself."""

from collections import Counter
from dataclasses import dataclass, field

from postmaster.outbox import Waiting


@dataclass(slots=True)
class Summary:
    """What a pass did.

    Attributes:
        busy: another router was at work, and nothing was done.
        actions: how many log lines of each action (for a dry run: would be written).
        deferred: how many copies wait in the outbox, told of in the log now or before.
        waiting: names that are left alone for now, with why.
        problems: what a person should look at, in words.
    """

    busy: bool = False
    actions: Counter[str] = field(default_factory=Counter)
    deferred: int = 0
    waiting: list[Waiting] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
