"""Nudges: an idle agent is told once of each message; a busy one later; a command that fails or hangs harms nothing."""

import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from support import Box, letter

TOLD = 'echo "$POSTMASTER_AGENT|$POSTMASTER_UNREAD|$POSTMASTER_INBOX|$1" >> "$POSTMASTER_ROOT/told"'


def sh(script: str, *arguments: str) -> str:
    """Return the YAML of a command that runs a shell script."""
    return json.dumps(["/bin/sh", "-c", script, "sh", *arguments])


def declare(box: Box, nudge: str = sh(TOLD, "{text}"), idle: str | None = None, more: str = "") -> None:
    """Declare an agent that is nudged, and merge."""
    keys = f"    nudge: {nudge}\n" + (f"    idle: {idle}\n" if idle else "")
    agent = "  - id: desk.clerk\n    address: clerk@desk.internal\n    accepts: [job.run]\n    accepts_from: ['*']\n"
    box.declare("desk", "agents:\n" + agent + keys + more)
    box.merge()


def drop(box: Box, number: int, to: str = "clerk@desk.internal", from_: str = "conductor@lab.internal") -> None:
    """Hand in a letter."""
    box.drop(f"{number}.md", letter(to=to, from_=from_, correlation_id=f"run-{number}", body=f"{number}\n"))


def told(box: Box) -> list[str]:
    """Return what the command wrote."""
    path = box.root / "told"
    return path.read_text().splitlines() if path.exists() else []


def nudged(box: Box) -> list[dict[str, Any]]:
    """Return the log's lines about nudges."""
    return [line for line in box.log() if line["action"] == "nudged"]


# ---------------------------------------------------------------------- being told


def test_route_tells_of_new_mail(lab: Box) -> None:
    """The command is given the agent, the count, the inbox and a text that says from whom; the log says of what."""
    declare(lab)
    drop(lab, 1)
    drop(lab, 2, from_="checker@lab.internal")
    lab.route()
    (line,) = told(lab)
    agent, unread, inbox, text = line.split("|")
    assert (agent, unread, inbox) == ("desk.clerk", "2", str(lab.inbox("desk.clerk")))
    senders = ("checker@lab.internal, conductor@lab.internal", "conductor@lab.internal, checker@lab.internal")
    assert text in [
        f"Mail for desk.clerk: 2 unread messages, from {whom}. To read: postmaster inbox desk.clerk" for whom in senders
    ]
    names = {mail.name for mail in lab.unread("desk.clerk")}
    assert {os.path.basename(line["path"]) for line in nudged(lab)} == names
    assert {line["id"] for line in nudged(lab)} == {mail.fields["id"] for mail in lab.unread("desk.clerk")}
    assert lab.run("verify").returncode == 0


def test_once_whoever_runs_it(lab: Box) -> None:
    """Neither route nor nudge tells again; a new message makes one more nudge, which counts all that is unread."""
    declare(lab)
    drop(lab, 1)
    for _ in range(3):
        lab.route()
        assert lab.run("nudge").returncode == 0
    assert len(told(lab)) == 1
    drop(lab, 2)
    lab.route()
    lab.route()
    assert [line.split("|")[1] for line in told(lab)] == ["1", "2"]
    assert "2 unread messages, 1 of them new" in told(lab)[1]


def test_without_the_private_files(lab: Box) -> None:
    """What was told of is in the log: without .postmaster/ the next run behaves the same."""
    declare(lab)
    drop(lab, 1)
    lab.route()
    subprocess.run(["rm", "-r", str(lab.root / ".postmaster")], check=True)
    lab.route()
    lab.run("nudge")
    assert len(told(lab)) == 1
    drop(lab, 2)
    lab.route()
    assert len(told(lab)) == 2


def test_busy_agents_are_told_later(lab: Box) -> None:
    """While `idle` fails nothing is said; then one nudge tells of all that came, though the outbox is empty."""
    declare(lab, idle=json.dumps(["/usr/bin/test", "-e", str(lab.root / "idle")]))
    for number in range(3):
        drop(lab, number)
        lab.route()
    assert told(lab) == []
    answer = json.loads(lab.run("nudge", "--json").stdout)
    assert (answer["nudged"], answer["busy"]) == ([], ["desk.clerk"])
    (lab.root / "idle").touch()
    lab.route()
    assert [line.split("|")[1] for line in told(lab)] == ["3"]
    assert len(nudged(lab)) == 3


