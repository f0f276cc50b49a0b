"""`dead-letter list`, `show` and `retry`: what died can be looked at safely and sent again to whom it did not reach."""

import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from support import LAB, Box, letter, limited, md5

BUILDER, CHECKER, CONDUCTOR, ECHO = (f"{name}@lab.internal" for name in ("builder", "checker", "conductor", "echo"))
NEWCOMER = "newcomer@lab.internal"
HIRED = (
    LAB
    + f"""\
  - id: lab.newcomer
    address: {NEWCOMER}
    accepts:
      - type: job.*
    accepts_from: ["*"]
"""
)


def run(box: Box, *args: str, check: int = 0) -> str:
    """Run a dead-letter command, check its exit code and return its output."""
    done = box.run("dead-letter", *args)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done.stdout + (done.stderr if check else "")


def listing(box: Box, *more: str) -> dict[str, Any]:
    """Return the answer of `dead-letter list --json`."""
    answer: dict[str, Any] = json.loads(run(box, "list", *more, "--json"))
    return answer


def retried(box: Box, *args: str, check: int = 0) -> dict[str, Any]:
    """Return the answer of `dead-letter retry --json`."""
    done = box.run("dead-letter", "retry", *args, "--json")
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def hire(box: Box) -> None:
    """Add the newcomer to the registry."""
    box.declare("lab", HIRED)
    box.merge()


def actions(box: Box) -> list[tuple[str, str | None, int | None]]:
    """Return (action, to, sequence) of every line of the log."""
    return [(line["action"], line.get("to"), line.get("sequence")) for line in box.log()]


def verified(box: Box) -> None:
    """Assert that `verify` finds nothing to say."""
    done = box.run("verify")
    assert done.returncode == 0, (done.stdout, done.stderr)


@pytest.fixture
def lost(lab: Box) -> Box:
    """A laboratory with a letter that reached the builder, and nobody under another address."""
    lab.drop("a.md", letter(to=(BUILDER, NEWCOMER)))
    lab.route()
    return lab


# ---------------------------------------------------------------------- looking


def test_list(lab: Box) -> None:
    """The first line names the office and counts by reason; the newest is first; nothing changes."""
    lab.drop("a.md", letter(to=NEWCOMER, subject="first"))
    lab.route()
    lab.drop("b.md", letter(type="closed", subject="second"))
    lab.drop("c.md", "no header")
    lab.route()
    before = lab.snapshot()
    first, *rows = run(lab, "list").splitlines()
    counts = "1 malformed-header, 1 type-not-accepted, 1 unknown-recipient"
    assert first == f"{lab.root}: 3 dead letters ({counts})"
    assert "unknown-recipient  a.md  [run-1] #1  first" in rows[-2]
    assert f"no agent has the address {NEWCOMER}" in rows[-1]
    answer = listing(lab)
    assert [row["file"] for row in answer["letters"]] == ["c.md", "b.md", "a.md"]
    assert answer["letters"][1]["recipients"][0]["agent"] == "lab.builder"
    assert [row["file"] for row in listing(lab, "--reason", "unknown-recipient")["letters"]] == ["a.md"]
    assert (len(listing(lab, "--limit", "1")["letters"]), listing(lab, "--limit", "1")["hidden"]) == (1, 2)
    assert "… 2 older" in run(lab, "list", "--limit", "1")
    assert lab.snapshot() == before


def test_list_of_nothing(lab: Box) -> None:
    """An office without dead letters, or without their directory."""
    assert run(lab, "list") == f"{lab.root}: 0 dead letters\n"
    (lab.root / "dead-letter").rmdir()
    assert run(lab, "list") == f"{lab.root}: 0 dead letters\n"
    assert "nothing to retry" in run(lab, "retry", "--all")


def test_unknown_reason(lab: Box) -> None:
    """A reason that there is not is wrong use, with the one that was meant."""
    for command in ("list", "retry"):
        assert "did you mean unknown-recipient?" in run(lab, command, "--reason", "unknown-recipent", check=64)


