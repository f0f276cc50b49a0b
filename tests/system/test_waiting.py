"""Waiting for an answer (`send --wait`, `reply --wait`) and for new mail (`inbox --wait`)."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from typing import Any

import pytest
from support import Box, letter

EMITTING = """\
plugin: desk
agents:
  - id: desk.asker
    address: asker@desk.internal
    aliases: [ask@desk.internal]
    accepts: [desk.answer]
    accepts_from: ["*"]
    emits: [{type: desk.ask, to: helper@desk.internal}]
  - id: desk.helper
    address: helper@desk.internal
    accepts: [desk.ask]
    accepts_from: ["*"]
    emits: [{type: desk.answer, to: asker@desk.internal}]
"""
ASK = (
    *("send", "--to", "helper@desk.internal", "--from", "asker@desk.internal", "--type", "desk.ask"),
    *("--subject", "which?", "--correlation", "run-1", "--body", "Which one?"),
)
HIDE = "import sys; sys.modules['watchfiles'] = None; sys.modules['watchfiles._rust_notify'] = None\n"


@pytest.fixture
def desk(lab: Box) -> Box:
    """The laboratory, with one who asks and one who helps."""
    lab.declare("desk", EMITTING)
    lab.merge()
    return lab


@pytest.fixture(params=["notified", "polling"])
def start(request: pytest.FixtureRequest, desk: Box) -> Any:
    """How a command is started: with file notification, and without the package for it."""
    if request.param == "notified":
        return desk.start

    def polling(*args: str) -> subprocess.Popen[str]:
        code = HIDE + f"sys.argv = {['postmaster', '--root', str(desk.root), *args]!r}\n"
        return subprocess.Popen(
            [sys.executable, "-c", code + "from postmaster.cli import main; main()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=desk.environment(),
            cwd=desk.world / "cwd",
        )

    return polling


def question(box: Box) -> Any:
    """Return the question that the helper has, once it is there."""
    end = time.monotonic() + 30
    while not (found := box.unread("desk.helper")):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found[-1]


def ended(process: subprocess.Popen[str], code: int) -> tuple[str, str]:
    """Wait for the end of a process; return what it said."""
    out, err = process.communicate(timeout=60)
    assert process.returncode == code, (process.returncode, out, err)
    assert "Traceback" not in err
    return out, err


# ---------------------------------------------------------------------- an answer


def test_the_answer_ends_the_waiting(desk: Box, start: Any) -> None:
    """It is printed and stays unread; other mail of the flow, and other answers, do not count."""
    process = start(*ASK, "--now", "--wait", "60")
    asked = question(desk)
    for name, fields in {
        "other-flow.md": {"correlation_id": "run-2", "extra": f"in_reply_to: {asked.fields['id']}"},
        "no-answer.md": {"correlation_id": "run-1"},
        "other-answer.md": {"correlation_id": "run-1", "extra": "in_reply_to: " + "0" * 32},
    }.items():
        desk.drop(name, letter("asker@desk.internal", "helper@desk.internal", "desk.answer", body=name, **fields))
    desk.route()
    assert len(desk.unread("desk.asker")) == 3
    assert process.poll() is None
    assert desk.run("reply", "desk.helper", asked.name, "--body", "This one.", "--now").returncode == 0
    out, _ = ended(process, 0)
    (answer,) = [mail for mail in desk.unread("desk.asker") if mail.body == b"This one."]
    assert f"inboxes/desk.asker/unread/{answer.name}\n---\n" in out
    assert out.endswith("---\nThis one.\n")


def test_the_answer_as_json(desk: Box, start: Any) -> None:
    """The same as data: what was sent, what became of it, and the answer."""
    process = start(*ASK, "--now", "--wait", "60", "--json")
    desk.run("reply", "desk.helper", question(desk).name, "--body", "This one.", "--now")
    answer = json.loads(ended(process, 0)[0])
    assert (answer["state"], answer["outcomes"][0]["action"]) == ("answered", "delivered")
    assert (answer["answer"]["agent"], answer["answer"]["folder"]) == ("desk.asker", "unread")
    assert answer["answer"]["body"] == "This one."
    assert answer["answer"]["header"]["in_reply_to"] == answer["id"]
    assert "answer_lines" not in answer


def test_no_answer_in_time(desk: Box, start: Any) -> None:
    """Exit 75 when the time is over, and what comes later is ordinary unread mail."""
    begun = time.monotonic()
    _, err = ended(start(*ASK, "--now", "--wait", "0.4"), 75)
    assert time.monotonic() - begun >= 0.4
    assert "no answer within 0.4 seconds; when it comes it is unread mail of desk.asker" in err
    desk.run("reply", "desk.helper", question(desk).name, "--body", "Late.", "--now")
    assert [mail.body for mail in desk.unread("desk.asker")] == [b"Late."]


def test_nobody_routes(desk: Box) -> None:
    """What was not even routed is said to be so."""
    _, err = ended(desk.start(*ASK, "--wait", "0.2"), 75)
    assert "not routed yet; the next run takes it; no answer within" in err


def test_an_answer_from_before_is_none(desk: Box) -> None:
    """The same question again in one flow has the same id: the old answer does not end the waiting for a new one."""
    first = desk.start(*ASK, "--now", "--wait", "60")
    desk.run("reply", "desk.helper", question(desk).name, "--body", "Old.", "--now")
    ended(first, 0)
    desk.ack("desk.helper")
    second = desk.start(*ASK, "--now", "--wait", "60")
    again = question(desk)
    time.sleep(0.5)
    assert second.poll() is None
    desk.run("reply", "desk.helper", again.name, "--body", "New.", "--now")
    assert ended(second, 0)[0].endswith("New.\n")


def test_an_answer_that_is_acknowledged_at_once(desk: Box, start: Any) -> None:
    """Another process of the asker may read it first: it is found in read/ by the log."""
    process = start(*ASK, "--now", "--wait", "60", "--json")
    asked = question(desk)
    done = threading.Event()

    def snatch() -> None:
        while not done.is_set():
            for name in os.listdir(desk.inbox("desk.asker") / "unread"):
                with contextlib.suppress(FileNotFoundError):
                    os.rename(desk.inbox("desk.asker") / "unread" / name, desk.inbox("desk.asker") / "read" / name)

    thread = threading.Thread(target=snatch)
    thread.start()
    try:
        desk.run("reply", "desk.helper", asked.name, "--body", "Quick.", "--now")
        answer = json.loads(ended(process, 0)[0])
    finally:
        done.set()
        thread.join()
    assert answer["answer"]["body"] == "Quick."
    assert len(desk.read("desk.asker")) == 1


def test_a_refusal_ends_the_waiting(desk: Box, start: Any) -> None:
    """Nobody answers a dead letter: exit 65 at once, with the reason."""
    process = start(*ASK, "--wait", "3000")
    while not [name for name in desk.outbox() if not name.startswith(".")]:
        time.sleep(0.01)
    desk.declare("desk", EMITTING.replace("accepts: [desk.ask]", "accepts: [desk.other]"))
    desk.merge()
    desk.route()
    out, err = ended(process, 65)
    assert "[type-not-accepted]" in out
    assert "refused, so no answer can come" in err


def test_a_letter_that_is_taken_back_ends_the_waiting(desk: Box, start: Any) -> None:
    """Nobody answers a letter that is gone: exit 75 at once."""
    process = start(*ASK, "--wait", "3000")
    while not (names := [name for name in desk.outbox() if not name.startswith(".")]):
        time.sleep(0.01)
    (desk.root / "outbox" / names[0]).unlink()
    assert "no answer can come: it has left the outbox" in ended(process, 75)[1]


def test_refused_by_one_of_two(desk: Box) -> None:
    """An answer can still come from the other: the waiting goes on."""
    two = [one.replace("helper@desk.internal", "helper@desk.internal,builder@lab.internal") for one in ASK]
    desk.declare(
        "lab",
        (desk.root / "registry.d/lab.yml")
        .read_text()
        .replace("job.*", "desk.*")
        .replace("accepts_from: [conductor@lab.internal, checker@lab.internal]", 'accepts_from: ["*"]'),
    )
    desk.merge()
    process = desk.start(*two, "--wait", "60", "--json")
    while not [name for name in desk.outbox() if not name.startswith(".")]:
        time.sleep(0.01)
    desk.declare("lab", (desk.root / "registry.d/lab.yml").read_text().replace("desk.*", "job.*"))
    desk.merge()
    desk.route()
    assert len(desk.dead()) == 1
    desk.run("reply", "desk.helper", question(desk).name, "--body", "Here.", "--now")
    answer = json.loads(ended(process, 0)[0])
    assert answer["answer"]["body"] == "Here."
    assert {one["action"] for one in answer["outcomes"]} == {"delivered", "rejected"}


def test_who_has_no_inbox_cannot_wait(desk: Box) -> None:
    """Refused before anything is sent: nobody has the sender's address."""
    done = desk.run(*[one.replace("asker@", "stranger@") for one in ASK], "--wait", "60")
    assert done.returncode == 65
    assert "nobody has the address stranger@desk.internal, so there is no inbox to wait at" in done.stderr
    assert desk.outbox() == []


