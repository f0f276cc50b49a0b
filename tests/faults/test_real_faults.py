"""Real faults, none injected: full disks, short writes, disks that come and go, too few descriptors, no locks.

Whatever happens: nothing is lost, nothing is delivered twice under different numbers, and once the fault is over the
next run ends the work.
"""

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support import Box, letter, mails, md5

from faults.sweep import CHANGING, Point, optional, points
from faults.warm import Warm

_LAB = """\
agents:
  - {{id: lab.builder, address: builder@lab.internal, accepts: [{accept}]}}
  - {{id: lab.checker, address: checker@lab.internal, accepts: [{accept}]{inbox}}}
"""
_ACCEPT = "{type: job.run, accepts_from: ['*']}"
BUILDER, CHECKER = "builder@lab.internal", "checker@lab.internal"


class Disk:
    """A small file system in memory, mounted somewhere; what is on it can be taken away and brought back."""

    def __init__(self, place: Path, size: str) -> None:
        self.place = place
        self._kept = place.with_name(place.name + "-kept")  # a second mount keeps its content alive
        for path in (self.place, self._kept):
            path.mkdir(parents=True, exist_ok=True)
        _mount("-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(self._kept))
        self.connect()

    def connect(self) -> None:
        """Mount it at its place."""
        _mount("--bind", str(self._kept), str(self.place))

    def disconnect(self) -> None:
        """Take it away; what is below its place is an empty directory of the disk below."""
        subprocess.run(["umount", str(self.place)], check=True)

    def make(self, mode: str) -> None:
        """Remount it: `ro` or `rw`."""
        _mount("-o", f"remount,bind,{mode}", str(self.place))

    def fill(self, *, leave: int = 0) -> None:
        """Fill it but for so many bytes."""
        descriptor = os.open(self._kept / ".ballast", os.O_WRONLY | os.O_CREAT)
        with contextlib.suppress(OSError):
            while os.write(descriptor, b"x" * 4096):
                pass
        os.ftruncate(descriptor, max(0, os.fstat(descriptor).st_size - leave) // 4096 * 4096)
        os.close(descriptor)

    def empty(self) -> None:
        """Make room again."""
        (self._kept / ".ballast").unlink()

    def remove(self) -> None:
        """Unmount all of it."""
        for path in (self.place, self._kept):
            subprocess.run(["umount", "-l", str(path)], capture_output=True, check=False)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], capture_output=True, check=True)


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Callable[..., Disk]]:
    """A function that makes a disk; all are gone at the end."""
    made: list[Disk] = []

    def make(place: Path, size: str = "1m") -> Disk:
        made.append(Disk(place, size))
        return made[-1]

    try:
        probe = make(tmp_path / "probe")
    except (OSError, subprocess.CalledProcessError) as fault:
        pytest.skip(f"no file system can be mounted here (this needs root and mount): {fault}")
    yield make
    assert probe
    for one in reversed(made):
        one.remove()


@pytest.fixture
def office(tmp_path: Path) -> Callable[..., Box]:
    """A function that makes an office; `inbox` is where the checker's mailbox is."""

    def make(name: str = "world", inbox: Path | None = None) -> Box:
        box = Box(tmp_path / name)
        box.init()
        box.declare("lab", _LAB.format(accept=_ACCEPT, inbox=f", inbox: {inbox}" if inbox else ""))
        if inbox:
            box.extra_inboxes.append(inbox)
        box.merge()
        return box

    return make


def put(box: Box, count: int, to: str | list[str] = BUILDER, *, size: int = 0, flow: str = "run-1") -> None:
    """Hand in so many letters, the n-th with the body `n`."""
    for number in range(count):
        body = f"{flow} {number}\n" + "x" * size
        sent_at = f"2026-03-04T{10 + number // 3600:02d}:{number // 60 % 60:02d}:{number % 60:02d}Z"
        box.drop(f"{flow}-{number:05d}.md", letter(to, correlation_id=flow, sent_at=sent_at, body=body))


