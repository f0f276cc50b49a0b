"""`send` and `reply`: checked by the rules that route, written whole or not at all, and followed if asked."""

import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support import LAB, Box, header, letter, md5, obeying_permissions, permissions_count

BUILDER, CHECKER, CONDUCTOR = "builder@lab.internal", "checker@lab.internal", "conductor@lab.internal"
SENT_NAME = re.compile(r"\d{8}T\d{6}Z-[0-9a-f]{8}\.md")
MAIL = {"--to": BUILDER, "--from": CONDUCTOR, "--type": "job.run", "--subject": "nightly build"}


def options(**changes: str) -> list[str]:
    """Return the options of a letter that is accepted, with changes (`from_` for --from)."""
    given = MAIL | {"--" + name.rstrip("_").replace("_", "-"): value for name, value in changes.items()}
    return [part for pair in given.items() for part in pair]


def send(
    box: Box, *more: str, check: int = 0, input: str | None = None, **changes: str
) -> subprocess.CompletedProcess[str]:
    """Run `send` and check its exit code."""
    done = box.run("send", *options(**changes), *more, input=input)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


def sent(box: Box, *more: str, check: int = 0, **changes: str) -> dict[str, Any]:
    """Run `send --json` and return its answer."""
    answer: dict[str, Any] = json.loads(send(box, *more, "--json", check=check, **changes).stdout)
    return answer


def only_letter(box: Box) -> bytes:
    """Return the one letter in the outbox."""
    (name,) = box.outbox()
    return (box.root / "outbox" / name).read_bytes()


# ---------------------------------------------------------------------- what is written


def test_sends_and_says_what_it_sent(lab: Box) -> None:
    """The id is the body's, the flow the one given, and the letter is in the outbox under a name that sorts by time."""
    done = send(lab, "--correlation", "run-42", "--reply-to", "ab" * 16, input="Please run it.\n")
    (name,) = lab.outbox()
    assert SENT_NAME.fullmatch(name)
    assert done.stdout.splitlines() == [
        f"id          {md5(b'Please run it.' + bytes([10]))}",
        "flow        run-42",
        f"file        outbox/{name}",
    ]
    read = header(only_letter(lab))
    assert read.body == b"Please run it.\n"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", read.fields.pop("sent_at"))
    assert read.fields == {
        "to": BUILDER,
        "from": CONDUCTOR,
        "type": "job.run",
        "subject": "nightly build",
        "correlation_id": "run-42",
        "in_reply_to": "ab" * 16,
    }
    assert lab.tmp_litter() == []


def test_a_new_flow_is_made_and_printed(lab: Box) -> None:
    """Without --correlation every letter begins a flow of its own."""
    flows = [sent(lab, "--body", "x")["correlation_id"] for _ in range(2)]
    assert all(re.fullmatch(r"flow-\d{8}T\d{6}Z-[0-9a-f]{8}", flow) for flow in flows)
    assert flows[0] != flows[1]


def test_body_is_kept_byte_for_byte(lab: Box, tmp_path: Path) -> None:
    """A file is the body, whatever bytes it holds, rules and carriage returns too."""
    body = b"\xef\xbb\xbf---\r\nto: x\r\n---\n\x00\xff\xfe\r\n\r\n  \n" + bytes(range(256))
    (tmp_path / "body.bin").write_bytes(body)
    answer = sent(lab, "--now", str(tmp_path / "body.bin"))
    (mail,) = lab.unread("lab.builder")
    assert mail.body == body
    assert answer["id"] == md5(body) == mail.fields["id"]


@pytest.mark.parametrize("source", ["stdin", "dash", "text"])
def test_sources_of_the_body(lab: Box, source: str) -> None:
    """The body comes from standard input, `-` or --body."""
    more = {"stdin": [], "dash": ["-"], "text": ["--body", "words"]}[source]
    send(lab, *more, input="piped\n")
    assert header(only_letter(lab)).body == (b"words" if source == "text" else b"piped\n")


