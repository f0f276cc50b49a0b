"""Declarations: what the files in registry.d/ say, checked by the schema and brought into one form.

An entry in that form is a mapping that JSON and YAML hold alike: `id`, `address`, `aliases`, `roles`, `inbox`, `user`,
`instances`, `nudge`, `idle`, `run` and the keys of turns, `description`, `accepts` (each with its own `accepts_from`),
`emits` (each with a list in `to`), `x-` keys, `plugin`, `declared_in`. Empty keys but `accepts` are left out.
agent-registry.yml is a list of such entries.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster.office import Office, visible
from postmaster.printable import printable
from postmaster.registry import schema, source
from postmaster.registry.source import Document, Path, Problem
from postmaster.registry.view import Entry

SUFFIXES: Final = (".yml", ".yaml")
MAX_REGISTRY_BYTES: Final = 64 * 1024 * 1024
OWN: Final = schema.OWN_KEY
# What an entry may say of its turns, besides `run`; each is text.
TURN_KEYS: Final = (
    "default_thread",
    "final_message",
    "messages_per_turn",
    "turn_timeout",
    "max_attempts",
    "concurrency",
)


@dataclass(frozen=True, slots=True)
class Declared:
    """An entry and where it was written.

    Attributes:
        entry: the entry in its one form; what could not be understood of it is left out.
        raw: the entry as typed.
        path: where in `document` it stands.
    """

    entry: Entry
    raw: dict[str, Any]
    document: Document
    path: Path

    @property
    def where(self) -> str:
        """``file:line`` of the entry."""
        return self.document.where(self.path)

    def problem(self, message: str, *keys: str | int) -> Problem:
        """Return a problem at the part of the entry that `keys` lead to."""
        return self.document.problem((*self.path, *keys), message)


@dataclass(slots=True)
class Loaded:
    """Everything the declarations say: entries in the order of files and lines, and problems."""

    declared: list[Declared] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    files: int = 0

    def entries(self) -> list[Entry]:
        """Return the entries in the order of their ids."""
        return sorted((item.entry for item in self.declared), key=lambda entry: str(entry.get("id", "")))


def load(office: Office) -> Loaded:
    """Read every declaration of an office; report all that is wrong with each by itself."""
    loaded = Loaded()
    shown = office.shown(office.declarations)
    try:
        names = sorted(os.listdir(office.declarations))
    except FileNotFoundError:
        message = "no declarations: this directory is missing; make it, with one .yml file for each plugin"
        loaded.problems.append(Problem(shown, 0, 0, message))
        return loaded
    except OSError as fault:
        loaded.problems.append(Problem(shown, 0, 0, f"cannot be read: {fault.strerror}; make it a readable directory"))
        return loaded
    for name in names:
        if name.endswith(SUFFIXES) and not name.startswith("."):
            loaded.files += 1
            _load_file(os.path.join(office.declarations, name), office, loaded)
    return loaded


def _load_file(path: str, office: Office, loaded: Loaded) -> None:
    shown = printable(office.shown(path))
    try:
        raw, _ = source.read_file(path, source.MAX_DECLARATION_BYTES)
    except (OSError, ValueError) as fault:
        loaded.problems.append(Problem(shown, 0, 0, _unreadable(path, fault)))
        return
    document, problems = source.parse(raw, shown)
    loaded.problems += problems or schema.check(document)
    if not problems:  # else what was read so far would be blamed for what was not
        plugin = os.path.basename(shown).rpartition(".")[0]
        loaded.declared += _entries(document, default_inbox(office), plugin=plugin, declared_in=shown)


def _unreadable(path: str, fault: OSError | ValueError) -> str:
    if isinstance(fault, ValueError):
        return f"{fault}; a declaration is a file of at most 1 MiB: split it, or remove it from registry.d/"
    if isinstance(fault, FileNotFoundError) and os.path.islink(path):
        return f"a link to {visible(os.readlink(path))}, which is not there; mend or remove it"
    return f"cannot be read: {fault.strerror}; mend or remove it"


def default_inbox(office: Office) -> Callable[[str], str]:
    """Return the function from an agent's id to its default inbox, as a declaration would write it."""
    return lambda agent_id: office.shown(office.default_inbox(agent_id))


