"""Reading a header: YAML as libyaml reads it, without typing, and where its entries stand in the text. Pure.

Every scalar is text as typed. What would make a value mean something else than its text is refused.
"""

import re
from typing import Any, Final

import yaml

from postmaster.decide import quoted

MAX_DEPTH: Final = 20

_Loader: Any = getattr(yaml, "CBaseLoader", yaml.BaseLoader)
# `key: value` with an ASCII value that begins with a letter or digit, ends in no space, and holds neither `#` (which
# may begin a comment) nor `:` before a space (which would begin a mapping).
_SIMPLE: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_-]{0,99}):[ ]+([A-Za-z0-9](?:(?:[!-\"$-9;-~ ]|:(?=[!-~]))*[!-\"$-9;-~])?)\r?\n"
)


class Refused(Exception):
    """A message that cannot be routed as it stands.

    Attributes:
        reason: `malformed-header` or `invalid-header`.
        detail: the line and the field, and what is wrong there.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail


class Reader:
    """The mapping that a header's text is, and where its entries stand in the text.

    Attributes:
        fields: every key and value; text, or lists and mappings of text.
        spans: for every key, (where it begins, where its value ends) as positions in the text.
        flow: the mapping is written in braces.
        indent: how far its entries are indented.
        insert_at: where further entries can be put.

    Raises:
        Refused: `malformed-header`, with the line.
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.fields: dict[str, Any] = {}
        self.spans: dict[str, tuple[int, int]] = {}  # key start, value end: positions in `text`
        self.block_values: set[str] = set()  # keys whose value's end mark is the next token's start
        self.flow = False
        self.indent = 0
        self.insert_at = 0
        if not self._simple():
            self._full()

    def _simple(self) -> bool:
        """Read a header of nothing but plain one-line texts, which most are, without the YAML parser.

        It takes only lines of which YAML says the same (a property test holds the two against each other).
        """
        text, fields, spans, position = self.text, self.fields, self.spans, 0
        while (found := _SIMPLE.match(text, position)) is not None:
            name, value = found.groups()
            if name in fields:
                break
            fields[name] = value
            spans[name] = (position, found.end(2))
            position = found.end()
        if position == len(text) and fields:
            return True
        fields.clear()
        spans.clear()
        return False

    def _full(self) -> None:
        """Read any header, by the events of the YAML parser."""
        try:
            parser = _Loader(self.text)
        except (yaml.YAMLError, ValueError) as fault:  # the pure parser reads ahead when made
            raise self._syntax(fault) from fault
        try:
            self._document(parser)
        except yaml.YAMLError as fault:
            raise self._syntax(fault) from fault
        finally:
            parser.dispose()

    def line(self, position: int) -> int:
        """Return the line of the file that holds this position: the header's text starts on line 2."""
        return self.text.count("\n", 0, position) + 2

    def _syntax(self, fault: Exception) -> Refused:
        mark = getattr(fault, "problem_mark", None) or getattr(fault, "context_mark", None)
        position = getattr(fault, "position", None)
        problem = getattr(fault, "problem", None) or getattr(fault, "reason", None) or "unreadable"
        if mark is not None:
            where = f"line {mark.line + 2}: "
        elif isinstance(position, int) and position >= 0:
            where = f"line {self.line(position)}: "
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
        self.flow = bool(event.flow_style)
        start = event.start_mark.index
        self.insert_at = start + 1 if self.flow else self.text.rfind("\n", 0, start) + 1
        self.indent = start - self.insert_at
        while not _is(key := parser.get_event(), yaml.MappingEndEvent):
            name = self._key(key, self.fields)
            before = self.text[self.text.rfind("\n", 0, key.start_mark.index) + 1 : key.start_mark.index]
            if not self.flow and before.strip(" "):
                raise self._refuse(key, f"`{quoted(name)}` does not begin its line")
            value = parser.get_event()
            self.fields[name] = self._value(value, parser, 1)
            end = self._end
            self.spans[name] = (key.start_mark.index, end)
            if not isinstance(value, yaml.ScalarEvent) or value.style in ("|", ">"):
                self.block_values.add(name)
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

    def extent(self, name: str) -> tuple[int, int]:
        """Return the stretch of text to cut so that the entry `name` is gone and the others stay as typed."""
        start, end = self.spans[name]
        order = list(self.spans)
        place = order.index(name)
        following = self.spans[order[place + 1]][0] if place + 1 < len(order) else None
        if self.flow:
            if following is not None:
                return start, following
            comma = self.text.find(",", end)
            tail = self.text[end:comma] if comma >= 0 else "x"
            return start, (comma + 1 if not tail.strip() else end)
        start = self.text.rfind("\n", 0, start) + 1
        if name in self.block_values and following is not None:
            return start, self.text.rfind("\n", 0, following) + 1
        newline = self.text.find("\n", max(end - 1, start) if name in self.block_values else end)
        return start, len(self.text) if newline < 0 else newline + 1


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
