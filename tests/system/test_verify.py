"""`postmaster verify`: every kind of difference is named, with the message, and legitimate moves are none."""

import contextlib
import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Box, letter, obeying_permissions, permissions_count

SUM = re.compile(r"in: (\d+) letters \((\d+) copies\) = (\d+) unread \+ (\d+) read \+ (\d+) dead \+ (\d+) waiting")


def audit(box: Box, code: int) -> dict[str, Any]:
    """Run verify in its JSON form, which must end with `code` and change nothing; return the report."""
    before = box.snapshot(private=True)
    done = box.run("verify", "--json")
    assert done.returncode == code, (done.stdout, done.stderr)
    assert done.stderr == ""
    assert box.snapshot(private=True) == before
    report: dict[str, Any] = json.loads(done.stdout)
    assert report["ok"] == (code == 0)
    human = box.run("verify")
    assert human.returncode == code
    for one in report["differences"]:
        assert one["text"] in human.stdout.splitlines()
        assert one["text"].startswith(f"{one['place']}: ")
        assert one["what"] and one["remedy"]
    assert human.stdout.splitlines()[-1] == report["sum"]
    return report


def only(report: dict[str, Any]) -> dict[str, Any]:
    """Return the one difference of a report."""
    assert len(report["differences"]) == 1, report["differences"]
    found: dict[str, Any] = report["differences"][0]
    return found


@pytest.fixture
def posted(lab: Box) -> Box:
    """An office that has delivered, refused and kept mail."""
    for number in range(1, 4):
        lab.drop(f"m{number}.md", letter(subject=f"s{number}", body=f"body {number}\n"))
    lab.drop("both.md", letter(to=["builder@lab.internal", "checker@lab.internal"], body="to two\n"))
    lab.drop("nobody.md", letter(to="nobody@lab.internal", body="to nobody\n"))
    lab.drop("broken.md", "no header at all\n")
    lab.drop("unwanted.md", letter(from_="stranger@lab.internal", body="unwanted\n"))
    lab.route()
    return lab


def unread(box: Box, number: int) -> Path:
    """Return the file of the message whose subject is `s<number>`."""
    [mail] = [mail for mail in box.unread("lab.builder") if mail.fields["subject"] == f"s{number}"]
    return box.inbox("lab.builder") / "unread" / mail.name


def test_agrees_after_a_run_and_says_the_sum(posted: Box) -> None:
    """Nothing differs after a run, and the sum accounts for every letter and copy."""
    report = audit(posted, 0)
    assert report["sum"] == "in: 7 letters (8 copies) = 5 unread + 0 read + 3 dead + 0 waiting"
    assert report["counts"]["hashed"] == 8
    first, last = posted.run("verify").stdout.splitlines()[-2:]
    assert first.startswith(f"office {posted.root}: 8 log lines read")
    assert SUM.fullmatch(last)


def test_an_empty_office_agrees(box: Box) -> None:
    """An office without a registry has one difference, the registry; nothing is hashed."""
    assert only(audit(box, 1))["kind"] == "registry"
    box.merge()
    assert audit(box, 0)["sum"] == "in: 0 letters (0 copies) = 0 unread + 0 read + 0 dead + 0 waiting"


def test_moves_by_hand_and_by_command_are_no_difference(posted: Box) -> None:
    """Mail moved from unread/ to read/ by rename, by ack, with a collision, and back, is where it may be."""
    os.rename(unread(posted, 1), posted.inbox("lab.builder") / "read" / unread(posted, 1).name)
    name = unread(posted, 2).name
    assert posted.run("ack", "lab.builder", name).returncode == 0
    third = unread(posted, 3)
    third.rename(posted.inbox("lab.builder") / "read" / third.name.replace(".md", "-2.md"))
    assert audit(posted, 0)["sum"].endswith("= 2 unread + 3 read + 3 dead + 0 waiting")
    assert posted.run("unread", "lab.builder", name).returncode == 0
    assert audit(posted, 0)["sum"].endswith("= 3 unread + 2 read + 3 dead + 0 waiting")


def test_waiting_mail_is_part_of_the_sum(posted: Box) -> None:
    """Mail in the outbox that no run has seen yet waits; a name that is not finished is no mail."""
    posted.drop("later.md", letter(body="later\n"))
    (posted.root / "outbox" / ".writing").write_bytes(b"x")
    assert audit(posted, 0)["sum"] == "in: 8 letters (9 copies) = 5 unread + 0 read + 3 dead + 1 waiting"


