"""The declarations in examples/nudges/: each tells a real program."""

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from support import Box, letter

EXAMPLES = Path(__file__).parents[2] / "examples" / "nudges"
TEXT = "Mail for crew.%s: 1 unread message, from boss@crew.internal. To read: postmaster inbox crew.%s"


def declare(box: Box, name: str, *replaced: tuple[str, str]) -> None:
    """Take an example into the registry, with its paths made those of this test."""
    text = (EXAMPLES / f"{name}.yml").read_text()
    for old, new in replaced:
        assert old in text
        text = text.replace(old, new)
    box.declare("crew", text)
    box.merge()


def mail(box: Box, to: str) -> None:
    """Route a letter."""
    sent = letter(to=f"{to}@crew.internal", from_="boss@crew.internal", type="crew.job", body=str(time.time_ns()))
    box.drop(f"{time.time_ns()}.md", sent)
    box.route(timeout=20)


def until(holds: Callable[[], bool]) -> None:
    """Wait until something holds."""
    end = time.monotonic() + 30
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_every_example_is_tested() -> None:
    """There is a test here for each."""
    assert sorted(path.stem for path in EXAMPLES.glob("*.yml")) == ["desktop", "fifo", "tmux"]


@pytest.mark.skipif(shutil.which("tmux") is None, reason="there is no tmux")
def test_tmux(box: Box, tmp_path: Path) -> None:
    """A line is typed into the session with the agent's name, and into no other; who has no session is told later."""
    socket = str(tmp_path / "tmux")
    tmux = [str(shutil.which("tmux")), "-f", "/dev/null", "-S", socket]
    declare(box, "tmux", ("/usr/bin/tmux", f"{tmux[0]}, -f, /dev/null, -S, {socket}"))
    assert box.run("register", "crew.worker", "--name", "ann").returncode == 0
    assert box.run("register", "crew.worker", "--name", "bob").returncode == 0

    def session(name: str) -> None:
        made = [*tmux, "new-session", "-d", "-s", name, "-x", "200", "-y", "20", f"cat > {tmp_path}/{name}"]
        subprocess.run(made, check=True, env=box.environment({"TERM": "screen"}))

    def typed(name: str) -> str:
        path = tmp_path / name
        return path.read_text() if path.exists() else ""

    try:
        session("bob")
        session("annabel")
        mail(box, "ann")
        assert box.run("nudge", "-v").stdout == "busy        crew.worker+ann\n"
        session("ann")
        until((tmp_path / "ann").exists)
        box.route()
        until(lambda: typed("ann").endswith("\n"))
        assert typed("ann") == TEXT % ("worker+ann", "worker+ann") + "\n"
        mail(box, "bob")
        until(lambda: typed("bob").endswith("\n"))
        assert "crew.worker+bob" in typed("bob")
        assert typed("annabel") == ""
    finally:
        subprocess.run([*tmux, "kill-server"], check=False, capture_output=True)


def test_fifo(box: Box, tmp_path: Path) -> None:
    """With nobody at the other end nothing hangs and the agent counts as busy; whoever comes to read is told."""
    fifo = tmp_path / "reader.fifo"
    script = "/opt/postmaster/examples/nudges/to-fifo"
    declare(box, "fifo", (script, str(EXAMPLES / "to-fifo")), ("/run/crew/reader.fifo", str(fifo)))
    mail(box, "reader")
    assert not fifo.exists()
    os.mkfifo(fifo)
    mail(box, "reader")
    reader = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
    try:
        box.route(timeout=20)
        said = os.read(reader, 4096).decode()
        assert said == (TEXT % ("reader", "reader")).replace("1 unread message", "2 unread messages") + "\n"
    finally:
        os.close(reader)
    done = subprocess.run(
        [str(EXAMPLES / "to-fifo"), str(fifo)], env={"POSTMASTER_TEXT": "x", "PATH": os.environ["PATH"]}, timeout=20
    )
    assert done.returncode != 0


def test_desktop(box: Box, tmp_path: Path) -> None:
    """The notifier is given a title and the text, as arguments of their own."""
    notifier = tmp_path / "notify-send"
    notifier.write_text(f'#!/bin/sh\nfor one in "$@"; do printf "%s\\n" "$one"; done > {tmp_path}/shown\n')
    notifier.chmod(0o755)
    declare(box, "desktop", ("/usr/bin/notify-send", str(notifier)))
    mail(box, "person")
    title = ["--app-name=postmaster", "--", "Mail for person"]
    assert (tmp_path / "shown").read_text().splitlines() == [*title, TEXT % ("person", "person")]