@pytest.mark.parametrize("source", ["stdin", "dash", "closed", "file"])
def test_no_body_is_refused(lab: Box, tmp_path: Path, source: str) -> None:
    """A body that turns out empty is wrong use, says what to do, and nothing is written; --allow-empty sends it."""
    (tmp_path / "empty").touch()
    more = {"dash": ["-"], "file": [str(tmp_path / "empty")]}.get(source, [])
    prefix = ["/bin/sh", "-c", 'exec "$@" <&-', "sh"] if source == "closed" else []
    refused = lab.run("send", *options(), *more, prefix=prefix)
    assert refused.returncode == 64 and "no body" in refused.stderr and "--allow-empty" in refused.stderr, refused
    assert lab.outbox() == [] and lab.tmp_litter() == []
    allowed = lab.run("send", *options(), "--allow-empty", *more, prefix=prefix)
    assert (allowed.returncode, header(only_letter(lab)).body) == (0, b""), allowed


def test_an_empty_text_is_a_body(lab: Box) -> None:
    """`--body ''` says that the body is empty: it is sent."""
    send(lab, "--body", "")
    assert header(only_letter(lab)).body == b""


def test_a_reply_without_a_body_is_refused(lab: Box) -> None:
    """`reply` needs a body as `send` does."""
    lab.drop("a.md", letter(BUILDER, body="?"))
    lab.route()
    (mail,) = lab.unread("lab.builder")
    refused = lab.run("reply", "lab.builder", mail.name, "--type", "job.done")
    assert refused.returncode == 64 and "no body" in refused.stderr and lab.outbox() == [], refused
    assert lab.run("reply", "lab.builder", mail.name, "--type", "job.done", "--allow-empty").returncode == 0
    assert header(only_letter(lab)).body == b""


def test_two_sources_of_the_body(lab: Box, tmp_path: Path) -> None:
    """A body that is given twice is wrong use: which one was meant?"""
    (tmp_path / "b").write_text("b")
    for file in (str(tmp_path / "b"), "-"):
        assert "once" in send(lab, "--body", "a", file, check=64).stderr
    assert lab.outbox() == []


def test_missing_body_file(lab: Box, tmp_path: Path) -> None:
    """A file that cannot be read is said, and nothing is sent."""
    for path in (tmp_path / "none", tmp_path):
        assert "cannot be read" in send(lab, str(path), check=65).stderr
    assert lab.outbox() == []


def test_many_recipients(lab: Box) -> None:
    """--to is given again, or joined by commas; the order stays."""
    answer = sent(lab, "--to", f"{CHECKER}, echo@lab.internal", "--body", "x", "--now")
    (mail,) = lab.unread("lab.echo")
    assert mail.fields["to"] == [BUILDER, CHECKER, "echo@lab.internal"]
    assert [(one["to"], one["sequence"]) for one in answer["outcomes"]] == [
        (BUILDER, 1),
        (CHECKER, 1),
        ("echo@lab.internal", 1),
    ]


def test_own_header_fields(lab: Box) -> None:
    """--header adds fields of the sender's own; values may hold anything, `=` too."""
    send(lab, "--header", "priority=high", "--header", "x-note=a=b: #c", "--header", "empty=", "--body", "x")
    fields = header(only_letter(lab)).fields
    assert (fields["priority"], fields["x-note"], fields["empty"]) == ("high", "a=b: #c", "")


@pytest.mark.parametrize("bad", ["to=x", "ID=1", "sequence=5", "sent_at=x", "novalue", "=x", "a b=c", "a\nb=c"])
def test_bad_header_option(lab: Box, bad: str) -> None:
    """Fields with an option of their own, Postmaster's own and what is no KEY=VALUE are wrong use."""
    send(lab, "--header", bad, "--body", "x", check=64)
    assert lab.outbox() == []


def test_header_given_twice(lab: Box) -> None:
    """A repeated key would make a malformed header; it is refused before."""
    assert "twice" in send(lab, "--header", "a=1", "--header", "a=2", "--body", "x", check=64).stderr