def test_hostile_directory(lost: Box, tmp_path: Path) -> None:
    """Special files are named and never opened; reason files that are none are as good as missing."""
    dead = lost.root / "dead-letter"
    (dead / "link.md").symlink_to("/etc/passwd")
    (dead / "esc\x1b[31m.md").write_bytes(letter(body="\x1b]0;x\x07"))
    (dead / os.fsdecode(b"\xff.md")).write_bytes(letter())
    (dead / "directory").mkdir()
    os.mkfifo(dead / "pipe")
    for name, text in {
        "bomb": "a: &a [x, x]\nb: *a\n",
        "deep": "[" * 100_000,
        "list": "- a\n",
        "binary": "\0",
        "typed": "reason: [a]\nsequence: {b: c}\nrecipients: x\n",
    }.items():
        (dead / name).write_bytes(letter(body=name))
        (dead / f"{name}.reason.yml").write_text(text)
    os.mkfifo(dead / "fifo.reason.yml")
    (dead / "fifo").write_bytes(letter(body="fifo"))
    (dead / "linked").write_bytes(letter(body="linked"))
    (dead / "linked.reason.yml").symlink_to(dead / "a.md.reason.yml")
    before = lost.snapshot()
    done = lost.run("dead-letter", "list", "--limit", "0", prefix=limited())
    assert done.returncode == 0, done.stderr
    assert not any(c for c in done.stdout if c != "\n" and not c.isprintable())
    rows = {row["file"]: row for row in listing(lost, "--limit", "0")["letters"]}
    assert set(rows) == {
        "a.md", "link.md", "esc\x1b[31m.md", "\\xff.md", "directory", "pipe",
        "bomb", "deep", "list", "binary", "typed", "fifo", "linked",
    }  # fmt: skip
    assert (rows["link.md"]["kind"], rows["pipe"]["kind"]) == ("a symbolic link", "a named pipe")
    assert not rows["linked"]["has_reason"]
    for name in rows:
        shown = lost.run("dead-letter", "show", name, timeout=20)
        assert shown.returncode == 0, (name, shown.stderr)
        assert "root:" not in shown.stdout
        assert not any(c for c in shown.stdout if c not in "\n\t" and not c.isprintable())
    for name in ("link.md", "pipe", "directory"):
        assert "only a letter can be sent again" in run(lost, "retry", name, check=65)
        run(lost, "show", name, "--raw", check=65)
    assert lost.snapshot() == before


def test_show(lost: Box) -> None:
    """Reason, remedy, recipients and the letter; by name or by id; --raw gives the bytes."""
    shown = run(lost, "show", "a.md")
    for part in (
        "path       dead-letter/a.md",
        "reason     unknown-recipient",
        "status     5.1.1",
        "remedy     correct `to`",
        "flow       run-1 #1",
        f"recipient  {NEWCOMER}: no agent has the address",
        "\n---\nto: [builder@lab.internal, newcomer@lab.internal]\n",
    ):
        assert part in shown
    assert shown.endswith("Please run the nightly build.\n")
    sent = letter(to=(BUILDER, NEWCOMER))
    assert run(lost, "show", md5(b"Please run the nightly build.\n")[:4]) == shown
    assert run(lost, "show", "a.md", "--raw").encode() == sent
    answer = json.loads(run(lost, "show", "a.md", "--json"))
    assert answer["header"]["to"] == [BUILDER, NEWCOMER]
    assert answer["body"] == "Please run the nightly build.\n"


@pytest.mark.parametrize("command", ["show", "retry"])
def test_wrong_names(lost: Box, command: str) -> None:
    """Paths are refused; what is not there is told with what is."""
    for name in ("../logs/delivery-log.jsonl", "..", "/etc/passwd", ".hidden", ""):
        assert "neither a file name" in run(lost, command, name, check=65)
    for name in ("b.md", "feedface", md5(b"Please run the nightly build.\n")[:3]):
        assert "a.md" in run(lost, command, name, check=65)
    lost.drop("b.md", letter(to=NEWCOMER, subject="same body"))
    lost.route()
    assert "names 2 dead letters" in run(lost, command, md5(b"Please run the nightly build.\n"), check=65)
    assert lost.dead() == ["a.md", "b.md"]


# ---------------------------------------------------------------------- sending again


