"""Killing and failing the program at every system call, and telling whether its office is still whole.

strace(1) injects the fault (`inject=NAME:signal=KILL:when=N`, or `:error=ERRNO:when=N`). The checks know nothing of
how the router works: they compare what lies on the disk with what an undisturbed run leaves.
"""

import hashlib
import json
import os
import random
import re
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from faults.warm import Cold, Done, Warm

_T = TypeVar("_T")

# What changes a disk, or the locks and descriptors that guard it. A `?` lets strace pass over what a machine lacks.
CHANGING: Final = (
    *("openat", "creat", "mkdir", "mkdirat", "rmdir", "mknod", "mknodat"),
    *("link", "linkat", "symlink", "symlinkat", "unlink", "unlinkat"),
    *("rename", "renameat", "renameat2"),
    *("write", "writev", "pwrite64", "pwritev", "pwritev2", "copy_file_range", "sendfile", "splice"),
    *("truncate", "ftruncate", "fallocate"),
    *("sync", "syncfs", "fsync", "fdatasync", "sync_file_range", "msync"),
    *("flock", "fcntl", "close", "close_range"),
    *("chmod", "fchmod", "fchmodat", "chown", "fchown", "fchownat", "utimensat"),
)
LOOKING: Final = (
    *("stat", "lstat", "fstat", "newfstatat", "statx", "access", "faccessat", "faccessat2", "readlink", "readlinkat"),
    *("getdents64", "read", "readv", "pread64", "preadv", "preadv2", "lseek", "getcwd"),
)
# Calls that take a name or a descriptor and are neither: what they are asked, no disk refuses.
BESIDE: Final = ("ioctl", "mmap", "munmap", "dup", "dup2", "dup3", "poll", "ppoll", "fadvise64")
FALLIBLE: Final = tuple(name for name in (*CHANGING, *LOOKING) if name not in ("getcwd", "lseek"))
ERRORS: Final = ("EIO", "ENOSPC", "EDQUOT", "EROFS", "EMFILE", "EACCES")

FULL: Final = os.environ.get("POSTMASTER_SWEEP") == "full"
_SEED: Final = 20260304

_REGISTRY: Final = """\
agents:
  - {{id: lab.builder, address: builder@lab.internal, inbox: {root}/inboxes/lab.builder, accepts: [{accept}]}}
  - {{id: lab.checker, address: checker@lab.internal, inbox: {root}/inboxes/lab.checker, accepts: [{accept}]}}
  - {{id: lab.keeper, address: keeper@lab.internal, inbox: {root}/inboxes/lab.keeper, accepts: [{accept}]}}
  - {{id: lab.away, address: away@lab.internal, inbox: {root}-not-mounted/lab.away, accepts: [{accept}]}}
"""
_ACCEPT: Final = "{type: job.run, accepts_from: [conductor@lab.internal]}"
_AGENTS: Final = ("lab.builder", "lab.checker", "lab.keeper")
_BUILDER, _CHECKER, _KEEPER = "builder@lab.internal", "checker@lab.internal", "keeper@lab.internal"
_AWAY, _NOBODY = "away@lab.internal", "nobody@lab.internal"

_OLDER: Final = b"an older message, under the very name that the next one wants\n"
_TARGET: Final = "/etc/hostname"


def letter(to: str, flow: str, body: str, *, minute: int = 0, type_: str = "job.run") -> bytes:
    """Return a letter."""
    return (
        f"---\nto: {to}\nfrom: conductor@lab.internal\ntype: {type_}\nsubject: sweep\n"
        f"correlation_id: {flow}\nsent_at: 2026-03-04T10:{minute:02d}:00Z\n---\n{body}\n"
    ).encode()


_FEW: Final = {
    "a1.md": letter(_BUILDER, "run-1", "one", minute=1),
    "a3.md": letter(f"[{_BUILDER}, {_CHECKER}, {_KEEPER}]", "run-1", "all of them", minute=3),
    "b1.md": letter(_NOBODY, "run-2", "nobody there", minute=1),
}
_MIXED: Final = {
    **_FEW,
    "a2.md": letter(_CHECKER, "run-1", "two", minute=2),
    "a4.md": letter(f"[{_BUILDER}, {_NOBODY}]", "run-1", "half of them", minute=4),
    "a5.md": letter(f"[{_BUILDER}, {_AWAY}]", "run-1", "one of them waits", minute=5),
    "b2.md": letter(_BUILDER, "run-2", "wrong type", minute=2, type_="job.stop"),
    "b3.md": letter(_BUILDER, "run-2", "right again", minute=3),
    "bad.md": b"no header at all\n",
    "same.md": letter(_BUILDER, "run-3", "same"),
    "same2.md": letter(_BUILDER, "run-3", "same"),
}
_MANY: Final = {
    **_MIXED,
    "crowd.md": letter(f"[{_BUILDER}, {_CHECKER}, {_KEEPER}, {_NOBODY}, ghost@lab.internal]", "run-4", "crowd"),
    **{f"c{n}.md": letter((_BUILDER, _CHECKER, _KEEPER)[n % 3], "run-5", f"number {n}", minute=n) for n in range(1, 9)},
}
# `many` makes more copies than spool.SMALL, so that they are synced by file system. `few` begins without
# `.postmaster/`.
SCENES: Final = {"few": _FEW, "mixed": _MIXED, "many": _MANY}


