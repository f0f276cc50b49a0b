"""The JSON Schemas of the files that people write, as they are published for editors and other checkers.

Postmaster takes every scalar as text; an editor reads YAML with its types and sees a number in `max_attempts: 3`. What
is published therefore takes both, and no `format` that only Postmaster knows. schemas/ holds it in the repository
(scripts/write-schemas), and in every office (`init`), so that `# yaml-language-server: $schema=` can name it.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

from postmaster import address, settings, times
from postmaster.registry import schema as declared

DECLARATION: Final = "declaration"
SETTINGS: Final = "post-office"
NAMES: Final = (DECLARATION, "agent-registry", SETTINGS)

Schema = dict[str, Any]

# What `registry check` tells by a rule of its own (registry/rules.py), with better words than a schema has: each
# accepted type says who may send it, or the agent says so for all.
_SENDERS_ARE_NAMED: Final[list[Schema]] = [
    {"required": ["accepts_from"]},
    {"properties": {"accepts": {"items": {"type": "object", "required": ["accepts_from"]}}}},
]

_END: Final = "$(?!\\n)"  # `$` alone matches before a line break at the end too
# How an editor may read a scalar that is text to us, and a text that it reads so.
_TYPED: Final = {"integer": "7", "number": "1.5", "boolean": "true", "null": ""}
_NATIVE: Final[dict[str, Any]] = {"true": True, "false": False}


def file_name(name: str) -> str:
    """Return what the file of a schema is called."""
    return f"{name}.schema.json"


def text(name: str) -> str:
    """Return one of the schemas (`NAMES`) as it is published."""
    return json.dumps(_make(name), indent=2, ensure_ascii=False) + "\n"


def _make(name: str) -> Schema:
    if name == SETTINGS:
        form = _settings()
    else:
        form = declared.definition(merged=name != DECLARATION)
        form["$defs"].pop("written_by_merge")
        form["$defs"]["entry"]["anyOf"] = _SENDERS_ARE_NAMED
        if name != DECLARATION:
            form["title"] = "The merged registry, as `postmaster registry merge` writes it (agent-registry.yml)"
    made: Schema = _as_editors_read(form)
    return {**made, "$id": f"urn:postmaster:{name}:1"}


def _as_editors_read(part: Any) -> Any:
    """Return a schema that takes scalars as text or with the type that YAML gives them."""
    if isinstance(part, list):
        return [_as_editors_read(item) for item in part]
    if not isinstance(part, dict):
        return part
    made = {key: _as_editors_read(value) for key, value in part.items() if key != "format"}
    if part.get("type") == "string":
        made["type"] = ["string", *(kind for kind, example in _TYPED.items() if _takes(part, example))]
        if "integer" in made["type"] and not _takes(part, "-1"):
            made["minimum"] = 0 if _takes(part, "0") else 1
    if isinstance(part.get("enum"), list):
        made["enum"] = [*part["enum"], *(_native(word) for word in part["enum"] if _native(word) != word)]
    return made


def _takes(part: Mapping[str, Any], example: str) -> bool:
    return re.search(part.get("pattern", ""), example) is not None


def _native(word: str) -> Any:
    return int(word) if word.isdecimal() else _NATIVE.get(word, word)


# -- post-office.yml -----------------------------------------------------------------------------------------------


def _settings() -> Schema:
    told = _told()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "",
        "title": "The settings of a post office (post-office.yml)",
        "description": "Every setting has a default. Keys that begin with x- are yours.",
        "type": ["object", "null"],
        "properties": {key: {**told[key], **form} for key, form in _FORMS.items()},
        "patternProperties": {"^x-": True},
        "additionalProperties": False,
    }


def _told() -> dict[str, Schema]:
    """Return what the commented settings of a new office say of each key: what it means, and its default."""
    told = {}
    for block in settings.TEMPLATE.split("\n\n")[1:]:
        *said, last = (line.removeprefix("# ") for line in block.strip().split("\n"))
        key, _, shown = last.partition(": ")
        default: Any = {"{}": {}, '""': ""}.get(shown, _native(shown))
        told[key] = {"description": " ".join(said), "default": default}
    return told


def _matching(pattern: str, **more: Any) -> Schema:
    return {"type": "string", "pattern": f"^(?:{pattern}){_END}", **more}


def _amount(units: Mapping[str, int]) -> Schema:
    return _matching(f"[0-9]{{1,15}} ?(?:{'|'.join(_any_case(unit) for unit in units)})")


def _any_case(word: str) -> str:
    return "".join(f"[{letter.lower()}{letter.upper()}]" for letter in word)


_SWITCH: Final = _matching("|".join(_any_case(word) for word in settings.SWITCHES))
_DOMAIN: Final = address.MAILBOX_PATTERN.split("@", 1)[1]
_PATH: Final = _matching("[^\\u0000-\\u001f\\u007f]+", maxLength=3000)
_REMOTE: Final = {
    "type": "object",
    "properties": {
        "url": _matching(
            f"(?!.*::)(?:{settings.URL_PATTERN})",
            description="Where its mail repository is: a path, file://, ssh://, git://, https://, or host:path.",
        ),
        "domains": {
            "description": "The domains whose mail it brings and takes.",
            "type": "array",
            "items": _matching(_DOMAIN, maxLength=255),
            "minItems": 1,
        },
        "max_messages": _matching("[0-9]{1,15}", description="The most messages that it may bring in one pass."),
        "max_bytes": {**_amount(settings.SIZES), "description": "The most bytes that it may bring in one pass."},
        "sign": {**_PATH, "description": "The file of the SSH key that letters to it are signed with."},
        "verify": {**_PATH, "description": "The file of allowed signers that its letters are held against."},
    },
    "required": ["url", "domains"],
    "patternProperties": {"^x-": True},
    "additionalProperties": False,
}

# The forms of what `settings` reads, key by key; tested to agree with it.
_FORMS: Final[dict[str, Schema]] = {
    "name": _matching(address.NAME_PATTERN, maxLength=128),
    "max_message_bytes": _amount(settings.SIZES),
    "settle_seconds": _amount(times.UNITS),
    "expire_after": _amount(times.UNITS),
    "require_owner": _SWITCH,
    "drop_folders": _SWITCH,
    "turn_retry_after": _amount(times.UNITS),
    "operator": _matching(f"(?:{address.MAILBOX_PATTERN})?", maxLength=320),
    "remotes": {
        "type": "object",
        "propertyNames": {"pattern": f"^(?:x-.*|{address.NAME_PATTERN}){_END}"},
        "patternProperties": {"^x-": True},
        "additionalProperties": _REMOTE,
    },
}
