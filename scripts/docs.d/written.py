"""Small parts of markdown, and the one fault of the generator."""

import re
from collections.abc import Iterable, Sequence
from typing import Final

WIDTH: Final = 120


class Gap(Exception):
    """Something that the code has, and a table of the generator or a page lacks; told to whoever runs it."""


def prose(text: str) -> str:
    """Return a paragraph of plain text as markdown: what would be markup is escaped, but for `code`."""
    parts = re.split(r"(`[^`]*`)", " ".join(text.split()))
    plain = "".join(part if index % 2 else re.sub(r"([*<\[\]])", r"\\\1", part) for index, part in enumerate(parts))
    lines = [""]
    for word in re.findall(r"(?:`[^`]*`|\S)+", plain):  # `a span of code` stays on one line
        if lines[-1] and len(lines[-1]) + 1 + len(word) > WIDTH:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".lstrip()
    return "\n".join(lines)


def cell(text: str) -> str:
    """Return text as a cell of a table."""
    return prose(text).replace("\n", " ").replace("|", "\\|")


def code(text: object) -> str:
    """Return text as code, in a cell too."""
    return f"`{text}`".replace("|", "\\|")


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table whose cells are markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(line) + " |\n" for line in lines)


def fence(kind: str, text: str) -> str:
    """Return a block of code."""
    return f"```{kind}\n{text.rstrip()}\n```\n"
