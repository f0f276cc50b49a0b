"""Declarations: what is read, and what is said of what cannot be."""

import json
import os
import re
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from postmaster import address
from postmaster.office import Office
from postmaster.registry import declarations, events, rules, schema, source, written

GOOD = """\
plugin: council
x-note: passes
agents:
  - id: council.product-agent
    address: product-agent@council.internal
    aliases: [product@council.internal]
    roles: [reviewer, 007]
    description: no
    x-cost: {tokens: 012}
    accepts:
      - council.plan.*
      - type: council.evaluate
        accepts_from: orchestrator@council.internal
        duplicates: deliver
        description: 12:30:45
    accepts_from: ["*@council.internal"]
    emits:
      - {type: council.vote, to: orchestrator@council.internal}
"""


@pytest.fixture
def office(tmp_path: Path) -> Office:
    (tmp_path / "registry.d").mkdir()
    return Office(str(tmp_path))


def declare(office: Office, name: str, text: str | bytes) -> Path:
    path = Path(office.declarations, name)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def problems(office: Office) -> list[str]:
    loaded = declarations.load(office)
    found = loaded.problems + rules.check(loaded.declared, office)
    return [str(problem) for problem in sorted(set(found))]


def parsed(raw: bytes) -> list[str]:
    return [str(problem) for problem in source.parse(raw, "f.yml")[1]]


def test_a_declaration_is_read_into_its_one_form(office: Office) -> None:
    """Text stays text, defaults are written out, the shorthands mean the long forms."""
    declare(office, "council.yml", GOOD)
    loaded = declarations.load(office)
    assert loaded.problems == []
    assert rules.check(loaded.declared, office) == []
    assert loaded.entries() == [
        {
            "id": "council.product-agent",
            "address": "product-agent@council.internal",
            "aliases": ["product@council.internal"],
            "roles": ["reviewer", "007"],
            "inbox": "inboxes/council.product-agent",
            "description": "no",
            "accepts": [
                {"type": "council.plan.*", "accepts_from": ["*@council.internal"]},
                {
                    "type": "council.evaluate",
                    "accepts_from": ["orchestrator@council.internal"],
                    "duplicates": "deliver",
                    "description": "12:30:45",
                },
            ],
            "emits": [{"type": "council.vote", "to": ["orchestrator@council.internal"]}],
            "x-cost": {"tokens": "012"},
            "plugin": "council",
            "declared_in": "registry.d/council.yml",
        }
    ]


def test_a_bare_list_is_a_declaration_named_after_its_file(office: Office) -> None:
    declare(office, "lab.yaml", "- {id: a, address: a@x}\n")
    assert declarations.load(office).entries()[0]["plugin"] == "lab"
    assert declarations.load(office).problems == []


def test_which_files_count(office: Office) -> None:
    """Hidden files, backups and other suffixes are not declarations; links to files are."""
    target = Path(office.root, "elsewhere.txt")
    target.write_text("- {id: linked, address: l@x}\n")
    os.symlink(target, Path(office.declarations, "linked.yml"))
    for name in (".hidden.yml", "a.yml~", "README.md", "b.yml.bak"):
        declare(office, name, "not: [yaml")
    loaded = declarations.load(office)
    assert loaded.problems == []
    assert [entry["id"] for entry in loaded.entries()] == ["linked"]


def test_what_is_no_file_is_reported_and_never_opened(office: Office) -> None:
    """A pipe would hang whoever opens it."""
    os.mkfifo(Path(office.declarations, "pipe.yml"))
    Path(office.declarations, "directory.yml").mkdir()
    os.symlink("nowhere", Path(office.declarations, "dangling.yml"))
    declare(office, "large.yml", b"#" * (1024 * 1024 + 1))
    found = problems(office)
    assert len(found) == 4
    assert re.search(r"dangling.yml: a link to nowhere", found[0])
    assert re.search(r"directory.yml: is a directory", found[1])
    assert re.search(r"large.yml: is larger than 1024 KiB", found[2])
    assert re.search(r"pipe.yml: is a pipe", found[3])


