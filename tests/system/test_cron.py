"""`postmaster cron`: a line that works in cron's bare environment, put into a crontab without harming it."""

import json
import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support import Box, letter

FAKE = """\
#!/bin/sh
# A crontab program that keeps one crontab in a file.
store={store}
case $1 in
  -l) [ -e "$store" ] || {{ echo "no crontab for $(id -un)" >&2; exit 1; }}; exec cat "$store" ;;
  -) exec cat > "$store" ;;
esac
echo usage >&2
exit 2
"""


class Crontab:
    """A stand-in for the crontab program; the code under test runs it as a real process."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.store = box.world / "scratch" / "crontab.txt"
        self.folder = box.world / "scratch" / "bin"
        self.folder.mkdir()
        self.program(FAKE.format(store=shlex.quote(str(self.store))))

    def program(self, text: str) -> None:
        """Write the program."""
        path = self.folder / "crontab"
        path.write_text(text)
        path.chmod(0o755)

    def run(self, *args: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run `postmaster cron`."""
        done = self.box.run("cron", *args, env={"PATH": f"{self.folder}:{os.environ['PATH']}"})
        assert done.returncode == code, (done.stdout, done.stderr)
        return done


@pytest.fixture
def crontab(lab: Box) -> Crontab:
    """An office and a crontab."""
    return Crontab(lab)


def as_cron_would(line: str, home: Path) -> subprocess.CompletedProcess[bytes]:
    r"""Run a line as cron(8) does: five fields off, the rest up to a bare `%` to /bin/sh, `\%` a percent sign."""
    command = re.split(r"(?<!\\)%", line.split(" ", 5)[5])[0].replace("\\%", "%")
    return subprocess.run(
        ["/usr/bin/env", "-i", "/bin/sh", "-c", command], capture_output=True, cwd=home, timeout=60, check=False
    )


def test_the_printed_line_works_in_an_empty_environment(lab: Box) -> None:
    """The line routes with no PATH, no HOME and no locale, and says nothing."""
    lab.drop("ünïcode.md", letter(subject="grüße", body="größe\n"))
    done = lab.run("cron")
    assert (done.returncode, done.stderr) == (0, "")
    [line] = done.stdout.splitlines()
    assert line.startswith("*/10 * * * * /")
    assert line.endswith(f" # postmaster {lab.root}")
    ran = as_cron_would(line, lab.world / "home")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert len(lab.unread("lab.builder")) == 1


def test_the_line_with_turns_takes_them(lab: Box) -> None:
    """With --cycle the line routes and wakes, and ends before the next one begins."""
    lab.declare(
        "crew",
        """plugin: crew
agents:
  - {id: crew.cat, address: cat@crew.internal, run: [cat], accepts: [{type: job.*, accepts_from: ["*"]}]}
""",
    )
    lab.merge()
    lab.drop("m.md", letter(to="cat@crew.internal"))
    [line] = lab.run("cron", "--cycle", "--every", "5").stdout.splitlines()
    assert line.startswith("*/5 * * * * /") and " cycle --max-seconds 250 # postmaster" in line
    ran = as_cron_would(line, lab.world / "home")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    assert len(lab.read("crew.cat")) == 1


