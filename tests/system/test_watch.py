"""`postmaster watch`: mail is routed as it comes, whatever happens around it."""

import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support import Box, letter

HIDE = "import sys; sys.modules['watchfiles'] = None\n"


class Watcher:
    """A `watch` that runs, and what it says."""

    def __init__(self, box: Box, *options: str) -> None:
        self.process = box.start("watch", "-v", *options)
        self.said: list[str] = []
        self.out: list[str] = []
        self._threads = [
            threading.Thread(target=self._read, args=(self.process.stderr, self.said), daemon=True),
            threading.Thread(target=self._read, args=(self.process.stdout, self.out), daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        until(lambda: bool(self.out))

    def _read(self, stream: Any, lines: list[str]) -> None:
        with stream:
            lines.extend(iter(stream.readline, ""))

    def join(self) -> None:
        """Read all that it said."""
        for thread in self._threads:
            thread.join(30)

    def end(self, number: int = signal.SIGTERM) -> int:
        """End it; return its exit code."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.join()
        assert "Traceback" not in "".join(self.said)
        return code


def until(holds: Callable[[], bool], seconds: float = 30) -> None:
    """Wait until something holds."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.fixture(params=[(), ("--poll", "0.1")], ids=["notified", "polling"])
def watcher(request: pytest.FixtureRequest, lab: Box) -> Iterator[Watcher]:
    """A watch over the laboratory."""
    running = Watcher(lab, *request.param)
    yield running
    if running.process.poll() is None:
        running.process.kill()
        running.process.wait()
    running.join()


def drop(box: Box, number: int, **fields: str) -> None:
    """Hand in a letter, as young as letters are."""
    box.drop(f"{number}.md", letter(correlation_id=f"run-{number}", body=f"{number}\n", **fields), age_seconds=0)


def test_mail_is_routed_as_it_comes(lab: Box, watcher: Watcher) -> None:
    """One letter after the other, then many at once; SIGTERM ends it with 0."""
    for number in range(5):
        drop(lab, number)
        until(lambda count=number + 1: len(lab.unread("lab.builder")) == count)  # type: ignore[misc]
    for number in range(5, 60):
        drop(lab, number)
    until(lambda: len(lab.unread("lab.builder")) == 60)
    until(lambda: lab.outbox() == [])
    assert watcher.end() == 0
    assert watcher.said == []
    assert sum(line.startswith("delivered") for line in watcher.out) == 60
    assert lab.run("verify").returncode == 0


def test_mail_that_was_there_before(lab: Box) -> None:
    """The first round takes it."""
    drop(lab, 1)
    running = Watcher(lab)
    until(lambda: len(lab.unread("lab.builder")) == 1)
    assert running.end(signal.SIGINT) == 130


def test_unfinished_letters_wait(lab: Box, watcher: Watcher) -> None:
    """A letter that its writer holds open is taken when it is closed, whole; private names are left alone."""
    path = lab.root / "outbox" / "slow.md"
    raw = letter()
    with open(path, "wb", buffering=0) as stream:
        stream.write(raw[:50])
        (lab.root / "outbox" / ".private").write_text("x")
        time.sleep(1.2)
        assert path.exists() and lab.dead() == []
        stream.write(raw[50:])
    until(lambda: len(lab.unread("lab.builder")) == 1)
    until(lambda: lab.outbox() == [".private"])
    assert watcher.end() == 0


def test_half_a_letter_settles_first(lab: Box, watcher: Watcher) -> None:
    """A young malformed letter is left to its writer for `settle_seconds`, then it is dead; and no sooner."""
    (lab.root / "post-office.yml").write_text("settle_seconds: 2\n")
    begun = time.time()
    lab.drop("half.md", b"---\nto: builder@lab.internal\n", mtime=begun)
    until(lambda: lab.dead() == ["half.md"])
    assert time.time() - begun >= 2
    assert watcher.end() == 0


def test_a_broken_registry_is_told_of_once(lab: Box, watcher: Watcher) -> None:
    """The mail waits meanwhile, and goes as soon as the registry is mended."""
    drop(lab, 9)
    until(lambda: len(lab.unread("lab.builder")) == 1 and lab.outbox() == [])  # the first round is over
    good = (lab.root / "agent-registry.yml").read_bytes()
    (lab.root / "agent-registry.yml").write_text("agents: [\n")
    for number in range(3):
        drop(lab, number)
        time.sleep(0.3)
    until(lambda: bool(watcher.said))
    assert len([line for line in watcher.said if "not a valid registry" in line]) == 1
    assert len(lab.unread("lab.builder")) == 1
    (lab.root / "agent-registry.yml").write_bytes(good)
    until(lambda: len(lab.unread("lab.builder")) == 4)
    until(lambda: any("routing again" in line for line in watcher.said))
    assert watcher.end() == 0


def test_the_office_goes_and_comes_back(lab: Box, watcher: Watcher) -> None:
    """An outbox that is gone is told of once; one that is made anew is watched like the old one."""
    outbox = lab.root / "outbox"
    outbox.rename(outbox.with_name("old"))
    until(lambda: any("is not an office" in line for line in watcher.said))
    outbox.mkdir()
    drop(lab, 1)
    until(lambda: len(lab.unread("lab.builder")) == 1)
    drop(lab, 2)
    until(lambda: len(lab.unread("lab.builder")) == 2)
    assert watcher.end() == 0


def test_another_router_is_at_work(lab: Box, watcher: Watcher) -> None:
    """While another holds the lock the letter waits; then it is routed, and nothing is said."""
    drop(lab, 1)
    until(lambda: len(lab.unread("lab.builder")) == 1)
    with open(lab.root / ".postmaster/lock", "rb+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        drop(lab, 2)
        time.sleep(0.7)
        assert len(lab.unread("lab.builder")) == 1
    until(lambda: len(lab.unread("lab.builder")) == 2)
    assert watcher.end() == 0
    assert watcher.said == []


def test_ended_while_another_router_is_at_work(lab: Box, watcher: Watcher) -> None:
    """SIGTERM does not wait for the lock."""
    with open(lab.root / ".postmaster/lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        drop(lab, 1)
        time.sleep(0.3)
        assert watcher.end() == 0
    assert len(lab.outbox()) + len(lab.unread("lab.builder")) == 1


def test_a_deferred_letter_is_told_of_once(lab: Box, watcher: Watcher) -> None:
    """A closed inbox defers it, and other mail goes on; it is delivered by a later round."""
    unread = lab.inbox("lab.builder") / "unread"
    unread.rmdir()
    unread.write_text("no directory")
    drop(lab, 1)
    until(lambda: any("deferred (inbox-unavailable)" in line for line in watcher.said))
    drop(lab, 2, to="echo@lab.internal")
    until(lambda: len(lab.unread("lab.echo")) == 1)
    unread.unlink()
    unread.mkdir()
    drop(lab, 3, to="echo@lab.internal")
    until(lambda: len(lab.unread("lab.builder")) == 1)
    assert watcher.end() == 0
    assert len(watcher.said) == 1


def test_directories_and_links_are_not_followed(lab: Box, watcher: Watcher) -> None:
    """What is no letter becomes a dead letter, and what is behind it is not looked at."""
    outside = lab.world / "scratch" / "outside"
    outside.mkdir()
    (lab.root / "outbox" / "link").symlink_to(outside)
    (lab.root / "outbox" / "folder").mkdir()
    os.mkfifo(lab.root / "outbox" / "pipe")
    until(lambda: lab.dead() == ["folder", "link", "pipe"])
    drop(lab, 1)
    until(lambda: len(lab.unread("lab.builder")) == 1)
    assert watcher.end() == 0


def test_it_nudges_beside_routing(lab: Box, watcher: Watcher) -> None:
    """A nudge that hangs holds up no mail; a busy agent is told once it is idle."""
    lab.declare(
        "desk",
        "agents:\n"
        "  - {id: desk.slow, address: slow@desk.internal, accepts: [job.run], accepts_from: ['*'],\n"
        "     nudge: [/bin/sh, '-c', 'echo $$ > $POSTMASTER_ROOT/slow; exec sleep 5']}\n"
        "  - {id: desk.busy, address: busy@desk.internal, accepts: [job.run], accepts_from: ['*'],\n"
        f"     idle: [/usr/bin/test, '-e', {lab.root}/idle],\n"
        "     nudge: [/bin/sh, '-c', 'echo x >> $POSTMASTER_ROOT/told']}\n",
    )
    lab.merge()
    drop(lab, 1, to="busy@desk.internal")
    until(lambda: len(lab.unread("desk.busy")) == 1)
    drop(lab, 2, to="slow@desk.internal")
    until((lab.root / "slow").exists)
    drop(lab, 3)
    until(lambda: len(lab.unread("lab.builder")) == 1, 4)
    (lab.root / "idle").touch()
    until((lab.root / "told").exists)
    assert watcher.end() == 0
    assert (lab.root / "told").read_text() == "x\n"


def test_two_of_them(lab: Box, watcher: Watcher) -> None:
    """Any number may run: each letter is delivered once."""
    second = Watcher(lab, "--poll", "0.05")
    for number in range(40):
        drop(lab, number)
    until(lambda: len(lab.unread("lab.builder")) == 40)
    assert (watcher.end(), second.end()) == (0, 0)
    assert sum(line["action"] == "delivered" for line in lab.log()) == 40
    assert lab.run("verify").returncode == 0


def test_killed(lab: Box, watcher: Watcher) -> None:
    """What a killed one left is ended by the next."""
    for number in range(100):
        drop(lab, number)
    watcher.process.kill()
    watcher.process.wait()
    running = Watcher(lab)
    until(lambda: len(lab.unread("lab.builder")) == 100 and lab.outbox() == [])
    assert running.end() == 0
    assert lab.run("verify").returncode == 0


def test_without_the_package(lab: Box) -> None:
    """It says what to install, and that --poll does without; with --poll it needs nothing."""

    def run(*options: str) -> subprocess.Popen[str]:
        code = HIDE + f"sys.argv = {['postmaster', '--root', str(lab.root), 'watch', *options]!r}\n"
        return subprocess.Popen(
            [sys.executable, "-c", code + "from postmaster.cli import main; main()"],
            stderr=subprocess.PIPE,
            stdin=subprocess.DEVNULL,
            text=True,
            env=lab.environment(),
        )

    done = run()
    err = done.communicate(timeout=30)[1]
    assert done.returncode == 69
    assert "pip install '.[watchfiles]'" in err and "--poll" in err
    drop(lab, 1)
    with run("--poll", "0.1") as polling:
        try:
            until(lambda: len(lab.unread("lab.builder")) == 1)
            polling.terminate()
            assert polling.wait(30) == 0
        finally:
            polling.kill()


def test_no_office(box: Box) -> None:
    """There is nothing to watch: exit 78."""
    (box.root / "outbox").rmdir()
    done = box.run("watch")
    assert done.returncode == 78 and "is not an office" in done.stderr


def test_help_has_an_example(box: Box) -> None:
    """The command explains itself."""
    done = box.run("watch", "--help")
    assert done.returncode == 0 and "Example:" in done.stdout and "postmaster watch" in done.stdout
