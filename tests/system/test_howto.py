"""The pages that one follows step by step: every command runs as printed, and shows what the page says it shows."""

from pathlib import Path

import pytest
from test_readme_tour import missing_line, play, steps_of

DOCS = Path(__file__).parents[2] / "docs"
PAGES = ("howto/stalled-pipeline.md",)


@pytest.mark.parametrize("page", PAGES)
def test_the_page(page: str, tmp_path: Path) -> None:
    """Every command of the page succeeds, and the lines that it prints are shown, in that order."""
    steps = steps_of((DOCS / page).read_text("utf-8"))
    assert len(steps) > 3
    for step, output, failed in play(steps, tmp_path):
        assert failed == [], output
        missing = missing_line(step.expected, output)
        assert missing is None, f"the page shows {missing!r}, but the commands said:\n{output}"
