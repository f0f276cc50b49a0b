"""scripts/demo: the first screen that a newcomer sees."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
DEMO = REPOSITORY / "scripts" / "demo"
POSTMASTER = Path(sys.executable).with_name("postmaster")


def demo(*args: str | Path, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run the demo with the installed command, from another directory, without HOME or a terminal."""
    environment = {"PATH": os.environ["PATH"], "POSTMASTER": str(POSTMASTER), "PYTHONDONTWRITEBYTECODE": "1"} | changes
    return subprocess.run(
        ["bash", str(DEMO), *map(str, args)],
        env=environment,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A directory in which the demo has run, and what it showed."""
    root = tmp_path_factory.mktemp("demo") / "an office"
    done = demo(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    return root, done.stdout


def test_it_shows_the_fate_of_every_letter(office: tuple[Path, str]) -> None:
    """Each letter of examples/mail/ is named with where it went or why not."""
    root, shown = office
    for letter in (REPOSITORY / "examples" / "mail").iterdir():
        assert len(re.findall(rf"^ +(?:delivered|rejected|dead-letter) +{re.escape(letter.name)}", shown, re.M)) >= 1
    for reason in (
        "unknown-recipient",
        "duplicate",
        "sender-not-accepted",
        "type-not-accepted",
        "malformed-header",
    ):
        assert f"[{reason}]" in shown
    assert "did you mean orchestrator@council.internal?" in shown
    assert f"{root}: 3 dead-letter, 8 delivered, 2 rejected" in shown


def test_it_leaves_what_it_shows(office: tuple[Path, str]) -> None:
    """The office it leaves holds what the screen said, one message of it acknowledged."""
    root, shown = office
    assert not [name for name in os.listdir(root / "outbox") if not name.startswith(".")]
    assert len(list(root.glob("dead-letter/*.reason.yml"))) == 5
    read = list(root.glob("inboxes/*/read/*.md"))
    assert len(read) == 1
    assert str(read[0].relative_to(root)) in shown
    architect = REPOSITORY / "examples" / "mail" / "03-vote-architect.md"
    delivered = next(root.glob("inboxes/council.orchestrator/unread/*-000004-*.md"))
    assert delivered.read_bytes().endswith(architect.read_bytes().split(b"\r\n---\r\n", 1)[1])


def test_it_keeps_out_of_a_directory_in_use(office: tuple[Path, str]) -> None:
    """A second run in the same place refuses, says why, and touches nothing."""
    root, _ = office
    before = sorted(root.rglob("*"))
    again = demo(root)
    assert again.returncode == 73
    assert "not empty" in again.stderr
    assert sorted(root.rglob("*")) == before


def test_without_a_root_it_makes_a_temporary_one(tmp_path: Path) -> None:
    """The office is then a new directory under TMPDIR, and nothing else is written there."""
    done = demo(TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    (root,) = tmp_path.iterdir()
    assert str(root) in done.stdout


@pytest.mark.parametrize("args", [("--help",), ("one", "two")])
def test_wrong_arguments_are_told(args: tuple[str, ...]) -> None:
    """It says how it is called, and exits 64."""
    done = demo(*args)
    assert done.returncode == 64
    assert "usage" in done.stderr
