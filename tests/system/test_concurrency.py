"""Routers, senders and readers at once: every letter exactly once, every flow numbered without a gap."""

import ctypes
import errno
import fcntl
import os
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import Box, arrived, letter, write_atomically

BUILDER = "lab.builder"
FLOWS = 8
AT_FDCWD, RENAME_NOREPLACE, RENAME_EXCHANGE = -100, 1, 2


def numbered(box: Box) -> dict[str, list[int]]:
    """Return flow -> its numbers in the log, sorted."""
    flows: dict[str, list[int]] = {}
    for line in box.log():
        flows.setdefault(line["correlation_id"], []).append(line["sequence"])
    return {flow: sorted(numbers) for flow, numbers in flows.items()}


def finish(routers: list[subprocess.Popen[str]]) -> None:
    """Wait for routers, which must have had nothing to say."""
    for router in routers:
        out, err = router.communicate(timeout=120)
        assert (router.returncode, out, err) == (0, "", "")


@contextmanager
def background(work: Callable[[threading.Event], None]) -> Iterator[threading.Event]:
    """Run `work` beside the test until the block ends; a fault in it fails the test."""
    stop, faults = threading.Event(), []

    def guarded() -> None:
        try:
            work(stop)
        except BaseException as fault:
            faults.append(fault)

    thread = threading.Thread(target=guarded)
    thread.start()
    try:
        yield stop
    finally:
        stop.set()
        thread.join(60)
    assert not faults, faults
    assert not thread.is_alive()


def routing(box: Box, seconds: float, at_once: int = 4) -> None:
    """Keep `at_once` routers going for some time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        finish([box.start("route", "--now") for _ in range(at_once)])


def test_four_routers_and_a_writer(lab: Box) -> None:
    """Four routers at once while mail goes on coming: each letter exactly once, each flow 1 to n."""
    waiting = [f"f{flow}-{item:02}" for flow in range(FLOWS) for item in range(50)]
    for name in waiting:
        flow = name.partition("-")[0]
        lab.drop(f"{name}.md", letter(correlation_id=flow, subject=name, body=name))
    late: list[str] = []

    def write(stop: threading.Event) -> None:
        while not stop.wait(0.004):
            name = f"late{len(late):05}"
            lab.drop(f"{name}.md", letter(correlation_id=f"f{len(late) % FLOWS}", subject=name, body=name))
            late.append(name)

    with background(write):
        routing(lab, 3)
    lab.route("--now")
    sent = [*waiting, *late]
    assert len(late) > 10
    assert Counter(mail.fields["subject"] for mail in lab.unread(BUILDER)) == Counter(sent)
    lines = lab.log()
    assert Counter(line["file"] for line in lines) == Counter(f"{name}.md" for name in sent)
    assert {line["action"] for line in lines} == {"delivered"}
    by_flow = Counter(mail.fields["correlation_id"] for mail in lab.unread(BUILDER))
    assert numbered(lab) == {flow: list(range(1, count + 1)) for flow, count in by_flow.items()}
    told = {line["path"]: line["sequence"] for line in lines}
    held = {f"inboxes/{BUILDER}/unread/{mail.name}": mail.sequence for mail in lab.unread(BUILDER)}
    assert told == held
    assert (lab.outbox(), lab.dead(), lab.tmp_litter(), lab.outside()) == ([], [], [], [])
    settled = lab.snapshot()
    lab.route()
    assert lab.snapshot() == settled


def rename(source: Path, target: Path, flags: int) -> bool:
    """Rename with flags; False if the flags' condition does not hold."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(AT_FDCWD, os.fsencode(source), AT_FDCWD, os.fsencode(target), flags) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.ENOENT, errno.EEXIST):
        return False
    raise OSError(code, os.strerror(code))


def test_one_name_used_again_and_again(lab: Box) -> None:
    """A writer that renames over one name loses only what it replaced itself; nothing arrives twice."""
    outbox = lab.root / "outbox"
    private, public = outbox / ".mail.md", outbox / "mail.md"
    try:
        private.write_bytes(b"")
        assert rename(private, outbox / ".probe", RENAME_NOREPLACE)
        (outbox / ".probe").unlink()
    except (AttributeError, OSError):
        pytest.skip("this system has no renameat2")
    sent: list[str] = []
    taken_back: set[str] = set()

    def write(stop: threading.Event) -> None:
        while not stop.wait(0.002):
            name = f"s{len(sent):05}"
            private.write_bytes(letter(subject=name, body=name))
            while not rename(private, public, RENAME_NOREPLACE):
                if rename(private, public, RENAME_EXCHANGE):
                    taken_back.add(private.read_bytes().rpartition(b"\n")[2].decode())
                    private.unlink()
                    break
            sent.append(name)

    with background(write):
        routing(lab, 4, 2)
    lab.route("--now")
    arrivals = Counter(mail.body.decode() for mail in lab.unread(BUILDER))
    assert len(arrivals) > 3
    assert set(arrivals.values()) == {1}, "a letter arrived twice"
    lost = set(sent) - taken_back - set(arrivals)
    assert not lost, f"{len(lost)} letters that nobody took back are gone"
    assert set(arrivals) <= set(sent)
    assert numbered(lab) == {"run-1": list(range(1, len(arrivals) + 1))}
    assert (lab.outbox(), lab.dead(), lab.tmp_litter()) == ([], [], [])