def copies(box: Box, *folders: Path) -> dict[str, list[int]]:
    """Return id -> the numbers of all its copies in these folders, and in the builder's mailbox."""
    found = defaultdict(list)
    inbox = box.inbox("lab.builder")
    for folder in (inbox / "unread", inbox / "read", *folders):
        for mail in mails(folder):
            assert mail.fields["id"] == md5(mail.body), f"{mail.name} is not whole"
            found[mail.fields["id"]].append(mail.sequence)
    return found


def assert_each_once(box: Box, count: int, *folders: Path, times: int = 1) -> None:
    """All letters are delivered, `times` copies each (one per mailbox), numbered from 1 on, logged once."""
    found = copies(box, *folders)
    assert box.outbox() == [] and box.dead() == []
    assert all(len(numbers) == times and len(set(numbers)) == 1 for numbers in found.values()), found
    assert sorted(numbers[0] for numbers in found.values()) == list(range(1, count + 1))
    lines = Counter((line["file"], line.get("agent")) for line in box.log() if line["action"] == "delivered")
    assert len(lines) == count * times and set(lines.values()) == {1}, lines.most_common(3)
    assert box.tmp_litter() == []


def until_done(box: Box, runs: int = 5) -> None:
    """Route until nothing waits; a run may need another after it."""
    for _ in range(runs):
        if box.route(check=None).returncode == 0:
            return
    raise AssertionError(box.route(check=None))


# -- full disks ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kilobytes", [0, 8, 32, 64, 128, 180, 220, 256, 300, 400])
def test_a_full_disk(tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box], kilobytes: int) -> None:
    """The office's disk has room for a part of the work only, wherever that ends: nothing is lost, it is said."""
    small = disk(tmp_path / "world" / "office")
    box = office()
    put(box, 60, size=2000)
    before = box.census()
    small.fill(leave=kilobytes * 1024)
    done = box.route(check=None)
    assert box.census().letters >= before.letters
    if box.outbox():
        assert done.returncode in (73, 74, 75) and "No space left" in done.stderr, done
    again = box.route(check=None)
    assert box.census().letters >= before.letters and (again.returncode or not box.outbox())
    small.empty()
    until_done(box)
    assert_each_once(box, 60)


def test_a_full_inbox_disk(tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box]) -> None:
    """One mailbox is on a full disk: its copies wait with that reason, all other mail goes on."""
    inbox = tmp_path / "elsewhere" / "checker"
    other = disk(tmp_path / "elsewhere", "64k")
    box = office(inbox=inbox)
    put(box, 20, [BUILDER, CHECKER], size=2000)
    other.fill(leave=8192)
    done = box.route(check=75)
    assert "disk-full" in done.stderr
    assert sum(len(numbers) for numbers in copies(box).values()) == 20
    there = len(mails(inbox / "unread"))
    assert there < 20 and len(box.outbox()) == 20 - there
    other.empty()
    subprocess.run(["mount", "-o", "remount,size=1m", str(tmp_path / "elsewhere-kept")], check=True)
    until_done(box)
    assert_each_once(box, 20, inbox / "unread", times=2)


def test_no_room_for_the_log(tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box]) -> None:
    """The log's disk fills while lines are appended: the mail is delivered, the log is whole, the lines come later."""
    logs = disk(tmp_path / "world" / "office" / "logs", "64k")
    box = office()
    put(box, 40)
    logs.fill(leave=8192)
    done = box.route(check=74)
    assert "delivery-log" in done.stderr and "No space left" in done.stderr
    assert len(copies(box)) == 40 and box.log() == []
    assert box.route(check=74).returncode == 74
    logs.empty()
    until_done(box)
    assert_each_once(box, 40)


@pytest.mark.parametrize("limit", [64, 300, 1000, 4000, 8000, 12000, 20000])
def test_short_writes(office: Callable[..., Box], limit: int) -> None:
    """No file may grow beyond a limit (RLIMIT_FSIZE), so that any write may be cut short: nothing partial is seen."""
    box = office()
    put(box, 5, flow="run-0")
    box.route()
    put(box, 20, size=200)
    before = box.census()
    limited = ["prlimit", f"--fsize={limit}"]
    for _ in range(2):
        done = box.route(check=None, prefix=limited)
        assert box.census().letters >= before.letters
        assert done.returncode in (73, 74, 75) or not box.outbox(), done
        assert [mail.name for mail in box.unread("lab.builder") if mail.fields["id"] != md5(mail.body)] == []
    until_done(box)
    numbers = [mail.sequence for mail in box.unread("lab.builder") if mail.fields["correlation_id"] == "run-1"]
    assert sorted(numbers) == list(range(1, 21)) and box.outbox() == []
    assert Counter(line["file"] for line in box.log() if line["action"] == "delivered").most_common(1)[0][1] == 1


