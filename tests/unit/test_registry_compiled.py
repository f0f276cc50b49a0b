"""The compiled lookup: the same answers as the YAML, never trusted, never in the way."""

import os
import random
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postmaster.errors import ConfigurationFault
from postmaster.office import Office
from postmaster.registry import compiled, database, merge, stamp
from postmaster.registry.view import EntriesView, Entry

LAB = """\
plugin: lab
agents:
  - id: lab.conductor
    address: Conductor@lab.internal
    roles: [Lead]
    description: leads
    accepts: [{type: job.done, accepts_from: [builder@lab.internal], duplicates: deliver}]
    emits: [{type: job.run, to: builder@lab.internal}]
  - id: lab.builder
    address: builder@lab.internal
    aliases: [mason@lab.internal]
    roles: [worker, lead]
    inbox: post/builder
    accepts: [job.*]
    accepts_from: ["*"]
"""


@pytest.fixture
def office(tmp_path: Path) -> Office:
    for name in ("registry.d", "outbox"):
        (tmp_path / name).mkdir()
    (tmp_path / "registry.d" / "lab.yml").write_text(LAB)
    made = Office(str(tmp_path))
    assert merge.merge(made).problems == ()
    return made


def lookup(office: Office) -> Path:
    (path,) = Path(office.private).glob("registry-*.sqlite")
    return path


def test_lookups_fold_case_and_give_absolute_inboxes(office: Office) -> None:
    with compiled.open_view(office) as view:
        builder = view.find("MASON@lab.internal")
        assert builder is not None
        assert builder is view.agent("LAB.builder") is view.find("builder@LAB.internal")
        assert builder.inbox == os.path.join(office.root, "post", "builder")
        assert builder.accepts[0].accepts_from == ("*",)
        assert [agent.id for agent in view.holders("LEAD")] == ["lab.builder", "lab.conductor"]
        assert view.holders("nobody") == ()
        assert view.find("nobody@lab.internal") is None
        assert view.agent("nobody") is None
        assert view.find("\udc80@x") is None
        conductor = view.entry("lab.conductor")
        assert conductor is not None
        assert conductor["emits"] == [{"type": "job.run", "to": ["builder@lab.internal"]}]
        assert conductor["declared_in"] == "registry.d/lab.yml"
        assert view.entry("x") is None
        assert len(view) == 2


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("bulder@lab.internal", "builder@lab.internal"),
        ("builder@lab.intrenal", "builder@lab.internal"),
        ("masno@lab.internal", "mason@lab.internal"),
        ("agent:lab.bilder", "agent:lab.builder"),
        ("role:wroker", "role:worker"),
        ("builder", "builder@lab.internal"),
        ("lab.builder", "agent:lab.builder"),
        ("worker", "role:worker"),
        ("zzz@nowhere", None),
        ("", None),
        ("\udc80", None),
        ("x" * 5000, None),
    ],
)
def test_suggestions(office: Office, wrong: str, right: str | None) -> None:
    with compiled.open_view(office) as view:
        assert view.suggest(wrong) == right


def test_the_name_of_the_lookup_is_the_stamp(office: Office) -> None:
    """An edit, and nothing else, makes it stale; older lookups go."""
    assert lookup(office).name == stamp.stamp_name(os.stat(office.registry))
    assert stamp.is_current(office)
    with open(office.registry, "r+b") as stream:
        stream.write(stream.read(1) and b"")
        stream.seek(0)
        stream.write(b"#")
    assert not stamp.is_current(office)
    with compiled.open_view(office):
        assert stamp.is_current(office)
        lookup(office)
    os.unlink(office.registry)
    assert not stamp.is_current(office)
    os.mkdir(office.registry)
    assert not stamp.is_current(office)


def test_an_edit_of_the_same_size_right_after_a_merge_is_seen(office: Office) -> None:
    """The stamp is only given once the file system's clock has moved on."""
    path = Path(office.registry)
    for number in range(20):
        text = path.read_bytes()
        path.write_bytes(
            text.replace(b"mason@", b"maso%d@" % (number % 10)).replace(
                b"maso%d@" % ((number - 1) % 10), b"maso%d@" % (number % 10)
            )
        )
        with compiled.open_view(office) as view:
            assert view.find(f"maso{number % 10}@lab.internal") is not None


