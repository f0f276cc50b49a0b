"""`postmaster rule`: the text on mail for an agent's prompt, printed and kept in a file of others."""

import os
import stat
import subprocess
from pathlib import Path

import pytest
from support import Box

CREW = """\
plugin: crew
agents:
  - id: crew.worker
    address: worker@crew.internal
    instances: many
    accepts: [crew.job]
    accepts_from: ["*"]
    emits: [{type: crew.done, to: [boss@crew.internal, "role:auditor"]}]
  - id: crew.boss
    address: "b`o`ss--x@crew.internal"
    aliases: [boss@crew.internal]
    accepts: [crew.done]
    accepts_from: ["*"]
  - {id: crew.auditor, address: auditor@crew.internal, roles: [auditor], accepts: [crew.done], accepts_from: ["*"]}
"""


@pytest.fixture
def crew(box: Box) -> Box:
    """An office with a class, and an agent with a hostile address."""
    box.declare("crew", CREW)
    box.merge()
    return box


def rule(box: Box, *args: str, check: int = 0) -> subprocess.CompletedProcess[str]:
    """Print or write a rule."""
    done = box.run("rule", *args)
    assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
    return done


# ---------------------------------------------------------------------- what it says


def test_a_class_claims_a_name_first(crew: Box) -> None:
    """The first thing said is how; then when to use mail, whom to interrupt, when to read, what to send to whom."""
    text = rule(crew, "crew.worker").stdout
    said = [
        f"Claim a name before anything else: `postmaster --root {crew.root} register crew.worker --name NAME --json`",
        "Use mail for everything that is not urgent",
        "Interrupt another agent directly only if it is about to do harm, or if your work is blocked right now",
        "Read your mail when you are nudged, and whenever unread mail is shown to you",
        "`crew.done` to `boss@crew.internal`, `role:auditor`",
        "inbox ID`",
    ]
    places = [text.index(one) for one in said]
    assert places == sorted(places)
    assert len(text) < 3000


