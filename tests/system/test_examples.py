"""The stories in examples/: each one plays, and all that it expects holds."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
EXAMPLES = REPOSITORY / "examples"
POSTMASTER = Path(sys.executable).with_name("postmaster")
STORIES = sorted(path.parent.name for path in EXAMPLES.glob("*/run.sh"))
PANEL = EXAMPLES / "panel"
SCRIPTS = [
    *sorted((REPOSITORY / "scripts").glob("*")),
    *sorted(EXAMPLES.glob("*/run.sh")),
    EXAMPLES / "common.sh",
    PANEL / "panel-coordinator",
    PANEL / "panel-panelist",
    REPOSITORY / ".ci" / "run",
]
SHELL_SCRIPTS = [path for path in SCRIPTS if path.is_file() and b"sh\n" in path.read_bytes().split(b"\n", 1)[0] + b"\n"]


def test_there_are_stories() -> None:
    """The stories that the README names are there, each with its own page."""
    assert STORIES == ["council-vote", "failing-step", "panel", "plugin-author"]
    assert all((EXAMPLES / story / "README.md").is_file() for story in STORIES)


@pytest.mark.parametrize("story", STORIES)
def test_story(story: str, tmp_path: Path) -> None:
    """The story ends well, and cleans up after itself."""
    done = subprocess.run(
        ["bash", str(EXAMPLES / story / "run.sh")],
        env={"PATH": os.environ["PATH"], "POSTMASTER": str(POSTMASTER), "TMPDIR": str(tmp_path)},
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\nok: ") >= 4
    assert list(tmp_path.iterdir()) == []


def test_the_declarations_of_the_repository_lint_clean(tmp_path: Path) -> None:
    """registry.d/ passes `registry check --strict`, so that the map leads nowhere astray."""
    command = [str(POSTMASTER), "--root", str(tmp_path)]
    subprocess.run([*command, "init"], check=True, capture_output=True)
    for declaration in (REPOSITORY / "registry.d").glob("*.yml"):
        shutil.copy(declaration, tmp_path / "registry.d")
    checked = subprocess.run([*command, "registry", "check", "--strict"], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "0 findings, 0 notes" in checked.stdout


def test_the_panel_of_command_line_agents(tmp_path: Path) -> None:
    """agents.yml merges, and differs from panel.yml in nothing but how turns are taken; no argument is for a shell."""
    found = []
    for name in ("panel.yml", "agents.yml"):
        command = [str(POSTMASTER), "--root", str(tmp_path / name)]
        subprocess.run([*command, "init"], check=True, capture_output=True)
        shutil.copy(PANEL / name, tmp_path / name / "registry.d")
        subprocess.run([*command, "registry", "merge"], check=True, capture_output=True)
        subprocess.run([*command, "registry", "check", "--strict"], check=True, capture_output=True)
        shown = subprocess.run([*command, "registry", "show", "--json"], check=True, capture_output=True, text=True)
        found.append(json.loads(shown.stdout)["agents"])
    how = ("run", "turn_timeout", "max_attempts", "concurrency", "declared_in")
    scripts, agents = ([{k: v for k, v in one.items() if k not in how} for one in entries] for entries in found)
    assert scripts == agents
    programs = [one["run"][0] for one in found[1] if "run" in one]
    assert sorted(programs) == ["claude", "claude", "codex", "gemini"]


@pytest.mark.parametrize("script", SHELL_SCRIPTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_shell_script(script: Path) -> None:
    """Every shell script parses, and shellcheck, where there is one, has nothing to say."""
    subprocess.run(["bash", "-n", str(script)], check=True)
    if shutil.which("shellcheck"):
        found = subprocess.run(
            ["shellcheck", "--external-sources", str(script)],
            cwd=REPOSITORY,
            capture_output=True,
            text=True,
            check=False,
        )
        assert found.returncode == 0, found.stdout
