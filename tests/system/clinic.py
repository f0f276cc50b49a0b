"""An office that is well, with a crontab, a cron daemon and all its programs of its own, to make mistakes in."""

import json
import os
import pwd
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support import Box

CRONTAB = """\
#!/bin/sh
# A crontab program that keeps one crontab for each account in a file.
store={store}.$(id -un)
case $1 in
  -l) [ -e "$store" ] || {{ echo "no crontab for $(id -un)" >&2; exit 1; }}; exec cat "$store" ;;
  -) exec cat > "$store" ;;
esac
exit 2
"""


def booted(*lingering: str) -> list[str]:
    """Return what starts a command in a world where systemd runs, and accounts linger; nothing where none can be made.

    The directories by which systemd is known are made on a file system that nobody else sees.
    """
    linger = " ".join(f"/var/lib/systemd/linger/{name}" for name in lingering)
    script = f"""mount -t tmpfs none /run && mkdir -p /run/systemd/system &&
    mount -t tmpfs none /var/lib && mkdir -p /var/lib/systemd/linger {linger} && exec "$@" """
    prefix = ["unshare", "-m", "sh", "-c", script, "sh"]
    try:
        done = subprocess.run([*prefix, "true"], capture_output=True, check=False)
    except OSError:
        return []
    return [] if done.returncode else prefix


@dataclass
class Clinic:
    """An office, and how the doctor is called there. `prefix` starts it; `env` is its environment."""

    box: Box
    line_of: str  # the crontab line of an office, with ROOT for its root
    daemon: subprocess.Popen[bytes] | None = None
    prefix: list[str] = field(default_factory=list)
    env: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.folder = self.box.world / "scratch" / "bin"
        self.folder.mkdir()
        self.store = self.box.world / "scratch" / "crontab.txt"
        self.program("crontab", CRONTAB.format(store=shlex.quote(str(self.store))))
        self.program("postmaster", f'#!/bin/sh\nexec {shlex.join([sys.executable, "-m", "postmaster"])} "$@"\n')
        self.env["PATH"] = f"{self.folder}:{os.environ['PATH']}"
        cron = self.folder / "cron"
        shutil.copy(shutil.which("sleep") or "/bin/sleep", cron)  # its name is what the doctor looks for
        self.daemon = subprocess.Popen([cron, "300"])
        self.crontab(self.line())

    def close(self) -> None:
        """End the daemon."""
        assert self.daemon is not None
        self.daemon.kill()
        self.daemon.wait()

    @property
    def root(self) -> Path:
        """The office."""
        return self.box.root

    def program(self, name: str, text: str) -> Path:
        """Write a program into the PATH."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return path

    def crontab(self, text: str) -> None:
        """Replace the account's crontab."""
        name = pwd.getpwuid(os.geteuid()).pw_name
        self.store.with_name(f"{self.store.name}.{name}").write_text(text)

    def line(self) -> str:
        """Return the crontab line of this office."""
        return self.line_of.replace("ROOT", str(self.root))

    def run(self, *args: str, prefix: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """Run a command of ours."""
        return self.box.run(*args, env=self.env, prefix=prefix)

    def findings(self) -> list[dict[str, Any]]:
        """Return what the doctor finds, having checked that asking changed nothing."""
        before = self.looks()
        done = self.run("doctor", "--json", prefix=self.prefix)
        assert done.stderr == "", done.stderr
        assert self.looks() == before
        answer = json.loads(done.stdout)
        assert done.returncode == (1 if answer["findings"] else 0)
        assert answer["ok"] is not bool(answer["findings"])
        for one in answer["findings"]:
            assert one["where"] and one["what"] and one["fix"]
        return list(answer["findings"])

    def looks(self) -> dict[str, tuple[int, ...]]:
        """Return how every name of the office looks: mode, owner, size and times."""
        found = {}
        for folder, folders, files in os.walk(self.root):
            for path in (os.path.join(folder, name) for name in (*folders, *files)):
                seen = os.lstat(path)
                found[path] = (seen.st_ino, seen.st_mode, seen.st_uid, seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns)
        return found

    def found(self, name: str) -> list[dict[str, Any]]:
        """Return the findings of one check."""
        return [one for one in self.findings() if one["check"] == name]

    def mend(self, findings: list[dict[str, Any]]) -> None:
        """Run the commands of findings, as a person would who pastes them into a shell."""
        for finding in findings:
            assert finding["commands"], finding
            script = "\n".join(finding["commands"])
            done = subprocess.run(
                ["bash", "-ec", script],
                env=self.box.environment(self.env),
                cwd=self.box.world / "cwd",
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert done.returncode == 0, (script, done.stdout, done.stderr)

    def declare(self, agent: str, more: str, *, merge: bool = True) -> None:
        """Add a declaration `more.yml` with one agent, and merge."""
        text = f"plugin: more\nagents:\n  - id: more.{agent}\n    address: {agent}@more.internal\n"
        self.box.declare("more", f"{text}    accepts: [{{type: job.*, accepts_from: ['*']}}]\n{more}")
        if merge:
            self.box.merge()

    def settings(self, text: str) -> None:
        """Write post-office.yml, and route, so that it is known."""
        (self.root / "post-office.yml").write_text(text)
