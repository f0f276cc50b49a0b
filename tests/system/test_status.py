"""`postmaster status`: what is here, what waits and why, told from names alone."""

import json
import os
import shutil
import time
from typing import Any

import pytest
from support import HOUR, Box, letter, md5, obeying_permissions, permissions_count


def status(box: Box) -> dict[str, Any]:
    """Return the answer as data, having checked that asking changed nothing."""
    before = box.snapshot(private=True)
    done = box.run("status", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert box.snapshot(private=True) == before
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def human(box: Box, *args: str) -> str:
    """Return the answer for people."""
    done = box.run("status", *args)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_counts_everything(lab: Box) -> None:
    """Unread, read, dead and waiting mail is counted, by agent and in all."""
    for number in range(3):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
    lab.drop("nobody.md", letter(to="nobody@lab.internal"))
    lab.drop("other.md", letter(to="nothere@lab.internal"))
    lab.drop("broken.md", "no header\n")
    lab.route()
    first = lab.unread("lab.builder")[0]
    lab.run("ack", "lab.builder", first.name)
    lab.drop("later.md", letter(body="later\n"))
    answer = status(lab)
    assert answer["office"] == str(lab.root)
    totals = {"agents": 4, "unread": 2, "read": 1, "waiting": 1, "deferred": 0, "dead": 3}
    assert answer["totals"] == totals
    assert answer["dead_letters"] == {"malformed-header": 1, "unknown-recipient": 2}
    assert answer["oldest_unread"]["agent"] == "lab.builder"
    assert answer["outbox"]["oldest"]["file"] == "later.md"
    assert HOUR <= answer["outbox"]["oldest"]["age_seconds"] < HOUR + 300
    [builder] = [one for one in answer["agents"] if one["agent"] == "lab.builder"]
    assert (builder["unread"], builder["read"]) == (2, 1)
    text = human(lab)
    assert f"office post-office at {lab.root}" in text
    assert "2 unread, 1 read" in text
    assert "lab.builder" in text and "lab.checker" not in text
    assert "dead letters 3: 1 malformed-header, 2 unknown-recipient" in text
    assert "1 waiting, the oldest later.md" in text
    assert "lab.checker" in human(lab, "--all") and "lab.checker" in human(lab, "-v")


def test_last_run_is_never_then_now(lab: Box) -> None:
    """The time of the last run is that of the last router, idle ones included."""
    assert status(lab)["last_run"] is None
    assert "last run     never" in human(lab)
    lab.route()
    assert status(lab)["last_run_age_seconds"] < 60
    os.utime(lab.root / ".postmaster" / "lock", (time.time() - 3 * HOUR,) * 2)
    assert "3 hours ago" in human(lab)
    lab.route()
    assert status(lab)["last_run_age_seconds"] < 60


def test_deferred_mail_and_why(lab: Box) -> None:
    """What is deferred is told with the reason, for each recipient, since when; no more once it is delivered."""
    inbox = lab.inbox("lab.checker")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"")
    lab.drop("late.md", letter(to=["builder@lab.internal", "checker@lab.internal"]))
    lab.route(check=75)
    answer = status(lab)
    [one] = answer["deferred"]
    assert (one["file"], one["agent"], one["reason"]) == ("late.md", "lab.checker", "inbox-unavailable")
    assert one["age_seconds"] < 300
    assert any("lab.checker" in problem for problem in answer["problems"])
    assert "late.md for lab.checker: inbox-unavailable" in human(lab)
    inbox.unlink()
    lab.route()
    assert status(lab)["deferred"] == []


def test_what_is_held_back_and_why(lab: Box) -> None:
    """Files that are open, young and malformed, or have a second name, are told with why the router leaves them."""
    lab.drop("young.md", "not finished", age_seconds=1)
    lab.drop("linked.md", letter(), age_seconds=1)
    os.link(lab.root / "outbox" / "linked.md", lab.world / "scratch" / "second")
    lab.drop("open.md", letter(body="open\n"))
    with open(lab.root / "outbox" / "open.md", "ab"):
        held = {one["file"]: one["why"] for one in status(lab)["outbox"]["held_back"]}
    assert set(held) == {"young.md", "linked.md", "open.md"}
    assert "line 1 must be" in held["young.md"]
    assert "hard link" in held["linked.md"]
    assert "open" in held["open.md"]
    os.unlink(lab.world / "scratch" / "second")


def test_stray_files_are_mentioned(lab: Box) -> None:
    """A name that will never be mail is named once it is older than a day; a younger one is only counted."""
    for name, age in ((".old.md", 30 * HOUR), ("draft.md~", 25 * HOUR), ("new.part", HOUR)):
        lab.drop(name, letter(), age_seconds=age)
    answer = status(lab)["outbox"]
    assert [one["file"] for one in answer["stray"]] == [".old.md", "draft.md~"]
    assert (answer["waiting"], answer["unfinished"]) == (0, 3)
    text = human(lab)
    assert "stray      draft.md~" in text
    assert "unfinished 1" in text


