"""`inbox`, `read`, `ack` and `unread`: looking changes nothing, acknowledging moves, hostile files harm nobody."""

import json
import os
import socket
import subprocess
import time
from typing import Any

import pytest
from support import Box, letter, mails, md5

BUILDER = "lab.builder"


def listing(box: Box, *more: str, agent: str = BUILDER) -> dict[str, Any]:
    """Run `inbox --json` and return its answer."""
    done = box.run("inbox", agent, *more, "--json")
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


@pytest.fixture
def full(lab: Box) -> Box:
    """A laboratory whose builder has three letters, of 10:00, 10:01 and 10:02."""
    for minute in range(3):
        sent_at = f"2026-03-04T10:{minute:02d}:00Z"
        lab.drop(f"{minute}.md", letter(subject=f"job {minute}", sent_at=sent_at, body=f"body {minute}\n"))
    lab.route()
    return lab


def ident(minute: int) -> str:
    """Return the id of one of these letters."""
    return md5(f"body {minute}\n".encode())


# ---------------------------------------------------------------------- listing


def test_lists_newest_first(full: Box) -> None:
    """The first line names the office and counts; then one line a message, the newest first."""
    full.drop("waits.md", letter(body="later"))
    before = full.snapshot()
    done = full.run("inbox", BUILDER)
    first, *rows = done.stdout.splitlines()
    assert first == f"{full.root}: lab.builder <builder@lab.internal>: unread 3, read 0, outbox waiting 1"
    assert [row.split("  ")[:5] for row in rows] == [
        [ident(n)[:12], f"#{n + 1}", "conductor@lab.internal", "job.run", f"job {n}"] for n in (2, 1, 0)
    ]
    assert "[run-1]  2026-03-04T10:02:00Z" in rows[0]
    assert full.snapshot() == before


@pytest.mark.parametrize(
    "name", ["lab.builder", "LAB.Builder", "builder@lab.internal", "mason@LAB.internal", "agent:lab.builder"]
)
def test_names_of_an_agent(full: Box, name: str) -> None:
    """An id, an address or an alias, in any case."""
    assert listing(full, agent=name)["unread"] == 3


@pytest.mark.parametrize("name", ["lab.bilder", "bilder@lab.internal", "bilder"])
def test_unknown_agent(full: Box, name: str) -> None:
    """A typing mistake is no empty inbox: exit 65, and who may have been meant."""
    done = full.run("inbox", name)
    assert done.returncode == 65
    assert "did you mean" in done.stderr
    assert "builder" in done.stderr


def test_role_is_no_agent(full: Box) -> None:
    """A role has no mailbox of its own."""
    assert full.run("inbox", "role:reviewer").returncode == 65


def test_read_mail_is_shown_on_request(full: Box) -> None:
    """--all adds read/, and says which is which."""
    full.run("ack", BUILDER, ident(1))
    assert [row["subject"] for row in listing(full)["messages"]] == ["job 2", "job 0"]
    answer = listing(full, "--all")
    assert [(row["folder"], row["subject"]) for row in answer["messages"]] == [
        ("unread", "job 2"),
        ("read", "job 1"),
        ("unread", "job 0"),
    ]
    assert (answer["unread"], answer["read"]) == (2, 1)
    assert "read    " in full.run("inbox", BUILDER, "--all").stdout


def test_thousand_messages(lab: Box) -> None:
    """The newest twenty of a thousand are shown, quickly, and the rest is counted."""
    unread = lab.inbox(BUILDER) / "unread"
    for number in range(1, 1001):
        body = f"{number}\n".encode()
        extra = f"id: {md5(body)}\nsequence: {number}"
        name = (
            f"20260304T{10 + number // 3600:02d}{number // 60 % 60:02d}{number % 60:02d}Z-{number:06d}-{md5(body)}.md"
        )
        (unread / name).write_bytes(letter(subject=f"job {number}", body=body, extra=extra))
    started = time.monotonic()
    done = lab.run("inbox", BUILDER)
    assert time.monotonic() - started < 5
    first, *rows, last = done.stdout.splitlines()
    assert "unread 1000," in first
    assert [row.split("  ")[1] for row in rows] == [f"#{number}" for number in range(1000, 980, -1)]
    assert last == "… 980 older; --limit 0 shows all"
    assert len(listing(lab, "--limit", "0")["messages"]) == 1000
    assert listing(lab, "--limit", "3")["hidden"] == 997


