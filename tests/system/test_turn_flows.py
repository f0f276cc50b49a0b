"""Turns of instances for flows: whom a final message answers, where a send without a thread goes, who waits."""

import base64
import hashlib
import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import Box

POSTMASTER = Path(sys.executable).with_name("postmaster")
ASKER, OTHER = "conductor@lab.internal", "other@team.internal"
# The lead answers every message by its text in capital letters; `say TEXT` makes it send by itself.
LEAD = """\
#!/bin/sh
set -eu
text=$(sed '1,/^---$/d')
echo "$text" >>seen
case $text in
    'say '*) postmaster send --to other@team.internal --type job.note --subject s \\
        --body "${{text#say }}" {more} >/dev/null ;;
    *) echo "$text" | tr a-z A-Z ;;
esac
"""
TEAM = """\
plugin: team
agents:
  - id: team.lead
    address: lead@team.internal
    instances: per-flow
    run: [{program}]
    default_thread: {thread}
    final_message: {final}
    accepts:
      - {{type: job.*, accepts_from: [conductor@lab.internal, other@team.internal]}}
    emits:
      - {{type: job.done, to: conductor@lab.internal}}
      - {{type: job.note, to: other@team.internal}}
  - {{id: team.other, address: other@team.internal, accepts: [job.*], accepts_from: [lead@team.internal]}}
  - {{id: lab.boss, address: conductor@lab.internal, accepts: [job.*], accepts_from: [lead@team.internal]}}
"""


def key(flow: str) -> str:
    """Return the key of a flow."""
    return base64.b32encode(hashlib.sha256(flow.encode()).digest()).decode().lower()[:12]


def team(box: Box, *, thread: str = "origin", final: str = "default_thread", more: str = "") -> Box:
    """Declare the team, with a lead whose program is a script."""
    program = box.world / "scratch" / "lead"
    program.write_text(LEAD.format(more=more))
    program.chmod(0o755)
    box.declare("team", TEAM.format(program=program, thread=thread, final=final))
    box.merge()
    return box


