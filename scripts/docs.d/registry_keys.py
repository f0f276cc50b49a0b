"""docs/reference/registry.md: the keys of a declaration, from its JSON Schema."""

import json
from typing import Any, Final

from written import Gap, cell, code, table

from postmaster.registry.schema import schema_text

HEAD: Final = """
# Keys of a declaration

From the JSON Schema that `postmaster registry schema` prints, and that every merge holds each declaration against. What
the keys are for: [formats/registry.md](../formats/registry.md). How to write one, step by step:
[the tutorial](../tutorials/declaration.md).

Every value is text as typed: `4`, `no` and `1e5` are the texts "4", "no" and "1e5". Keys that begin with `x-` are your
own and are accepted everywhere. Any other unknown key is refused.
"""

# definition of the schema -> heading, and a sentence of introduction
SECTIONS: Final = {
    "declaration": ("The file", "A mapping with these keys; or a bare list of entries."),
    "entry": ("An entry", "One agent, in the list `agents`."),
    "accept_mapping": ("An accepted type", "In the list `accepts`. The name alone, as text, is enough too."),
    "emit": ("An emitted type", "In the list `emits`."),
    "instances": ("instances", "`many`, `per-flow`, `single`, or a mapping with this key."),
    "written_by_merge": (
        "Only in agent-registry.yml",
        "A merge adds these to an entry. A declaration has none of them.",
    ),
}


def page() -> str:
    """Return the page."""
    schema: dict[str, Any] = json.loads(schema_text())
    definitions = schema["$defs"]
    parts = [HEAD]
    for name, (heading, introduction) in SECTIONS.items():
        definition = definitions[name]
        definition = definition.get("else", definition)
        rows = [
            [code(key), "required" if key in definition.get("required", ()) else "", *_form(value, definitions)]
            for key, value in definition["properties"].items()
        ]
        parts.append(f"\n## {heading}\n\n{introduction}\n\n{table(['key', '', 'form', 'example'], rows)}")
    left_out = {key for key, value in definitions.items() if "properties" in value} - set(SECTIONS)
    if left_out:
        raise Gap(f"SECTIONS in scripts/docs.d/registry_keys.py lacks a definition: {', '.join(sorted(left_out))}")
    parts.append(_patterns(definitions))
    return "".join(parts)


def _form(value: dict[str, Any], definitions: dict[str, Any]) -> list[str]:
    """Return what a value must be, and an example."""
    while "$ref" in value:
        value = definitions[value["$ref"].rpartition("/")[2]]
    form = cell(value["title"])
    if "enum" in value:
        form += ": " + ", ".join(code(one) for one in value["enum"])
    examples = value.get("examples") or value.get("then", {}).get("examples") or [""]
    return [form, code(examples[0]) if examples[0] else ""]


def _patterns(definitions: dict[str, Any]) -> str:
    rows = [
        [cell(value["title"]), code(value["pattern"].replace("`", "\\x60"))]
        for value in definitions.values()
        if "pattern" in value and len(value["pattern"]) < 100
    ]
    return f"\n## Forms\n\nThe regular expressions of the simpler texts.\n\n{table(['text', 'pattern'], rows)}"
