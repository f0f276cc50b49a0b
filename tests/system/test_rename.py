"""`postmaster rename`: an agent has another address; its mailbox and transcript go with it, and the old one stays."""

import itertools
import json
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support import Box, letter
from test_carry import carry, git, got, hub, mail, office, refs, to_hub

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")

OLD, NEW = "builder@lab.internal", "maker@lab.internal"
INBOX, ENTITY = "refs/postmaster/inbox/", "refs/postmaster/entity/"


def rename(box: Box, old: str, new: str, check: int = 0) -> str:
    done = box.run("rename", old, new)
    assert done.returncode == check and "Traceback" not in done.stderr, (done.stdout, done.stderr)
    return done.stdout + done.stderr


def append(box: Box, agent: str, text: str) -> None:
    path = box.world / "entry"
    path.write_text(text)
    done = box.run("transcript", "append", agent, str(path))
    assert done.returncode == 0, done.stderr


def entries(box: Box, agent: str) -> list[str]:
    listed = box.run("transcript", "log", agent, "--json")
    assert listed.returncode == 0, listed.stderr
    return [row["begins"] for row in json.loads(listed.stdout)["entries"]]


def agent(box: Box, agent_id: str) -> dict[str, object]:
    shown = box.run("registry", "show", agent_id, "--json")
    found: dict[str, object] = json.loads(shown.stdout)["agent"]
    return found


def test_mail_to_the_old_address_still_arrives_and_its_own_is_still_taken(lab: Box) -> None:
    """Under either address it is written to, and writes to those who accept it under the old one."""
    lab.drop("1.md", letter(to=OLD, body="before\n"))
    lab.route()
    assert "is maker@lab.internal now" in rename(lab, "lab.builder", "maker")
    for number, to in enumerate((OLD, NEW, OLD.upper()), 2):
        lab.drop(f"{number}.md", letter(to=to, body=f"{number}\n"))
    lab.route()
    assert [one.body for one in lab.unread("lab.builder")] == [b"before\n", b"2\n", b"3\n", b"4\n"]
    assert lab.dead() == []
    line = next(row for row in lab.log() if row["action"] == "renamed")
    assert line["agent"] == "lab.builder" and line["detail"] == f"{OLD} is {NEW} now"
    assert lab.run("verify").returncode == 0
    assert "nothing" not in rename(lab, OLD, NEW)  # again: nothing is left to be done
    assert len([row for row in lab.log() if row["action"] == "renamed"]) == 1


def test_who_admits_the_old_address_admits_the_new_one(box: Box) -> None:
    box.declare(
        "desk",
        """
- {id: desk.a, address: a@desk.internal, accepts: []}
- id: desk.b
  address: b@desk.internal
  accepts: [{type: note, accepts_from: [a@desk.internal]}]
""",
    )
    box.merge()
    rename(box, "a@desk.internal", "alpha@desk.internal")
    for number, sender in enumerate(("alpha@desk.internal", "a@desk.internal", "c@desk.internal")):
        box.drop(f"{number}.md", letter(to="b@desk.internal", from_=sender, type="note", body=f"{number}\n"))
    box.route()
    assert [one.body for one in box.unread("desk.b")] == [b"0\n", b"1\n"] and len(box.dead()) == 1
    assert box.run("registry", "check", "--strict").returncode in (0, 1)


def test_it_outlives_every_merge_and_may_go_on(lab: Box) -> None:
    """The declaration still has the old address; the registry has the newest, and all are valid. And back again."""
    rename(lab, "lab.builder", NEW)
    rename(lab, NEW, "smith@lab.internal")
    before = lab.root.joinpath("agent-registry.yml").read_bytes()
    assert "unchanged" in lab.run("registry", "merge").stdout
    found = agent(lab, "lab.builder")
    assert found["address"] == "smith@lab.internal" and {OLD, NEW} <= set(found["aliases"])  # type: ignore[call-overload]
    assert lab.root.joinpath("agent-registry.yml").read_bytes() == before
    rename(lab, "lab.builder", OLD)
    assert agent(lab, "lab.builder")["address"] == OLD


def test_the_transcript_moves_with_it(lab: Box) -> None:
    append(lab, OLD, "one\n")
    rename(lab, OLD, NEW)
    append(lab, OLD, "two\n")
    assert entries(lab, NEW) == entries(lab, "lab.builder") == ["one", "two"]
    there = [ref for ref in refs(lab.root / "carrier" / "mail.git") if ref.startswith(ENTITY)]
    assert there == [ENTITY + NEW]


def test_what_is_refused(lab: Box) -> None:
    """Nobody's, an address that somebody has, no address, another office's; and nothing is changed."""
    before = lab.root.joinpath("agent-registry.yml").read_bytes()
    append(lab, "lab.echo", "mine\n")
    for old, new, why in (
        ("lab.nobody", NEW, "no agent"),
        ("lab.builder", "echo@lab.internal", "is taken"),
        ("lab.builder", "ECHO", "is taken"),
        ("lab.builder", "two words", "no address"),
        ("lab.builder", "postmaster@lab.internal", "the office itself"),
        ("lab.builder", "a@far.internal", "another office"),
        ("lab.builder", OLD, "already"),
    ):
        with lab.root.joinpath("post-office.yml").open("a") as stream:
            if why == "another office":
                stream.write("remotes: {far: {url: /srv/far.git, domains: [far.internal]}}\n")
        said = rename(lab, old, new, check=65)
        assert why in said, said
    assert not lab.root.joinpath("renames.yml").exists()
    assert lab.root.joinpath("agent-registry.yml").read_bytes() == before


