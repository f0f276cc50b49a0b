"""What an office stands in: its settings, its root, its disks. Faults there are told of, and cost no letter."""

import gzip
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import LAB, Box, arrived, letter

BUILDER = "lab.builder"
CREW = """\
  - id: lab.crew
    address: crew@lab.internal
    instances: many
    accepts: [job.*]
    accepts_from: ["*"]
"""
SEND = (
    *("send", "--to", "builder@lab.internal", "--from", "conductor@lab.internal", "--type", "job.run"),
    *("--subject", "s", "--body", "b"),
)


def settings(box: Box, text: str) -> Path:
    """Write post-office.yml."""
    path = box.root / "post-office.yml"
    path.write_text(text)
    return path


# -- settings ------------------------------------------------------------------------------------------------------


def test_broken_settings_are_told_of_by_an_idle_run(lab: Box) -> None:
    """A run with nothing to do still says that post-office.yml cannot be used, every time, until it is mended."""
    lab.route()
    time.sleep(0.02)
    lab.route()
    settings(lab, "setle_seconds: 5\n")
    for _ in range(3):
        assert "did you mean settle_seconds?" in lab.route(check=78).stderr
    settings(lab, "settle_seconds: 5\n")
    lab.route()
    lab.route()


def test_settings_moved_in_place_with_an_old_time(lab: Box) -> None:
    """A broken file whose modification time is old (mv, cp -p) is noticed as well."""
    lab.route()
    time.sleep(0.02)
    lab.route()
    path = settings(lab, "nonsense: 1\n")
    os.utime(path, (1, 1))
    assert lab.route(check=78).stderr


@pytest.mark.parametrize("kind", ["pipe", "directory", "huge"])
def test_settings_that_are_no_small_file(lab: Box, kind: str) -> None:
    """A named pipe is not waited for, nothing is read without end; the outbox is untouched."""
    path = lab.root / "post-office.yml"
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    else:
        path.write_bytes(b"# x\n" * 500_000)
    lab.drop("a.md", letter())
    before = lab.census()
    done = lab.run("route", timeout=20)
    assert done.returncode == 78
    assert str(path) in done.stderr
    assert lab.census() == before