def test_an_instance_has_its_own_address_in_it(crew: Box) -> None:
    """Its id stands in every command, so that they can be run as they are."""
    crew.run("register", "crew.worker", "--name", "ann")
    text = rule(crew, "ann").stdout
    assert "Your address is `ann@crew.internal`, your id `crew.worker+ann`" in text
    assert "register" not in text
    commands = [line.split("`")[1] for line in text.splitlines() if line.startswith("- `postmaster ")]
    assert len(commands) == 6
    done = subprocess.run(
        ["/bin/sh", "-c", commands[0].replace("postmaster", '"$@"', 1), "sh", *crew.command()[:3]],
        env=crew.environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "crew.worker+ann <ann@crew.internal>: unread 0" in done.stdout
    assert rule(crew, "crew.worker+ann").stdout == text
    crew.run("archive", "ann")
    assert "was archived" in rule(crew, "crew.worker+ann", check=65).stderr


def test_the_default_office_is_not_named(crew: Box) -> None:
    """In the office that is found without --root the commands need none."""
    home = crew.world / "home" / ".dna"
    home.mkdir()
    crew.root.rename(home / "post-office")
    crew.root = home / "post-office"
    assert "--root" not in rule(crew, "crew.worker").stdout


def test_values_cannot_get_out(crew: Box) -> None:
    """An address with backticks stays inside its code span, and one line; in commands it is quoted for the shell."""
    text = rule(crew, "crew.boss").stdout
    assert "Your address is `` b`o`ss--x@crew.internal ``, your id `crew.boss`" in text
    assert "--from 'b`o`ss--x@crew.internal'" in text
    assert "Your declaration does not say what you send" in text
    assert "<!--" not in text


def test_nobody(crew: Box) -> None:
    """A wrong name is told as everywhere."""
    assert "did you mean crew.worker?" in rule(crew, "crew.wroker", check=65).stderr


# ---------------------------------------------------------------------- keeping it


def test_kept_in_a_file(crew: Box, tmp_path: Path) -> None:
    """Made, brought up to date, left alone; every other byte, the mode and a link to it stay."""
    path = tmp_path / "AGENTS.md"
    assert rule(crew, "crew.boss", "--write", str(path)).stdout.endswith("written\n")
    path.write_bytes(b"# Ours \xff\r\n" + path.read_bytes() + b"\nthe end, without a newline")
    path.chmod(0o640)
    link = tmp_path / "CLAUDE.md"
    link.symlink_to("AGENTS.md")
    assert rule(crew, "crew.boss", "--write", str(link)).stdout.endswith("unchanged\n") is False
    before = path.read_bytes()
    status = path.stat()
    assert rule(crew, "crew.boss", "--write", str(link)).stdout.endswith("unchanged\n")
    assert path.stat() == status
    crew.declare(
        "crew", CREW.replace("    aliases: [boss@", "    emits: [{type: crew.job, to: ann@x.y}]\n    aliases: [boss@")
    )
    crew.merge()
    assert rule(crew, "crew.boss", "--write", str(link)).stdout.endswith("written\n")
    after = path.read_bytes()
    assert after.startswith(b"# Ours \xff\r\n<!-- begin") and after.endswith(b"-->\r\n\nthe end, without a newline")
    assert b"`crew.job` to `ann@x.y`" in after and before != after
    assert link.is_symlink() and stat.S_IMODE(path.stat().st_mode) == 0o640
    assert sorted(os.listdir(tmp_path)) == sorted(
        ["AGENTS.md", "CLAUDE.md", *(["world"] if crew.world.exists() else [])]
    )


def test_two_agents_in_one_file(crew: Box, tmp_path: Path) -> None:
    """Each has its own markers."""
    path = tmp_path / "AGENTS.md"
    for agent in ("crew.boss", "crew.worker", "crew.boss", "crew.worker"):
        rule(crew, agent, "--write", str(path))
    assert path.read_text().count("<!-- begin postmaster rule crew.boss -->") == 1
    assert path.read_text().count("<!-- begin postmaster rule crew.worker -->") == 1


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("<!-- begin postmaster rule crew.boss -->\nx\n", "line 1: the marker `postmaster rule crew.boss` has no end"),
        ("a\n<!-- end postmaster rule crew.boss -->\n", "line 2: the marker `postmaster rule crew.boss` ends what was"),
        (
            "<!-- begin postmaster rule a -->\n<!-- begin postmaster rule crew.boss -->\n"
            "<!-- end postmaster rule crew.boss -->\n",
            "line 1: the marker `postmaster rule a` has no end before the next begins",
        ),
        (
            "<!-- begin postmaster rule crew.boss -->\n<!-- end postmaster rule crew.boss -->\n" * 2,
            "line 3: the marker",
        ),
    ],
)
def test_broken_markers(crew: Box, tmp_path: Path, content: str, why: str) -> None:
    """It says which and what to do, and changes nothing."""
    path = tmp_path / "AGENTS.md"
    path.write_text(content)
    err = rule(crew, "crew.boss", "--write", str(path), check=65).stderr
    assert why in err and "nothing was changed" in err
    assert path.read_text() == content


def test_what_is_no_file(crew: Box, tmp_path: Path) -> None:
    """Directories, pipes and links to nothing are refused; a directory that is missing is said."""
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to(tmp_path / "nowhere")
    for name in ("pipe", "link", "."):
        rule(crew, "crew.boss", "--write", str(tmp_path / name), check=65)
    assert "No such file" in rule(crew, "crew.boss", "--write", str(tmp_path / "a" / "b.md"), check=73).stderr
    assert sorted(os.listdir(tmp_path)) == ["link", "pipe", "world"]


def test_help_has_an_example(box: Box) -> None:
    """The command explains itself."""
    done = box.run("rule", "--help")
    assert done.returncode == 0 and "Example:" in done.stdout and "postmaster rule " in done.stdout