def test_foreign_files_are_sorted_by_mtime(full: Box) -> None:
    """A file with a name of its own stands where its time puts it."""
    path = full.inbox(BUILDER) / "unread" / "by-hand.md"
    path.write_bytes(letter(subject="by hand"))
    then = 1772618430  # 2026-03-04T10:00:30Z
    os.utime(path, (then, then))
    assert [row["subject"] for row in listing(full)["messages"]] == ["job 2", "job 1", "by hand", "job 0"]


def test_hostile_mailbox(full: Box) -> None:
    """What is no message is shown as such: nothing is followed, opened, waited for or printed raw."""
    unread = full.inbox(BUILDER) / "unread"
    (unread / "empty.md").write_bytes(b"")
    (unread / "binary.md").write_bytes(bytes(range(256)) * 1000)
    (unread / "bomb.md").write_bytes(b"---\na: &a [x]\nb: *a\n---\n")
    (unread / "open.md").write_bytes(b"---\n" + b"x: y\n" * 100_000)
    (unread / "esc\x1b[31m.md").write_bytes(letter(subject='"red\\e[31m\\nline"', extra="id: [1]\nsequence: {a: b}"))
    (unread / os.fsdecode(b"\xff.md")).write_bytes(b"no header")
    (unread / "link.md").symlink_to("/etc/passwd")
    (unread / "loop.md").symlink_to("loop.md")
    (unread / "directory.md").mkdir()
    os.mkfifo(unread / "pipe.md")
    here = os.getcwd()
    os.chdir(unread)
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket.md")
    os.chdir(here)
    before = full.snapshot()
    done = full.run("inbox", BUILDER, timeout=20)
    assert done.returncode == 0
    assert "root:" not in done.stdout
    assert not any(c for c in done.stdout if c != "\n" and not c.isprintable())
    assert len(done.stdout.splitlines()) == 1 + 3 + 11
    rows = {row["file"]: row for row in listing(full)["messages"]}
    for name, kind in {"link.md": "symbolic link", "pipe.md": "named pipe", "directory.md": "directory"}.items():
        assert kind in rows[name]["problem"]
    assert "\\xff.md" in rows
    assert rows["esc\x1b[31m.md"]["id"] is None
    for name in rows:
        for command in (["read"], ["read", "--raw"], ["read", "--body"], ["read", "--json"]):
            shown = full.run(command[0], BUILDER, name, *command[1:], timeout=20)
            assert shown.returncode in (0, 65), (name, command, shown.stderr)
            assert "root:" not in shown.stdout
    assert full.run("ack", BUILDER, "link.md").returncode == 65
    assert full.snapshot() == before


def test_hidden_files_and_missing_folders(lab: Box) -> None:
    """Private names are nobody's mail; a mailbox without folders is empty, not an error."""
    (lab.inbox(BUILDER) / "unread" / ".half").write_text("x")
    assert listing(lab)["unread"] == 0
    (lab.inbox(BUILDER) / "unread" / ".half").unlink()
    (lab.inbox(BUILDER) / "unread").rmdir()
    assert lab.run("inbox", BUILDER).stdout.endswith("unread 0, read 0, outbox waiting 0\n")


# ---------------------------------------------------------------------- reading


def test_read_shows_and_moves_nothing(full: Box) -> None:
    """`read` leaves bytes, names and times as they are."""

    def state() -> list[tuple[str, bytes, int]]:
        unread = full.inbox(BUILDER) / "unread"
        return [(mail.name, mail.raw, (unread / mail.name).stat().st_mtime_ns) for mail in mails(unread)]

    before, log = state(), full.log()
    done = full.run("read", BUILDER, ident(1)[:6])
    first, *rest = done.stdout.splitlines()
    assert first == f"inboxes/lab.builder/unread/{full.unread(BUILDER)[1].name}"
    assert "\n".join(rest) + "\n" == full.unread(BUILDER)[1].raw.decode()
    assert (state(), full.log()) == (before, log)