# -- disks that come and go ----------------------------------------------------------------------------------------


def test_an_inbox_on_another_disk(tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box]) -> None:
    """A mailbox on another file system gets its mail by a rename there, in small and in large batches."""
    inbox = tmp_path / "elsewhere" / "checker"
    disk(tmp_path / "elsewhere")
    box = office(inbox=inbox)
    put(box, 3, [BUILDER, CHECKER])
    box.route()
    assert_each_once(box, 3, inbox / "unread", times=2)
    put(box, 30, [BUILDER, CHECKER], flow="run-2")
    box.route()
    assert len(mails(inbox / "unread")) == 33 and os.listdir(inbox / "tmp") == []


@pytest.mark.parametrize("count", [5, 30])
def test_an_inbox_gone_read_only(
    tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box], count: int
) -> None:
    """A mailbox whose disk has gone read-only closes for a while; the rest goes on, and it gets its mail later."""
    inbox = tmp_path / "elsewhere" / "checker"
    other = disk(tmp_path / "elsewhere")
    box = office(inbox=inbox)
    put(box, count, [BUILDER, CHECKER])
    other.make("ro")
    done = box.route(check=75)
    assert "inbox-unavailable" in done.stderr
    assert len(copies(box)) == count and mails(inbox / "unread") == []
    assert len(box.outbox()) == count
    other.make("rw")
    box.route()
    assert_each_once(box, count, inbox / "unread", times=2)


# -- what happens between a crash and the recovery -----------------------------------------------------------------


class Crash:
    """A run that is killed just before a chosen call."""

    def __init__(self, warm: Warm) -> None:
        self._warm = warm

    def calls(self, box: Box) -> list[Point]:
        """Return the calls of a whole run."""
        strace = ("-y", "-e", f"trace={optional(CHANGING)}")
        return points(self._warm.run("--root", str(box.root), "route", strace=strace).trace, CHANGING, str(box.root))

    def at(self, box: Box, point: Point) -> None:
        """Kill a run at this call."""
        inject = f"inject={point.name}:signal=KILL:when={point.number}"
        strace = ("-e", f"trace={point.name}", "-e", inject)
        assert self._warm.run("--root", str(box.root), "route", strace=strace).killed


@pytest.fixture
def crash(warm: Warm) -> Crash:
    """What kills a run."""
    return Crash(warm)


# Where a run is killed: the first call of this name whose text matches.
COMMITTED = ("renameat2", r"/tmp/postmaster-.*unread/")  # the journal is in place, nothing is renamed yet
RENAMED = ("write", r"delivery-log\.jsonl")  # all is renamed, nothing is logged
LOGGED = ("renameat2", r"postmaster-taken")  # all is logged, nothing is cleared
CLEARED = ("unlink", r"\.postmaster/journal\b")  # only the journal is left


def crashed(crash: Crash, make: Callable[[str], Box], where: tuple[str, str]) -> Box:
    """Return an office whose router was killed there: one shows where that is, another like it is killed."""
    name, pattern = where
    for point in crash.calls(make("shown")):
        if point.name == name and re.search(pattern, point.text):
            break
    else:
        raise AssertionError(f"no {where} in this run")
    box = make("world")
    crash.at(box, point)
    return box