def test_retry_reaches_only_who_was_not_served(lost: Box) -> None:
    """After the registry is mended the letter goes to the newcomer alone, with its old number."""
    hire(lost)
    answer = retried(lost, "a.md")
    assert answer["retried"] == [
        {
            "file": "a.md",
            "path": "outbox/a.md",
            "mended": False,
            "sequence": 1,
            "recipients": [NEWCOMER],
            "problem": None,
        }
    ]
    assert (lost.outbox(), os.listdir(lost.root / "dead-letter")) == (["a.md"], [])
    line = lost.log()[-1]
    assert (line["reason"], line["file"], line["path"]) == ("unknown-recipient", "a.md", "outbox/a.md")
    lost.route()
    assert [mail.sequence for mail in lost.unread("lab.newcomer")] == [1]
    assert len(lost.unread("lab.builder")) == 1
    assert actions(lost) == [
        ("delivered", BUILDER, 1),
        ("dead-letter", NEWCOMER, 1),
        ("retried", NEWCOMER, 1),
        ("delivered", NEWCOMER, 1),
    ]
    assert lost.outbox() == []
    verified(lost)


def test_retry_now(lost: Box) -> None:
    """--now routes and says where it went."""
    hire(lost)
    done = run(lost, "retry", "a.md", "--now")
    assert f"a.md -> outbox/a.md #1, to {NEWCOMER}" in done
    assert f"  delivered   {NEWCOMER} (lab.newcomer) #1 -> inboxes/lab.newcomer/unread/" in done


def test_retry_without_mending_dies_again(lost: Box) -> None:
    """Twice, with the same number and a reason file each time; --now says so with exit 65."""
    assert "dead-letter" in run(lost, "retry", "a.md", "--now", check=65)
    assert retried(lost, "a.md", "--now", check=65)["retried"][0]["state"] == "refused"
    assert lost.dead() == ["a.md"]
    assert lost.reason("a.md")["sequence"] == "1"
    hire(lost)
    run(lost, "retry", "a.md", "--now")
    assert [mail.sequence for mail in lost.unread("lab.newcomer")] == [1]
    assert len(lost.unread("lab.builder")) == 1
    lost.drop("next.md", letter(subject="next"))
    lost.route()
    assert lost.line("next.md")["sequence"] == 2
    verified(lost)


def test_corrected_address(lab: Box) -> None:
    """A letter whose `to` alone was corrected keeps its number, and who has it gets no second copy."""
    lab.drop("a.md", letter(to=("bilder@lab.internal", ECHO)))
    lab.route()
    (lab.root / "dead-letter" / "a.md").write_bytes(letter(to=(BUILDER, ECHO)))
    assert retried(lab, "a.md", "--now")["retried"][0]["recipients"] == [BUILDER]
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [1]
    assert [mail.sequence for mail in lab.unread("lab.echo")] == [1]


def test_nobody_left(lost: Box) -> None:
    """A letter from whose `to` the lost address was taken has nobody to go to."""
    (lost.root / "dead-letter" / "a.md").write_bytes(letter(to=BUILDER))
    before = lost.snapshot()
    assert "everybody who is in its `to` now has been served" in run(lost, "retry", "a.md", check=65)
    assert lost.snapshot() == before


def test_mended_letter_is_a_new_one(lost: Box) -> None:
    """A letter whose text was changed goes to everybody in `to`, with a new number."""
    (lost.root / "dead-letter" / "a.md").write_bytes(letter(to=(BUILDER, NEWCOMER), subject="mended"))
    hire(lost)
    answer = retried(lost, "a.md", "--now")
    assert (answer["retried"][0]["mended"], answer["retried"][0]["sequence"]) == (True, None)
    assert [mail.fields["subject"] for mail in lost.unread("lab.builder")] == ["nightly build", "mended"]
    assert [mail.sequence for mail in lost.unread("lab.builder")] == [1, 2]
    assert [mail.sequence for mail in lost.unread("lab.newcomer")] == [2]
    verified(lost)


def test_malformed_letter(lab: Box) -> None:
    """Unmended it goes dead again; mended it is delivered."""
    lab.drop("a.md", letter(subject="a: b"))
    lab.route()
    retried(lab, "a.md")
    lab.age()
    lab.route()
    assert lab.dead() == ["a.md"]
    assert actions(lab) == [("dead-letter", None, None), ("retried", None, None), ("dead-letter", None, None)]
    (lab.root / "dead-letter" / "a.md").write_bytes(letter(subject='"a: b"'))
    assert retried(lab, "a.md", "--now")["retried"][0]["state"] == "delivered"
    assert lab.unread("lab.builder")[0].fields["subject"] == "a: b"
    assert lab.dead() == []
    verified(lab)


