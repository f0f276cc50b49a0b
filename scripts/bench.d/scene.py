"""The offices that are measured, the letters in them, and how they are made as they were before every round."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from hashlib import md5
from pathlib import Path
from typing import Final

from stopwatch import Failure

FLOWS: Final = 8
SENDER: Final = "orchestrator@council.internal"
DESK: Final = "desk-{flow}@council.internal"
HAND: Final = "hand-{flow}@crew.internal"  # a live instance
LETTER_BYTES: Final = 1_300
FLOWS_IN_HISTORY: Final = 20_000
_CHUNK: Final = 10_000  # log lines written at a time

_PROSE: Final = 4 * (
    b"The retry loop gives up after three attempts and reports the last error only, so the first cause is lost.\n"
    b"- keep every attempt's error, with its time\n- say in the summary which one decided\n\n"
    b"I ran the suite twice on the branch; the second run was 4 % slower, within the noise of this machine.\n\n"
    b"    def attempt(call, times=3):\n        faults = []\n        for number in range(times):\n"
    b"            try:\n                return call()\n            except OSError as fault:\n"
    b"                faults.append((number, fault))\n        raise Exhausted(faults)\n\n"
    b"Open questions: does anybody read the old field, and may the migration run while the service is up?\n"
)


def letter(number: int, to: str = DESK) -> bytes:
    """Return letter `number`: a header of six fields and a body like no other's, 1,300 bytes in all.

    Args:
        to: its recipient, with `{flow}` in it.
    """
    flow = number % FLOWS
    seconds, thousandths = divmod(number, 1000)
    head = (
        f"---\nto: {to.format(flow=flow)}\nfrom: {SENDER}\ntype: council.evaluate\n"
        f"subject: Review of change {number:06d} in the billing service\ncorrelation_id: release-2026-03-{flow}\n"
        f"sent_at: 2026-03-04T10:{seconds // 60:02d}:{seconds % 60:02d}.{thousandths:03d}Z\n---\n"
        f"# Change {number:06d} — please say yes or no\n\n"
    ).encode()
    start = number * 37 % 700
    return head + _PROSE[start : start + LETTER_BYTES - len(head) - 1] + b"\n"


def fill(outbox: Path, letters: int, first: int = 0, to: str = DESK) -> None:
    """Write letters into an outbox, as an agent does: under a name that is not mail yet, then renamed."""
    hidden = str(outbox / ".writing")
    for number in range(first, first + letters):
        with open(hidden, "wb") as stream:
            stream.write(letter(number, to))
        os.rename(hidden, outbox / f"20260304-{number:06d}-council-evaluate.md")


def _log_line(number: int) -> str:
    """Return line `number` of a history in the form of delivery_log (docs/formats/delivery-log.md)."""
    sequence, flow = divmod(number, FLOWS_IN_HISTORY)
    desk, second = flow % FLOWS, number // 50
    name = md5(b"%d" % number, usedforsecurity=False).hexdigest()
    day, time = second // 86400 + 1, f"{second // 3600 % 24:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
    path = f"inboxes/council.desk-{desk}/read/202601{day:02d}T{time.replace(':', '')}Z-{sequence + 1:06d}-{name}.md"
    return (
        f'{{"time":"2026-01-{day:02d}T{time}.{number % 50 * 20000:06d}Z","action":"delivered","id":"{name}",'
        f'"sequence":{sequence + 1},"correlation_id":"release-2026-03-{flow}","from":"{SENDER}",'
        f'"to":"desk-{desk}@council.internal","type":"council.evaluate","subject":"Review of change {number:06d} in '
        f'the billing service","sent_at":"2026-01-{day:02d}T{time}Z","agent":"council.desk-{desk}",'
        f'"file":"20260101-{number:06d}-council-evaluate.md","path":"{path}","status":"2.1.5"}}\n'
    )


def write_history(log: Path, lines: int) -> None:
    """Write a delivery log of so many lines."""
    with open(log, "w", encoding="ascii") as stream:
        for first in range(0, lines, _CHUNK):
            stream.write("".join(map(_log_line, range(first, min(first + _CHUNK, lines)))))


class Workshop:
    """The working directory, and the commands that are run in it."""

    def __init__(self, directory: Path, tools: Path) -> None:
        self.directory = directory
        self.tools = tools
        self.errors = str(directory / "errors")
        self.postmaster = _postmaster()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        self.environment["PYTHONPYCACHEPREFIX"] = str(directory / "pycache")  # compiled once, beside no source
        self.environment["LC_ALL"] = "C.UTF-8"
        self.environment.pop("POSTMASTER_ROOT", None)
        self.limit = self._compile()

    def _compile(self) -> str | None:
        """Compile the C program; None if there is no compiler for it."""
        compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
        program = str(self.directory / "limit")
        if compiler is None or not sys.platform.startswith("linux"):
            return None
        made = subprocess.run(
            [compiler, "-O2", "-o", program, str(self.tools / "limit.c")], capture_output=True, text=True, check=False
        )
        if made.returncode != 0:
            sys.stderr.write(f"scripts/bench: the C program cannot be compiled here:\n{made.stderr}")
            return None
        return program

    def run(self, *arguments: str) -> None:
        """Run postmaster outside the timing.

        Raises:
            Failure: it did not exit with 0.
        """
        done = subprocess.run(
            [*self.postmaster, *arguments], env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode != 0:
            raise Failure(f"postmaster {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")


def _postmaster() -> list[str]:
    """Return the command: the console script beside this interpreter, as a user has it, else the module."""
    script = Path(sys.executable).with_name("postmaster")
    return [str(script)] if script.exists() else [sys.executable, "-m", "postmaster"]


class Scene:
    """A root with an outbox and eight mailboxes. `prepare` makes it new; `check` looks at what a contender did."""

    to: str = DESK
    mailbox: str = "council.desk-{flow}"

    def __init__(self, root: Path) -> None:
        self.root = root
        self.log = root / "logs" / "delivery-log.jsonl"
        self._trash = root.with_name(f"{root.name}.trash")
        self._numbers = itertools.count()

    def prepare(self, letters: int) -> None:
        """Make everything as it was before the first round, write the letters, and sync."""
        self._reset()
        fill(self.root / "outbox", letters, to=self.to)
        os.sync()

    def _reset(self) -> None:
        for name in ("logs", "numbers", ".postmaster"):
            self._renew(self.root / name)
        self._renew_mail()

    def _renew_mail(self) -> None:
        """Make the outbox and the mailboxes new."""
        self._renew(self.root / "outbox")
        for mailbox in self._mailboxes():
            self._renew(mailbox)
            for folder in ("tmp", "unread", "read"):
                (mailbox / folder).mkdir()

    def _renew(self, path: Path) -> None:
        """Put an empty directory in the place of `path`, which is only moved out of the way until all is measured.

        An emptied directory would keep its size. And ext4 gives no inode out again within minutes of its deletion: it
        looks for others, one by one, so that whoever writes files soon after many were deleted pays for that.
        """
        if path.exists():
            self._trash.mkdir(exist_ok=True)
            path.rename(self._trash / str(next(self._numbers)))
        path.mkdir(parents=True)

    def _mailboxes(self) -> Iterator[Path]:
        return (self.root / "inboxes" / self.mailbox.format(flow=flow) for flow in range(FLOWS))

    def check(self, letters: int, folder: str = "unread", *, lines: int | None = None) -> None:
        """Make sure that every letter has arrived, and as many log lines (None: it keeps no log).

        Raises:
            Failure: it has not.
        """
        arrived = sum(len(os.listdir(mailbox / folder)) for mailbox in self._mailboxes())
        waiting = [name for name in os.listdir(self.root / "outbox") if not name.startswith(".")]
        logged = _count_lines(self.log) if lines is not None else None
        if (arrived, len(waiting), logged) != (letters, 0, lines):
            raise Failure(
                f"{self.root}: of {letters} letters {arrived} arrived, {len(waiting)} wait, {logged} log lines"
            )


def _count_lines(path: Path) -> int:
    if not path.exists():
        return 0
    with open(path, "rb") as stream:
        return sum(part.count(b"\n") for part in iter(lambda: stream.read(1 << 20), b""))


class OfficeScene(Scene):
    """A post office of so many agents, eight of them receivers, with a history of so many lines."""

    def __init__(self, workshop: Workshop, name: str, *, agents: int = 10, history: int = 0) -> None:
        super().__init__(workshop.directory / name)
        self._workshop = workshop
        self._snapshot = workshop.directory / f"{name}.private"
        self.history = history
        workshop.run("--root", str(self.root), "init")
        _declare(self.root / "registry.d", agents)
        workshop.run("--root", str(self.root), "registry", "merge")
        workshop.run("--root", str(self.root), "route")
        self._remember()

    def with_history(self, lines: int, *, indexed: bool = True) -> None:
        """Give the office a log, whose index an earlier run has built."""
        write_history(self.log, lines)
        self.history = lines
        if indexed:
            fill(self.root / "outbox", 1, first=999_999)  # no letter that is measured later: that would be a duplicate
            self._workshop.run("--root", str(self.root), "route")
            self.history += 1
        self._remember()

    def with_directory(self, living: int, *, to_them: bool = False) -> None:
        """Give the office a class, so many live instances of it, and one that was archived.

        The claims are written as docs/directory.md has them: registering thousands, one by one, would take an hour.

        Args:
            to_them: its letters go to eight of them.
        """
        entry = (
            _agent("hand").replace("council.hand", "crew.hand").replace("@council.internal\n", "@crew.internal\n", 1)
        )
        declared = entry.replace("    accepts:", "    instances: many\n    accepts:")
        (self.root / "registry.d" / "crew.yml").write_text(f"plugin: crew\nagents:\n{declared}")
        self._workshop.run("--root", str(self.root), "registry", "merge")
        self._workshop.run("--root", str(self.root), "register", "crew.hand", "--name", "first")
        self._workshop.run("--root", str(self.root), "archive", "first")
        for number in range(living):
            live = self.root / "directory" / "live"
            live.mkdir(exist_ok=True)
            name = f"hand-{number}"
            claim = {"version": 1, "id": f"crew.hand+{name}", "name": name, "address": f"{name}@crew.internal"}
            claim |= {"class": "crew.hand", "roles": [], "since": "2026-03-04T10:00:00.000000Z"}
            (live / f"{name}.json").write_text(json.dumps(claim, indent=2) + "\n")
        if to_them:
            self.to, self.mailbox = HAND, "crew.hand+hand-{flow}"
        self._workshop.run("--root", str(self.root), "route")
        self.history = _count_lines(self.log)
        self._remember()

    def remove(self) -> None:
        """Delete the office: a long history takes a lot of the disk."""
        for path in (self.root, self._snapshot, self._trash):
            shutil.rmtree(path, ignore_errors=True)

    def _remember(self) -> None:
        shutil.rmtree(self._snapshot, ignore_errors=True)
        shutil.copytree(self.root / ".postmaster", self._snapshot, copy_function=shutil.copy2)
        self._log_size = self.log.stat().st_size if self.log.exists() else None

    def _reset(self) -> None:
        if self._log_size is None:
            self._renew(self.log.parent)
        else:
            os.truncate(self.log, self._log_size)
        self._restore()
        self._renew_mail()

    def _restore(self) -> None:
        private = self.root / ".postmaster"
        kept = {file.name: file.stat() for file in self._snapshot.iterdir()}
        for file in list(private.iterdir()):
            if file.name not in kept:
                file.unlink()
        for name, was in kept.items():
            here = private / name
            if not here.exists() or (here.stat().st_size, here.stat().st_mtime_ns) != (was.st_size, was.st_mtime_ns):
                shutil.copy2(self._snapshot / name, here)

    def check(self, letters: int, folder: str = "unread", *, lines: int | None = None) -> None:
        """Make sure that every letter has arrived, with a log line each."""
        super().check(letters, folder, lines=self.history + letters if lines is None else lines)


def _declare(directory: Path, agents: int) -> None:
    """Write declarations of eight desks, the orchestrator, an observer, and others up to `agents`."""
    desks = "".join(map(_agent, (f"desk-{flow}" for flow in range(FLOWS))))
    directory.joinpath("council.yml").write_text(
        f"plugin: council\nagents:\n{desks}{_agent('orchestrator')}{_agent('observer')}"
    )
    for first in range(10, agents, 100):
        others = "".join(map(_agent, (f"worker-{number}" for number in range(first, min(first + 100, agents)))))
        plugin = f"plugin-{first // 100}"
        directory.joinpath(f"{plugin}.yml").write_text(f"plugin: {plugin}\nagents:\n{others}")


def _agent(name: str) -> str:
    return (
        f"  - id: council.{name}\n    address: {name}@council.internal\n    accepts:\n"
        f"      - type: council.evaluate\n        accepts_from: [{SENDER}]\n"
    )
