"""Reading a header: YAML as libyaml reads it, without typing, and where its entries stand in the text. Pure.

Every scalar is text as typed. What would make a value mean something else than its text is refused.
"""

import re
from typing import Any, Final

from postmaster.errors import Refused as Refused

# `key: value` with an ASCII value that begins with a letter or digit, ends in no space, and holds neither `#` (which
# may begin a comment) nor `:` before a space (which would begin a mapping).
_SIMPLE: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9_-]{0,99}):[ ]+([A-Za-z0-9](?:(?:[!-\"$-9;-~ ]|:(?=[!-~]))*[!-\"$-9;-~])?)\r?\n"
)


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
            from postmaster import header_events  # late: the YAML parser takes as long as the interpreter to start

            header_events.read_into(self)

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

    def line(self, position: int) -> int:
        """Return the line of the file that holds this position: the header's text starts on line 2."""
        return self.text.count("\n", 0, position) + 2

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
