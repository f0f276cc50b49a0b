"""Make the pages of docs/reference/ from the code: scripts/generate-docs [--check].

Each page has a function that returns its whole text. Exit code 0: written, or as they should be; 1 something is
lacking or, with --check, a page is not what the code says; 64 wrong use.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

import commands
import message_fields
import modules
import outcomes
import registry_keys
from written import Gap

REFERENCE: Final = Path(__file__).resolve().parents[2] / "docs" / "reference"
PAGES: Final[dict[str, Callable[[], str]]] = {
    "cli.md": commands.page,
    "registry.md": registry_keys.page,
    "message.md": message_fields.page,
    "modules.md": modules.page,
    "reasons.md": outcomes.page,
}
MADE: Final = (
    "<!-- Made by scripts/generate-docs from the code. Change the code, or the generator, and run it again. -->\n"
)


def main(arguments: list[str]) -> int:
    """Write or check every page."""
    if arguments not in ([], ["--check"]):
        print("usage: scripts/generate-docs [--check]", file=sys.stderr)
        return 64
    try:
        pages = {name: MADE + page() for name, page in PAGES.items()}
    except Gap as gap:
        print(gap, file=sys.stderr)
        return 1
    stale = []
    for name, text in pages.items():
        path = REFERENCE / name
        if path.exists() and path.read_text("utf-8") == text:
            continue
        stale.append(name)
        if not arguments:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, "utf-8")
    if arguments and stale:
        print(f"not what the code says: docs/reference/{', docs/reference/'.join(stale)}", file=sys.stderr)
        print("run scripts/generate-docs", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