@dataclass(frozen=True)
class Scene:
    """An office full of mail, and what it held at the start: letters by name, and how many have the same bytes."""

    root: Path
    letters: dict[str, bytes]

    def sent(self) -> Counter[bytes]:
        """Return how many letters have these bytes (of a link: its target)."""
        links = [_TARGET.encode()] if "bad.md" in self.letters else []
        return Counter([*self.letters.values(), *links])

    def group(self, file: str) -> str:
        """Return the first name of those letters that are the same, byte for byte: which is which does not matter."""
        raw = self.letters.get(file)
        return file if raw is None else min(name for name, other in self.letters.items() if other == raw)


def build(root: Path, kind: str, warm: Warm | Cold) -> Scene:
    """Make an office whose mail is delivered, dead-lettered, rejected, put off, and meets a name that is taken."""
    for folder in ("outbox", "logs", "dead-letter", "inboxes"):
        shutil.rmtree(root / folder, ignore_errors=True)
        (root / folder).mkdir(parents=True)
    for agent in _AGENTS:
        for folder in ("tmp", "unread", "read"):
            (root / "inboxes" / agent / folder).mkdir(parents=True)
    if not (root / "agent-registry.yml").exists():
        (root / "agent-registry.yml").write_text(_REGISTRY.format(root=root, accept=_ACCEPT))
        done = warm.run("--root", str(root), "route")  # compiles the registry, once for all
        assert done.code == 0, done
    private = root / ".postmaster"
    if kind == "few":
        shutil.rmtree(private, ignore_errors=True)
    else:
        for left in private.iterdir():
            if not left.name.startswith("registry"):
                left.unlink()
    for name, raw in SCENES[kind].items():
        path = root / "outbox" / name
        path.write_bytes(raw)
        os.utime(path, (path.stat().st_mtime - 3600,) * 2)
    if "bad.md" in SCENES[kind]:
        (root / "inboxes/lab.builder/unread" / f"20260304T100000Z-000001-{_md5(b'same')}.md").write_bytes(_OLDER)
        (root / "outbox" / "link.md").symlink_to(_TARGET)
    return Scene(root, SCENES[kind])


def _md5(line: bytes) -> str:
    return hashlib.md5(line + b"\n").hexdigest()


# -- what lies on the disk -----------------------------------------------------------------------------------------


def mail(root: Path) -> dict[str, bytes]:
    """Return every visible file of mail by name, without what differs from run to run (times and the root)."""
    found = {}
    for folder, _, names in os.walk(root):
        for name in names:
            path = Path(folder, name)
            shown = str(path.relative_to(root))
            if shown.startswith(("outbox/", "inboxes/", "dead-letter/")):
                content = path.readlink().name.encode() if path.is_symlink() else path.read_bytes()
                content = re.sub(rb'(?m)^time: ".*"$', b"time", content)
                found[shown] = content.replace(str(root).encode(), b"ROOT")
    return found


def log(root: Path) -> list[dict[str, Any]]:
    """Return the delivery log, without what differs from run to run; every line must be whole."""
    path = root / "logs" / "delivery-log.jsonl"
    text = path.read_text() if path.exists() else ""
    assert text == "" or text.endswith("\n"), f"the log's last line is torn: {text[-200:]}"
    lines = [json.loads(line) for line in text.replace(str(root), "ROOT").splitlines()]
    return [{key: value for key, value in line.items() if key != "time"} for line in lines]


def outcomes(root: Path) -> list[dict[str, Any]]:
    """Return the log lines that are not about mail that was put off."""
    return [line for line in log(root) if line["action"] != "deferred"]


