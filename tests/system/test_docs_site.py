"""The documentation as a site: it has every page, and links lead to headings that are there."""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *DOCS.rglob("*.md"),
        *(REPOSITORY / "examples").glob("*.md"),
        *(REPOSITORY / "examples").glob("*/README.md"),
    ]
)


def prose(page: Path) -> str:
    """Return the page without its blocks of code."""
    return re.sub(r"^ *(```|~~~).*?^ *\1 *$", "", page.read_text("utf-8"), flags=re.M | re.S)


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page, as GitHub and the site make them of its headings."""
    made: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?)(?: +#+)? *$", prose(page), re.M):
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        anchor = re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-")
        number = next(
            number for number in range(len(made) + 1) if (f"{anchor}-{number}" if number else anchor) not in made
        )
        made.add(f"{anchor}-{number}" if number else anchor)
    return made


def navigation() -> list[str]:
    """Return the pages that mkdocs.yml names, in order."""

    class Loader(yaml.SafeLoader):
        """Passes over the values that only MkDocs can make."""

    Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda loader, suffix, node: None)
    found: list[str] = []

    def walk(part: Any) -> None:
        if isinstance(part, str):
            found.append(part)
        else:
            for one in part.values() if isinstance(part, dict) else part:
                walk(one)

    walk(yaml.load((REPOSITORY / "mkdocs.yml").read_text("utf-8"), Loader)["nav"])
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_anchors(page: Path) -> None:
    """Every link of the page that names a heading names one that is there, as GitHub and the site call it."""
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(page))):
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        if anchor and target.suffix == ".md" and "://" not in link and anchor not in anchors(target):
            wrong.append(link)
    assert wrong == []


def test_the_site_has_every_page() -> None:
    """Every page of docs/ stands in the navigation, once; and what stands there exists."""
    named = navigation()
    assert len(named) == len(set(named))
    files = [
        REPOSITORY / one.removeprefix("repository/") if one.startswith("repository/") else DOCS / one for one in named
    ]
    assert [str(file) for file in files if not file.is_file()] == []
    assert [str(page) for page in DOCS.rglob("*.md") if page not in files] == []


@pytest.mark.skipif(importlib.util.find_spec("mkdocs") is None, reason="MkDocs is not installed (scripts/docs does it)")
def test_the_site_can_be_built(tmp_path: Path) -> None:
    """MkDocs builds the site without a warning: links, anchors and the navigation are as it wants them."""
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert (tmp_path / "site" / "repository" / "index.html").is_file()
    pages = [page.read_text("utf-8") for page in (tmp_path / "site").rglob("*.html")]
    assert len(pages) > 30
    assert not any(re.search(r"""(src=|<link[^>]*href=)["']?https?://""", page) for page in pages), "a page fetches"


def test_the_site_replaces_nothing_but_itself(tmp_path: Path) -> None:
    """scripts/docs refuses a directory that holds something of somebody's, and what is no directory, with 73."""
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / ".thesis").write_text("years")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / ".postmaster-site").symlink_to("../mine/.thesis")
    for place in (tmp_path / "mine", tmp_path / "linked", tmp_path / "mine" / ".thesis", DOCS / "site", ""):
        done = subprocess.run(
            ["bash", str(REPOSITORY / "scripts" / "docs"), str(place)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert (done.returncode, done.stdout) == (73, "")
        assert done.stderr.startswith("scripts/docs: ") and done.stderr.count("\n") == 1
    assert (tmp_path / "mine" / ".thesis").read_text() == "years" and not (DOCS / "site").exists()
