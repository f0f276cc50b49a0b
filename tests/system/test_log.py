"""`postmaster log`: filters, forms, and following through rotation, truncation and torn lines."""

import gzip
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import Box, letter


@pytest.fixture
def posted(lab: Box) -> Box:
    """An office with two flows and some refusals in its log."""
    lab.drop("a.md", letter(subject="one", body="1\n"))
    lab.drop("b.md", letter(subject="two", body="2\n", correlation_id="run-2"))
    lab.drop("c.md", letter(to="checker@lab.internal", subject="three", body="3\n"))
    lab.drop("d.md", letter(to="nobody@lab.internal", subject="four", body="4\n"))
    lab.drop("e.md", letter(from_="stranger@lab.internal", subject="five", body="5\n", correlation_id="run-2"))
    lab.route()
    return lab


def raw(box: Box) -> list[str]:
    """Return the lines of the log file."""
    return (box.root / "logs" / "delivery-log.jsonl").read_text().splitlines()


def subjects(box: Box, *args: str) -> list[str]:
    """Return the subjects of the lines shown, having checked that they are lines of the log, in its order."""
    done = box.run("log", "--json", *args)
    assert (done.returncode, done.stderr) == (0, "")
    shown = done.stdout.splitlines()
    assert [line for line in raw(box) if line in shown] == shown
    human = box.run("log", *args)
    assert human.stdout.splitlines()[0] == f"office {box.root}: {len(raw(box))} lines, {len(shown)} shown"
    assert len(human.stdout.splitlines()) == len(shown) + 1
    return [json.loads(line)["subject"] for line in shown]


def test_no_blanks_too_many() -> None:
    """What a line lacks leaves no double blank and no blank at its end."""
    from postmaster.cli import log, route

    failed = {"time": "T", "action": "turn-failed", "agent": "lab.a", "id": "0" * 32, "detail": "attempt 1"}
    assert log.describe(failed) == "T turn-failed lab.a [00000000] (attempt 1)"
    dead = {"time": "T", "action": "dead-letter", "file": "a.md", "to": "b@c", "reason": "unknown-recipient"}
    assert log.describe({**dead, "detail": ""}) == "T dead-letter ? -> b@c a.md (unknown-recipient)"
    answer = {"busy": False, "letters": [{**dead, "detail": ""}], "waiting": [], "counts": {}, "deferred": 0}
    shown = route.lines({**answer, "dry_run": False, "office": "/o"})
    assert shown[0] == "dead-letter a.md [unknown-recipient]"


def test_filters(posted: Box) -> None:
    """Every filter, and filters together."""
    assert subjects(posted) == ["one", "two", "three", "four", "five"]
    assert subjects(posted, "--correlation", "run-2") == ["two", "five"]
    assert subjects(posted, "--action", "rejected") == ["five"]
    assert subjects(posted, "--reason", "unknown-recipient") == ["four"]
    assert subjects(posted, "--action", "delivered", "--limit", "1") == ["three"]
    assert subjects(posted, "--limit", "0") == []
    assert subjects(posted, "--correlation", "run-") == []
    one = json.loads(raw(posted)[0])["id"]
    assert subjects(posted, "--id", one[:10].upper()) == ["one"]


@pytest.mark.parametrize(
    "agent", ["lab.builder", "LAB.Builder", "builder@lab.internal", "Mason@lab.internal", "agent:lab.builder"]
)
def test_an_agent_by_id_address_or_alias(posted: Box, agent: str) -> None:
    """An agent is known by its id and by each of its addresses."""
    assert subjects(posted, "--agent", agent) == ["one", "two", "five"]


def test_an_agent_that_the_registry_does_not_know(posted: Box) -> None:
    """Lines about an unknown address can be asked for too; without a registry ids still work."""
    assert subjects(posted, "--agent", "nobody@lab.internal") == ["four"]
    assert subjects(posted, "--agent", "nobody") == []
    (posted.root / "agent-registry.yml").unlink()
    assert subjects(posted, "--agent", "lab.checker") == ["three"]


