"""With the system's own programs: cron(8) delivers a letter within its minute; systemd-analyze reads the units."""

import contextlib
import json
import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Box, letter

DOCS = Path(__file__).parents[2] / "docs"
UNITS = sorted((DOCS / "systemd").iterdir())
PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
MINUTE = 60


def crontab(*arguments: str, text: bytes | None = None) -> subprocess.CompletedProcess[bytes]:
    """Run the real crontab program, for this account."""
    return subprocess.run(["crontab", *arguments], input=text, capture_output=True, timeout=20, check=False)


@contextlib.contextmanager
def kept_crontab() -> Iterator[None]:
    """Put the account's crontab back as it was, byte for byte, or away if there was none."""
    before = crontab("-l")
    assert before.returncode == 0 or b"no crontab for" in before.stderr, before.stderr
    try:
        yield
    finally:
        if before.returncode == 0:
            crontab("-", text=before.stdout)
        else:
            crontab("-r")
        after = crontab("-l")
        assert (after.returncode, after.stdout) == (before.returncode, before.stdout)


@contextlib.contextmanager
def running_cron(program: str) -> Iterator[None]:
    """Run the cron daemon, unless one runs already; nothing is left running that was not."""
    # By its file, and not its name: other tests have programs of their own that are called so.
    if os.path.realpath(program) in [os.path.realpath(path) for path in Path("/proc").glob("[0-9]*/exe")]:
        yield
        return
    daemon = subprocess.Popen([program, "-f"], env={"PATH": PATH}, start_new_session=True)
    try:
        yield
    finally:
        daemon.terminate()
        daemon.wait(20)


@pytest.mark.xdist_group("cron")  # there is one crontab and one daemon
def test_cron_delivers_within_a_minute(lab: Box) -> None:
    """`cron --install --every 1` and Debian's cron: a letter is delivered in the minute that follows."""
    program = shutil.which("cron", path=PATH)
    if os.geteuid() != 0 or program is None or shutil.which("crontab") is None:
        pytest.skip("takes root, cron and crontab")
    ran = lab.world / "cron-ran"
    control = f"* * * * * touch '{ran}'\n".encode()  # tells whether cron can run anything here
    with kept_crontab(), running_cron(program):
        before = crontab("-l").stdout + control
        assert crontab("-", text=before).returncode == 0
        done = lab.run("cron", "--install", "--every", "1")
        assert done.returncode == 0, done.stderr
        assert crontab("-l").stdout == before + lab.run("cron", "--every", "1").stdout.encode()
        lab.drop("m.md", letter(), age_seconds=0)
        deadline = time.monotonic() + 2 * MINUTE + 15  # at the next minute; the one after it on a machine under load
        while not lab.unread("lab.builder"):
            if time.monotonic() >= deadline and not ran.exists():
                pytest.skip("cron runs nothing at all here: no PAM session, or no rights")
            assert time.monotonic() < deadline, "cron has delivered nothing"
            time.sleep(0.5)
        answer = json.loads(lab.run("status", "--json").stdout)
        assert answer["starters"]["crontab"] == "present" and answer["starters"]["cron_runs"] is True
        assert answer["last_run_age_seconds"] < MINUTE
        found = {one["check"] for one in json.loads(lab.run("doctor", "--json").stdout)["findings"]}
        assert not {one for one in found if one.startswith(("cron", "not-started", "started"))}
        assert lab.run("cron", "--remove").returncode == 0
        assert crontab("-l").stdout == before


def verify(scope: str, place: Path, *units: Path) -> str:
    """Return what systemd says of units."""
    environment = {"PATH": PATH, "HOME": str(place), "XDG_RUNTIME_DIR": str(place), "SYSTEMD_UNIT_PATH": f"{place}:"}
    command = ["systemd-analyze", "verify", f"--{scope}", "--man=no", *units]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.stderr


@pytest.mark.parametrize(("scope", "stem"), [("user", "postmaster"), ("system", "post-office")])
def test_the_units_are_valid(tmp_path: Path, scope: str, stem: str) -> None:
    """systemd itself finds nothing wrong with the units of the documentation; a mistake would have been told."""
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd-analyze is not installed")
    copies = [Path(shutil.copy(unit, tmp_path)) for unit in UNITS if unit.stem == stem]
    assert {copy.suffix for copy in copies} == {".service", ".timer", ".path"}
    for copy in copies:  # neither the program nor the account is there
        text = re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", copy.read_text())
        copy.write_text(re.sub(r"(?m)^(User|Group)=post$", r"\1=root", text))
    assert [line for line in verify(scope, tmp_path, *copies).splitlines() if stem in line] == []
    broken = tmp_path / f"{stem}.timer"
    broken.write_text(broken.read_text().replace("OnCalendar=", "OnCalender="))
    assert "OnCalender" in verify(scope, tmp_path, broken)