def test_a_hand_edited_registry_is_checked_again(office: Office) -> None:
    path = Path(office.registry)
    text = path.read_text()
    path.write_text(text.replace("mason@lab.internal", "joiner@lab.internal"))
    with compiled.open_view(office) as view:
        assert view.find("joiner@lab.internal") is not None
    path.write_text(text.replace("    roles: [worker, lead]", "    rolls: [worker, lead]"))
    with pytest.raises(ConfigurationFault, match=r"agent-registry.yml:6:5: unknown key rolls, did you mean roles\?"):
        compiled.open_view(office)
    path.write_text(text.replace("mason@", "CONDUCTOR@"))
    with pytest.raises(ConfigurationFault, match=r"agent-registry.yml:\d+:\d+: .*Conductor@lab.internal"):
        compiled.open_view(office)


def test_a_registry_written_by_hand_alone_works(office: Office) -> None:
    Path(office.registry).write_text("agents:\n  - {id: a, address: a@x, accepts: []}\n")
    with compiled.open_view(office) as view:
        agent = view.agent("a")
        assert agent is not None
        assert agent.inbox == office.default_inbox("a")


@pytest.mark.parametrize(
    "case", ["missing", "directory", "empty", "half", "text", "bytes", "pipe", "dangling", "entry"]
)
def test_a_registry_that_cannot_be_used_is_a_fault(office: Office, case: str) -> None:
    """It names the path and what to do, and never hangs."""
    path = Path(office.registry)
    raw = path.read_bytes()
    path.unlink()
    match case:
        case "directory":
            path.mkdir()
        case "empty":
            path.write_bytes(b"")
        case "half":
            path.write_bytes(raw[: raw.index(b"  - id: lab.conductor")])
        case "text":
            path.write_bytes(b"nothing")
        case "bytes":
            path.write_bytes(b"\xff\x00")
        case "pipe":
            os.mkfifo(path)
        case "entry":
            path.write_bytes(b"agents:\n  - {id: a, address: a@x}\n")
        case "dangling":
            path.symlink_to("nowhere")
    for write in (True, False):
        with pytest.raises(ConfigurationFault) as caught:
            compiled.open_view(office, write=write)
        assert office.registry in str(caught.value)
        assert "postmaster registry merge" in str(caught.value)


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-4096])


def damage_noise(path: Path) -> None:
    path.write_bytes(random.Random(1).randbytes(path.stat().st_size))


def damage_tail(path: Path) -> None:
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + random.Random(1).randbytes(len(raw) - 4096))


def damage_entries(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"post/builder", b"post/buildER"))


def damage_names(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b"mason@lab", b"nason@lab"))


