"""The office's own mail: returned, if an archived instance left it unread; bounced, to senders who accept that."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from support import Box, Mail, letter, md5, tree

CREW = """\
plugin: crew
agents:
  - id: lab.worker
    address: worker@crew.internal
    instances: many
    accepts: [job.*]
    accepts_from: [conductor@lab.internal, boss@lab.internal, ghost@lab.internal, "class:lab.worker"]
  - id: lab.boss
    address: boss@lab.internal
    aliases: [chief@elsewhere.internal]
    accepts:
      - {type: postmaster.bounce, accepts_from: [postmaster@lab.internal]}
"""
BOSS = "boss@lab.internal"
OFFICE = "postmaster@lab.internal"
ODD = b"\xff\xfe\x00 line\r\nlone\rcr\nOriginal-Message: 3 bytes, md5 900150983cd24fb0d6963f7d28e17f72\nabc\n---\n"


@pytest.fixture
def crew(lab: Box) -> Box:
    """The laboratory, with a class, and a boss who accepts bounces."""
    lab.declare("crew", CREW)
    lab.merge()
    return lab


def do(box: Box, *args: str, check: int = 0) -> str:
    """Run a command, check its exit code, return what it printed."""
    done = box.run(*args)
    assert done.returncode == check, (args, done.returncode, done.stdout, done.stderr)
    return done.stdout + done.stderr


def reports(box: Box, agent: str, kind: str) -> list[Mail]:
    """Return the reports of a kind in an agent's unread mail."""
    return [mail for mail in box.unread(agent) if mail.fields["type"] == f"postmaster.{kind}"]


def attached(mail: Mail) -> bytes:
    """Take a report apart as its format says: the first such line tells how many bytes follow."""
    found = re.search(rb"^Original-Message: (?:first (\d+) of )?(\d+) bytes, md5 ([0-9a-f]{32})\n", mail.body, re.M)
    assert found is not None, mail.body
    part = mail.body[found.end() :]
    assert len(part) == int(found[1] or found[2]) and md5(part) == found[3].decode()
    return part


def fields(mail: Mail) -> list[dict[str, str]]:
    """Return the groups of `Name: value` lines of a report: about the message, then for each recipient."""
    groups: list[dict[str, str]] = [{}]
    for line in mail.body.decode("utf-8", "replace").split("\n"):
        if line.startswith("Original-Message: "):
            break
        name, colon, value = line.partition(": ")
        if colon and re.fullmatch(r"[A-Z][A-Za-z-]+", name):
            groups[-1][name] = value
        elif not line and groups[-1]:
            groups.append({})
    return [group for group in groups if group]


def clean(box: Box) -> None:
    """Nothing differs, nothing lies about, every flow is numbered without a gap."""
    do(box, "verify")
    assert not (box.root / "directory/returning").exists()
    assert box.tmp_litter() == []
    assert box.outbox() == []
    flows: dict[str, set[int]] = {}
    for line in box.log():
        if "sequence" in line:
            flows.setdefault(line["correlation_id"], set()).add(line["sequence"])
    assert all(numbers == set(range(1, len(numbers) + 1)) for numbers in flows.values()), flows


def actions(box: Box, action: str) -> list[dict[str, Any]]:
    """Return the log's lines of an action."""
    return [line for line in box.log() if line["action"] == action]


# ---------------------------------------------------------------------- returned mail


