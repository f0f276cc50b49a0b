"""The fault cases: one folder of inputs each, run by one procedure, held to what its expect.md says.

Procedure: make an office; copy outbox and declarations (with the root filled in); merge; run setup.sh; set
every letter's mtime one hour back; run `postmaster route`; check. Where a case allows two outcomes, the one
that this post office promises is asserted.
"""

import contextlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import (
    EMPTY_MD5,
    Box,
    added_lines,
    arrived,
    died,
    header,
    limited,
    mails,
    md5,
    mounted,
    obeying_permissions,
    outcomes,
    permissions_count,
    shown,
    split,
    standing,
)

DATA = Path(__file__).parent / "data"
DELIVERED = ("delivered", None)
SECONDS = 10


class Case:
    """One case, set up in an office and ready to be routed."""

    def __init__(self, box: Box, name: str, replace: tuple[str, str] = ("", ""), *, merge: bool = True) -> None:
        self.box, self.folder, self.replace = box, DATA / name, replace
        for source in sorted((self.folder / "registry.d").iterdir()):
            text = source.read_text(encoding="utf-8").replace("@ROOT@", str(box.root))
            box.declare(source.name, self._replaced(text))
        if (self.folder / "outbox").exists():
            self._hand_in(self.folder / "outbox")
        if merge:
            box.merge()
            self.setup()
        self.sent = self._read()
        self.before = box.census()

    def _replaced(self, text: str) -> str:
        return text.replace(*self.replace) if self.replace[0] else text

    def _hand_in(self, source: Path) -> None:
        for path in source.iterdir():
            shutil.copyfile(path, self.box.root / "outbox" / path.name)

    def _read(self) -> dict[str, bytes]:
        outbox = self.box.root / "outbox"
        return {
            name: (outbox / name).read_bytes()
            for name in os.listdir(outbox)
            if stat.S_ISREG((outbox / name).lstat().st_mode)
        }

    def setup(self) -> None:
        """Run setup.sh, if there is one, and age the letters."""
        script = self.folder / "setup.sh"
        if script.exists():
            text = self._replaced(script.read_text(encoding="utf-8"))
            subprocess.run(["bash", "-c", text, script.name, str(self.box.root)], check=True, timeout=60)
        self.box.age()

    def route(self, *, check: int = 0, prefix: list[str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run one pass, which must not take long."""
        started = time.monotonic()
        done = self.box.route(check=check, prefix=prefix or [])
        assert time.monotonic() - started < SECONDS
        return done

    def dead(self, name: str, reason: str, action: str = "dead-letter") -> dict[str, object]:
        """Assert that a letter of this case is a dead letter with this reason."""
        return died(self.box, name, self.sent[name], reason, action)

    def delivered(self, name: str, agent: str = "lab.builder") -> None:
        """Assert that a letter of this case was delivered, unharmed and logged."""
        mail = arrived(self.box, agent, self.sent[name])
        line = self.box.line(name)
        assert line["action"] == "delivered"
        assert line["status"] == "2.1.5"
        assert (line["id"], line["sequence"]) == (mail.fields["id"], mail.sequence)
        assert (line["agent"], line["path"]) == (agent, f"inboxes/{agent}/unread/{mail.name}")
        for log_key, key in (("from", "from"), ("to", "to"), ("type", "type"), ("subject", "subject")):
            assert line[log_key] == mail.fields[key]


def test_01_plain_control(box: Box) -> None:
    """A plain letter arrives byte for byte, with one id and sequence 1, one log line, and no noise."""
    case = Case(box, "01-plain-control")
    done = case.route()
    assert (done.stdout, done.stderr) == ("", "")
    case.delivered("a.md")
    mail = arrived(box, "lab.builder", case.sent["a.md"])
    assert mail.sequence == 1
    assert re.fullmatch(rf"20260304T100000(?:\.?0+)?Z-000001-{md5(mail.body)}\.md", mail.name)
    assert len(added_lines(case.sent["a.md"], mail)) == 2
    assert len(box.log()) == 1
    assert (box.outbox(), box.dead()) == ([], [])
    standing(box, case.before)


def test_02_crlf_whole_file(box: Box) -> None:
    """A CR LF letter keeps every CR LF in its body, and its header values carry no stray carriage return."""
    case = Case(box, "02-crlf-whole-file")
    case.route()
    case.delivered("ok.md")
    case.delivered("win.md")
    mail = arrived(box, "lab.builder", case.sent["win.md"])
    assert mail.body == b"line one\r\nline two\r\n"
    assert mail.fields["id"] == md5(b"line one\r\nline two\r\n")
    assert box.line("win.md")["to"] == "builder@lab.internal"
    assert b"\r" not in mail.raw.replace(b"\r\n", b"")
    assert b"\n" not in mail.raw.replace(b"\r\n", b""), "the inserted lines end as the sender's lines do"
    standing(box, case.before)


def test_03_bom_prefix(box: Box) -> None:
    """A leading byte-order mark is no part of header or body: the letter is delivered."""
    case = Case(box, "03-bom-prefix")
    case.route()
    case.delivered("bom.md")
    case.delivered("ok.md")
    standing(box, case.before)


def test_04_rules_in_body(box: Box) -> None:
    """Lines of --- in a body are body: nothing is cut, and nothing in the body addresses anyone."""
    case = Case(box, "04-rules-in-body")
    case.route()
    case.delivered("rules.md")
    case.delivered("setext.md")
    mail = arrived(box, "lab.builder", case.sent["rules.md"])
    assert mail.body.startswith(b"---\nfirst line of the body is a rule\n\n---\nto: checker@lab.internal\n---\n")
    assert mail.body.endswith(b"last line is a rule\n---\n")
    assert box.unread("lab.checker") == []
    assert len(box.log()) == 2
    standing(box, case.before)


def test_06_empty_body(box: Box) -> None:
    """An empty body is a body, also where the file ends right after the closing --- without a newline."""
    case = Case(box, "06-empty-body")
    case.route()
    for name in ("a.md", "b-eof.md"):
        case.delivered(name)
        mail = arrived(box, "lab.builder", case.sent[name])
        assert (mail.body, mail.fields["id"]) == (b"", EMPTY_MD5)
    standing(box, case.before)


def test_07_never_closed_header(box: Box) -> None:
    """A header that is missing or never closed is a dead letter, byte for byte, and its reason says so."""
    case = Case(box, "07-never-closed-header")
    case.route()
    case.delivered("ok.md")
    for name in ("open.md", "nofm.md", "empty.md"):
        line = case.dead(name, "malformed-header")
        assert re.search(r"header|---|empty", str(line["detail"]))
        assert "sequence" not in line
    assert len(box.log()) == 4
    standing(box, case.before)


def test_11_impossible_date(box: Box) -> None:
    """A sent_at that is no time of this world is an invalid header that names the field."""
    case = Case(box, "11-impossible-date")
    case.route()
    case.delivered("ok.md")
    for name in ("a-bad.md", "b-bad.md", "c-leap.md", "d-word.md"):
        line = case.dead(name, "invalid-header")
        assert "sent_at" in str(line["detail"])
        assert line["sequence"] == 1, "its correlation_id is readable, so it is numbered"
    assert box.outbox() == []
    standing(box, case.before)


def test_13_odd_yaml(box: Box) -> None:
    """YAML tricks cost one dead letter each: no code runs, nothing crashes, the neighbour arrives."""
    case = Case(box, "13-odd-yaml")
    case.route(prefix=limited())
    case.delivered("ok.md")
    case.delivered("f-base60.md")
    malformed = ["a-tag", "b-py", "c-bool", "d-list", "g-deep", "h-deepblock", "i-ctl", "j-self", "k-multi"]
    for name in malformed:
        line = case.dead(f"{name}.md", "malformed-header")
        assert "\n" not in str(line["detail"])
        assert line["status"] == "5.6.0"
    line = case.dead("e-digits.md", "invalid-header")
    assert "correlation_id" in str(line["detail"])
    assert all(len(str(logged)) < 4096 for logged in box.log())
    assert box.outbox() == []
    standing(box, case.before)


def test_14_alias_bomb(box: Box, tmp_path: Path) -> None:
    """Aliases are refused before they can grow: little memory, little time, short log lines and reasons."""
    case = Case(box, "14-alias-bomb")
    with (tmp_path / "noise").open("w+") as noise:
        started = time.monotonic()
        process = subprocess.Popen(
            box.command("route"),
            stdin=subprocess.DEVNULL,
            stdout=noise,
            stderr=noise,
            env=box.environment(),
            cwd=box.world / "cwd",
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert time.monotonic() - started < 5
        noise.seek(0)
        assert (process.returncode, noise.read()) == (0, "")
    kilobytes = usage.ru_maxrss if sys.platform == "linux" else usage.ru_maxrss // 1024
    assert kilobytes < 300 * 1024
    case.delivered("ok.md")
    case.dead("bomb.md", "malformed-header")
    case.dead("subj.md", "malformed-header")
    assert all(len(line) < 4096 for line in (box.root / "logs/delivery-log.jsonl").read_bytes().splitlines())
    for name in ("bomb.md", "subj.md"):
        assert (box.root / "dead-letter" / f"{name}.reason.yml").stat().st_size < 4096
    standing(box, case.before)


def test_15_reserved_word_keys(box: Box) -> None:
    """Header keys that a tool might trip over (content, handler, on, null, 1) pass through as typed."""
    case = Case(box, "15-reserved-word-keys")
    case.route()
    for name in ("a.md", "b.md", "ok.md"):
        case.delivered(name)
        added_lines(case.sent[name], arrived(box, "lab.builder", case.sent[name]))
    standing(box, case.before)


def test_17_hostile_filenames(box: Box) -> None:
    """File names with newlines, dashes, quotes and stray bytes break no log line, no option parser."""
    case = Case(box, "17-hostile-filenames")
    assert len(case.sent) == 6
    case.route()
    for name in case.sent:
        case.delivered(name)
    assert {line["file"] for line in box.log()} == {shown(name) for name in case.sent}
    assert len(box.unread("lab.builder")) == 6
    assert all(re.fullmatch(r"[0-9TZ.]+-\d{6}-[0-9a-f]{32}\.md", mail.name) for mail in box.unread("lab.builder"))
    assert box.outbox() == []
    standing(box, case.before)


def test_19_name_already_taken(box: Box) -> None:
    """A name that is taken is never overwritten: not in unread/, not in read/, not in dead-letter/."""
    case = Case(box, "19-name-already-taken")
    inbox = box.inbox("lab.builder")
    kept = {
        inbox / "unread" / "report.md": b"older unread report\n",
        inbox / "read" / "report.md": b"older read report\n",
        box.root / "dead-letter" / "report.md": b"older dead report\n",
    }
    case.route()
    names = set(os.listdir(inbox / "unread")) - {"report.md"}
    assert len(names) == 2
    shutil.copytree(inbox / "unread", new := box.world / "scratch" / "new")
    (new / "report.md").unlink()
    for name, sequence in (("report.md", 1), ("Report.md", 1)):
        mail = arrived(box, "lab.builder", case.sent[name], folder=new)
        assert mail.sequence == sequence
        line = box.line(name)
        assert line["path"] == f"inboxes/lab.builder/unread/{mail.name}"
    shutil.rmtree(new)
    assert all(path.read_bytes() == data for path, data in kept.items())
    standing(box, case.before)

    late = (box.root / "outbox.run2" / "report.md").read_bytes()
    os.rename(box.root / "outbox.run2" / "report.md", box.root / "outbox" / "report.md")
    box.age()
    before = box.census()
    case.route()
    assert all(path.read_bytes() == data for path, data in kept.items())
    line = [line for line in box.log() if line["file"] == "report.md"][-1]
    assert (line["action"], line["reason"]) == ("dead-letter", "unknown-recipient")
    place = box.root / line["path"]
    assert place.parent.name == "dead-letter"
    assert place.name != "report.md"
    assert place.read_bytes() == late
    assert box.reason(place.name)["reason"] == "unknown-recipient"
    assert not (box.root / "dead-letter" / "report.md.reason.yml").exists()
    standing(box, before)


def test_21_not_regular_files(box: Box) -> None:
    """What is no regular file is never opened, followed or entered: its name is set aside, with a reason."""
    case = Case(box, "21-not-regular-files")
    case.route()
    case.delivered("ok.md")
    odd = ["pipe.md", "folder.md", "link.md", "dangling.md", "zero.md", "sock.md"]
    dead = box.root / "dead-letter"
    for name in odd:
        line = box.line(name)
        assert (line["action"], line["reason"]) == ("dead-letter", "not-a-regular-file")
        assert line["path"] == f"dead-letter/{name}"
        assert box.reason(name)["reason"] == "not-a-regular-file"
    assert os.readlink(dead / "link.md") == str(box.root / "outside-secret.md")
    assert os.readlink(dead / "dangling.md") == "/nonexistent/target"
    assert os.readlink(dead / "zero.md") == "/dev/zero"
    assert stat.S_ISFIFO((dead / "pipe.md").lstat().st_mode)
    assert stat.S_ISSOCK((dead / "sock.md").lstat().st_mode)
    assert (dead / "folder.md" / "inner.md").read_bytes() == b"x"
    assert b"SECRET-OUTSIDE" in (box.root / "outside-secret.md").read_bytes()
    for folder, _, files in os.walk(box.root):
        for name in files:
            path = Path(folder, name)
            if stat.S_ISREG(path.lstat().st_mode) and name != "outside-secret.md":
                assert b"SECRET-OUTSIDE" not in path.read_bytes(), path
    assert box.outbox() == []
    standing(box, case.before)


def test_22_work_in_progress_names(box: Box) -> None:
    """A writer's private names stay in the outbox, untouched and unmentioned."""
    case = Case(box, "22-work-in-progress-names")
    private = sorted(set(case.sent) - {"ok.md"})
    assert len(private) == 6
    inodes = {name: (box.root / "outbox" / name).stat().st_ino for name in private}
    case.route()
    case.delivered("ok.md")
    assert box.outbox() == private
    for name in private:
        assert (box.root / "outbox" / name).read_bytes() == case.sent[name]
        assert (box.root / "outbox" / name).stat().st_ino == inodes[name]
    assert set(outcomes(box)) == {"ok.md"}
    standing(box, case.before)


def test_24_path_traversal(box: Box) -> None:
    """An address or a flow that looks like a path leads nowhere; letters compare without case."""
    case = Case(box, "24-path-traversal")
    case.route()
    for name in ("a.md", "c.md", "d.md"):
        case.dead(name, "unknown-recipient")
    case.delivered("b.md")
    case.delivered("e.md")
    assert box.line("b.md")["correlation_id"] == "../../../../tmp/PWNED2"
    assert box.line("e.md")["to"] == "BUILDER@LAB.INTERNAL"
    standing(box, case.before)


def test_25_line_breaks_in_values(box: Box) -> None:
    """A line break inside a value makes no new header line, no new recipient, no second log line."""
    case = Case(box, "25-line-breaks-in-values")
    case.route()
    subjects = {
        "a.md": "hello\nto: checker@lab.internal\nid: 0",
        "b.md": "nel\x85 ls\u2028 ps\u2029 end",
        "c.md": "esc \x1b[2J bell \x07",
        "d.md": ".nan",
        "e.md": "--- \n---\nnot the body",
    }
    for name, subject in subjects.items():
        case.delivered(name)
        mail = arrived(box, "lab.builder", case.sent[name])
        assert mail.fields["subject"] == subject
        assert mail.fields["to"] == "builder@lab.internal"
        assert sorted(mail.header.keys) == sorted([*header(case.sent[name]).keys, "id", "sequence"])
        assert mail.body == b"Please run the nightly build.\n"
        assert box.line(name)["subject"] == subject
    assert box.unread("lab.checker") == []
    assert len(box.log()) == 5
    standing(box, case.before)


def test_26_sender_sets_id(box: Box) -> None:
    """A sender cannot set id or sequence: its own are replaced, and the log says so."""
    case = Case(box, "26-sender-sets-id")
    case.route()
    first, second = (arrived(box, "lab.builder", case.sent[name]) for name in ("a.md", "b.md"))
    assert (first.sequence, second.sequence) == (1, 2)
    assert first.fields["id"] == md5(b"Please run the nightly build.\n")
    assert b"00000000000000000000000000000000" not in first.raw
    assert b"99" not in first.header.head.replace(first.fields["id"].encode(), b"")
    assert "overridden" in box.line("a.md")["detail"]
    assert "detail" not in box.line("b.md")
    standing(box, case.before)


@pytest.fixture
def closed(box: Box) -> Iterator[Case]:
    """Case 27, in which permission bits count (for root too)."""
    if not permissions_count(box):
        pytest.skip("permission bits cannot be made to count for this user")
    case = Case(box, "27-inbox-missing-or-closed")
    yield case
    unread = box.inbox("lab.builder") / "unread"
    if unread.is_dir():
        unread.chmod(0o755)


def test_27_inbox_missing_or_closed(closed: Case) -> None:
    """One bad inbox never stops the others: what waits goes once its inbox is mended."""
    box = closed.box
    done = closed.route(check=75, prefix=obeying_permissions())
    assert done.stderr
    closed.delivered("c.md", "lab.conductor")
    for name, agent in (("a.md", "lab.builder"), ("b.md", "lab.checker")):
        line = box.line(name)
        assert (line["action"], line["reason"], line["agent"]) == ("deferred", "inbox-unavailable", agent)
        assert re.match(r"4\.\d+\.\d+", line["status"])
        assert (box.root / "outbox" / name).read_bytes() == closed.sent[name]
    assert "ermission" in box.line("a.md")["detail"]
    assert box.outbox() == ["a.md", "b.md"]
    assert box.census() == closed.before

    (box.inbox("lab.builder") / "unread").chmod(0o755)
    box.inbox("lab.checker").unlink()
    closed.route(prefix=obeying_permissions())
    assert arrived(box, "lab.builder", closed.sent["a.md"]).sequence == 1
    assert arrived(box, "lab.checker", closed.sent["b.md"]).sequence == 1
    delivered = [line["file"] for line in box.log() if line["action"] == "delivered"]
    assert sorted(delivered) == ["a.md", "b.md", "c.md"]
    assert box.outbox() == []
    standing(box, closed.before)


def test_27_still_closed(closed: Case) -> None:
    """While the inbox stays closed a further run defers again and changes nothing, the log included."""
    box = closed.box
    closed.route(check=75, prefix=obeying_permissions())
    settled = box.snapshot()
    closed.route(check=75, prefix=obeying_permissions())
    assert box.snapshot() == settled


@contextlib.contextmanager
def elsewhere() -> Iterator[Path]:
    """A private directory on another file system than the office's."""
    shm = Path("/dev/shm")
    if not shm.is_dir() or not os.access(shm, os.W_OK):
        pytest.skip("there is no /dev/shm to write in")
    made = Path(tempfile.mkdtemp(prefix="postmaster-faults-28-", dir=shm))
    try:
        yield made
    finally:
        shutil.rmtree(made)


def other_filesystem(box: Box, folder: Path, name: str = "faults") -> tuple[Case, Path]:
    """Set case 28 up with lab.builder's inbox in a new directory `name` of `folder`."""
    if folder.stat().st_dev == box.root.stat().st_dev:
        pytest.skip("the office is on the same file system")
    inbox = folder / name / "lab.builder"
    box.extra_inboxes.append(inbox)
    return Case(box, "28-inbox-other-filesystem", ("/dev/shm/faults-28", str(folder / name))), inbox


def test_28_inbox_other_filesystem(box: Box) -> None:
    """An inbox on another file system gets its mail whole, with nothing left over."""
    with elsewhere() as folder:
        case, inbox = other_filesystem(box, folder)
        done = case.route()
        assert (done.stdout, done.stderr) == ("", "")
        mail = arrived(box, "lab.builder", case.sent["a.md"], folder=inbox / "unread")
        assert mail.body == b"over the border\n"
        (line,) = box.log()
        assert (line["action"], line["path"]) == ("delivered", str(inbox / "unread" / mail.name))
        assert box.outbox() == []
        standing(box, case.before)


def test_28_other_filesystem_full(box: Box) -> None:
    """When the other file system is full the letter waits and nothing partial is seen."""
    with elsewhere() as folder, mounted(folder / "small", "64k") as possible:
        if not possible:
            pytest.skip("mounting a small tmpfs needs root")
        small = folder / "small"
        case, inbox = other_filesystem(box, small, "in")
        (inbox / "tmp").mkdir()
        filler = small / "filler"
        with contextlib.suppress(OSError), filler.open("wb", buffering=0) as stream:
            while True:
                stream.write(b"x" * 4096)
        sent = case.sent["a.md"] + b"much more text\n" * 2000
        box.drop("a.md", sent)
        before = box.census()
        box.route(check=75)
        assert (box.root / "outbox" / "a.md").read_bytes() == sent
        assert mails(inbox / "unread") == []
        (line,) = box.log()
        assert (line["action"], line["reason"], line["status"]) == ("deferred", "disk-full", "4.3.1")
        assert box.census() == before
        filler.unlink()
        case.route()
        assert arrived(box, "lab.builder", sent, folder=inbox / "unread").sequence == 1
        standing(box, before)


def test_30_four_routers(box: Box) -> None:
    """Four routers at once on 400 letters: each delivered exactly once, each flow numbered 1 to 50."""
    case = Case(box, "30-four-routers")
    assert len(case.sent) == 400
    routers = [box.start("route", "--now") for _ in range(4)]
    for router in routers:
        out, err = router.communicate(timeout=60)
        assert (router.returncode, out, err) == (0, "", "")
    lines = box.log()
    assert len(lines) == 400
    assert {line["action"] for line in lines} == {"delivered"}
    assert sorted(line["file"] for line in lines) == sorted(case.sent)
    flows: dict[str, list[tuple[str, int]]] = {}
    for mail in box.unread("lab.builder"):
        flows.setdefault(mail.fields["correlation_id"], []).append((mail.fields["sent_at"], mail.sequence))
    assert sorted(flows) == [f"flow-{number}" for number in range(1, 9)]
    for numbered in flows.values():
        assert [sequence for _, sequence in sorted(numbered)] == list(range(1, 51)), "numbers follow sent_at"
    assert box.outbox() == []
    standing(box, case.before)


def cron(box: Box, *args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run a command as cron would: no home, no terminal, closed standard input, POSIX locale, tight umask."""
    bare = {"PATH": "/usr/bin:/bin", "LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    return subprocess.run(
        ["/bin/sh", "-c", 'umask 077; exec "$@" <&-', "cron", *box.command(*args)],
        env=bare | (env or {}),
        cwd="/",
        capture_output=True,
        check=False,
        timeout=60,
    )


def test_31_cron_environment(box: Box) -> None:
    """Under cron both letters arrive byte for byte, the log is ASCII JSON, and nothing is printed."""
    case = Case(box, "31-cron-environment")
    done = cron(box, "route")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    case.delivered("ok.md")
    case.delivered("unicode.md")
    mail = arrived(box, "lab.builder", case.sent["unicode.md"])
    assert split(mail.raw) is not None
    assert mail.fields["subject"] == "Überprüfung 漢字"
    assert (box.line("unicode.md")["subject"], box.line("unicode.md")["correlation_id"]) == (
        "Überprüfung 漢字",
        "lauf-ä",
    )
    standing(box, case.before)


def test_31_cron_makes_the_registry(box: Box) -> None:
    """Merging under cron works too, and gives byte for byte the registry that a terminal gives."""
    case = Case(box, "31-cron-environment")
    registry = box.root / "agent-registry.yml"
    merged = registry.read_bytes()
    registry.unlink()
    done = cron(box, "registry", "merge")
    assert done.returncode == 0, done.stderr
    assert registry.read_bytes() == merged
    assert cron(box, "route").returncode == 0
    case.delivered("unicode.md")


def test_31_tilde_is_never_a_directory_name(box: Box) -> None:
    """A ~ in an inbox path is the account's home; where there is none, merging fails loudly."""
    entry = (
        "- id: lab.home\n  address: home@lab.internal\n  inbox: {inbox}\n  accepts: [{{type: job.run}}]\n"
        '  accepts_from: ["*"]\n'
    )
    box.declare("home", entry.format(inbox="~/mail/lab.home"))
    box.merge()
    sent = b"---\nto: home@lab.internal\nfrom: a@b.c\ntype: job.run\nsubject: s\ncorrelation_id: c\n---\nhome\n"
    box.drop("a.md", sent)
    done = cron(box, "route", env={"HOME": str(box.world / "home")})
    assert done.returncode == 0, done.stderr
    arrived(box, "lab.home", sent, folder=box.world / "home" / "mail" / "lab.home" / "unread")

    merged = (box.root / "agent-registry.yml").read_bytes()
    box.declare("home", entry.format(inbox="~no-such-account-here/mail"))
    refused = box.merge(check=None)
    assert refused.returncode != 0
    assert "~no-such-account-here" in refused.stderr
    assert (box.root / "agent-registry.yml").read_bytes() == merged
    assert not [name for name in box.snapshot() if "~" in name]
    assert not [name for name in os.listdir(box.world / "cwd") if name.startswith("~")]


def collision(box: Box) -> tuple[Case, subprocess.CompletedProcess[str]]:
    """Set case 32 up and merge, which must fail."""
    case = Case(box, "32-registry-collision", merge=False)
    box.age()
    return case, box.merge(check=None)


def test_32_registry_collision(box: Box) -> None:
    """Two holders of one address: the merge fails, names it and both files, and no mail is touched."""
    case, merged = collision(box)
    assert merged.returncode != 0
    for word in ("builder@lab.internal", "10-lab.yml", "20-other.yml", "30-case.yml"):
        assert word in merged.stderr, "every problem is reported at once"
    assert "checker@lab.internal" in merged.stderr.lower()
    assert not (box.root / "agent-registry.yml").exists()
    done = box.route(check=78)
    assert done.stderr
    assert box.outbox() == ["a.md"]
    assert (box.root / "outbox" / "a.md").read_bytes() == case.sent["a.md"]
    assert box.log() == []
    standing(box, case.before, again=78)


def test_32_previous_registry_serves(box: Box) -> None:
    """After a failed merge the previous registry is as it was, and mail goes by it."""
    good = (DATA / "01-plain-control" / "registry.d" / "lab.yml").read_text().replace("@ROOT@", str(box.root))
    path = box.declare("good", good)
    box.merge()
    path.unlink()
    registry = box.root / "agent-registry.yml"
    kept = registry.read_bytes()
    case, merged = collision(box)
    assert merged.returncode != 0
    assert registry.read_bytes() == kept
    case.route()
    case.delivered("a.md")
    assert not box.inbox("other.builder").exists()
    standing(box, case.before)


def test_40_nothing_to_send(box: Box) -> None:
    """`send` without a body is wrong use and writes nothing; an empty body has to be asked for."""
    case = Case(box, "40-nothing-to-send")
    case.route()
    case.delivered("ok.md", "lab.worker")
    mail = ["--from", "boss@lab.internal", "--to", "worker@lab.internal", "--type", "job.run", "--subject", "x"]
    done = box.run("send", *mail)
    assert done.returncode == 64 and "no body" in done.stderr and done.stdout == "", done
    assert box.outbox() == [] and box.tmp_litter() == []
    standing(box, case.before)
    for more in (["--body", ""], ["--allow-empty"]):
        assert box.run("send", *mail, *more).returncode == 0
    box.route()
    assert [one.body for one in box.unread("lab.worker") if one.body != b"1\n"] == [b"", b""]


def test_every_case_is_tested() -> None:
    """Every folder of inputs has its test here."""
    source = Path(__file__).read_text(encoding="utf-8")
    for folder in DATA.iterdir():
        if folder.is_dir():
            assert f'"{folder.name}"' in source, folder.name