def test_the_state_of_the_registry(box: Box) -> None:
    """Missing, stale and invalid registries are told, with what to do; one that was only touched is not stale."""
    assert status(box)["registry"]["state"] == "missing"
    assert "registry merge" in human(box)
    text = "plugin: a\nagents:\n  - {id: a.a, address: a@a.internal, accepts: [{type: x, accepts_from: ['*']}]}\n"
    path = box.declare("a", text)
    box.merge()
    assert status(box)["registry"] == {"state": "merged", "agents": 1, "instances": 0, "detail": None}
    os.utime(path, (time.time() + 60,) * 2)
    assert status(box)["registry"]["state"] == "merged"
    path.write_text(text + text.splitlines()[2].replace("a.a", "a.b").replace("a@", "b@") + "\n")
    registry = status(box)["registry"]
    assert registry["state"] == "stale"
    assert "1 added" in registry["detail"] and "registry merge" in registry["detail"]
    path.write_text("plugin: [\n")
    assert status(box)["registry"]["state"] == "stale"
    (box.root / "agent-registry.yml").write_text("rubbish: [")
    assert status(box)["registry"]["state"] == "invalid"


def test_mail_of_an_agent_that_left_is_counted(lab: Box) -> None:
    """An inbox that the registry does not name any more is listed by its path."""
    lab.drop("m.md", letter(to="checker@lab.internal"))
    lab.route()
    text = (lab.root / "registry.d" / "lab.yml").read_text()
    start = text.index("  - id: lab.checker")
    lab.declare("lab", text[:start] + text[text.index("  - id: lab.echo") :])
    lab.merge()
    assert status(lab)["totals"]["unread"] == 1
    assert "inboxes/lab.checker (not in the registry)" in human(lab)


def test_a_run_that_was_cut_off_is_told(lab: Box) -> None:
    """A journal means that a run is at work or was killed."""
    assert status(lab)["unfinished_run"] is False
    (lab.root / ".postmaster" / "journal").write_bytes(b"{}")
    assert status(lab)["unfinished_run"] is True
    assert "cut off" in human(lab)


def test_is_quick_with_much_mail(lab: Box) -> None:
    """Ten thousand messages in an inbox are counted by their names, not opened."""
    folder = lab.inbox("lab.builder") / "unread"
    for number in range(10_000):
        (folder / f"20260304T100000Z-{number:06d}-{'0' * 32}.md").touch(mode=0)
    started = time.monotonic()
    assert status(lab)["totals"]["unread"] == 10_000
    assert time.monotonic() - started < 20  # with snapshots, on a busy machine


def test_is_no_office(box: Box) -> None:
    """A root that is no office ends with 78."""
    shutil.rmtree(box.root / "outbox")
    done = box.run("status")
    assert done.returncode == 78
    assert "init" in done.stderr


def test_nothing_in_a_name_reaches_the_terminal(lab: Box) -> None:
    """Names with control characters, and with bytes that are no text, are shown escaped."""
    lab.drop(".\x1b[31m", letter(), age_seconds=30 * HOUR)
    lab.drop(b"caf\xe9\n.md", letter())
    for env in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0"}, {"PYTHONIOENCODING": "ascii"}):
        done = lab.run("status", env=env)
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout
        assert sum("caf" in line for line in done.stdout.splitlines()) == 1


def test_a_missing_inbox_and_what_to_do(lab: Box) -> None:
    """An inbox inside the office is made by the next delivery; for one outside a disk may have to be mounted."""
    far = lab.world / "scratch" / "far"
    text = f"plugin: far\nagents:\n  - id: far.a\n    address: a@far.internal\n    inbox: {far}\n"
    lab.declare("far", text + "    accepts: [{type: job.run, accepts_from: ['*']}]\n")
    lab.merge()
    shutil.rmtree(far)
    shutil.rmtree(lab.inbox("lab.echo"))
    inside, outside = sorted(status(lab)["problems"], key=lambda text: text.startswith("/"))
    assert inside.startswith("inboxes/lab.echo: the inbox of lab.echo is missing; the next delivery or")
    assert "`postmaster registry merge` makes it" in inside and "waits" not in inside
    assert outside.startswith(f"{far}: the inbox of far.a is missing; mount it")
    far.mkdir()
    assert f"{far}: has no unread/: mail for far.a waits; mount it" in "\n".join(status(lab)["problems"])
    lab.drop("m.md", letter(to="echo@lab.internal"))
    lab.route()
    assert [text for text in status(lab)["problems"] if "lab.echo" in text] == []


