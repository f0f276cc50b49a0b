"""The instances that take turns: what they are, their origin, their state."""

import os
import threading
from pathlib import Path

import pytest

from postmaster import maildir, per_flow
from postmaster.directory import open_view
from postmaster.errors import BadData
from postmaster.office import Office
from postmaster.registry import merge
from postmaster.turns import instances
from postmaster.turns.instances import Instance, Origin
from postmaster.turns.rules import Rules, rules_of

ENTRIES = """\
- {id: one, address: one@x, run: [/bin/cat, -u], accepts: [t], accepts_from: ['*']}
- {id: flow, address: flow@x, run: [/bin/cat], instances: per-flow, accepts: [t], accepts_from: ['*']}
- {id: mute, address: mute@x, accepts: [t], accepts_from: ['*']}
"""


@pytest.fixture
def office(tmp_path: Path) -> Office:
    office = Office(str(tmp_path))
    for path in (office.outbox, office.declarations, office.inboxes):
        os.makedirs(path)
    Path(office.declarations, "a.yml").write_text(ENTRIES)
    assert merge.merge(office).problems == ()
    return office


def put(office: Office, agent_id: str, name: str, flow: str, sender: str = "asker@x") -> None:
    """Put a message into a mailbox as the router would."""
    inbox = office.default_inbox(agent_id)
    maildir.make(inbox)
    head = f"id: {name}\nsequence: 1\nto: flow@x\nfrom: {sender}\ntype: t\nsubject: s\ncorrelation_id: {flow}\n"
    Path(inbox, "unread", f"{name}.md").write_text(f"---\n{head}---\nbody\n")


def find(office: Office, name: str) -> Instance:
    with open_view(office) as view:
        return instances.find(office, view, name)


def test_rules_have_defaults() -> None:
    """Without `run` there are none; with it all else may be left out."""
    assert rules_of({"id": "a"}) is None
    assert rules_of({"run": ["x", ""]}) == Rules(("x", ""), "origin", "discard", False, None, 5, None)
    everything = {
        "run": ["x"],
        "default_thread": "none",
        "final_message": "default_thread",
        "messages_per_turn": "all",
        "turn_timeout": "2 M",
        "max_attempts": "2",
        "concurrency": "3",
    }
    assert rules_of(everything) == Rules(("x",), "none", "default_thread", True, 120.0, 2, 3)


def test_runnable(office: Office) -> None:
    """The single one, and each instance for a flow that is there; no class, nobody without `run`, no archived one."""
    faults: list[str] = []
    key = per_flow.key("f")
    put(office, f"flow+{key}", "m", "f")
    put(office, "flow+nokey", "m", "f")
    with open_view(office) as view:
        found = list(instances.runnable(office, view, faults.append))
    assert [(one.id, one.class_id, one.state) for one in found] == [
        ("one", "one", "active"),
        (f"flow+{key}", "flow", "active"),
    ]
    assert found[1].disk == str(Path(office.root, "turns", f"flow+{key}", "disk"))
    assert found[1].address == f"flow+{key}@x"
    os.makedirs(office.archive)
    Path(office.archived_claim(f"flow+{key}")).write_text("{}")
    with open_view(office) as view:
        assert [one.id for one in instances.runnable(office, view, faults.append)] == ["one"]
        assert faults == []
        assert instances.find(office, view, f"flow+{key}").state == "terminated"


def test_the_origin_is_set_once(office: Office) -> None:
    """Later messages never move it; of many at once, all get the origin of the first."""
    one = find(office, "one")
    assert one.origin is None
    first = Origin("f", "a@x", "1" * 32)
    assert instances.begin_origin(office, one, first).origin == first
    assert find(office, "one").origin == first
    assert instances.begin_origin(office, one, Origin("g", "b@x", "2" * 32)).origin == first
    put(office, f"flow+{per_flow.key('f')}", "m", "f")
    racing = find(office, f"flow+{per_flow.key('f')}")
    got: list[Origin | None] = []
    offers = [Origin("f", f"a{number}@x", str(number)) for number in range(8)]
    threads = [
        threading.Thread(target=lambda offer=offer: got.append(instances.begin_origin(office, racing, offer).origin))
        for offer in offers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert len(got) == 8
    assert len(set(got)) == 1
    assert os.listdir(office.turn_home(racing.id)) == ["origin.json"]


def test_the_origin_of_an_instance_for_a_flow_is_that_flow(office: Office) -> None:
    """Even if the first message that it takes is of another one: who began its flow is in its mailbox."""
    agent_id = f"flow+{per_flow.key('f')}"
    put(office, agent_id, "a", "other", "stranger@x")
    put(office, agent_id, "b", "f", "asker@x")
    put(office, agent_id, "c", "f", "later@x")
    instance = instances.begin_origin(office, find(office, agent_id), Origin("other", "stranger@x", "a"))
    assert instance.origin == Origin("f", "asker@x", "b")


def test_a_damaged_origin_is_told(office: Office) -> None:
    """It is not taken for none: the next first message would become the origin."""
    os.makedirs(office.turn_home("one"))
    Path(office.turn_home("one"), "origin.json").write_text("{")
    with pytest.raises(Exception, match=r"origin\.json: damaged"):
        find(office, "one")


def test_states(office: Office) -> None:
    """A class pauses its instances; who has no `run` takes no turns."""
    agent_id = f"flow+{per_flow.key('f')}"
    put(office, agent_id, "a", "f")
    assert instances.pause(office, find(office, "flow"))
    assert find(office, agent_id).state == "paused"
    assert not instances.resume(office, find(office, agent_id))
    assert instances.resume(office, find(office, "flow"))
    assert find(office, agent_id).state == "active"
    with open_view(office) as view, pytest.raises(BadData, match="no `run`"):
        instances.require_turns(view, instances.find(office, view, "mute"))


def test_the_disk_is_made_on_demand(office: Office) -> None:
    one = find(office, "one")
    assert not os.path.exists(one.disk)
    instances.make_disk(one)
    instances.make_disk(one)
    assert os.path.isdir(one.disk)
