"""Killing and failing a router at every system call, and telling whether its office is still whole.

strace(1) injects the fault (``-e inject=NAME:signal=KILL:when=N`` or ``:error=ERRNO:when=N``). The checks know
nothing of how the router works: they compare what lies on disk with what an undisturbed run leaves.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

MUTATING = (
    "openat",
    "mkdir",
    "link",
    "rename",
    "renameat",
    "renameat2",
    "unlink",
    "unlinkat",
    "write",
    "pwrite64",
    "fsync",
    "fdatasync",
    "syncfs",
    "ftruncate",
    "flock",
    "close",
    "fcntl",
    "utimensat",
    "newfstatat",
    "lstat",
    "getdents64",
    "read",
    "pread64",
)
PERSISTING = tuple(name for name in MUTATING if name not in ("newfstatat", "lstat", "getdents64", "read", "pread64"))
ERRORS = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EACCES")

REGISTRY = """\
agents:
  - id: lab.builder
    address: builder@lab.internal
    inbox: {root}/inboxes/lab.builder
    accepts:
      - type: job.run
        accepts_from: [conductor@lab.internal]
  - id: lab.checker
    address: checker@lab.internal
    inbox: {root}/inboxes/lab.checker
    accepts:
      - type: job.run
        accepts_from: [conductor@lab.internal]
  - id: lab.conductor
    address: conductor@lab.internal
    inbox: {root}/inboxes/lab.conductor
    accepts:
      - type: job.done
        accepts_from: [builder@lab.internal]
"""
BUILDER, CHECKER, NOBODY = "builder@lab.internal", "checker@lab.internal", "nobody@lab.internal"


def letter(to: str, flow: str, body: str, *, minute: int = 0, type_: str = "job.run") -> str:
    """Return a message."""
    return (
        f"---\nto: {to}\nfrom: conductor@lab.internal\ntype: {type_}\nsubject: sweep\n"
        f"correlation_id: {flow}\nsent_at: 2026-03-04T10:{minute:02d}:00Z\n---\n{body}\n"
    )


@dataclass
class Scene:
    """An office full of mail, and what it held at the start."""

    root: Path
    letters: dict[str, bytes] = field(default_factory=dict)

    def put(self, name: str, text: str) -> None:
        """Drop a letter that has lain there for an hour."""
        path = self.root / "outbox" / name
        path.write_text(text)
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
        self.letters[name] = text.encode()


def build(root: Path, *, small: bool = False) -> Scene:
    """Make an office whose mail is delivered, dead-lettered, rejected, meets a taken name and fills two mailboxes."""
    for folder in ("outbox", "logs", "dead-letter", "inboxes"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    (root / ".postmaster").mkdir(exist_ok=True)
    for left in (root / ".postmaster").iterdir():
        if not left.name.startswith("registry"):
            left.unlink()
    for agent in ("lab.builder", "lab.checker", "lab.conductor"):
        for folder in ("tmp", "unread", "read"):
            (root / "inboxes" / agent / folder).mkdir(parents=True)
    if not (root / "agent-registry.yml").exists():
        (root / "agent-registry.yml").write_text(REGISTRY.format(root=root))
        assert run(root, "route").returncode == 0  # compiles the registry, once for all
        return build(root, small=small)
    scene = Scene(root)
    scene.put("a1.md", letter(BUILDER, "run-1", "one", minute=1))
    scene.put("a2.md", letter(CHECKER, "run-1", "two", minute=2))
    scene.put("b1.md", letter(NOBODY, "run-2", "nobody there", minute=1))
    if not small:
        scene.put("a3.md", letter(f"[{BUILDER}, {CHECKER}]", "run-1", "both", minute=3))
        scene.put("a4.md", letter(f"[{BUILDER}, {NOBODY}]", "run-1", "half", minute=4))
        scene.put("b2.md", letter(BUILDER, "run-2", "wrong type", minute=2, type_="job.stop"))
        scene.put("b3.md", letter(BUILDER, "run-2", "right again", minute=3))
        scene.put("bad.md", "no header at all\n")
        scene.put("same.md", letter(BUILDER, "run-3", "same"))
        scene.put("same2.md", letter(BUILDER, "run-3", "same"))
        taken = root / "inboxes/lab.builder/unread" / "20260304T100000Z-000001-9aa461e1eca4086f9230aa49c90b0c61.md"
        taken.write_text("an older message under the name of the next one\n")
        os.symlink("/etc/hostname", root / "outbox" / "link.md")
    return scene


def command(root: Path, *arguments: str) -> list[str]:
    """Return the call of the installed command on this office."""
    return [sys.executable, "-m", "postmaster", "--root", str(root), *arguments]


def environment() -> dict[str, str]:
    """Return an environment in which the interpreter writes nothing of its own."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command undisturbed."""
    return subprocess.run(
        command(root, *arguments), capture_output=True, text=True, env=environment(), timeout=60, check=False
    )