def test_a_letter_that_waits_for_one_of_two_is_counted_once(posted: Box) -> None:
    """A letter that is delivered to one recipient and deferred for another is one letter with two copies."""
    inbox = posted.inbox("lab.echo")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"a file where the inbox was")
    posted.drop("late.md", letter(to=["builder@lab.internal", "echo@lab.internal"], body="late\n"))
    posted.route(check=75)
    report = audit(posted, 1)
    assert only(report)["kind"] == "inbox-missing"
    assert report["sum"] == "in: 8 letters (10 copies) = 6 unread + 0 read + 3 dead + 1 waiting"
    inbox.unlink()
    posted.merge()
    posted.route()
    assert audit(posted, 0)["sum"] == "in: 8 letters (10 copies) = 7 unread + 0 read + 3 dead + 0 waiting"


def test_a_flipped_bit_is_named(posted: Box) -> None:
    """One bit of a body: the file, the message and both hashes are named."""
    path = unread(posted, 2)
    raw = bytearray(path.read_bytes())
    raw[-2] ^= 1
    path.write_bytes(raw)
    one = only(audit(posted, 1))
    assert one["kind"] == "body-changed"
    assert one["place"] == f"inboxes/lab.builder/unread/{path.name}"
    assert one["message"]["id"] in one["what"]
    assert one["message"]["correlation_id"] == "run-1"
    assert one["message"]["sequence"] == int(path.name.split("-")[1])


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        (b"from: conductor@lab.internal", b"from: checker@lab.internal", "from"),
        (b"subject: s2", b"subject: s9", "subject"),
        (b"type: job.run", b"type: job.done", "type"),
        (b"correlation_id: run-1", b"correlation_id: run-2", "correlation_id"),
        (b"sent_at: 2026-03-04T10:00:00Z\n", b"", "sent_at"),
        (b"\nto: ", b"\nin_reply_to: abc\nto: ", "in_reply_to"),
        (b"sequence: ", b"sequence: 1", "sequence"),
        (b"id: ", b"id: 0", "id"),
    ],
)
def test_a_header_edited_by_hand_is_named(posted: Box, old: bytes, new: bytes, field: str) -> None:
    """Every field that the log knows is compared with the file's header."""
    path = unread(posted, 2)
    raw = path.read_bytes()
    assert old in raw
    path.write_bytes(raw.replace(old, new, 1))
    one = only(audit(posted, 1))
    assert one["place"].endswith(path.name)
    assert f"`{field}`" in one["what"] or f"its {field} is" in one["what"]
    assert "logs/delivery-log.jsonl:" in one["what"]


def test_a_header_that_cannot_be_read_any_more_is_named(posted: Box) -> None:
    """A delivered file without a header is no message any more, and is still known by its name."""
    path = unread(posted, 2)
    path.write_bytes(b"scribble")
    one = only(audit(posted, 1))
    assert one["place"].endswith(path.name)
    assert "header cannot be read" in one["what"]
    assert one["message"]["correlation_id"] == "run-1"


def test_a_deleted_file_is_named(posted: Box) -> None:
    """A delivered message that is in neither folder is named with its path, its line and its id."""
    path = unread(posted, 3)
    path.unlink()
    report = audit(posted, 1)
    one = only(report)
    assert one["kind"] == "gone"
    assert one["place"] == f"inboxes/lab.builder/unread/{path.name}"
    assert one["message"]["id"] in path.name
    assert report["sum"].startswith("in: 7 letters (8 copies) are not the 4 unread")
    assert report["sum"].endswith("1 missing")


def test_a_renamed_file_is_named(posted: Box) -> None:
    """A file whose name was changed is the message still, but not under its name."""
    path = unread(posted, 3)
    path.rename(path.with_name("mine.md"))
    one = only(audit(posted, 1))
    assert one["kind"] == "misplaced"
    assert "mine.md" in one["what"]


def test_mail_moved_into_another_inbox_is_named(posted: Box) -> None:
    """A message in the wrong inbox is one difference, which says where it is and where it belongs."""
    path = unread(posted, 3)
    path.rename(posted.inbox("lab.checker") / "unread" / path.name)
    one = only(audit(posted, 1))
    assert one["kind"] == "misplaced"
    assert "lab.checker" in one["what"] and "lab.builder" in one["what"]


