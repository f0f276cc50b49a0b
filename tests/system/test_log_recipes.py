"""docs/formats/delivery-log.md and docs/operations.md: what they tell people to run is run."""

import gzip
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import LOG_KEYS, Box, letter

DOCS = Path(__file__).parents[2] / "docs"
LOG_PAGE = (DOCS / "formats" / "delivery-log.md").read_text(encoding="utf-8")
OPERATIONS = (DOCS / "operations.md").read_text(encoding="utf-8")
RECIPES = re.findall(r"^([^\n]+):\n\n```sh\n(.*?)^```$", LOG_PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """An office with flows, answers, refusals and a rotated log; no recipe changes it."""
    box = Box(tmp_path_factory.mktemp("recipes") / "world")
    box.init()
    from support import LAB

    box.declare("lab", LAB)
    box.merge()
    box.drop("early.md", letter(correlation_id="run-42", subject="early", body="early\n"))
    box.route()
    logs = box.root / "logs"
    with gzip.open(logs / "delivery-log-20260304.jsonl.gz", "wb") as stream:
        stream.write((logs / "delivery-log.jsonl").read_bytes())
    (logs / "delivery-log.jsonl").unlink()
    box.drop("nightly.md", letter(correlation_id="run-42", to=["builder@lab.internal", "checker@lab.internal"]))
    answer = letter(correlation_id="run-42", from_="builder@lab.internal", extra="in_reply_to: abc", body="yes\n")
    box.drop("answer.md", answer.replace(b"to: builder", b"to: checker"))
    box.drop("other.md", letter(correlation_id="run-7", body="other\n"))
    box.drop("nobody.md", letter(correlation_id="run-42", to="nobody@lab.internal", body="nobody\n"))
    box.route()
    return box


def recipe(box: Box, text: str) -> str:
    """Run a recipe with bash in the office's directory; return what it prints."""
    path = box.world / "scratch" / "bin"
    path.mkdir(exist_ok=True)
    (path / "postmaster").write_text(f'#!/bin/sh\nexec "{sys.executable}" -m postmaster "$@"\n')
    (path / "postmaster").chmod(0o755)
    env = {**box.environment(), "PATH": f"{path}:{os.environ['PATH']}"}
    before = box.snapshot()
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        capture_output=True,
        encoding="utf-8",
        cwd=box.root,
        env=env,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, ""), (text, done.stdout, done.stderr)
    assert box.snapshot() == before
    return done.stdout


def needs(text: str) -> None:
    """Skip a recipe whose program is not installed."""
    if "jq" in text and shutil.which("jq") is None:
        pytest.skip("jq is not installed")


@pytest.mark.parametrize(("title", "text"), RECIPES, ids=[title[:40] for title, _ in RECIPES])
def test_recipe(office: Box, title: str, text: str) -> None:
    """Every recipe runs without an error, and prints something unless it says that it may not."""
    needs(text)
    printed = recipe(office, text)
    if "compressed (no output" in title:
        assert printed == "run-42\n"  # whose first number is in the part that is compressed
    elif "no output" in title or "for two seconds" in title:
        assert printed == ""
    else:
        assert printed.strip()


def test_every_recipe_is_run() -> None:
    """No fenced block of the page escapes these tests."""
    assert len(RECIPES) == LOG_PAGE.count("```sh\n") >= 10


def test_what_the_recipes_say(office: Box) -> None:
    """Some answers are known: the flow's lines, its order, its hashes, its number of lines."""
    by_title = dict(RECIPES)
    for text in by_title.values():
        needs(text)
    assert len(recipe(office, by_title["Everything that happened to a flow"]).splitlines()) == 4
    ordered = recipe(office, by_title["The same, in the order of the numbers, as a table"])
    assert [line.split("\t")[0] for line in ordered.splitlines()] == sorted(
        line.split("\t")[0] for line in ordered.splitlines()
    )
    assert recipe(office, by_title["The same with the compressed rotated logs"]) == "5\n"
    [hashes] = [text for title, text in RECIPES if "prints its id twice" in title]
    first, second = recipe(office, hashes).splitlines()
    assert first == second
    each = recipe(office, by_title["How much mail each agent was given"])
    assert sorted(each.splitlines()) == ["2 lab.builder", "2 lab.checker"]


def test_every_field_and_action_is_described() -> None:
    """The page names each field once, in the order of the lines, and every action of the core."""
    rows = re.findall(r"^\| (`[^|]+`) \| ", LOG_PAGE.split("## Actions")[0], re.MULTILINE)
    fields = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert [name for name in fields if name in LOG_KEYS] == LOG_KEYS
    actions = LOG_PAGE.split("## Actions")[1].split("## Order")[0]
    for action in ("delivered", "dead-letter", "rejected", "deferred", "retried", "read", "unread"):
        assert f"| `{action}` |" in actions


@pytest.mark.parametrize("name", ["postmaster.service", "postmaster.timer", "postmaster.path"])
def test_systemd_units_are_quoted_in_full(name: str, tmp_path: Path) -> None:
    """The page shows the unit files as they are, and systemd takes them."""
    text = (DOCS / "systemd" / name).read_text(encoding="utf-8")
    assert f"<!-- systemd/{name} -->\n```ini\n{text}```\n" in OPERATIONS
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    home = tmp_path / "home"
    (home / ".local" / "bin").mkdir(parents=True)
    (home / ".local" / "bin" / "postmaster").write_text("#!/bin/sh\n")
    (home / ".local" / "bin" / "postmaster").chmod(0o755)
    units = tmp_path / "units"
    shutil.copytree(DOCS / "systemd", units)
    service = units / "postmaster.service"
    service.write_text(service.read_text(encoding="utf-8").replace("%h", str(home)), encoding="utf-8")
    env = {"XDG_RUNTIME_DIR": str(tmp_path), "HOME": str(home), "PATH": os.environ["PATH"]}
    done = subprocess.run(
        [analyze, "--user", "verify", str(units / name)], capture_output=True, text=True, env=env, check=False
    )
    if "Failed to initialize manager" in done.stderr or "Failed to create" in done.stderr:
        pytest.skip("systemd-analyze does not work here")
    assert not [line for line in done.stderr.splitlines() if "postmaster." in line], done.stderr


def test_logrotate(lab: Box) -> None:
    """The logrotate file of the page rotates to names that the log is read under; nothing is lost from history."""
    logrotate = shutil.which("logrotate") or shutil.which("logrotate", path="/usr/sbin")
    if logrotate is None:
        pytest.skip("logrotate is not installed")
    [config] = re.findall(r"^```\n(/srv/post-office/logs.*?)^```$", OPERATIONS, re.MULTILINE | re.DOTALL)
    config = config.replace("/srv/post-office", str(lab.root)).replace("    su post post\n", "")
    path = lab.world / "scratch" / "logrotate.conf"
    path.write_text(config)
    path.chmod(0o644)
    (lab.root / "logs").chmod(0o755)
    for number in range(3):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
        lab.route()
        state = str(lab.world / "scratch" / "state")
        done = subprocess.run(
            [logrotate, "--force", "--state", state, str(path)], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        for old in (lab.root / "logs").glob("delivery-log-*.jsonl*"):  # the next one gets another second in its name
            stem = old.name.partition(".")[0]
            old.rename(old.with_name(old.name.replace(stem, f"{stem}-{number}", 1)))
    lab.drop("last.md", letter(body="last\n"))
    lab.route()
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [1, 2, 3, 4]
    shown = lab.run("log", "--json").stdout.splitlines()
    assert len(shown) == 4
    assert lab.run("verify").returncode == 0
