"""The pages of docs/reference/ that are made from the code: they are what the code says."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
GENERATOR = REPOSITORY / "scripts" / "docs.d" / "generate.py"
sys.path.append(str(GENERATOR.parent))

import generate  # noqa: E402
from commands import described  # noqa: E402


def test_the_pages_are_what_the_code_says() -> None:
    """A change of a command, a key, a field, a reason or an exit code changes its page, or this fails."""
    checked = subprocess.run(
        [sys.executable, str(GENERATOR), "--check"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stderr


def test_drift_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """--check names the page that differs, and writes nothing; without it the page is written anew."""
    shutil.copytree(REPOSITORY / "docs" / "reference", tmp_path / "reference")
    monkeypatch.setattr(generate, "REFERENCE", tmp_path / "reference")
    stale = tmp_path / "reference" / "cli.md"
    right = stale.read_text("utf-8")
    wrong = right.replace("--dry-run", "--try")
    stale.write_text(wrong, "utf-8")
    assert generate.main(["--check"]) == 1
    told = capsys.readouterr().err
    assert "docs/reference/cli.md" in told and "message.md" not in told
    assert stale.read_text("utf-8") == wrong
    assert generate.main([]) == 0
    assert stale.read_text("utf-8") == right


def test_wrong_use() -> None:
    """An unknown argument writes nothing."""
    assert generate.main(["--chekc"]) == 64


def test_every_command_says_its_exit_codes_and_has_an_example() -> None:
    """So the reference can list them: nothing that does something is without."""
    for command in described():
        assert command.example, command.name
        assert command.group or 0 in dict(command.codes()), command.name


def test_the_architecture_names_what_is_there() -> None:
    """Every module, test and script that docs/architecture.md names exists."""
    page = (REPOSITORY / "docs" / "architecture.md").read_text("utf-8")
    named = set(re.findall(r"`((?:[\w-]+/)*[\w-]+\.py|tests/\w+/)`", page))
    places = (REPOSITORY, REPOSITORY / "src" / "postmaster", REPOSITORY / "tests")
    assert len(named) > 40
    assert [one for one in sorted(named) if not any((place / one).exists() for place in places)] == []