def test_a_copy_in_both_folders_is_named(posted: Box) -> None:
    """A message that is unread and read at once is there twice."""
    path = unread(posted, 1)
    shutil.copy(path, posted.inbox("lab.builder") / "read" / path.name)
    report = audit(posted, 1)
    one = only(report)
    assert one["kind"] == "second-copy"
    assert f"unread/{path.name}" in one["text"] and f"read/{path.name}" in one["text"]
    assert report["sum"].endswith("1 unlogged")


def test_mail_written_straight_into_an_inbox_is_named(posted: Box) -> None:
    """A file that no line delivered is named, whatever its name and content."""
    folder = posted.inbox("lab.builder") / "unread"
    (folder / "psst.md").write_bytes(letter(body="psst\n"))
    shutil.copy(unread(posted, 1), folder / f"20260304T100000Z-000077-{'a' * 32}.md")
    kinds = sorted(one["kind"] for one in audit(posted, 1)["differences"])
    assert kinds == ["second-copy", "unlogged"]


def test_links_and_pipes_in_inboxes_are_named_and_never_opened(posted: Box) -> None:
    """A symbolic link is not followed, a pipe does not hang the audit; each is a difference."""
    folder = posted.inbox("lab.builder") / "unread"
    path = unread(posted, 1)
    path.rename(posted.world / "elsewhere.md")
    path.symlink_to(posted.world / "elsewhere.md")
    os.mkfifo(folder / "pipe.md")
    (folder / "directory.md").mkdir()
    found = {one["kind"] for one in audit(posted, 1)["differences"]}
    assert found == {"not-a-file", "gone"}
    places = [one["place"] for one in audit(posted, 1)["differences"] if one["kind"] == "not-a-file"]
    assert len(places) == 3


def test_a_cut_log_leaves_files_without_a_line(posted: Box) -> None:
    """Lines lost from the end or the middle: their messages are named, and a gap in the numbers."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    [at] = [number for number, line in enumerate(lines) if b'"file":"m2.md"' in line]
    path = json.loads(lines[at])["path"]
    log.write_bytes(b"".join(lines[:at] + lines[at + 1 :]))
    report = audit(posted, 1)
    assert [one["place"] for one in report["differences"] if one["kind"] == "unlogged"] == [path]
    assert [one["kind"] for one in report["differences"] if one["kind"] == "numbering"] == ["numbering"]
    log.write_bytes(b"")
    report = audit(posted, 1)
    assert sum(one["kind"] == "unlogged" for one in report["differences"]) == 8
    assert report["sum"].endswith("8 unlogged")


def test_torn_and_foreign_lines_are_named_with_their_number(posted: Box) -> None:
    """What is no line of the log has its place; nothing else suffers from it."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    odd = [b"not json", b'{"time":"1999', b"", b"[" * 100_000, b'{"action":["x"],"time":"t"}', b"\xff"]
    log.write_bytes(b"".join([lines[0], *(line + b"\n" for line in odd), *lines[1:]]) + b'{"time":"20')
    found = audit(posted, 1)["differences"]
    assert {one["kind"] for one in found} == {"log-line"}
    places = {one["place"] for one in found}
    assert places == {f"logs/delivery-log.jsonl:{number}" for number in (2, 3, 4, 5, 6, 7, len(lines) + 7)}
    posted.drop("after.md", letter(body="after\n"))
    posted.route()
    assert {one["kind"] for one in audit(posted, 1)["differences"]} == {"log-line"}


def test_a_torn_line_that_was_written_again_is_only_noted(posted: Box) -> None:
    """What a crash cut off and the next run wrote again is told, and is no difference."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + lines[1][:50] + b"\n" + b"".join(lines[1:]))
    report = audit(posted, 0)
    assert any("logs/delivery-log.jsonl:2" in note for note in report["notes"])


def test_a_number_given_twice_is_named(posted: Box) -> None:
    """Two messages with one number in a flow: the later line, and the earlier one."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    [at] = [number for number, line in enumerate(lines) if b'"file":"m3.md"' in line]
    changed = {**json.loads(lines[at]), "sequence": 1}
    lines[at] = json.dumps(changed, separators=(",", ":")).encode() + b"\n"
    log.write_bytes(b"".join(lines))
    kinds = [one["kind"] for one in audit(posted, 1)["differences"]]
    assert "numbering" in kinds