def test_name_freed_then_used_again(lab: Box) -> None:
    """A writer that waits until its name is free again loses nothing at all."""
    public = lab.root / "outbox" / "mail.md"
    sent: list[str] = []

    def write(stop: threading.Event) -> None:
        while not stop.is_set():
            if public.exists():
                continue
            name = f"s{len(sent):05}"
            write_atomically(str(public), letter(subject=name, body=name))
            sent.append(name)

    with background(write):
        routing(lab, 3, 2)
    lab.route("--now")
    assert Counter(mail.fields["subject"] for mail in lab.unread(BUILDER)) == Counter(sent)
    assert [line["subject"] for line in sorted(lab.log(), key=lambda line: line["sequence"])] == sent
    assert numbered(lab) == {"run-1": list(range(1, len(sent) + 1))}


def test_reader_sees_only_whole_letters(lab: Box) -> None:
    """A reader that acknowledges while mail is routed never sees a partial letter and misses none."""
    body = b"line of text\n" * 20_000
    seen: list[str] = []
    unread, read = (lab.inbox(BUILDER) / name for name in ("unread", "read"))

    def look(stop: threading.Event) -> None:
        while not stop.is_set():
            for mail in lab.unread(BUILDER):
                assert mail.body == body
                seen.append(mail.fields["subject"])
                os.rename(unread / mail.name, read / mail.name)

    names = [f"s{number:02}" for number in range(40)]
    with background(look):
        for name in names:
            lab.drop(f"{name}.md", letter(subject=name, body=body))
            if name.endswith(("3", "9")):
                lab.route("--now")
        time.sleep(0.3)
    assert Counter(seen) == Counter(names)
    assert Counter(mail.fields["subject"] for mail in lab.read(BUILDER)) == Counter(names)
    assert lab.unread(BUILDER) == []


@contextmanager
def lock_held(box: Box) -> Iterator[int]:
    """Hold the router's lock, as another router would."""
    path = box.root / ".postmaster" / "lock"
    path.parent.mkdir(mode=0o700, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


def test_plain_route_leaves_when_another_is_at_work(lab: Box) -> None:
    """Plain `route` that finds another at work leaves at once: exit 0, no noise, nothing touched."""
    lab.drop("a.md", sent := letter())
    before = lab.snapshot()
    with lock_held(lab):
        started = time.monotonic()
        done = lab.route()
        assert time.monotonic() - started < 5
        assert (done.stdout, done.stderr) == ("", "")
        assert lab.snapshot() == before
    lab.route()
    arrived(lab, BUILDER, sent)


def test_route_now_waits(lab: Box) -> None:
    """`route --now` waits for the other router, then routes what is there by then."""
    lab.drop("a.md", sent := letter())
    with lock_held(lab):
        router = lab.start("route", "--now")
        with pytest.raises(subprocess.TimeoutExpired):
            router.wait(1.5)
        lab.drop("b.md", later := letter(subject="later"))
        assert lab.outbox() == ["a.md", "b.md"]
    finish([router])
    arrived(lab, BUILDER, sent)
    arrived(lab, BUILDER, later)


def test_killed_router_leaves_no_lock(lab: Box) -> None:
    """A router that is killed leaves no lock behind: the next one routes."""
    for item in range(50):
        lab.drop(f"{item}.md", letter(subject=f"s{item}", body=f"{item}"))
    for pause in (0.05, 0.1, 0.15, 0.2, 0.3):
        router = lab.start("route", "--now")
        time.sleep(pause)
        router.kill()
        router.communicate(timeout=60)
    lab.route()
    assert Counter(mail.fields["subject"] for mail in lab.unread(BUILDER)) == Counter(f"s{item}" for item in range(50))
    assert numbered(lab) == {"run-1": list(range(1, 51))}
    assert len(lab.log()) == 50
    assert (lab.outbox(), lab.tmp_litter()) == ([], [])
