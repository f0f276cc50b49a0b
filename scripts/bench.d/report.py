"""How the figures are shown: a table for the terminal and for docs/performance.md, and a chart."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final
from xml.sax.saxutils import escape

BEGIN: Final = "<!-- bench:begin -->"
END: Final = "<!-- bench:end -->"
_HEADINGS: Final = ("work", "postmaster", "against", "ratio", "target", "")


def cells(rows: Sequence[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table, without its headings, as text."""
    table = []
    for row in rows:
        value = "-" if row["value"] is None else row["form"].format(row["value"])
        target = ""
        if row["target"] is not None:
            unit = row["form"].partition("}")[2]
            target = f"{'at least' if row['at_least'] else 'at most'} {row['target']:g}{unit}"
        mark = {None: "", True: "ok", False: "below" if row["at_least"] else "above"}[row["reached"]]
        table.append((row["work"], row["measured"], row["against"], value, target, mark))
    return table


def text_table(rows: Sequence[dict[str, Any]]) -> str:
    """Return the table for a terminal."""
    table = [_HEADINGS, *cells(rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(_HEADINGS))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def markdown(result: dict[str, Any]) -> str:
    """Return the block that docs/performance.md shows."""
    machine = result["machine"]
    lines = [f"| {' | '.join(line)} |" for line in (_HEADINGS, ("---",) * len(_HEADINGS), *cells(result["rows"]))]
    split = _split(result)
    return "\n".join(
        [
            BEGIN,
            f"{result['date']}; {machine['cores']} cores, {machine['filesystem']}, Linux, Python {machine['python']}; "
            f"load average {machine['load']} when it began.",
            "",
            *lines,
            *(["", split] if split else []),
            END,
        ]
    )


def _split(result: dict[str, Any]) -> str:
    """Return how the time of the middle run divides."""
    parts = []
    for name, title in (("postmaster", "Postmaster"), ("C limit", "the C limit")):
        run = next((one for one in result["runs"].get("rate", []) if one["contender"].startswith(name)), None)
        if run is None:
            return ""
        per_letter = 1e6 / run["letters"]
        user, system = run["user"] * per_letter, run["system"] * per_letter
        total = run["seconds"] * per_letter
        waits = max(0.0, total - user - system)
        parts.append(f"{title} {total:.0f} us ({user:.0f} user, {system:.0f} system, {waits:.0f} waiting)")
    return f"Of one of {run['letters']:,} letters: {', '.join(parts)}."


def write_docs(page: Path, result: dict[str, Any]) -> None:
    """Put the table into the page, between its two marks.

    Raises:
        ValueError: the marks are not there.
    """
    text = page.read_text("utf-8")
    block = re.compile(re.escape(BEGIN) + ".*?" + re.escape(END), re.DOTALL)
    if len(block.findall(text)) != 1:
        raise ValueError(f"{page}: has no single {BEGIN} ... {END}")
    page.write_text(block.sub(lambda _: markdown(result), text), "utf-8")


# -- the chart ---------------------------------------------------------------------------------------------------------

_WIDTH: Final = 760
_LEFT: Final = 250
_BAR: Final = 380
_STYLE: Final = """
  svg { --back: #ffffff; --text: #1f2328; --dim: #59636e; --ours: #0969da; --theirs: #aab4bf; --line: #d1d9e0; }
  @media (prefers-color-scheme: dark) {
    svg { --back: #0d1117; --text: #f0f6fc; --dim: #9198a1; --ours: #4493f8; --theirs: #4f5864; --line: #3d444d; }
  }
  rect.back { fill: var(--back); } rect.ours { fill: var(--ours); } rect.theirs { fill: var(--theirs); }
  text { fill: var(--text); font: 13px system-ui, sans-serif; }
  text.title { font-weight: 600; font-size: 14px; } text.label { text-anchor: end; } text.note { fill: var(--dim); }
  line { stroke: var(--line); }
"""

Bar = tuple[str, float, str, bool]  # label, length, what stands behind it, ours


def chart(result: dict[str, Any]) -> str:
    """Return the figures as SVG: a panel of bars for each group that was measured."""
    panels = [panel for panel in (_rates(result), _sizes(result), _growth(result), _starts(result)) if panel[1]]
    body: list[str] = []
    y = 16
    for title, bars in panels:
        body.append(f'<text class="title" x="16" y="{y + 14}">{escape(title)}</text>')
        y += 28
        longest = max(length for _, length, _, _ in bars) or 1
        body.append(f'<line x1="{_LEFT}" x2="{_LEFT}" y1="{y - 2}" y2="{y + 24 * len(bars)}"/>')
        for label, length, note, ours in bars:
            width = max(1.0, length / longest * _BAR)
            kind = "ours" if ours else "theirs"
            body.append(f'<text class="label" x="{_LEFT - 8}" y="{y + 15}">{escape(label)}</text>')
            body.append(f'<rect class="{kind}" x="{_LEFT}" y="{y + 2}" width="{width:.1f}" height="18" rx="2"/>')
            body.append(f'<text class="note" x="{_LEFT + width + 8:.1f}" y="{y + 15}">{escape(note)}</text>')
            y += 24
        y += 16
    machine = result["machine"]
    foot = f"{result['date']}, {machine['cores']} cores, {machine['filesystem']}; durable in every figure"
    body.append(f'<text class="note" x="16" y="{y + 10}">{escape(foot)}</text>')
    height = y + 24
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
            f'height="{height}" role="img" aria-label="Postmaster, measured side by side">',
            f"<style>{_STYLE}</style>",
            f'<rect class="back" width="{_WIDTH}" height="{height}" rx="6"/>',
            *body,
            "</svg>\n",
        ]
    )