def test_a_line_written_twice_is_named(posted: Box) -> None:
    """The same message delivered twice to one agent."""
    log = posted.root / "logs" / "delivery-log.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    [delivered] = [line for line in lines if b'"file":"m1.md"' in line]
    log.write_bytes(b"".join(lines) + delivered)
    one = only(audit(posted, 1))
    assert one["kind"] == "delivered-twice"
    assert one["place"] == f"logs/delivery-log.jsonl:{len(lines) + 1}"


def test_rotated_logs_count_and_a_missing_one_is_told(posted: Box) -> None:
    """Rotated and compressed logs are part of the log; without them numbers are missing, and it says why."""
    logs = posted.root / "logs"
    with gzip.open(logs / "delivery-log-20260304-1.jsonl.gz", "wb") as stream:
        stream.write((logs / "delivery-log.jsonl").read_bytes())
    (logs / "delivery-log.jsonl").unlink()
    posted.drop("after.md", letter(body="after\n"))
    posted.route()
    audit(posted, 0)
    (logs / "delivery-log-20260304-1.jsonl.gz").rename(posted.world / "taken.gz")
    found = audit(posted, 1)["differences"]
    [gap] = [one for one in found if one["kind"] == "numbering"]
    assert "rotated log was taken away" in gap["what"]
    raw = (posted.world / "taken.gz").read_bytes()
    (logs / "delivery-log-20260304-1.jsonl.gz").write_bytes(raw[: len(raw) // 2])
    assert "log-unreadable" in {one["kind"] for one in audit(posted, 1)["differences"]}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("nobody.md", "dead-letter-gone"), ("nobody.md.reason.yml", "reason-missing")],
)
def test_a_lost_dead_letter_or_reason_file_is_named(posted: Box, name: str, kind: str) -> None:
    """A dead letter is kept, and so is its reason."""
    (posted.root / "dead-letter" / name).unlink()
    kinds = {one["kind"] for one in audit(posted, 1)["differences"]}
    assert kind in kinds
    assert kinds <= {kind, "reason-alone"}


def test_strangers_among_the_dead_letters_are_named(posted: Box) -> None:
    """A file beside the dead letters that no line put there; a reason file that is alone."""
    dead = posted.root / "dead-letter"
    (dead / "stranger.md").write_bytes(letter())
    (dead / "alone.md.reason.yml").write_bytes(b"reason: duplicate\n")
    kinds = sorted(one["kind"] for one in audit(posted, 1)["differences"])
    assert kinds == ["reason-alone", "reason-missing", "unlogged"]


def test_a_changed_dead_letter_is_named(posted: Box) -> None:
    """A dead letter is kept as it was sent: a changed body or header is told."""
    path = posted.root / "dead-letter" / "nobody.md"
    raw = path.read_bytes()
    path.write_bytes(raw + b"more\n")
    assert only(audit(posted, 1))["kind"] == "body-changed"
    path.write_bytes(raw.replace(b"nightly build", b"weekly build"))
    assert "`subject`" in only(audit(posted, 1))["what"]


def test_dead_letters_of_every_kind_agree(lab: Box) -> None:
    """Links, directories and pipes are dead letters too, and are never opened."""
    os.symlink("/etc/passwd", lab.root / "outbox" / "link.md")
    (lab.root / "outbox" / "directory.md").mkdir()
    os.mkfifo(lab.root / "outbox" / "pipe.md")
    lab.drop("x.reason.yml", letter(to="nobody@lab.internal"))
    lab.drop(b"caf\xe9.md", letter(to="nobody@lab.internal", body="latin\n"))
    lab.drop("big.md", letter(body="x" * (11 << 20)))
    lab.route()
    assert audit(lab, 0)["sum"] == "in: 6 letters (6 copies) = 0 unread + 0 read + 6 dead + 0 waiting"


def test_a_retried_letter_is_accounted_for(posted: Box) -> None:
    """After `dead-letter retry` the letter waits, then is dead again or delivered; nothing differs at any time."""
    posted.declare("lab", (posted.root / "registry.d" / "lab.yml").read_text().replace("mason@", "nobody@"))
    posted.merge()
    done = posted.run("dead-letter", "retry", "nobody.md", "unwanted.md")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert audit(posted, 0)["sum"].endswith("1 dead + 2 waiting")
    posted.route()
    assert audit(posted, 0)["sum"].endswith("= 6 unread + 0 read + 2 dead + 0 waiting")


