"""Acknowledgements between offices: taken back before a remote has them, and after; and mailboxes that change name."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from support import Box
from test_carry import carry, git, got, hub, mail, office, refs, to_hub, turn

from postmaster.carrier import segments
from postmaster.carrier.git import Git
from postmaster.carrier.lines import Letter
from postmaster.carrier.refs import Oid

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("jq")), reason="needs git and jq")

INBOX = "refs/postmaster/inbox/"
MARKS = "refs/postmaster/marks/"
AGENT = "a0@b.internal"


@pytest.fixture
def read(tmp_path: Path) -> tuple[Box, Box, Path, str]:
    """Two offices around a hub; a letter of a's has arrived at b's, and waits there to be read: (a, b, hub, name)."""
    there = hub(tmp_path)
    a, b = (office(tmp_path, name, 1, to_hub(there, name)) for name in ("a", "b"))
    a.drop("1.md", mail(AGENT, "a0@a.internal"))
    turn(a, b)
    return a, b, there, b.unread("b.a0")[0].name


def lines(repository: Path, ref: str) -> list[dict[str, str]]:
    """Return the lines of a mailbox, as anybody with git and jq reads them."""
    if ref not in refs(repository):
        return []
    archive = subprocess.run(["git", "-C", str(repository), "archive", ref], capture_output=True, check=True).stdout
    text = subprocess.run(["tar", "-xO"], input=archive, capture_output=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def kinds(found: list[dict[str, str]]) -> list[str]:
    return sorted(next((kind for kind in ("read", "unread") if kind in line), "message") for line in found)


def away(there: Path) -> Path:
    """Let the hub be away, until it is moved back."""
    return there.rename(there.with_suffix(".away"))


def test_what_no_remote_has_yet_is_rolled_back(read: tuple[Box, Box, Path, str]) -> None:
    """The commit goes; the mailbox, which others may fetch from here, never had it, and the sender hears nothing."""
    a, b, there, name = read
    mine = b.root / "carrier" / "mail.git"
    before = refs(mine)[INBOX + AGENT]
    gone = away(there)
    assert b.run("ack", "b.a0", name).returncode == 0
    carry(b, code=75)
    assert kinds(lines(mine, MARKS + AGENT)) == ["message", "read"] and refs(mine)[INBOX + AGENT] == before
    assert b.run("unread", "b.a0", name).returncode == 0
    carry(b, "hub", code=75)
    assert MARKS + AGENT not in refs(mine) and refs(mine)[INBOX + AGENT] == before
    gone.rename(there)
    carry(b, "hub")
    turn(a)
    assert kinds(lines(there, INBOX + AGENT)) == ["message"]
    assert [row for row in a.log() if row["action"] == "receipt"] == []
    # and read after all
    assert b.run("ack", "b.a0", name).returncode == 0
    turn(b, a)
    assert len([row for row in a.log() if row["action"] == "receipt"]) == 1


def test_of_two_that_wait_one_is_taken_back(read: tuple[Box, Box, Path, str]) -> None:
    a, b, there, _ = read
    a.drop("2.md", mail(AGENT, "a0@a.internal", body="second"))
    turn(a, b)
    gone = away(there)
    names = [one.name for one in b.unread("b.a0")]
    for name in names:
        assert b.run("ack", "b.a0", name).returncode == 0
    carry(b, code=75)
    assert b.run("unread", "b.a0", names[0]).returncode == 0
    carry(b, "hub", code=75)
    assert kinds(lines(b.root / "carrier" / "mail.git", MARKS + AGENT)) == ["message", "message", "read"]
    gone.rename(there)
    carry(b, "hub")
    turn(a)
    assert kinds(lines(there, INBOX + AGENT)) == ["message", "message", "read"]
    assert len([row for row in a.log() if row["action"] == "receipt"]) == 1
    assert not [ref for ref in refs(b.root / "carrier" / "mail.git") if ref.startswith(MARKS)]


def test_what_a_remote_has_is_revived_by_a_line(read: tuple[Box, Box, Path, str]) -> None:
    """And whoever merges the two lines in whatever order finds it unread (see the property tests)."""
    a, b, there, name = read
    assert b.run("ack", "b.a0", name).returncode == 0
    turn(b)
    assert kinds(lines(there, INBOX + AGENT)) == ["message", "read"]
    assert b.run("unread", "b.a0", name).returncode == 0
    turn(b, a)
    assert kinds(lines(there, INBOX + AGENT)) == ["message", "read", "unread"]
    for box in (a, b):
        assert refs(box.root / "carrier" / "mail.git")[INBOX + AGENT] == refs(there)[INBOX + AGENT]
        assert box.run("verify").returncode == 0


def test_an_office_that_is_renamed_while_mail_waits(read: tuple[Box, Box, Path, str]) -> None:
    """Nothing is sent twice, and what was read is still told of."""
    a, b, _, name = read
    settings = a.root / "post-office.yml"
    settings.write_text(settings.read_text().replace("name: a\n", "name: attic\n"))
    assert b.run("ack", "b.a0", name).returncode == 0
    turn(b, a, b)
    assert len([row for row in a.log() if row["action"] == "receipt"]) == 1
    assert len(got(b, "b.a0")) == 1 and b.dead() == []


def test_a_mailbox_under_a_new_name_is_not_new_mail(tmp_path: Path) -> None:
    """The other office, which takes five lines in a pass, has its history already."""
    there = hub(tmp_path)
    tight = to_hub(there, "a").replace("domains", "max_messages: 5, domains")
    a, b = office(tmp_path, "a", 1, tight), office(tmp_path, "b", 1, to_hub(there, "b"))
    for number in range(8):
        a.drop(f"{number}.md", mail(AGENT, "a0@a.internal", body=f"{number}"))
    turn(a, b)
    assert b.run("rename", "b.a0", "zero").returncode == 0
    turn(b, a, b)
    assert {row["state"] for row in carry(a)["remotes"]} == {"done"}  # type: ignore[attr-defined]
    assert len(got(b, "b.a0")) == 8 and refs(there)[INBOX + "zero@b.internal"]


def test_anybody_can_read_all_mail_with_git_and_jq(read: tuple[Box, Box, Path, str], tmp_path: Path) -> None:
    """The commands of docs/carrier.md, over a clone of the repository of an office."""
    a, b, _, _ = read
    a.drop("2.md", mail(AGENT, "a0@a.internal", subject="bytes", body=b"\xff\x00"))
    turn(a, b)
    clone = tmp_path / "clone.git"
    git(tmp_path, "clone", "-q", "--mirror", str(b.root / "carrier" / "mail.git"), str(clone))
    listed = git(clone, "for-each-ref", "--format=%(refname)", INBOX).split()
    assert listed == [INBOX + AGENT]
    script = (
        f"git -C {clone} archive {listed[0]} | tar -xO | "
        "jq -r 'select(.id) | [.subject, (.body // (.body_base64 | @base64d))] | @tsv'"
    )
    shown = subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=60).stdout.splitlines()
    assert len(shown) == 2 and any(row.startswith(b"hello\ttext") for row in shown)


def test_many_objects_are_packed_and_nothing_is_lost(read: tuple[Box, Box, Path, str]) -> None:
    _, b, _, _ = read
    mine = b.root / "carrier" / "mail.git"
    before, mail_before = refs(mine), lines(mine, INBOX + AGENT)
    loose = mine / "objects" / "17"
    loose.mkdir(exist_ok=True)
    data = b"".join(b"blob\nmark :%d\ndata %d\n%d\n" % (n, len(str(n)), n) for n in range(1, 60))
    subprocess.run(["git", "-C", str(mine), "-c", "fastimport.unpackLimit=100", "fast-import", "--quiet"], input=data)
    for number in range(40):
        shutil.copy(next(mine.glob("objects/??/*")), loose / f"{number:038x}")  # only the number of names counts
    carry(b)
    assert list(mine.glob("objects/pack/*.pack"))
    assert refs(mine) == before and lines(mine, INBOX + AGENT) == mail_before
    assert "missing" not in git(mine, "fsck", "--connectivity-only")


def test_a_receipt_of_mail_that_is_unread_again_is_none(read: tuple[Box, Box, Path, str]) -> None:
    """The sender's office meets both marks in one pass: the last word counts."""
    a, b, _, name = read
    for command in ("ack", "unread"):
        assert b.run(command, "b.a0", name).returncode == 0
        turn(b)
    turn(a)
    assert [row for row in a.log() if row["action"] == "receipt"] == []