def _runs(result: dict[str, Any], group: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = result["runs"].get(group, [])
    return found


def _rates(result: dict[str, Any]) -> tuple[str, list[Bar]]:
    bars = [_rate_bar(re.sub(r"^(C limit) \d+$", r"\1", run["contender"]), run) for run in _runs(result, "rate")]
    letters = max((run["letters"] for run in _runs(result, "rate")), default=0)
    return f"Durable letters a second ({letters:,} letters of 1.3 KB)", sorted(bars, key=lambda bar: -bar[1])


def _sizes(result: dict[str, Any]) -> tuple[str, list[Bar]]:
    runs = [run for run in _runs(result, "sizes") if run["letters"] > 1]
    bars = []
    for run in runs:
        name = run["contender"].rpartition(" ")[0]
        bars.append(_rate_bar(f"{name}, {run['letters']:,} letters", run))
    return "The same by the size of the backlog", bars


def _rate_bar(label: str, run: dict[str, Any]) -> Bar:
    per_second = run["letters"] / run["seconds"]
    return label, per_second, f"{per_second:,.0f}/s", run["contender"].startswith("postmaster")


def _growth(result: dict[str, Any]) -> tuple[str, list[Bar]]:
    bars: list[Bar] = []
    letters = 0
    for group, what in (("history", "lines of history"), ("agents", "agents")):
        for run in _runs(result, group):
            letters = run["letters"]
            count = int(run["contender"].split()[0])
            bars.append((f"{count:,} {what}", run["seconds"], _ms(run), True))
    return f"What a run of {letters:,} letters takes", bars


def _starts(result: dict[str, Any]) -> tuple[str, list[Bar]]:
    bars: list[Bar] = []
    for group, form in (("empty", "empty run, {}"), ("urgent", "{}")):
        for run in _runs(result, group):
            name = run["contender"]
            if name != "python -c pass":
                bars.append((form.format(name), run["seconds"], _ms(run), True))
            elif not bars:
                bars.append((name, run["seconds"], _ms(run), False))
    return "One start", bars


def _ms(run: dict[str, Any]) -> str:
    return f"{run['seconds'] * 1000:,.0f} ms"
