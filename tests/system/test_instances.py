"""Agents with `run`: what is declared, which instance a flow leads to, and in which state it is."""

import base64
import hashlib
import json
import os
import subprocess
import time
from typing import Any

import pytest
from support import Box, letter

ORCHESTRATOR = "conductor@lab.internal"
TEAM = """\
plugin: team
agents:
  - id: team.lead
    address: lead@team.internal
    aliases: [chief@team.internal]
    roles: [judge]
    instances: per-flow
    run: [/bin/cat, --]
    default_thread: none
    turn_timeout: 15m
    accepts:
      - {type: job.*, accepts_from: [conductor@lab.internal, helper@team.internal]}
    emits:
      - {type: job.ask, to: helper@team.internal}
  - id: team.helper
    address: helper@team.internal
    instances: per-flow
    accepts:
      - {type: job.*, accepts_from: [lead@team.internal]}
    emits:
      - {type: job.answer, to: lead@team.internal}
  - {id: team.clerk, address: clerk@team.internal, run: [/bin/cat], accepts: [job.*], accepts_from: ["*"]}
  - {id: team.desk, address: desk@team.internal, run: [cat], instances: many, accepts: [job.*], accepts_from: ["*"]}
"""


@pytest.fixture
def team(lab: Box) -> Box:
    """The laboratory, with a team whose members have an instance for each flow."""
    lab.declare("team", TEAM)
    lab.merge()
    return lab


def key(flow: str) -> str:
    """Return the key of a flow, computed as the documentation says."""
    return base64.b32encode(hashlib.sha256(flow.encode()).digest()).decode().lower()[:12]