def test_the_line_with_other_offices_routes_before_and_after(lab: Box) -> None:
    """With --carry mail leaves in the same line in which it was written, and what came is delivered."""
    (lab.root / "post-office.yml").write_text(
        "remotes: {hub: {url: " + str(lab.world / "scratch" / "hub.git") + ", domains: [far.internal]}}\n"
    )
    subprocess.run(["git", "init", "-q", "--bare", lab.world / "scratch" / "hub.git"], check=True)
    lab.drop("m.md", letter(to="agent@far.internal"))
    [line] = lab.run("cron", "--carry").stdout.splitlines()
    assert re.findall(r"(?<= )(route|carry)(?=[; ])", line.rpartition("#")[0]) == ["route", "carry", "route"]
    ran = as_cron_would(line, lab.world / "home")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, b"", b"")
    hub = ["git", "-C", str(lab.world / "scratch" / "hub.git"), "for-each-ref"]
    assert "refs/postmaster/inbox/" in subprocess.run(hub, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize(
    "name", ["with space", "50% off", "quote's", 'a"b$(touch x)`y`', "back\\slash", "#hash", "ümlaut", "~"]
)
def test_any_path_works(tmp_path: Path, name: str) -> None:
    """Whatever is in the path of the office, the line routes that office."""
    box = Box(tmp_path / name)
    box.init()
    box.merge()
    box.drop("m.md", "no header\n")
    [line] = box.run("cron").stdout.splitlines()
    ran = as_cron_would(line, box.world / "home")
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert box.dead() == ["m.md"]
    assert box.outside() == []


def test_a_file_in_the_home_directory_cannot_take_its_place(lab: Box) -> None:
    """Cron starts in the home directory; a postmaster.py there is not run."""
    (lab.world / "home" / "postmaster.py").write_text("open('taken', 'w')\n")
    lab.drop("m.md", letter())
    ran = as_cron_would(lab.run("cron").stdout.rstrip("\n"), lab.world / "home")
    assert ran.returncode == 0
    assert lab.outbox() == []
    assert not (lab.world / "home" / "taken").exists()


def test_a_path_with_a_line_break_is_refused(tmp_path: Path) -> None:
    """A crontab has one line for each command, so such a path cannot stand in it."""
    box = Box(tmp_path / "two\nlines")
    box.init()
    done = box.run("cron")
    assert done.returncode == 78
    assert "line break" in done.stderr


@pytest.mark.parametrize(
    ("every", "fields"),
    [
        (1, "* * * * *"),
        (5, "*/5 * * * *"),
        (30, "*/30 * * * *"),
        (60, "0 * * * *"),
        (120, "0 */2 * * *"),
        (1440, "0 0 * * *"),
    ],
)
def test_steps(lab: Box, every: int, fields: str) -> None:
    """Every step that cron can keep is written as cron writes it."""
    assert lab.run("cron", "--every", str(every)).stdout.startswith(fields + " /")


@pytest.mark.parametrize("every", ["0", "-5", "7", "90", "100000", "ten"])
def test_steps_that_cron_cannot_keep(lab: Box, every: str) -> None:
    """`*/7` would not run every seven minutes; it is refused, as usage, with the nearest that is kept."""
    done = lab.run("cron", "--every", every)
    assert done.returncode == 64
    assert done.stdout == ""


OTHERS = b'MAILTO=""\n# my own\n\n0 4 * * *\t/usr/bin/backup --at 04\\%00\n@reboot  echo \xe9  '


def test_install_is_idempotent_and_leaves_other_lines(crontab: Crontab) -> None:
    """Installed once, whatever one does; every other line stays byte for byte, in its place."""
    crontab.store.write_bytes(OTHERS)
    first = crontab.run("--install")
    assert "installed: */10" in first.stdout
    line = crontab.box.run("cron").stdout.encode()
    assert crontab.store.read_bytes() == OTHERS + b"\n" + line
    changed = crontab.store.stat().st_mtime_ns
    assert "installed already" in crontab.run("--install").stdout
    assert crontab.store.stat().st_mtime_ns == changed
    crontab.store.write_bytes(line + OTHERS + b"\n" + line)
    crontab.run("--install", "--every", "5")
    assert crontab.store.read_bytes() == line.replace(b"*/10", b"*/5") + OTHERS + b"\n"
    crontab.run("--remove")
    assert crontab.store.read_bytes() == OTHERS + b"\n"
    assert "no line of it" in crontab.run("--remove").stdout


def test_the_first_crontab(crontab: Crontab) -> None:
    """`no crontab for` is an empty one."""
    assert "no line of it" in crontab.run("--remove").stdout
    assert not crontab.store.exists()
    crontab.run("--install")
    assert crontab.store.read_text() == crontab.box.run("cron").stdout


def test_lines_of_other_offices_and_comments_are_not_ours(crontab: Crontab) -> None:
    """An office whose path begins or ends alike, and a line that was commented out, stay."""
    root = crontab.box.root
    text = (
        f"* * * * * x # postmaster {root}2\n* * * * * x # postmaster /x{root}\n# */10 * * * * x # postmaster {root}\n"
    )
    crontab.store.write_text(text)
    crontab.run("--install")
    assert crontab.store.read_text() == text + crontab.box.run("cron").stdout
    crontab.run("--remove")
    assert crontab.store.read_text() == text


def test_without_a_crontab_program_the_line_is_given(crontab: Crontab) -> None:
    """Where there is no crontab, or it refuses, the user is told the line to paste."""
    line = crontab.box.run("cron").stdout.strip()
    done = crontab.box.run("cron", "--install", env={"PATH": str(crontab.box.world / "home")})
    assert done.returncode == 78
    assert "`crontab` cannot be run" in done.stderr and line in done.stderr
    crontab.program("#!/bin/sh\necho 'you are not allowed' >&2\nexit 1\n")
    done = crontab.run("--install", code=78)
    assert "not allowed" in done.stderr and line in done.stderr
    crontab.store.write_text("x\n")
    crontab.program(FAKE.format(store=shlex.quote(str(crontab.store))).replace("-) exec cat >", "-) exit 3; cat >"))
    assert "(3)" in crontab.run("--install", code=78).stderr
    assert crontab.store.read_text() == "x\n"


def test_json(crontab: Crontab) -> None:
    """The line as data, and whether anything was changed."""
    answers: list[dict[str, Any]] = [
        json.loads(crontab.run("--json", *args).stdout) for args in ((), ("--install",), ("--install",), ("--remove",))
    ]
    assert [answer["changed"] for answer in answers] == [None, True, False, True]
    assert all(answer["office"] == str(crontab.box.root) for answer in answers)


def test_usage(lab: Box, tmp_path: Path) -> None:
    """Install and remove exclude each other; a root that is no office has no line."""
    assert lab.run("cron", "--install", "--remove").returncode == 64
    (lab.root / "outbox").rmdir()
    assert lab.run("cron").returncode == 78
