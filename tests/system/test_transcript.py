"""`postmaster transcript`: an agent's own history, which is kept whole and never leaves the office."""

import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import Box
from test_carry import carry, git, got, hub, mail, office, refs, to_hub

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

REF = "refs/postmaster/entity/builder@lab.internal"


def append(box: Box, text: str | bytes, check: int = 0) -> str:
    """Append an entry; return what was printed."""
    path = box.world / "scratch" / "entry"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    done = box.run("transcript", "append", "lab.builder", str(path))
    assert done.returncode == check, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def rows(box: Box) -> list[dict[str, object]]:
    """Return the entries as `log` lists them."""
    listed = box.run("transcript", "log", "lab.builder", "--json")
    assert listed.returncode == 0, listed.stderr
    found: list[dict[str, object]] = json.loads(listed.stdout)["entries"]
    return found


def test_entries_are_kept_byte_for_byte(lab: Box) -> None:
    """By id, address or alias it is one transcript; `show` gives the bytes, `log` what they begin with."""
    assert "has no transcript" in lab.run("transcript", "log", "mason@lab.internal").stdout
    assert lab.run("transcript", "show", "lab.builder").stdout == ""
    entries = [b"# one\n", b"no end", b"\xff\x00binary\r\n\n", b"\n", b"---\nid: x\n---\n"]
    for number, entry in enumerate(entries, 1):
        assert f"entry {number}," in append(lab, entry)
    shown = subprocess.run(lab.command("transcript", "show", "Builder@lab.internal"), capture_output=True, check=True)
    assert shown.stdout == b"".join(entries)
    last = subprocess.run(
        lab.command("transcript", "show", "lab.builder", "--last", "2"), capture_output=True, check=True
    )
    assert last.stdout == b"".join(entries[-2:])
    assert [(row["number"], row["bytes"]) for row in rows(lab)] == [(n, len(e)) for n, e in enumerate(entries, 1)]
    repository = lab.root / "carrier" / "mail.git"
    assert git(repository, "rev-list", "--count", REF).strip() == "5"
    assert git(repository, "rev-list", "--merges", "--count", REF).strip() == "0"


def test_what_is_refused(lab: Box) -> None:
    """An empty entry, a missing file, nobody's, an archived one's; nothing is added."""
    assert "says nothing" in append(lab, "", check=65)
    assert lab.run("transcript", "append", "lab.builder", "/nowhere/x").returncode == 65
    assert lab.run("transcript", "append", "lab.nobody", "-").returncode == 65
    assert not (lab.root / "carrier").exists()


def test_many_at_once_follow_each_other(lab: Box) -> None:
    """Of eight that append at the same time each is there, once, in one line."""
    done = []
    for number in range(8):
        path = lab.world / "scratch" / f"entry-{number}"
        path.write_text(f"{number}\n")
        done.append(
            subprocess.Popen(lab.command("transcript", "append", "lab.builder", str(path)), stdout=-3, stderr=-1)
        )
    for one in done:
        _, said = one.communicate(timeout=60)
        assert one.returncode == 0, said
    assert sorted(str(row["begins"]) for row in rows(lab)) == [str(number) for number in range(8)]


def test_killed_at_any_time_it_is_the_old_one_or_the_new_one(lab: Box) -> None:
    chance = random.Random(5)
    append(lab, "0\n")
    expected = 1
    for number in range(1, 9):
        path = lab.world / "scratch" / "entry"
        path.write_text(f"{number}\n")
        with subprocess.Popen(
            lab.command("transcript", "append", "lab.builder", str(path)), stdout=-3, stderr=-3, start_new_session=True
        ) as running:
            time.sleep(chance.uniform(0.05, 0.25))
            running.send_signal(signal.SIGKILL)
        time.sleep(0.1)  # a git that it has started may end its work
        found = [str(row["begins"]) for row in rows(lab)]
        assert len(found) in (expected, expected + 1)
        assert found[-1] == (str(number) if len(found) > expected else found[expected - 1])
        expected = len(found)
    assert "entry" in append(lab, "the last\n")
    assert len(rows(lab)) == expected + 1


def test_what_is_no_transcript_is_told_of(lab: Box) -> None:
    """A history that somebody else has put there holds no entries."""
    append(lab, "one\n")
    repository = lab.root / "carrier" / "mail.git"
    tree = git(repository, "hash-object", "-t", "tree", "-w", "--stdin").strip()
    commit = git(repository, "-c", "user.name=x", "-c", "user.email=x", "commit-tree", tree, "-m", "x").strip()
    git(repository, "update-ref", REF, commit)
    done = lab.run("transcript", "show", "lab.builder")
    assert done.returncode == 65 and "no file" in done.stderr and "Traceback" not in done.stderr


def test_the_carrier_never_touches_it(tmp_path: Path) -> None:
    """Whatever is exchanged: it stays what it was, and is nowhere else."""
    there = hub(tmp_path)
    a, b = (office(tmp_path, name, 1, to_hub(there, name)) for name in ("a", "b"))
    path = tmp_path / "entry"
    path.write_text("mine alone\n")
    agent = "a0@a.internal"
    assert a.run("transcript", "append", agent, str(path)).returncode == 0
    own = {ref: oid for ref, oid in refs(a.root / "carrier" / "mail.git").items() if "/entity/" in ref}
    assert len(own) == 1
    for number in range(3):
        a.drop(f"{number}.md", mail("a0@b.internal", agent, str(number)))
        for box in (a, b):
            box.route()
            carry(box)
            box.route()
    assert len(got(b, "b.a0")) == 3
    kept = {ref: oid for ref, oid in refs(a.root / "carrier" / "mail.git").items() if "/entity/" in ref}
    assert kept == own
    for repository in (there, b.root / "carrier" / "mail.git"):
        assert not [ref for ref in refs(repository) if "/entity/a0" in ref]
    assert a.run("transcript", "show", agent).stdout == "mine alone\n"
