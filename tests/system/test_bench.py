"""scripts/bench: that it measures everything it says, on tiny sizes. How fast anything is is not judged here."""

import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

REPOSITORY = Path(__file__).parents[2]
BENCH = REPOSITORY / "scripts" / "bench"
ROWS = [
    *("limit", "maildir", "shell"),
    *("size-1", "size-100", "size-10000", "size-100000", "linear", "linear-limit", "memory"),
    *("history-tail", "history-tenth", "history", "agents"),
    *("directory-empty", "directory", "directory-names"),
    *("empty", "empty-agents", "urgent", "urgent-two"),
]
TARGETS = {
    "limit": 0.5,
    "maildir": 1.5,
    "shell": 60,
    "linear": 1.15,
    "memory": 150,
    "history": 1.15,
    "agents": 1.15,
    "directory-empty": 1.05,
    "directory": 1.15,
    "directory-names": 1.15,
    "empty": 4,
    "empty-agents": 4,
}
pytestmark = pytest.mark.xdist_group("bench")  # one run of the script serves them all
SVG = "{http://www.w3.org/2000/svg}"


def bench(*args: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the script with this Python."""
    return subprocess.run(
        [sys.executable, str(BENCH), *map(str, args)],
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A directory with the figures and the chart of a quick run, and what it printed."""
    place = tmp_path_factory.mktemp("bench")
    (place / "work").mkdir()
    files = ("--json", place / "figures.json", "--chart", place / "chart.svg")
    done = bench("--quick", "--dir", place / "work", *files)
    assert done.returncode == 0, done.stderr
    return place, done


def test_every_row_is_there(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The JSON has every row with its target; only what needs a C compiler may be without a value."""
    place, _ = run
    result = json.loads((place / "figures.json").read_text("utf-8"))
    rows = {row["id"]: row for row in result["rows"]}
    assert list(rows) == ROWS
    assert {name: row["target"] for name, row in rows.items() if row["target"] is not None} == TARGETS
    has_compiler = any("C limit" in one["contender"] for one in result["runs"]["rate"])
    for name, row in rows.items():
        needs_compiler = name in ("limit", "linear-limit") or (name.startswith("size-1") and name != "size-1")
        assert (row["value"] is not None) is (has_compiler or not needs_compiler), name
        assert (row["reached"] is None) is (row["target"] is None or row["value"] is None), name
    assert result["quick"] is True


def test_the_table_shows_the_same(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Standard output is the table: headings, a rule, a line for every row."""
    place, done = run
    result = json.loads((place / "figures.json").read_text("utf-8"))
    lines = done.stdout.splitlines()
    assert len(lines) == 2 + len(ROWS)
    for line, row in zip(lines[2:], result["rows"], strict=True):
        assert line.startswith(row["work"])


def test_the_chart_is_svg(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """The chart is well-formed, with a bar for every run, all inside the picture."""
    place, _ = run
    root = ElementTree.parse(place / "chart.svg").getroot()
    assert root.tag == SVG + "svg"
    bars = [bar for bar in root.iter(SVG + "rect") if bar.get("class") in ("ours", "theirs")]
    assert len(bars) >= 15
    for bar in bars:
        assert float(bar.get("x", 0)) + float(bar.get("width", 0)) < float(root.get("width", 0))
        assert float(bar.get("y", 0)) + float(bar.get("height", 0)) < float(root.get("height", 0))


def test_it_leaves_nothing_behind(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """Its offices are gone when it ends."""
    place, _ = run
    assert os.listdir(place / "work") == []


def test_figures_can_be_shown_again(run: tuple[Path, subprocess.CompletedProcess[str]], tmp_path: Path) -> None:
    """`--from` measures nothing and shows the same table and chart."""
    place, done = run
    again = bench("--from", place / "figures.json", "--chart", tmp_path / "again.svg")
    assert again.returncode == 0, again.stderr
    assert again.stdout == done.stdout
    assert (tmp_path / "again.svg").read_bytes() == (place / "chart.svg").read_bytes()


def test_a_quick_run_never_becomes_the_documentation(run: tuple[Path, subprocess.CompletedProcess[str]]) -> None:
    """`--write-docs` refuses figures that are not of a whole run, and leaves the page alone."""
    place, _ = run
    page = REPOSITORY / "docs" / "performance.md"
    before = page.read_bytes()
    assert bench("--quick", "--write-docs").returncode == 2
    refused = bench("--from", place / "figures.json", "--write-docs")
    assert refused.returncode == 1
    assert "not of a whole run" in refused.stderr
    assert page.read_bytes() == before


def test_the_page_shows_its_figures() -> None:
    """docs/performance.md has the table that belongs to docs/performance.json, and shows the chart."""
    figures = json.loads((REPOSITORY / "docs" / "performance.json").read_text("utf-8"))
    page = (REPOSITORY / "docs" / "performance.md").read_text("utf-8")
    assert [row["id"] for row in figures["rows"]] == ROWS
    block = page.partition("<!-- bench:begin -->")[2].partition("<!-- bench:end -->")[0]
    assert figures["date"] in block
    for row in figures["rows"]:
        assert f"| {row['work']} |" in block
    assert "](performance.svg)" in page
    ElementTree.parse(REPOSITORY / "docs" / "performance.svg")