def litter(root: Path) -> list[str]:
    """Return what a run must not leave behind."""
    found = [str(path) for path in root.glob("inboxes/*/tmp/*")]
    found += [str(path) for folder in (".", "outbox", "dead-letter", "logs") for path in (root / folder).glob(".*")]
    # SQLite's own journal is rolled back by the next run that has mail.
    kept = re.compile(r"lock|registry\.lock|registry-[\d-]+\.sqlite|history\.sqlite(-journal)?")
    found += [str(path) for path in (root / ".postmaster").glob("*") if not kept.fullmatch(path.name)]
    found.remove(str(root / ".postmaster"))
    return found


@dataclass(frozen=True)
class _Copy:
    """A delivered message taken apart again: the letter it was, and what was put into it."""

    letter: bytes
    sequence: int


def _delivered(path: Path) -> _Copy:
    """Read a delivered message; it must be whole."""
    raw = path.read_bytes()
    head, separator, body = raw.removeprefix(b"---\n").partition(b"\n---\n")
    assert separator, f"{path} is partial: {raw!r}"
    lines = head.split(b"\n")
    ours = dict(line.split(b": ", 1) for line in lines if line.startswith((b"id: ", b"sequence: ")))
    assert set(ours) == {b"id", b"sequence"}, f"{path} lacks what the router writes: {raw!r}"
    assert ours[b"id"].decode() == hashlib.md5(body).hexdigest(), f"{path} is not what its id says"
    theirs = b"\n".join(line for line in lines if not line.startswith((b"id: ", b"sequence: ")))
    return _Copy(b"---\n" + theirs + b"\n---\n" + body, int(ours[b"sequence"]))


@dataclass(frozen=True)
class Census:
    """Where the letters are: bytes -> how many in the outbox, how many dead, and which agents have a copy."""

    outbox: Counter[bytes]
    dead: Counter[bytes]
    unread: dict[bytes, Counter[str]]


def census(scene: Scene) -> Census:
    """Find every letter; all that is visible must be a whole letter of the scene."""
    taken = Census(Counter(), Counter(), {raw: Counter() for raw in scene.letters.values()})
    known = {*scene.letters.values(), _TARGET.encode()}
    for folder, counter in (("outbox", taken.outbox), ("dead-letter", taken.dead)):
        for path in (scene.root / folder).iterdir():
            if path.name.startswith(".") and path.name != ".postmaster-taken":
                continue
            if path.name.endswith(".reason.yml"):
                reason = yaml.safe_load(path.read_bytes())
                assert reason and reason["recipients"] and reason["remedy"], f"{path} is partial"
                continue
            raw = os.readlink(path).encode() if path.is_symlink() else path.read_bytes()
            assert raw in known, f"{path} is no letter of ours, or not all of it"
            counter[raw] += 1
    for agent in _AGENTS:
        for path in (scene.root / "inboxes" / agent / "unread").iterdir():
            if path.read_bytes() != _OLDER:
                copy = _delivered(path)
                assert copy.letter in taken.unread, f"{path} is no letter of ours"
                taken.unread[copy.letter][agent] += 1
    return taken


# -- what must be true ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reference:
    """What an undisturbed run leaves and says."""

    done: Done
    said: set[str]
    mail: dict[str, bytes]
    log: list[dict[str, Any]]
    census: Census


def assert_nothing_lost(scene: Scene, reference: Reference) -> None:
    """Right after a fault: what has left the outbox is where it belongs, all of it, and nothing visible is partial."""
    now, goal = census(scene), reference.census
    for raw, count in scene.sent().items():
        copies, wanted = now.unread.get(raw, Counter()), goal.unread.get(raw, Counter())
        gone = count - now.outbox[raw]
        owed = gone if now.outbox[raw] > goal.outbox[raw] else sum(wanted.values()) + goal.dead[raw]
        reached = sum((copies & wanted).values()) + min(now.dead[raw], goal.dead[raw])
        assert now.outbox[raw] >= goal.outbox[raw], f"{raw!r} has left the outbox"
        assert not gone or reached >= owed, f"{raw!r} is lost"
        assert copies <= wanted and now.dead[raw] <= goal.dead[raw], f"{raw!r} is there too often: {copies} {now.dead}"
    if "bad.md" in scene.letters:
        assert _OLDER in {path.read_bytes() for path in (scene.root / "inboxes/lab.builder/unread").iterdir()}


def assert_same_end(scene: Scene, reference: Reference) -> None:
    """After the recovery from a kill: the end state of an undisturbed run, and no litter."""
    assert_equal(mail(scene.root), reference.mail)
    ours, theirs = (Counter(map(_text, lines)) for lines in (log(scene.root), reference.log))
    assert_equal(dict(ours), dict(theirs))
    assert not litter(scene.root), litter(scene.root)