def test_the_form_for_people(posted: Box) -> None:
    """One line for each record, with number, addresses, place and reason."""
    line = posted.run("log", "--reason", "unknown-recipient").stdout.splitlines()[1]
    assert "dead-letter run-1 #3 conductor@lab.internal -> nobody@lab.internal job.run" in line
    assert "dead-letter/d.md (unknown-recipient: no agent has the address nobody@lab.internal" in line


def test_an_empty_log(box: Box) -> None:
    """An office that has never routed has no lines."""
    done = box.run("log")
    assert (done.returncode, done.stdout) == (0, f"office {box.root}: 0 lines, 0 shown\n")
    assert box.run("log", "--json").stdout == ""


def test_rotated_logs_are_shown_first(posted: Box) -> None:
    """Rotated and compressed logs are part of the log; a damaged one is named and the others are shown."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    old = posted.root / "logs" / "delivery-log-20260304.jsonl.gz"
    lines = log.read_bytes().splitlines(keepends=True)
    old.write_bytes(gzip.compress(b"".join(lines[:3])))
    log.write_bytes(b"".join(lines[3:]))
    assert posted.run("log", "--json").stdout.encode() == b"".join(lines)
    assert posted.run("log").stdout.startswith(f"office {posted.root}: 5 lines, 5 shown\n")
    old.write_bytes(old.read_bytes()[:40])
    done = posted.run("log", "--json")
    assert done.returncode == 74
    assert done.stdout.encode().endswith(b"".join(lines[3:]))
    assert old.name in done.stderr


def test_odd_lines_are_passed_over_and_controls_escaped(posted: Box) -> None:
    """Torn and foreign lines are no records; text from outside cannot drive a terminal."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    evil = {
        "time": "2026-03-04T10:00:00.123456Z",
        "action": "delivered",
        "subject": "\x1b[2J\nfake \ud800",
        "from": "x",
        "path": "\u202e",
    }
    log.write_bytes(
        log.read_bytes() + b"[[[\n" + b"[" * 90_000 + b"\n" + json.dumps(evil).encode() + b"\n" + b'{"time":"'
    )
    done = posted.run("log", env={"PYTHONIOENCODING": "ascii"})
    assert done.returncode == 0
    assert "\x1b" not in done.stdout and "\u202e" not in done.stdout
    assert done.stdout.startswith(f"office {posted.root}: 6 lines, 6 shown\n")
    assert len(done.stdout.splitlines()) == 7


def test_usage_and_no_office(posted: Box) -> None:
    """A limit below zero is a usage error; a root that is no office ends with 78."""
    assert posted.run("log", "--limit", "-1").returncode == 64
    (posted.root / "outbox").rmdir()
    assert posted.run("log").returncode == 78


class Following:
    """A `log --follow --json` that is at work."""

    def __init__(self, box: Box, *args: str) -> None:
        self.process = subprocess.Popen(
            box.command("log", "--follow", "--json", *args),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=box.environment(),
        )
        self.seen = b""

    def expect(self, count: int, within: float = 30) -> list[bytes]:
        """Wait until so many lines have been printed; return all of them."""
        assert self.process.stdout is not None
        end = time.monotonic() + within
        while self.seen.count(b"\n") < count and time.monotonic() < end:
            if select.select([self.process.stdout], [], [], 0.1)[0]:
                self.seen += os.read(self.process.stdout.fileno(), 1 << 16)
        return self.seen.splitlines(keepends=True)

    def stop(self) -> int:
        """Press Ctrl-C; return the exit code."""
        self.process.send_signal(signal.SIGINT)
        _, said = self.process.communicate(timeout=30)
        assert b"Traceback" not in said
        return self.process.returncode


def line(number: int) -> bytes:
    """Return a log line that is known again."""
    return b'{"time":"2099-03-04T10:00:%02d.000000Z","action":"nudged","detail":"%d"}\n' % (number % 60, number)


def append(path: Path, data: bytes) -> None:
    """Append to a file."""
    with open(path, "ab") as stream:
        stream.write(data)


