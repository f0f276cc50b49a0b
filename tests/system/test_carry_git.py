"""A mailbox ref as git sees it: plain git merges it, and a daemon serves it."""

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest
from test_carry import carry, git, got, hub, mail, office, refs, to_hub, turn

from postmaster.carrier import segments
from postmaster.carrier.git import Git
from postmaster.carrier.lines import READ, Letter, Mark
from postmaster.carrier.refs import Oid

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


def letter(n: int) -> Letter:
    return Letter("a@a.internal", "b@b.internal", "t", f"{n}", "flow", "2026-03-04T10:00:00Z", b"x", "a")


def test_git_merge_gives_the_same_set(tmp_path: Path) -> None:
    """`git merge` with the union driver, in a clone, comes to the lines that the carrier's merge comes to."""
    capability = Git(str(tmp_path / "mail.git"), [])
    capability.make()
    base = segments.append(capability, None, [letter(0).line()], "2026-03-04")
    left = segments.append(capability, base, [letter(1).line(), letter(2).line()], "2026-03-04")
    right = segments.append(capability, base, [letter(2).line(), letter(3).line()], "2026-03-04")
    right = segments.append(
        capability, right, [Mark(READ, letter(0).id, "2026-03-04T11:00:00Z", "b").line()], "2026-03-05"
    )
    ours = segments.merge(capability, left, right)
    other = segments.merge(capability, right, left)
    assert segments.everything(capability, ours) == segments.everything(capability, other)
    assert len(segments.everything(capability, ours)) == 5
    for name, tip in (("left", left), ("right", right)):
        capability.move([(f"refs/postmaster/inbox/{name}", tip, None)])
    git(tmp_path, "clone", "-q", "--no-checkout", str(tmp_path / "mail.git"), str(tmp_path / "clone"))
    clone = tmp_path / "clone"
    git(clone, "fetch", "-q", "origin", "refs/postmaster/inbox/*:refs/heads/*")
    git(clone, "checkout", "-q", "left")
    (clone / ".git" / "info").mkdir(exist_ok=True)
    (clone / ".git" / "info" / "attributes").write_text("*.jsonl merge=union\n")
    git(clone, "merge", "-q", "-m", "m", "right")
    merged = Oid(git(clone, "rev-parse", "HEAD").strip())
    assert segments.everything(Git(str(clone / ".git"), []), merged) == segments.everything(capability, ours)
    assert segments.merge(capability, ours, left) == ours
    assert segments.merge(capability, left, ours) == ours


def test_a_lock_that_a_killed_git_has_left(tmp_path: Path) -> None:
    """It stops no later pass: those nobody else can hold go at once, those of mailboxes after a minute."""
    there = hub(tmp_path)
    a = office(tmp_path, "a", 1, to_hub(there, "a"))
    a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
    a.route()
    repository = a.root / "carrier" / "mail.git"
    carry(a)
    a.drop("y.md", mail("a0@b.internal", "a0@a.internal", body="2"))
    a.route()
    for name in ("inbox", "seen/hub"):
        lock = repository / "refs" / "postmaster" / name / "a0@b.internal.lock"
        lock.touch()
    carry(a, code=74)
    os.utime(repository / "refs" / "postmaster" / "inbox" / "a0@b.internal.lock", (1, 1))
    assert carry(a)["sent"] == 1
    assert not list(repository.rglob("*.lock"))


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_over_git_daemon(tmp_path: Path) -> None:
    """Mail goes over git's own protocol as it does over files."""
    there = hub(tmp_path)
    (there / "git-daemon-export-ok").touch()
    git(there, "config", "daemon.receivepack", "true")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    daemon = subprocess.Popen(
        ["git", "daemon", "--reuseaddr", f"--base-path={tmp_path}", "--listen=127.0.0.1", f"--port={port}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for _ in range(100):
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.05)
        url = f"git://127.0.0.1:{port}/hub.git"
        a, b = (office(tmp_path, name, 1, to_hub(url, name)) for name in "ab")
        before = refs(there)
        a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
        turn(a, b)
        assert got(b, "b.a0") == [b"text\n"]
        changed = {ref for ref, oid in refs(there).items() if before.get(ref) != oid}
        assert changed == {"refs/postmaster/inbox/a0@b.internal"}
    finally:
        os.killpg(daemon.pid, signal.SIGTERM)
        daemon.wait(10)
