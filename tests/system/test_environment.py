"""scripts/environment.sh: finding a Python, and making .venv only when it is needed."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
OLD = "#!/bin/sh\nexit 1\n"  # what a Python before 3.11 answers to the question for its version


def script(path: Path, text: str) -> Path:
    """Write an executable script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that holds only what environment.sh looks at, under a path with a space."""
    root = tmp_path / "a checkout"
    (root / "scripts").mkdir(parents=True)
    shutil.copy(REPOSITORY / "scripts" / "environment.sh", root / "scripts")
    shutil.copy(REPOSITORY / "pyproject.toml", root)
    return root


def bash(checkout: Path, command: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command with environment.sh sourced, and nothing but `environment` and a plain PATH."""
    return subprocess.run(
        ["bash", "-c", f'set -euo pipefail; . "$0"; {command}', str(checkout / "scripts" / "environment.sh")],
        env={"PATH": "/usr/bin:/bin"} | environment,
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_newer_python_is_found_beside_an_old_one(checkout: Path, tmp_path: Path) -> None:
    """`python3` is too old: python3.13 in the same PATH is taken."""
    script(tmp_path / "bin" / "python3", OLD)
    for minor in (11, 12):
        script(tmp_path / "bin" / f"python3.{minor}", OLD)
    newer = script(tmp_path / "bin" / "python3.13", f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    found = bash(checkout, "find_python", PATH=f"{tmp_path / 'bin'}:/usr/bin:/bin")
    assert (found.returncode, found.stdout) == (0, f"{newer}\n")


def test_without_a_python_it_says_what_to_do(checkout: Path, tmp_path: Path) -> None:
    """No Python will do: one message with the version and the package to install, and no .venv."""
    old = script(tmp_path / "python3.8", OLD)
    done = bash(checkout, "make_environment", PYTHON=str(old))
    assert done.returncode == 69
    assert "Python 3.11 or newer" in done.stderr
    assert "python3.11-venv" in done.stderr
    assert not (checkout / ".venv").exists()


def test_a_current_environment_is_left_alone(checkout: Path, tmp_path: Path) -> None:
    """Run again, nothing is installed (so that it works offline), until pyproject.toml changes."""
    calls = tmp_path / "calls"
    python = f'#!/bin/sh\ncase "$*" in *"pip install"*) echo "$*" >> {calls} ;; *) exec {sys.executable} "$@" ;; esac\n'
    script(checkout / ".venv" / "bin" / "python", python)
    script(checkout / ".venv" / "bin" / "postmaster", "#!/bin/sh\n")
    (checkout / ".venv" / "pyvenv.cfg").touch()
    for _ in range(2):
        done = bash(checkout, "make_environment")
        assert done.returncode == 0, done.stderr
        assert calls.read_text().splitlines() == [f"-m pip install -qq --editable {checkout}"]
    with (checkout / "pyproject.toml").open("a") as stream:
        stream.write("\n# changed\n")
    assert bash(checkout, "make_environment").returncode == 0
    assert len(calls.read_text().splitlines()) == 2


def test_pythons_that_are_not_there(checkout: Path) -> None:
    """scripts/test-pythons says which versions it has not found; with none at all it has not passed."""
    shutil.copy(REPOSITORY / "scripts" / "test-pythons", checkout / "scripts")
    done = subprocess.run(
        [checkout / "scripts" / "test-pythons"],
        env={"PATH": "/usr/bin:/bin", "PYTHONS": "/bin/false /nowhere/python3.12"},
        cwd="/",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert done.stdout.endswith("passed: none; failed: none; not on this machine: 3.11 3.12 3.13 3.14\n"), done.stderr