def test_unread_mail_goes_back_to_its_sender(crew: Box) -> None:
    """Byte for byte, with the reason, in the flow of the original; what was read stays; the mailbox is as it was."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice", body="was read\n"))
    crew.route()
    crew.ack("lab.worker+alice")
    crew.drop("b.md", letter(to="alice@crew.internal", body=ODD, subject='"odd \\a \\u2028"'))
    crew.route()
    (original,) = crew.unread("lab.worker+alice")
    before = tree(crew.inbox("lab.worker+alice"))
    assert "with 1 unread, 1 of them returned" in do(crew, "archive", "alice")
    assert tree(crew.inbox("lab.worker+alice")) == before
    (report,) = crew.unread("lab.conductor")
    assert attached(report) == original.raw
    assert (report.fields["from"], report.fields["type"]) == (OFFICE, "postmaster.returned")
    assert (report.fields["in_reply_to"], report.fields["correlation_id"]) == (original.fields["id"], "run-1")
    assert report.sequence == 3
    about, recipient = fields(report)
    assert about["Original-Envelope-Id"] == original.fields["id"]
    assert about["X-Postmaster-Path"] == f"inboxes/lab.worker+alice/unread/{original.name}"
    assert recipient["Original-Recipient"] == "x-postmaster; alice@crew.internal"
    assert recipient["Final-Recipient"] == "x-postmaster; lab.worker+alice"
    assert (recipient["Action"], recipient["Status"]) == ("failed", "5.2.1")
    assert recipient["Diagnostic-Code"].startswith("x-postmaster; recipient-archived: alice@crew.internal was archived")
    (line,) = actions(crew, "returned")
    assert line["agent"] == "lab.worker+alice" and line["path"] == about["X-Postmaster-Path"]
    assert (line["id"], line["to"], line["reason"]) == (
        report.fields["id"],
        "conductor@lab.internal",
        "recipient-archived",
    )
    clean(crew)


def test_the_original_can_be_had_back(crew: Box) -> None:
    """`read --original` writes it; for other mail it says that there is none."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("b.md", letter(to="alice", body="hällo\n"))
    crew.route()
    (original,) = crew.unread("lab.worker+alice")
    do(crew, "archive", "alice")
    (report,) = crew.unread("lab.conductor")
    assert do(crew, "read", "lab.conductor", report.name, "--original").encode() == original.raw
    assert "no report" in do(crew, "read", "lab.worker+alice", original.name, "--original", check=65)


def test_nothing_is_returned_twice(crew: Box) -> None:
    """Not by later runs, not when the index is made anew, not when its owner archives a replacement."""
    do(crew, "register", "lab.worker", "--name", "alice")
    for number in range(3):
        crew.drop(f"{number}.md", letter(to="alice", body=f"{number}\n"))
    crew.route()
    do(crew, "archive", "alice")
    for private in (crew.root / ".postmaster").iterdir():
        private.unlink()
    crew.route("--now")
    do(crew, "register", "lab.worker", "--name", "alice")
    do(crew, "archive", "alice")
    assert len(actions(crew, "returned")) == len(crew.unread("lab.conductor")) == 3
    assert [mail.fields["in_reply_to"] for mail in crew.unread("lab.conductor")] == [
        mail.fields["id"] for mail in crew.unread("lab.worker+alice")
    ]
    clean(crew)


def test_returned_mail_is_not_returned_again(crew: Box) -> None:
    """A report that an archived instance has not read stays where it is."""
    for name in ("alice", "bob"):
        do(crew, "register", "lab.worker", "--name", name)
    crew.drop("a.md", letter(to="bob", from_="alice@crew.internal"))
    crew.route()
    do(crew, "archive", "bob")
    (report,) = crew.unread("lab.worker+alice")
    assert (report.fields["from"], report.fields["to"]) == ("postmaster@crew.internal", "alice@crew.internal")
    assert "with 1 unread, 0 of them returned" in do(crew, "archive", "alice")
    assert len(actions(crew, "returned")) == 1
    clean(crew)


