"""Fixtures of the fault tests, and the count of what was injected (shown where pytest is given this directory)."""

import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from faults.sweep import Sweep
from faults.warm import CannotTrace, Warm


@pytest.fixture(scope="session")
def directory() -> Iterator[Path]:
    """A directory in memory if there is one: what counts is the order of the calls, not how long a disk takes."""
    memory = "/dev/shm"
    made = Path(tempfile.mkdtemp(prefix="postmaster-faults-", dir=memory if os.access(memory, os.W_OK) else None))
    yield made.resolve()
    shutil.rmtree(made)


@pytest.fixture(scope="session")
def warm(directory: Path) -> Iterator[Warm]:
    """A warm interpreter whose children strace can trace."""
    if shutil.which("strace") is None:
        pytest.skip("no strace: faults cannot be injected (apt-get install strace)")
    made = Warm(directory / "warm")
    try:
        made.run("--version", strace=("-e", "trace=write"))
    except CannotTrace as fault:
        made.close()
        pytest.skip(f"strace may not trace here: {fault}")
    yield made
    made.close()


@pytest.fixture(scope="session")
def sweep_of(warm: Warm, directory: Path) -> Callable[..., Sweep]:
    """A function that returns the sweep of a scene, made once."""
    made: dict[tuple[str, str | None], Sweep] = {}

    def get(kind: str, patch: str | None = None) -> Sweep:
        if (kind, patch) not in made:
            made[kind, patch] = Sweep(warm, directory / (patch or "right"), kind, patch)
        return made[kind, patch]

    return get


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Tell how many faults were injected."""
    injected: Counter[str] = Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            for key, count in getattr(report, "user_properties", ()):
                if getattr(report, "when", "") == "call" and isinstance(count, int):
                    injected[key] += count
    if injected:
        terminalreporter.write_line("injected: " + ", ".join(f"{count} {what}" for what, count in injected.items()))