def test_an_acknowledgement_under_a_clock_that_ran_ahead_can_be_taken_back(
    read: tuple[Box, Box, Path, str],
) -> None:
    _, b, there, name = read
    assert b.run("ack", "b.a0", name).returncode == 0
    log = b.root / "logs" / "delivery-log.jsonl"
    rows = log.read_text().splitlines(keepends=True)
    log.write_text(
        "".join([*rows[:-1], rows[-1].replace('"time":"20', '"time":"21', 1).replace('"time": "20', '"time": "21')])
    )
    turn(b)
    assert b.run("unread", "b.a0", name).returncode == 0
    turn(b)
    marks = {next(iter(line)): line["at"] for line in lines(there, INBOX + AGENT) if "at" in line}
    assert marks["unread"] > marks["read"] > "21"


def test_receipts_of_who_pushes_into_our_repository(tmp_path: Path) -> None:
    """Without a hub: each office has the other's repository as its remote."""
    places = {name: tmp_path / name / "office" / "carrier" / "mail.git" for name in "ab"}
    a, b = (
        office(tmp_path, name, 1, f"remotes: {{{one}: {{url: '{places[one]}', domains: [{one}.internal]}}}}\n")
        for name, one in (("a", "b"), ("b", "a"))
    )
    carry(a, code=75)  # there is nothing of b yet
    carry(b)
    carry(a, "b")
    for number in range(2):
        a.drop(f"{number}.md", mail(AGENT, "a0@a.internal", body=f"{number}"))
    turn(a, b)
    for one in b.unread("b.a0"):
        assert b.run("ack", "b.a0", one.name).returncode == 0
    turn(b, a, b, a)
    assert len([row for row in a.log() if row["action"] == "receipt"]) == 2
    assert a.run("verify").returncode == 0


