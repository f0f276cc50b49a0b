"""What the black-box tests share: an office in a temporary directory, and an independent reader of its files.

Nothing here imports the package: the tests hold the program to the written contract, not to its own parser.
"""

import contextlib
import hashlib
import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

POSTMASTER = (sys.executable, "-m", "postmaster")
HOUR = 3600
EMPTY_MD5 = "d41d8cd98f00b204e9800998ecf8427e"

LOG_KEYS = [
    "time",
    "action",
    "id",
    "sequence",
    "correlation_id",
    "from",
    "to",
    "type",
    "subject",
    "sent_at",
    "in_reply_to",
    "agent",
    "file",
    "path",
    "reason",
    "status",
    "detail",
]
LOG_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|\+00:00)")
DELIVERED_NAME = re.compile(r"(\d{8}T\d{6}(?:[.,]?\d+)?Z)-(\d{6,})-([0-9a-f]{32})(?:[^/]*)\.md")

LAB = """\
plugin: lab
agents:
  - id: lab.conductor
    address: conductor@lab.internal
    accepts:
      - type: job.done
    accepts_from: [builder@lab.internal, checker@lab.internal]
    emits:
      - {type: job.run, to: builder@lab.internal}
  - id: lab.builder
    address: builder@lab.internal
    aliases: [mason@lab.internal]
    accepts:
      - type: job.*
    accepts_from: [conductor@lab.internal, checker@lab.internal]
  - id: lab.checker
    address: checker@lab.internal
    accepts:
      - type: job.*
    accepts_from: [builder@lab.internal, conductor@lab.internal]
  - id: lab.echo
    address: echo@lab.internal
    accepts:
      - type: job.*
        duplicates: deliver
    accepts_from: ["*"]
"""


def md5(data: bytes) -> str:
    """Return the id that a message with this body must get."""
    return hashlib.md5(data, usedforsecurity=False).hexdigest()


