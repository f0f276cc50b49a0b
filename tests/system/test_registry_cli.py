"""`postmaster registry` as a user runs it: exit codes, stdout and stderr, and what is on disk."""

import json
import os
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

DECLARATION = """\
plugin: lab
agents:
  - id: lab.boss
    address: boss@lab.internal
    emits: [{type: job.run, to: smith@lab.internal}]
  - id: lab.smith
    address: smith@lab.internal
    accepts: [{type: job.run, accepts_from: [boss@lab.internal]}]
"""

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in ("registry.d", "outbox"):
        (tmp_path / "office" / name).mkdir(parents=True)
    (tmp_path / "office" / "registry.d" / "lab.yml").write_text(DECLARATION)
    return tmp_path / "office"


def command(root: Path, *args: str) -> list[str]:
    return [sys.executable, "-m", "postmaster", "--root", str(root), "registry", *args]


def run(root: Path, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(command(root, *args), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return done


def test_from_declaration_to_map(root: Path) -> None:
    """Merge, check, show and flows on a fresh office; success is silent on stderr."""
    done = run(root, "merge")
    assert done.stdout.endswith("merged: 2 agents\n")
    assert done.stderr == ""
    assert (root / "inboxes" / "lab.smith" / "unread").is_dir()
    assert run(root, "merge").stdout == "unchanged: 2 agents\n"
    assert run(root, "check", "--strict").stdout == "2 agents, no problems, 0 findings, 0 notes\n"
    assert "lab.smith" in run(root, "show").stdout
    assert json.loads(run(root, "show", "smith@lab.internal", "--json").stdout)["agent"]["id"] == "lab.smith"
    assert "job.run -> smith@lab.internal" in run(root, "flows").stdout


def test_problems_end_with_78_one_line_each(root: Path) -> None:
    run(root, "merge")
    before = (root / "agent-registry.yml").read_bytes()
    (root / "registry.d" / "bad.yml").write_text("- {id: x, adress: y@z}\n- {id: lab.BOSS, address: q@z}\n")
    done = run(root, "merge", code=78)
    assert done.stdout == ""
    lines = done.stderr.splitlines()
    assert all(line.startswith("postmaster: ") for line in lines)
    assert len(lines) == 4
    assert "postmaster: registry.d/bad.yml:1:11: unknown key adress, did you mean address?" in lines
    assert (root / "agent-registry.yml").read_bytes() == before
    run(root, "check", code=78)


def test_findings_end_with_1_only_if_strict(root: Path) -> None:
    (root / "registry.d" / "more.yml").write_text("- {id: c, address: c@x, emits: [{type: t, to: d@x}]}\n")
    run(root, "check")
    run(root, "check", "--strict", code=1)


def test_wrong_calls(root: Path, tmp_path: Path) -> None:
    run(root, "merg", code=64)
    run(root, "show", code=78)
    run(tmp_path / "none", "merge", code=78)
    run(root, "merge")
    assert "did you mean lab.boss" in run(root, "show", "lab.bos", code=65).stderr.replace("agent:", "")


def test_unread_mail_of_a_removed_agent_is_said_loudly(root: Path) -> None:
    run(root, "merge")
    (root / "inboxes" / "lab.smith" / "unread" / "m.md").write_text("x")
    (root / "registry.d" / "lab.yml").write_text("[]")
    done = run(root, "merge")
    assert "removed lab.smith" in done.stdout
    assert "UNREAD MAIL: lab.smith is removed and leaves 1 unread message in inboxes/lab.smith/unread" in done.stderr


def test_a_home_that_is_not_there(root: Path) -> None:
    (root / "registry.d" / "lab.yml").write_text("- {id: a, address: a@x, inbox: ~nobody-here/in}\n")
    assert "lab.yml:1:32: ~nobody-here/in: there is no home directory" in run(root, "merge", code=78).stderr


def test_every_merge_of_many_at_once_succeeds(root: Path) -> None:
    started = [subprocess.Popen(command(root, "merge"), stdout=subprocess.PIPE, text=True) for _ in range(5)]
    outputs = [process.communicate(timeout=60)[0] for process in started]
    assert [process.returncode for process in started] == [0] * 5
    assert sum("unchanged" in output for output in outputs) == 4


@pytest.mark.parametrize("moment", [0.12, 0.2, 0.3, 0.4])
def test_a_killed_merge_leaves_the_old_registry_or_the_new_one(root: Path, moment: float) -> None:
    """Whenever the kill comes, the next merge finishes the work and leaves no litter."""
    run(root, "merge")
    old = (root / "agent-registry.yml").read_bytes()
    agents = "".join(f"- {{id: a{n}, address: a{n}@x}}\n" for n in range(100))
    (root / "registry.d" / "more.yml").write_text(agents)
    with subprocess.Popen(command(root, "merge"), stdout=subprocess.DEVNULL) as process:
        time.sleep(moment)
        process.send_signal(signal.SIGKILL)
    seen = (root / "agent-registry.yml").read_bytes()
    run(root, "merge")
    new = (root / "agent-registry.yml").read_bytes()
    assert seen in (old, new)
    assert new.count(b"- id:") == 102
    assert sorted(os.listdir(root)) == [".postmaster", "agent-registry.yml", "inboxes", "outbox", "registry.d"]


def test_the_registry_can_be_read_with_an_ordinary_yaml_reader(root: Path) -> None:
    import yaml

    run(root, "merge")
    path = root / "agent-registry.yml"
    assert [agent["id"] for agent in yaml.safe_load(path.read_bytes())["agents"]] == ["lab.boss", "lab.smith"]
    assert stat.S_ISREG(path.lstat().st_mode)
