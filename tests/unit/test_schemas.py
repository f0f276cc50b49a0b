"""The published schemas: those in schemas/ are these, and an editor agrees with Postmaster about what is right."""

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from postmaster import schemas
from postmaster.cli.registry import show_schema
from postmaster.errors import ConfigurationFault
from postmaster.registry import scaffold
from postmaster.settings import TEMPLATE, parse

REPOSITORY = Path(__file__).parents[2]
DECLARATIONS = sorted([*REPOSITORY.glob("registry.d/*.yml"), *REPOSITORY.glob("examples/**/*.yml")])
WRONG = "declaration-with-mistakes.yml"


class _Core(yaml.SafeLoader):
    """YAML as an editor reads it: the core schema of YAML 1.2 (`yes` is text, 7 is a number)."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012


for tag, form, first in (
    ("bool", "true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", "[-+]?[0-9]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("null", "~|null|Null|NULL|", ["~", "n", "N", ""]),
):
    _Core.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(f"(?:{form})\\Z"), list(first))


def faults(name: str, text: str) -> list[str]:
    """Return what an editor marks in a file."""
    validator = jsonschema.Draft202012Validator(json.loads(schemas.text(name)))
    return [error.message for error in validator.iter_errors(yaml.load(text, _Core))]


@pytest.mark.parametrize("name", schemas.NAMES)
def test_the_files_are_what_the_package_makes(name: str) -> None:
    """schemas/ is up to date (scripts/write-schemas writes it), and each of its files is a schema."""
    published = (REPOSITORY / "schemas" / schemas.file_name(name)).read_text("utf-8")
    assert published == schemas.text(name), "run scripts/write-schemas"
    jsonschema.Draft202012Validator.check_schema(json.loads(published))
    assert "postmaster-" not in published  # no format that only Postmaster knows
    assert name in next(one.type.choices for one in show_schema.params)


def test_there_are_no_other_files() -> None:
    assert {path.name for path in (REPOSITORY / "schemas").iterdir()} == {
        schemas.file_name(name) for name in schemas.NAMES
    }


@pytest.mark.parametrize("path", DECLARATIONS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_the_declarations_of_this_repository(path: Path) -> None:
    """Each names its schema by a path that is there, and an editor marks nothing."""
    text = path.read_text("utf-8")
    if path.name == WRONG:  # which names none: it is copied, and its mistakes are told with their lines
        assert faults("declaration", text)
        return
    named = re.match(r"# yaml-language-server: \$schema=(\S+)\n", text)
    assert named and (path.parent / named[1]).resolve() == REPOSITORY / "schemas" / "declaration.schema.json"
    assert faults("declaration", text) == []


def test_what_yaml_types_is_taken_as_text_would_be() -> None:
    """Numbers and truth values that Postmaster reads as text are right in an editor too; others are still wrong."""
    entry = (
        "- id: 7\n  address: a@b\n  run: [x]\n  messages_per_turn: 1\n  max_attempts: 3\n  turn_timeout: 60\n"
        "  user: 1000\n  instances: {max: 4}\n  description: 2026\n"
        "  accepts: [{type: t, accepts_from: '*', remote: true}]\n"
    )
    assert faults("declaration", entry) == []
    for right, wrong in (("attempts: 3", "attempts: 3.5"), ("turn: 1", "turn: 2"), ("a@b", "true"), ("[x]", "x")):
        assert faults("declaration", entry.replace(right, wrong, 1)), wrong


def test_a_type_without_senders() -> None:
    """An editor marks an accepted type that nobody may send, unless the agent says who for all of them."""
    entry = "- id: a\n  address: a@b\n  accepts: %s\n"
    for accepts in ("[t]", "[{type: t}]", "[{type: t, accepts_from: [c@d]}, u]"):
        assert faults("declaration", entry % accepts), accepts
        assert faults("declaration", entry % accepts + "  accepts_from: [c@d]\n") == [], accepts
    assert faults("declaration", entry % "[]") == []


def test_agent_registry() -> None:
    """A merged entry says what it accepts and where it comes from; a declaration must not."""
    merged = "agents:\n- {id: a, address: a@b, accepts: [], plugin: p, declared_in: registry.d/p.yml}\n"
    assert faults("agent-registry", merged) == []
    assert faults("agent-registry", merged.replace(", accepts: []", ""))
    assert faults("declaration", merged)


@pytest.mark.parametrize(
    "text",
    [
        "",
        TEMPLATE,
        "name: lab-2",
        "name: a b",
        "max_message_bytes: 10 MiB",
        "max_message_bytes: 4096",
        "max_message_bytes: 10mib",
        "max_message_bytes: 5d",
        "max_message_bytes: 1.5",
        "settle_seconds: 5",
        "settle_seconds: -1",
        "settle_seconds: [5]",
        "expire_after: 12H",
        "expire_after: 5 days",
        "expire_after: true",
        "require_owner: true",
        "require_owner: Yes",
        "require_owner: maybe",
        "drop_folders: off",
        "drop_folders: 1",
        "turn_retry_after: 0",
        "operator: ops@lab.internal",
        'operator: ""',
        "operator:",
        "operator: ops",
        "x-mine: {any: [thing]}",
        "expire_after_seconds: 5",
        "- a",
        "remotes: {}",
        "remotes: {hub: {url: /srv/mail.git, domains: [a.internal]}}",
        "remotes: {hub: {url: 'ssh://hub/mail.git', domains: [a, b], max_messages: 5, max_bytes: 1MiB, x-a: 1}}",
        "remotes: {hub: {url: 'git@hub:mail.git', domains: [a], sign: ~/.ssh/key, verify: /etc/signers}}",
        "remotes: {hub: {url: 'ext::sh', domains: [a]}}",
        "remotes: {hub: {url: /srv/mail.git}}",
        "remotes: {hub: {url: /srv/mail.git, domains: []}}",
        "remotes: {hub: {url: /srv/mail.git, domains: [a@b]}}",
        "remotes: {hub: {url: /srv/mail.git, domains: [a], key: b}}",
        "remotes: {'a b': {url: /srv/mail.git, domains: [a]}}",
        "remotes: {x-note: whatever}",
        "remotes: [hub]",
    ],
)
def test_settings(text: str) -> None:
    """An editor marks what Postmaster refuses of post-office.yml (amounts that are too large excepted), and no more."""
    try:
        parse(text.encode(), "post-office.yml")
    except ConfigurationFault:
        assert faults("post-office", text)
    else:
        assert faults("post-office", text) == []


def test_every_setting_is_described_with_its_default() -> None:
    """The schema knows the keys that `init` shows, and says of each what it is for."""
    properties = json.loads(schemas.text("post-office"))["properties"]
    shown = yaml.load(re.sub(r"^# (?=[a-z_]+: )", "", TEMPLATE, flags=re.M), _Core)
    assert {key: form["default"] for key, form in properties.items()} == shown
    assert all(form["description"].endswith((".", ").")) for form in properties.values())


@pytest.mark.parametrize("plugin", ["council", "release_notes", "X1"])
def test_a_first_declaration(plugin: str) -> None:
    """An editor takes it, also with every optional line in use."""
    text = scaffold.text(plugin)
    assert faults("declaration", text) == []
    in_use = re.sub(r"^( +)# (?=[a-z]+: )", r"\1", text, flags=re.M)
    assert in_use.count("\n    description: ") == 1
    assert faults("declaration", in_use) == []