def test_a_mended_and_retried_letter_is_accounted_for(posted: Box) -> None:
    """A letter that was mended among the dead letters is another one, and the old one is not missed."""
    path = posted.root / "dead-letter" / "nobody.md"
    path.write_bytes(path.read_bytes().replace(b"nobody@", b"builder@"))
    assert posted.run("dead-letter", "retry", "nobody.md").returncode == 0
    posted.route()
    assert audit(posted, 0)["sum"] == "in: 7 letters (8 copies) = 6 unread + 0 read + 2 dead + 0 waiting"


def test_a_deferred_letter_that_was_taken_back_is_named(posted: Box) -> None:
    """What the log calls deferred must be in the outbox, or have been handled since."""
    inbox = posted.inbox("lab.echo")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"")
    posted.drop("late.md", letter(to="echo@lab.internal", body="late\n"))
    posted.route(check=75)
    (posted.root / "outbox" / "late.md").unlink()
    found = audit(posted, 1)["differences"]
    [one] = [one for one in found if one["kind"] == "waiting-gone"]
    assert "late.md" in one["what"]


def test_mail_of_an_agent_that_left_still_counts(posted: Box) -> None:
    """Inboxes below inboxes/ that the registry does not name any more are audited."""
    text = (posted.root / "registry.d" / "lab.yml").read_text()
    start = text.index("  - id: lab.checker")
    posted.declare("lab", text[:start] + text[text.index("  - id: lab.echo") :])
    posted.merge()
    assert audit(posted, 0)["sum"].endswith("= 5 unread + 0 read + 3 dead + 0 waiting")
    [path] = (posted.inbox("lab.checker") / "unread").iterdir()
    path.write_bytes(path.read_bytes() + b"x")
    assert only(audit(posted, 1))["kind"] == "body-changed"


def test_an_inbox_outside_the_office_counts_and_may_be_moved(lab: Box) -> None:
    """An inbox elsewhere is audited; after a move its mail is found in the agent's inbox of today."""
    far, farther = lab.world / "far", lab.world / "farther"
    lab.extra_inboxes += [far, farther]
    far.mkdir()
    extra = "plugin: far\nagents:\n  - id: far.a\n    address: a@far.internal\n    inbox: {}\n"
    extra += "    accepts: [{{type: job.run, accepts_from: ['*']}}]\n"
    lab.declare("far", extra.format(far))
    lab.merge()
    lab.drop("m.md", letter(to="a@far.internal"))
    lab.route()
    assert audit(lab, 0)["sum"].endswith("= 1 unread + 0 read + 0 dead + 0 waiting")
    far.rename(farther)
    lab.declare("far", extra.format(farther))
    lab.merge()
    assert audit(lab, 0)["sum"].endswith("= 1 unread + 0 read + 0 dead + 0 waiting")
    farther.rename(lab.world / "unmounted")
    found = audit(lab, 1)["differences"]
    assert {one["kind"] for one in found} <= {"inbox-missing", "gone"}
    assert "inbox-missing" in {one["kind"] for one in found}


def test_what_a_killed_run_left_is_noted_and_no_difference(posted: Box) -> None:
    """A journal, a stale temporary: the next run ends that work, so it is a note."""
    (posted.inbox("lab.builder") / "tmp" / "postmaster-999999999-1").write_bytes(b"x")
    (posted.root / ".postmaster" / "postmaster-999999999-2").write_bytes(b"x")
    notes = audit(posted, 0)["notes"]
    assert sum("killed" in note for note in notes) == 2


def test_a_damaged_journal_is_a_difference(posted: Box) -> None:
    """A journal that cannot be read stops routing, so it is a difference."""
    (posted.root / ".postmaster" / "journal").write_bytes(b"rubbish")
    assert only(audit(posted, 1))["kind"] == "journal"


def test_is_no_office(box: Box) -> None:
    """A root that is no office ends with 78."""
    shutil.rmtree(box.root / "outbox")
    done = box.run("verify")
    assert done.returncode == 78
    assert "is not an office" in done.stderr
    done = box.run("--root", "/srv/my office", "verify")
    assert "`postmaster --root '/srv/my office' init`" in done.stderr


def test_while_mail_moves_nothing_is_made_up(lab: Box) -> None:
    """Audits during routing and reading find no difference that is not there."""
    for number in range(300):
        lab.drop(f"m{number}.md", letter(subject=f"s{number}", body=f"{number}\n"))
    routing = subprocess.Popen(
        ["/bin/sh", "-c", 'for i in 1 2 3 4 5; do "$@" route; done', "sh", *lab.command()],
        env=lab.environment(),
        cwd=lab.world / "cwd",
    )
    while routing.poll() is None:
        done = lab.run("verify")
        assert done.returncode == 0, done.stdout
        lab.ack("lab.builder")
    lab.ack("lab.builder")
    assert audit(lab, 0)["counts"]["read"] == 300


