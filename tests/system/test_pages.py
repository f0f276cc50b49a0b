"""The pages for people: their links lead somewhere, and the tests that they name are there."""

import re
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").glob("*.md"),
        *(REPOSITORY / "examples").glob("*/README.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links(page: Path) -> None:
    """Every relative link of the page leads to a file or directory of this repository."""
    text = re.sub(r"^(```|~~~).*?^\1|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.M | re.S)
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []


def test_security_names_tests_that_are_there() -> None:
    """Every promise of SECURITY.md is shown by a test, and each test that it names exists."""
    page = (REPOSITORY / "SECURITY.md").read_text("utf-8")
    named = re.findall(r"`(tests/[a-z_/]+(?:\.py)?)(?:::(test_\w+))?/?`", page)
    assert len(named) > 40
    for file, test in named:
        path = REPOSITORY / file
        assert path.exists(), file
        assert not test or f"\ndef {test}(" in path.read_text("utf-8"), f"{file}::{test}"
    for promise in re.findall(r"^\| (?!is guarded|---)(.*) \|$", page, re.M):
        assert "`tests/" in promise.split(" | ")[1], promise


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_lines_for_cron_and_systemd_are_whole(page: Path) -> None:
    """A line of a crontab, which knows no continuation, and an ExecStart of a unit are never broken in two."""
    lines = page.read_text("utf-8").splitlines()
    for line, after in zip(lines, [*lines[1:], ""], strict=True):
        if re.match(r" *([*0-9/,-]+ ){5}\S|ExecStart=", line):
            assert not re.search(r"(\\| --(output|root|format|every)|[|&<>])$", line), line
            assert len(after) - len(after.lstrip()) <= len(line) - len(line.lstrip()), after


def test_pre_commit_runs_the_checks_of_the_tests() -> None:
    """The hooks are the quick checks of scripts/test, by the tools of .venv."""
    hooks = yaml.safe_load((REPOSITORY / ".pre-commit-config.yaml").read_text("utf-8"))["repos"][0]["hooks"]
    checks = re.findall(r"^check (.*)$", (REPOSITORY / "scripts" / "test").read_text("utf-8"), re.M)
    quick = [check for check in checks if not check.startswith("pytest")]
    assert [hook["entry"].removeprefix(".venv/bin/") for hook in hooks][: len(quick)] == quick
    assert all(hook["entry"].startswith(".venv/bin/") and hook["language"] == "system" for hook in hooks)