def test_one_thing_at_a_time(desk: Box) -> None:
    """--wait and --wait-delivered are two things to wait for."""
    assert desk.run(*ASK, "--wait", "1", "--wait-delivered", "1").returncode == 64
    assert desk.outbox() == []


def test_replies_wait_too(desk: Box) -> None:
    """The waiting for an answer to an answer; MSG is acknowledged before it ends, as soon as the reply is delivered."""
    desk.declare("desk", EMITTING.replace("accepts: [desk.ask]", "accepts: [desk.ask, desk.thanks]"))
    desk.merge()
    assert desk.run(*ASK, "--now").returncode == 0
    process = desk.start("reply", "desk.helper", question(desk).name, "--body", "A?", "--ack", "--now", "--wait", "60")
    while not desk.unread("desk.asker") or desk.unread("desk.helper"):
        time.sleep(0.01)
    assert process.poll() is None
    (mail,) = desk.unread("desk.asker")
    desk.run("reply", "desk.asker", mail.name, "--type", "desk.thanks", "--body", "Yes.", "--now")
    out, _ = ended(process, 0)
    assert "acknowledged inboxes/desk.helper/read/" in out
    assert out.endswith("Yes.\n")


def test_ended_by_hand(desk: Box) -> None:
    """Ctrl-C ends it with 130, and what was sent is still said."""
    process = desk.start(*ASK, "--now", "--wait", "600")
    question(desk)
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    assert "flow        run-1" in ended(process, 130)[0]