def assert_right_end(scene: Scene, reference: Reference) -> None:
    """After the recovery from an error: every outcome once, numbered without gap or repeat, the mail where it belongs.

    An error may change which number a letter got, and which of two identical letters came first.
    """
    assert_equal(
        dict(Counter(_outcome(scene, line) for line in outcomes(scene.root))),
        dict(Counter(_outcome(scene, line) for line in reference.log if line["action"] != "deferred")),
    )
    flows: dict[str, dict[int, str]] = {}
    for line in outcomes(scene.root):
        if "sequence" in line:
            given = flows.setdefault(line["correlation_id"], {}).setdefault(line["sequence"], line["file"])
            assert given == line["file"], f"one number, two letters: {line}"
        if line["action"] == "delivered":
            copy = _delivered(scene.root / line["path"])
            assert copy == _Copy(scene.letters[line["file"]], line["sequence"]), line
    for flow, numbers in flows.items():
        assert sorted(numbers) == list(range(1, len(numbers) + 1)), f"{flow}: {numbers}"
        assert len(set(numbers.values())) == len(numbers), f"{flow}: one letter, two numbers: {numbers}"
    assert census(scene) == reference.census
    assert not litter(scene.root), litter(scene.root)


def _outcome(scene: Scene, line: dict[str, Any]) -> str:
    shown = {key: line.get(key) for key in ("action", "id", "from", "to", "agent", "reason", "status")}
    return _text({"file": scene.group(line["file"]), **shown})


def _text(line: dict[str, Any]) -> str:
    return json.dumps(line, sort_keys=True)


def assert_equal(now: dict[_T, Any], then: dict[_T, Any]) -> None:
    """Compare two mappings and tell what differs."""
    more = {key: value for key, value in now.items() if then.get(key) != value}
    less = {key: value for key, value in then.items() if now.get(key) != value}
    assert now == then, f"\nunexpected: {more}\nmissing: {less}"


def assert_civil(done: Done) -> None:
    """A fault is told in words, not by a traceback (but for those that the interpreter's own hashlib logs)."""
    if "code for hash" not in done.err:
        assert "Traceback" not in done.err and "internal error" not in done.err, done.err
    assert done.code in (0, 64, 65, 69, 71, 73, 74, 75, 78), (done.code, done.err)


# -- the sweep -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Point:
    """One system call of a run: the `number`-th of its `name`. `text` is how strace shows it."""

    name: str
    number: int
    text: str = field(compare=False)

    def __str__(self) -> str:
        return f"{self.name} number {self.number}: {self.text[:160]}"


def points(trace: str, names: Sequence[str], root: str = "") -> list[Point]:
    """Return the calls in a trace, counted by name as strace counts them, from the first on that tells of `root`."""
    counts: Counter[str] = Counter()
    found = []
    begun = False
    for line in trace.splitlines():
        match = re.match(r"(\w+)\(", line)
        if match is None or match[1] not in names:
            continue
        counts[match[1]] += 1
        begun = begun or root in line
        if begun:
            found.append(Point(match[1], counts[match[1]], line))
    return found


def optional(names: Sequence[str]) -> str:
    """Return names as strace takes them, to be passed over where this machine has no such call."""
    return ",".join(f"?{name}" for name in names)


def sample(found: Sequence[_T], count: int) -> list[_T]:
    """Return all of `found` in a full sweep, else so many of them, chosen by a fixed seed, in order."""
    if FULL or count >= len(found):
        return list(found)
    chosen = sorted(random.Random(_SEED).sample(range(len(found)), count))
    return [found[index] for index in chosen]