def test_nothing_in_a_name_reaches_the_terminal(posted: Box) -> None:
    """Control characters in file names are made visible."""
    (posted.inbox("lab.builder") / "unread" / "\x1b[31mred\nline").write_bytes(b"x")
    done = posted.run("verify")
    assert done.returncode == 1
    assert "\x1b" not in done.stdout
    assert sum("red" in line for line in done.stdout.splitlines()) == 1


# ---------------------------------------------------------------------- what cannot be read is one difference


@contextlib.contextmanager
def closed(box: Box, path: Path, mode: int = 0) -> Iterator[Callable[[], dict[str, Any]]]:
    """Close a path; gives an audit under which permission bits count, which must find a difference."""
    if not permissions_count(box):
        pytest.skip("permission bits cannot be made to count for this user")
    before = path.stat().st_mode

    def look() -> dict[str, Any]:
        done = box.run("verify", "--json", prefix=obeying_permissions())
        assert (done.returncode, done.stderr) == (1, "")
        report: dict[str, Any] = json.loads(done.stdout)
        return report

    path.chmod(mode)
    try:
        yield look
    finally:
        path.chmod(before)


@pytest.mark.parametrize(
    ("where", "mode", "place"),
    [
        ("inboxes", 0, "inboxes"),
        ("inboxes/lab.builder", 0, "inboxes/lab.builder"),
        ("inboxes/lab.builder", 0o444, "inboxes/lab.builder"),
        ("inboxes/lab.builder/unread", 0, "inboxes/lab.builder/unread"),
        ("inboxes/lab.builder/unread", 0o444, "inboxes/lab.builder/unread"),
    ],
)
def test_a_closed_inbox_is_told_once_and_its_mail_is_not_accused(
    posted: Box, where: str, mode: int, place: str
) -> None:
    """Of an inbox that cannot be read only that is told, and how many messages could not be checked."""
    with closed(posted, posted.root / where, mode) as look:
        report = look()
    one = only(report)
    assert (one["kind"], one["place"]) == ("unreadable", place)
    unseen = 5 if where == "inboxes" else 4
    assert report["counts"]["unchecked"] == unseen
    assert report["counts"]["missing"] == report["counts"]["unlogged"] == 0
    assert sum(int(re.findall(r": (\d+) messages? could", note)[0]) for note in report["notes"]) == unseen
    assert report["sum"].endswith(f"{unseen} unchecked")
    audit(posted, 0)


def test_mail_beside_a_closed_folder_is_still_audited(posted: Box) -> None:
    """A closed read/ hides what is in it and nothing else."""
    posted.ack("lab.builder")
    posted.drop("after.md", letter(body="after\n"))
    posted.route()
    [mail] = posted.unread("lab.builder")
    path = posted.inbox("lab.builder") / "unread" / mail.name
    path.write_bytes(mail.raw + b"x")
    with closed(posted, posted.inbox("lab.builder") / "read") as look:
        report = look()
    assert sorted(one["kind"] for one in report["differences"]) == ["body-changed", "unreadable"]
    assert "inboxes/lab.builder: 4 messages could therefore not be checked" in report["notes"]


def test_a_closed_message_is_unreadable_and_not_changed(posted: Box) -> None:
    """A message that cannot be read is known by its name, and nobody says that it was edited."""
    path = unread(posted, 2)
    with closed(posted, path) as look:
        one = only(look())
    assert (one["kind"], one["place"]) == ("unreadable", f"inboxes/lab.builder/unread/{path.name}")
    assert one["message"]["correlation_id"] == "run-1"


@pytest.mark.parametrize(
    ("where", "mode", "place"),
    [
        ("logs", 0, "logs"),
        ("logs", 0o444, "logs/delivery-log.jsonl"),
        ("logs/delivery-log.jsonl", 0, "logs/delivery-log.jsonl"),
    ],
)
def test_a_closed_log_is_told_once_and_no_mail_is_accused(posted: Box, where: str, mode: int, place: str) -> None:
    """Without the log nothing can be said of the mail, and nothing is said but that."""
    with closed(posted, posted.root / where, mode) as look:
        report = look()
    one = only(report)
    assert (one["kind"], one["place"]) == ("log-unreadable", place)
    assert "logs: 8 messages could therefore not be checked" in report["notes"]
    assert report["counts"]["unlogged"] == 0
    assert report["sum"].endswith("8 unchecked")


