"""scripts/postmaster.sh: finds the command, keeps what went wrong, passes the exit code; under `env -i` too."""

import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest
from support import Box, letter

SCRIPT = Path(__file__).parents[2] / "scripts" / "postmaster.sh"
LINE = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ exit (\d+): (.*)")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    """The wrapper in a place of its own, away from any checkout."""
    path = tmp_path / "opt" / "scripts" / "postmaster.sh"
    path.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, path)
    return path


def command(path: Path, box: Box) -> Path:
    """Write a program that runs postmaster as the tests do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    python, *rest = box.command()[:3]
    path.write_text(f'#!/bin/sh\nexec "{python}" {" ".join(rest)} "$@"\n')
    path.chmod(0o755)
    return path


def run(script: Path, *args: str, env: Mapping[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the wrapper with nothing but `env`, as cron does."""
    pairs = [f"{name}={value}" for name, value in env.items()]
    return subprocess.run(
        ["/usr/bin/env", "-i", *pairs, "/bin/sh", str(script), *args],
        capture_output=True,
        encoding="utf-8",
        cwd=cwd,
        timeout=60,
        check=False,
    )


def problems(box: Box) -> list[tuple[str, str]]:
    """Return (exit code, text) of every line of the wrapper's log."""
    path = box.root / "logs" / "router.log"
    found = [LINE.fullmatch(line) for line in path.read_text().splitlines()] if path.exists() else []
    assert all(found)
    return [(match[1], match[2]) for match in found if match]


def test_routes_and_is_quiet(lab: Box, script: Path) -> None:
    """Mail is routed; nothing is said and no log is begun when all is well. Options reach `route`."""
    given = {"POSTMASTER": str(command(lab.world / "scratch" / "pm", lab)), "POSTMASTER_ROOT": str(lab.root)}
    lab.drop("m.md", letter())
    done = run(script, env=given, cwd=lab.world)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(lab.unread("lab.builder")) == 1
    assert not (lab.root / "logs" / "router.log").exists()
    lab.drop("n.md", letter(body="n\n"))
    done = run(
        script, "--root", str(lab.root), "-v", "--now", env={**given, "POSTMASTER_ROOT": "/nowhere"}, cwd=lab.world
    )
    assert "1 delivered" in done.stdout
    assert run(script, f"--root={lab.root}", env=given, cwd=lab.world).returncode == 0


def test_problems_are_kept_and_the_exit_code_passed(lab: Box, script: Path) -> None:
    """What the router says on stderr is in the log, line by line with time and code, and on stderr."""
    given = {"POSTMASTER": str(command(lab.world / "scratch" / "pm", lab)), "POSTMASTER_ROOT": str(lab.root)}
    shutil.rmtree(lab.inbox("lab.echo"))
    lab.inbox("lab.echo").write_bytes(b"")
    lab.drop("late.md", letter(to="echo@lab.internal"))
    done = run(script, env=given, cwd=lab.world)
    assert done.returncode == 75
    assert "deferred" in done.stderr
    assert [code for code, _ in problems(lab)] == ["75"] * len(done.stderr.splitlines())
    (lab.root / "agent-registry.yml").write_text("x: [\n")
    assert run(script, env=given, cwd=lab.world).returncode == 78
    assert problems(lab)[-1][0] == "78"
    lab.run("log")
    assert all(line["action"] == "deferred" for line in lab.log())
    elsewhere = lab.world / "scratch" / "problems.txt"
    run(script, env={**given, "POSTMASTER_LOG": str(elsewhere)}, cwd=lab.world)
    assert " exit 78: " in elsewhere.read_text()


def test_its_log_is_no_delivery_log(lab: Box, script: Path) -> None:
    """logs/router.log is not read as a part of the delivery log."""
    (lab.root / "logs" / "router.log").write_text('{"time":"t","action":"delivered"}\n')
    assert lab.run("log", "--json").stdout == ""


def test_a_silent_failure_is_kept(lab: Box, script: Path) -> None:
    """A command that dies without a word leaves a line all the same."""
    dead = lab.world / "scratch" / "dead"
    dead.write_text("#!/bin/sh\nexit 9\n")
    dead.chmod(0o755)
    assert run(script, "--root", str(lab.root), env={"POSTMASTER": str(dead)}, cwd=lab.world).returncode == 9
    assert problems(lab) == [("9", "it said nothing")]


def test_finds_the_command(lab: Box, script: Path) -> None:
    """$POSTMASTER, else the checkout's .venv, else $PATH, else ~/.local/bin; a PostgreSQL server is passed over."""
    home = lab.world / "home"
    postgres = lab.world / "scratch" / "bin" / "postmaster"
    postgres.parent.mkdir()
    postgres.write_text("#!/bin/sh\necho 'postgres (PostgreSQL) 15.3'\n")
    postgres.chmod(0o755)
    env = {"HOME": str(home), "PATH": f"{postgres.parent}:/usr/bin:/bin"}
    given = ["--root", str(lab.root), "-v"]
    done = run(script, *given, env=env, cwd=lab.world)
    assert done.returncode == 78
    assert "no postmaster command" in done.stderr
    assert problems(lab)[0][0] == "78"
    command(home / ".local" / "bin" / "postmaster", lab)
    assert "nothing to route" in run(script, *given, env=env, cwd=lab.world).stdout
    (home / ".local" / "bin" / "postmaster").unlink()
    on_path = command(lab.world / "scratch" / "more" / "postmaster", lab)
    path = f"{on_path.parent}:/usr/bin:/bin"
    assert "nothing to route" in run(script, *given, env={**env, "PATH": path}, cwd=lab.world).stdout
    command(script.parents[1] / ".venv" / "bin" / "postmaster", lab)
    assert "nothing to route" in run(script, *given, env={}, cwd=lab.world).stdout
    assert run(script, *given, env={"POSTMASTER": "/nowhere/postmaster"}, cwd=lab.world).returncode == 78


def test_two_at_once(lab: Box, script: Path) -> None:
    """Many wrappers at once deliver every letter once, and leave nothing behind."""
    given = {"POSTMASTER": str(command(lab.world / "scratch" / "pm", lab))}
    for number in range(50):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
    pairs = [f"{name}={value}" for name, value in given.items()]
    started = [
        subprocess.Popen(["/usr/bin/env", "-i", *pairs, "/bin/sh", str(script), "--root", str(lab.root)])
        for _ in range(6)
    ]
    assert [process.wait(timeout=60) for process in started] == [0] * 6
    lab.route()
    assert len(lab.unread("lab.builder")) == 50
    assert sorted(path.name for path in (lab.root / "logs").iterdir()) == ["delivery-log.jsonl"]


def test_usage(script: Path, tmp_path: Path) -> None:
    """--root without a directory is a usage error."""
    assert run(script, "--root", env={}, cwd=tmp_path).returncode == 64


def test_shellcheck() -> None:
    """The script is clean."""
    checker = shutil.which("shellcheck")
    if checker is None:
        pytest.skip("shellcheck is not installed")
    done = subprocess.run([checker, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
