"""Who may write in whose name: `user`, `require_owner` and drop folders."""

import json
import os
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest
from support import HOUR, Box, letter

ANN, BEN = 61001, 61002  # numbers of accounts that nobody needs to have
CREW = f"""\
plugin: crew
agents:
  - id: crew.ann
    address: ann@crew.internal
    aliases: [anna@crew.internal]
    user: "{ANN}"
    accepts: [job.*]
    accepts_from: ["*"]
  - id: crew.ben
    address: ben@crew.internal
    user: "{BEN}"
    accepts: [job.run]
    accepts_from: ["*"]
  - id: crew.open
    address: open@crew.internal
    accepts: [job.*]
    accepts_from: ["*"]
  - id: crew.worker
    address: worker@crew.internal
    user: "{ANN}"
    instances: many
    accepts: [job.*]
    accepts_from: ["*"]
"""
chowns = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file to another account")


@pytest.fixture
def crew(lab: Box) -> Box:
    """The laboratory, which names no accounts, and a crew, which does."""
    lab.declare("crew", CREW)
    lab.merge()
    return lab


def settings(box: Box, text: str) -> None:
    """Write post-office.yml."""
    (box.root / "post-office.yml").write_text(text, encoding="utf-8")


def done(box: Box, *args: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    ended = box.run(*args)
    assert ended.returncode == check, (args, ended.returncode, ended.stdout, ended.stderr)
    return ended


def hand_in(box: Box, name: str, owner: int, data: bytes | None = None, mode: int = 0o644, **fields: Any) -> Path:
    """Put a letter that belongs to an account into the outbox."""
    path = box.root / "outbox" / name
    private = path.with_name(f".{path.name}.writing")
    private.write_bytes(letter(**{"to": "open@crew.internal", **fields}) if data is None else data)
    os.chown(private, owner, -1)
    private.chmod(mode)
    then = private.stat().st_mtime - HOUR
    os.utime(private, (then, then))
    private.rename(path)
    return path


def told(box: Box, name: str) -> tuple[str, str | None]:
    """Return (action, reason) of the last line about a file."""
    line = [line for line in box.log() if line.get("file") == name][-1]
    return line["action"], line.get("reason")


REJECTED = ("rejected", "sender-not-authentic")
DELIVERED = ("delivered", None)


# ---------------------------------------------------------------------- owners


@chowns
@pytest.mark.parametrize("sender", ["ann@crew.internal", "anna@crew.internal", "ANN@Crew.Internal"])
def test_only_the_owner_writes_in_this_name(crew: Box, sender: str) -> None:
    """By address, by alias, whatever the case; root and the router's own account are nobody special."""
    hand_in(crew, "right.md", ANN, from_=sender, body="right")
    for name, owner in (("wrong.md", BEN), ("root.md", 0)):
        hand_in(crew, name, owner, from_=sender, body=name)
    crew.route()
    assert [told(crew, name) for name in ("right.md", "wrong.md", "root.md")] == [DELIVERED, REJECTED, REJECTED]
    line = crew.line("wrong.md")
    assert line["status"] == "5.7.1"
    assert line["detail"] == (f"the letter belongs to uid {BEN}, but {sender} is crew.ann, whose `user` is {ANN}")
    assert "that is its `user`" in crew.reason("wrong.md")["remedy"]
    assert (crew.root / "dead-letter/wrong.md").stat().st_uid == BEN
    assert len(crew.unread("crew.open")) == 1
    done(crew, "verify")


@chowns
def test_an_agent_without_user_is_not_asked(crew: Box) -> None:
    """Who declares no account may be written for by any, and so may a sender whom nobody declared."""
    hand_in(crew, "a.md", BEN, from_="open@crew.internal", to="ann@crew.internal", body="a")
    hand_in(crew, "b.md", BEN, from_="stranger@far.internal", body="b")
    crew.route()
    assert told(crew, "a.md") == told(crew, "b.md") == DELIVERED


@chowns
def test_a_live_instance_has_the_user_of_its_class(crew: Box) -> None:
    """Its letters, and those of the class itself; after a merge the new one."""
    done(crew, "register", "crew.worker", "--name", "wendy")
    hand_in(crew, "right.md", ANN, from_="wendy@crew.internal", body="1")
    hand_in(crew, "wrong.md", BEN, from_="wendy@crew.internal", body="2")
    hand_in(crew, "class.md", BEN, from_="worker@crew.internal", body="3")
    crew.route()
    assert [told(crew, name) for name in ("right.md", "wrong.md", "class.md")] == [DELIVERED, REJECTED, REJECTED]
    head, _, tail = CREW.partition("  - id: crew.worker")
    crew.declare("crew", head + "  - id: crew.worker" + tail.replace(str(ANN), str(BEN)))
    assert "changed crew.worker" in crew.merge().stdout
    hand_in(crew, "now.md", BEN, from_="wendy@crew.internal", body="4")
    crew.route()
    assert told(crew, "now.md") == DELIVERED


@chowns
def test_it_is_asked_before_anything_is_said_of_recipients(crew: Box) -> None:
    """An impostor does not learn who there is; there is one line and one number for the letter, whoever it is to."""
    to = ["nobody@crew.internal", "ben@crew.internal", "role:none"]
    hand_in(crew, "x.md", BEN, from_="ann@crew.internal", type="odd.type", to=to)
    crew.route()
    lines = [line for line in crew.log() if line.get("file") == "x.md"]
    assert [line["to"] for line in lines] == to
    assert {(line["reason"], line["sequence"], line.get("agent")) for line in lines} == {
        ("sender-not-authentic", 1, None)
    }


@chowns
def test_a_file_that_everybody_may_write_to_proves_nothing(crew: Box) -> None:
    """Its owner may not be who wrote it; the group's right to write is the owner's affair."""
    hand_in(crew, "all.md", ANN, from_="ann@crew.internal", body="1", mode=0o666)
    hand_in(crew, "group.md", ANN, from_="ann@crew.internal", body="2", mode=0o664)
    crew.route()
    assert (told(crew, "all.md"), told(crew, "group.md")) == (REJECTED, DELIVERED)
    assert "chmod o-w" in crew.line("all.md")["detail"]


@chowns
def test_a_link_to_a_file_of_somebody_else_is_no_letter(crew: Box) -> None:
    """It waits while it is young; then it is no letter, though its owner and its text are right."""
    draft = crew.world / "scratch" / "draft"
    draft.write_bytes(letter(to="open@crew.internal", from_="ann@crew.internal"))
    os.chown(draft, ANN, -1)
    os.link(draft, crew.root / "outbox" / "young.md")
    crew.route()
    assert crew.log() == []
    crew.age()
    crew.route()
    assert told(crew, "young.md") == ("dead-letter", "not-a-regular-file")
    os.symlink(draft, crew.root / "outbox" / "link.md")
    crew.route()
    assert told(crew, "link.md") == ("dead-letter", "not-a-regular-file")
    assert crew.unread("crew.open") == []


@chowns
def test_require_owner(crew: Box) -> None:
    """Every sender must be an agent with a `user`: the merge says whom that stops."""
    settings(crew, "require_owner: true\n")
    warned = crew.merge().stderr
    assert "`require_owner: true`" in warned and "crew.open" in warned and "crew.ann" not in warned
    hand_in(crew, "right.md", ANN, from_="ann@crew.internal", body="1")
    hand_in(crew, "no-user.md", 0, from_="open@crew.internal", to="ann@crew.internal", body="2")
    hand_in(crew, "nobody.md", 0, from_="stranger@far.internal", body="3")
    crew.route()
    assert [told(crew, f"{name}.md") for name in ("right", "no-user", "nobody")] == [DELIVERED, REJECTED, REJECTED]
    assert "which has no `user`, and this office says `require_owner: true`" in crew.line("no-user.md")["detail"]
    assert "stranger@far.internal is no agent's address" in crew.line("nobody.md")["detail"]


@chowns
def test_an_account_that_does_not_exist(crew: Box) -> None:
    """The merge tells; mail waits, since its sender did nothing wrong; once that is mended it is delivered."""
    crew.declare("crew", CREW.replace(f'"{ANN}"', "no-such-account-here", 1))
    assert "crew.ann: its `user` is no-such-account-here" in crew.merge().stderr
    assert "crew.ann: its `user`" in done(crew, "registry", "check").stderr
    hand_in(crew, "x.md", ANN, from_="ann@crew.internal")
    ended = crew.route(check=75)
    assert "deferred (account-unknown)" in ended.stderr and "no such account here" in ended.stderr
    assert crew.line("x.md")["status"] == "4.3.5" and "sequence" not in crew.line("x.md")
    crew.route(check=75)
    assert len(crew.log()) == 1
    mail = ("--to", "open@crew.internal", "--from", "ann@crew.internal", "--type", "job.run", "--subject", "s")
    assert "account-unknown" in done(crew, "send", *mail, "--body", "x", check=65).stderr
    crew.declare("crew", CREW)
    crew.merge()
    crew.route()
    assert told(crew, "x.md") == DELIVERED


@chowns
def test_an_account_by_its_name(crew: Box) -> None:
    """`user` is a name as `chown` takes it."""
    crew.declare("crew", CREW.replace(f'"{ANN}"', "daemon", 1))
    assert "user" not in crew.merge().stderr
    daemon = int(subprocess.run(["id", "-u", "daemon"], capture_output=True, check=True).stdout)
    hand_in(crew, "x.md", daemon, from_="ann@crew.internal", body="1")
    hand_in(crew, "y.md", 0, from_="ann@crew.internal", body="2")
    crew.route()
    assert (told(crew, "x.md"), told(crew, "y.md")) == (DELIVERED, REJECTED)
    assert "belongs to root (uid 0)" in crew.line("y.md")["detail"]


@pytest.mark.parametrize("user", ["''", "a b", "../x", "-x", "a/b", '"a\\nb"', "[ann]", "x" * 257])
def test_what_cannot_be_a_user(lab: Box, user: str) -> None:
    """A problem with its line."""
    lab.declare("crew", CREW.replace(f'"{ANN}"', user, 1))
    assert "crew.yml:6:" in lab.merge(check=78).stderr


def test_send_is_checked_at_once(crew: Box) -> None:
    """By the account that runs it; nothing is written, and the remedy speaks of no dead letter."""
    mail = ("--to", "open@crew.internal", "--type", "job.run", "--subject", "s", "--body", "x")
    refused = done(crew, "send", "--from", "ann@crew.internal", *mail, check=65)
    assert "sender-not-authentic (5.7.1)" in refused.stderr and "nothing was sent" in refused.stderr
    assert "retry" not in refused.stderr
    answer = json.loads(done(crew, "send", "--from", "ben@crew.internal", *mail, "--json", check=65).stdout)
    assert answer["refused"][0]["reason"] == "sender-not-authentic"
    assert crew.outbox() == []
    crew.declare("crew", CREW.replace(f'"{ANN}"', str(os.geteuid()), 1))
    crew.merge()
    done(crew, "send", "--from", "ann@crew.internal", *mail, "--now")
    assert len(crew.unread("crew.open")) == 1


@chowns
def test_send_under_an_open_umask_is_its_own(crew: Box) -> None:
    """What `send` writes is never open to everybody, so that it passes the check that it has passed."""
    crew.declare("crew", CREW.replace(f'"{ANN}"', str(os.geteuid()), 1))
    crew.merge()
    mail = ("--to", "open@crew.internal", "--from", "ann@crew.internal", "--type", "job.run", "--subject", "s")
    open_umask = ["/bin/sh", "-c", 'umask 0; exec "$@"', "open"]
    ended = crew.run("send", *mail, "--body", "x", "--now", prefix=open_umask)
    assert ended.returncode == 0, ended.stderr


@chowns
def test_a_forged_letter_that_is_retried_stays_forged(crew: Box) -> None:
    """Until somebody who may gives it to the account that it says it is from; it keeps its number."""
    hand_in(crew, "x.md", BEN, from_="ann@crew.internal", to=["open@crew.internal", "ben@crew.internal"])
    crew.route()
    done(crew, "dead-letter", "retry", "--all")
    crew.route()
    assert told(crew, "x.md") == REJECTED and crew.dead() == ["x.md"]
    os.chown(crew.root / "dead-letter/x.md", ANN, -1)
    done(crew, "dead-letter", "retry", "x.md", "--now")
    assert [crew.unread(one)[0].sequence for one in ("crew.open", "crew.ben")] == [1, 1]
    done(crew, "verify")


@chowns
def test_a_copy_that_is_kept_belongs_to_its_sender(crew: Box) -> None:
    """A letter that is refused by one and waits for another can be sent again in its sender's name."""
    (crew.inbox("crew.ben") / "unread").rename(crew.inbox("crew.ben") / "away")
    (crew.inbox("crew.ben") / "unread").write_text("in the way")
    hand_in(crew, "x.md", ANN, from_="ann@crew.internal", to=["ben@crew.internal", "late@crew.internal"])
    crew.route(check=75)
    assert (crew.root / "dead-letter/x.md").stat().st_uid == ANN
    crew.declare(
        "late", "agents: [{id: crew.late, address: late@crew.internal, accepts: [job.run], accepts_from: '*'}]"
    )
    crew.merge(check=None)
    done(crew, "dead-letter", "retry", "x.md", "--now")
    assert len(crew.unread("crew.late")) == 1


@chowns
def test_the_owner_is_that_of_the_bytes_that_were_read(tmp_path: Path) -> None:
    """Whatever is renamed over the name meanwhile: the owner is asked of the file that is open, once."""
    from postmaster import outbox

    owners = {b"ann": ANN, b"ben": BEN}
    for text, owner in owners.items():
        (tmp_path / text.decode()).write_bytes(text)
        os.chown(tmp_path / text.decode(), owner, -1)
    box = tmp_path / "outbox"
    box.mkdir()
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for text, owner in owners.items():
                (box / ".next").write_bytes(text)
                os.chown(box / ".next", owner, -1)
                (box / ".next").rename(box / "x.md")

    swapper = threading.Thread(target=swap)
    swapper.start()
    try:
        seen: set[int] = set()
        reads = 0
        # Which of the two threads runs is the scheduler's affair: until each owner was met, up to the test's own limit.
        while reads < 3000 or len(seen) < len(owners):
            reads += 1
            found = outbox.read(str(box), "x.md", max_bytes=100, head_bytes=100, settle_seconds=0, now_ns=0)
            if isinstance(found, outbox.Letter) and found.raw:
                assert owners[found.raw] == found.owner
                seen.add(found.owner)
    finally:
        stop.set()
        swapper.join()
    assert seen == set(owners.values())


# ---------------------------------------------------------------------- drop folders


@pytest.fixture
def folders(lab: Box) -> Box:
    """The laboratory with drop folders for two of its agents, and a class."""
    lab.declare("crew", CREW.replace(f'    user: "{ANN}"\n', "").replace(f'    user: "{BEN}"\n', ""))
    settings(lab, "drop_folders: true\n")
    lab.merge()
    for agent in ("lab.conductor", "lab.checker"):
        (lab.root / "outbox" / agent).mkdir()
    return lab


def test_from_must_be_the_agent_whose_folder_it_is(folders: Box) -> None:
    """Its letters pass, those of others do not; what lies in the outbox itself is not asked."""
    folders.drop("lab.conductor/right.md", letter(body="1"))
    folders.drop("lab.checker/wrong.md", letter(body="2"))
    folders.drop("lab.checker/nobody.md", letter(body="3", from_="stranger@far.internal", to="echo@lab.internal"))
    folders.drop("above.md", letter(body="4"))
    folders.route()
    assert told(folders, "lab.conductor/right.md") == told(folders, "above.md") == DELIVERED
    assert told(folders, "lab.checker/wrong.md") == told(folders, "lab.checker/nobody.md") == REJECTED
    assert folders.line("lab.checker/wrong.md")["detail"] == (
        "it lay in outbox/lab.checker/, but conductor@lab.internal is lab.conductor"
    )
    assert folders.outbox() == ["lab.checker", "lab.conductor"]
    assert sorted(folders.dead()) == ["nobody.md", "wrong.md"]
    done(folders, "verify")


def test_aliases_and_live_instances_have_folders(folders: Box) -> None:
    """An alias is the agent; an instance's folder is called as its id; one that is archived has no letters."""
    (folders.root / "outbox/lab.builder").mkdir()
    folders.drop("lab.builder/a.md", letter(from_="mason@lab.internal", to="echo@lab.internal", body="1"))
    done(folders, "register", "crew.worker", "--name", "wendy")
    (folders.root / "outbox/crew.worker+wendy").mkdir()
    folders.drop("crew.worker+wendy/b.md", letter(from_="wendy@crew.internal", to="open@crew.internal", body="2"))
    folders.drop("crew.worker+wendy/c.md", letter(from_="worker@crew.internal", to="open@crew.internal", body="3"))
    folders.route()
    assert told(folders, "lab.builder/a.md") == told(folders, "crew.worker+wendy/b.md") == DELIVERED
    assert told(folders, "crew.worker+wendy/c.md") == REJECTED
    done(folders, "archive", "wendy")
    folders.drop("crew.worker+wendy/d.md", letter(from_="wendy@crew.internal", to="open@crew.internal", body="4"))
    folders.route()
    assert told(folders, "crew.worker+wendy/d.md") == REJECTED


def test_one_name_in_two_folders(folders: Box) -> None:
    """They are two letters: delivered, refused, put off, taken back and sent again each for itself."""
    names = ["lab.checker/x.md", "lab.conductor/x.md", "x.md"]
    senders = ["checker@lab.internal", "conductor@lab.internal", "conductor@lab.internal"]
    to = ["builder@lab.internal", "gone@lab.internal"]
    closed = folders.inbox("lab.builder") / "unread"
    closed.rename(closed.with_name("away"))
    closed.write_text("in the way")
    for name, sender in zip(names, senders, strict=True):
        folders.drop(name, letter(from_=sender, to=to, correlation_id=name, body="the same"))
    folders.route(check=75)
    assert [told(folders, name)[1] for name in names] == ["unknown-recipient"] * 3
    assert sorted(folders.dead()) == ["x-2.md", "x-3.md", "x.md"]
    status = json.loads(done(folders, "status", "--json").stdout)
    assert {one["file"] for one in status["deferred"]} == set(names)
    assert "waiting-gone" not in folders.run("verify", "--json").stdout
    (folders.root / "outbox" / names[0]).unlink()
    folders.route(check=75)
    assert told(folders, names[0]) == ("withdrawn", None)
    closed.unlink()
    closed.with_name("away").rename(closed)
    folders.route()
    assert told(folders, names[1]) == told(folders, names[2]) == DELIVERED
    assert [mail.fields["from"] for mail in folders.unread("lab.builder")] == [senders[1]] * 2
    assert folders.outbox() == ["lab.checker", "lab.conductor"]
    done(folders, "verify")


def test_the_same_letter_in_a_folder_and_above_is_a_duplicate(folders: Box) -> None:
    """The file's name is no part of a message."""
    folders.drop("lab.conductor/a.md", letter())
    folders.drop("b.md", letter())
    folders.route()
    assert sorted([told(folders, "lab.conductor/a.md"), told(folders, "b.md")], key=str) == [
        ("dead-letter", "duplicate"),
        DELIVERED,
    ]


def test_what_is_no_mail_in_a_folder(folders: Box) -> None:
    """Private names are left alone; a directory, a link and a pipe are set aside, never opened or followed."""
    inside = folders.root / "outbox/lab.conductor"
    (inside / ".draft.md").write_bytes(letter())
    (inside / "draft.tmp").write_bytes(letter())
    (inside / "deeper").mkdir()
    (inside / "deeper" / "x.md").write_bytes(letter())
    (folders.world / "scratch" / "secret").write_bytes(letter(body="secret"))
    (inside / "link.md").symlink_to(folders.world / "scratch" / "secret")
    os.mkfifo(inside / "pipe.md")
    folders.route()
    assert sorted(os.listdir(inside)) == [".draft.md", "draft.tmp"]
    assert sorted(folders.dead()) == ["deeper", "link.md", "pipe.md"]
    assert {line["reason"] for line in folders.log()} == {"not-a-regular-file"}


def test_a_folder_that_is_a_link_is_not_followed(folders: Box) -> None:
    """It is set aside as any link in the outbox."""
    away = folders.world / "scratch" / "away"
    away.mkdir()
    (away / "x.md").write_bytes(letter())
    (folders.root / "outbox/lab.builder").symlink_to(away)
    folders.route()
    assert told(folders, "lab.builder") == ("dead-letter", "not-a-regular-file")
    assert os.listdir(away) == ["x.md"]


def test_a_directory_that_cannot_be_a_folder(folders: Box) -> None:
    """One whose name is no id is set aside whole, as ever; a folder of nobody has its letters refused."""
    (folders.root / "outbox/not an id").mkdir()
    (folders.root / "outbox/lab.nobody").mkdir()
    (folders.root / "outbox/lab.part").mkdir()
    folders.drop("lab.nobody/x.md", letter())
    folders.drop("lab.part/y.md", letter())
    folders.route()
    assert told(folders, "not an id") == ("dead-letter", "not-a-regular-file")
    assert told(folders, "lab.nobody/x.md") == told(folders, "lab.part/y.md") == REJECTED


@chowns
def test_a_folder_of_another_account_is_none(folders: Box) -> None:
    """Its owner could put a link in its place while it is looked into; `send` does not use it either."""
    made = folders.root / "outbox/lab.builder"
    made.mkdir()
    os.chown(made, ANN, -1)
    mail = ("--from", "mason@lab.internal", "--to", "echo@lab.internal", "--type", "job.done", "--subject", "s")
    done(folders, "send", *mail, "--body", "x")
    assert os.listdir(made) == []
    folders.route()
    assert told(folders, "lab.builder") == ("dead-letter", "not-a-regular-file")
    assert len(folders.unread("lab.echo")) == 1


def test_an_outbox_that_others_may_rename_in_has_no_folders(folders: Box) -> None:
    """A set-up fault, told as such, with the outbox untouched; the sticky bit mends it."""
    folders.drop("lab.conductor/x.md", letter())
    outbox = folders.root / "outbox"
    outbox.chmod(0o777)
    for command in ("route", "status", "verify"):
        ended = folders.run(command)
        assert "chmod +t" in ended.stderr + ended.stdout, command
    assert folders.route(check=78) and folders.log() == []
    outbox.chmod(0o1777)
    folders.route()
    assert told(folders, "lab.conductor/x.md") == DELIVERED


def test_without_the_setting_a_directory_is_set_aside(lab: Box) -> None:
    """As ever."""
    (lab.root / "outbox/lab.conductor").mkdir()
    (lab.root / "outbox/lab.conductor/x.md").write_bytes(letter())
    lab.route()
    assert told(lab, "lab.conductor") == ("dead-letter", "not-a-regular-file")


def test_send_uses_the_folder_of_its_sender(folders: Box) -> None:
    """If there is one; `--now` follows it there."""
    mail = ("--from", "conductor@lab.internal", "--to", "builder@lab.internal", "--type", "job.run", "--subject", "s")
    answer = json.loads(done(folders, "send", *mail, "--body", "1", "--json").stdout)
    assert answer["file"].startswith("lab.conductor/") and answer["path"] == f"outbox/{answer['file']}"
    assert json.loads(done(folders, "inbox", "lab.builder", "--json").stdout)["waiting"] == 1
    answer = json.loads(done(folders, "send", *mail, "--body", "2", "--now", "--json").stdout)
    assert answer["state"] == "delivered"
    (folders.root / "outbox/lab.conductor").rmdir()
    answer = json.loads(done(folders, "send", *mail, "--body", "3", "--json").stdout)
    assert "/" not in answer["file"]


def test_a_confined_agent_has_its_folder_only(folders: Box) -> None:
    """In a mount namespace where the office is read-only but for its folder, `send` works, in its own name only."""
    office, own = folders.root, folders.root / "outbox/lab.conductor"
    confine = (
        f"mount --make-rprivate / && mount --bind {office} {office} && mount --bind {own} {own} "
        f'&& mount -o remount,bind,ro {office} && exec "$@"'
    )
    confined = ["unshare", "--mount", "/bin/sh", "-c", confine, "confined"]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*confined, "true"], capture_output=True, check=False).returncode
    ):
        pytest.skip("no mount namespaces here")
    mail = ("--type", "job.run", "--subject", "s", "--body", "x", "--to", "builder@lab.internal")
    sent = folders.run("send", "--from", "conductor@lab.internal", *mail, prefix=confined)
    assert sent.returncode == 0, sent.stderr
    for sender in ("checker@lab.internal", "builder@lab.internal"):
        refused = folders.run("send", "--from", sender, *mail, "--to", "echo@lab.internal", prefix=confined)
        assert refused.returncode in (65, 73), refused.stderr
    refused = folders.run("send", "--from", "checker@lab.internal", *mail, prefix=confined)
    assert refused.returncode == 73 and "lab.checker: cannot be written to" in refused.stderr
    folders.route()
    assert len(folders.unread("lab.builder")) == 1 and folders.dead() == []