def test_follow_prints_what_is_appended(posted: Box) -> None:
    """New lines are printed as they come, filtered; Ctrl-C ends it with 130."""
    following = Following(posted, "--action", "delivered")
    assert len(following.expect(3)) == 3
    posted.drop("new.md", letter(subject="six", body="6\n"))
    posted.drop("dead.md", letter(to="nobody@lab.internal", body="7\n"))
    posted.route()
    assert json.loads(following.expect(4)[3])["subject"] == "six"
    assert following.stop() == 130
    assert following.seen.count(b"\n") == 4


def test_follow_waits_for_the_end_of_a_torn_line(posted: Box) -> None:
    """Half a line is not printed; the whole of it is, once."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    following = Following(posted, "--action", "nudged")
    append(log, line(1))
    assert following.expect(1) == [line(1)]
    append(log, line(2)[:30])
    time.sleep(0.6)
    assert following.expect(1, within=0.1) == [line(1)]
    append(log, line(2)[30:])
    assert following.expect(2) == [line(1), line(2)]
    append(log, line(3)[:20])
    time.sleep(0.5)
    os.truncate(log, log.stat().st_size - 20)  # what the router does when the disk is full
    append(log, line(4))
    assert following.expect(3) == [line(1), line(2), line(4)]
    assert following.stop() == 130


def test_follow_goes_through_rotation_and_truncation(posted: Box) -> None:
    """No line is lost or doubled when the log is renamed, even twice at once; a log that was emptied is read anew."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    following = Following(posted, "--action", "nudged")
    append(log, line(1))
    assert following.expect(1) == [line(1)]
    append(log, line(2))
    log.rename(log.with_name("delivery-log-1.jsonl"))
    append(log, line(3))
    log.rename(log.with_name("delivery-log-2.jsonl"))
    append(log, line(4))
    assert [json.loads(one)["detail"] for one in following.expect(4)] == ["1", "2", "3", "4"]
    os.truncate(log, 0)
    time.sleep(0.5)
    append(log, line(5))
    assert following.expect(5)[-1] == line(5)
    log.unlink()
    time.sleep(0.5)
    append(log, line(6))
    assert following.expect(6)[-1] == line(6)
    assert following.stop() == 130


def test_follow_of_a_log_that_is_not_there_yet(box: Box) -> None:
    """The first line ever is printed."""
    following = Following(box)
    time.sleep(0.5)
    append(box.root / "logs" / "delivery-log.jsonl", line(1))
    assert following.expect(1) == [line(1)]
    assert following.stop() == 130


def test_follow_ends_when_nobody_reads(posted: Box) -> None:
    """A reader that goes away ends it, though nothing is written."""
    process = subprocess.Popen(
        posted.command("log", "--follow", "--limit", "0"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=posted.environment(),
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert (process.wait(timeout=30), said) == (141, b"")
    process.stderr.close()


def test_a_closed_pipe_is_no_error(posted: Box) -> None:
    """`postmaster log | head -1` says nothing on stderr."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    append(log, b"".join(line(number) for number in range(20_000)))
    script = '"$@" log | head -n 1'
    done = subprocess.run(
        ["/bin/sh", "-c", script, "sh", *posted.command()], capture_output=True, env=posted.environment(), check=True
    )
    assert done.stdout.count(b"\n") == 1
    assert done.stderr == b""


def test_a_closed_stdout_and_a_poor_encoding_are_no_error(posted: Box) -> None:
    """Every listing can be run with stdout closed, and where a character cannot be written."""
    posted.drop("gr.md", letter(subject="Größe", body="x\n"))
    posted.route()
    for command in ("log", "status", "verify", "cron"):
        script = '"$@" >&-'
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *posted.command(command)],
            capture_output=True,
            env=posted.environment(),
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, b""), command
    done = posted.run("log", env={"PYTHONIOENCODING": "ascii"})
    assert (done.returncode, done.stderr) == (0, "")
    assert "Gr\\xf6\\xdfe" in done.stdout
