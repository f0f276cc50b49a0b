"""A body of a message as HTML that can do nothing. Its text is somebody else's: markup of its own is never obeyed."""

from typing import Final

import nh3
from markdown_it import MarkdownIt
from markupsafe import Markup, escape

from postmaster.printable import printable

MOST_MARKDOWN: Final = 32 * 1024  # characters: rendering a larger body would hold up the page
MOST_SHOWN: Final = 256 * 1024
_SCHEMES: Final = {"http", "https", "mailto"}
_KEPT: Final = "\n\t\u00a0\u202f\u3000"  # blanks that are no threat
_TAGS: Final = {
    *("a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "s", "strong"),
    *("table", "tbody", "td", "th", "thead", "tr", "ul"),
}
# No raw HTML, and no images: `![x](y)` is a link behind an exclamation mark.
_MARKDOWN: Final = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).disable("image")


def as_markdown(text: str) -> Markup:
    """Return a body as markdown (CommonMark, tables, strike-through), with no HTML in it and a strict list after it.

    Headings are paragraphs in bold: a message has no place in the outline of the page.
    """
    tokens = _MARKDOWN.parse(_visible(text))
    for token in tokens:
        if token.type in ("heading_open", "heading_close"):
            token.tag = "p"
            if token.nesting == 1:
                token.attrs = {"class": "heading"}
        elif token.type in ("th_open", "td_open", "ol_open", "fence"):
            token.attrs, token.info = {}, ""
    html = _MARKDOWN.renderer.render(tokens, _MARKDOWN.options, {})
    clean = nh3.clean(
        html,
        tags=_TAGS,
        attributes={"a": {"href"}, "p": {"class"}},
        attribute_filter=_outward,
        url_schemes=_SCHEMES,
        link_rel="noopener noreferrer nofollow",
    )
    return Markup(clean)  # noqa: S704 - this is what nh3 is for


def _outward(tag: str, name: str, value: str) -> str | None:
    """Keep of links those that name a place in full: a message has no business with addresses of this page."""
    if (tag, name) == ("a", "href") and value.partition(":")[0].lower() not in _SCHEMES:
        return None
    return value


def as_text(text: str) -> Markup:
    """Return a text as it was written, but for what would hide, turn or forge something."""
    return escape(_visible(text))


def _visible(text: str) -> str:
    return printable(text.replace("\r\n", "\n"), keep=_KEPT)
