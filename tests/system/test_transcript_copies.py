"""`postmaster transcript export` and `import`: a transcript that was cloned, went on in two places, and meets."""

import fcntl
import json
import shutil
from pathlib import Path

import pytest
from support import Box
from test_carry import git

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

AGENT = "lab.builder"


def clone(box: Box, where: Path) -> Box:
    """Return a copy of the whole office, as a backup or the image of a machine is one."""
    where.mkdir()
    (where / "scratch").mkdir()
    shutil.copytree(box.root, where / "office", symlinks=True)
    return Box(where)


def append(box: Box, *entries: bytes, agent: str = AGENT) -> None:
    for entry in entries:
        path = box.world / "scratch" / "entry"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(entry)
        done = box.run("transcript", "append", agent, str(path))
        assert done.returncode == 0, done.stderr


def export(box: Box, path: Path, agent: str = AGENT) -> Path:
    done = box.run("transcript", "export", agent, str(path))
    assert done.returncode == 0, done.stderr
    return path


def meet(box: Box, path: Path, *options: str, agent: str = AGENT, check: int = 0) -> str:
    done = box.run("transcript", "import", agent, str(path), *options)
    assert done.returncode == check, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def entries(box: Box, agent: str = AGENT) -> list[str]:
    listed = box.run("transcript", "log", agent, "--json")
    assert listed.returncode == 0, listed.stderr
    return [row["begins"] for row in json.loads(listed.stdout)["entries"]]


def kept(box: Box) -> list[str]:
    rows = git(box.root / "carrier" / "mail.git", "for-each-ref", "--format=%(refname)", "refs/postmaster/kept").split()
    assert not git(box.root / "carrier" / "mail.git", "for-each-ref", "refs/postmaster/building")
    return rows


@pytest.fixture
def two(lab: Box, tmp_path: Path) -> tuple[Box, Box, Path]:
    """One transcript of two entries in two offices, of which each has added its own; and a copy of the other's."""
    append(lab, b"one\n", b"\xff\x00two")
    other = clone(lab, tmp_path / "other")
    append(lab, b"mine\n")
    append(other, b"theirs\n", b"theirs, again\n")
    return lab, other, export(other, tmp_path / "copy.jsonl")


def test_a_copy_is_lines_of_json_with_the_commits_that_git_has(lab: Box, tmp_path: Path) -> None:
    append(lab, b"one\n", b"\xff\x00two")
    rows = [json.loads(line) for line in export(lab, tmp_path / "copy.jsonl").read_bytes().splitlines()]
    assert [row.get("entry") for row in rows] == ["one\n", None] and rows[1]["entry_base64"] == "/wB0d28="
    ref = "refs/postmaster/entity/builder@lab.internal"
    assert rows[1]["commit"] == git(lab.root / "carrier" / "mail.git", "rev-parse", ref).strip()
    again = lab.run("transcript", "export", AGENT, str(tmp_path / "copy.jsonl"))
    assert again.returncode == 65 and "is there already" in again.stderr
    assert lab.run("transcript", "export", AGENT).stdout.encode() == (tmp_path / "copy.jsonl").read_bytes()


def test_what_a_copy_has_more_is_added_with_the_same_commits(lab: Box, tmp_path: Path) -> None:
    append(lab, b"one\n")
    other = clone(lab, tmp_path / "other")
    append(other, b"two\n", b"\xff\xfe")
    copy = export(other, tmp_path / "copy.jsonl")
    assert "2 added to 1" in meet(lab, copy)
    assert export(lab, tmp_path / "mine.jsonl").read_bytes() == copy.read_bytes()
    assert "nothing new" in meet(lab, copy)
    append(lab, b"four\n")
    assert "nothing new: all 3 entries" in meet(lab, copy)
    assert "added to 0" in meet(lab, copy, agent="lab.echo")
    assert kept(lab) == []


def test_where_both_went_on_the_owner_is_told_and_nothing_is_changed(two: tuple[Box, Box, Path]) -> None:
    lab, _, copy = two
    said = meet(lab, copy, check=76)
    assert "part after entry 2" in said and "here: 1 since" in said and "there: 2 since" in said
    for way in ("import NAME", "--adopt here", "--adopt there", "--splice LIST"):
        assert way in said
    assert [entries(lab)[n] for n in (0, 2)] == ["one", "mine"] and len(entries(lab)) == 3
    assert kept(lab) == []
    assert json.loads(lab.run("transcript", "import", AGENT, str(copy), "--json").stdout)["outcome"] == "diverged"


