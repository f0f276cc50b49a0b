"""What a claim is: its file, the ids that are never given again, the names that are made."""

import json
from dataclasses import replace
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postmaster import address
from postmaster.directory import claims
from postmaster.directory.claims import Claim
from postmaster.parties import Accept, Agent

ALICE = Claim(
    "lab.worker+alice", "alice", "alice@lab.internal", "lab.worker", ("reviewer",), "2026-03-04T10:00:00.000000Z"
)


@pytest.mark.parametrize("claim", [ALICE, replace(ALICE, roles=(), archived="2026-03-05T10:00:00.000000Z")])
def test_a_claim_reads_back(claim: Claim) -> None:
    """What is written is read as the same claim."""
    assert claims.from_json(claim.to_json()) == claim


@pytest.mark.parametrize(
    "change",
    [
        {"version": 2},
        {"id": "lab.worker"},
        {"id": "lab.worker+bob"},
        {"id": "lab.other+alice"},
        {"id": "lab.worker+../x"},
        {"name": 5},
        {"name": "../../etc"},
        {"address": "alice"},
        {"roles": "reviewer"},
        {"roles": [1]},
        {"roles": ["a b"]},
        {"since": None},
        {"archived": 7},
    ],
)
def test_what_is_no_claim(change: dict[str, object]) -> None:
    """A file that we would not have written is none, whatever it holds."""
    assert claims.from_json(json.dumps(json.loads(ALICE.to_json()) | change).encode()) is None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_claim_or_none(raw: bytes) -> None:
    """No file makes the reader fail."""
    assert claims.from_json(raw) is None


@pytest.mark.parametrize("missing", json.loads(ALICE.to_json()))
def test_half_a_claim(missing: str) -> None:
    """Every key is needed, and all of the file."""
    fields = {key: value for key, value in json.loads(ALICE.to_json()).items() if key != missing}
    assert claims.from_json(json.dumps(fields).encode()) is None
    assert claims.from_json(ALICE.to_json()[:-3]) is None


def test_ids_are_never_given_again() -> None:
    """A name that archived instances had makes another id, whatever the case; they are all ids and no names."""
    taken: set[str] = set()
    found = []
    for name in ("alice", "Alice", "alice"):
        found.append(claims.new_id("lab.worker", name, taken))
        taken.add(claims.key(found[-1]))
    assert found == ["lab.worker+alice", "lab.worker+Alice+2", "lab.worker+alice+3"]
    assert all(address.is_id(one) and not address.is_name(one) for one in found)
    assert [claims.name_of(one) for one in found] == ["alice", "Alice", "alice"]
    assert claims.name_of("lab.worker") is None and claims.name_of("lab.worker+../x") is None


@pytest.mark.parametrize(
    ("local", "first"), [("worker", "worker-1"), ("a!b", "a-b-1"), ("{}", "agent-1"), ("x" * 64, "x" * 56 + "-1")]
)
def test_made_names_are_names(local: str, first: str) -> None:
    """Whatever the local part of the class, what is made of it can be claimed."""
    assert address.is_mailbox(f"{local}@lab.internal")
    names = list(islice(claims.made_names(f"{local}@lab.internal"), 3))
    assert names[0] == first and len(set(names)) == 3
    assert all(claims.problem(name, "lab.internal") is None for name in names)


def test_an_instance_is_its_class_with_a_name() -> None:
    """It accepts what its class accepts; aliases and roles are not inherited; without its class it accepts nothing."""
    accepts = (Accept("job.*", ("*",)),)
    class_ = Agent(
        "lab.worker", "worker@lab.internal", "/o/inboxes/lab.worker", accepts, ("w@lab.internal",), ("boss",)
    )
    agent = claims.as_agent(ALICE, class_, "/o/inboxes/lab.worker+alice")
    assert agent == Agent(
        "lab.worker+alice",
        "alice@lab.internal",
        "/o/inboxes/lab.worker+alice",
        accepts,
        roles=("reviewer",),
        class_id="lab.worker",
    )
    assert claims.as_agent(ALICE, None, "/x").accepts == ()
    assert ALICE.holds("Reviewer") and not ALICE.holds("boss")
