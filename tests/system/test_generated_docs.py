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


PAGES = (*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md"), *REPOSITORY.glob("examples/**/*.md"))


def wrong_calls(text: str) -> list[str]:
    """Return the calls of `postmaster` in a text that name a command, or an option of it, that there is not."""
    known = {command.name: command for command in described()}
    calls = re.findall(
        r"(?:^|[`(|;&$] *|-- |\bor )postmaster((?: +--root [^ `]+)?(?: +[^`|;&#<>\n]*)?)",
        text.replace("\\\n", " "),
        re.M,
    )
    wrong = []
    for call in calls:
        words = re.sub(r"--root +\S+", "", call).split()
        if not words or not re.fullmatch(r"[a-z][a-z-]+", words[0]):
            continue  # `postmaster` alone, or COMMAND
        name = f"postmaster {words[0]}"
        if len(words) > 1 and f"{name} {words[1]}" in known:
            name += f" {words[1]}"
        if name not in known:
            wrong.append(call)
            continue
        options = {one for names, _ in known[name].options for one in re.findall(r"--?[a-z][a-z-]*", names)}
        used = {word.split("=")[0].strip("[],.()'") for word in words if re.match(r"\[?--[a-z]", word)}
        if not known[name].group and used - options - {"--help"}:
            wrong.append(call)
    return wrong


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_commands_on_pages_exist(page: Path) -> None:
    """Every call of `postmaster` that a page shows names a command that there is, and options that it has."""
    assert wrong_calls(page.read_text("utf-8")) == []


def test_a_wrong_call_is_found() -> None:
    """An unknown command or option is found, in a block, in a span, over two lines and after --root; others are not."""
    text = "see `postmaster rout --now`\npostmaster --root /x send --to a \\\n  --form b\n"
    text += "`postmaster registry merge --dryrun`\n"
    assert len(wrong_calls(text)) == 3
    assert wrong_calls("`postmaster send --to a --body x`\npostmaster --root /x route -v\n`postmaster COMMAND`\n") == []


def test_a_gap_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """A reason that the generator knows no causes of is named, in one line, and nothing is written."""
    monkeypatch.delitem(generate.outcomes.CAUSES, "duplicate")
    assert generate.main([]) == 1
    assert capsys.readouterr().err.endswith("differ: duplicate\n")