def parse_merged(raw: bytes, office: Office, *, trusted: bool) -> Loaded:
    """Read the bytes of agent-registry.yml.

    Args:
        trusted: they are exactly what `registry merge` wrote, so that the schema has been checked.
    """
    document, problems = source.parse(raw, office.shown(office.registry))
    if problems:
        return Loaded(problems=problems, files=1)
    problems = [] if trusted else schema.check(document, merged=True)
    return Loaded(_entries(document, default_inbox(office)), problems, 1)


def _entries(document: Document, inbox_of: Callable[[str], str], **origin: str) -> list[Declared]:
    """Return what can be understood of a document's entries; the schema has told what cannot."""
    data = document.data
    base: Path = ()
    if isinstance(data, dict):
        plugin = data.get("plugin")
        if isinstance(plugin, str) and plugin and origin:
            origin["plugin"] = plugin
        data, base = data.get("agents"), ("agents",)
    found = []
    for number, raw in enumerate(data if isinstance(data, list) else ()):
        if isinstance(raw, dict):
            entry = normalise(raw, inbox_of, origin)
            found.append(Declared(entry, raw, document, (*base, number)))
    return found


def normalise(raw: dict[str, Any], inbox_of: Callable[[str], str], origin: dict[str, str]) -> Entry:
    """Return an entry as typed in its one form."""
    agent_id = _text(raw.get("id"))
    default = _texts(raw.get("accepts_from"))
    accepts = [_accept(item, default) for item in _list(raw.get("accepts")) if isinstance(item, str | dict)]
    entry: Entry = {
        "id": agent_id,
        "address": _text(raw.get("address")),
        "aliases": _texts(raw.get("aliases")),
        "roles": _texts(raw.get("roles")),
        "inbox": _text(raw.get("inbox")) or (inbox_of(agent_id) if agent_id else ""),
        "user": _text(raw.get("user")),
        "instances": _instances(raw.get("instances")),
        "nudge": _command(raw.get("nudge")),
        "idle": _command(raw.get("idle")),
        "run": _command(raw.get("run")),
        **{key: _text(raw.get(key)) for key in TURN_KEYS},
        "description": _text(raw.get("description")),
        "accepts": accepts,
        "accepts_from": [] if accepts else default,  # told for each type, it has no other use
        "emits": [_emit(item) for item in _list(raw.get("emits")) if isinstance(item, dict)],
        **_own(raw),
        "plugin": origin.get("plugin") or _text(raw.get("plugin")),
        "declared_in": origin.get("declared_in") or _text(raw.get("declared_in")),
    }
    return {key: value for key, value in entry.items() if value or key == "accepts" or key.startswith(OWN)}


def _instances(value: Any) -> str | dict[str, Any]:
    return {key: value[key] for key in value if key == "max"} | _own(value) if isinstance(value, dict) else _text(value)


def _command(value: Any) -> list[str]:
    """Return a program and its arguments, of which some may be empty."""
    return [item for item in _list(value) if isinstance(item, str)]


def _accept(item: str | dict[str, Any], default: list[str]) -> dict[str, Any]:
    if isinstance(item, str):
        return {"type": item, "accepts_from": list(default)}
    accept = {
        "type": _text(item.get("type")),
        "accepts_from": _texts(item["accepts_from"]) if "accepts_from" in item else list(default),
        "duplicates": _text(item.get("duplicates")),
        "remote": _text(item.get("remote")),
        "description": _text(item.get("description")),
    }
    return {key: value for key, value in accept.items() if value} | _own(item)


def _emit(item: dict[str, Any]) -> dict[str, Any]:
    emit = {
        "type": _text(item.get("type")),
        "to": _texts(item.get("to")),
        "description": _text(item.get("description")),
    }
    return {key: value for key, value in emit.items() if value} | _own(item)


def _own(raw: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in raw.items() if key.startswith(OWN)}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _texts(value: Any) -> list[str]:
    """Return the texts in a list, or a text by itself as a list."""
    return [item for item in ([value] if isinstance(value, str) else _list(value)) if isinstance(item, str) and item]