def test_read_forms(lab: Box) -> None:
    """--raw and --body are exact; the form for people shows control characters; JSON has the fields and the body."""
    body = b"tab\there\r\nescape \x1b]0;title\x07 \xff\n"
    lab.drop("a.md", letter(body=body, subject='"a\\e[0m"'))
    lab.route()
    (mail,) = lab.unread(BUILDER)
    command = lab.command("read", BUILDER, mail.name)

    def output(*more: str) -> bytes:
        return subprocess.run([*command, *more], capture_output=True, check=True, env=lab.environment()).stdout

    assert output("--raw") == mail.raw
    assert output("--body") == body
    shown = output().decode()
    assert "tab\there\nescape \\x1b]0;title\\x07 \\xff\n" in shown
    answer = json.loads(output("--json"))
    assert answer["header"]["subject"] == "a\x1b[0m"
    assert answer["header"]["sequence"] == "1"
    assert (answer["body_base64"], answer["size"], answer["cut"]) == (
        "dGFiCWhlcmUNCmVzY2FwZSAbXTA7dGl0bGUHIP8K",
        len(mail.raw),
        False,
    )
    assert lab.run("read", BUILDER, mail.name, "--raw", "--json").returncode == 64


def test_large_message_is_cut_for_people(lab: Box) -> None:
    """A file that was put there by hand and is larger than mail can be is not read into memory whole."""
    (lab.root / "post-office.yml").write_text("max_message_bytes: 65536\n")
    (lab.inbox(BUILDER) / "unread" / "big.md").write_bytes(letter(body=b"x" * 300_000))
    done = lab.run("read", BUILDER, "big.md")
    assert "more bytes; --raw shows all" in done.stdout.splitlines()[-1]
    assert len(done.stdout) < 270_000  # the limit, and room for a header and for a report around it
    assert len(lab.run("read", BUILDER, "big.md", "--body").stdout) == 300_000


# ---------------------------------------------------------------------- which message


@pytest.mark.parametrize("name", ["../../../etc/passwd", "..", "a..b", "/etc/passwd", "unread/x", "", ".", ".hidden"])
@pytest.mark.parametrize("command", ["read", "ack", "unread", "reply"])
def test_paths_are_refused(full: Box, command: str, name: str) -> None:
    """A message is named by one name in the mailbox, never by a path."""
    before = full.snapshot()
    done = full.run(command, BUILDER, name)
    assert done.returncode == 65
    assert "neither a file name nor the beginning of an id" in done.stderr
    assert full.snapshot() == before


@pytest.mark.parametrize("command", ["read", "ack", "unread"])
def test_unknown_message(full: Box, command: str) -> None:
    """What is not there is told with what is."""
    for name in ("0000000", ident(0)[:3], "nothing.md"):
        done = full.run(command, BUILDER, name)
        assert done.returncode == 65
        assert full.unread(BUILDER)[2].name in done.stderr
    assert "at least 4" in full.run(command, BUILDER, ident(0)[:3]).stderr


def test_ambiguous_prefix(lab: Box) -> None:
    """Two messages with the same body share an id: both are named, neither is touched."""
    for number in range(2):
        lab.drop(f"{number}.md", letter(sent_at=f"2026-03-04T10:00:0{number}Z", body="ok"))
    lab.route()
    done = lab.run("ack", BUILDER, md5(b"ok"))
    assert done.returncode == 65
    assert "names 2 messages" in done.stderr
    assert all(f"unread/{mail.name}" in done.stderr for mail in lab.unread(BUILDER))
    assert len(lab.unread(BUILDER)) == 2
    assert lab.run("ack", BUILDER, lab.unread(BUILDER)[0].name).returncode == 0


def test_id_of_a_foreign_name(lab: Box) -> None:
    """A message that somebody renamed is found by the id in its header."""
    lab.drop("a.md", letter(body="ok"))
    lab.route()
    (mail,) = lab.unread(BUILDER)
    unread = lab.inbox(BUILDER) / "unread"
    os.rename(unread / mail.name, unread / "mine.md")
    assert lab.run("ack", BUILDER, md5(b"ok")[:4].upper()).returncode == 0
    assert [one.name for one in lab.read(BUILDER)] == ["mine.md"]


# ---------------------------------------------------------------------- acknowledging


