"""`postmaster registry`, called as click commands."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from postmaster.cli.registry import registry
from postmaster.errors import BadData, ConfigurationFault
from postmaster.office import Office

LAB = """\
plugin: lab
agents:
  - id: boss
    address: boss@x
    emits:
      - {type: job.run, to: smith@x}
  - id: smith
    address: smith@x
    aliases: [forge@x]
    description: "makes \\e[31mthings"
    accepts: [{type: job.run, accepts_from: [boss@x], duplicates: deliver}]
"""


@pytest.fixture
def office(tmp_path: Path) -> Office:
    for name in ("registry.d", "outbox"):
        (tmp_path / name).mkdir()
    (tmp_path / "registry.d" / "lab.yml").write_text(LAB)
    return Office(str(tmp_path))


def call(office: Office, *args: str, code: int = 0) -> Result:
    result = CliRunner().invoke(registry, args, obj=office, standalone_mode=False)
    if result.exception is not None:
        raise result.exception
    assert result.return_value == code, result.output
    return result


def answer(office: Office, *args: str, code: int = 0) -> Any:
    parsed = json.loads(call(office, *args, "--json", code=code).stdout)
    assert parsed.pop("version") == 1
    return parsed


def test_merge_says_what_it_did(office: Office) -> None:
    dry = call(office, "merge", "--dry-run")
    assert dry.stdout == (
        "added boss\nadded smith\n"
        "would make inbox inboxes/boss\nwould make inbox inboxes/smith\nwould merge: 2 agents\n"
    )
    done = call(office, "merge")
    assert done.stdout == (
        "added boss\nadded smith\nmade inbox inboxes/boss\nmade inbox inboxes/smith\nmerged: 2 agents\n"
    )
    assert call(office, "merge").stdout == "unchanged: 2 agents\n"
    assert answer(office, "merge")["unchanged"] is True


def test_merge_with_problems_tells_all_and_keeps_the_registry(office: Office) -> None:
    Path(office.declarations, "more.yml").write_text("- {id: BOSS, adress: b@x}\n- {id: c, address: c}\n")
    with pytest.raises(ConfigurationFault) as caught:
        call(office, "merge")
    lines = str(caught.value).splitlines()
    assert lines[0] == f"4 problems in {office.declarations}; the registry is as it was:"
    assert [line.partition(": ")[0] for line in lines[1:]] == [
        "registry.d/more.yml:1:3",
        "registry.d/more.yml:1:8",
        "registry.d/more.yml:1:14",
        "registry.d/more.yml:2:20",
    ]
    assert caught.value.exit_code == 78
    assert not Path(office.registry).exists()


def test_merge_tells_of_inboxes_that_cannot_be_made(office: Office) -> None:
    Path(office.inboxes).write_text("in the way")
    result = call(office, "merge", code=73)
    assert result.stderr.count("cannot be made") == 2
    assert Path(office.registry).exists()


def test_check(office: Office) -> None:
    result = call(office, "check", "--strict")
    assert result.stdout.splitlines() == [
        "2 agents, no problems, 0 findings, 0 notes",
        "not merged yet: `postmaster registry merge` puts these declarations into effect",
    ]
    call(office, "merge")
    assert answer(office, "check") == {"agents": 2, "merged": True, "problems": [], "findings": []}
    Path(office.declarations, "more.yml").write_text("- {id: c, address: c@x, emits: [{type: t, to: smith@x}]}\n")
    assert "registry.d/more.yml: c: emits t to smith@x, which nobody accepts" in call(office, "check").stdout
    call(office, "check", "--strict", code=1)
    assert answer(office, "check", "--strict", code=1)["findings"][0]["kind"] == "emits-not-accepted"
    Path(office.declarations, "more.yml").write_text("[")
    with pytest.raises(ConfigurationFault):
        call(office, "check")


def test_check_changes_nothing(office: Office) -> None:
    before = sorted(path.name for path in Path(office.root).rglob("*"))
    call(office, "check")
    assert sorted(path.name for path in Path(office.root).rglob("*")) == before


def test_show(office: Office) -> None:
    call(office, "merge")
    assert call(office, "show").stdout.splitlines() == [
        "ID     ADDRESS  ROLES  ACCEPTS",
        "boss   boss@x   -      -",
        "smith  smith@x  -      job.run",
    ]
    assert [entry["id"] for entry in answer(office, "show")["agents"]] == ["boss", "smith"]
    for name in ("smith", "SMITH@x", "Forge@x", "agent:smith"):
        shown = call(office, "show", name).stdout
        assert "  job.run from boss@x  (duplicates are delivered)" in shown.splitlines()
        assert "declared_in: registry.d/lab.yml" in shown
        assert "\x1b" not in shown
        assert answer(office, "show", name)["agent"]["id"] == "smith"
    with pytest.raises(BadData, match=r"'smth@x'; did you mean smith@x\?"):
        call(office, "show", "smth@x")
    with pytest.raises(BadData, match=r"lists them all"):
        call(office, "show", "zzzzzzzz")


def test_without_a_registry_or_an_office(office: Office, tmp_path: Path) -> None:
    for args in (["show"], ["show", "x"], ["flows"]):
        with pytest.raises(ConfigurationFault, match="postmaster registry merge"):
            call(office, *args)
    for args in (["show"], ["flows"], ["merge"], ["check"]):
        with pytest.raises(ConfigurationFault, match="does not exist"):
            call(Office(str(tmp_path / "none")), *args)


def test_flows(office: Office) -> None:
    call(office, "merge")
    assert "boss <boss@x>\n└── sends    job.run -> smith@x (smith)" in call(office, "flows").stdout
    assert call(office, "flows", "--format", "mermaid").stdout.startswith("flowchart LR\n")
    assert call(office, "flows", "--format", "dot").stdout.startswith("digraph postmaster {\n")
    assert call(office, "flows", "--format", "json").stdout == call(office, "flows", "--json").stdout
    assert answer(office, "flows")["edges"][0]["agent"] == "smith"


def test_schema_is_a_schema(office: Office) -> None:
    import jsonschema

    jsonschema.Draft202012Validator.check_schema(json.loads(call(office, "schema").stdout))


@pytest.mark.parametrize("command", ["merge", "check", "show", "flows", "schema"])
def test_every_command_has_help_with_an_example(office: Office, command: str) -> None:
    result = CliRunner().invoke(registry, [command, "--help"], obj=office)
    assert result.exit_code == 0
    assert f"Example:\n    postmaster registry {command}" in result.output
