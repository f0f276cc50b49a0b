"""Kill the router, or let it meet an error, at every one of its system calls (DESIGN section 6, guarantees 1 and 2).

An ordinary test run takes a sample, the same every time; `scripts/crash-sweep` (POSTMASTER_SWEEP=full) takes all.
"""

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from faults.sweep import (
    BESIDE,
    CHANGING,
    ERRORS,
    FALLIBLE,
    FULL,
    LOOKING,
    Point,
    Sweep,
    collect,
    points,
    sample,
)
from faults.warm import Cold, Warm

_CHUNKS = 24 if FULL else 2
_chunks = pytest.mark.parametrize("chunk", range(_CHUNKS))
# The smallest scene begins with nothing in `.postmaster/` and writes the history index, which the others need not.
_SCENES = {"few": "index_every_line", "mixed": None, "many": None}
_scenes = pytest.mark.parametrize("kind", _SCENES)

Get = Callable[..., Sweep]
Record = Callable[[str, object], None]


@_scenes
def test_no_call_is_overlooked(sweep_of: Get, kind: str) -> None:
    """Every call of a run that takes a name or a descriptor is one that the sweep knows."""
    sweep = sweep_of(kind, _SCENES[kind])
    sweep.build()
    made = {line.partition("(")[0] for line in sweep.run("-e", "trace=%file,%desc").trace.splitlines() if "(" in line}
    assert {name for name in made if name.isidentifier()} <= {*CHANGING, *LOOKING, *BESIDE}


@_chunks
@_scenes
def test_killed_anywhere(sweep_of: Get, record_property: Record, kind: str, chunk: int) -> None:
    """Killed at any call, then run again: each message once in one place, numbered, logged once; no litter."""
    sweep = sweep_of(kind, _SCENES[kind])
    sweep.build()
    chosen = sample(sweep.points(CHANGING), 45)[chunk::_CHUNKS]
    record_property("kills", len(chosen))
    collect(sweep.kill, chosen)


@_chunks
@_scenes
def test_an_error_anywhere(sweep_of: Get, record_property: Record, kind: str, chunk: int) -> None:
    """Any error at any call loses nothing, is told of, and is mended by the next run."""
    sweep = sweep_of(kind, _SCENES[kind])
    sweep.build()
    cases = [(point, error) for point in sweep.points(FALLIBLE) for error in ERRORS]
    chosen = sample(cases, 56)[chunk::_CHUNKS]
    record_property("errors", len(chosen))
    collect(lambda case: sweep.fail(*case), chosen)


@_chunks
def test_the_program_as_it_is_installed(directory: Path, warm: Warm, record_property: Record, chunk: int) -> None:
    """The same with an interpreter that starts anew for each run, so that what is imported late can fail as well."""
    sweep = Sweep(Cold(directory / "cold"), directory / "started", "mixed")
    sweep.build()
    found = sweep.points(FALLIBLE)
    kills = [point for point in found if point.name in CHANGING]
    chosen = random.Random(chunk).sample(kills, 20 if FULL else 6)
    record_property("kills", len(chosen))
    collect(sweep.kill, chosen)
    imports = [point for point in found if point.name in ("openat", "read") and str(directory) not in point.text]
    cases = [(point, random.Random(chunk).choice(ERRORS)) for point in imports]
    chosen_cases = random.Random(chunk).sample(cases, 20 if FULL else 6)
    record_property("errors", len(chosen_cases))
    collect(lambda case: sweep.fail(*case), chosen_cases)


def _marks_a_state(point: Point) -> bool:
    """Tell whether a call changes what is on the disk: only between such calls does a kill leave another state."""
    return point.name not in ("close", "fcntl", "flock") and (point.name != "openat" or "O_CREAT" in point.text)


@_chunks
def test_killed_while_recovering(sweep_of: Get, record_property: Record, chunk: int) -> None:
    """Killed, and killed again at any call of the recovery: the third run ends as if nothing had been."""
    sweep = sweep_of("few")
    sweep.build()
    firsts = sample([point for point in sweep.points(CHANGING) if _marks_a_state(point)], 12)[chunk::_CHUNKS]
    cases = []
    for first in firsts:
        cases += [(first, second) for second in sample(sweep.recovery_points(first), 5)]
    record_property("double kills", len(cases))
    collect(lambda case: sweep.kill_twice(*case), cases)


@_chunks
def test_killed_after_an_error(sweep_of: Get, record_property: Record, chunk: int) -> None:
    """An error, and later in the same run a kill: what the error changed must be as recoverable as the rest."""
    sweep = sweep_of("mixed")
    sweep.build()
    firsts = [point for point in sweep.points(CHANGING) if _marks_a_state(point)]
    chooser = random.Random(chunk)
    cases = []
    for first in sample(firsts, 16)[chunk::_CHUNKS]:
        error = chooser.choice(ERRORS)
        later = [point for point in sweep.points_after_error(first, error) if _marks_a_state(point)]
        cases += [(first, error, second) for second in chooser.sample(later, min(len(later), 20 if FULL else 4))]
    record_property("errors with a kill", len(cases))
    collect(lambda case: sweep.fail_and_kill(*case), cases)


@pytest.mark.parametrize("wrong", ["clear_before_publishing", "drop_the_journal_early", "forget_the_journal"])
def test_the_sweep_can_fail(sweep_of: Get, wrong: str) -> None:
    """A router that does the same in a wrong order looks right, and is found out when it is killed."""
    sweep = sweep_of("few", wrong)
    sweep.build()
    telling = [point for point in sweep.points(CHANGING) if point.name in ("renameat2", "unlink", "write", "fsync")]
    with pytest.raises(AssertionError, match=r"\d+ of \d+ failed"):
        collect(sweep.kill, telling)


def test_points_are_counted_as_strace_counts() -> None:
    """The n-th call of a name in a trace is the one at which `when=n` strikes."""
    trace = '--- stopped by SIGSTOP ---\nopenat(1) = 3\nclose(3) = 0\nopenat(2) = 3\nread(3, "close(")\n'
    assert [str(point) for point in points(trace, ["openat", "close"])] == [
        "openat number 1: openat(1) = 3",
        "close number 1: close(3) = 0",
        "openat number 2: openat(2) = 3",
    ]