@pytest.mark.parametrize("sender", ["alice@crew.internal", "ghost@lab.internal"])
def test_a_sender_who_is_gone(crew: Box, sender: str) -> None:
    """The report is a dead letter, whole; it can be sent again once there is somebody under the address."""
    for name in ("alice", "bob"):
        do(crew, "register", "lab.worker", "--name", name)
    crew.drop("a.md", letter(to="bob", from_=sender))
    crew.route()
    (original,) = crew.unread("lab.worker+bob")
    do(crew, "archive", "alice")
    do(crew, "archive", "bob")
    (dead,) = crew.dead()
    assert crew.reason(dead)["reason"] == "unknown-recipient"
    assert (crew.root / "dead-letter" / dead).read_bytes().endswith(original.raw)
    assert [line["action"] for line in crew.log() if line.get("type") == "postmaster.returned"] == [
        "returned",
        "dead-letter",
    ]
    clean(crew)
    crew.declare("ghost", "agents: [{id: new.ghost, address: ghost@lab.internal, accepts: []}]\n")
    crew.merge()
    do(crew, "register", "lab.worker", "--name", "alice")
    do(crew, "dead-letter", "retry", dead, "--now")
    agent = "new.ghost" if "ghost" in sender else "lab.worker+alice+2"
    (report,) = crew.unread(agent)
    assert attached(report) == original.raw and report.sequence == 2
    clean(crew)


def test_each_holder_of_a_role_returns_its_own_copy(crew: Box) -> None:
    """One report for each copy that was not read."""
    for name in ("alice", "bob", "carol"):
        do(crew, "register", "lab.worker", "--name", name, "--role", "r")
    crew.drop("a.md", letter(to="role:r"))
    crew.route()
    crew.ack("lab.worker+carol")
    for name in ("alice", "bob", "carol"):
        do(crew, "archive", name)
    found = reports(crew, "lab.conductor", "returned")
    assert [fields(report)[1]["Final-Recipient"] for report in found] == [
        "x-postmaster; lab.worker+alice",
        "x-postmaster; lab.worker+bob",
    ]
    assert len({report.fields["in_reply_to"] for report in found}) == 1
    clean(crew)


def test_mail_as_large_as_may_be_is_returned(crew: Box) -> None:
    """A report may be larger than a letter; other letters may not, whatever their names."""
    (crew.root / "post-office.yml").write_text("max_message_bytes: 2000\n")
    do(crew, "register", "lab.worker", "--name", "alice")
    raw = letter(to="alice", body="")
    crew.drop("a.md", raw + b"x" * (2000 - len(raw)))
    crew.route()
    (original,) = crew.unread("lab.worker+alice")
    do(crew, "archive", "alice")
    (report,) = crew.unread("lab.conductor")
    assert len(report.raw) > 3000 and attached(report) == original.raw
    crew.drop("postmaster.returned-000001-x.md", letter(body=b"x" * 2000))
    crew.route()
    assert crew.line("postmaster.returned-000001-x.md")["reason"] == "too-large"
    clean(crew)


def test_the_sender_s_inbox_is_closed(crew: Box) -> None:
    """The report waits in the outbox as other mail does; `archive` says so."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    inbox = crew.inbox("lab.conductor")
    (inbox / "unread").rmdir()
    (inbox / "unread").write_text("in the way")
    assert "deferred (inbox-unavailable)" in do(crew, "archive", "alice")
    crew.route(check=75)
    assert len(crew.outbox()) == 1
    do(crew, "status")
    assert "deferred" in do(crew, "status")
    (inbox / "unread").unlink()
    crew.route()
    assert len(crew.unread("lab.conductor")) == 1
    assert [one["action"] for one in crew.log()[-3:]] == ["returned", "deferred", "delivered"]
    clean(crew)


def test_what_is_no_message_stays(crew: Box) -> None:
    """A link is not followed; text that nobody sent cannot be returned and is told of once; the rest is returned."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    unread = crew.inbox("lab.worker+alice") / "unread"
    (unread / "link.md").symlink_to("/etc/passwd")
    (unread / "note.md").write_text("a note\n")
    said = do(crew, "archive", "alice")
    assert "unread/note.md: cannot be returned, and stays there: it is no message" in said
    assert crew.route().stderr == ""
    assert len(crew.unread("lab.conductor")) == len(actions(crew, "returned")) == 1
    assert b"root:" not in crew.unread("lab.conductor")[0].raw