def done(box: Box, *args: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    ended = box.run(*args)
    assert ended.returncode == check, (args, ended.returncode, ended.stdout, ended.stderr)
    return ended


def send(
    box: Box, to: str, flow: str, *more: str, from_: str = ORCHESTRATOR, text: str = "x", check: int = 0
) -> subprocess.CompletedProcess[str]:
    """Send a job in a flow."""
    mail = ("--to", to, "--from", from_, "--type", "job.run", "--subject", "build", "--body", text)
    return done(box, "send", *mail, "--correlation", flow, *more, check=check)


def bodies(box: Box, agent: str) -> list[bytes]:
    """Return what is unread, in order."""
    return [mail.body for mail in box.unread(agent)]


# ---------------------------------------------------------------------- flows


def test_each_flow_has_an_instance(team: Box) -> None:
    """A new flow makes one, the same flow leads to it again, whatever name of the class is used."""
    for number, (to, flow) in enumerate(
        [
            ("lead@team.internal", "run-1"),
            ("lead@team.internal", "run-2"),
            ("CHIEF@team.internal", "run-1"),
            ("agent:team.lead", "run-2"),
            ("role:judge", "run-1"),
            (f"lead+{key('run-1')}@team.internal", "run-3"),
            (f"agent:team.lead+{key('run-2')}", "run-1"),
        ]
    ):
        send(team, to, flow, text=str(number))
        team.route()
    assert sorted(bodies(team, f"team.lead+{key('run-1')}")) == [b"0", b"2", b"4", b"5"]
    assert sorted(bodies(team, f"team.lead+{key('run-2')}")) == [b"1", b"3", b"6"]
    assert bodies(team, "team.lead") == []
    assert sorted(os.listdir(team.root / "inboxes"))[-6:] == [
        "team.clerk",
        "team.desk",
        "team.helper",
        "team.lead",
        *sorted(f"team.lead+{key(flow)}" for flow in ("run-1", "run-2")),
    ]
    done(team, "verify")


def test_many_flows_in_one_pass(team: Box) -> None:
    """The routes that a pass remembers are not those of another flow; numbers are those of the flow."""
    for number in range(60):
        mail = letter("lead@team.internal", correlation_id=f"flow-{number % 12}", body=f"{number}\n".encode())
        team.drop(f"{number:03}.md", mail)
    team.route()
    for flow in range(12):
        mails = team.unread(f"team.lead+{key(f'flow-{flow}')}")
        assert [mail.fields["correlation_id"] for mail in mails] == [f"flow-{flow}"] * 5
        assert [mail.sequence for mail in mails] == [1, 2, 3, 4, 5]


def test_a_subaddress_without_a_mailbox_is_nobody(team: Box) -> None:
    """Only mail to the class makes an instance: a guessed address, key or id leads nowhere."""
    for to in (f"lead+{key('run-1')}@team.internal", f"agent:team.lead+{key('run-1')}"):
        refused = send(team, to, "run-1", check=65)
        assert "unknown-recipient" in refused.stderr
    assert "did you mean lead@team.internal?" in send(team, f"lead+{key('a')}@team.internal", "a", check=65).stderr
    assert "unknown-recipient" in send(team, f"clerk+{key('run-1')}@team.internal", "run-1", check=65).stderr
    assert not list((team.root / "inboxes").glob("*+*"))


def test_duplicates_are_those_of_the_flow(team: Box) -> None:
    """The same letter twice in one flow is a duplicate; in another flow it is another letter."""
    for name, flow in (("a", "run-1"), ("b", "run-1"), ("c", "run-2")):
        team.drop(f"{name}.md", letter("lead@team.internal", correlation_id=flow, sent_at="2026-01-01T00:00:00Z"))
    team.route()
    assert len(team.unread(f"team.lead+{key('run-1')}")) == len(team.unread(f"team.lead+{key('run-2')}")) == 1
    assert [line.get("reason") for line in team.log()] == [None, "duplicate", None]


def test_instances_write_to_each_other(team: Box) -> None:
    """Who admits a class admits its instances, and an answer wakes the one that asked, from any flow."""
    send(team, "lead@team.internal", "run-1", "--now")
    lead = f"lead+{key('run-1')}@team.internal"
    send(team, "helper@team.internal", "side", "--now", from_=lead)
    helper = f"team.helper+{key('side')}"
    (question,) = team.unread(helper)
    answer = json.loads(done(team, "reply", helper, question.fields["id"], "--body", "yes", "--now", "--json").stdout)
    assert (answer["from"], answer["to"]) == (f"helper+{key('side')}@team.internal", lead)
    assert bodies(team, f"team.lead+{key('run-1')}") == [b"x", b"yes"]
    stranger = f"lead+{key('other')}@team.internal"
    assert "sender-not-accepted" in send(team, "helper@team.internal", "side", from_=stranger, check=65).stderr


def test_mail_commands_know_the_instances(team: Box) -> None:
    """They are read, acknowledged, counted and listed as any agent."""
    send(team, "lead@team.internal", "run-1", "--now")
    name, mailbox = f"lead+{key('run-1')}@team.internal", f"team.lead+{key('run-1')}"
    listed = json.loads(done(team, "inbox", name, "--json").stdout)["messages"]
    done(team, "ack", mailbox, listed[0]["id"])
    assert len(team.read(mailbox)) == 1
    status = json.loads(done(team, "status", "--json").stdout)
    assert status["registry"]["instances"] == 1
    (alive,) = json.loads(done(team, "directory", "--json").stdout)["live"]
    assert (alive["id"], alive["address"], alive["class"], alive["unread"]) == (mailbox, name, "team.lead", 0)
    assert team.run("route", "--dry-run").returncode == 0


def test_registered_instances_have_a_subaddress(team: Box) -> None:
    """``class+name@domain`` is a living instance of that class."""
    done(team, "register", "team.desk", "--name", "alice")
    send(team, "desk+alice@team.internal", "run-1", "--now")
    assert bodies(team, "team.desk+alice") == [b"x"]
    send(team, "clerk+alice@team.internal", "run-1", check=65)
    send(team, "desk+bob@team.internal", "run-1", check=65)


@pytest.mark.parametrize(("class_", "why"), [("team.lead", "instances: per-flow"), ("lab.builder", "no class")])
def test_nobody_registers_instances_for_flows(team: Box, class_: str, why: str) -> None:
    """They come with mail; an agent that is one only is no class."""
    assert why in done(team, "register", class_, check=65).stderr


# ---------------------------------------------------------------------- states


def test_pausing_lets_mail_wait(team: Box) -> None:
    """Paused, mail is delivered; pausing and resuming twice changes nothing; a class pauses its instances."""
    send(team, "lead@team.internal", "run-1", "--now")
    name, mailbox = f"lead+{key('run-1')}@team.internal", f"team.lead+{key('run-1')}"

    def state(*args: str) -> tuple[Any, Any]:
        answer = json.loads(done(team, *args, "--json").stdout)
        return answer["state"], answer["changed"]

    assert [state("pause", name), state("pause", mailbox)] == [("paused", True), ("paused", False)]
    send(team, "lead@team.internal", "run-1", "--now", text="y")
    assert bodies(team, mailbox) == [b"x", b"y"]
    assert [state("resume", name), state("resume", name)] == [("active", True), ("active", False)]
    assert state("pause", "team.lead") == ("paused", True)
    assert state("resume", name) == ("paused", False)
    assert "its class team.lead is paused" in done(team, "resume", name).stdout
    assert state("resume", "team.lead") == ("active", True)
    assert state("pause", "team.clerk") == ("paused", True)


def test_who_takes_no_turns_is_not_paused(team: Box) -> None:
    """An agent without `run`, nobody, and one that was archived: each is told what it is."""
    assert "has no `run`" in done(team, "pause", "lab.builder", check=65).stderr
    assert "did you mean team.clerk?" in done(team, "pause", "team.clark", check=65).stderr
    send(team, "lead@team.internal", "run-1", "--now")
    done(team, "archive", f"team.lead+{key('run-1')}")
    assert "was archived" in done(team, "pause", f"team.lead+{key('run-1')}", check=65).stderr


def test_an_archived_instance_refuses_mail(team: Box) -> None:
    """Its unread mail is returned; its flow is closed; other flows have instances of their own."""
    send(team, "lead@team.internal", "run-1", "--now")
    name, mailbox = f"lead+{key('run-1')}@team.internal", f"team.lead+{key('run-1')}"
    answer = json.loads(done(team, "archive", name, "--json").stdout)
    assert (answer["id"], answer["unread"], answer["returned"]) == (mailbox, 1, 1)
    assert [mail.fields["type"] for mail in team.unread("lab.conductor")] == ["postmaster.returned"]
    for to, flow in (("lead@team.internal", "run-1"), (name, "run-9")):
        assert "instance-terminated (5.2.1)" in send(team, to, flow, check=65).stderr
    raw = letter("lead@team.internal", correlation_id="run-1")
    team.drop("late.md", raw)
    team.route()
    line = team.line("late.md")
    assert (line["action"], line["reason"], line["agent"]) == ("rejected", "instance-terminated", mailbox)
    send(team, "lead@team.internal", "run-2", "--now")
    assert bodies(team, f"team.lead+{key('run-2')}") == [b"x"]
    assert "was archived" in done(team, "archive", name, check=65).stderr
    assert "unread 1" in done(team, "inbox", mailbox).stdout
    assert "can be read" in done(team, "ack", mailbox, team.unread(mailbox)[0].fields["id"], check=65).stderr
    (gone,) = json.loads(done(team, "directory", "--all", "--json").stdout)["archived"]
    assert gone["id"] == mailbox
    done(team, "verify")


def test_nudges_reach_instances_for_flows(team: Box) -> None:
    """An instance has the nudge of its class, mail from before too."""
    told = team.world / "scratch" / "told"
    send(team, "lead@team.internal", "run-1", "--now")
    nudge = f'    nudge: [/bin/sh, -c, "echo $0 >> {told}", "{{agent}}"]\n    run:'
    team.declare("team", TEAM.replace("    run:", nudge, 1))
    team.merge()
    done(team, "nudge")
    send(team, "lead@team.internal", "run-2", "--now")
    until = time.monotonic() + 10
    while told.read_text().count("\n") < 2 and time.monotonic() < until:
        time.sleep(0.05)
    assert told.read_text().split() == [f"team.lead+{key(flow)}" for flow in ("run-1", "run-2")]
    told.unlink()


# ---------------------------------------------------------------------- declarations

WRONG = """\
agents:
  - id: a
    address: a@x.internal
    run: cat
    instances: per-flw
    default_thread: orign
    final_message: discrad
    messages_per_turn: 2
    turn_timeout: soon
    max_attempts: 0
    concurrency: -1
    turn_time_out: 5m
  - id: b
    address: b@x.internal
    max_attempts: 3
    default_thread: none
  - {id: c, address: c@x.internal, instances: per-flow, run: [/bin/true], turn_timeout: 8d}
  - {id: d, address: c+abcdefghijkl@x.internal, run: ["", x]}
  - {id: e, address: ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz@x.internal, instances: per-flow}
"""


def test_all_that_is_wrong_is_told_at_merge(box: Box) -> None:
    """Every key of turns, with file, line, column, and what was meant."""
    box.declare("wrong", WRONG)
    told = box.merge(check=78).stderr
    for expected in (
        "wrong.yml:4:10: `run` must be a list, but is text",
        "wrong.yml:5:16: `instances` must be many or per-flow or single, not per-flw, did you mean per-flow?",
        "wrong.yml:6:21: `default_thread` must be origin or none, not orign, did you mean origin?",
        "wrong.yml:7:20: `final_message` must be discard or default_thread, not discrad, did you mean discard?",
        "wrong.yml:8:24: `messages_per_turn` must be 1 or all, not 2",
        "wrong.yml:9:19: `turn_timeout` is soon, which is not a time",
        "wrong.yml:10:19: `max_attempts` is 0, which is not a whole number from 1 to 999999",
        "wrong.yml:11:18: `concurrency` is -1, which is not a whole number",
        "wrong.yml:12:5: unknown key turn_time_out, did you mean turn_timeout?",
        "wrong.yml:15:19: `max_attempts` is about turns, and without `run` there are none",
        "wrong.yml:16:21: `default_thread` is about turns, and without `run` there are none",
        "`turn_timeout` is 8d, and at most 7d",
        "wrong.yml:18:22: address c+abcdefghijkl@x.internal can be that of an instance of c at registry.d/wrong.yml:17",
        "leaves no room for `+` and the name of an instance",
    ):
        assert expected in told, (expected, told)
    assert not (box.root / "agent-registry.yml").exists()


def test_mail_that_a_merge_leaves_behind_is_told(team: Box) -> None:
    """A class that begins or ceases to have instances for flows, or goes, with mail that nobody reads then."""
    send(team, "lead@team.internal", "run-1", "--now")
    send(team, "lead@team.internal", "run-2", "--now")
    send(team, "desk@team.internal", "run-1", "--now")
    alone = TEAM.replace("instances: per-flow", "instances: single", 1).replace(
        "instances: many", "instances: per-flow"
    )
    team.declare("team", alone)
    told = team.merge().stderr
    assert "UNREAD MAIL: team.lead has no instances for flows any more and leaves 2 unread messages in " in told
    assert "UNREAD MAIL: team.desk has an instance for each flow now and leaves 1 unread message in " in told
    team.declare("team", TEAM)
    assert "team.lead" not in team.merge().stderr
    team.declare("team", "agents: []\n")
    assert "team.lead has no instances for flows any more and leaves 2 unread messages in " in team.merge().stderr


def test_what_is_declared_is_shown(team: Box) -> None:
    """`registry show` has the keys of turns, and the merged registry is read back."""
    entry = json.loads(done(team, "registry", "show", "lead@team.internal", "--json").stdout)["agent"]
    assert {name: entry[name] for name in ("run", "instances", "default_thread", "turn_timeout")} == {
        "run": ["/bin/cat", "--"],
        "instances": "per-flow",
        "default_thread": "none",
        "turn_timeout": "15m",
    }
    assert "turn_timeout: 15m" in done(team, "registry", "show", "team.lead").stdout
    merged = team.root / "agent-registry.yml"
    merged.write_text(merged.read_text().replace('"15m"', '"20m"'))  # checked again, then
    assert "turn_timeout: 20m" in done(team, "registry", "show", "team.lead").stdout


def test_final_messages_that_go_nowhere_are_found(box: Box) -> None:
    """A final message without a thread is a finding; one that goes to the first flow for good is a note."""
    common = "run: [/bin/cat], final_message: default_thread, accepts: [x], accepts_from: ['*']"
    box.declare(
        "a",
        f"- {{id: a, address: a@x, default_thread: none, {common}}}\n"
        f"- {{id: b, address: b@x, {common}}}\n"
        f"- {{id: c, address: c@x, instances: per-flow, {common}}}\n",
    )
    found = json.loads(done(box, "registry", "check", "--json").stdout)["findings"]
    told = {(one["agent"], one["level"]) for one in found if one["kind"] in ("final-message-nowhere", "one-origin")}
    assert told == {("a", "finding"), ("b", "note")}


def test_final_messages_without_a_type_are_found(box: Box) -> None:
    """Of who may wake it, to each it must emit one type, or the turn fails when it ends."""
    box.declare(
        "a",
        "- {id: a, address: a@x, accepts: [yes, no], accepts_from: [w@x], emits: [{type: ask, to: w@x}]}\n"
        "- {id: b, address: b@x, accepts: [yes], accepts_from: [w@x], emits: [{type: ask, to: w@x}]}\n"
        "- {id: c, address: c@x, emits: [{type: ask, to: w@x}]}\n"
        "- {id: w, address: w@x, instances: per-flow, run: [/bin/cat], final_message: default_thread, accepts: [ask],\n"
        "   accepts_from: ['*'], emits: [{type: yes, to: [a@x, b@x]}, {type: no, to: a@x}]}\n",
    )
    found = json.loads(done(box, "registry", "check", "--json").stdout)["findings"]
    told = [one["message"] for one in found if one["kind"] == "final-message-untyped"]
    assert len(told) == 2 and "answers a with" in told[0] and "no, yes" in told[0] and "nothing" in told[1]