def shown(name: str | bytes) -> str:
    r"""Return a file name as the log shows it: undecodable bytes become ``\xff``."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


@dataclass(frozen=True)
class Header:
    """A message split by the rule: line 1 is ``---``; the next line exactly ``---`` ends the header."""

    head: bytes
    body: bytes
    fields: dict[str, Any]
    keys: list[str]

    def sender_fields(self) -> dict[str, Any]:
        """Return the fields without the two that only the post office writes."""
        return {key: value for key, value in self.fields.items() if key not in ("id", "sequence")}


def split(data: bytes) -> tuple[bytes, bytes] | None:
    """Return (header text, body), or None if the file does not start with a closed header."""
    lines = _lines(data.removeprefix(b"\xef\xbb\xbf"))
    if not lines or _bare(lines[0]) != b"---":
        return None
    for number, line in enumerate(lines[1:], 1):
        if _bare(line) == b"---":
            return b"".join(lines[1:number]), b"".join(lines[number + 1 :])
    return None


def _lines(data: bytes) -> list[bytes]:
    """Split after every LF only: bytes.splitlines would also split at a lone CR."""
    parts = data.split(b"\n")
    lines = [part + b"\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def _bare(line: bytes) -> bytes:
    return line.removesuffix(b"\n").removesuffix(b"\r")


def header(data: bytes) -> Header:
    """Read a message independently of the package; values are text as typed.

    Raises:
        ValueError: there is no closed header, or it is not a plain YAML mapping.
    """
    parts = split(data)
    if parts is None:
        raise ValueError("no closed header")
    head, body = parts
    if len(head) > 64 * 1024:
        raise ValueError("header too large")
    try:
        if any(isinstance(event, yaml.AliasEvent) for event in yaml.parse(head, Loader=yaml.CBaseLoader)):
            raise ValueError("header has an alias")
        node = yaml.compose(head, Loader=yaml.CBaseLoader)
        fields = yaml.load(head, Loader=yaml.CBaseLoader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as fault:
        raise ValueError(str(fault)) from fault
    if not isinstance(node, yaml.MappingNode):
        raise ValueError("header is not a mapping")  # noqa: TRY004
    return Header(head, body, fields, [key.value for key, _ in node.value])


@dataclass(frozen=True)
class Mail:
    """One file in an inbox, read independently."""

    name: str
    raw: bytes
    header: Header

    @property
    def fields(self) -> dict[str, Any]:
        return self.header.fields

    @property
    def body(self) -> bytes:
        return self.header.body

    @property
    def sequence(self) -> int:
        return int(self.fields["sequence"])


def letter(
    to: str | Sequence[str] = "builder@lab.internal",
    from_: str = "conductor@lab.internal",
    type: str = "job.run",
    subject: str = "nightly build",
    correlation_id: str = "run-1",
    sent_at: str | None = "2026-03-04T10:00:00Z",
    body: bytes | str = b"Please run the nightly build.\n",
    extra: str = "",
    newline: str = "\n",
) -> bytes:
    """Build a letter. Values are placed as YAML source, quotes and all; `extra` is whole lines."""
    listed = to if isinstance(to, str) else "[" + ", ".join(to) + "]"
    lines = [
        "---",
        f"to: {listed}",
        f"from: {from_}",
        f"type: {type}",
        f"subject: {subject}",
        f"correlation_id: {correlation_id}",
        *([] if sent_at is None else [f"sent_at: {sent_at}"]),
        *extra.splitlines(),
        "---",
        "",
    ]
    return newline.join(lines).encode() + (body.encode() if isinstance(body, str) else body)


def write_atomically(path: str | bytes, data: bytes, mtime: float | None = None) -> None:
    """Write under a dot-name in the same directory, then rename, as a sender should."""
    folder, name = os.path.split(os.fsencode(path))
    private = os.path.join(folder, b"." + hashlib.sha1(name).hexdigest().encode() + b".writing")
    with open(private, "wb") as stream:
        stream.write(data)
    if mtime is not None:
        os.utime(private, (mtime, mtime))
    os.rename(private, os.path.join(folder, name))


def entry(path: str | bytes) -> tuple[str, Any]:
    """Describe one name without following or opening anything but a regular file."""
    mode = os.lstat(path).st_mode
    if stat.S_ISREG(mode):
        try:
            with open(path, "rb") as stream:
                return "file", hashlib.file_digest(stream, "sha256").hexdigest()
        except PermissionError:
            return "file", "unreadable"
    if stat.S_ISLNK(mode):
        return "link", os.fsencode(os.readlink(path))
    if stat.S_ISDIR(mode):
        return "directory", None
    return {stat.S_IFIFO: "fifo", stat.S_IFSOCK: "socket"}.get(stat.S_IFMT(mode), "device"), None


def tree(root: str | Path, skip: Sequence[str] = ()) -> dict[str, tuple[str, Any]]:
    """Return every name under `root` (relative) with what it is; top-level names in `skip` are left out."""
    found: dict[str, tuple[str, Any]] = {}
    for folder, folders, files in os.walk(root):
        if folder == str(root):
            folders[:] = [name for name in folders if name not in skip]
            files = [name for name in files if name not in skip]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[os.path.relpath(path, root)] = entry(path)
    return found


def _key(path: str) -> tuple[str, Any]:
    """Return what a letter is, wherever it lies and whatever the post office added to it."""
    kind, digest = entry(path)
    if kind == "directory":
        return kind, tuple(sorted(tree(path).items()))
    if kind != "file" or digest == "unreadable":
        return kind, digest
    data = Path(path).read_bytes()
    try:
        read = header(data)
    except ValueError:
        return "unreadable", digest
    return "letter", (md5(read.body), json.dumps(read.sender_fields(), sort_keys=True))


@dataclass(frozen=True)
class Census:
    """Every letter of an office, counted; and the private files that lie about."""

    letters: Counter[Any]
    litter: frozenset[str]


@dataclass
class Box:
    """An office in a temporary directory, run as a subprocess.

    The command runs in an empty directory with an empty home and an empty temporary directory, so that
    anything it leaves outside its root is seen.
    """

    world: Path
    root: Path = field(init=False)
    extra_inboxes: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = self.world / "office"
        for name in ("cwd", "home", "scratch"):
            (self.world / name).mkdir(parents=True, exist_ok=True)

    # ------------------------------------------------------------------ running

    def environment(self, env: Mapping[str, str] | None = None) -> dict[str, str]:
        """Return a scrubbed environment, with `env` on top."""
        base = {
            "PATH": os.environ.get("PATH", "/usr/bin:/bin"),
            "HOME": str(self.world / "home"),
            "TMPDIR": str(self.world / "scratch"),
            "LC_ALL": "C.UTF-8",
        }
        base |= {name: os.environ[name] for name in ("COVERAGE_PROCESS_START",) if name in os.environ}
        return base | dict(env or {})

    def command(self, *args: str) -> list[str]:
        """Return the command line that runs `args` on this office."""
        return [*POSTMASTER, "--root", str(self.root), *args]

    def run(
        self,
        *args: str,
        input: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; `prefix` is a command that starts it (a limiter, for example)."""
        done = subprocess.run(
            [*prefix, *self.command(*args)],
            input=input if input is not None else "",
            capture_output=True,
            encoding="utf-8",
            errors="backslashreplace",
            timeout=timeout,
            env=self.environment(env),
            cwd=self.world / "cwd",
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        return done

    def route(
        self,
        *args: str,
        env: Mapping[str, str] | None = None,
        check: int | None = 0,
        timeout: float = 60,
        prefix: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """Run `postmaster route`; `check` is the exit code it must end with (None: any)."""
        done = self.run("route", *args, env=env, timeout=timeout, prefix=prefix)
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def start(self, *args: str) -> subprocess.Popen[str]:
        """Start one command and do not wait for it."""
        return subprocess.Popen(
            self.command(*args),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="backslashreplace",
            env=self.environment(),
            cwd=self.world / "cwd",
        )

    # ------------------------------------------------------------------ setting up

    def init(self) -> None:
        """Make the office."""
        done = self.run("init")
        assert done.returncode == 0, (done.returncode, done.stdout, done.stderr)

    def declare(self, name: str, yaml_text: str) -> Path:
        """Write a declaration and return its path."""
        path = self.root / "registry.d" / f"{name.removesuffix('.yml')}.yml"
        path.parent.mkdir(exist_ok=True)
        path.write_text(yaml_text, encoding="utf-8")
        return path

    def merge(self, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run `registry merge`."""
        done = self.run("registry", "merge")
        if check is not None:
            assert done.returncode == check, (done.returncode, done.stdout, done.stderr)
        return done

    def drop(
        self,
        name: str | bytes,
        data: bytes | str,
        age_seconds: float = HOUR,
        mtime: float | None = None,
    ) -> Path:
        """Hand in a letter: written under a dot-name, aged, renamed."""
        path = os.path.join(os.fsencode(self.root / "outbox"), os.fsencode(name))
        raw = data.encode() if isinstance(data, str) else data
        write_atomically(path, raw, time.time() - age_seconds if mtime is None else mtime)
        return Path(os.fsdecode(path))

    def age(self, seconds: float = HOUR) -> None:
        """Set the mtime of everything in the outbox back."""
        then = time.time() - seconds
        for path in (self.root / "outbox").iterdir():
            os.utime(path, (then, then), follow_symlinks=False)

    # ------------------------------------------------------------------ looking

    def outbox(self) -> list[str]:
        """Return the names in the outbox."""
        return sorted(os.listdir(self.root / "outbox"))

    def log(self) -> list[dict[str, Any]]:
        """Return the log's lines, having checked that each is what the contract says a line is."""
        path = self.root / "logs" / "delivery-log.jsonl"
        text = path.read_bytes().decode("ascii") if path.exists() else ""
        lines = text.split("\n")
        assert lines.pop() == "", "the log does not end with a newline"
        assert lines == text.splitlines(), "a log line holds what other tools take for a line break"
        return [strict(line) for line in lines]

    def inbox(self, agent: str) -> Path:
        """Return an agent's inbox (the default place)."""
        return self.root / "inboxes" / agent

    def unread(self, agent: str) -> list[Mail]:
        """Return an agent's new mail, sorted by name."""
        return mails(self.inbox(agent) / "unread")

    def read(self, agent: str) -> list[Mail]:
        """Return an agent's acknowledged mail, sorted by name."""
        return mails(self.inbox(agent) / "read")

    def ack(self, agent: str) -> None:
        """Move all of an agent's mail to read/, as any Maildir reader does: by rename."""
        for mail in self.unread(agent):
            os.rename(self.inbox(agent) / "unread" / mail.name, self.inbox(agent) / "read" / mail.name)

    def dead(self) -> list[str]:
        """Return the names of the dead letters (a reason file beside a dead letter is not one)."""
        folder = self.root / "dead-letter"
        names = set(os.listdir(folder)) if folder.exists() else set()
        reasons = {name for name in names if name.endswith(".reason.yml")}
        return sorted(names - {name for name in reasons if name.removesuffix(".reason.yml") in names})

    def reason(self, name: str) -> dict[str, Any]:
        """Return the parsed reason file of a dead letter."""
        path = self.root / "dead-letter" / f"{name}.reason.yml"
        assert stat.S_ISREG(path.lstat().st_mode)
        parsed = yaml.load(path.read_bytes(), Loader=yaml.CBaseLoader)
        assert isinstance(parsed, dict), parsed
        return parsed

    def line(self, file: str | bytes) -> dict[str, Any]:
        """Return the one log line about a file of the outbox."""
        found = [line for line in self.log() if line.get("file") == shown(file)]
        assert len(found) == 1, (file, found)
        return found[0]

    def snapshot(self, *, private: bool = False) -> dict[str, tuple[str, Any]]:
        """Return everything under the root, .postmaster/ only on request, without following a link."""
        return tree(self.root, () if private else (".postmaster",))

    def tmp_litter(self) -> list[str]:
        """Return what lies in a tmp/ directory, and every private or temporary name outside .postmaster/."""
        found = set()
        roots = [self.root, *self.extra_inboxes]
        for root in roots:
            for relative in tree(root, (".postmaster",) if root == self.root else ()):
                parts = relative.split(os.sep)
                in_tmp = "tmp" in parts[:-1]
                odd = parts[-1].startswith(".") or parts[-1].endswith((".tmp", ".part", ".swp", "~", ".new"))
                if in_tmp or odd:
                    found.add(os.path.join(root, relative))
        return sorted(found)

    def outside(self) -> list[str]:
        """Return what the command made outside the root."""
        own = ("cwd", "home", "scratch")
        found = [os.path.join(name, inner) for name in own for inner in tree(self.world / name)]
        return sorted(found + [name for name in os.listdir(self.world) if name not in ("office", *own)])

    def census(self) -> Census:
        """Count every letter of the office, wherever it is."""
        letters: Counter[Any] = Counter()
        folders = [self.root / "outbox"]
        inboxes = [path for path in (self.root / "inboxes").glob("*") if path.is_dir()]
        for inbox in (*inboxes, *self.extra_inboxes):
            folders += [inbox / "unread", inbox / "read"]
        for folder in folders:
            if folder.is_dir():
                letters.update(_key(os.path.join(folder, name)) for name in os.listdir(folder))
        letters.update(_key(os.path.join(self.root / "dead-letter", name)) for name in self.dead())
        return Census(letters, frozenset(self.tmp_litter()))


def strict(line: str) -> dict[str, Any]:
    """Parse one log line as strictly as JSON allows, and check its keys, their order and its form."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len(dict(pairs)) == len(pairs), f"repeated key in {line}"
        return dict(pairs)

    parsed = json.loads(line, parse_constant=refuse, object_pairs_hook=once)
    assert isinstance(parsed, dict)
    unknown = set(parsed) - set(LOG_KEYS)
    assert not unknown, f"keys outside the contract: {unknown}"
    assert list(parsed) == [key for key in LOG_KEYS if key in parsed], f"keys out of order: {line}"
    assert None not in parsed.values(), f"absent keys are left out: {line}"
    assert LOG_TIME.fullmatch(parsed["time"]), parsed["time"]
    assert isinstance(parsed["action"], str)
    for key, value in parsed.items():
        allowed: tuple[type, ...] = {"sequence": (int,), "to": (str, list)}.get(key, (str,))
        assert isinstance(value, allowed), f"{key} is {value!r}"
        assert not isinstance(value, bool)
    assert line == json.dumps(parsed, separators=(",", ":")), f"not compact, ASCII-escaped JSON: {line}"
    return parsed


def mails(folder: Path) -> list[Mail]:
    """Read every file of a directory of delivered mail."""
    if not folder.is_dir():
        return []
    found = []
    for name in sorted(os.listdir(folder)):
        raw = (folder / name).read_bytes()
        found.append(Mail(name, raw, header(raw)))
    return found


def arrived(box: Box, agent: str, sent: bytes, *, folder: Path | None = None) -> Mail:
    """Assert that `sent` was delivered to `agent` exactly once, unharmed, and return it as it arrived."""
    original = header(sent)
    found = [
        mail
        for mail in mails(folder or box.inbox(agent) / "unread")
        if mail.body == original.body and mail.header.sender_fields() == original.sender_fields()
    ]
    assert len(found) == 1, f"{len(found)} copies of {sent[:300]!r} for {agent}"
    mail = found[0]
    assert mail.fields["id"] == md5(original.body)
    assert re.fullmatch(r"[1-9]\d*", mail.fields["sequence"])
    for key in ("id", "sequence"):
        assert mail.header.keys.count(key) == 1
    named = DELIVERED_NAME.fullmatch(mail.name)
    assert named, mail.name
    assert (int(named[2]), named[3]) == (mail.sequence, mail.fields["id"])
    return mail


def added_lines(sent: bytes, mail: Mail) -> list[bytes]:
    """Assert that the sender's header lines stand as typed and in order; return the lines that were added."""
    parts = split(sent)
    assert parts is not None
    theirs = _lines(parts[0])
    added = []
    for line in _lines(mail.header.head):
        if theirs and line == theirs[0]:
            theirs.pop(0)
        else:
            added.append(line)
    assert not theirs, f"sender's lines that did not arrive as typed: {theirs}"
    return added


def died(box: Box, name: str, sent: bytes, reason: str, action: str = "dead-letter") -> dict[str, Any]:
    """Assert that the letter called `name` is a dead letter, byte for byte; return its log line."""
    line = box.line(name)
    assert (line["action"], line.get("reason")) == (action, reason), line
    path = box.root / line["path"]
    assert path.parent == box.root / "dead-letter", line
    assert path.read_bytes() == sent
    written = box.reason(path.name)
    assert written.get("reason") == reason, written
    return line


def outcomes(box: Box) -> dict[str, tuple[str, str | None]]:
    """Return file -> (action, reason) for the log of a pass in which every letter has one recipient."""
    return {line["file"]: (line["action"], line.get("reason")) for line in box.log()}


def standing(box: Box, before: Census, *, again: int = 0, traces: Sequence[str] = ("/tmp/PWNED*",)) -> None:
    """Check what must hold after every run, whatever was routed.

    Args:
        before: `box.census()` from before the run.
        again: the exit code of one more run, which must change nothing.
    """
    after = box.census()
    assert after.letters == before.letters, "a letter was lost, doubled or changed"
    assert box.outside() == []
    for pattern in traces:
        assert not list(Path("/").glob(pattern.lstrip("/"))), pattern
    box.log()
    assert set(box.tmp_litter()) == set(before.litter)
    settled = box.snapshot()
    started = time.monotonic()
    done = box.route(check=again)
    assert time.monotonic() - started < 10
    assert box.snapshot() == settled, f"a second run changed something: {done.stdout} {done.stderr}"


# ---------------------------------------------------------------------- limits and privileges


def limited(memory_bytes: int = 1 << 30, cpu_seconds: int = 20) -> list[str]:
    """Return a command prefix that limits address space and processor time."""
    return ["/bin/sh", "-c", f'ulimit -v {memory_bytes // 1024} && ulimit -t {cpu_seconds} && exec "$@"', "limited"]


_DROP = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
for capability in (1, 2, 3):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH, CAP_FOWNER
    if libc.prctl(24, capability, 0, 0, 0):  # PR_CAPBSET_DROP
        sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
os.execv(sys.argv[1], sys.argv[1:])
"""


def obeying_permissions() -> list[str]:
    """Return a command prefix under which permission bits count, for root too."""
    return [sys.executable, "-c", _DROP] if os.geteuid() == 0 else []


def permissions_count(box: Box) -> bool:
    """Tell whether `obeying_permissions` works here: a closed directory must refuse a write."""
    closed = box.world / "scratch" / "closed"
    closed.mkdir(mode=0o555)
    try:
        code = "import sys; open(sys.argv[1] + '/x', 'w')"
        tried = subprocess.run(
            [*obeying_permissions(), sys.executable, "-c", code, str(closed)],
            capture_output=True,
            check=False,
        )
        return b"PermissionError" in tried.stderr
    finally:
        shutil.rmtree(closed)


@contextlib.contextmanager
def mounted(target: Path, size: str) -> Iterator[bool]:
    """Mount a small tmpfs at `target`; yields False where that is not possible."""
    target.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(target)]
    made = shutil.which("mount") is not None
    made = made and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", str(target)], check=True)
