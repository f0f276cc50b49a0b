"""Running a command to its end, and what it took."""

import os
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field


class Failure(Exception):
    """A command that was to be measured did not do its work."""


@dataclass(slots=True)
class Cost:
    """What one process took: seconds, and its largest resident set in MiB.

    The system counts the peak from the parent's size on, so the parent must stay small.
    """

    wall: float
    user: float
    system: float
    peak: float


@dataclass(slots=True)
class Runs:
    """The costs of one contender, a round each."""

    contender: str
    letters: int
    costs: list[Cost] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        """The median of the wall-clock times."""
        return statistics.median(cost.wall for cost in self.costs)

    @property
    def rate(self) -> float:
        """Letters per second, by the median time."""
        return self.letters / self.seconds

    @property
    def peak(self) -> float:
        """The largest peak of memory, in MiB."""
        return max(cost.peak for cost in self.costs)

    def times(self, other: "Runs") -> float:
        """Return how many times the time of `other` this took, a letter: the median of the rounds' ratios."""
        mine, theirs = self.letters or 1, other.letters or 1
        pairs = zip(self.costs, other.costs, strict=True)
        return statistics.median((one.wall / mine) / (another.wall / theirs) for one, another in pairs)


def measure(arguments: Sequence[str], environment: dict[str, str], errors: str) -> Cost:
    """Run a command with no input, its output thrown away and its standard error in the file `errors`.

    Raises:
        Failure: it did not exit with 0.
    """
    null = (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    output = (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)
    error = (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    begun = time.perf_counter()
    process = os.posix_spawn(arguments[0], arguments, environment, file_actions=[null, output, error])
    _, status, usage = os.wait4(process, 0)
    wall = time.perf_counter() - begun
    if status != 0:
        with open(errors, encoding="utf-8", errors="replace") as stream:
            said = stream.read()[-2000:]
        raise Failure(f"{' '.join(arguments)}: exit {os.waitstatus_to_exitcode(status)}\n{said}")
    return Cost(wall, usage.ru_utime, usage.ru_stime, usage.ru_maxrss / 1024)