def test_only_what_was_delivered_is_returned(crew: Box) -> None:
    """An instance can write what it likes into its own mailbox: that makes the office send nothing to anybody."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    (original,) = crew.unread("lab.worker+alice")
    unread = crew.inbox("lab.worker+alice") / "unread"
    (unread / "copy.md").write_bytes(original.raw)
    (unread / "other.md").write_bytes(original.raw + b"and more\n")
    (unread / "mine.md").write_bytes(letter(to="alice", from_=BOSS, body=b"x" * 1_000_000))
    said = do(crew, "archive", "alice")
    for name in ("copy.md", "other.md", "mine.md"):
        assert f"unread/{name}: cannot be returned, and stays there: the log does not say" in said
    (report,) = crew.unread("lab.conductor")
    assert attached(report) == original.raw
    assert crew.unread("lab.boss") == [] and len(actions(crew, "returned")) == 1


def test_a_mailbox_that_cannot_be_read_is_returned_later(crew: Box) -> None:
    """The instance is archived, the exit code is 75, and every run says so until it can be done."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.drop("b.md", letter(to="alice", body="second\n"))
    crew.route()
    unread = crew.inbox("lab.worker+alice") / "unread"
    unread.rename(unread.with_name("away"))
    unread.symlink_to("away")
    assert "returned by a later run" in do(crew, "archive", "alice", check=75)
    assert "returned by a later run" in crew.route(check=75).stderr
    assert "still to be returned" in do(crew, "status")
    assert "more to be returned by the next run" in do(crew, "directory", "--all")
    crew.drop("c.md", letter(body="other mail goes on\n"))
    crew.route(check=75)
    assert len(crew.unread("lab.builder")) == 1
    unread.unlink()
    unread.with_name("away").rename(unread)
    crew.route()  # with an empty outbox: an idle run must not pass over it
    assert len(crew.unread("lab.conductor")) == 2
    clean(crew)


def test_what_is_no_mark(crew: Box, tmp_path: Path) -> None:
    """A link in the place of the marks is not followed, whatever is in the way is told of, and mail is routed."""
    returning = crew.root / "directory" / "returning"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "lab.worker+bob").write_text("precious")
    returning.parent.mkdir(exist_ok=True)
    returning.symlink_to(elsewhere)
    crew.drop("a.md", letter())
    assert "directory/returning: is no directory" in crew.route(check=75).stderr
    assert len(crew.unread("lab.builder")) == 1 and os.listdir(elsewhere) == ["lab.worker+bob"]
    do(crew, "register", "lab.worker", "--name", "alice")
    assert "nothing was changed" in do(crew, "archive", "alice", check=73)
    assert os.listdir(elsewhere) == ["lab.worker+bob"]
    returning.unlink()
    returning.mkdir()
    (returning / "some file").write_text("")
    assert "returning/some file: no mark of ours" in crew.route(check=75).stderr
    (returning / "some file").rename(returning / "lab.worker+nobody")
    do(crew, "archive", "alice")
    clean(crew)


def test_directory_and_status_tell_of_returned_mail(crew: Box) -> None:
    """`directory --all` shows what was returned to whom; `status` counts the archived apart."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    (original,) = crew.unread("lab.worker+alice")
    do(crew, "archive", "alice")
    crew.ack("lab.conductor")
    (one,) = json.loads(do(crew, "directory", "--all", "--json"))["archived"]
    (returned,) = one["returned"]
    assert returned.pop("time") > one["archived"]
    assert returned == {
        "path": f"inboxes/lab.worker+alice/unread/{original.name}",
        "correlation_id": "run-1",
        "to": "conductor@lab.internal",
        "id": original.fields["id"],
    }
    assert not one["still_to_return"] and one["unread"] == 1
    assert ", 1 returned" in do(crew, "directory", "--all")
    answer = json.loads(do(crew, "status", "--json"))
    assert answer["totals"]["unread"] == 0 and answer["oldest_unread"] is None
    assert [row["archived"] for row in answer["agents"] if row["inbox"].endswith("+alice")] == [True]
    assert "(archived)" in do(crew, "status", "--all") and "(archived)" not in do(crew, "status")
    shown = do(crew, "log", "--action", "returned")
    assert "recipient-archived" in shown and original.name in shown


def test_mail_that_is_on_its_way_to_an_archived_instance(crew: Box) -> None:
    """A letter in the outbox when its recipient is archived is a dead letter; nothing is lost in between."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    do(crew, "archive", "alice")
    assert crew.line("a.md")["reason"] == "unknown-recipient"
    clean(crew)