# ---------------------------------------------------------------------- any mail


def test_inbox_waits_for_mail(desk: Box, start: Any) -> None:
    """It lists what came as soon as it comes."""
    process = start("inbox", "asker@desk.internal", "--wait", "60", "--json")
    time.sleep(0.5)
    assert process.poll() is None
    desk.drop("a.md", letter("ask@desk.internal", "helper@desk.internal", "desk.answer"))
    desk.route()
    (row,) = json.loads(ended(process, 0)[0])["messages"]
    assert row["subject"] == "nightly build"


def test_inbox_with_unread_mail_does_not_wait(desk: Box, start: Any) -> None:
    """Mail that came just before the waiting began is not missed."""
    desk.drop("a.md", letter("ask@desk.internal", "helper@desk.internal", "desk.answer"))
    desk.route()
    assert "unread 1" in ended(start("inbox", "desk.asker", "--wait", "3000"), 0)[0]


def test_inbox_without_mail(desk: Box, start: Any) -> None:
    """Exit 75 when the time is over."""
    assert "unread 0" in ended(start("inbox", "desk.asker", "--wait", "0.2"), 75)[0]


def test_an_archived_mailbox_gets_no_mail(desk: Box) -> None:
    """Waiting there would be in vain."""
    desk.declare("desk", EMITTING.replace("  - id: desk.asker\n", "  - id: desk.asker\n    instances: many\n"))
    desk.merge()
    desk.run("register", "desk.asker", "--name", "ann")
    desk.run("archive", "ann")
    done = desk.run("inbox", "desk.asker+ann", "--wait", "600")
    assert done.returncode == 65 and "was archived" in done.stderr


@pytest.mark.parametrize("seconds", ["-1", "nan", "soon", "9e9"])
def test_wrong_times(desk: Box, seconds: str) -> None:
    """A time to wait has an end."""
    assert desk.run("inbox", "desk.asker", "--wait", seconds).returncode == 64
    assert desk.run(*ASK, "--wait", seconds).returncode == 64
    assert desk.outbox() == []


def test_the_folder_that_is_watched_goes_away(desk: Box) -> None:
    """A mailbox that is made anew while somebody waits at it is looked into all the same."""
    unread = desk.inbox("desk.asker") / "unread"
    process = desk.start("inbox", "desk.asker", "--wait", "60")
    time.sleep(0.5)
    unread.rename(unread.with_name("old"))
    time.sleep(0.1)
    unread.mkdir()
    desk.drop("a.md", letter("ask@desk.internal", "helper@desk.internal", "desk.answer"))
    desk.route()
    assert "unread 1" in ended(process, 0)[0]
