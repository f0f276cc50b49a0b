"""The message map and its lint."""

import re
from typing import Any

import pytest

from postmaster.registry import flows, lint
from postmaster.registry.view import Entry


def entry(name: str, **more: Any) -> Entry:
    return {
        "id": name,
        "address": f"{name}@x",
        "inbox": f"inboxes/{name}",
        "declared_in": f"registry.d/{name}.yml",
        **more,
    }


def accepts(kind: str, *senders: str) -> dict[str, Any]:
    return {"type": kind, "accepts_from": list(senders)}


def emits(kind: str, *to: str) -> dict[str, Any]:
    return {"type": kind, "to": list(to)}


LAB = [
    entry("boss", emits=[emits("job.run", "smith@x", "role:smith", "nobody@x"), emits("job.stop", "agent:judge")]),
    entry("judge", accepts=[accepts("verdict", "*")]),
    entry("smith", roles=["smith"], accepts=[accepts("job.*", "boss@x")]),
    entry("spy", emits=[emits("job.run", "smith@x")]),
]


def test_edges_are_what_the_router_would_decide() -> None:
    """A role reaches its holders; an unknown address, type or sender dangles, and says why."""
    seen = [(edge.sender, edge.type, edge.to, edge.recipient, edge.state) for edge in flows.edges(LAB)]
    assert seen == [
        ("boss", "job.run", "smith@x", "smith", "ok"),
        ("boss", "job.run", "role:smith", "smith", "ok"),
        ("boss", "job.run", "nobody@x", None, "dangling"),
        ("boss", "job.stop", "agent:judge", "judge", "dangling"),
        ("spy", "job.run", "smith@x", "smith", "dangling"),
    ]
    whys = [edge.why for edge in flows.edges(LAB) if edge.why]
    assert "no agent has the address nobody@x" in whys[0]
    assert "judge does not accept type job.stop" in whys[1]
    assert "not from spy@x" in whys[2]


def test_the_tree_can_be_read() -> None:
    tree = flows.render_tree(flows.to_json(LAB))
    assert tree.splitlines()[:4] == [
        "boss <boss@x>",
        "├── sends    job.run -> smith@x (smith)",
        "├── sends    job.run -> role:smith (smith)",
        "├── sends    job.run -> nobody@x   !! nobody accepts this: no agent has the address nobody@x",
    ]
    assert "smith <smith@x>  (roles: smith)\n└── accepts  job.* from boss@x   [boss]" in tree
    assert tree.endswith("4 agents, 5 connections, 3 of them dangling: that mail would not be delivered")


HOSTILE = 'a"]; x --> y\\N<b>&`|{}#'


def test_labels_cannot_break_out_of_mermaid() -> None:
    """Quotes, brackets and HTML stand as character codes."""
    text = flows.render_mermaid(
        {
            "agents": [{"id": "a", "address": "a@x", "roles": [], "accepts": []}],
            "edges": [{"from": "a", "type": HOSTILE, "to": HOSTILE, "agent": None, "state": "dangling"}],
        }
    )
    label = re.findall(r'\|"(.*?)"\|', text)[0]
    assert re.fullmatch(r"(?:[A-Za-z0-9 .@:_/-]|#\d+;)*", label)
    assert re.sub(r"#(\d+);", lambda code: chr(int(code[1])), label) == HOSTILE
    assert len(text.splitlines()) == 5


def test_labels_cannot_break_out_of_dot() -> None:
    text = flows.render_dot(
        {
            "agents": [{"id": HOSTILE, "address": "a@x", "roles": [], "accepts": []}],
            "edges": [{"from": HOSTILE, "type": "t\n", "to": "a@x", "agent": HOSTILE, "state": "ok"}],
        }
    )
    assert '  a0 [label="a\\"]; x --> y\\\\N<b>&`|{}#"];' in text.splitlines()
    assert '  a0 -> a0 [label="t\\n"];' in text.splitlines()


def test_an_empty_map_draws() -> None:
    empty = flows.to_json([])
    assert empty == {"agents": [], "edges": []}
    assert flows.render_tree(empty) == "0 agents, 0 connections"
    assert flows.render_mermaid(empty) == "flowchart LR"
    assert flows.render_dot(empty).endswith("}")


def test_lint_names_declaration_agent_and_what_to_look_at() -> None:
    found = [(one.agent, one.level, one.kind) for one in lint.lint(LAB)]
    assert found == [
        ("boss", "finding", lint.DANGLING_EMIT),
        ("boss", "finding", lint.DANGLING_EMIT),
        ("judge", "note", lint.NEVER_SENT),
        ("spy", "finding", lint.DANGLING_EMIT),
    ]
    assert all(one.declared_in == f"registry.d/{one.agent}.yml" for one in lint.lint(LAB))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("bos@x", "accepts t from bos@x, but no agent has this address; did you mean boss@x?"),
        ("*@y", "accepts t from *@y, but no agent has an address at y"),
        ("role:smyth", "accepts t from role:smyth, but no agent holds this role; did you mean role:smith?"),
        ("class:smit", "accepts t from class:smit, but no agent has this id; did you mean class:smith?"),
    ],
)
def test_senders_that_nobody_is(pattern: str, message: str) -> None:
    found = lint.lint([*LAB[:3], entry("zoe", accepts=[accepts("t", pattern)])])
    assert [(one.kind, one.message) for one in found if one.agent == "zoe"] == [(lint.NO_SUCH_SENDER, message)]


@pytest.mark.parametrize("pattern", ["boss@x", "*@x", "role:smith", "class:smith", "*"])
def test_senders_that_somebody_is(pattern: str) -> None:
    found = lint.lint([*LAB[:3], entry("zoe", accepts=[accepts("t", pattern)])])
    assert lint.NO_SUCH_SENDER not in {one.kind for one in found}


def test_a_type_that_nobody_sends() -> None:
    """A finding where every sender says what it emits; a note where one does not, or anyone may."""
    boss = LAB[0]
    levels = {}
    for name, sender in (("told", "boss@x"), ("silent", "judge@x"), ("open", "*")):
        found = lint.lint([boss, *LAB[1:3], entry(name, accepts=[accepts("t", sender)])])
        levels[name] = [one.level for one in found if one.agent == name]
    assert levels == {"told": ["finding"], "silent": ["note"], "open": ["note"]}


def test_senders_without_types_accept_nothing() -> None:
    (found,) = lint.lint([entry("a", accepts_from=["*"])])
    assert found.kind == lint.CLOSED


def test_a_clean_map_has_no_findings() -> None:
    clean = [entry("a", emits=[emits("t.u", "b@x")]), entry("b", accepts=[accepts("t.*", "a@x")])]
    assert lint.lint(clean) == []
