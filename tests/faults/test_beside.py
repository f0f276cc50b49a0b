"""More mail than one batch: a process beside the router takes what is delivered out of the outbox.

Either of the two may be killed at any moment, or be refused anything: every letter is delivered once, and the outbox is
empty in the end.
"""

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Box, letter

from faults.test_real_faults import BUILDER, assert_each_once, copies, office, put, until_done  # noqa: F401  # a fixture
from faults.warm import Warm
from postmaster.office import Office
from postmaster.outbox import Source
from postmaster.removals import Remover

COUNT = 2_200  # three batches


def _strace(path: Path, inject: str) -> list[str]:
    return [
        "strace",
        "-f",
        "-qq",
        "-o",
        str(path),
        "-e",
        f"trace={inject.partition(':')[0]}",
        "-e",
        f"inject={inject}",
    ]


@pytest.fixture
def full(office: Callable[..., Box], warm: Warm) -> Box:  # noqa: F811
    """An office with mail for three batches."""
    assert warm, "strace is needed"
    box = office()
    put(box, COUNT)
    return box


@pytest.mark.parametrize("left", [2_199, 1_900, 1_300, 1_201, 700, 250])
def test_the_process_beside_is_killed(full: Box, tmp_path: Path, left: int) -> None:
    """The router does the rest of its work, and tells nobody."""
    with subprocess.Popen(
        [*_strace(tmp_path / "trace", "rename:delay_enter=200"), *full.command("route")],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=full.environment(),
    ) as running:
        assert running.stdout is not None
        deadline = time.monotonic() + 60
        while len(full.outbox()) > left and time.monotonic() < deadline:
            time.sleep(0.001)
        (router,) = _children(running.pid)
        killed = [os.kill(process, signal.SIGKILL) for process in _children(router)]
        said = running.stdout.read()
    assert running.returncode == 0 and len(killed) == 1
    assert [line for line in said.splitlines() if not line.startswith(b"strace:")] == []
    assert_each_once(full, COUNT)


def _children(process: int) -> list[int]:
    return [int(one) for one in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


@pytest.mark.parametrize("when", [900, 1_001, 1_002, 1_500, 2_002, 2_003, 2_100, 2_203])
def test_the_router_is_killed(full: Box, tmp_path: Path, when: int) -> None:
    """The next run waits until the process beside has ended, and ends the work of both."""
    trace = tmp_path / "trace"
    done = full.route(check=None, prefix=_strace(trace, f"renameat2:signal=KILL:when={when}"))
    assert done.returncode != 0 and "killed by SIGKILL" in trace.read_text()
    assert sum(map(len, copies(full).values())) >= when - 10 - when // 1000
    full.route("--now")
    until_done(full)
    assert_each_once(full, COUNT)


@pytest.mark.parametrize("call", ["openat", "write", "fsync", "syncfs", "unlink", "read", "close"])
def test_killed_now_and_then(full: Box, tmp_path: Path, call: str) -> None:
    """The router is killed at its later calls of many kinds, again and again, until a run gets through."""
    for number in (1, 7, 150, 1_300, 2_600, 5_000):
        full.route("--now", check=None, prefix=_strace(tmp_path / "trace", f"{call}:signal=KILL:when={number}"))
    full.route("--now")
    until_done(full)
    assert_each_once(full, COUNT)


@pytest.mark.parametrize("error", ["EIO", "EACCES", "EROFS"])
def test_letters_that_cannot_be_removed(full: Box, tmp_path: Path, error: str) -> None:
    """They are remembered, told of, and removed by the next run; none is delivered again."""
    done = full.route(check=75, prefix=_strace(tmp_path / "trace", f"rename:error={error}:when=1200..1210"))
    named = set(re.findall(r"outbox/(run-1-\d+\.md): delivered, but cannot be removed", done.stderr))
    assert len(named) == 11 and named == set(full.outbox())
    full.route()
    assert_each_once(full, COUNT)


@pytest.mark.parametrize("call", ["clone", "pipe2"])
def test_there_can_be_no_process_beside(full: Box, tmp_path: Path, call: str) -> None:
    """The router works alone then."""
    full.route(prefix=_strace(tmp_path / "trace", f"{call}:error=EAGAIN:when=1+"))
    assert_each_once(full, COUNT)


@pytest.mark.parametrize("moment", ["before it is asked", "before it answers", "never"])
def test_its_end_is_noticed(office: Callable[..., Box], moment: str) -> None:  # noqa: F811
    """A process beside that is gone when it is needed is done without."""
    box = office()
    put(box, 50)
    sources = [Source.of(name, os.stat(box.root / "outbox" / name)) for name in box.outbox()]
    with Remover(Office(str(box.root)), beside=True) as remover:
        assert remover._worker is not None
        process = remover._worker._process
        if moment == "before it is asked":
            os.kill(process, signal.SIGKILL)
            os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)
        elif moment == "before it answers":
            os.kill(process, signal.SIGSTOP)
        remover.begin(sources)
        if moment == "before it answers":
            os.kill(process, signal.SIGKILL)
        assert remover.end() == []
    assert box.outbox() == [] and not (box.root / "outbox" / ".postmaster-taken").exists()


def test_a_sender_replaces_a_letter_meanwhile(full: Box, tmp_path: Path) -> None:
    """A newer letter that comes under the name of one that is being removed stays, and is delivered by the next run."""
    slow = _strace(tmp_path / "trace", "rename:delay_enter=3000")  # microseconds
    with subprocess.Popen([*slow, *full.command("route")], env=full.environment()) as running:
        deadline = time.monotonic() + 60
        while len(full.log()) < 1_000:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        full.drop("new.tmp", letter(BUILDER, correlation_id="run-1", body="newer"))
        (full.root / "outbox" / "new.tmp").rename(full.root / "outbox" / "run-1-00990.md")
    assert running.returncode == 0
    assert full.outbox() == ["run-1-00990.md"]
    full.route()
    assert len(copies(full)) == COUNT + 1 and full.outbox() == [] and full.dead() == []
