"""Live instances: names claimed once, roles shared, mail by name, role and id, archives that stay as history."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Box, letter

CREW = """\
plugin: crew
agents:
  - id: lab.worker
    address: worker@crew.internal
    instances: many
    accepts:
      - type: job.*
    accepts_from: [conductor@lab.internal, "class:lab.worker"]
    emits:
      - {type: job.done, to: conductor@lab.internal}
  - id: lab.pair
    address: pair@crew.internal
    instances: {max: 2}
    accepts: [job.run]
    accepts_from: ["*"]
  - id: lab.auditor
    address: auditor@crew.internal
    roles: [Reviewer]
    accepts: [job.*]
    accepts_from: ["*"]
"""
CONDUCTOR = "conductor@lab.internal"


@pytest.fixture
def crew(lab: Box) -> Box:
    """The laboratory, with two classes and somebody who holds a role by declaration."""
    lab.declare("crew", CREW)
    lab.merge()
    return lab


def done(box: Box, *args: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a command and check its exit code."""
    ended = box.run(*args)
    assert ended.returncode == check, (args, ended.returncode, ended.stdout, ended.stderr)
    return ended


def register(box: Box, class_: str = "lab.worker", *more: str) -> dict[str, Any]:
    """Register an instance and return the answer."""
    answer: dict[str, Any] = json.loads(done(box, "register", class_, *more, "--json").stdout)
    return answer


def listed(box: Box, *more: str) -> dict[str, Any]:
    """Return what `directory --json` says."""
    answer: dict[str, Any] = json.loads(done(box, "directory", *more, "--json").stdout)
    return answer