# ---------------------------------------------------------------------- bounces


def test_a_bounce_for_each_dead_letter(crew: Box) -> None:
    """Only who declares it gets one: with reason, remedy and the letter, in its flow, behind it."""
    raw = letter(to="nobody@lab.internal", from_=BOSS, body="to nobody\n")
    crew.drop("a.md", raw)
    crew.drop("b.md", letter(to="nobody@lab.internal", correlation_id="other"))  # the conductor accepts none
    crew.route()
    (report,) = crew.unread("lab.boss")
    assert attached(report) == raw
    assert (report.fields["from"], report.fields["type"]) == (OFFICE, "postmaster.bounce")
    assert (report.fields["in_reply_to"], report.sequence) == (md5(b"to nobody\n"), 2)
    about, recipient = fields(report)
    assert (about["X-Postmaster-Path"], about["X-Postmaster-Sequence"]) == ("dead-letter/a.md", "1")
    assert (recipient["Final-Recipient"], recipient["Status"]) == ("x-postmaster; nobody@lab.internal", "5.1.1")
    assert "unknown-recipient" in recipient["Diagnostic-Code"]
    assert b"What to do: correct `to`" in report.body
    (line,) = actions(crew, "bounced")
    assert (line["path"], line["reason"], line["to"]) == ("dead-letter/a.md", "unknown-recipient", BOSS)
    assert crew.unread("lab.conductor") == []
    clean(crew)


def test_one_report_tells_of_every_recipient(crew: Box) -> None:
    """Those who were refused, each with its reason; not those who have it."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to=["alice", "nobody@lab.internal", "builder@lab.internal"], from_=BOSS))
    crew.route()
    (report,) = crew.unread("lab.boss")
    groups = fields(report)[1:]
    assert [group["Original-Recipient"] for group in groups] == [
        "x-postmaster; nobody@lab.internal",
        "x-postmaster; builder@lab.internal",
    ]
    assert [group["Status"] for group in groups] == ["5.1.1", "5.7.1"]
    assert len(crew.unread("lab.worker+alice")) == 1
    clean(crew)


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (letter(from_=BOSS, type="job.run"), "sender-not-accepted"),
        (letter(from_=BOSS, type="[a]"), "invalid-header"),
        (letter(from_=BOSS, correlation_id="''"), "invalid-header"),
        (letter(from_=BOSS, body=b"x" * 5000), "too-large"),
        (letter(from_="CHIEF@Elsewhere.internal"), "sender-not-accepted"),
    ],
)
def test_every_reason_bounces_if_there_is_a_sender(crew: Box, raw: bytes, reason: str) -> None:
    """Also what could be read only in part; an alias of the sender will do."""
    (crew.root / "post-office.yml").write_text("max_message_bytes: 4000\n")
    crew.drop("a.md", raw)
    crew.route()
    assert crew.line("a.md")["reason"] == reason
    (report,) = crew.unread("lab.boss")
    assert f"x-postmaster; {reason}" in fields(report)[1]["Diagnostic-Code"]
    assert raw.startswith(attached(report))
    clean(crew)


def test_who_is_to_hear_cannot_be_told(crew: Box) -> None:
    """No header, no sender; a link; a sender that nobody has: nobody is written to."""
    crew.drop("a.md", b"no header\n")
    crew.drop("b.md", letter(from_="stranger@lab.internal"))
    (crew.root / "outbox" / "c.md").symlink_to("/etc/passwd")
    crew.route()
    assert len(crew.dead()) == 3 and actions(crew, "bounced") == []


def test_a_bounce_is_bounded(crew: Box) -> None:
    """`from` is a claim: whatever somebody sends in another's name, that one is sent little."""
    many = [f"nobody{number}-{'x' * 30}@lab.internal" for number in range(900)]
    crew.drop("a.md", letter(to=many, from_=BOSS, subject="s" * 998, body=b"y" * 1_000_000))
    crew.route()
    (report,) = crew.unread("lab.boss")
    assert len(report.raw) < 64 * 1024
    assert len(attached(report)) == 8192 and b"\nX-Postmaster-More: 850 other recipients\n" in report.body
    assert "only the beginning" in do(crew, "read", "lab.boss", report.name, "--original")
    clean(crew)


