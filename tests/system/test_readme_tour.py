"""The README's five-minute tour: every command runs as printed, and shows what the page says it shows."""

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
README = REPOSITORY / "README.md"
HEADING = "## Five-minute tour"
COMMANDS = Path(sys.executable).parent


@dataclass(frozen=True)
class Step:
    """One block of commands, and the output that the page prints after it (empty: none)."""

    commands: str
    expected: str


def tour() -> list[Step]:
    """Return the steps of the tour."""
    return steps_of(README.read_text("utf-8").split(HEADING + "\n", 1)[1].split("\n## ", 1)[0])


def steps_of(section: str) -> list[Step]:
    """Return the steps of a text: each ```sh block, with the ```text block that follows it, if one does."""
    blocks = re.findall(r"^```(sh|text)\n(.*?)^```$", section, re.M | re.S)
    steps: list[Step] = []
    for kind, text in blocks:
        if kind == "sh":
            steps.append(Step(text, ""))
        else:
            assert steps and not steps[-1].expected, "an output without its commands"
            steps[-1] = Step(steps[-1].commands, text)
    return steps


def missing_line(expected: str, shown: str) -> str | None:
    """Return the first line of `expected` that `shown` does not hold, in order; ``...`` stands for anything."""
    lines = iter(shown.splitlines())
    for wanted in expected.splitlines():
        pattern = ".*".join(re.escape(part.strip(" ")) for part in wanted.split("..."))
        if not any(re.fullmatch(rf" *{pattern} *", re.sub(r" *$", "", line)) for line in lines):
            return wanted
    return None


def play(steps: list[Step], home: Path, commands: Path = COMMANDS) -> list[tuple[Step, str, list[str]]]:
    """Play the whole tour in one shell: for each step its output, and the commands of it that failed.

    Args:
        commands: the directory with the `postmaster` to play it with.
    """
    script = ['trap \'printf "\\n<<failed %s>>\\n" "$BASH_COMMAND"\' ERR']
    for number, step in enumerate(steps):
        script += [f"printf '\\n<<step {number}>>\\n'", step.commands]
    done = subprocess.run(
        ["bash", "-c", "\n".join(script)],
        env={"PATH": f"{commands}:{os.environ['PATH']}", "HOME": str(home), "LC_ALL": "C.UTF-8"},
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert list(home.iterdir()) == [], "the tour leaves something behind"
    outputs = re.split(r"\n<<step \d+>>\n", done.stdout)[1:]
    assert len(outputs) == len(steps), done.stdout
    return [
        (step, output, re.findall(r"<<failed (.*?)>>", output, re.S))
        for step, output in zip(steps, outputs, strict=True)
    ]


def test_the_tour_has_commands() -> None:
    """The page has a tour, it covers the main commands, and nothing in it is skipped by this test."""
    steps = tour()
    commands = "".join(step.commands for step in steps)
    for command in ("init", "registry merge", "send", "route", "inbox", "read", "ack", "reply", "log", "dead-letter"):
        assert f"postmaster {command}" in commands
    section = README.read_text("utf-8").split(HEADING + "\n", 1)[1].split("\n## ", 1)[0]
    assert section.count("```") == 2 * sum(1 + bool(step.expected) for step in steps)


def test_the_tour(tmp_path: Path) -> None:
    """Every command of the tour succeeds, and the lines that the page prints are shown, in that order."""
    for step, output, failed in play(tour(), tmp_path):
        assert failed == [], output
        missing = missing_line(step.expected, output)
        assert missing is None, f"the page shows {missing!r}, but the commands said:\n{output}"


def test_the_reader_of_outputs() -> None:
    """A line that is not shown, or not in order, is found; dots stand for anything."""
    assert missing_line("a ... c\nd\n", "x\na b c\ny\nd\n") is None
    assert missing_line("d\na\n", "a\nd\n") == "a"
    assert missing_line("a\n", "ab\n") == "a"