def test_invalid_header(lab: Box) -> None:
    """A letter that lacked a field keeps its number while it lacks it."""
    lab.drop("a.md", letter(to=(BUILDER, CHECKER)).replace(b"type: job.run\n", b""))
    lab.route()
    retried(lab, "a.md")
    lab.age()
    lab.route()
    assert [line.get("sequence") for line in lab.log()] == [1, 1, 1]
    (lab.root / "dead-letter" / "a.md").write_bytes(letter(to=(BUILDER, CHECKER)))
    retried(lab, "a.md", "--now")
    assert [lab.unread(agent)[0].sequence for agent in ("lab.builder", "lab.checker")] == [2, 2]
    verified(lab)


def test_too_large_letter(lab: Box) -> None:
    """Still too large, it keeps its number; once the limit is raised it is read, and routed as new."""
    (lab.root / "post-office.yml").write_text("max_message_bytes: 65536\n")
    sent = letter(to=(BUILDER, CHECKER), body="x" * 100_000)
    lab.drop("a.md", sent)
    lab.drop("b.md", letter(subject="next", sent_at="2026-03-04T11:00:00Z"))
    lab.route()
    assert lab.reason("a.md")["reason"] == "too-large"
    assert retried(lab, "a.md", "--now", check=65)["retried"][0]["sequence"] == 1
    (lab.root / "post-office.yml").unlink()
    retried(lab, "a.md", "--now")
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [3, 2]
    assert [mail.sequence for mail in lab.unread("lab.checker")] == [3]
    verified(lab)


def test_duplicate(lab: Box) -> None:
    """A duplicate is one still, until it is allowed; then it is delivered with its own number."""
    for name in ("a.md", "b.md"):
        lab.drop(name, letter())
        lab.route()
    retried(lab, "b.md", "--now", check=65)
    assert lab.reason("b.md")["reason"] == "duplicate"
    answer = retried(lab, "b.md", "--allow-duplicate", "--now")
    assert answer["retried"][0]["state"] == "delivered"
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [1, 2]
    assert [line.get("detail") for line in lab.log() if line["action"] == "retried"] == [None, "duplicate allowed"]
    verified(lab)


def test_expired_letter(lab: Box) -> None:
    """The time in which it may be delivered begins anew."""
    (lab.root / "post-office.yml").write_text("expire_after: 1s\n")
    unread = lab.inbox("lab.builder") / "unread"
    unread.rmdir()
    unread.write_text("no directory")
    lab.drop("a.md", letter())
    lab.route(check=75)
    time.sleep(1.1)
    lab.route()
    assert lab.reason("a.md")["reason"] == "expired"
    assert retried(lab, "a.md", "--now", check=75)["retried"][0]["state"] == "deferred"
    unread.unlink()
    lab.route()
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [1]
    verified(lab)


def test_rejected_letter(lab: Box) -> None:
    """What was rejected is delivered once the recipient accepts it."""
    lab.drop("a.md", letter(type="note"))
    lab.route()
    lab.declare("lab", LAB.replace("      - type: job.*\n", "      - type: job.*\n      - type: note\n", 1))
    lab.merge()
    assert retried(lab, "a.md", "--now")["retried"][0]["state"] == "delivered"
    verified(lab)


def test_role_of_which_one_holder_has_gone(box: Box) -> None:
    """A copy for an agent that its role no longer names is not lost: it is dead again, and said."""
    agents = "".join(
        f"  - id: t.{n}\n    address: {n}@t\n    roles: [team]\n    accepts: [{{type: {kind}, accepts_from: ['*']}}]\n"
        for n, kind in (("a", "job.*"), ("b", "other"))
    )
    box.declare("t", "agents:\n" + agents)
    box.merge()
    box.drop("a.md", letter(to="role:team"))
    box.route()
    assert [(line["action"], line["agent"]) for line in box.log()] == [("delivered", "t.a"), ("rejected", "t.b")]
    box.declare("t", "agents:\n" + agents.replace("b@t\n    roles: [team]", "b@t"))
    box.merge()
    retried(box, "a.md", "--now", check=65)
    assert (box.dead(), box.log()[-1]["agent"], box.log()[-1]["sequence"]) == (["a.md"], "t.b", 1)
    assert len(box.unread("t.a")) == 1
    verified(box)