SUBJECTS = [
    "colon: space",
    "trailing colon:",
    "# comment",
    "a #b",
    "*alias",
    "&anchor",
    "!tag",
    "- item",
    "? key",
    "'single'",
    '"double"',
    "back\\slash",
    "{flow}",
    "[flow]",
    "%directive",
    "@at",
    "`tick`",
    "|",
    ">",
    "no",
    "null",
    "0123",
    "1e5",
    "12:30:45",
    "2026-03-04",
    "~",
    "---",
    "...",
    " leading and trailing ",
    "two\nlines",
    "a\n---\nb",
    "cr\rlf\r\n",
    "tab\there",
    "bell\x07 escape\x1b[31m del\x7f",
    "nel\x85 ls\u2028 ps\u2029 bom\ufeff nbsp\xa0",
    "ünïcödé 漢字 🙂 \U000e0001",
    "\ufffe\uffff",
    "x" * 998,
]


def test_any_subject_is_read_back(lab: Box) -> None:
    """A subject that YAML would take for something else is quoted: it arrives as exactly the same text."""
    for number, subject in enumerate(SUBJECTS):
        send(lab, "--correlation", "s", "--sent-at", f"2026-01-01T00:00:{number:02d}Z", "--body", "x", subject=subject)
    lab.route()
    assert [mail.fields["subject"] for mail in lab.unread("lab.builder")] == SUBJECTS
    listed = json.loads(lab.run("inbox", "lab.builder", "--limit", "0", "--json").stdout)["messages"]
    assert [row["subject"] for row in reversed(listed)] == SUBJECTS
    shown = lab.run("inbox", "lab.builder", "--limit", "0").stdout
    assert not any(c for c in shown if c != "\n" and not c.isprintable())


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=60).filter(
    lambda text: text.strip() != ""
)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(subject=TEXT, note=TEXT)
def test_any_text_survives(lab: Box, subject: str, note: str) -> None:
    """Whatever a subject or a field of one's own says, it says the same after send, route and read."""
    answer = sent(lab, "--header", f"note={note}", "--body", "x", "--now", subject=subject)
    (outcome,) = answer["outcomes"]
    file = os.path.basename(outcome["path"])
    read = json.loads(lab.run("read", "lab.builder", file, "--json").stdout)
    assert (read["header"]["subject"], read["header"]["note"]) == (subject, note)
    line = lab.log()[-1]
    assert (line["subject"], line["sequence"]) == (subject, 1)


# ---------------------------------------------------------------------- what is refused


REFUSED = {
    "typo": ({"to": "bilder@lab.internal"}, "unknown-recipient (5.1.1)", "did you mean builder@lab.internal?"),
    "no address": ({"to": "builder"}, "unknown-recipient (5.1.1)", "did you mean builder@lab.internal?"),
    "role": ({"to": "role:nobody"}, "unknown-recipient (5.1.1)", "no live holder of role:nobody"),
    "agent id": ({"to": "agent:lab.bilder"}, "unknown-recipient (5.1.1)", "did you mean agent:lab.builder?"),
    "closed type": ({"type": "jobs.run"}, "type-not-accepted (5.7.1)", "accepts job.*"),
    "closed sender": ({"from_": "echo@lab.internal"}, "sender-not-accepted (5.7.1)", "not from echo@lab.internal"),
}