def done(box: Box, *args: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command, with `postmaster` in the PATH of what it runs, and check its exit code."""
    path = f"{POSTMASTER.parent}:/usr/local/bin:/usr/bin:/bin"
    ended = box.run(*args, env={"PATH": path})
    assert ended.returncode == check, (args, ended.returncode, ended.stdout, ended.stderr)
    return ended


def send(box: Box, to: str, flow: str, text: str, sender: str = ASKER) -> None:
    """Send a job and let everything happen that it leads to."""
    mail = ("--to", to, "--from", sender, "--type", "job.run", "--subject", "build", "--body", text)
    done(box, "send", *mail, "--correlation", flow)
    done(box, "cycle", "--max-seconds", "60")


def got(box: Box, agent: str) -> list[tuple[str, str]]:
    """Return (flow, text) of what an agent has unread."""
    return sorted((mail.fields["correlation_id"], mail.body.decode().strip()) for mail in box.unread(agent))


def test_the_origin_never_moves(box: Box) -> None:
    """Woken from another flow by another agent, an instance answers who asked in the flow that it was made for."""
    team(box)
    send(box, "lead@team.internal", "run-1", "one")
    lead = f"lead+{key('run-1')}@team.internal"
    send(box, lead, "side", "two", OTHER)
    send(box, "lead@team.internal", "run-2", "three")
    assert got(box, "lab.boss") == [("run-1", "ONE"), ("run-1", "TWO"), ("run-2", "THREE")]
    assert got(box, "team.other") == []
    assert "say which" in done(box, "turn", "team.lead", check=65).stderr
    assert {mail.fields["from"] for mail in box.unread("lab.boss")} == {lead, f"lead+{key('run-2')}@team.internal"}
    disk = box.root / "turns" / f"team.lead+{key('run-1')}" / "disk"
    assert (disk / "seen").read_text() == "one\ntwo\n"  # the same instance, with its disk
    listed = json.loads(done(box, "turns", "--json").stdout)["instances"]
    assert [(one["id"], one["origin"], one["unread"]) for one in listed] == [
        (f"team.lead+{key(flow)}", flow, 0) for flow in sorted(("run-1", "run-2"), key=key)
    ]
    done(box, "verify")


def test_a_send_without_a_thread_goes_to_the_origin(box: Box) -> None:
    """Also from another flow; an explicit thread is obeyed. A turn that prints nothing has no final message."""
    team(box)
    send(box, "lead@team.internal", "run-1", "say hello")
    send(box, f"lead+{key('run-1')}@team.internal", "side", "say again", OTHER)
    assert got(box, "team.other") == [("run-1", "again"), ("run-1", "hello")]
    assert got(box, "lab.boss") == []


def test_without_a_default_thread_every_send_says_which(box: Box) -> None:
    """`none` has no fall-back: the turn fails with an error that says so, and nothing was sent; with one it works."""
    team(box, thread="none", final="discard")
    send(box, "lead@team.internal", "run-1", "say hello")
    assert got(box, "team.other") == []
    failed = next(line for line in box.log() if line["action"] == "turn-failed")
    assert "default_thread: none" in failed["detail"]
    assert "--thread" in failed["detail"]
    assert len(box.unread(f"team.lead+{key('run-1')}")) == 1
    team(box, thread="none", final="discard", more="--thread elsewhere")
    done(box, "turn", f"team.lead+{key('run-1')}")
    done(box, "route")
    assert got(box, "team.other") == [("elsewhere", "hello")]


@pytest.mark.parametrize("whom", ["team.lead", "instance"])
def test_the_paused_are_not_woken(box: Box, whom: str) -> None:
    """An instance, or all of a class: mail waits, and is taken once it is resumed."""
    team(box)
    send(box, "lead@team.internal", "run-1", "one")
    instance = f"team.lead+{key('run-1')}"
    done(box, "pause", whom if whom != "instance" else instance)
    send(box, "lead@team.internal", "run-1", "two")
    send(box, "lead@team.internal", "run-2", "three")
    assert [mail.body for mail in box.unread(instance)] == [b"two"]
    assert got(box, "lab.boss") == [("run-1", "ONE")] + ([("run-2", "THREE")] if whom == "instance" else [])
    done(box, "resume", whom if whom != "instance" else instance)
    done(box, "cycle", "--max-seconds", "60")
    assert got(box, "lab.boss") == [("run-1", "ONE"), ("run-1", "TWO"), ("run-2", "THREE")]


def test_who_is_in_a_turn_is_not_nudged(box: Box) -> None:
    """Without `idle` an agent is busy only while its turn runs: it is told once that has ended."""
    told, go = box.world / "scratch" / "told", box.world / "scratch" / "go"
    team(box)
    nudge = f'nudge: [/bin/sh, -c, "echo $0 >> {told}", "{{agent}}"], accepts: [job.*], accepts_from: ["*"]'
    wait = f'run: [/bin/sh, -c, "while [ ! -e {go} ]; do sleep 0.05; done"]'
    box.declare("slow", f"- {{id: lab.slow, address: slow@lab.internal, {wait}, {nudge}}}\n")
    box.merge()
    mail = ("--to", "slow@lab.internal", "--from", ASKER, "--type", "job.run", "--subject", "s", "--correlation", "f")
    done(box, "send", *mail, "--body", "one", "--now")
    assert told.read_text() == "lab.slow\n"
    turn = box.start("turn", "lab.slow")
    until = time.monotonic() + 20
    while not any(line["action"] == "turn-started" for line in box.log()) and time.monotonic() < until:
        time.sleep(0.05)
    done(box, "send", *mail, "--body", "two", "--now")
    assert told.read_text() == "lab.slow\n"
    go.touch()
    assert turn.wait(20) == 0
    turn.communicate()
    done(box, "nudge")
    assert told.read_text() == "lab.slow\n" * 2


def test_the_archived_take_no_turns(box: Box) -> None:
    """What was unread is returned, and no turn is ever taken of it again."""
    team(box)
    send(box, "lead@team.internal", "run-1", "one")
    instance = f"team.lead+{key('run-1')}"
    done(box, "pause", instance)
    send(box, "lead@team.internal", "run-1", "two")
    done(box, "archive", instance)
    done(box, "cycle", "--max-seconds", "60")
    assert [mail.fields["type"] for mail in box.unread("lab.boss")] == ["job.done", "postmaster.returned"]
    assert "was archived" in done(box, "turn", instance, check=65).stderr
    assert json.loads(done(box, "turns", "--json").stdout)["instances"] == []
    done(box, "verify")