def test_a_dead_letter_goes_back_to_its_folder(folders: Box) -> None:
    """A forged one stays forged, and is not sent from elsewhere; one whose `from` was corrected is sent."""
    folders.drop("lab.checker/x.md", letter())
    folders.route()
    done(folders, "dead-letter", "retry", "x.md", "--now", check=65)
    assert told(folders, "lab.checker/x.md") == REJECTED
    (folders.root / "outbox/lab.checker").rmdir()
    assert "outbox/lab.checker/, which is not there" in done(folders, "dead-letter", "retry", "x.md", check=65).stderr
    (folders.root / "outbox/lab.checker").mkdir()
    dead = folders.root / "dead-letter/x.md"
    dead.write_bytes(dead.read_bytes().replace(b"from: conductor", b"from: checker"))
    done(folders, "dead-letter", "retry", "x.md", "--now")
    assert len(folders.unread("lab.builder")) == 1
    folders.drop("lab.conductor/y.md", letter(to="gone@lab.internal", body="y"))
    folders.route()
    (folders.root / "outbox/lab.conductor").rmdir()
    done(folders, "dead-letter", "retry", "y.md")
    assert folders.outbox() == ["lab.checker", "y.md"]


@pytest.mark.parametrize("line", ["require_owner: maybe", "drop_folders: [x]", "drop_folder: true"])
def test_settings_that_cannot_be(lab: Box, line: str) -> None:
    """Exit code 78 with the line."""
    settings(lab, f"\n{line}\n")
    lab.drop("x.md", letter())
    assert "post-office.yml:2:" in lab.route(check=78).stderr