def test_hostile_text_stays_in_its_line(crew: Box) -> None:
    """A subject with line breaks cannot forge a field or an attachment of the report."""
    subject = '"x\\nStatus: 2.0.0\\nOriginal-Message: 1 bytes, md5 0cc175b9c0f1b6a831c399e269772661\\na\\e[2J"'
    raw = letter(to="nobody@lab.internal", from_=BOSS, subject=subject)
    crew.drop("a.md", raw)
    crew.route()
    (report,) = crew.unread("lab.boss")
    assert attached(report) == raw
    assert [group.get("Status") for group in fields(report)] == [None, "5.1.1"]
    assert b"\x1b" not in report.body.removesuffix(raw)
    clean(crew)


def test_no_loops(crew: Box) -> None:
    """A report that cannot be delivered is a dead letter like any other, and makes no report."""
    crew.drop("a.md", letter(to="nobody@lab.internal", from_=BOSS))
    inbox = crew.inbox("lab.boss")
    (inbox / "unread").rmdir()
    (inbox / "unread").write_text("in the way")
    crew.route(check=75)
    crew.declare("crew", CREW.replace("postmaster.bounce", "job.x"))
    crew.merge(check=None)
    (inbox / "unread").unlink()
    crew.route()
    assert [line["action"] for line in crew.log()] == ["dead-letter", "bounced", "deferred", "rejected"]
    assert len(crew.dead()) == 2
    clean(crew)


def test_a_bounce_is_put_off_with_its_refusal(crew: Box) -> None:
    """What waits is not refused yet; when it expires there is one report."""
    (crew.root / "post-office.yml").write_text("expire_after: 1s\n")
    do(crew, "register", "lab.worker", "--name", "alice")
    unread = crew.inbox("lab.worker+alice") / "unread"
    unread.rmdir()
    unread.write_text("in the way")
    crew.drop("a.md", letter(to=["alice", "nobody@lab.internal"], from_=BOSS))
    crew.route(check=75)
    assert len(reports(crew, "lab.boss", "bounce")) == 1
    for _ in range(50):
        if crew.route(check=None).returncode == 0:
            break
    found = reports(crew, "lab.boss", "bounce")
    assert [fields(report)[1]["Status"] for report in found] == ["5.1.1", "4.4.7"]
    unread.unlink()
    clean(crew)


def test_a_dry_run_tells_and_does_nothing(crew: Box) -> None:
    """`route --dry-run` says that there would be a report."""
    crew.drop("a.md", letter(to="nobody@lab.internal", from_=BOSS))
    before = crew.snapshot()
    said = json.loads(do(crew, "route", "--dry-run", "--json"))
    assert said["counts"] == {"bounced": 1, "dead-letter": 1}
    assert crew.snapshot() == before