@pytest.mark.parametrize(("changes", "reason", "hint"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_at_once(lab: Box, changes: dict[str, str], reason: str, hint: str) -> None:
    """What the router would refuse is an error for the sender, with the remedy, and nothing is written."""
    before = lab.snapshot()
    done = send(lab, "--body", "x", check=65, **changes)
    to = changes.get("to", BUILDER)
    assert f"to {to}: {reason}: " in done.stderr
    assert hint in done.stderr
    assert "remedy: " in done.stderr
    assert "dead-letter" not in done.stderr
    assert done.stdout == ""
    assert lab.snapshot() == before


def test_one_bad_recipient_stops_all(lab: Box) -> None:
    """Every refused recipient is named, and the good one gets nothing either."""
    answer = sent(lab, "--to", "bilder@lab.internal", "--to", "role:x", "--body", "x", check=65)
    assert not answer["sent"]
    assert [(one["to"], one["reason"]) for one in answer["refused"]] == [
        ("bilder@lab.internal", "unknown-recipient"),
        ("role:x", "unknown-recipient"),
    ]
    assert all(one["remedy"] and one["status"] == "5.1.1" for one in answer["refused"])
    assert lab.outbox() == []


INVALID = {
    "from": {"from_": "nobody"},
    "empty subject": {"subject": " "},
    "control in type": {"type": "job.\x1b[0m"},
    "line break in flow": {"correlation": "a\nb"},
    "empty flow": {"correlation": ""},
    "time": {"sent_at": "yesterday"},
    "no such day": {"sent_at": "2026-02-30T00:00:00Z"},
    "long subject": {"subject": "x" * 999},
    "empty reply": {"reply_to": ""},
}


@pytest.mark.parametrize("changes", INVALID.values(), ids=INVALID.keys())
def test_invalid_value(lab: Box, changes: dict[str, str]) -> None:
    """A value that a header cannot have is refused by the rule that routes; no line number of a file nobody wrote."""
    done = send(lab, "--body", "x", check=65, **changes)
    assert "invalid-header: `" in done.stderr
    assert "line" not in done.stderr.replace("deadline", "")
    assert "\x1b" not in done.stderr
    assert lab.outbox() == []


def test_bytes_that_are_not_utf8(lab: Box) -> None:
    """An argument that is not UTF-8 is refused, not written as something else."""
    bad = os.fsdecode(b"caf\xe9")
    for changes in ({"subject": bad}, {"correlation": bad}):
        assert "not UTF-8" in send(lab, "--body", "x", check=65, **changes).stderr
    send(lab, "--body", "x", check=65, to=bad + "@lab.internal")
    assert lab.outbox() == []


@pytest.mark.parametrize("missing", MAIL)
def test_missing_option(lab: Box, missing: str) -> None:
    """Each of the four is needed."""
    given = [part for name, value in MAIL.items() if name != missing for part in (name, value)]
    done = lab.run("send", *given, "--body", "x")
    assert done.returncode == 64
    assert missing in done.stderr


def test_to_nobody(lab: Box) -> None:
    """An empty list of recipients is wrong use."""
    send(lab, "--body", "x", check=64, to=" , ")


def test_too_large(lab: Box) -> None:
    """A body over the office's limit is refused before anything is written."""
    (lab.root / "post-office.yml").write_text("max_message_bytes: 65536\n")
    assert "too-large" in send(lab, check=65, input="x" * 65536).stderr
    assert lab.outbox() == []
    send(lab, input="x" * 65000)


def test_duplicate_is_told(lab: Box) -> None:
    """The sender hears that the same letter, sent_at too, was given before; another time is another letter."""
    for_all = {"correlation": "run-1", "sent_at": "2026-03-04T10:00:00Z"}
    send(lab, "--now", "--body", "ok", **for_all)
    assert "duplicate (5.5.0): identical to inboxes/" in send(lab, "--body", "ok", check=65, **for_all).stderr
    assert lab.outbox() == []
    send(lab, "--body", "ok", "--now", correlation="run-1")
    send(lab, "--body", "ok", "--now", to="echo@lab.internal", **for_all)
    send(lab, "--body", "ok", "--now", to="echo@lab.internal", **for_all)
    assert len(lab.unread("lab.echo")) == 2


def test_no_office(tmp_path: Path) -> None:
    """No office, or none with a registry: exit 78, nothing written."""
    box = Box(tmp_path / "world")
    assert box.run("send", *options(), "--body", "x").returncode == 78
    assert not box.root.exists()
    box.init()
    before = box.snapshot()
    done = box.run("send", *options(), "--body", "x")
    assert done.returncode == 78
    assert "registry merge" in done.stderr
    assert box.snapshot() == before


# ---------------------------------------------------------------------- following it


def test_now_routes_and_reports(lab: Box) -> None:
    """--now says where the letter went, with its number."""
    done = send(lab, "--now", "--correlation", "run-1", "--body", "x")
    (mail,) = lab.unread("lab.builder")
    assert f"delivered   {BUILDER} (lab.builder) #1 -> inboxes/lab.builder/unread/{mail.name}" in done.stdout
    assert lab.outbox() == []


def test_now_of_a_letter_that_waits(lab: Box) -> None:
    """An inbox that is closed defers the letter: exit 75, and the answer says why."""
    unread = lab.inbox("lab.builder") / "unread"
    unread.rmdir()
    unread.write_text("no directory")
    answer = sent(lab, "--now", "--body", "x", check=75)
    assert answer["state"] == "deferred"
    assert answer["outcomes"][0]["reason"] == "inbox-unavailable"
    assert lab.outbox() == [answer["file"]]


def test_wait_until_time_is_over(lab: Box) -> None:
    """Nobody routes: exit 75 after the seconds given, and the letter stays."""
    started = time.monotonic()
    answer = sent(lab, "--wait-delivered", "0.3", "--body", "x", check=75)
    assert time.monotonic() - started >= 0.3
    assert (answer["state"], answer["outcomes"]) == ("waiting", [])
    assert lab.outbox() == [answer["file"]]


def test_wait_for_another_router(lab: Box) -> None:
    """--wait-delivered hears of the delivery that another process makes."""
    process = lab.start("send", *options(), "--wait-delivered", "30", "--json", "--body", "x")
    while not [name for name in lab.outbox() if SENT_NAME.fullmatch(name)]:
        time.sleep(0.01)
    lab.route()
    out, err = process.communicate(timeout=30)
    assert process.returncode == 0, err
    assert json.loads(out)["state"] == "delivered"


def test_wait_is_not_told_of_other_letters(lab: Box) -> None:
    """Letters that fail beside it do not change what is said of this one."""
    lab.drop("bad.md", "no header")
    lab.drop("other.md", letter(to="nobody@lab.internal"))
    answer = sent(lab, "--now", "--wait-delivered", "5", "--body", "x")
    assert (answer["state"], len(answer["outcomes"])) == ("delivered", 1)


def test_broken_registry_after_sending(lab: Box) -> None:
    """The registry is checked before the letter is written."""
    (lab.root / "agent-registry.yml").write_text("agents: [")
    send(lab, "--now", "--body", "x", check=78)
    assert lab.outbox() == []


def test_stale_private_files_are_cleared(lab: Box) -> None:
    """What a sender that was killed left is removed after an hour, and only that."""
    outbox = lab.root / "outbox"
    for name, age in ((".send-1-ab.tmp", 7200), (".send-2-ab.tmp", 10), (".other.tmp", 7200)):
        (outbox / name).write_text("half")
        os.utime(outbox / name, (time.time() - age,) * 2)
    send(lab, "--body", "x")
    assert [name for name in lab.outbox() if name.startswith(".")] == [".other.tmp", ".send-2-ab.tmp"]


def test_closed_outbox(lab: Box) -> None:
    """An outbox that cannot be written to: exit 73, no litter."""
    if not permissions_count(lab):
        pytest.skip("permissions do not count here")
    (lab.root / "outbox").chmod(0o555)
    done = lab.run("send", *options(), "--body", "x", prefix=obeying_permissions())
    (lab.root / "outbox").chmod(0o755)
    assert done.returncode == 73
    assert "nothing was sent" in done.stderr
    assert lab.outbox() == []


def test_many_senders_at_once(lab: Box) -> None:
    """Each gets a name of its own; nothing is lost."""
    running = [lab.start("send", *options(), "--correlation", f"r{n}", "--body", str(n)) for n in range(12)]
    for process in running:
        process.communicate(timeout=60)
        assert process.returncode == 0
    lab.route()
    assert {mail.body for mail in lab.unread("lab.builder")} == {str(n).encode() for n in range(12)}


# ---------------------------------------------------------------------- answering


EMITTING = LAB.replace(
    """    aliases: [mason@lab.internal]
""",
    """    aliases: [mason@lab.internal]
    emits:
      - {type: job.done, to: conductor@lab.internal}
""",
)


@pytest.fixture
def asked(lab: Box) -> Box:
    """A laboratory in which the builder has a question from the conductor, sent to its alias."""
    lab.declare("lab", EMITTING)
    lab.merge()
    send(lab, "--correlation", "run-7", "--now", "--body", "Built?", to="mason@lab.internal", subject="status")
    return lab


def test_reply(asked: Box) -> None:
    """To the sender, in the flow, about the subject, of the one type that is declared; the question stays unread."""
    (question,) = asked.unread("lab.builder")
    done = asked.run("reply", "lab.builder", question.fields["id"][:8], "--body", "Yes.", "--now")
    assert done.returncode == 0, done.stderr
    (answer,) = asked.unread("lab.conductor")
    wanted = {
        "to": CONDUCTOR,
        "from": "mason@lab.internal",  # as it was reached; who accepts an agent accepts it under each of its names
        "type": "job.done",
        "subject": "Re: status",
        "correlation_id": "run-7",
        "in_reply_to": question.fields["id"],
        "sequence": "2",
    }
    assert {key: answer.fields[key] for key in wanted} == wanted
    assert len(asked.unread("lab.builder")) == 1


def test_reply_from_the_alias_where_it_is_accepted(asked: Box) -> None:
    """The answer comes from the address that was written to, if that may write back."""
    asked.declare("lab", EMITTING.replace("[builder@lab.internal, checker@lab.internal]", '["*"]'))
    asked.merge()
    (question,) = asked.unread("lab.builder")
    assert asked.run("reply", "lab.builder", question.name, "--body", "Yes.", "--now").returncode == 0
    (answer,) = asked.unread("lab.conductor")
    assert answer.fields["from"] == "mason@lab.internal"


def test_reply_and_acknowledge(asked: Box) -> None:
    """--ack moves the question once the answer is sent; Re: is not doubled."""
    (question,) = asked.unread("lab.builder")
    done = asked.run("reply", BUILDER, question.name, "--subject", "RE: status", "--ack", "--json", "--body", "Yes.")
    assert json.loads(done.stdout)["acknowledged"] == f"inboxes/lab.builder/read/{question.name}"
    assert asked.unread("lab.builder") == []
    assert [line["action"] for line in asked.log()] == ["delivered", "read"]
    asked.route()
    (answer,) = asked.unread("lab.conductor")
    done = asked.run("reply", "lab.conductor", answer.name, "--type", "job.run", "--body", "Good.", "--now")
    (last,) = asked.unread("lab.builder")
    assert (last.fields["subject"], last.fields["sequence"]) == ("RE: status", "3")
    assert asked.run("reply", "lab.builder", question.name, "--body", "Again.").returncode == 0  # a read one too


def test_reply_needs_a_type(lab: Box) -> None:
    """Without a declaration that says which, the accepted types are named."""
    send(lab, "--now", "--body", "Built?")
    (question,) = lab.unread("lab.builder")
    done = lab.run("reply", "lab.builder", question.name, "--body", "Yes.")
    assert done.returncode == 64
    assert "--type is needed" in done.stderr
    assert "accepts job.done" in done.stderr
    assert lab.outbox() == []


def test_reply_that_is_refused(lab: Box) -> None:
    """The checks are those of send; a refused answer acknowledges nothing."""
    send(lab, "--now", "--body", "Built?")
    (question,) = lab.unread("lab.builder")
    done = lab.run("reply", "lab.builder", question.name, "--type", "job.no", "--ack", "--body", "Yes.")
    assert done.returncode == 65
    assert "type-not-accepted" in done.stderr
    assert len(lab.unread("lab.builder")) == 1
    assert lab.outbox() == []


@pytest.mark.parametrize(
    "content", [b"", b"no header", b"---\nsubject: x\n---\n", b"---\nfrom: a b\n---\n", b"\xff" * 99]
)
def test_reply_to_what_cannot_be_answered(lab: Box, content: bytes) -> None:
    """A file that is no message has no sender to answer."""
    (lab.inbox("lab.builder") / "unread" / "x.md").write_bytes(content)
    done = lab.run("reply", "lab.builder", "x.md", "--type", "job.done", "--body", "Yes.")
    assert done.returncode == 65
    assert "cannot be answered" in done.stderr


@pytest.mark.parametrize("command", ["send", "reply"])
def test_help_has_an_example(box: Box, command: str) -> None:
    """Every command explains itself."""
    done = box.run(command, "--help")
    assert done.returncode == 0
    assert f"postmaster {command} " in done.stdout
    assert "Example:" in done.stdout