def trace(root: Path, calls: str, *inject: str) -> tuple[subprocess.CompletedProcess[str], str]:
    """Run one `route` under strace; return the process and the trace."""
    log = root.with_name(root.name + ".trace")
    injections = [part for one in inject for part in ("-e", f"inject={one}")]
    done = subprocess.run(
        [
            "strace",
            "-f",
            "-qq",
            "-s",
            "300",
            "-o",
            str(log),
            "-e",
            f"trace={calls}",
            *injections,
            *command(root, "route"),
        ],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=120,
        check=False,
    )
    return done, log.read_text(errors="backslashreplace")


def call_counts(root: Path, names: tuple[str, ...]) -> dict[str, tuple[int, int]]:
    """Return for every system call: (the first that comes once the office is touched, the last), counted from 1."""
    _, text = trace(root, ",".join(names))
    counts: Counter[str] = Counter()
    first: dict[str, int] = {}
    touched = False
    for line in text.splitlines():
        match = re.match(r"(?:\d+ +)?(\w+)\(", line)
        if match is None or match.group(1) not in names:
            continue
        counts[match.group(1)] += 1
        # The command line names the root too, but only system calls are traced here.
        touched = touched or f'"{root}/' in line
        if touched:
            first.setdefault(match.group(1), counts[match.group(1)])
    return {name: (first[name], counts[name]) for name in first}


def state(root: Path) -> dict[str, object]:
    """Return the end state: every file of mail by name and content, and the log, without times."""
    files = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        mail = name.startswith(("outbox/", "inboxes/", "dead-letter/"))
        if not mail or (path.is_dir() and not path.is_symlink()):
            continue
        content = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
        files[name] = re.sub(rb'(?m)^time: ".*"$', b"", content)
    return {"files": files, "log": sorted(json.dumps(without_time(record)) for record in log(root))}


def without_time(record: dict[str, object]) -> dict[str, object]:
    """Return a log record less what differs from run to run."""
    return {key: value for key, value in record.items() if key != "time"}


def log(root: Path) -> list[dict[str, object]]:
    """Return the delivery log; every line must be whole."""
    path = root / "logs" / "delivery-log.jsonl"
    if not path.exists():
        return []
    text = path.read_text()
    assert text == "" or text.endswith("\n"), "the log's last line is torn"
    return [json.loads(line) for line in text.splitlines()]


def assert_nothing_lost(scene: Scene) -> None:
    """Right after the fault: every body is somewhere under a visible name, and nothing there is partial."""
    places = [scene.root / "outbox", scene.root / "dead-letter"]
    places += [scene.root / "inboxes" / agent / "unread" for agent in ("lab.builder", "lab.checker")]
    found: dict[bytes, list[Path]] = {}
    for place in places:
        for path in place.iterdir():
            hidden = path.name.startswith(".") and path.name != ".postmaster-taken"
            if hidden or path.name.endswith(".reason.yml") or path.is_symlink():
                continue
            found.setdefault(path.read_bytes().rpartition(b"\n---\n")[2], []).append(path)
            assert path.read_bytes().endswith(b"\n"), f"{path} is partial"
    for name, raw in scene.letters.items():
        assert raw.rpartition(b"\n---\n")[2] in found, f"{name} is lost"


def litter(root: Path) -> list[str]:
    """Return what a run should not leave behind."""
    found = [str(path) for path in root.glob("inboxes/*/tmp/*")]
    found += [str(path) for folder in ("outbox", "dead-letter", ".") for path in (root / folder).glob(".postmaster-*")]
    found += [str(path) for path in (root / ".postmaster").iterdir() if re.search(r"journal|removals|tmp", path.name)]
    return found


def assert_whole(scene: Scene, reference: dict[str, object]) -> None:
    """After the recovery run: the same end state as an undisturbed run, and no litter."""
    now = state(scene.root)
    assert now["files"] == reference["files"], difference(now["files"], reference["files"])
    assert now["log"] == reference["log"], difference(Counter(now["log"]), Counter(reference["log"]))  # type: ignore[arg-type]
    assert not litter(scene.root), litter(scene.root)


def difference(now: object, then: object) -> str:
    """Return what is new and what is missing, for a failing test."""
    assert isinstance(now, dict) and isinstance(then, dict)
    more = {key: value for key, value in now.items() if then.get(key) != value}
    less = {key: value for key, value in then.items() if now.get(key) != value}
    return f"\nunexpected: {more}\nmissing: {less}"
