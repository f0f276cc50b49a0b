"""The pages that one follows step by step: every command runs as printed, and shows what the page says it shows."""

import re
import shutil
from pathlib import Path

import pytest
from test_readme_tour import Step, missing_line, play, steps_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("howto/cron-and-systemd.md", "howto/stalled-pipeline.md", "tutorials/declaration.md")


def follow(steps: list[Step], home: Path) -> None:
    """Play the steps, and hold what they say against what the page shows."""
    assert len(steps) > 3
    for step, output, failed in play(steps, home):
        assert failed == [], output
        missing = missing_line(step.expected, output)
        assert missing is None, f"the page shows {missing!r}, but the commands said:\n{output}"


@pytest.mark.parametrize("page", PAGES)
def test_the_page(page: str, tmp_path: Path) -> None:
    """Every command of the page succeeds, and the lines that it prints are shown, in that order."""
    follow(steps_of((DOCS / page).read_text("utf-8")), tmp_path)


@pytest.mark.skipif(not (shutil.which("git") and shutil.which("ssh-keygen")), reason="needs git and ssh-keygen")
def test_two_machines(tmp_path: Path) -> None:
    """The page with two machines: each has a home of its own here, and a path in place of ssh."""
    page = (DOCS / "howto/two-machines.md").read_text("utf-8")
    steps = []
    for step in steps_of(page.replace("post@desk.example.org:mail.git", str(tmp_path / "desk" / "mail.git"))):
        machine, commands = re.fullmatch(r"# on (desk|laptop)\n(.*)", step.commands, re.S).groups()
        home = tmp_path / machine
        steps.append(
            Step(f"export HOME={home} POSTMASTER_ROOT={home}/office\nmkdir -p $HOME; cd\n{commands}", step.expected)
        )
    by_hand = next(number for number, step in enumerate(steps) if "desk-key.pub" in step.commands)
    steps.insert(by_hand, Step(f"cp {tmp_path}/desk/desk-key.pub {tmp_path}/laptop", ""))
    follow([*steps, Step(f"cd {tmp_path}; rm -r desk laptop", "")], tmp_path)