def test_an_address_with_a_transcript_of_its_own_is_not_taken(lab: Box) -> None:
    append(lab, OLD, "one\n")
    repository = lab.root / "carrier" / "mail.git"
    git(repository, "update-ref", ENTITY + NEW, refs(repository)[ENTITY + OLD])
    assert "has a transcript" in rename(lab, OLD, NEW, check=65)


def test_a_file_of_renames_that_is_damaged_is_told_of_with_its_line(lab: Box) -> None:
    rename(lab, OLD, NEW)
    path = lab.root / "renames.yml"
    good = path.read_text()
    for bad in ("- {agent: lab.builder}\n", "- x\n", "a: b\n", "- {", good.replace("now", "new")):
        path.write_text(bad)
        done = lab.run("registry", "merge")
        assert done.returncode == 78 and "renames.yml:" in done.stderr, (bad, done.stderr)
        assert "renames.yml" in rename(lab, OLD, "other", check=78)
    path.write_text(good)
    assert lab.run("registry", "merge").returncode == 0


def test_a_class_with_an_instance_for_each_flow(box: Box) -> None:
    """Who admits the class under its old name admits its instances under the new one; their transcripts stay theirs."""
    box.declare(
        "desk",
        """
- id: desk.co
  address: co@desk.internal
  instances: per-flow
  run: [cat]
  accepts: [{type: note, accepts_from: ["*"]}]
- id: desk.only
  address: only@desk.internal
  accepts: [{type: note, accepts_from: [co@desk.internal]}]
""",
    )
    box.merge()
    box.drop("1.md", letter(to="co@desk.internal", from_="only@desk.internal", type="note"))
    box.route()
    key = box.log()[-1]["agent"].partition("+")[2]
    append(box, f"desk.co+{key}", "mine\n")
    rename(box, "desk.co", "boss")
    for number, sender in enumerate((f"boss+{key}", f"co+{key}", "boss", "co")):
        body = f"{number}\n"
        box.drop(
            f"{number}.md", letter(to="only@desk.internal", from_=f"{sender}@desk.internal", type="note", body=body)
        )
    box.route()
    assert len(box.unread("desk.only")) == 4 and box.dead() == []
    assert entries(box, f"desk.co+{key}") == ["mine"]
    append(box, f"desk.co+{key}", "still\n")
    assert entries(box, f"desk.co+{key}") == ["mine", "still"]


def test_killed_at_any_time_it_is_completed_by_the_next(lab: Box) -> None:
    """The transcript is never lost from sight, and in the end there is one line and one address."""
    chance = random.Random(3)
    append(lab, OLD, "one\n")
    names = [OLD]
    for number in range(8):
        names.append(f"maker{number}@lab.internal")
        with subprocess.Popen(
            lab.command("rename", "lab.builder", names[-1]), stdout=-3, stderr=-3, start_new_session=True
        ) as running:
            time.sleep(chance.uniform(0.1, 0.5))
            running.send_signal(signal.SIGKILL)
        time.sleep(0.1)  # a git that it has started may end its work
        assert entries(lab, "lab.builder") == ["one"]
        rename(lab, "lab.builder", names[-1])
        assert entries(lab, names[-1]) == ["one"] and agent(lab, "lab.builder")["address"] == names[-1]
        lines = [row["detail"] for row in lab.log() if row["action"] == "renamed"]
        assert lines == [f"{a} is {b} now" for a, b in itertools.pairwise(names)]
    lab.drop("1.md", letter(to=OLD, body="still\n"))
    lab.route()
    assert len(lab.unread("lab.builder")) == 1


def test_between_offices_mail_to_either_address_arrives_once(tmp_path: Path) -> None:
    """Its mailbox has the history under both names; nothing of it comes again, and no office finds that odd."""
    there = hub(tmp_path)
    a, b = (office(tmp_path, name, 1, to_hub(there, name)) for name in ("a", "b"))

    def exchange() -> None:
        for _ in range(2):
            for box in (a, b):
                box.route()
                carry(box)
                box.route()

    a.drop("1.md", mail("a0@b.internal", "a0@a.internal", body=b"one"))
    exchange()
    assert got(b, "b.a0") == [b"one"]
    assert b.run("ack", "b.a0", b.unread("b.a0")[0].name).returncode == 0
    rename(b, "b.a0", "zero")
    tips = refs(b.root / "carrier" / "mail.git")
    assert tips[INBOX + "zero@b.internal"] == tips[INBOX + "a0@b.internal"]
    for number, to in enumerate(("a0@b.internal", "zero@b.internal"), 2):
        a.drop(f"{number}.md", mail(to, "a0@a.internal", body=to.encode()))
    exchange()
    exchange()
    assert sorted(got(b, "b.a0")) == [b"a0@b.internal", b"one", b"zero@b.internal"]
    assert [row["detail"][:9] for row in a.log() if row["action"] == "receipt"] == ["read at b"]
    assert INBOX + "zero@b.internal" in refs(there)
    for box in (a, b):
        assert box.dead() == [] and box.run("verify").returncode == 0
