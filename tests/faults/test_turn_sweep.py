"""Kill the runner of a turn, its command, or both, at every system call: nothing is lost, nothing is said twice.

An ordinary test run takes a sample, the same every time; `scripts/crash-sweep` (POSTMASTER_SWEEP=full) takes all.
"""

import os
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Box

from faults.sweep import CHANGING, FULL, LOOKING, Point, collect, points, sample

_CALLS = (*CHANGING, *LOOKING, "execve", "clone", "clone3", "fork", "vfork", "wait4", "waitid", "poll", "setsid")
_BODIES = ("one", "two")
# The command says something, and sends something else on the way; `cat` is traced where the command is to be killed.
_SCRIPT = """\
read -r thread; read -r from; read -r line; text=$({cat})
printf -- '---\\nto: human@lab.internal\\nfrom: worker@lab.internal\\ntype: job.done\\nsubject: s\\n\
correlation_id: run-1\\n---\\nsent %s' "$text" >"$POSTMASTER_STAGE/.x" && mv "$POSTMASTER_STAGE/.x" \
"$POSTMASTER_STAGE/$POSTMASTER_TURN.md"
echo "said $text"
"""
_AGENTS = """\
plugin: lab
agents:
  - id: lab.worker
    address: worker@lab.internal
    run: [/bin/sh, {script}]
    final_message: default_thread
    max_attempts: 9
    accepts:
      - {{type: job.run, accepts_from: [human@lab.internal]}}
    emits:
      - {{type: job.done, to: human@lab.internal}}
  - id: lab.human
    address: human@lab.internal
    accepts:
      - {{type: job.done, accepts_from: [worker@lab.internal]}}
"""


class Turns:
    """An office with two messages that wait for a turn, made once and copied back for every case."""

    def __init__(self, world: Path) -> None:
        self.box = Box(world)
        self.script = world / "worker.sh"
        self.script.write_text(_SCRIPT.format(cat="cat"))
        self.box.init()
        self.box.declare("lab", _AGENTS.format(script=self.script))
        self.box.merge()
        for number, body in enumerate(_BODIES):
            text = f"---\nto: worker@lab.internal\nfrom: human@lab.internal\ntype: job.run\nsubject: {body}\n"
            text += f"correlation_id: run-1\nsent_at: 2026-03-04T10:0{number}:00Z\n---\n{body}"
            self.box.drop(f"{number}.md", text)
        self.box.route()
        self.kept = world / "kept"
        shutil.copytree(self.box.root, self.kept, symlinks=True)

    def reset(self) -> None:
        shutil.rmtree(self.box.root)
        shutil.copytree(self.kept, self.box.root, symlinks=True)

    def traced(self, *options: str) -> str:
        """Take a turn under strace; return the trace."""
        trace = self.box.world / "trace"
        trace.unlink(missing_ok=True)
        command = ["strace", "-q", "-o", str(trace), *options, *self.box.command("turn", "lab.worker")]
        environment = self.box.environment()
        folder = self.box.world / "cwd"
        subprocess.run(command, capture_output=True, timeout=60, check=False, env=environment, cwd=folder)
        return trace.read_text(errors="replace")

    def points(self) -> list[Point]:
        """Return the calls of the runner from where it touches the office on."""
        self.reset()
        found = points(self.traced("-e", "trace=" + ",".join(f"?{name}" for name in _CALLS)), _CALLS)
        # Before it looks for its lock it has only loaded its modules and looked who is meant.
        first = next(place for place, one in enumerate(found) if f"{self.box.root}/turns/" in one.text)
        return found[first:]

    def check(self) -> None:
        """Let others go on; then everything must have been done once."""
        box = self.box
        for _ in range(8):
            done = box.run("turn", "lab.worker")
            assert done.returncode in (0, 75), done.stderr
            if "no unread mail" in done.stdout:
                break
        assert "no unread mail" in done.stdout, (done.stdout, done.stderr)
        box.route()
        assert [mail.body.decode() for mail in box.read("lab.worker")] == list(_BODIES)
        assert box.unread("lab.worker") == [] and box.dead() == []
        got = Counter(mail.body.decode().strip() for mail in box.unread("lab.human"))
        assert got == Counter(f"{how} {body}" for body in _BODIES for how in ("sent", "said")), got
        lines = Counter((line["action"], line["id"]) for line in box.log() if line.get("agent") == "lab.worker")
        for mail in box.read("lab.worker"):
            for action in ("read", "turn-done"):
                assert lines[action, mail.fields["id"]] == 1, (action, lines)
            ends = lines["turn-done", mail.fields["id"]] + lines["turn-failed", mail.fields["id"]]
            assert lines["turn-started", mail.fields["id"]] == ends, lines
        verified = box.run("verify")
        assert verified.returncode == 0, verified.stdout + verified.stderr
        home = box.root / "turns" / "lab.worker"
        left = {"lock", "running", "state.json", "origin.json", "stdin", "stdout", "stderr", "disk"}
        assert set(os.listdir(home)) <= left, os.listdir(home)

    def kill(self, point: Point, *options: str) -> None:
        """Kill at one call; `-f` lets it strike in every process that comes so far."""
        self.reset()
        self.traced(*options, "-e", f"inject={point.name}:signal=KILL:when={point.number}")
        self.check()

    def kill_command(self, name: str, number: int) -> None:
        """Kill the command, in its first turn, at one of its calls."""
        self.reset()
        inject = f"inject={name}:signal=KILL:when={number}"
        cat = f"if [ $POSTMASTER_ATTEMPT = 1 ]; then exec strace -q -o /dev/null -e {inject}"
        self.script.write_text("set -e\n" + _SCRIPT.format(cat=f"{cat} cat; else exec cat; fi"))
        try:
            self.check()
        finally:
            self.script.write_text(_SCRIPT.format(cat="cat"))


@pytest.fixture(scope="module")
def turns(directory: Path, warm: object) -> Turns:
    """The office of these tests (`warm`: strace works here)."""
    return Turns(directory / f"turns-{os.getpid()}")


Record = Callable[[str, object], None]


def _chosen(found: list[Point], number: int) -> list[Point]:
    return found if FULL else sample(found, number)


def test_the_runner_is_killed(turns: Turns, record_property: Record) -> None:
    """Its command goes with it."""
    chosen = _chosen(turns.points(), 8)
    record_property("kills of a runner", len(chosen))
    collect(turns.kill, chosen)


def test_both_are_killed(turns: Turns, record_property: Record) -> None:
    """In every process that is reached by the number of the call."""
    chosen = _chosen(turns.points(), 4)
    record_property("kills of both", len(chosen))
    collect(lambda point: turns.kill(point, "-f"), chosen)


def test_the_command_is_killed(turns: Turns, record_property: Record) -> None:
    """At every call of the program that reads the message."""
    turns.reset()
    command = ["strace", "-q", "-o", "/dev/stderr", "cat"]
    trace = subprocess.run(command, input="one", capture_output=True, text=True, timeout=60, check=True).stderr
    names = sorted({line.partition("(")[0] for line in trace.splitlines() if "(" in line} - {"exit_group", "execve"})
    found = points(trace, [name for name in names if name.isidentifier()])
    chosen = found if FULL else sample(found, 3)
    record_property("kills of a command", len(chosen))
    collect(lambda point: turns.kill_command(point.name, point.number), chosen)
