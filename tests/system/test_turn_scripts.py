"""The scripts that put turns to the proof, on tiny sizes. How fast anything is is not judged here."""

import json
import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[2] / "scripts"


def script(name: str, *args: str) -> str:
    """Run a script; return what it printed."""
    command = [sys.executable, str(SCRIPTS / name), *args]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_many_turns_under_failures() -> None:
    """All read or dead, in order, no instance in two turns at once, with two wakes at a time."""
    said = script("stress-turns", "--instances", "5", "--messages", "6", "--jobs", "4", "--seed", "3")
    assert said.startswith("30 messages to 5 instances") and "in order" in said


def test_what_a_turn_costs() -> None:
    found = json.loads(script("bench-turn", "--rounds", "2", "--json"))
    assert found["turn"] > 0 and found["wake"] > 0 and found["target"] == 3