def send(box: Box, to: str, *more: str, from_: str = CONDUCTOR, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Send a job."""
    mail = ("--to", to, "--from", from_, "--type", "job.run", "--subject", "build", "--body", "x")
    return done(box, "send", *mail, *more, check=check)


def healthy(box: Box) -> None:
    """Nothing differs from the log, and nothing lies about in the directory."""
    done(box, "verify")
    left = [name for _, _, names in os.walk(box.root / "directory") for name in names if not name.endswith(".json")]
    assert left == []


# ---------------------------------------------------------------------- claiming


def test_registers_with_a_mailbox_of_its_own(crew: Box) -> None:
    """The address is printed; the mailbox is there; the log has one line."""
    assert done(crew, "register", "lab.worker", "--name", "alice", "--role", "reviewer").stdout == (
        "alice@crew.internal\n"
    )
    assert sorted(os.listdir(crew.inbox("lab.worker+alice"))) == ["read", "tmp", "unread"]
    (line,) = crew.log()
    assert (line["action"], line["agent"], line["path"]) == (
        "registered",
        "lab.worker+alice",
        "inboxes/lab.worker+alice",
    )
    assert line["detail"] == "alice@crew.internal, of class lab.worker, roles reviewer"
    healthy(crew)


def test_a_name_is_made(crew: Box) -> None:
    """Without --name: the class's local part and the lowest number that is free."""
    assert [register(crew)["name"] for _ in range(3)] == ["worker-1", "worker-2", "worker-3"]
    done(crew, "archive", "worker-2")
    assert register(crew, "worker@crew.internal")["name"] == "worker-2"
    assert register(crew, "class:lab.pair")["address"] == "pair-1@crew.internal"


@pytest.mark.parametrize("name", ["alice", "ALICE"])
def test_a_name_is_claimed_once_whatever_the_case(crew: Box, name: str) -> None:
    """The second claim, from whatever class, is told who holds the name and since when."""
    held = register(crew, "lab.worker", "--name", "Alice")
    refused = done(crew, "register", "lab.pair", "--name", name, check=65)
    assert held["since"] in refused.stderr and "Alice@crew.internal (lab.worker+Alice)" in refused.stderr
    answer = json.loads(done(crew, "register", "lab.pair", "--name", name, "--json", check=65).stdout)
    assert (answer["registered"], answer["held_by"], answer["since"]) == (False, held["id"], held["since"])
    assert [one["id"] for one in listed(crew)["live"]] == ["lab.worker+Alice"]
    assert not crew.inbox(f"lab.pair+{name}").exists()


@pytest.mark.parametrize("name", ["builder", "MASON", "lab.echo", "worker", "Conductor"])
def test_names_of_the_registry_are_taken(crew: Box, name: str) -> None:
    """Addresses, aliases and ids of the registry, at whatever domain, are nobody's to claim."""
    refused = done(crew, "register", "lab.worker", "--name", name, check=65)
    assert "is taken" in refused.stderr and "in the registry" in refused.stderr
    assert listed(crew)["live"] == []


@pytest.mark.parametrize("name", ["", "a b", "../x", "a/b", ".a", "a..b", "x" * 65, "postmaster", "a+b", "é", "a\nb"])
def test_what_cannot_be_a_name(crew: Box, name: str) -> None:
    """A name that could not be an address, or would lead elsewhere, is refused and leaves nothing."""
    before = sorted(os.listdir(crew.root / "inboxes"))
    done(crew, "register", "lab.worker", "--name", name, check=65)
    assert sorted(os.listdir(crew.root / "inboxes")) == before
    assert crew.log() == []


def test_only_classes_have_instances(crew: Box) -> None:
    """An entry without `instances`, and nobody at all, are told apart."""
    assert "instances: many" in done(crew, "register", "lab.builder", check=65).stderr
    assert "did you mean lab.worker?" in done(crew, "register", "lab.workr", check=65).stderr
    assert "no role" in done(crew, "register", "lab.worker", "--role", "a b", check=65).stderr


def test_max(crew: Box) -> None:
    """As many as `max` says are alive; one that is archived makes room."""
    register(crew, "lab.pair", "--name", "p")
    register(crew, "lab.pair", "--name", "q")
    assert "2 of at most 2 are alive (p, q)" in done(crew, "register", "lab.pair", check=65).stderr
    done(crew, "archive", "p")
    register(crew, "lab.pair")


def test_fifty_claim_twenty_five_names(crew: Box) -> None:
    """Two at once for each name: exactly one wins, the other is told, the log has one line for each winner."""
    commands = [("register", "lab.worker", "--name", f"n{number}") for number in range(25) for _ in range(2)]
    running = [crew.start(*command) for command in commands]
    ended = [(one.communicate(timeout=120), one.returncode) for one in running]
    assert sorted(code for _, code in ended) == [0] * 25 + [65] * 25, ended
    assert all("is taken" in err for (_, err), code in ended if code)
    names = sorted(f"n{number}" for number in range(25))
    assert sorted(one["name"] for one in listed(crew)["live"]) == names
    assert sorted(line["agent"] for line in crew.log()) == [f"lab.worker+{name}" for name in names]
    healthy(crew)


def test_max_and_made_names_under_concurrency(crew: Box) -> None:
    """Six at once for a class of two: two win, with two names."""
    running = [crew.start("register", "lab.pair") for _ in range(6)]
    ended = [(one.communicate(timeout=60), one.returncode) for one in running]
    assert sorted(code for _, code in ended) == [0, 0, 65, 65, 65, 65], ended
    assert [one["name"] for one in listed(crew)["live"]] == ["pair-1", "pair-2"]


# ---------------------------------------------------------------------- addresses


@pytest.mark.parametrize("to", ["alice@crew.internal", "ALICE@Crew.Internal", "alice", "agent:lab.worker+alice"])
def test_mail_by_address_name_and_id(crew: Box, to: str) -> None:
    """All of them reach the one instance, which accepts what its class accepts."""
    register(crew, "lab.worker", "--name", "alice")
    register(crew, "lab.worker", "--name", "bob")
    send(crew, to, "--now")
    assert len(crew.unread("lab.worker+alice")) == 1
    assert crew.unread("lab.worker+bob") == crew.unread("lab.worker") == []
    healthy(crew)


def test_a_class_is_addressed_as_before(crew: Box) -> None:
    """The class has its own mailbox, with instances and without."""
    send(crew, "worker@crew.internal", "--now")
    register(crew)
    send(crew, "agent:lab.worker", "--now")
    assert len(crew.unread("lab.worker")) == 2


def test_what_the_class_does_not_accept(crew: Box) -> None:
    """`accepts` and `accepts_from` are the class's."""
    register(crew, "lab.worker", "--name", "alice")
    refused = send(crew, "alice", from_="builder@lab.internal", check=65)
    assert "sender-not-accepted" in refused.stderr and "lab.worker+alice" in refused.stderr


def test_class_in_accepts_from(crew: Box) -> None:
    """`class:ID` admits every live instance of the class, and the class; none that is archived."""
    register(crew, "lab.worker", "--name", "alice")
    register(crew, "lab.worker", "--name", "bob")
    send(crew, "bob", from_="alice@crew.internal")
    send(crew, "bob", from_="worker@crew.internal")
    done(crew, "archive", "alice")
    assert "sender-not-accepted" in send(crew, "bob", from_="alice@crew.internal", check=65).stderr


def test_a_role_reaches_every_live_holder_but_the_sender(crew: Box) -> None:
    """One copy each, of the registry too, with one id and one number; the sender gets none."""
    for name in ("alice", "bob", "carol"):
        register(crew, "lab.worker", "--name", name, "--role", "reviewer")
    register(crew, "lab.worker", "--name", "dave", "--role", "tester")
    send(crew, "role:REVIEWER", "--now", from_="alice@crew.internal")
    holders = ["lab.auditor", "lab.worker+bob", "lab.worker+carol"]
    mails = [crew.unread(one) for one in holders]
    assert [len(found) for found in mails] == [1, 1, 1]
    assert len({(found[0].fields["id"], found[0].sequence) for found in mails}) == 1
    assert crew.unread("lab.worker+alice") == crew.unread("lab.worker+dave") == []
    healthy(crew)


def test_no_live_holder_of_a_role(crew: Box) -> None:
    """`send` fails at once and says what is near; a raw letter is a dead letter."""
    register(crew, "lab.worker", "--name", "alice", "--role", "tester")
    refused = send(crew, "role:testr", check=65)
    assert "no live holder of role:testr; did you mean role:tester, held by alice@crew.internal?" in refused.stderr
    assert crew.outbox() == []
    done(crew, "archive", "alice")
    crew.drop("raw.md", letter(to="role:tester"))
    crew.route()
    line = crew.line("raw.md")
    assert (line["action"], line["reason"], line["status"]) == ("dead-letter", "unknown-recipient", "5.1.1")
    assert line["detail"] == "no live holder of role:tester"
    assert crew.dead() == ["raw.md"]


def test_a_name_that_nobody_has(crew: Box) -> None:
    """A near name of a live instance is suggested; raw mail is a dead letter."""
    register(crew, "lab.worker", "--name", "alice")
    assert "did you mean alice@crew.internal?" in send(crew, "alise@crew.internal", check=65).stderr
    bare = send(crew, "alise", check=65).stderr
    assert "nobody is alive under the name alise; did you mean alice@crew.internal?" in bare
    assert "`postmaster register` a live instance" in bare, "the remedy knows that the living register"
    assert "unknown-recipient" in send(crew, "alice@lab.internal", check=65).stderr
    assert "unknown-recipient" in send(crew, "agent:lab.worker+alice+2", check=65).stderr
    crew.drop("raw.md", letter(to="alise"))
    crew.route()
    assert crew.line("raw.md")["reason"] == "unknown-recipient"


def test_an_instance_reads_acknowledges_and_answers(crew: Box) -> None:
    """`inbox`, `read`, `ack` and `reply` take its name, its address and its id; `emits` is the class's."""
    register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now")
    (mail,) = crew.unread("lab.worker+alice")
    crew.declare(
        "lab", (crew.root / "registry.d/lab.yml").read_text().replace("[builder@", "['class:lab.worker', builder@", 1)
    )
    crew.merge()
    assert json.loads(done(crew, "inbox", "alice", "--json").stdout)["unread"] == 1
    assert done(crew, "read", "alice@crew.internal", mail.name, "--body").stdout == "x"
    done(crew, "reply", "agent:lab.worker+alice", mail.name, "--body", "built", "--now", "--ack")
    (answer,) = crew.unread("lab.conductor")
    assert (answer.fields["from"], answer.fields["type"]) == ("alice@crew.internal", "job.done")
    assert len(crew.read("lab.worker+alice")) == 1
    done(crew, "unread", "alice", mail.name)
    done(crew, "ack", "lab.worker+alice", mail.name)
    assert listed(crew)["live"][0]["last_read"] == crew.log()[-1]["time"]
    healthy(crew)


# ---------------------------------------------------------------------- archiving


def test_a_replacement_has_another_id_and_another_mailbox(crew: Box) -> None:
    """History is never mixed: what the first was sent stays in its mailbox, and the second begins anew."""
    first = register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now")
    assert "with 1 unread" in done(crew, "archive", "alice").stdout
    assert "unknown-recipient" in send(crew, "alice", check=65).stderr
    ids = [first["id"]]
    for _ in range(2):
        ids.append(register(crew, "lab.worker", "--name", "Alice")["id"])
        done(crew, "archive", "ALICE@crew.internal")
    assert ids == ["lab.worker+alice", "lab.worker+Alice+2", "lab.worker+Alice+3"]
    last = register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now", "--subject", "again")
    assert [len(crew.unread(one)) for one in (*ids, last["id"])] == [1, 0, 0, 1]
    assert [line["action"] for line in crew.log() if "id" not in line] == ["registered", "archived"] * 3 + [
        "registered"
    ]
    healthy(crew)


def test_an_archived_mailbox_is_history(crew: Box) -> None:
    """By its id it can be listed and read; nothing is acknowledged, taken back or answered there."""
    register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now")
    (mail,) = crew.unread("lab.worker+alice")
    done(crew, "archive", "agent:lab.worker+alice")
    assert json.loads(done(crew, "inbox", "lab.worker+alice", "--json").stdout)["unread"] == 1
    assert done(crew, "read", "agent:lab.worker+alice", mail.name, "--body").stdout == "x"
    for command in (("ack",), ("unread",), ("reply", "--type", "job.done", "--body", "y")):
        refused = done(crew, command[0], "lab.worker+alice", mail.name, *command[1:], check=65)
        assert "was archived at" in refused.stderr
    assert len(crew.unread("lab.worker+alice")) == 1
    assert "lab.worker+alice was archived at" in done(crew, "inbox", "alice", check=65).stderr
    done(crew, "verify")


def test_archive_of_nobody(crew: Box) -> None:
    """Nobody alive, an agent of the registry, and one that is archived already are refused, with what is near."""
    register(crew, "lab.worker", "--name", "alice")
    assert "did you mean alice@crew.internal?" in done(crew, "archive", "alise", check=65).stderr
    assert "not a live instance" in done(crew, "archive", "lab.worker", check=65).stderr
    done(crew, "archive", "alice")
    assert "lab.worker+alice was archived at" in done(crew, "archive", "alice", check=65).stderr
    assert [line["action"] for line in crew.log()] == ["registered", "archived"]


def test_the_directory_of_nobody_costs_nothing(crew: Box) -> None:
    """live/ goes with the last live instance."""
    register(crew, "lab.worker", "--name", "alice")
    register(crew, "lab.worker", "--name", "bob")
    done(crew, "archive", "alice")
    assert os.listdir(crew.root / "directory/live") == ["bob.json"]
    done(crew, "archive", "bob")
    assert os.listdir(crew.root / "directory") == ["archive"]


# ---------------------------------------------------------------------- listing


def test_directory_lists_the_living(crew: Box) -> None:
    """Who, roles, unread, the oldest of it, since when; --all shows the archived too."""
    assert "nobody is alive" in done(crew, "directory").stdout
    alice = register(
        crew, "lab.worker", "--name", "alice", "--role", "reviewer", "--role", "Reviewer", "--role", "tester"
    )
    register(crew, "lab.pair", "--name", "bob")
    send(crew, "alice", "--now")
    done(crew, "archive", "bob")
    (one,) = listed(crew)["live"]
    assert one.pop("oldest_unread") >= one["since"]
    assert one == {key: value for key, value in alice.items() if key not in ("version", "office", "registered")} | {
        "roles": ["Reviewer", "tester"],
        "unread": 1,
        "last_read": None,
    }
    every = listed(crew, "--all")
    assert [(each["id"], each["archived"] > each["since"]) for each in every["archived"]] == [("lab.pair+bob", True)]
    shown = done(crew, "directory", "--all").stdout
    assert "alice@crew.internal" in shown and ", archived " in shown


def test_the_oldest_is_what_waits_longest(crew: Box) -> None:
    """By its delivery, in `directory` and `status`: what a sender calls old hides nothing that waits."""
    register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now")
    (first,) = os.listdir(crew.inbox("lab.worker+alice") / "unread")
    os.utime(crew.inbox("lab.worker+alice") / "unread" / first, (1_700_000_000, 1_700_000_000))
    send(crew, "alice", "--now", "--sent-at", "1999-01-01T00:00:00Z")
    assert listed(crew)["live"][0]["oldest_unread"].startswith("2023-11-14T22:13:20")
    assert json.loads(done(crew, "status", "--json").stdout)["oldest_unread"]["file"].endswith(first)


def test_a_mailbox_that_is_no_directory(crew: Box) -> None:
    """It is told of, the others are listed, and its instance can be archived: its mail is returned when it is back."""
    for name in ("alice", "bob"):
        register(crew, "lab.worker", "--name", name)
        send(crew, name, "--now")
    inbox = crew.inbox("lab.worker+alice")
    inbox.rename(crew.world / "away")
    inbox.write_text("in the way")
    ended = done(crew, "directory", "--json", check=74)
    answer = json.loads(ended.stdout)
    assert [one["unread"] for one in answer["live"]] == [None, 1]
    assert [problem.split(":")[0] for problem in answer["problems"]] == ["inboxes/lab.worker+alice"]
    assert "with ? unread, 0 of them returned" in done(crew, "archive", "alice", check=75).stdout
    inbox.unlink()
    (crew.world / "away").rename(inbox)
    crew.route()
    assert len(crew.unread("lab.conductor")) == 1
    healthy(crew)


def test_status_and_log_know_instances(crew: Box) -> None:
    """`status` counts their mail under their ids; `log --agent` takes a live name."""
    register(crew, "lab.worker", "--name", "alice")
    send(crew, "alice", "--now")
    answer = json.loads(done(crew, "status", "--json").stdout)
    assert (answer["registry"]["instances"], answer["registry"]["agents"]) == (1, 7)
    (mine,) = [one for one in answer["agents"] if one["agent"] == "lab.worker+alice"]
    assert mine["unread"] == 1
    assert "1 live instances" in done(crew, "status").stdout
    shown = done(crew, "log", "--agent", "alice").stdout
    assert "registered" in shown and "delivered" in shown and "of class lab.worker)" in shown


# ---------------------------------------------------------------------- damage, and what changes around


def test_a_damaged_claim_stops_nobody(crew: Box) -> None:
    """It is told of; other instances get their mail; its name is not given away over it."""
    register(crew, "lab.worker", "--name", "alice")
    register(crew, "lab.worker", "--name", "bob", "--role", "tester")
    (crew.root / "directory/live/alice.json").write_text("{")
    send(crew, "role:tester", "--now")
    assert len(crew.unread("lab.worker+bob")) == 1
    told = done(crew, "directory", check=74)
    assert "directory/live/alice.json" in told.stderr and "bob@" in told.stdout
    assert "in the way" in done(crew, "register", "lab.worker", "--name", "alice", check=73).stderr


def test_a_class_that_left_the_registry(crew: Box) -> None:
    """Its instances are there, and accept nothing; no new ones are made."""
    register(crew, "lab.pair", "--name", "alice")
    crew.declare("crew", CREW.replace("lab.pair", "lab.couple"))
    crew.merge()
    assert "type-not-accepted" in send(crew, "alice", check=65).stderr
    assert "no agent has the id" in done(crew, "register", "lab.pair", check=65).stderr
    done(crew, "archive", "alice")


def test_a_role_that_only_live_instances_hold(lab: Box) -> None:
    """`registry check` notes it, and calls it no fault: who will hold it, no declaration can say."""
    lab.declare(
        "crew", CREW.replace("to: conductor@lab.internal", "to: 'role:tester'").replace("['*']", "['role:tester']")
    )
    answer = json.loads(done(lab, "registry", "check", "--json").stdout)
    levels = {one["level"] for one in answer["findings"] if "role:tester" in one["message"]}
    assert levels == {"note"}, answer


def test_an_agent_with_a_living_name(crew: Box) -> None:
    """The registry wins, and the merge says so; the instance is still found by its id, and nobody else claims it."""
    register(crew, "lab.pair", "--name", "alice")
    entry = (
        "plugin: new\nagents: [{id: new.a, address: alice@crew.internal, accepts: [job.run], accepts_from: ['*']}]\n"
    )
    crew.declare("new", entry)
    assert "new.a <alice@crew.internal> has the name of lab.pair+alice" in crew.merge().stderr
    send(crew, "alice@crew.internal", "--now")
    send(crew, "agent:lab.pair+alice", "--now", "--subject", "again")
    assert [len(crew.unread(one)) for one in ("new.a", "lab.pair+alice")] == [1, 1]


def test_instances_in_a_declaration(lab: Box) -> None:
    """What is neither `many` nor `{max: N}` is a problem with its line; so is an inbox in a live instance's place."""
    for wrong in ("few", "{max: 0}", "{max: x}", "{}", "{mx: 2}", "[many]"):
        lab.declare("crew", CREW.replace("instances: many", f"instances: {wrong}"))
        assert "crew.yml:5:" in lab.merge(check=None).stderr, wrong
    lab.declare("crew", CREW.replace("instances: many", "inbox: inboxes/lab.worker+x"))
    assert "crew.yml:5:" in lab.merge(check=None).stderr


def test_claims_are_files(crew: Box) -> None:
    """The form that docs/directory.md gives."""
    answer = register(crew, "lab.worker", "--name", "Alice", "--role", "tester")
    path: Path = crew.root / "directory/live/alice.json"
    assert json.loads(path.read_text()) == {
        "version": 1,
        "id": "lab.worker+Alice",
        "name": "Alice",
        "address": "Alice@crew.internal",
        "class": "lab.worker",
        "roles": ["tester"],
        "since": answer["since"],
    }