def damage_rows(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("DELETE FROM name WHERE folded = 'mason@lab.internal'")
    connection.close()


def damage_version(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("PRAGMA user_version = 99")
    connection.close()


def damage_meaning(path: Path) -> None:
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE name SET position = 1 - position WHERE kind = 'address'")
    connection.close()


@pytest.mark.parametrize(
    "damage",
    [
        damage_empty,
        damage_cut,
        damage_noise,
        damage_tail,
        damage_entries,
        damage_names,
        damage_rows,
        damage_version,
        damage_meaning,
    ],
)
@pytest.mark.parametrize("write", [True, False])
def test_a_damaged_lookup_is_built_again(office: Office, damage: object, write: bool) -> None:
    """Whatever happened to the file, the answers are those of the YAML, and the file is whole again."""
    assert callable(damage)
    damage(lookup(office))
    with compiled.open_view(office, write=write) as view:
        for name in ("mason@lab.internal", "builder@lab.internal"):
            found = view.find(name)
            assert found is not None
            assert found.id == "lab.builder"
            assert found.inbox == os.path.join(office.root, "post", "builder")
        assert [agent.id for agent in view.holders("lead")] == ["lab.builder", "lab.conductor"]
    if write:
        with database.open_file(str(lookup(office))) as connection:
            database.check_whole(connection)
        connection.close()


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.integers(0, 1 << 16), noise=st.binary(min_size=1, max_size=300))
def test_no_damage_is_fatal(office: Office, at: int, noise: bytes) -> None:
    """Noise written anywhere into the file never ends in an error or in another agent."""
    for path in Path(office.private).glob("registry-*.sqlite"):
        path.unlink()
    compiled.open_view(office).close()
    path = lookup(office)
    raw = bytearray(path.read_bytes())
    at %= len(raw)
    raw[at : at + len(noise)] = noise[: len(raw) - at]
    path.write_bytes(raw)
    with compiled.open_view(office) as view:
        found = view.find("mason@lab.internal")
        assert found is not None
        assert (found.id, found.inbox) == ("lab.builder", os.path.join(office.root, "post", "builder"))
        assert view.find("nobody@lab.internal") is None
        assert [agent.id for agent in view.holders("lead")] == ["lab.builder", "lab.conductor"]
        assert [agent.id for agent in view.all_agents()] == ["lab.builder", "lab.conductor"]
        assert view.suggest("masn@lab.internal") == "mason@lab.internal"


def test_without_a_place_to_write_it_is_built_in_memory(office: Office) -> None:
    for path in Path(office.private).iterdir():
        path.unlink()
    os.rmdir(office.private)
    Path(office.private).write_text("in the way")
    with compiled.open_view(office) as view:
        assert view.agent("lab.builder") is not None
    os.unlink(office.private)
    with compiled.open_view(office, write=False) as view:
        assert view.agent("lab.builder") is not None
    assert not Path(office.private).exists()


def test_a_build_leaves_no_litter(office: Office) -> None:
    """A temporary of a killed build is taken by the next one."""
    lookup(office).unlink()
    Path(office.private, ".registry.sqlite.tmp").write_text("half")
    compiled.open_view(office).close()
    assert sorted(os.listdir(office.private)) == [lookup(office).name, "registry.lock"]


def test_a_current_lookup_needs_no_yaml(office: Office) -> None:
    """A run pays for YAML and the schema only when the registry has changed."""
    code = (
        "import sys\n"
        "from postmaster.office import Office\n"
        "from postmaster.registry import compiled\n"
        "with compiled.open_view(Office(sys.argv[1])) as view:\n"
        "    assert view.find('mason@lab.internal') and not view.find('x@y') and view.suggest('masn@lab.internal')\n"
        "print(sorted({'yaml', 'jsonschema', 'click'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code, office.root], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def many(count: int) -> Iterator[Entry]:
    for number in range(count):
        yield {
            "id": f"fleet.agent-{number:05}",
            "address": f"agent-{number:05}@fleet.internal",
            "inbox": f"inboxes/fleet.agent-{number:05}",
            "roles": ["all" if number % 100 == 0 else "few"],
            "accepts": [{"type": "job.*", "accepts_from": ["*"]}],
        }


def test_a_lookup_and_a_suggestion_are_quick_among_ten_thousand(tmp_path: Path) -> None:
    """The work of a lookup follows the depth of a tree, not the number of agents."""
    path = str(tmp_path / "big.sqlite")
    database.write(path, list(many(10_000)))
    connection = database.open_file(path)
    with compiled.CompiledRegistry(Office(str(tmp_path)), connection, checked=True, write=False) as view:
        started = time.perf_counter()
        for number in range(0, 10_000, 100):
            assert view.find(f"agent-{number:05}@fleet.internal") is not None
        assert view.suggest("agnt-04711@fleet.internal") == "agent-04711@fleet.internal"
        assert view.suggest("agent-04711@flet.internal") == "agent-04711@fleet.internal"
        assert time.perf_counter() - started < 2


LOCALS = st.from_regex(r"[a-c]{1,2}", fullmatch=True)


@settings(max_examples=30, deadline=None)
@given(
    ids=st.lists(LOCALS, max_size=6, unique=True),
    roles=st.lists(st.lists(st.sampled_from(["r", "R", "s"]), max_size=2), min_size=6, max_size=6),
    asked=st.lists(LOCALS, min_size=1, max_size=6),
)
def test_the_lookup_answers_as_the_plain_view(ids: list[str], roles: list[list[str]], asked: list[str]) -> None:
    """Compiled lookup == naive lookup, for every question that routing asks."""
    entries: list[Entry] = [
        {
            "id": name,
            "address": f"{name}@x",
            "aliases": [f"{name.upper()}@y"],
            "roles": roles[number],
            "inbox": f"inboxes/{name}",
            "accepts": [{"type": name, "accepts_from": ["*"]}],
        }
        for number, name in enumerate(sorted(ids))
    ]
    office = Office("/office")
    plain = EntriesView(entries, office.inbox)
    with compiled.CompiledRegistry(office, database.in_memory(entries), checked=True, write=False) as view:
        for name in asked:
            for domain in ("x", "Y"):
                assert view.find(f"{name}@{domain}") == plain.find(f"{name}@{domain}")
            assert view.agent(name.upper()) == plain.agent(name.upper())
        for role in ("r", "S", "t"):
            assert tuple(view.holders(role)) == tuple(plain.holders(role))
        assert list(view.all_agents()) == plain.agents