def test_mail_that_was_read_meanwhile(lab: Box) -> None:
    """What is acknowledged before the agent is idle is not announced, and not when it is put back either."""
    declare(lab, idle=json.dumps(["/usr/bin/test", "-e", str(lab.root / "idle")]))
    drop(lab, 1)
    lab.route()
    lab.ack("desk.clerk")
    (lab.root / "idle").touch()
    lab.route()
    assert told(lab) == []
    (mail,) = lab.read("desk.clerk")
    assert lab.run("unread", "desk.clerk", mail.name).returncode == 0
    lab.route()
    assert told(lab) == []


def test_mail_that_is_read_while_the_agent_is_asked(lab: Box) -> None:
    """It is looked again at the moment the nudge fires: here the `idle` command itself reads the mail."""
    inbox = lab.inbox("desk.clerk")
    declare(lab, idle=sh(f"mv {inbox}/unread/* {inbox}/read/"))
    drop(lab, 1)
    lab.route()
    assert len(lab.read("desk.clerk")) == 1
    assert told(lab) == [] and nudged(lab) == []


def test_a_mailbox_that_is_away_for_a_while(lab: Box) -> None:
    """What was in it is told of when it is back."""
    idle = lab.root / "idle"
    declare(lab, idle=json.dumps(["/usr/bin/test", "-e", str(idle)]))
    drop(lab, 1)
    lab.route()
    inbox = lab.inbox("desk.clerk")
    inbox.rename(lab.root / "away")
    idle.touch()
    lab.run("nudge")
    assert told(lab) == []
    (lab.root / "away").rename(inbox)
    lab.run("nudge")
    assert len(told(lab)) == 1


def test_mail_from_before_the_declaration(lab: Box) -> None:
    """Who gets a `nudge` later is told of what is unread by then, with the next run."""
    declare(lab, nudge="[/bin/true]")
    drop(lab, 1)
    drop(lab, 2, to="builder@lab.internal")
    lab.route()
    text = (lab.root / "registry.d/lab.yml").read_text()
    lab.declare("lab", text.replace("  - id: lab.builder\n", f"  - id: lab.builder\n    nudge: {sh(TOLD, 'x')}\n"))
    lab.merge()
    lab.route()
    assert [line.split("|")[:2] for line in told(lab)] == [["lab.builder", "1"]]


def test_live_instances_inherit_it(lab: Box) -> None:
    """An instance is nudged by the command of its class, with its own id, name and mailbox; not when it is archived."""
    more = (
        "  - id: desk.crew\n    address: crew@desk.internal\n    instances: many\n    accepts: [job.run]\n"
        f"    accepts_from: ['*']\n    nudge: {sh(TOLD, '{name} {agent} {unread} {inbox}')}\n"
    )
    declare(lab, more=more)
    for name in ("ann", "bob"):
        assert lab.run("register", "desk.crew", "--name", name).returncode == 0
    drop(lab, 1, to="ann@desk.internal")
    lab.route()
    inbox = lab.inbox("desk.crew+ann")
    assert told(lab) == [f"desk.crew+ann|1|{inbox}|ann desk.crew+ann 1 {inbox}"]


# ---------------------------------------------------------------------- what goes wrong


def test_a_command_that_fails(lab: Box) -> None:
    """It is said, logged with what the command said, not tried again, and no fault of routing."""
    declare(lab, nudge=sh("echo no such pane >&2; exit 3"))
    drop(lab, 1)
    done = lab.route(check=0)
    assert "desk.clerk: nudge: /bin/sh ended with 3: no such pane" in done.stderr
    (line,) = [line for line in lab.log() if line["action"] == "nudge-failed"]
    assert (line["agent"], line["detail"]) == ("desk.clerk", "nudge: /bin/sh ended with 3: no such pane")
    assert lab.route().stderr == ""
    drop(lab, 2)
    lab.run("route", "--dry-run")
    assert len(nudged(lab)) == 1
    assert lab.run("verify").returncode == 0


