"""Reading any header by the events of the YAML parser. Pure."""

from typing import TYPE_CHECKING, Any, Final

import yaml

from postmaster.errors import Refused
from postmaster.printable import quoted

if TYPE_CHECKING:
    from postmaster.header import Reader

MAX_DEPTH: Final = 20

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)


def read_into(reader: "Reader") -> None:
    """Fill a reader with what its text holds.

    Raises:
        Refused: `malformed-header`, with the line.
    """
    _Events(reader).read()


class _Events:
    def __init__(self, reader: "Reader") -> None:
        self._reader = reader
        self._text = reader.text
        self._end = 0

    def read(self) -> None:
        try:
            parser = _Loader(self._text)
        except (yaml.YAMLError, ValueError) as fault:  # the pure parser reads ahead when made
            raise self._syntax(fault) from fault
        try:
            self._document(parser)
        except yaml.YAMLError as fault:
            raise self._syntax(fault) from fault
        finally:
            parser.dispose()

    def _syntax(self, fault: Exception) -> Refused:
        mark = getattr(fault, "problem_mark", None) or getattr(fault, "context_mark", None)
        position = getattr(fault, "position", None)
        problem = getattr(fault, "problem", None) or getattr(fault, "reason", None) or "unreadable"
        if mark is not None:
            where = f"line {mark.line + 2}: "
        elif isinstance(position, int) and position >= 0:
            where = f"line {self._reader.line(position)}: "
        else:
            where = ""
        return Refused("malformed-header", f"{where}{quoted_problem(str(problem))}")

    def _refuse(self, event: Any, what: str) -> Refused:
        return Refused("malformed-header", f"line {event.start_mark.line + 2}: {what}")

    def _document(self, parser: Any) -> None:
        parser.get_event()  # stream start
        event: Any = parser.get_event()
        if isinstance(event, yaml.StreamEndEvent):
            raise Refused("malformed-header", "the header is empty")
        if event.explicit or event.version or event.tags:
            raise self._refuse(event, "a second document or a directive inside the header")
        event = parser.get_event()
        if not _is(event, yaml.MappingStartEvent):
            raise self._refuse(event, "the header is not a mapping of `key: value` lines")
        self._plain(event)
        self._reader.flow = bool(event.flow_style)
        start = event.start_mark.index
        self._reader.insert_at = start + 1 if self._reader.flow else self._text.rfind("\n", 0, start) + 1
        self._reader.indent = start - self._reader.insert_at
        while not _is(key := parser.get_event(), yaml.MappingEndEvent):
            name = self._key(key, self._reader.fields)
            before = self._text[self._text.rfind("\n", 0, key.start_mark.index) + 1 : key.start_mark.index]
            if not self._reader.flow and before.strip(" "):
                raise self._refuse(key, f"`{quoted(name)}` does not begin its line")
            value = parser.get_event()
            self._reader.fields[name] = self._value(value, parser, 1)
            end = self._end
            self._reader.spans[name] = (key.start_mark.index, end)
            if not isinstance(value, yaml.ScalarEvent) or value.style in ("|", ">"):
                self._reader.block_values.add(name)
        event = parser.get_event()
        if event.explicit:
            raise self._refuse(event, "a document end `...` inside the header")
        event = parser.get_event()
        if not isinstance(event, yaml.StreamEndEvent):
            raise self._refuse(event, "a second document inside the header")

    def _plain(self, event: Any) -> None:
        """Refuse what makes a value mean something else than its text."""
        if _is(event, yaml.AliasEvent):
            raise self._refuse(event, f"an alias (`*{quoted(event.anchor, 30)}`); quote a value that begins with *")
        if event.anchor is not None:
            raise self._refuse(event, f"an anchor (`&{quoted(event.anchor, 30)}`); quote a value that begins with &")
        if event.tag is not None:
            raise self._refuse(event, f"a tag ({quoted(event.tag, 40)}); quote a value that begins with !")

    def _key(self, event: Any, into: dict[str, Any]) -> str:
        self._plain(event)
        if not _is(event, yaml.ScalarEvent):
            raise self._refuse(event, "a key that is not text")
        name = str(event.value)
        if name in into:
            raise self._refuse(event, f"the key {quoted(name)} stands twice")
        return name

    def _value(self, event: Any, parser: Any, depth: int) -> Any:
        self._plain(event)
        self._end = event.end_mark.index
        if isinstance(event, yaml.ScalarEvent):
            return event.value
        if depth >= MAX_DEPTH:
            raise self._refuse(event, f"nested more than {MAX_DEPTH} deep")
        if isinstance(event, yaml.SequenceStartEvent):
            items = []
            while not _is(item := parser.get_event(), yaml.SequenceEndEvent):
                items.append(self._value(item, parser, depth + 1))
            self._end = item.end_mark.index
            return items
        mapping: dict[str, Any] = {}
        while not _is(key := parser.get_event(), yaml.MappingEndEvent):
            name = self._key(key, mapping)
            mapping[name] = self._value(parser.get_event(), parser, depth + 1)
        self._end = key.end_mark.index
        return mapping


def _is(event: Any, kind: type) -> bool:
    """Tell what an event is, without narrowing: the stubs of yaml's events leave out their marks."""
    return isinstance(event, kind)


def quoted_problem(problem: str) -> str:
    """Return the YAML parser's words, with a hint where a plain value is the usual culprit."""
    if "mapping values are not allowed" in problem:
        return problem + " (a value that holds `: ` needs quotes)"
    if "cannot start any token" in problem or "while scanning" in problem:
        return problem + " (quote the value)"
    return problem
