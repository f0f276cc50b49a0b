"""docs/reference/modules.md: every module of the package, layer by layer, with the first sentence it says of itself."""

import ast
import tomllib
from pathlib import Path
from typing import Final

from written import Gap, cell, code, table

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGE: Final = ROOT / "src" / "postmaster"

HEAD: Final = """
# Modules

Every module of `src/postmaster`, from the command line down. A module imports from its own layer or those below it,
never from one above: the contract in `pyproject.toml`, which `lint-imports` checks. The first sentence is the module's
own. How they work together: [architecture.md](../architecture.md).
"""


def page() -> str:
    """Return the page."""
    parts = [HEAD]
    left = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir() if _is_module(path)}
    for number, layer in enumerate(_layers(), 1):
        rows = [row for name in layer for row in _rows(name)]
        parts.append(f"\n## Layer {number}: {_heading(layer)}\n\n{table(['module', 'what it is'], rows)}")
        left -= set(layer)
    rows = [row for name in sorted(left) for row in _rows(name)]
    parts.append(f"\n## Beside the layers\n\n{table(['module', 'what it is'], rows)}")
    return "".join(parts)


def _layers() -> list[list[str]]:
    """Return the layers of the contract, each with its modules: `(a) : b | c` names three."""
    with open(ROOT / "pyproject.toml", "rb") as stream:
        contracts = tomllib.load(stream)["tool"]["importlinter"]["contracts"]
    layers = next(contract for contract in contracts if contract["id"] == "layers")["layers"]
    cut = [[one.strip(" ()") for one in layer.replace("|", ":").split(":")] for layer in layers]
    return [sorted(one for one in layer if _exists(one)) for layer in cut]


def _exists(name: str) -> bool:
    return (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file()


def _is_module(path: Path) -> bool:
    return path.suffix == ".py" or (path / "__init__.py").is_file()


def _heading(layer: list[str]) -> str:
    return ", ".join(layer) if len(layer) <= 5 else f"{', '.join(layer[:4])} ..."


def _rows(name: str) -> list[list[str]]:
    """Return a row for a module, or for each module of a package."""
    package = PACKAGE / name
    files = sorted(package.rglob("*.py")) if package.is_dir() else [PACKAGE / f"{name}.py"]
    return [[code(file.relative_to(PACKAGE)), cell(_first(file))] for file in files]


def _first(file: Path) -> str:
    text = ast.get_docstring(ast.parse(file.read_text("utf-8")))
    if not text:
        raise Gap(f"{file.relative_to(ROOT)} does not say what it is: it needs a docstring")
    return text.split("\n\n")[0].split("\n")[0] if text.split("\n")[0].endswith(".") else text.split("\n\n")[0]