def test_a_missing_directory_is_a_problem(tmp_path: Path) -> None:
    found = problems(Office(str(tmp_path)))
    assert found == [
        "registry.d: no declarations: this directory is missing; make it, with one .yml file for each plugin"
    ]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"a: [1\n", r"f.yml:2:1: YAML syntax: "),
        (b"a: b: c", r"f.yml:1:5: YAML syntax: mapping values .* needs quotes"),
        (b"a: [*@x.internal]", r'f.yml:1:6: YAML syntax: .*quote a value that begins with \*, as in "\*@'),
        (b"a: &x 1\nb: c", r"f.yml:1:4: an anchor \(&x\)"),
        (b"a: 1\nb: *a", r"f.yml:2:4: an alias \(\*a\)"),
        (b"a: !!str 1", r"f.yml:1:4: a tag "),
        (b"a: 1\nb: 2\na: 3", r"f.yml:3:1: the key a stands twice, first on line 1"),
        (b"? [a]\n: b", r"f.yml:1:3: a key that is a list"),
        (b"a: " + b"[" * 25 + b"]" * 25, r"f.yml:1:\d+: nested more than 20 deep"),
        (b"[" * 100_000, r"f.yml:1:"),
        (b"x: y\nb: \xff", r"f.yml:2:4: byte 0xff is not UTF-8"),
        (b"a: 1\nb: \x07", r"f.yml:2:4: control characters are not allowed"),
        (b"a: 1\n---\nb: 2", r"f.yml:2:1: a second YAML document"),
        (b'"' + b"k" * 201 + b'": 1', r"f.yml:1:1: a key of 201 characters"),
    ],
)
def test_yaml_that_is_refused(raw: bytes, expected: str) -> None:
    """Each is one problem, with its place."""
    found = parsed(raw)
    assert len(found) == 1
    assert re.match(expected, found[0]), found


@given(st.binary(max_size=200))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    document, found = source.parse(raw, "f.yml")
    if not found:
        schema.check(document)


def test_problems_of_one_file_are_bounded() -> None:
    assert len(parsed(b"a: 1\n" * 10_000)) == events.MAX_PROBLEMS


def test_all_problems_of_all_files_are_told_at_once(office: Office) -> None:
    """Sorted by file and line, each with what to do."""
    declare(office, "a.yml", "agents:\n  - id: a b\n    adress: x@y\n    accepts: t\n")
    declare(office, "b.yml", "agents: [\n")
    declare(
        office,
        "c.yml",
        """\
agnts: []
agents:
  - id: c
    address: "c@x\\n"
    inbox: ""
    roles: [r, r]
    accepts:
      - {type: a..b, accept_from: ["*"]}
      - {type: a, accepts_from: [foo], duplicates: delivr}
      - {type: a, accepts_from: []}
      - [t]
    emits: [{type: a.*, to: {x: y}}, {type: b}]
  - text
""",
    )
    found = problems(office)
    expected = [
        r"a.yml:2:5: `address` is missing \(adress is not it\); write `address: product-agent@council.internal`",
        r"a.yml:2:9: `id` is 'a b', which is not an agent id .*; write `id: ",
        r"a.yml:3:5: unknown key adress, did you mean address\?",
        r"a.yml:4:14: `accepts` must be a list, but is text; write `accepts: \[",
        r"b.yml:2:1: YAML syntax",
        r"c.yml:1:1: unknown key agnts, did you mean agents\?",
        r"c.yml:4:14: `address` is 'c@x\\n', which is not an address",
        r"c.yml:5:12: `inbox` is empty",
        r"c.yml:6:12: `roles` names r twice",
        r"c.yml:8:16: `type` is a..b",
        r"c.yml:8:22: unknown key accept_from, did you mean accepts_from\?",
        r"c.yml:9:34: number 1 of `accepts_from` is foo, which is not a sender",
        r"c.yml:9:52: `duplicates` must be deliver or refuse, not delivr, did you mean deliver\?",
        r"c.yml:10:33: `accepts_from` is an empty list",
        r"c.yml:11:9: number 4 of `accepts` must be a mapping",
        r"c.yml:12:20: `type` is a.\*, which is not a message type",
        r"c.yml:12:29: `to` must be text, but is a mapping",
        r"c.yml:12:38: `to` is missing",
        r"c.yml:13:5: number 2 of `agents` must be a mapping",
    ]
    assert len(found) == len(expected), "\n".join(found)
    for line, pattern in zip(found, expected, strict=True):
        assert re.match("registry.d/" + pattern, line), line


@pytest.mark.parametrize("text", ["", "# nothing\n", "text", "{}", "agents:\n", "agents: {}\n"])
def test_a_file_that_declares_nothing_is_a_problem(office: Office, text: str) -> None:
    """It may be half copied; an empty list says that there are no agents."""
    declare(office, "a.yml", text)
    assert len(problems(office)) == 1


def test_commands(office: Office) -> None:
    """`nudge` and `idle` are kept argument by argument, empty ones too."""
    declare(office, "a.yml", '- {id: a, address: a@x, nudge: [/bin/echo, "", "{text}", ";"], idle: [~/bin/idle]}\n')
    (entry,) = declarations.load(office).entries()
    assert (entry["nudge"], entry["idle"]) == (["/bin/echo", "", "{text}", ";"], ["~/bin/idle"])


