"""The pages for people: their links lead somewhere."""

import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGES = sorted(
    [
        *REPOSITORY.glob("*.md"),
        *(REPOSITORY / "docs").rglob("*.md"),
        *(REPOSITORY / "examples").glob("*.md"),
        *(REPOSITORY / "examples").glob("*/README.md"),
    ]
)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(REPOSITORY)))
def test_links(page: Path) -> None:
    """Every relative link of the page leads to a file or directory of this repository."""
    text = re.sub(r"^(```|~~~).*?^\1|`[^`\n]+`", "", page.read_text("utf-8"), flags=re.M | re.S)
    targets = [link.split("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in link]
    assert [target for target in targets if target and not (page.parent / target).exists()] == []