def test_address_that_becomes_an_alias_of_who_has_it(lost: Box) -> None:
    """The lost address turns out to be the builder, who has the letter: a duplicate, not a letter that vanishes."""
    lost.declare("lab", LAB.replace("aliases: [mason@lab.internal]", f"aliases: [{NEWCOMER}]"))
    lost.merge()
    retried(lost, "a.md", "--now", check=65)
    assert lost.reason("a.md")["reason"] == "duplicate"
    assert len(lost.unread("lab.builder")) == 1
    verified(lost)


def test_name_that_is_taken(lost: Box) -> None:
    """Another letter of the same name waits in the outbox: neither is replaced."""
    hire(lost)
    lost.drop("a.md", letter(subject="other", to=ECHO))
    assert retried(lost, "a.md")["retried"][0]["path"] == "outbox/a-2.md"
    assert lost.outbox() == ["a-2.md", "a.md"]
    lost.route()
    assert [mail.sequence for mail in lost.unread("lab.newcomer")] == [1]
    assert len(lost.unread("lab.builder")) == 1
    verified(lost)


def test_beside_a_copy_that_waits(lab: Box) -> None:
    """One recipient deferred, one refused: the retried copy serves the one, the waiting letter the other."""
    unread = lab.inbox("lab.checker") / "unread"
    unread.rmdir()
    unread.write_text("no directory")
    lab.drop("a.md", letter(to=(BUILDER, CHECKER, NEWCOMER)))
    lab.route(check=75)
    assert (lab.outbox(), lab.dead()) == (["a.md"], ["a.md"])
    lab.declare("lab", HIRED)
    lab.merge(check=73)
    assert retried(lab, "a.md", "--now")["retried"][0]["path"] == "outbox/a-2.md"
    assert [mail.sequence for mail in lab.unread("lab.newcomer")] == [1]
    unread.unlink()
    lab.route()
    for agent in ("lab.builder", "lab.checker", "lab.newcomer"):
        assert [mail.sequence for mail in lab.unread(agent)] == [1], agent
    assert lab.outbox() == []
    verified(lab)


def test_without_reason_file(lost: Box) -> None:
    """The log knows what the missing reason file said."""
    (lost.root / "dead-letter" / "a.md.reason.yml").unlink()
    assert "no reason file  a.md" in run(lost, "list")
    assert "there is no reason file" in run(lost, "show", md5(b"Please run the nightly build.\n")[:8])
    hire(lost)
    answer = retried(lost, "a.md", "--now")
    assert (answer["retried"][0]["sequence"], answer["retried"][0]["recipients"]) == (1, [NEWCOMER])
    assert len(lost.unread("lab.builder")) == 1
    verified(lost)


def test_letter_that_nobody_knows(lab: Box) -> None:
    """A file that was put among the dead letters by hand is routed as new."""
    (lab.root / "dead-letter" / "mine.tmp").write_bytes(letter())
    (lab.root / "dead-letter" / "junk.md").write_bytes(b"junk")
    then = time.time() - 3600
    os.utime(lab.root / "dead-letter" / "junk.md", (then, then))
    answer = retried(lab, "mine.tmp", "junk.md", "--now", check=65)
    assert sorted(one["path"] for one in answer["retried"]) == ["outbox/junk.md", "outbox/mine.tmp.md"]
    assert [mail.sequence for mail in lab.unread("lab.builder")] == [1]
    assert lab.reason("junk.md")["reason"] == "malformed-header"
    assert [line["action"] for line in lab.log()].count("retried") == 2


def test_all_and_by_reason(lab: Box) -> None:
    """--reason and --all take what they say; what cannot be sent again is left and told of."""
    lab.drop("a.md", letter(to=NEWCOMER))
    lab.drop("b.md", letter(type="note"))
    (lab.root / "outbox" / "link.md").symlink_to("/etc/passwd")
    lab.route()
    hire(lab)
    assert [one["file"] for one in retried(lab, "--reason", "unknown-recipient")["retried"]] == ["a.md"]
    lab.route()
    done = lab.run("dead-letter", "retry", "--all")
    assert done.returncode == 0
    assert "b.md -> outbox/b.md #" in done.stdout
    assert "1 back in the outbox" in done.stdout
    assert "link.md: left: it is a symbolic link" in done.stderr
    assert lab.dead() == ["link.md"]
    lab.route()
    verified(lab)


