"""The wheel and the sdist: what is in them, and that a stranger's environment runs the tour with the wheel alone.

They are built with the backend of this environment (no isolation), so that building needs no index. Installing needs
one, for what Postmaster depends on; without one the installations are skipped, and say so.
"""

import importlib.metadata
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import HeaderParser
from pathlib import Path

import pytest
from test_readme_tour import missing_line, play, tour

import postmaster

REPOSITORY = Path(__file__).parents[2]
PACKAGE = REPOSITORY / "src" / "postmaster"
LIMIT = 100  # seconds, for each command


@dataclass(frozen=True)
class Built:
    """What `python -m build` makes: an sdist, and a wheel out of that sdist."""

    wheel: Path
    sdist: Path

    def metadata(self) -> Message:
        """Return the METADATA of the wheel."""
        with zipfile.ZipFile(self.wheel) as archive:
            (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
            return HeaderParser().parsestr(archive.read(name).decode())


def run(command: Sequence[str | Path], **environment: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command outside the checkout, with nothing of it on Python's path."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    added = {name: str(value) for name, value in environment.items()}
    return subprocess.run(
        [str(word) for word in command],
        env=kept | added,
        cwd="/",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )


def installed(command: Sequence[str | Path], **environment: str | Path) -> None:
    """Run a command that installs the wheel; skip if no index can be reached, which is asked only if it failed."""
    done = run(command, **environment)
    if done.returncode == 0:
        return
    scratch = Path(environment["TMPDIR"])
    asked = run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, "python-frontmatter"])
    if asked.returncode != 0:
        pytest.skip(f"no package index can be reached: {asked.stderr.strip()[-300:]}")
    raise AssertionError(done.stdout + done.stderr)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Build both."""
    folder = tmp_path_factory.mktemp("dist")
    done = run([sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, REPOSITORY])
    assert done.returncode == 0, done.stdout + done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    assert len(list(folder.iterdir())) == 2
    return Built(wheel, sdist)


def files_below(folder: Path) -> set[str]:
    """Return the files of a source tree, without what running it leaves."""
    found = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(folder)) for path in found}


def test_the_wheel_holds_the_package_and_nothing_else(built: Built) -> None:
    """Every file of src/postmaster is in the wheel (types, schema, templates, static files), and no other code."""
    with zipfile.ZipFile(built.wheel) as archive:
        names = set(archive.namelist())
    version = built.metadata()["Version"]
    info = f"postmaster_agents-{version}.dist-info"
    ours = {name.removeprefix("postmaster/") for name in names if name.startswith("postmaster/")}
    assert ours == files_below(PACKAGE)
    assert {
        "py.typed",
        "registry/registry.schema.json",
        "screen/templates/page.html",
        "screen/static/screen.css",
        "screen/static/vendor/htmx.min.js",
    } <= ours
    rest = {name for name in names if not name.startswith("postmaster/")}
    licences = {f"{info}/licenses/{name}" for name in built.metadata().get_all("License-File", [])}
    assert rest == {f"{info}/{name}" for name in ("METADATA", "WHEEL", "RECORD", "entry_points.txt")} | licences


def test_the_sdist_holds_the_checkout(built: Built) -> None:
    """The sdist is what git knows (tests, documents, examples, scripts, declarations), and executables stay so."""
    with tarfile.open(built.sdist) as archive:
        members = {member.name.split("/", 1)[1]: member for member in archive.getmembers() if member.isfile()}
    for needed in (
        "LICENSE",
        "docs/README.md",
        "examples/README.md",
        "registry.d/council.yml",
        "src/postmaster/py.typed",
        "tests/support.py",
    ):
        assert needed in members
    assert members["scripts/test"].mode & 0o111
    listed = run(["git", "-C", REPOSITORY, "ls-files", "-z", "--cached", "--others", "--exclude-standard"])
    if listed.returncode != 0:
        pytest.skip("not in a checkout: there is no list of files to compare with")
    known = {name for name in listed.stdout.split("\0") if name and not name.startswith(".ci/")}
    known = {name for name in known if (REPOSITORY / name).is_file()}  # one that is removed, but not yet in a commit
    assert set(members) == known | {"PKG-INFO"}


def test_the_metadata(built: Built) -> None:
    """It says all that pyproject.toml says, names every Python that is tested, and carries every licence."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text("utf-8"))["project"]
    found = built.metadata()
    assert (found["Name"], found["Version"]) == (project["name"], postmaster.__version__)
    assert found["Summary"] == project["description"]
    assert found["License-Expression"] == project["license"]
    assert found["Requires-Python"] == ">=3.11"
    assert found["Description-Content-Type"] == "text/markdown"
    assert found.get_payload() == (REPOSITORY / "README.md").read_text("utf-8")
    assert set(found.get_all("Provides-Extra", [])) == {"mcp", "screen", "watchfiles"}
    pythons = [line.rpartition(" ")[2] for line in project["classifiers"] if ":: Python :: 3." in line]
    assert pythons == ["3.11", "3.12", "3.13", "3.14"]
    licences = set(found.get_all("License-File", []))
    assert "LICENSE" in licences
    assert len(licences) == 1 + len(list((PACKAGE / "screen" / "static" / "vendor").glob("*.LICENSE.txt")))


