"""The pages of docs/reference/ that are made from the code: they are what the code says."""

import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
GENERATOR = REPOSITORY / "scripts" / "docs.d" / "generate.py"
sys.path.append(str(GENERATOR.parent))

from commands import described  # noqa: E402


def generate(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the generator as scripts/generate-docs does."""
    return subprocess.run(
        [sys.executable, str(GENERATOR), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_pages_are_what_the_code_says() -> None:
    """A change of a command, a key, a field, a reason or an exit code changes its page, or this fails."""
    checked = generate("--check")
    assert checked.returncode == 0, checked.stderr


def test_drift_is_told(tmp_path: Path) -> None:
    """--check names the page that differs, and writes nothing."""
    place = tmp_path / "repository"
    (place / "scripts" / "docs.d").mkdir(parents=True)
    (place / "docs" / "reference").mkdir(parents=True)
    for file in GENERATOR.parent.glob("*.py"):
        (place / "scripts" / "docs.d" / file.name).write_bytes(file.read_bytes())
    (place / "docs" / "operations.md").write_bytes((REPOSITORY / "docs" / "operations.md").read_bytes())
    for page in (REPOSITORY / "docs" / "reference").glob("*.md"):
        (place / "docs" / "reference" / page.name).write_bytes(page.read_bytes())
    stale = place / "docs" / "reference" / "cli.md"
    stale.write_text(stale.read_text("utf-8").replace("--dry-run", "--try"), "utf-8")
    before = stale.read_bytes()
    checked = subprocess.run(
        [sys.executable, str(place / "scripts" / "docs.d" / "generate.py"), "--check"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 1
    assert "docs/reference/cli.md" in checked.stderr and "message.md" not in checked.stderr
    assert stale.read_bytes() == before


def test_wrong_use() -> None:
    """An unknown argument writes nothing."""
    assert generate("--chekc").returncode == 64


def test_every_command_says_its_exit_codes_and_has_an_example() -> None:
    """So the reference can list them: nothing that does something is without."""
    for command in described():
        assert command.example, command.name
        assert command.group or 0 in dict(command.codes()), command.name