def test_links_in_a_mailbox_are_problems(lab: Box) -> None:
    """A link in place of a mailbox's folder keeps its mail waiting, and is told."""
    for folder in ("tmp", "read"):
        path = lab.inbox("lab.builder") / folder
        path.rename(lab.world / "scratch" / folder)
        path.symlink_to(lab.world / "scratch" / folder)
    read, tmp = status(lab)["problems"]
    assert tmp.startswith("inboxes/lab.builder/tmp: is a symbolic link") and "mail for lab.builder waits" in tmp
    assert read.startswith("inboxes/lab.builder/read: is a symbolic link") and "can acknowledge nothing" in read


def test_retried_letters_wait_and_are_not_deferred(lab: Box) -> None:
    """A letter that is sent again waits for the next run; it is deferred only if that run could not deliver it."""
    lab.drop("nobody.md", letter(to="newcomer@lab.internal"))
    lab.drop("broken.md", "no header at all\n")
    lab.route()
    retried = lab.run("dead-letter", "retry", "nobody.md", "broken.md")
    assert retried.returncode == 0, retried.stderr
    answer = status(lab)
    assert (answer["deferred"], answer["totals"]["deferred"], answer["totals"]["waiting"]) == ([], 0, 2)
    assert [(one["file"], one["to"], one["reason"]) for one in answer["retried"]] == [
        ("broken.md", None, "malformed-header"),
        ("nobody.md", "newcomer@lab.internal", "unknown-recipient"),
    ]
    text = human(lab)
    assert "deferred" not in text and "for :" not in text
    assert "retried    broken.md: waits for the next run since " in text
    assert "retried    nobody.md for newcomer@lab.internal: waits for the next run since " in text
    lab.declare("lab", (lab.root / "registry.d" / "lab.yml").read_text().replace("mason@", "newcomer@"))
    lab.merge()
    inbox = lab.inbox("lab.builder")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"")
    lab.route(check=75)
    answer = status(lab)
    assert answer["retried"] == []
    assert [(one["file"], one["reason"]) for one in answer["deferred"]] == [("nobody.md", "inbox-unavailable")]


def test_a_deferred_letter_without_a_recipient(lab: Box) -> None:
    """A letter that could not even be read is shown without whom it is for."""
    if not permissions_count(lab):
        pytest.skip("permission bits cannot be made to count for this user")
    (lab.root / "outbox" / "folder.md").mkdir()
    (lab.root / "dead-letter").chmod(0o555)
    lab.route(check=None, prefix=obeying_permissions())
    (lab.root / "dead-letter").chmod(0o755)
    [one] = status(lab)["deferred"]
    assert (one["file"], one["to"]) == ("folder.md", None)
    text = human(lab)
    assert f"deferred   folder.md: {one['reason']}" in text and "for :" not in text


def test_counts_what_inbox_counts(lab: Box) -> None:
    """Hidden names are no mail, and anything else that lies in a folder is counted, as `inbox` does."""
    for number in range(3):
        lab.drop(f"m{number}.md", letter(body=f"{number}\n"))
    lab.route()
    mailbox = lab.inbox("lab.builder")
    for folder in ("unread", "read"):
        (mailbox / folder / ".hidden.md").write_bytes(letter())
        (mailbox / folder / "link.md").symlink_to("/etc/passwd")
        (mailbox / folder / "directory.md").mkdir()
    os.mkfifo(mailbox / "unread" / "0-pipe.md")
    (lab.root / "inboxes" / ".hidden" / "unread").mkdir(parents=True)
    (lab.root / "inboxes" / ".hidden" / "unread" / "m.md").write_bytes(letter())
    answer = status(lab)
    [builder] = [one for one in answer["agents"] if one["agent"] == "lab.builder"]
    listed = json.loads(lab.run("inbox", "lab.builder", "--json").stdout)
    assert (builder["unread"], builder["read"]) == (listed["unread"], listed["read"]) == (6, 2)
    assert (answer["totals"]["unread"], answer["totals"]["read"]) == (6, 2)
    assert answer["oldest_unread"]["file"].endswith("Z-000001-" + md5(b"0\n") + ".md")


def test_a_log_that_is_gone_is_a_problem(lab: Box) -> None:
    """Numbered mail without a log means that the log was lost; an office that has not routed yet has none."""
    assert status(lab)["problems"] == []
    lab.drop("m.md", letter())
    lab.route()
    log = lab.root / "logs" / "delivery-log.jsonl"
    log.rename(log.with_name("delivery-log.jsonl.1"))
    assert status(lab)["problems"] == []
    (log.with_name("delivery-log.jsonl.1")).unlink()
    [one] = status(lab)["problems"]
    assert one.startswith("logs/delivery-log.jsonl: the delivery log is gone, though 1 numbered message is in")
    assert "numbers start again without it" in one
    assert "problem      logs/delivery-log.jsonl: the delivery log is gone" in human(lab)