def test_twine_finds_nothing(built: Built) -> None:
    """`twine check --strict` takes both."""
    done = run([sys.executable, "-m", "twine", "check", "--strict", built.wheel, built.sdist])
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_stranger_installs_the_wheel_and_takes_the_tour(built: Built, tmp_path: Path) -> None:
    """In an environment that holds the wheel and what it asks for, every step of the README's tour works."""
    venv, home, scratch = (tmp_path / name for name in ("venv", "home", "scratch"))
    home.mkdir()
    scratch.mkdir()
    assert run([sys.executable, "-m", "venv", venv]).returncode == 0
    installed([venv / "bin" / "python", "-m", "pip", "install", "-q", built.wheel], TMPDIR=scratch)
    where = run([venv / "bin" / "python", "-c", "import postmaster; print(postmaster.__file__)"])
    assert where.stdout.startswith(str(venv)), where.stdout + where.stderr
    for step, output, failed in play(tour(), home, venv / "bin"):
        assert failed == [], output
        assert missing_line(step.expected, output) is None, output


def tool(name: str) -> list[str]:
    """Return how to run an installer of this environment, or skip."""
    try:
        importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        found = shutil.which(name)
        if found is None:
            pytest.skip(f"{name} is not installed (the dev group has it)")
        return [found]
    return [sys.executable, "-m", name]


def own_home(folder: Path, variables: Mapping[str, str]) -> dict[str, Path]:
    """Return an environment in which an installer keeps all it makes below `folder`."""
    made = {"HOME": folder / "home", "TMPDIR": folder / "scratch"}
    for path in made.values():
        path.mkdir()
    return made | {variable: folder / name for variable, name in variables.items()}


def test_pipx(built: Built, tmp_path: Path) -> None:
    """`pipx install WHEEL` gives a command that works."""
    home = own_home(tmp_path, {"PIPX_HOME": "pipx", "PIPX_BIN_DIR": "bin", "PIPX_MAN_DIR": "man"})
    installed([*tool("pipx"), "install", "--python", sys.executable, built.wheel], **home)
    assert_it_works(tmp_path / "bin" / "postmaster", tmp_path)


def test_uv_tool(built: Built, tmp_path: Path) -> None:
    """`uv tool install WHEEL` gives a command that works."""
    home = own_home(tmp_path, {"UV_TOOL_DIR": "tools", "UV_TOOL_BIN_DIR": "bin", "UV_CACHE_DIR": "cache"})
    installed([*tool("uv"), "tool", "install", "--python", sys.executable, built.wheel], **home)
    assert_it_works(tmp_path / "bin" / "postmaster", tmp_path)


def assert_it_works(command: Path, folder: Path) -> None:
    """Make an office with an installed command, and run it by the paths that its parts stand in."""
    office = folder / "office"
    for words in (["init"], ["registry", "schema"], ["registry", "merge"], ["route", "-v"], ["verify"]):
        done = run([command, "--root", office, *words])
        assert done.returncode == 0, done.stdout + done.stderr