@pytest.mark.parametrize("where", [COMMITTED, RENAMED], ids=["before it was renamed", "after it was renamed"])
def test_an_inbox_disk_gone_before_the_recovery(
    tmp_path: Path, disk: Callable[..., Disk], office: Callable[..., Box], crash: Crash, where: tuple[str, str]
) -> None:
    """The copy waits with the number that it has, and is delivered once, under that number, when the disk is back."""
    inbox = tmp_path / "elsewhere" / "checker"
    other = disk(tmp_path / "elsewhere")

    def make(name: str) -> Box:
        shutil.rmtree(inbox, ignore_errors=True)
        box = office(name, inbox=inbox)
        put(box, 3, [BUILDER, CHECKER])
        return box

    box = crashed(crash, make, where)
    other.disconnect()
    done = box.route(check=75)
    assert "checker" in done.stderr
    waiting = [line for line in box.log() if line["action"] == "deferred"]
    assert [(line["agent"], line["sequence"]) for line in waiting] == [("lab.checker", n) for n in (1, 2, 3)]
    assert len(copies(box)) == 3 and len(box.outbox()) == 3
    put(box, 1, flow="run-2")
    box.route(check=75)
    assert len(box.unread("lab.builder")) == 4, "other mail must not wait"
    other.connect()
    box.route()
    found = mails(inbox / "unread")
    assert [mail.sequence for mail in found] == [1, 2, 3], "delivered once, under the number it had"
    assert box.outbox() == [] and box.tmp_litter() == []
    told = [line["file"] for line in box.log() if line["agent"] == "lab.checker" and line["action"] == "delivered"]
    assert sorted(told) == ["run-1-00000.md", "run-1-00001.md", "run-1-00002.md"]
    box.route()
    assert mails(inbox / "unread") == found


@pytest.mark.parametrize("where", [RENAMED, LOGGED, CLEARED], ids=["renamed", "logged", "cleared"])
@pytest.mark.parametrize("packed", [False, True], ids=["as it is", "compressed"])
def test_the_log_is_rotated_before_the_recovery(
    office: Callable[..., Box], crash: Crash, where: tuple[str, str], packed: bool
) -> None:
    """Lines that are in a rotated log are not written again; those that are in none are written."""

    def make(name: str) -> Box:
        box = office(name)
        put(box, 2, flow="run-0")
        box.route()
        put(box, 3)
        return box

    box = crashed(crash, make, where)
    log = box.root / "logs" / "delivery-log.jsonl"
    if packed:
        (box.root / "logs" / "delivery-log-20260304.jsonl.gz").write_bytes(gzip.compress(log.read_bytes()))
        log.unlink()
    else:
        log.rename(f"{log}.1")
    box.route()
    rotated = gzip.decompress(next((box.root / "logs").glob("*.gz")).read_bytes()) if packed else b""
    text = rotated + b"".join(path.read_bytes() for path in (box.root / "logs").glob("*jsonl*") if path.suffix != ".gz")
    assert Counter(re.findall(rb'"action":"delivered".*"file":"([^"]+)"', text)) == {
        name.encode(): 1 for name in ("run-0-00000.md", "run-0-00001.md", *(f"run-1-0000{n}.md" for n in range(3)))
    }
    put(box, 1, flow="run-1-later")
    box.drop("next.md", letter(BUILDER, correlation_id="run-1", body="next\n"))
    box.route()
    assert box.line("next.md")["sequence"] == 4


@pytest.mark.parametrize("kept", [0, 1, 30, 200, -1], ids=lambda kept: f"{kept} bytes kept")
def test_a_torn_line_is_completed(office: Callable[..., Box], crash: Crash, kept: int) -> None:
    """The log's end is torn by the crash: the next run completes it, and no line is fused with another."""

    def make(name: str) -> Box:
        box = office(name)
        put(box, 2, flow="run-0")
        box.route()
        put(box, 3)
        return box

    box = crashed(crash, make, LOGGED)
    log = box.root / "logs" / "delivery-log.jsonl"
    raw = log.read_bytes()
    lines = raw.splitlines(keepends=True)
    log.write_bytes(b"".join(lines[:2]) + b"".join(lines[2:])[:kept])
    box.route()
    assert log.read_bytes() == raw