def test_one_wrong_name_stops_all(lost: Box) -> None:
    """Named letters are retried together or not at all."""
    before = lost.snapshot()
    run(lost, "retry", "a.md", "feedface", check=65)
    assert lost.snapshot() == before
    for args in ((), ("--all", "a.md"), ("--all", "--reason", "duplicate")):
        run(lost, "retry", *args, check=64)


def test_letter_that_an_editor_holds(lost: Box) -> None:
    """A letter that is being written waits for its writer."""
    with (lost.root / "dead-letter" / "a.md").open("ab"):
        assert "writer" in run(lost, "retry", "a.md", check=65)
    retried(lost, "a.md")


def test_waits_for_a_router(lost: Box) -> None:
    """Nothing is moved while a router works."""
    with (lost.root / ".postmaster" / "lock").open("r+b") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        process = lost.start("dead-letter", "retry", "a.md")
        time.sleep(0.5)
        assert process.poll() is None
        assert lost.outbox() == []
    process.communicate(timeout=30)
    assert (process.returncode, lost.outbox()) == (0, ["a.md"])


def test_orphaned_reason_file(lost: Box) -> None:
    """A reason file whose letter has gone is told of, and removed by the next retry; other files are not."""
    os.rename(lost.root / "dead-letter" / "a.md", lost.root / "outbox" / "a.md")
    (lost.root / "dead-letter" / "mine.reason.yml").write_bytes(letter(body="kept"))
    answer = listing(lost)
    assert answer["orphans"] == ["a.md.reason.yml"]
    assert [row["file"] for row in answer["letters"]] == ["mine.reason.yml"]
    assert "a.md.reason.yml: a reason file whose letter is gone" in run(lost, "list")
    retried(lost, "--reason", "duplicate")
    assert os.listdir(lost.root / "dead-letter") == ["mine.reason.yml"]


CUT = """
import os, signal, sys
from postmaster import {module}
real = {module}.{name}
def cut(*args, **kwargs):
    if {after}:
        real(*args, **kwargs)
    os.kill(os.getpid(), signal.SIGKILL)
{module}.{name} = cut
from postmaster.cli import app
sys.exit(app.run(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("module", "name", "after"),
    [
        ("delivery_log", "append", False),
        ("delivery_log", "append", True),
        ("durable", "rename_new", False),
        ("durable", "rename_new", True),
        ("durable", "sync_directory", False),
        ("durable", "remove", False),
        ("durable", "remove", True),
    ],
)
def test_killed_and_run_again(lost: Box, module: str, name: str, after: bool) -> None:
    """Killed at any step, then done again: the letter is in one place, and reaches whom it did not, once."""
    hire(lost)
    code = CUT.format(module=module, name=name, after=after)
    command = [sys.executable, "-c", code, "--root", str(lost.root), "dead-letter", "retry", "a.md"]
    done = subprocess.run(command, env=lost.environment(), capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    places = [path for path in (lost.root / "outbox" / "a.md", lost.root / "dead-letter" / "a.md") if path.exists()]
    assert len(places) == 1
    retried(lost, "--all")
    lost.route()
    assert [mail.sequence for mail in lost.unread("lab.newcomer")] == [1]
    assert len(lost.unread("lab.builder")) == 1
    assert (lost.outbox(), os.listdir(lost.root / "dead-letter")) == ([], [])
    assert lost.tmp_litter() == []
    verified(lost)


def test_no_office(tmp_path: Path) -> None:
    """Without an office: exit 78."""
    box = Box(tmp_path / "world")
    for command in (["list"], ["show", "a"], ["retry", "a"]):
        run(box, *command, check=78)
    assert not box.root.exists()


@pytest.mark.parametrize("command", [[], ["list"], ["show"], ["retry"]])
def test_help_has_an_example(box: Box, command: list[str]) -> None:
    """Every command explains itself."""
    done = box.run("dead-letter", *command, "--help")
    assert done.returncode == 0
    assert "postmaster dead-letter " in done.stdout
    assert "Example:" in done.stdout


def test_documentation_names_every_reason() -> None:
    """The table in docs/dead-letters.md is the program's table."""
    from postmaster import reasons

    page = (Path(__file__).parents[2] / "docs" / "dead-letters.md").read_text("utf-8")
    for reason in reasons.REASONS.values():
        row = f"| `{reason.name}` | {reason.status} | {reason.meaning} | {reason.remedy} |"
        assert (row in page) == (reason.action in (reasons.DEAD_LETTER, reasons.REJECTED)), reason.name