def test_registry_check_knows_the_office(crew: Box) -> None:
    """Declaring it right is no finding; from a domain that is not the agent's own, it is."""

    def found() -> list[str]:
        answer = json.loads(do(crew, "registry", "check", "--json"))
        return [one["message"] for one in answer["findings"] if one["agent"] == "lab.boss"]

    assert found() == []
    crew.declare(
        "crew", CREW.replace("[postmaster@lab.internal]", "[postmaster@crew.internal, conductor@lab.internal]")
    )
    crew.merge()
    assert found() == ["accepts postmaster.bounce, which no agent declares to send"]


# ---------------------------------------------------------------------- who may claim to be the office


@pytest.mark.parametrize(
    ("sender", "kind"),
    [
        (OFFICE, "postmaster.returned"),
        (OFFICE, "postmaster.bounce"),
        ("POSTMASTER@anywhere.example", "job.run"),
        (BOSS, "postmaster.returned"),
        (BOSS, "postmaster.anything"),
    ],
)
def test_nobody_else_is_the_office(crew: Box, sender: str, kind: str) -> None:
    """A letter from the outbox that claims to be a report is rejected, bounces to nobody, and is so when retried."""
    crew.declare(
        "crew",
        CREW.replace("accepts: [job.*]", "accepts: [job.*, postmaster.*]").replace("[postmaster@", "['*', postmaster@"),
    )
    crew.merge()
    crew.drop("a.md", letter(to=BOSS, from_=sender, type=kind))
    crew.route()
    line = crew.line("a.md")
    assert (line["action"], line["reason"], line["status"]) == ("rejected", "sender-not-authentic", "5.7.1")
    do(crew, "dead-letter", "retry", "--all", "--now", check=65)
    assert crew.unread("lab.boss") == []
    refused = do(
        crew, "send", "--to", BOSS, "--from", sender, "--type", kind, "--subject", "s", "--body", "x", check=65
    )
    assert "sender-not-authentic" in refused
    clean(crew)


def test_a_report_cannot_be_sent_again_by_others(crew: Box) -> None:
    """A true copy is a duplicate; one that is changed in anything is not the office's."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    do(crew, "archive", "alice")
    (report,) = crew.unread("lab.conductor")
    raw = re.sub(rb"(?m)^(id|sequence): .*\n", b"", report.raw, count=2)
    crew.drop("same.md", raw)
    crew.drop("to.md", raw.replace(b"to: conductor@", b"to: builder@", 1))
    crew.drop("more.md", raw.replace(b"\nfrom:", b"\nx-urgent: yes\nfrom:", 1))
    crew.drop("body.md", raw + b"!")
    crew.route()
    found = {line["file"]: line["reason"] for line in crew.log() if line["action"] in ("dead-letter", "rejected")}
    assert found == {
        "same.md": "duplicate",
        **dict.fromkeys(("to.md", "more.md", "body.md"), "sender-not-authentic"),
    }
    assert len(crew.unread("lab.conductor")) == 1


def test_a_report_that_is_taken_out_of_the_outbox(crew: Box) -> None:
    """It is told of: `withdrawn` in the log."""
    do(crew, "register", "lab.worker", "--name", "alice")
    crew.drop("a.md", letter(to="alice"))
    crew.route()
    inbox = crew.inbox("lab.conductor")
    (inbox / "unread").rmdir()
    (inbox / "unread").write_text("in the way")
    do(crew, "archive", "alice")
    (name,) = crew.outbox()
    os.unlink(crew.root / "outbox" / name)
    (inbox / "unread").unlink()
    crew.drop("b.md", letter(body="next\n"))
    crew.route()
    assert [line["file"] for line in actions(crew, "withdrawn")] == [name]
    clean(crew)


def test_pages_name_the_format() -> None:
    """The page on reports has the line that this test takes them apart with."""
    page = (Path(__file__).parents[2] / "docs" / "formats" / "report.md").read_text("utf-8")
    assert "Original-Message: 151 bytes, md5 " in page
