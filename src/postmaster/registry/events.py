"""Building a document from the events of the YAML parser, with the place of every key and value. Pure."""

from collections.abc import Iterator
from typing import Any, Final

import yaml

from postmaster.printable import quoted
from postmaster.registry.source import Document, Path, Problem

MAX_DEPTH: Final = 20
MAX_KEY: Final = 200  # YAML itself allows 1024 before the colon
MAX_PROBLEMS: Final = 100  # of one file's YAML; the first ones are the cause of the rest

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def parse(raw: bytes, file: str) -> tuple[Document, list[Problem]]:
    """As source.parse."""
    document = Document(file)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as bad:
        before = raw[: bad.start]
        line, column = before.count(b"\n") + 1, bad.start - (before.rfind(b"\n") + 1) + 1
        byte = raw[bad.start]
        return document, [Problem(file, line, column, f"byte {byte:#04x} is not UTF-8; save the file as UTF-8")]
    builder = _Builder(document)
    try:
        builder.build(yaml.parse(text, Loader=_Loader))
    except yaml.MarkedYAMLError as bad:
        mark: Any = bad.problem_mark or bad.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        builder.add(line, column, _syntax(bad))
    except yaml.reader.ReaderError as bad:
        at = bad.position if isinstance(bad.position, int) else 0
        line, column = text.count("\n", 0, at) + 1, at - (text.rfind("\n", 0, at) + 1) + 1
        builder.add(line, column, f"{bad.reason}; remove the character")
    except (yaml.YAMLError, ValueError) as bad:
        builder.add(0, 0, f"cannot be read as YAML: {bad}")
    return document, builder.problems


def _syntax(bad: yaml.MarkedYAMLError) -> str:
    what = bad.problem or bad.context or "not YAML"
    hint = ""
    if "mapping values are not allowed" in what:
        hint = "; a value that holds `: ` needs quotes, and keys of one mapping the same indentation"
    elif "scanning an alias" in (bad.context or ""):
        hint = '; quote a value that begins with *, as in "*@council.internal"'
    elif "cannot start any token" in what or "while scanning" in (bad.context or ""):
        hint = "; quote the value (a tab cannot indent, and @ ` * & ! % cannot begin a plain value)"
    elif "expected" in what or "did not find" in what:
        hint = "; check the indentation and the brackets or quotes before it"
    context = f" {bad.context}" if bad.context and bad.problem else ""
    return f"YAML syntax: {what}{context}{hint}"


class _TooMany(ValueError):
    """Reading on would serve nobody."""


class _Builder:
    """Turns the parser's events into data and positions; not recursive: no nesting can exhaust the stack."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.problems: list[Problem] = []

    def add(self, line: int, column: int, message: str) -> None:
        self.problems.append(Problem(self.document.file, line, column, message))

    def build(self, events: Iterator[Any]) -> None:
        try:
            self._build(events)
        except _TooMany:
            return
        finally:
            close = getattr(events, "close", None)
            if close:
                close()

    def _say(self, event: Any, message: str) -> None:
        self.add(event.start_mark.line + 1, event.start_mark.column + 1, message)
        if len(self.problems) >= MAX_PROBLEMS:
            raise _TooMany

    def _build(self, events: Iterator[Any]) -> None:
        stack: list[tuple[Any, Path]] = []  # containers that are open, and their paths
        key: tuple[str, tuple[int, int]] | None = None  # a key that waits for its value
        documents = 0
        for event in events:
            if isinstance(event, yaml.DocumentStartEvent):
                documents += 1
                if documents > 1:
                    self._say(event, "a second YAML document begins here; put all in one, or in another file")
                    raise _TooMany
                continue
            if isinstance(event, yaml.CollectionEndEvent):
                stack.pop()
                continue
            if not isinstance(event, yaml.NodeEvent):
                continue
            self._plain(event)
            text = str(event.value) if isinstance(event, yaml.ScalarEvent) else None
            mark: Any = event.start_mark
            place = (mark.line + 1, mark.column + 1)
            parent, path = stack[-1] if stack else (None, ())
            if isinstance(parent, dict) and key is None:
                key = self._key(event, text, parent, path), place
                continue
            value: Any = text
            if isinstance(event, yaml.CollectionStartEvent):
                if len(stack) >= MAX_DEPTH:
                    self._say(event, f"nested more than {MAX_DEPTH} deep; write it flatter")
                    raise _TooMany
                value = [] if isinstance(event, yaml.SequenceStartEvent) else {}
            if parent is None:
                self.document.data = value
            elif key is None:
                path = (*path, len(parent))
                parent.append(value)
            else:
                path = (*path, key[0])
                parent[key[0]] = value
                self.document.keys[path] = key[1]
                key = None
            self.document.values[path] = place
            if isinstance(event, yaml.CollectionStartEvent):
                stack.append((value, path))

    def _plain(self, event: Any) -> None:
        """Report what makes a value mean something else than its text."""
        if isinstance(event, yaml.AliasEvent):
            self._say(
                event,
                f"an alias (*{quoted(str(event.anchor))}); write it out, or quote text that begins with *",
            )
            raise _TooMany
        if event.anchor is not None:
            self._say(event, f"an anchor (&{quoted(str(event.anchor))}); quote text that begins with &")
        if event.tag is not None:
            self._say(event, f"a tag ({quoted(event.tag)}); remove it, or quote text that begins with !")
        if isinstance(event, yaml.ScalarEvent) and any("\ud800" <= c <= "\udfff" for c in event.value):
            self._say(event, "an escape that is half a character (a surrogate); write the character itself")

    def _key(self, event: Any, text: str | None, parent: dict[str, Any], path: Path) -> str:
        if text is None:
            self._say(event, "a key that is a list or a mapping; a key is plain text")
            raise _TooMany
        if len(text) > MAX_KEY:
            self._say(event, f"a key of {len(text)} characters, where at most {MAX_KEY} are read; shorten it")
        if text in parent:
            line = self.document.keys[(*path, text)][0]
            self._say(event, f"the key {quoted(text)} stands twice, first on line {line}; remove one of them")
        return text
