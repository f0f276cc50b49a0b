"""A hook of MkDocs: what pages of docs/ lead to outside of it becomes part of the site, below repository/.

The pages are written to be read in the repository, where a link is relative to the page. In the site a file that lies
outside of docs/ is at `repository/PATH`, and a link to it, or from it back into docs/, is written anew. A directory
without a README.md has no page: its link becomes plain text.
"""

import posixpath
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).resolve().parents[2]
OUTSIDE: Final = "repository/"
LINK: Final = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
ALWAYS: Final = (
    "README.md",
    "examples/README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)  # named in the navigation


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that its pages lead to, and those that these lead to."""
    found: set[str] = set()
    waiting = [f"docs/{file.src_uri}" for file in files.documentation_pages()] + list(ALWAYS)
    while waiting:
        path = waiting.pop()
        if not path.startswith("docs/"):
            if path in found:
                continue
            found.add(path)
        if path.endswith(".md"):
            targets = (_resolve(path, match.group(3))[0] for match in _links((ROOT / path).read_text("utf-8")))
            waiting += [target for target in targets if target and not target.startswith("docs/")]
    for path in sorted(found):
        files.append(File.generated(config, OUTSIDE + path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write the links of a page anew, for where its targets are in the site."""
    source = page.file.src_uri
    path = source.removeprefix(OUTSIDE) if source.startswith(OUTSIDE) else f"docs/{source}"

    def moved(match: re.Match[str]) -> str:
        target, anchor = _resolve(path, match.group(3))
        if target is None:
            return match.group(0)
        if not target:
            return match.group(2)
        there = target.removeprefix("docs/") if target.startswith("docs/") else OUTSIDE + target
        link = posixpath.relpath(there, posixpath.dirname(source) or ".")
        return f"{match.group(1)}[{match.group(2)}]({link}{anchor})"

    return _outside_code(markdown, lambda text: LINK.sub(moved, text))


def _resolve(path: str, link: str) -> tuple[str | None, str]:
    """Return (path in the repository, anchor) of a link on the page `path`: None if it is none, "" for a directory."""
    place, mark, anchor = link.partition("#")
    if not place or "://" in link or place.startswith(("/", "mailto:")):
        return None, ""
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), place))
    if (ROOT / target).is_dir():
        target = f"{target}/README.md" if (ROOT / target / "README.md").is_file() else ""
    return target, mark + anchor


def _links(markdown: str) -> list[re.Match[str]]:
    found: list[re.Match[str]] = []

    def collect(text: str) -> str:
        found.extend(LINK.finditer(text))
        return text

    _outside_code(markdown, collect)
    return found


def _outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply `change` to what is not code: neither in a fenced block nor in a span."""
    parts = re.split(r"(^(?:```|~~~).*?^(?:```|~~~)[ ]*$|(?<=[ (|])`[^`\n]*`)", markdown, flags=re.M | re.S)
    return "".join(part if index % 2 else change(part) for index, part in enumerate(parts))
