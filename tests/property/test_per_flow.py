"""Properties of instances for flows: one flow, one instance, and names that are always fit to be names."""

import random

from hypothesis import example, given
from hypothesis import strategies as st

from postmaster import address, per_flow
from postmaster.decide import find_routes
from postmaster.parties import Accept, Agent
from postmaster.registry.view import EntriesView
from postmaster.verdict import Envelope

FLOWS = st.text(min_size=1, max_size=60)
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,20}[A-Za-z0-9_-])?", fullmatch=True).filter(address.is_name)


@given(FLOWS, NAMES)
@example("\udcff", "a")
@example("run-1", "A.b-c")
def test_names_of_instances(flow: str, name: str) -> None:
    """A key is one for every text; id and address are valid, lead back to class and key, and fit whatever the case."""
    key = per_flow.key(flow)
    assert per_flow.is_key(key)
    agent_id = per_flow.instance_id(name, key)
    assert address.is_id(agent_id)
    assert not address.is_name(agent_id)  # no declaration can take it
    assert per_flow.split_id(agent_id) == (name, key)
    assert per_flow.split_id(agent_id.upper()) == (name.upper(), key)
    mailbox = per_flow.subaddress("local.part@x.internal", key)
    assert address.is_mailbox(mailbox)
    assert per_flow.split_address(mailbox.upper()) == ("LOCAL.PART@X.INTERNAL", key)


@given(st.text(max_size=40))
def test_odd_names_are_no_instances(text: str) -> None:
    """What cannot be split is none; what can, is put together again."""
    for split, join in ((per_flow.split_address, per_flow.subaddress), (per_flow.split_id, per_flow.instance_id)):
        parts = split(text)
        assert parts is None or address.fold(join(*parts)) == address.fold(text)


def test_keys_do_not_meet() -> None:
    """100,000 flows have as many keys."""
    some = random.Random(5)
    flows = {f"run-{number}" for number in range(50_000)} | {some.randbytes(8).hex() for _ in range(50_000)}
    assert len({per_flow.key(flow) for flow in flows}) == len(flows)


class _View(EntriesView):
    def in_flow(self, class_: Agent, correlation_id: str) -> Agent:
        key = per_flow.key(correlation_id)
        return per_flow.instance(class_, key, f"/{class_.id}+{key}", terminated=correlation_id.startswith("gone"))


ENTRIES = [
    {"id": "c", "address": "c@x", "aliases": ["d@x"], "roles": ["r"], "inbox": "/c", "instances": "per-flow",
     "accepts": [{"type": "t", "accepts_from": ["*"]}]},
    {"id": "s", "address": "s@x", "roles": ["r"], "inbox": "/s", "accepts": [{"type": "t", "accepts_from": ["*"]}]},
]  # fmt: skip


@given(
    st.lists(st.sampled_from(["c@x", "d@x", "agent:c", "role:r", "s@x"]), min_size=1, max_size=5),
    st.one_of(FLOWS, FLOWS.map(lambda flow: "gone" + flow)),
)
def test_one_copy_for_the_instance_of_the_flow(to: list[str], flow: str) -> None:
    """However many names lead to a class, its instance gets one copy, and the class none."""
    routes = find_routes(Envelope("0" * 32, {}, tuple(to), "q@x", "t", "s", flow), _View(ENTRIES))
    agents = [route.verdict.agent for route in routes]
    ids = [agent.id for agent in agents if agent is not None]
    expected = {f"c+{per_flow.key(flow)}"} if set(to) - {"s@x"} else set()
    expected |= {"s"} if {"s@x", "role:r"} & set(to) else set()
    assert set(ids) == expected
    assert len(ids) == len(expected)
    for route in routes:
        assert route.verdict.agent is not None
        ended = route.verdict.agent.id != "s" and flow.startswith("gone")
        assert route.verdict.reason == ("instance-terminated" if ended else None)
        assert route.verdict.agent.accepts == (Accept("t", ("*",)),)