# -- the root ------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse names that are no UTF-8")
def test_a_root_that_is_no_utf_8(tmp_path: Path) -> None:
    """An office below a directory with an undecodable name works like any other."""
    box = Box(Path(os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9 %41?#")))
    box.init()
    box.declare("lab", LAB)
    box.merge()
    box.drop("a.md", sent := letter())
    box.route()
    arrived(box, BUILDER, sent)
    box.route()
    box.drop("again.md", sent)
    box.route()
    assert box.line("again.md")["reason"] == "duplicate"
    assert box.run("verify").returncode == 0
    assert box.run("status", "--json").returncode == 0


def test_what_is_wrong_with_a_root(tmp_path: Path) -> None:
    """A root that is missing, a file, or no office: each is called what it is, and none is a wrong use."""
    box = Box(tmp_path / "world")
    for make, said in ((None, "does not exist"), ("file", "is not a directory"), ("directory", "is not an office")):
        if make == "file":
            box.root.write_bytes(b"")
        elif make == "directory":
            box.root.unlink()
            box.root.mkdir()
        done = box.run("inbox", BUILDER)
        assert (done.returncode, said in done.stderr) == (78, True), done.stderr


# -- mailboxes -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("folder", ["tmp", "unread"])
def test_a_mailbox_folder_that_is_a_link(lab: Box, tmp_path: Path, folder: str) -> None:
    """Mail is never led out of its mailbox: the letter waits until the link is gone."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    path = lab.inbox(BUILDER) / folder
    shutil.rmtree(path)
    path.symlink_to(elsewhere)
    lab.drop("a.md", sent := letter())
    assert "a symbolic link, not a directory" in lab.route("--dry-run").stdout
    done = lab.route(check=75)
    assert "a symbolic link, not a directory" in done.stderr
    assert lab.line("a.md")["reason"] == "inbox-unavailable"
    assert list(elsewhere.iterdir()) == []
    path.unlink()
    lab.route()
    arrived(lab, BUILDER, sent)


def test_acknowledging_into_a_link(lab: Box, tmp_path: Path) -> None:
    """`ack` moves nothing through a read/ that is a link."""
    lab.drop("a.md", letter())
    lab.route()
    (mail,) = lab.unread(BUILDER)
    read = lab.inbox(BUILDER) / "read"
    shutil.rmtree(read, ignore_errors=True)
    read.symlink_to(tmp_path)
    done = lab.run("ack", BUILDER, mail.name)
    assert done.returncode == 74
    assert "a symbolic link, not a directory" in done.stderr
    assert [one.name for one in lab.unread(BUILDER)] == [mail.name]


def declared(box: Box, inbox: Path) -> None:
    """Declare an agent whose inbox is outside the office."""
    accept = "accepts: [{type: job.run, accepts_from: ['*']}]"
    box.declare("far", f"agents: [{{id: far.one, address: one@far.internal, inbox: {inbox}, {accept}}}]\n")


def test_an_inbox_outside_is_made_once(lab: Box, tmp_path: Path) -> None:
    """A merge does not make again what an earlier one knew outside the office: its disk may not be mounted."""
    inbox = tmp_path / "mnt" / "one"
    declared(lab, inbox)
    lab.merge()
    assert (inbox / "unread").is_dir()
    shutil.rmtree(inbox)
    for extra in (None, "more"):
        if extra:
            lab.declare("more", "agents: [{id: more.a, address: a@more.internal, accepts: []}]\n")
        done = lab.merge(check=73)
        assert "mount its disk" in done.stderr and "--make-inboxes" in done.stderr
        assert not inbox.exists()
    assert (lab.root / "inboxes" / "more.a" / "unread").is_dir(), "what could be merged is merged"
    lab.drop("a.md", sent := letter(to="one@far.internal"))
    lab.route(check=75)
    assert not inbox.exists()
    dry = lab.run("registry", "merge", "--make-inboxes", "--dry-run")
    assert "would make inbox" in dry.stdout and not inbox.exists()
    assert lab.run("registry", "merge", "--make-inboxes").returncode == 0
    lab.route()
    arrived(lab, "far.one", sent, folder=inbox / "unread")


def test_an_inbox_outside_that_moved_is_made(lab: Box, tmp_path: Path) -> None:
    """A new place for an inbox is made by the merge that hears of it first."""
    declared(lab, tmp_path / "old")
    lab.merge()
    declared(lab, tmp_path / "new")
    lab.merge()
    assert (tmp_path / "new" / "unread").is_dir()


# -- sending -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seconds", ["nan", "inf", "-1", "1e99", "soon", ""])
def test_a_wait_without_an_end(lab: Box, seconds: str) -> None:
    """A time that never ends is a wrong use; nothing is sent."""
    done = lab.run(*SEND, "--wait", seconds)
    assert done.returncode == 64
    assert "no number of seconds" in done.stderr
    assert lab.outbox() == []


def test_sent_but_not_routed(lab: Box) -> None:
    """`send --now` whose routing meets a fault has sent: 75, the fault is said, and the next run delivers."""
    log = lab.root / "logs" / "delivery-log.jsonl"
    log.mkdir(parents=True)
    done = lab.run(*SEND, "--now")
    assert done.returncode == 75, done
    assert "delivery-log.jsonl" in done.stderr and "not routed yet" in done.stderr
    assert len(lab.outbox()) == 1 and f"outbox/{lab.outbox()[0]}" in done.stdout
    log.rmdir()
    lab.route()
    assert len(lab.unread(BUILDER)) == 1


# -- rotated logs --------------------------------------------------------------------------------------------------


def rotated(lab: Box) -> Path:
    """Route some mail and compress its log; return where that is."""
    for number in range(3):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
    lab.route()
    log = lab.root / "logs" / "delivery-log.jsonl"
    packed = lab.root / "logs" / "delivery-log-20260304.jsonl.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    log.unlink()
    return packed


def test_a_copy_of_a_rotated_log_changes_nothing(lab: Box) -> None:
    """A second file with the beginning of the log gives no number twice, and is no reason to read all again."""
    packed = rotated(lab)
    text = gzip.decompress(packed.read_bytes())
    (lab.root / "logs" / "delivery-log-copy.jsonl").write_bytes(text[: text.index(b"\n") + 1])
    for number in range(3, 6):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
        lab.route()
        assert lab.line(f"m{number}.md")["sequence"] == number + 1
    lab.drop("again.md", letter(body="0\n"))
    lab.route()
    assert lab.line("again.md")["reason"] == "duplicate"


# -- more of what was seen by hand ---------------------------------------------------------------------------------


def test_an_empty_mount_point(lab: Box, tmp_path: Path) -> None:
    """An inbox that is itself a mount point, with nothing mounted there: an empty directory is not filled."""
    inbox = tmp_path / "mnt"
    declared(lab, inbox)
    lab.merge()
    shutil.rmtree(inbox)
    inbox.mkdir()
    lab.drop("a.md", letter(to="one@far.internal"))
    lab.route(check=75)
    lab.merge(check=73)
    assert list(inbox.iterdir()) == []


def test_retry_notices_broken_settings_and_hides_them_from_nobody(lab: Box) -> None:
    """A command that fails on the settings does not make later idle runs silent about them."""
    lab.route()
    time.sleep(0.02)
    lab.route()
    settings(lab, "nonsense: 1\n")
    assert lab.run("dead-letter", "retry", "--all").returncode == 78
    lab.route(check=78)


def test_retried_but_not_routed(lab: Box) -> None:
    """`dead-letter retry --now` whose routing meets a fault ends with 75, as `send --now` does."""
    lab.drop("a.md", letter(to="bilder@lab.internal"))
    lab.route()
    registry = lab.root / "agent-registry.yml"
    registry.rename(lab.root / "kept.yml")
    done = lab.run("dead-letter", "retry", "a.md", "--now")
    assert done.returncode == 75, done
    assert lab.outbox() == ["a.md"]


def test_a_withdrawn_letter_without_a_number(lab: Box) -> None:
    """A letter that its sender took back as it waited is logged so; `route -v` invents no number."""
    shutil.rmtree(lab.inbox(BUILDER))
    lab.inbox(BUILDER).write_bytes(b"")
    lab.drop("a.md", letter())
    lab.route(check=75)
    (lab.root / "outbox" / "a.md").unlink()
    lab.drop("b.md", letter(to="checker@lab.internal", body="b\n"))
    done = lab.route("-v")
    assert "withdrawn" in done.stdout and "None" not in done.stdout, done.stdout
    assert lab.line("b.md")["action"] == "delivered"


# -- times of files ------------------------------------------------------------------------------------------------


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """A directory on tmpfs, which keeps any modification time (ext4 does not)."""
    if not os.access("/dev/shm", os.W_OK):
        pytest.skip("there is no /dev/shm to write in")
    made = Path(tempfile.mkdtemp(prefix="postmaster-times-", dir="/dev/shm"))
    yield made
    shutil.rmtree(made)


def everything(box: Box) -> list[Path]:
    """Return every path of an office but those that Postmaster keeps for itself."""
    return [path for path in box.root.rglob("*") if ".postmaster" not in path.parts]


@pytest.mark.parametrize("seconds", [2**62, 1_772_000_000_000, 253_402_300_800, -1, -62_135_596_801, -(2**62)])
def test_times_that_no_calendar_has(lab_world: Path, in_memory: Path, seconds: int) -> None:
    """A file whose time is beyond year 9999, before year 1 or negative is routed and shown like any other."""
    shutil.copytree(lab_world, in_memory / "world", symlinks=True)
    box = Box(in_memory / "world")
    box.declare("lab", LAB + CREW)
    box.merge()
    box.run("register", "lab.crew", "--name", "ann")
    for name, to in (("a.md", "builder"), ("dead.md", "bilder"), ("b.md", "ann")):
        box.drop(name, letter(to=f"{to}@lab.internal", sent_at=None), mtime=seconds)
        os.utime(box.root / "outbox" / name, (seconds, seconds))
    if box.root.joinpath("outbox/a.md").stat().st_mtime_ns != seconds * 10**9:
        pytest.skip("this file system does not keep such a time")
    first = b"---\nnot finished"
    (box.root / "outbox" / ".stray.md").write_bytes(first)
    (box.root / "dead-letter" / "by-hand.md").write_bytes(first)
    commands = [
        *(["status"], ["status", "--all", "--json"], ["status", "--format", "prometheus"], ["status", "--check"]),
        *(["dead-letter", "list"], ["dead-letter", "show", "by-hand.md"], ["directory"], ["inbox", BUILDER, "--all"]),
        *(["log"], ["verify"], ["doctor"], ["turns"], ["directory", "--json"], ["registry", "check"]),
    ]
    for routed in (False, True):
        if routed:
            box.route("--dry-run")
            box.route()
            box.drop("late.md", letter(to="bilder@lab.internal", sent_at=None), mtime=seconds)
        for path in everything(box):
            os.utime(path, (seconds, seconds), follow_symlinks=False)
        for command in commands if routed else commands[:4]:
            done = box.run(*command)
            assert done.returncode in (0, 1, 2), (command, done.returncode, done.stderr)
    year = "9999" if seconds > 0 else "1969" if seconds == -1 else "0001"
    (mail,) = box.unread(BUILDER)
    assert mail.name.startswith(year), mail.name
    letters = json.loads(box.run("dead-letter", "list", "--json").stdout)["letters"]
    (by_hand,) = [row for row in letters if row["file"] == "by-hand.md"]
    assert by_hand["time"].startswith(f"{year}-"), by_hand