def test_what_a_damaged_rotated_log_may_explain_is_not_accused(posted: Box) -> None:
    """Mail whose lines are in the damaged part is not unlogged; what the log itself says is audited still."""
    logs = posted.root / "logs"
    raw = gzip.compress((logs / "delivery-log.jsonl").read_bytes())
    (logs / "delivery-log.jsonl").unlink()
    rotated = logs / "delivery-log-20260304-1.jsonl.gz"
    rotated.write_bytes(raw)
    posted.drop("after.md", letter(subject="s9", body="after\n"))
    posted.route()
    rotated.write_bytes(raw[:20])
    report = audit(posted, 1)
    assert only(report)["kind"] == "log-unreadable"
    assert "logs: 8 messages could therefore not be checked" in report["notes"]
    path = unread(posted, 1)
    path.write_bytes(path.read_bytes() + b"x")
    unread(posted, 9).unlink()
    kinds = sorted(one["kind"] for one in audit(posted, 1)["differences"])
    assert kinds == ["gone", "header-changed", "log-unreadable"]


def test_a_letter_retried_in_a_log_that_cannot_be_read_is_not_missed(posted: Box) -> None:
    """The lines that explain why a dead letter or a deferred one has left may be those that cannot be read."""
    inbox = posted.inbox("lab.echo")
    shutil.rmtree(inbox)
    inbox.write_bytes(b"")
    posted.drop("late.md", letter(to="echo@lab.internal", body="late\n"))
    posted.route(check=75)
    log = posted.root / "logs" / "delivery-log.jsonl"
    log.rename(log.with_name("delivery-log.jsonl.1"))
    inbox.unlink()
    path = posted.root / "dead-letter" / "nobody.md"
    path.write_bytes(path.read_bytes().replace(b"nobody@", b"builder@"))
    assert posted.run("dead-letter", "retry", "nobody.md").returncode == 0
    posted.route()
    audit(posted, 0)
    with closed(posted, log) as look:
        report = look()
    assert only(report)["kind"] == "log-unreadable"
    assert any(note.startswith("logs: ") for note in report["notes"])


def test_closed_dead_letters_are_told_once(posted: Box) -> None:
    """If dead-letter/ cannot be read no dead letter is called gone."""
    with closed(posted, posted.root / "dead-letter") as look:
        report = look()
    assert (only(report)["kind"], only(report)["place"]) == ("unreadable", "dead-letter")
    assert "dead-letter: 3 messages could therefore not be checked" in report["notes"]


# ---------------------------------------------------------------------- the log is gone


def test_a_log_that_is_gone_is_one_loud_difference(posted: Box) -> None:
    """Without any log but with numbered mail there is one difference; what the files say of themselves counts still."""
    (posted.root / "logs" / "delivery-log.jsonl").unlink()
    report = audit(posted, 1)
    one = only(report)
    assert (one["kind"], one["place"]) == ("log-gone", "logs/delivery-log.jsonl")
    assert "the delivery log is gone, though 5 numbered messages are in the inboxes; restore it" in one["text"]
    assert "before anything is routed: numbers start again without it" in one["remedy"]
    path = unread(posted, 1)
    path.write_bytes(path.read_bytes() + b"x")
    (posted.inbox("lab.builder") / "unread" / "psst.md").write_bytes(letter(body="psst\n"))
    kinds = sorted(one["kind"] for one in audit(posted, 1)["differences"])
    assert kinds == ["header-changed", "log-gone", "unlogged"]


def test_a_log_that_is_gone_is_missed_by_dead_letters_too(lab: Box) -> None:
    """An office that has only refused mail has had a log; one that never routed has not."""
    shutil.rmtree(lab.root / "logs")
    audit(lab, 0)
    lab.drop("nobody.md", letter(to="nobody@lab.internal"))
    (lab.root / "logs").mkdir()
    lab.route()
    (lab.root / "logs" / "delivery-log.jsonl").unlink()
    one = only(audit(lab, 1))
    assert one["kind"] == "log-gone" and "1 dead letter is here" in one["what"]


# ---------------------------------------------------------------------- links in mailboxes, letters that stay


