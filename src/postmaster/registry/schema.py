"""The JSON Schema that ships with the package, and its findings in words a person can act on."""

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from importlib import resources
from typing import Any, Final

from postmaster import address
from postmaster.printable import brief, quoted
from postmaster.registry.source import Document, Path, Problem

OWN_KEY: Final = "x-"

# One place decides what an address is: the schema's `pattern`s tell editors, these tell us. Paired with
# registry.schema.json, and tested to agree with it.
_FORMATS: Final[dict[str, Callable[[str], bool]]] = {
    "postmaster-name": address.is_name,
    "postmaster-mailbox": address.is_mailbox,
    "postmaster-recipient": address.is_recipient,
    "postmaster-sender": address.is_sender_pattern,
}
_KINDS: Final = {"object": "a mapping of `key: value` lines", "array": "a list", "string": "text"}


def schema_text() -> str:
    """Return the JSON Schema of a declaration, as it ships: every scalar is text."""
    return resources.files("postmaster.registry").joinpath("registry.schema.json").read_text("utf-8")


@functools.cache
def _schema(merged: bool) -> dict[str, Any]:
    return definition(merged=merged)


def definition(*, merged: bool) -> dict[str, Any]:
    """Return the schema of a declaration, or of agent-registry.yml, for the caller to change."""
    schema: dict[str, Any] = json.loads(schema_text())
    if merged:
        entry, more = schema["$defs"]["entry"], schema["$defs"]["written_by_merge"]
        entry["properties"] |= more["properties"]
        entry["required"] += more["required"]
    return schema


@functools.cache
def _validator(merged: bool) -> Any:
    import jsonschema  # late: it costs more than a whole routing pass

    formats = jsonschema.FormatChecker(formats=())
    for name, holds in _FORMATS.items():
        formats.checks(name)(_only_text(holds))
    return jsonschema.Draft202012Validator(_schema(merged), format_checker=formats)


def _only_text(holds: Callable[[str], bool]) -> Callable[[object], bool]:
    return lambda value: not isinstance(value, str) or holds(value)


def known_keys(definition: str) -> tuple[str, ...]:
    """Return the keys that the schema's `definition` knows, in the order in which it lists them."""
    return tuple(_schema(False)["$defs"][definition]["properties"])


def check(document: Document, *, merged: bool = False) -> list[Problem]:
    """Return what the schema finds in a document, sorted.

    Args:
        merged: it is agent-registry.yml, whose entries also say where they were declared.
    """
    return explain(_validator(merged).iter_errors(document.data), document)


def explain(errors: Iterable[Any], document: Document) -> list[Problem]:
    """Turn schema errors and positions into problems, at most one for each wrong value. Pure."""
    found: dict[tuple[Path, str], Problem] = {}
    for error in errors:
        path: Path = tuple(error.absolute_path)
        for subject, problem in _problems(error, path, document):
            found.setdefault((path, subject), problem)
    return sorted(found.values())


def _problems(error: Any, path: Path, document: Document) -> Iterator[tuple[str, Problem]]:
    """Yield (what of the value it is about, problem)."""
    if error.validator == "additionalProperties":
        known = list(error.schema["properties"])
        for key in error.instance:
            if key not in known and not key.startswith(OWN_KEY):
                yield key, document.problem((*path, key), _unknown(key, known), at_key=True)
    elif error.validator == "required":
        for key in error.validator_value:
            if key not in error.instance:
                yield key, document.problem(path, _missing(key, error))
    else:
        yield (
            "",
            document.problem(path, f"{_name(path)} {_wrong(error)}; write {_example(error.schema, path)}"),
        )


def _unknown(key: str, known: list[str]) -> str:
    near = address.nearest(key, known)
    if near:
        return f"unknown key {quoted(key)}, did you mean {near}?"
    return f"unknown key {quoted(key)}; known here: {brief(known, 20)} (a key of your own begins with {OWN_KEY})"


def _missing(key: str, error: Any) -> str:
    definition = error.schema["properties"][key]
    near = address.nearest(key, [name for name in error.instance if name not in error.schema["properties"]])
    if near:
        return f"`{key}` is missing ({quoted(near)} is not it); write {_example(definition, (key,))}"
    return f"`{key}` is missing; write {_example(definition, (key,))}"


def _name(path: Path) -> str:
    """Return what to call the value at `path`: its key, or its place in a list."""
    if not path:
        return "the file"
    last = path[-1]
    if isinstance(last, str):
        return f"`{quoted(last)}`"
    around = next((part for part in reversed(path) if isinstance(part, str)), None)
    return f"number {last + 1} of `{around}`" if around else f"entry {last + 1}"


def _wrong(error: Any) -> str:
    value, title = error.instance, error.schema.get("title", "what it must be")
    match error.validator:
        case "type":
            is_now = "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "text"
            is_now = is_now if value else "empty"
            return f"must be {_KINDS.get(error.validator_value, title)}, but is {is_now}"
        case "enum":
            near = address.nearest(value, error.validator_value) if isinstance(value, str) else None
            hint = f", did you mean {near}?" if near else ""
            shown = quoted(value) if isinstance(value, str) else "that"
            return f"must be {' or '.join(error.validator_value)}, not {shown}{hint}"
        case "minItems":
            return "is an empty list"
        case "uniqueItems":
            twice = next((item for item in value if value.count(item) > 1), "")
            return f"names {quoted(str(twice))} twice"
        case "maxLength":
            return f"is longer than {error.validator_value} characters"
        case _ if value == "":
            return f"is empty, but must be {title}"
        case _:
            return f"is {quoted(str(value))}, which is not {title}"


def _example(definition: dict[str, Any], path: Path) -> str:
    """Return a right form of what `definition` describes, under its key where it has one."""
    while "$ref" in definition:
        definition = _schema(False)["$defs"][definition["$ref"].rpartition("/")[2]]
    if "examples" not in definition and "then" in definition:
        definition = definition["then"]
    example = str(definition.get("examples", ["..."])[0])
    key = path[-1] if path else None
    return f"`{key}: {example}`" if isinstance(key, str) else f"`{example}`"