def test_ack_moves_and_logs(full: Box) -> None:
    """unread/ to read/, by file name or id, with one log line each; the bytes stay."""
    mail = full.unread(BUILDER)
    done = full.run("ack", "mason@lab.internal", mail[0].name, ident(2)[:4])
    assert done.returncode == 0
    assert done.stdout.splitlines() == [
        f"{mail[0].name} is now in read/: run-1 #1",
        f"{mail[2].name} is now in read/: run-1 #3",
    ]
    assert [one.raw for one in full.read(BUILDER)] == [mail[0].raw, mail[2].raw]
    line = full.log()[-1]
    del line["time"]
    assert line == {
        "action": "read",
        "id": ident(2),
        "sequence": 3,
        "correlation_id": "run-1",
        "from": "conductor@lab.internal",
        "to": "builder@lab.internal",
        "type": "job.run",
        "subject": "job 2",
        "sent_at": "2026-03-04T10:02:00Z",
        "agent": BUILDER,
        "path": f"inboxes/lab.builder/read/{mail[2].name}",
    }


def test_ack_again_changes_nothing(full: Box) -> None:
    """Acknowledging is idempotent: it says so and logs nothing."""
    full.run("ack", BUILDER, ident(0))
    before = full.snapshot()
    done = full.run("ack", BUILDER, ident(0), ident(0)[:8], "--json")
    assert done.returncode == 0
    assert [one["already"] for one in json.loads(done.stdout)["messages"]] == [True]
    assert full.snapshot() == before


def test_ack_with_one_unknown(full: Box) -> None:
    """One wrong name: none is moved."""
    before = full.snapshot()
    assert full.run("ack", BUILDER, ident(0), "feedface").returncode == 65
    assert full.snapshot() == before


def test_unread_takes_it_back(full: Box) -> None:
    """read/ to unread/, logged; again, it changes nothing."""
    full.run("ack", BUILDER, ident(1))
    assert full.run("unread", BUILDER, ident(1)).returncode == 0
    assert len(full.unread(BUILDER)) == 3
    assert [line["action"] for line in full.log()][-2:] == ["read", "unread"]
    assert "is already in unread/" in full.run("unread", BUILDER, ident(1)).stdout


def test_concurrent_acks(full: Box) -> None:
    """One wins, the others say already; the log has one line."""
    running = [full.start("ack", BUILDER, ident(1), "--json") for _ in range(8)]
    already = []
    for process in running:
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        already.append(json.loads(out)["messages"][0]["already"])
    assert sorted(already) == [False] + [True] * 7
    assert [line["action"] for line in full.log()].count("read") == 1


def test_ack_of_what_is_no_message(lab: Box) -> None:
    """A file that cannot be read as a message can still be put away."""
    (lab.inbox(BUILDER) / "unread" / "notes.txt").write_bytes(b"\xff\xfe")
    assert lab.run("ack", BUILDER, "notes.txt").returncode == 0
    assert os.listdir(lab.inbox(BUILDER) / "read") == ["notes.txt"]
    (line,) = lab.log()
    assert (line["action"], line["path"]) == ("read", "inboxes/lab.builder/read/notes.txt")


def test_ack_never_replaces(full: Box) -> None:
    """A message of the same name in read/ stays; the new one gets a name beside it."""
    (mail, *_) = full.unread(BUILDER)
    (full.inbox(BUILDER) / "read" / mail.name).write_bytes(letter(subject="older"))
    # Two of one name are ambiguous: a person has to look.
    assert full.run("ack", BUILDER, mail.name).returncode == 65
    assert len(full.unread(BUILDER)) == 3


def test_numbers_are_not_taken_from_mailboxes(full: Box) -> None:
    """What a receiver's file says of its number changes no flow."""
    raw = letter(extra=f"id: {'a' * 32}\nsequence: 999")
    (full.inbox(BUILDER) / "unread" / "forged.md").write_bytes(raw)
    assert full.run("ack", BUILDER, "forged.md").returncode == 0
    full.drop("next.md", letter(subject="next"))
    full.route()
    assert full.unread(BUILDER)[-1].sequence in (3, 4)
    assert {mail.fields["subject"]: mail.sequence for mail in full.unread(BUILDER)}["next"] == 4


def test_no_registry(box: Box) -> None:
    """Without a registry nobody knows where a mailbox is: exit 78."""
    for command in (["inbox", "x"], ["read", "x", "y"], ["ack", "x", "y"], ["unread", "x", "y"]):
        assert box.run(*command).returncode == 78


@pytest.mark.parametrize("command", ["inbox", "read", "ack", "unread"])
def test_help_has_an_example(box: Box, command: str) -> None:
    """Every command explains itself."""
    done = box.run(command, "--help")
    assert done.returncode == 0
    assert f"postmaster {command} " in done.stdout