def test_a_hub_whose_lines_were_removed_and_that_is_accepted(read: tuple[Box, Box, Path, str]) -> None:
    """By a commit on top, which is no rewind: all of it is pushed to it again, and arrives."""
    a, b, there, _ = read
    a.drop("2.md", mail(AGENT, "a0@a.internal", body="second"))
    turn(a)
    ref = INBOX + AGENT
    empty = git(there, "hash-object", "-t", "tree", "-w", "/dev/null").strip()
    git(there, "update-ref", ref, git(there, "commit-tree", "-m", "x", "-p", refs(there)[ref], empty).strip())
    assert carry(a, code=76)
    carry(a, "--accept", "hub")
    assert len(lines(there, ref)) == len(lines(a.root / "carrier" / "mail.git", ref)) == 2
    turn(b)
    assert got(b, "b.a0") == [b"second", b"text\n"]


@pytest.mark.parametrize("value", [1, 1.5, None, True, [1], [["x"]], {"a": [["b"]]}, {"a": 1}, "\ud800"])
def test_a_line_with_a_header_that_no_letter_has_stops_nothing(read: tuple[Box, Box, Path, str], value: object) -> None:
    """What is no text is no line of mail, and the hub looks wrong; what cannot be written is a dead letter."""
    _, b, there, _ = read
    letter = Letter("a0@a.internal", AGENT, "t", "s", "f", "2026-03-04T10:00:00Z", b"x", "a", headers={"x": value})
    tip = refs(there)[INBOX + AGENT]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GIT_DIR", str(there))
        mine = Git(str(there), ())
        new = segments.append(mine, Oid(tip), {letter.line()}, "2026-03-04")
    git(there, "update-ref", INBOX + AGENT, new.hex)
    done = b.run("carry", "--json")
    assert done.returncode in (0, 76) and "internal error" not in done.stderr
    b.route(check=None)


def test_a_pause_that_was_noted_under_another_clock_counts_no_more(read: tuple[Box, Box, Path, str]) -> None:
    _, b, there, _ = read
    gone = away(there)
    carry(b, code=75)
    gone.rename(there)
    note = b.root / "carrier" / "hub.later"
    note.write_text(json.dumps(json.loads(note.read_text()) | {"not_before": 9999999999}))
    carry(b)