def test_exit_code_of_nudge(lab: Box) -> None:
    """`nudge` itself ends with 69 if a command failed."""
    declare(lab, nudge="[/nowhere/at-all]", idle=json.dumps(["/usr/bin/test", "-e", str(lab.root / "idle")]))
    drop(lab, 1)
    lab.route()
    (lab.root / "idle").touch()
    done = lab.run("nudge", "-v")
    assert done.returncode == 69
    assert "/nowhere/at-all cannot be run: No such file or directory" in done.stderr
    assert "nudged      desk.clerk: 1 new of 1 unread [failed]" in done.stdout


def test_an_idle_command_that_cannot_be_run_is_told_of_once(lab: Box) -> None:
    """The agent counts as busy; the fault is said once, not at each run."""
    declare(lab, idle="[/nowhere/at-all]")
    drop(lab, 1)
    assert "idle: /nowhere/at-all cannot be run" in lab.route().stderr
    assert lab.route().stderr == ""
    assert told(lab) == []
    declare(lab)
    lab.route()
    assert len(told(lab)) == 1


def test_commands_that_hang(lab: Box) -> None:
    """Ten that hang are killed, with their children, all at about the same time; the mail was delivered before."""
    script = "echo $$ >> $POSTMASTER_ROOT/pids; sleep 1000 & echo $! >> $POSTMASTER_ROOT/pids; wait"
    more = "".join(
        f"  - {{id: desk.h{n}, address: h{n}@desk.internal, accepts: [job.run], accepts_from: ['*'], "
        f"nudge: {sh(script)}}}\n"
        for n in range(10)
    )
    declare(lab, more=more)
    for number in range(10):
        drop(lab, number, to=f"h{number}@desk.internal")
    drop(lab, 10)
    process = lab.start("route")
    while len(told(lab)) < 1 or len(lab.unread("desk.h9")) < 1:
        time.sleep(0.02)
    drop(lab, 11)
    assert lab.run("route", timeout=30).returncode == 0  # the lock is free meanwhile
    _, err = process.communicate(timeout=60)
    assert process.returncode == 0
    assert err.count("was killed after") == 10
    for pid in (lab.root / "pids").read_text().split():
        assert not Path(f"/proc/{pid}").exists() or "zombie" in Path(f"/proc/{pid}/status").read_text()


def test_senders_cannot_steer_it(lab: Box) -> None:
    """Whatever a sender writes, the text is one line of harmless characters, and an argument of its own."""
    declare(lab)
    for number, sender in enumerate(
        ["$HOME`id`@evil.internal", "'&{agent}%n!#*?~^@evil.internal", "-x=$IFS@evil.internal"]
    ):
        drop(lab, number, from_=json.dumps(sender))
    lab.route()
    (line,) = told(lab)
    text = line.split("|")[3]
    assert "_HOME_id_@evil.internal" in text
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 @.,:_+-")
    assert len(nudged(lab)) == 3


def test_odd_files_in_the_inbox(lab: Box) -> None:
    """Links, pipes and files that are no mail are not opened, and count for nothing; broken mail counts."""
    declare(lab)
    unread = lab.inbox("desk.clerk") / "unread"
    os.mkfifo(unread / "pipe.md")
    (unread / "link.md").symlink_to("/etc/passwd")
    (unread / "by-hand.md").write_bytes(b"\xff no header")
    drop(lab, 1)
    lab.route(timeout=20)
    (line,) = told(lab)
    assert line.split("|")[1] == "2"
    assert "2 unread messages, 1 of them new, from conductor@lab.internal." in line