@pytest.mark.parametrize(("folder", "unseen"), [("tmp", 0), ("unread", 4), ("read", 0)])
def test_a_linked_folder_of_a_mailbox_is_named(posted: Box, folder: str, unseen: int) -> None:
    """A link in place of a mailbox's folder is a difference of its own; what is behind it is not looked at."""
    path = posted.inbox("lab.builder") / folder
    path.rename(posted.world / "scratch" / "away")
    path.symlink_to(posted.world / "scratch" / "away")
    report = audit(posted, 1)
    one = only(report)
    assert (one["kind"], one["place"]) == ("not-a-directory", f"inboxes/lab.builder/{folder}")
    assert "a symbolic link" in one["what"] and "a directory in its place" in one["remedy"]
    assert report["counts"]["unchecked"] == unseen
    if folder != "read":
        posted.drop("more.md", letter(body="more\n"))
        posted.route(check=75)


def test_a_delivered_letter_that_cannot_be_removed_is_counted_once(posted: Box) -> None:
    """A letter that is delivered and logged but stays in the outbox does not wait; another of its name does."""
    path = posted.drop("stays.md", letter(body="stays\n"))
    posted.route()
    path.write_bytes(letter(body="stays\n"))
    seen = path.stat()
    source = {"name": path.name, "device": seen.st_dev, "inode": seen.st_ino}
    source |= {"size": seen.st_size, "mtime_ns": seen.st_mtime_ns}
    (posted.root / ".postmaster" / "removals").write_text(json.dumps([source]))
    report = audit(posted, 0)
    assert report["sum"] == "in: 8 letters (9 copies) = 6 unread + 0 read + 3 dead + 0 waiting"
    assert any("stays.md: delivered, but could not be removed" in note for note in report["notes"])
    posted.drop("stays.md", letter(body="another\n"))
    assert audit(posted, 0)["sum"] == "in: 9 letters (10 copies) = 6 unread + 0 read + 3 dead + 1 waiting"


def test_a_letter_in_a_sticky_outbox_is_counted_once(lab: Box) -> None:
    """The same with a router that may write in the outbox but not remove what others have put there."""
    if os.geteuid() != 0 or not permissions_count(lab):
        pytest.skip("only root can give files to others")
    path = lab.drop("stays.md", letter())
    path.parent.chmod(0o1777)
    os.chown(path.parent, 1, 1)
    os.chown(path, 1, 1)
    lab.route(check=None, prefix=obeying_permissions())
    assert path.exists()
    assert audit(lab, 0)["sum"] == "in: 1 letters (1 copies) = 1 unread + 0 read + 0 dead + 0 waiting"
    lab.route()
    assert not path.exists()
    assert audit(lab, 0)["sum"] == "in: 1 letters (1 copies) = 1 unread + 0 read + 0 dead + 0 waiting"


def test_a_missing_inbox_has_the_remedy_that_helps(lab: Box) -> None:
    """An inbox inside the office is made by the next delivery; one outside may have to be mounted."""
    far = lab.world / "scratch" / "far"
    text = f"plugin: far\nagents:\n  - id: far.a\n    address: a@far.internal\n    inbox: {far}\n"
    lab.declare("far", text + "    accepts: [{type: job.run, accepts_from: ['*']}]\n")
    lab.merge()
    shutil.rmtree(far)
    shutil.rmtree(lab.inbox("lab.echo"))
    remedies = {one["place"]: one["remedy"] for one in audit(lab, 1)["differences"]}
    assert "next delivery" in remedies["inboxes/lab.echo"] and "registry merge" in remedies["inboxes/lab.echo"]
    assert remedies[str(far)].startswith("mount it")


def test_an_empty_mount_point_is_one_difference(lab: Box) -> None:
    """The mail of an inbox whose disk is not mounted is not called gone, one message after the other."""
    far = lab.world / "scratch" / "far"
    text = f"plugin: far\nagents:\n  - id: far.a\n    address: a@far.internal\n    inbox: {far}\n"
    lab.declare("far", text + "    accepts: [{type: job.run, accepts_from: ['*']}]\n")
    lab.merge()
    lab.drop("m.md", letter(to="a@far.internal"))
    lab.route()
    far.rename(lab.world / "scratch" / "disk")
    far.mkdir()
    report = audit(lab, 1)
    one = only(report)
    assert (one["kind"], one["place"]) == ("inbox-missing", str(far))
    assert one["remedy"].startswith("mount it")
    assert f"{far}: 1 message could therefore not be checked" in report["notes"]
