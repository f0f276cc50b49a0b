"""Rules beyond the schema: collisions, places for inboxes, and nothing open by accident."""

import os
import re
from pathlib import Path

import pytest

from postmaster.office import Office
from postmaster.registry import declarations, rules


@pytest.fixture
def office(tmp_path: Path) -> Office:
    (tmp_path / "registry.d").mkdir()
    return Office(str(tmp_path))


def found(office: Office, **files: str) -> list[str]:
    for name, text in files.items():
        Path(office.declarations, f"{name}.yml").write_text(text)
    loaded = declarations.load(office)
    assert loaded.problems == []
    return [str(problem) for problem in rules.check(loaded.declared, office)]


def agent(name: str, **more: str) -> str:
    fields = {"id": name, "address": f"{name}@x"} | more
    return "- {" + ", ".join(f"{key}: {value}" for key, value in fields.items()) + "}\n"


def test_a_type_without_senders_is_refused(office: Office) -> None:
    """Never open by accident: said for the string form and the long form, at the type."""
    text = "- id: a\n  address: a@x\n  accepts:\n    - t.one\n    - {type: t.two}\n    - {type: t, accepts_from: b@x}\n"
    lines = found(office, one=text)
    assert len(lines) == 2
    assert re.match(r"registry.d/one.yml:4:7: `accepts_from` is missing: nobody may send t.one to a; write", lines[0])
    assert lines[1].startswith("registry.d/one.yml:5:7: ")


def test_once_for_the_agent_is_enough(office: Office) -> None:
    assert found(office, one='- {id: a, address: a@x, accepts: [t, u], accepts_from: ["*"]}\n') == []


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        (
            agent("a"),
            agent("a", address="b@x"),
            "two.yml:1:8: id a is taken: it is the id of an agent at registry.d/one.yml:1",
        ),
        (
            agent("ab"),
            agent("aB", address="b@x"),
            "two.yml:1:8: id aB equals, but for case, the id ab at registry.d/one.yml:1",
        ),
        (agent("a"), agent("b", address="A@X"), "two.yml:1:20: address A@X equals, but for case, the address a@x"),
        (agent("a"), agent("b", aliases="[a@x]"), "two.yml:1:35: alias a@x is taken: it is the address of an agent"),
        (agent("a", aliases="[c@x]"), agent("b", aliases="[d@x, C@x]"), "two.yml:1:40: alias C@x equals, but for case"),
        (agent("a", aliases="[b@x]"), agent("b"), "two.yml:1:20: address b@x is taken: it is the alias of an agent"),
        (agent("a", inbox="m"), agent("b", inbox="./n/../m/"), "two.yml:1:32: inbox m is taken: it is that of a at"),
        (agent("a", inbox="m"), agent("b", inbox="m/n"), "two.yml:1:32: inbox m/n lies inside the inbox m"),
        (agent("a", inbox="m/n"), agent("b", inbox="m"), "two.yml:1:32: inbox m contains the inbox m/n"),
        (agent("a", inbox="m"), agent("b", inbox="M"), "two.yml:1:32: inbox M equals, but for case, the inbox m"),
        (agent("a", inbox="m"), agent("b", inbox="M/n"), "two.yml:1:32: inbox M/n lies inside the inbox m"),
        (agent("a"), agent("b", inbox="inboxes/a"), "two.yml:1:32: inbox inboxes/a is taken: it is that of a"),
    ],
)
def test_collisions_name_both_places(office: Office, first: str, second: str, expected: str) -> None:
    lines = found(office, one=first, two=second)
    assert len(lines) == 1, lines
    assert expected in lines[0]
    assert "registry.d/one.yml:1" in lines[0]


def test_an_alias_of_ones_own(office: Office) -> None:
    lines = found(office, one=agent("a", aliases="[A@x, b@x, B@x]"))
    assert [line.split(": ", 1)[1] for line in lines] == [
        "alias A@x is this agent's address already; remove it",
        "alias B@x is this agent's alias already; remove it",
    ]


def test_names_that_only_begin_alike_do_not_collide(office: Office) -> None:
    assert found(office, one=agent("a", inbox="m/a") + agent("a.b", inbox="m/a.b") + agent("ab", inbox="m/ab")) == []


def test_two_paths_to_one_directory_collide(office: Office) -> None:
    """Symlinks are followed before inboxes are compared."""
    Path(office.root, "real").mkdir()
    os.symlink("real", Path(office.root, "link"))
    lines = found(office, one=agent("a", inbox="real/in"), two=agent("b", inbox="link/in"))
    assert len(lines) == 1
    assert "inbox link/in is, through a symlink, the inbox real/in" in lines[0]


@pytest.mark.parametrize(
    ("inbox", "expected"),
    [
        (".", "is the office itself"),
        ("..", "contains the office itself"),
        ("/", "contains the office itself"),
        ("inboxes", "is inboxes"),
        ("outbox", "is outbox"),
        ("outbox/a", "lies in outbox"),
        ("OutBox/a", "lies in outbox"),
        ("dead-letter/a", "lies in dead-letter"),
        ("logs/a", "lies in logs"),
        ("registry.d/a", "lies in registry.d"),
        (".postmaster/a", "lies in .postmaster"),
        ("directory/a", "lies in directory"),
        ("agent-registry.yml", "is agent-registry.yml"),
        ("inboxes/a/unread", "ends in unread/"),
        ("m/tmp", "ends in tmp/"),
    ],
)
def test_where_no_inbox_can_be(office: Office, inbox: str, expected: str) -> None:
    lines = found(office, one=agent("a", inbox=inbox))
    assert len(lines) == 1
    assert expected in lines[0]


def test_an_office_behind_a_symlink_is_guarded_too(tmp_path: Path) -> None:
    real = tmp_path / "real"
    (real / "registry.d").mkdir(parents=True)
    os.symlink("real", tmp_path / "link")
    lines = found(Office(str(tmp_path / "link")), one=agent("a", inbox=str(real / "outbox" / "a")))
    assert len(lines) == 1
    assert "lies in outbox" in lines[0]


def test_an_agent_may_be_called_like_a_folder(office: Office) -> None:
    assert found(office, one=agent("read") + agent("tmp")) == []


def test_a_home_that_does_not_exist(office: Office) -> None:
    lines = found(office, one=agent("a", inbox="~no-such-user-here/in"))
    assert len(lines) == 1
    assert "registry.d/one.yml:1:32: ~no-such-user-here/in: there is no home directory" in lines[0]


def test_rules_go_on_past_what_the_schema_refuses(office: Office) -> None:
    """A broken field does not hide a collision from the same report."""
    text = "- {id: a, address: a@x, inbx: m}\n- {id: A, address: a@x}\n"
    Path(office.declarations, "one.yml").write_text(text)
    loaded = declarations.load(office)
    assert len(loaded.problems) == 1
    assert len(rules.check(loaded.declared, office)) == 2