def test_later_keys_are_unknown(office: Office) -> None:
    """A documented key must work; `turn` does not exist yet."""
    declare(office, "a.yml", "- {id: a, address: a@x, turn: [true]}\n")
    assert "unknown key turn" in problems(office)[0]


@pytest.mark.parametrize("text", ["many", "{max: 3}", "{max: 3, x-why: desks}"])
def test_instances_make_a_class(office: Office, text: str) -> None:
    """They stand in the entry as typed, and are read back from the merged registry."""
    declare(office, "a.yml", f"- {{id: a, address: a@x, instances: {text}}}\n")
    assert problems(office) == []
    (entry,) = declarations.load(office).entries()
    raw = written.render([entry])
    assert declarations.parse_merged(raw, office, trusted=False).entries() == [entry]
    assert entry["instances"] == yaml.load(text, Loader=yaml.BaseLoader)


@pytest.mark.parametrize(
    "text", ["few", "{max: 0}", "{max: -1}", "{max: 03}", "{max: two}", "{}", "{mx: 2}", "[many]", "''"]
)
def test_wrong_instances(office: Office, text: str) -> None:
    """What is neither `many` nor `{max: N}` is a problem."""
    declare(office, "a.yml", f"- {{id: a, address: a@x, instances: {text}}}\n")
    assert problems(office)


def test_declared_in_cannot_be_declared(office: Office) -> None:
    declare(office, "a.yml", "- {id: a, address: a@x, declared_in: b}\n")
    assert "unknown key declared_in" in problems(office)[0]


def test_no_problem_carries_a_control_character(office: Office) -> None:
    declare(office, "a\x1b[2J.yml", '"\\e[31mx": "y"\nagents: []\n')
    (line,) = problems(office)
    assert line.isprintable()


def test_the_schema_agrees_with_the_addresses() -> None:
    """The patterns for editors are those of the module that decides."""
    defs = json.loads(schema.schema_text())["$defs"]
    name, mailbox = address.NAME_PATTERN, address.MAILBOX_PATTERN
    domain = mailbox.split("@", 1)[1]
    assert defs["id"]["pattern"] == defs["role"]["pattern"] == f"^{name}$"
    assert defs["address"]["pattern"] == f"^{mailbox}$"
    assert defs["recipient"]["pattern"] == f"^(?:role:{name}|agent:{address.ID_PATTERN}|{mailbox})$"
    assert defs["sender_pattern"]["pattern"] == rf"^(?:\*|\*@{domain}|(?:role|class):{name}|{mailbox})$"


TEXTS = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.sampled_from(
        ["no", "~", "1e5", "0x1f", "12:30:45", "2026-01-01", "=", "<<", "- a", "a: b", "a #b", "null", "*"]
    ),
)
KEYS = TEXTS.map(lambda text: "x-" + text)


@given(
    st.dictionaries(
        KEYS,
        st.recursive(
            TEXTS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3), max_leaves=8
        ),
        max_size=4,
    )
)
def test_what_is_written_is_read_back_as_the_same_text(own: dict[str, object]) -> None:
    """Whatever the text looks like: a number, a date, YAML syntax, control characters."""
    import yaml

    raw = written.render([{"id": "a", "address": "a@x", **own}])
    document, found = source.parse(raw, "f.yml")
    assert found == []
    assert document.data["agents"] == [{"id": "a", "address": "a@x", **own}]
    assert yaml.safe_load(raw) == document.data
    assert written.is_as_written(raw)
    assert not written.is_cut_short(raw)


def test_every_cut_of_a_written_registry_is_seen() -> None:
    raw = written.render([{"id": "a", "address": "a@x"}, {"id": "b", "address": "b@x"}])
    for end in range(len(raw) - 1):
        cut = raw[:end]
        assert not written.is_as_written(cut)
        if end >= len(written.HEADER):
            assert written.is_cut_short(cut)


DOCS = Path(__file__).parents[2] / "docs" / "formats" / "registry.md"


def test_the_examples_in_the_documentation_hold(office: Office) -> None:
    """Both declarations are valid as printed, and the registry is as a merge writes it."""
    first, second, merged = re.findall(r"```yaml\n(.*?)```", DOCS.read_text("utf-8"), re.DOTALL)
    declare(office, "council.yml", first)
    declare(office, "lab.yml", second)
    assert problems(office) == []
    assert written.is_as_written(merged.encode())
    assert declarations.parse_merged(merged.encode(), office, trusted=False).problems == []