class Sweep:
    """A scene that is built, run with a fault, recovered and checked, again and again.

    Args:
        kind: which scene.
        patch: what every run does differently (wrong.py).
    """

    def __init__(self, warm: Warm | Cold, directory: Path, kind: str, patch: str | None = None) -> None:
        self._warm = warm
        self._root = directory / kind
        self._kind = kind
        self._patch = patch
        scene = self.build()
        done = self.run()
        before = mail(scene.root)
        self.reference = Reference(done, set(done.err.splitlines()), before, log(scene.root), census(scene))
        self._assert_settled()

    def build(self) -> Scene:
        """Make the scene anew."""
        return build(self._root, self._kind, self._warm)

    def run(self, *options: str) -> Done:
        """Route, perhaps under strace with these options."""
        return self._warm.run("--root", str(self._root), "route", patch=self._patch, strace=options)

    def points(self, names: Sequence[str]) -> list[Point]:
        """Return the calls of a run of the scene as it is now."""
        return points(self.run("-e", f"trace={optional(names)}").trace, names, f'"{self._root}')

    def _kill(self, point: Point) -> None:
        done = self.run("-e", f"trace={point.name}", "-e", f"inject={point.name}:signal=KILL:when={point.number}")
        assert done.killed, f"it was not killed, but ended with {done.code}: {done.err}"

    def _recover(self) -> None:
        done = self.run()
        assert_civil(done)
        assert done.code == self.reference.done.code, (done.code, done.err)

    def _assert_settled(self) -> None:
        """One more run changes nothing."""
        before = mail(self._root), log(self._root), litter(self._root)
        self._recover()
        assert (mail(self._root), log(self._root), litter(self._root)) == before, "a later run changed something"

    def _assert_goes_on(self, scene: Scene) -> None:
        """The next letter of a flow gets the next number, and then all is tidy."""
        highest = max(line.get("sequence", 0) for line in outcomes(scene.root) if line.get("correlation_id") == "run-1")
        (scene.root / "outbox" / "later.md").write_bytes(letter(_BUILDER, "run-1", "later", minute=59))
        self._recover()
        numbers = [line["sequence"] for line in outcomes(scene.root) if line["file"] == "later.md"]
        assert numbers == [highest + 1], f"{numbers} after {highest}"
        assert not litter(scene.root) and not (scene.root / ".postmaster/history.sqlite-journal").exists()

    def kill(self, point: Point) -> None:
        """Kill a run at this call; nothing is lost, and the next run ends as if nothing had been."""
        scene = self.build()
        self._kill(point)
        assert_nothing_lost(scene, self.reference)
        self._recover()
        assert_same_end(scene, self.reference)
        self._assert_settled()
        self._assert_goes_on(scene)

    def recovery_points(self, first: Point) -> list[Point]:
        """Return the calls of the run that recovers from a kill at `first`."""
        self.build()
        self._kill(first)
        return self.points(CHANGING)

    def kill_twice(self, first: Point, second: Point) -> None:
        """Kill a run, and the run that recovers from it; the third ends as if nothing had been."""
        scene = self.build()
        self._kill(first)
        self._kill(second)
        assert_nothing_lost(scene, self.reference)
        self._recover()
        assert_same_end(scene, self.reference)

    def fail(self, point: Point, error: str) -> None:
        """Let one call fail; nothing is lost, what was not done is said, and the next run mends it."""
        scene = self.build()
        done = self.run("-e", f"trace={point.name}", *_error(point, error))
        assert "(INJECTED)" in done.trace, "no error was injected"
        assert_civil(done)
        assert_nothing_lost(scene, self.reference)
        if census(scene) != self.reference.census or litter(scene.root):
            news = set(done.err.splitlines()) - self.reference.said
            assert news or done.code != self.reference.done.code, "not all was done, and nothing was said"
        self._recover()
        assert_right_end(scene, self.reference)
        self._assert_settled()
        self._assert_goes_on(scene)

    def points_after_error(self, first: Point, error: str) -> list[Point]:
        """Return the calls of a run that come after an error that was injected at `first`."""
        self.build()
        trace = self.run("-e", f"trace={optional(CHANGING)}", *_error(first, error)).trace
        found = points(trace, CHANGING, f'"{self._root}')
        struck = next((place for place, point in enumerate(found) if "(INJECTED)" in point.text), None)
        # strace takes one injection for each name
        return [] if struck is None else [point for point in found[struck + 1 :] if point.name != first.name]

    def fail_and_kill(self, first: Point, error: str, second: Point) -> None:
        """Let one call of a run fail, and kill it at a later one; nothing is lost, and the next run mends it."""
        scene = self.build()
        kill = ("-e", f"inject={second.name}:signal=KILL:when={second.number}")
        done = self.run("-e", f"trace={first.name},{second.name}", *_error(first, error), *kill)
        assert done.killed and "(INJECTED)" in done.trace, done
        assert_nothing_lost(scene, self.reference)
        self._recover()
        assert_right_end(scene, self.reference)
        self._assert_settled()
        self._assert_goes_on(scene)


def _error(point: Point, error: str) -> tuple[str, str]:
    return "-e", f"inject={point.name}:error={error}:when={point.number}"


def collect(step: Callable[[_T], None], cases: Sequence[_T]) -> None:
    """Take every case, then tell of all that failed."""
    failed = []
    for case in cases:
        try:
            step(case)
        except AssertionError as fault:
            failed.append(f"{case}\n    {fault}")
    shown = "\n".join(failed[:5])
    assert not failed, f"{len(failed)} of {len(cases)} failed:\n{shown}"