@pytest.mark.parametrize("where", [RENAMED, LOGGED], ids=["before it was logged", "after it was logged"])
@pytest.mark.parametrize("how", ["acknowledges", "deletes"])
def test_the_recipient_was_faster_than_the_recovery(
    office: Callable[..., Box], crash: Crash, where: tuple[str, str], how: str
) -> None:
    """A message that its recipient has acknowledged or deleted since the crash is not delivered again."""

    def make(name: str) -> Box:
        box = office(name)
        put(box, 3)
        return box

    box = crashed(crash, make, where)
    inbox = box.inbox("lab.builder")
    for name in sorted(os.listdir(inbox / "unread"))[:2]:
        if how == "deletes":
            (inbox / "unread" / name).unlink()
        else:
            (inbox / "unread" / name).rename(inbox / "read" / name)
    box.route()
    assert [mail.sequence for mail in box.unread("lab.builder")] == [3]
    assert box.outbox() == [] and box.tmp_litter() == []
    assert [(line["action"], line["sequence"]) for line in box.log()] == [("delivered", n) for n in (1, 2, 3)]


def test_private_files_deleted_after_a_crash(office: Callable[..., Box], crash: Crash) -> None:
    """Whoever deletes .postmaster/ after a crash loses nothing: at worst a message comes twice, numbered the same."""

    def make(name: str) -> Box:
        box = office(name)
        put(box, 3)
        return box

    renames = [point for point in crash.calls(make("shown")) if point.name in ("renameat2", "write", "unlink")]
    for index, point in enumerate(renames):
        box = make(f"world-{index}")
        crash.at(box, point)
        shutil.rmtree(box.root / ".postmaster")
        until_done(box)
        found = copies(box)
        assert len(found) == 3 and box.outbox() == [], (point, found)
        assert all(len(set(numbers)) == 1 and len(numbers) <= 2 for numbers in found.values()), (point, found)
        assert sorted(numbers[0] for numbers in found.values()) == [1, 2, 3], (point, found)


# -- limits and locks ----------------------------------------------------------------------------------------------


def test_few_descriptors(office: Callable[..., Box]) -> None:
    """2,000 letters need no more than 64 open files."""
    box = office()
    put(box, 2000)
    box.route(prefix=["prlimit", "--nofile=64"])
    assert_each_once(box, 2000)


@pytest.mark.parametrize("round_", range(3))
def test_two_routers_without_a_lock(office: Callable[..., Box], warm: Warm, round_: int) -> None:
    """Two routers at once where flock(2) does nothing: nothing is lost, and no message has two numbers."""
    assert warm, "strace is needed"
    box = office()
    put(box, 300)
    unlocked = ["strace", "-f", "-qq", "-o", os.devnull, "-e", "trace=flock", "-e", "inject=flock:retval=0"]
    running = []
    for _ in range(2):
        running.append(
            subprocess.Popen(
                [*unlocked, *box.command("route", "--now")],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=box.environment(),
            )
        )
        time.sleep(0.15 * round_)
    for one in running:
        _, said = one.communicate(timeout=120)
        assert one.returncode in (0, 74, 75) and "Traceback" not in said and "internal" not in said, said
    until_done(box)
    found = copies(box)
    assert len(found) == 300 and box.outbox() == [] and box.dead() == []
    assert all(len(set(numbers)) == 1 for numbers in found.values()), "one message, two numbers"
    assert sorted(numbers[0] for numbers in found.values()) == list(range(1, 301)), "one number, two messages"
    assert box.tmp_litter() == []


def test_a_new_letter_on_a_reused_inode_is_not_removed(office: Callable[..., Box]) -> None:
    """A letter that a killed run had taken is removed only if it is the one that was delivered, not by its inode."""
    box = office()
    taken = box.root / "outbox" / ".postmaster-taken"
    taken.write_bytes(letter(to=BUILDER, body="written after the first one was unlinked"))
    seen = taken.stat()
    os.utime(taken, ns=(seen.st_atime_ns, seen.st_mtime_ns - 3600 * 10**9))
    delivered = {"name": "a.md", "device": seen.st_dev, "inode": seen.st_ino, "size": seen.st_size, "mtime_ns": 1}
    (box.root / ".postmaster" / "removals").write_text(json.dumps([delivered]))
    box.route()
    (mail,) = box.unread("lab.builder")
    assert mail.body == b"written after the first one was unlinked"