def test_a_new_name_for_the_other(two: tuple[Box, Box, Path]) -> None:
    lab, _, copy = two
    assert "4 added to 0" in meet(lab, copy, agent="lab.echo")
    assert entries(lab, "lab.echo")[2:] == ["theirs", "theirs, again"] and entries(lab)[2:] == ["mine"]


@pytest.mark.parametrize("whose", ["here", "there"])
def test_one_history_is_adopted_and_the_other_is_kept(two: tuple[Box, Box, Path], whose: str) -> None:
    lab, _, copy = two
    ref = "refs/postmaster/entity/builder@lab.internal"
    before = git(lab.root / "carrier" / "mail.git", "rev-parse", ref).strip()
    theirs = json.loads(copy.read_bytes().splitlines()[-1])["commit"]
    assert f"adopted {whose}" in meet(lab, copy, "--adopt", whose)
    assert entries(lab)[2:] == (["mine"] if whose == "here" else ["theirs", "theirs, again"])
    assert [one.rpartition("/")[2] for one in kept(lab)] == [theirs if whose == "here" else before]
    said = meet(lab, copy)
    assert "set aside before" in said if whose == "here" else "nothing new" in said
    append(lab, b"on\n")
    meet(lab, copy)


def test_a_history_is_spliced_from_both_by_hand(two: tuple[Box, Box, Path], tmp_path: Path) -> None:
    lab, other, copy = two
    plan = tmp_path / "plan"
    assert "written; edit it" in meet(lab, copy, "--splice", str(plan))
    lines = plan.read_text().splitlines()
    rows = [line for line in lines if not line.startswith(("#", "between"))]
    assert [row.split()[0] for row in rows] == ["here", "there", "there"]
    for wrong in ("here 9 0123456789ab", "here 3 0123456789ab", "mine", f"{rows[0]}\n{rows[0]}", ""):
        plan.write_text("\n".join([*lines[:4], wrong]) + "\n")
        assert "plan:" in meet(lab, copy, "--splice", str(plan), check=65)
    plan.write_text("\n".join([*lines[:4], rows[2], rows[0]]) + "\n")
    assert "spliced" in meet(lab, copy, "--splice", str(plan))
    assert entries(lab)[2:] == ["theirs, again", "mine"]
    assert len(kept(lab)) == 2
    assert "set aside before" in meet(lab, copy)
    # and the other office takes the result
    result = export(lab, tmp_path / "result.jsonl")
    meet(other, result, check=76)
    meet(other, result, "--adopt", "there")
    assert export(other, tmp_path / "both.jsonl").read_bytes() == result.read_bytes()


def test_a_copy_that_was_edited_is_refused(two: tuple[Box, Box, Path], tmp_path: Path) -> None:
    lab, _, copy = two
    rows = copy.read_bytes().splitlines(keepends=True)
    for bad in (
        [*rows[:2], rows[2].replace(b"theirs", b"Theirs")],
        rows[1:],
        [rows[0], rows[2]],
        [b"{}\n"],
        [b"[1]\n"],
        [b"not json\n"],
        [b'{"commit": 1, "entry": "x", "time": "x"}\n'],
    ):
        path = tmp_path / "bad"
        path.write_bytes(b"".join(bad))
        assert "bad:" in meet(lab, path, check=65)
    path.write_bytes(b"")
    assert "is empty" in meet(lab, path, check=65)
    assert "cannot be read" in meet(lab, tmp_path / "nowhere", check=65)
    assert entries(lab)[2:] == ["mine"]


def test_a_list_that_was_made_before_the_last_entry_is_refused(two: tuple[Box, Box, Path], tmp_path: Path) -> None:
    """What was appended while somebody edited the list is not dropped."""
    lab, _, copy = two
    plan = tmp_path / "plan"
    meet(lab, copy, "--splice", str(plan))
    append(lab, b"later\n")
    assert "take a new list" in meet(lab, copy, "--splice", str(plan), check=65)
    assert entries(lab)[2:] == ["mine", "later"]


def test_one_import_at_a_time(two: tuple[Box, Box, Path]) -> None:
    lab, _, copy = two
    lock = lab.root / ".postmaster" / "transcripts.lock"
    lock.touch()
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another import" in meet(lab, copy, "--adopt", "there", check=74)
    meet(lab, copy, "--adopt", "there")
