"""agent-registry.yml as `registry merge` writes it: stable, readable, and text when read back. Pure.

The last line carries a digest of the lines before it. A file that still agrees with it is what a merge
wrote and checked; one that was edited by hand is checked again; one that begins as a merge begins it but has
no last line is half a file, and no registry.
"""

import re
from collections.abc import Sequence
from hashlib import md5
from typing import Any, Final

from postmaster.registry.view import Entry

HEADER: Final = "# written by `postmaster registry merge`; edit registry.d/ instead"
_END: Final = re.compile(rb"^# end of registry: [0-9]+ agents, md5 ([0-9a-f]{32})[ \t\r\n]*\Z", re.MULTILINE)

# Plain where no YAML 1.1 or 1.2 reader can take the text for anything else: it begins with a letter or as a path,
# has no odd characters, and is not one of the words that stand for a truth value or nothing.
_PLAIN: Final = re.compile(r"(?:~?/)?[A-Za-z](?:[A-Za-z0-9 ._/@:+-]*[A-Za-z0-9._/@+-])?")
_WORDS: Final = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_ESCAPES: Final = {'"': '\\"', "\\": "\\\\", "\n": "\\n", "\t": "\\t", "\r": "\\r"}


def render(entries: Sequence[Entry]) -> bytes:
    """Return the bytes of agent-registry.yml for entries that are in the order of their ids."""
    lines = [HEADER, "agents:" if entries else "agents: []"]
    for entry in entries:
        lines += _block(entry, "    ", first="  - ")
    text = "\n".join(lines) + "\n"
    digest = md5(text.encode(), usedforsecurity=False).hexdigest()
    return f"{text}# end of registry: {len(entries)} agents, md5 {digest}\n".encode()


def is_as_written(raw: bytes) -> bool:
    """Tell whether these are exactly the bytes that a merge wrote."""
    end = _END.search(raw)
    return end is not None and md5(raw[: end.start()], usedforsecurity=False).hexdigest() == end[1].decode()


def is_cut_short(raw: bytes) -> bool:
    """Tell whether these bytes begin as a merge begins them, but lack the last line."""
    return raw.startswith(HEADER.encode()) and _END.search(raw) is None


def _block(mapping: dict[str, Any], indent: str, *, first: str) -> list[str]:
    """Return a mapping as lines; `first` leads the first of them instead of `indent`."""
    lines: list[str] = []
    for key, value in mapping.items():
        lead = indent if lines else first
        if isinstance(value, list) and any(isinstance(item, dict | list) for item in value):
            lines.append(f"{lead}{scalar(key)}:")
            for item in value:
                if isinstance(item, dict) and item and not _is_short(item):
                    lines += _block(item, indent + "    ", first=indent + "  - ")
                else:
                    lines.append(f"{indent}  - {_flow(item)}")
        elif isinstance(value, dict) and value and not _is_short(value):
            lines.append(f"{lead}{scalar(key)}:")
            lines += _block(value, indent + "  ", first=indent + "  ")
        else:
            lines.append(f"{lead}{scalar(key)}: {_flow(value)}")
    return lines


def _is_short(mapping: dict[str, Any]) -> bool:
    return len(_flow(mapping)) <= 80


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(_flow(item) for item in value) + "]"
    return scalar(str(value))


def scalar(text: str) -> str:
    """Return `text` as a YAML scalar that every reader takes for that text."""
    if _PLAIN.fullmatch(text) and " :" not in text and ": " not in text and text.casefold() not in _WORDS:
        return text
    return '"' + "".join(_ESCAPES.get(c) or _escaped(c) for c in text) + '"'


def _escaped(character: str) -> str:
    code = ord(character)
    if character.isprintable():
        return character
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
