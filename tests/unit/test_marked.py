"""A text between two markers: what is around it stays, whatever it is."""

from hypothesis import given
from hypothesis import strategies as st

from postmaster.directory import marked, rule

_TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029"), max_size=60)
_AROUND = st.binary(max_size=80).filter(lambda raw: b"postmaster rule" not in raw)


@given(_AROUND, _AROUND, _TEXT, _TEXT)
def test_everything_else_stays(before: bytes, after: bytes, first: str, second: str) -> None:
    """Put in, put in again and changed: the same block, with the same bytes around it."""
    once = marked.splice(before, "lab.one", first)
    assert once.startswith(before)
    assert marked.splice(once, "lab.one", first) == once
    whole = once + after
    changed = marked.splice(whole, "lab.one", second)
    assert marked.splice(changed, "lab.one", first) == whole
    assert changed.endswith(after) and changed.startswith(before)
    assert marked.splice(changed, "lab.two", first).startswith(changed)


@given(st.text(max_size=60))
def test_a_code_span_holds_any_text(text: str) -> None:
    """Its fence is longer than any in it, it has no line break and no blank is lost at its ends."""
    span = rule._code(text)
    fence = span[: len(span) - len(span.lstrip("`"))]
    inner = span[len(fence) : -len(fence)]
    assert fence and span.endswith(fence) and fence not in inner
    assert "\n" not in span and "\r" not in span and span.isprintable()