def test_a_place_that_is_taken(lab: Box) -> None:
    """Where what is untold cannot be kept nobody is nudged, which is said; the mail is delivered."""
    declare(lab)
    place = lab.root / ".postmaster/nudges"
    place.unlink()
    place.mkdir()
    drop(lab, 1)
    assert "nobody was nudged:" in lab.route().stderr
    assert len(lab.unread("desk.clerk")) == 1 and told(lab) == []
    assert lab.run("nudge").returncode == 74
    place.rmdir()
    place.symlink_to("/etc/hostname")
    lab.route()
    assert len(told(lab)) == 1 and not place.is_symlink()


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("notify-send", "must be a list"),
        ("[]", "is an empty list"),
        ("[bin/tell]", "is bin/tell, which is not a program"),
        ('["/bin/echo", {a: b}]', "must be text"),
        ('["/bin/echo\\0x"]', "which is not a program"),
        ('["/bin/echo", "a\\0b"]', "which is not an argument"),
    ],
)
def test_wrong_commands_are_refused_at_the_merge(lab: Box, value: str, why: str) -> None:
    """A command is a list: a program, absolute or without a slash, and its arguments."""
    entry = "agents: [{id: a, address: a@b.internal, nudge: %s}]\n"
    lab.declare("wrong", entry % value)
    done = lab.merge(check=78)
    assert why in done.stderr and "registry.d/wrong.yml:1:" in done.stderr


def test_an_office_without_nudges_pays_nothing(lab: Box) -> None:
    """No file is made for it, and a declaration that leaves takes its file along."""
    drop(lab, 1, to="builder@lab.internal")
    lab.route()
    assert not (lab.root / ".postmaster/nudges").exists()
    declare(lab)
    assert (lab.root / ".postmaster/nudges").exists()
    (lab.root / "registry.d/desk.yml").unlink()
    lab.merge()
    lab.route()
    assert not (lab.root / ".postmaster/nudges").exists()
    assert lab.run("nudge", "-v").stdout == "nobody to nudge\n"


# ---------------------------------------------------------------------- many times, and several at once


_WORKER = """
import io, sys
from contextlib import redirect_stdout
from postmaster.cli import app
root, runs = sys.argv[1], int(sys.argv[2])
for number in range(runs):
    with redirect_stdout(io.StringIO()):
        code = app.run(["--root", root, *(["nudge"] if number % 2 else ["route", "--now"])])
    assert code == 0, code
"""


def test_a_thousand_runs(lab: Box) -> None:
    """Four routers, 1,000 runs, an agent that is now busy and now idle and reads now and then: no message twice."""
    idle = lab.root / "idle"
    show = 'ls "$POSTMASTER_INBOX/unread" > "$POSTMASTER_ROOT/seen.$$"; echo x >> "$POSTMASTER_ROOT/told"'
    declare(lab, nudge=sh(show), idle=json.dumps(["/usr/bin/test", "-e", str(idle)]))
    workers = [
        subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(lab.root), "250"],
            env=lab.environment(),
            cwd=lab.world / "cwd",
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(4)
    ]
    chance = random.Random(20260304)
    sent = 0
    while any(worker.poll() is None for worker in workers):
        for _ in range(chance.randrange(3)):
            drop(lab, sent)
            sent += 1
        if chance.random() < 0.5:
            idle.touch()
        else:
            idle.unlink(missing_ok=True)
        if chance.random() < 0.2:
            lab.ack("desk.clerk")
        time.sleep(0.01)
    for worker in workers:
        _, err = worker.communicate()
        assert worker.returncode == 0 and err == "", err
    idle.touch()
    lab.route("--now")
    lines = nudged(lab)
    counts = Counter(line["path"] for line in lines)
    assert counts and max(counts.values()) == 1
    batches = {line["time"] for line in lines}
    assert len(told(lab)) <= len(batches), "each run of the command stands in the log before"
    assert len(told(lab)) >= len(batches) - 40, "only mail that was read in that very moment was not told of"
    assert {mail.name for mail in lab.unread("desk.clerk")} <= {os.path.basename(path) for path in counts}
    assert sent == len(lab.unread("desk.clerk")) + len(lab.read("desk.clerk"))
    assert lab.run("verify").returncode == 0


def test_help_has_an_example(box: Box) -> None:
    """The command explains itself."""
    done = box.run("nudge", "--help")
    assert done.returncode == 0 and "Example:" in done.stdout and "postmaster nudge " in done.stdout
