"""The one place that runs git. It can fetch mail from, and push mail to, the remotes of post-office.yml: nothing else.

What may be said to git is a matter of types: a remote is one of those that the capability was built with, a ref is made
from an address, an object id is forty hex digits. There is no function that takes an argument for git, a refspec, a
URL or an option, so a forced push, a deletion or another ref cannot be asked for.
"""

import fcntl
import os
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final

from postmaster import durable
from postmaster.carrier.refs import ENTITY, INBOX, NOTHING, Change, Inbox, Oid
from postmaster.errors import BadData, DiskFault, Missing
from postmaster.remotes import Remote

_WHO: Final = "postmaster"  # the author of every commit
PROGRAM: Final = "git"  # for who looks whether it is installed
_LOCK_SECONDS: Final = 60  # how long a git that is alive holds the lock of a ref, at most
_MANY_LOOSE: Final = 6700  # objects; as git's own gc.auto
_SECONDS: Final = 300.0  # for one exchange with a remote
_PROTOCOLS: Final = ("file", "ssh", "git", "https")

# What git says of a ref that another has moved meanwhile, or moves now; not that the remote forbids it.
_CANNOT: Final = b"exists; cannot create"  # a ref lies below another one, and stays there
_MOVED: Final = re.compile(
    rb"\[rejected\]|failed to update ref|cannot lock ref|incorrect old value|reference already exists|non-fast-forward"
)

# Nothing that a repository, an account or a machine is configured to do happens: no hooks, no filters, no helpers that
# ask for a password, no automatic collection; whatever is transferred is checked; new names and objects are synced.
_CONFIG: Final = (
    "core.hooksPath=/dev/null",
    "core.attributesFile=/dev/null",
    "core.fsmonitor=false",
    "core.fsync=all",
    "core.logAllRefUpdates=false",
    "transfer.fsckObjects=true",
    "fetch.fsckObjects=true",
    "fetch.recurseSubmodules=false",
    "fetch.writeCommitGraph=false",
    "push.recurseSubmodules=no",
    "push.followTags=false",
    "push.gpgSign=false",
    "submodule.recurse=false",
    "credential.helper=",
    "http.followRedirects=false",
    "http.lowSpeedLimit=100",
    "http.lowSpeedTime=60",
    "gc.auto=0",
    "maintenance.auto=false",
    "protocol.allow=never",
    *(f"protocol.{name}.allow=always" for name in _PROTOCOLS),
)


class Unreachable(Exception):
    """A remote did not answer, or refused: it may another time. The text is git's own."""


class Wrong(Exception):
    """A remote sent more in one pass than it may, or objects that git itself refuses."""


class Git:
    """The office's mail repository, and the exchange with its remotes. Frozen once made.

    Args:
        directory: the bare repository.
        known: the remotes of post-office.yml.
    """

    __slots__ = ("_directory", "_environment", "_remotes")

    def __init__(self, directory: str, known: Iterable[Remote]) -> None:
        named: Mapping[str, Remote] = MappingProxyType({remote.name: remote for remote in known})
        object.__setattr__(self, "_directory", directory)
        object.__setattr__(self, "_remotes", named)
        object.__setattr__(self, "_environment", MappingProxyType(_environment(directory)))

    _directory: str
    _remotes: Mapping[str, Remote]
    _environment: Mapping[str, str]

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"{name} cannot be changed")

    # -- exchange ----------------------------------------------------------------------------------------------

    def fetch(self, name: str) -> None:
        """Take what a remote's inboxes are now, as `refs/postmaster/fetched/NAME/`. Nothing else is touched.

        Raises:
            KeyError: it is none of the remotes.
            Unreachable, Wrong: as they say; nothing has changed.
        """
        remote = self._remotes[name]
        refspec = f"+{INBOX}*:{_fetched(name)}*"  # forced here only: what came is judged before it counts
        words = ("fetch", "--quiet", "--prune", "--no-tags", "--no-auto-maintenance", "--no-write-fetch-head")
        done = self._run([*words, "--no-recurse-submodules", "--", remote.url, refspec], most=remote.max_bytes)
        if done.returncode:
            if done.returncode < 0 or b"File too large" in done.stderr or b"signal 25" in done.stderr:
                raise Wrong(f"it sent more than max_bytes ({remote.max_bytes})")
            if b"fsck error" in done.stderr:
                raise Wrong(f"it sent what git refuses: {_words(done.stderr)}")
            raise Unreachable(_words(done.stderr))

    def push(self, name: str, inboxes: Sequence[tuple[Inbox, Oid]]) -> bool:
        """Give a remote these states of inboxes, fast-forward only; tell whether it took all of them.

        Raises:
            KeyError: it is none of the remotes.
            Unreachable: it did not answer.
        """
        remote = self._remotes[name]
        refspecs = [f"{oid.hex}:{INBOX}{inbox.name}" for inbox, oid in inboxes]
        words = ("push", "--quiet", "--no-verify", "--no-follow-tags", "--no-signed", "--recurse-submodules=no")
        done = self._run([*words, "--", remote.url, *refspecs])
        if done.returncode and (_CANNOT in done.stderr or not _MOVED.search(done.stderr)):
            raise Unreachable(_words(done.stderr))
        return done.returncode == 0

    # -- the repository ----------------------------------------------------------------------------------------

    def exists(self) -> bool:
        """Tell whether the repository is there."""
        return os.path.exists(os.path.join(self._directory, "HEAD"))

    def make(self) -> None:
        """Make the repository if it is not there. It is there as a whole or not at all, whoever else makes it.

        Raises:
            DiskFault: the disk refused.
        """
        if self.exists():
            return
        try:
            self._make_whole()
        except OSError as fault:
            raise DiskFault(
                f"{fault.filename or self._directory}: {fault.strerror}; the next run tries again"
            ) from fault

    def _make_whole(self) -> None:
        home = os.path.dirname(self._directory)
        durable.make_directories(home)
        descriptor = os.open(home, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)  # of two git inits in one place, one fails
            if self.exists():
                return
            begun = self._directory + ".begun"
            shutil.rmtree(begun, ignore_errors=True)  # what a killed one has left
            self._must("init", "--quiet", "--bare", "--template=", "--object-format=sha1", begun)
            durable.sync_through(begun)
            os.rename(begun, self._directory)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)

    def clear_locks(self) -> None:
        """Remove the locks of refs that a git which was killed has left; to be called when no carrier runs.

        Only somebody who pushes into this repository can hold one then, of an inbox, or who writes a transcript, and
        not for long.
        """
        now = time.time()
        for folder, _, names in os.walk(os.path.join(self._directory, "refs", "postmaster")):
            shared = folder in (os.path.join(self._directory, one).rstrip("/") for one in (INBOX, ENTITY))
            for name in names:
                path = os.path.join(folder, name)
                if name.endswith(".lock") and (not shared or _age(path, now) > _LOCK_SECONDS):
                    durable.remove(path)
        for name in ("packed-refs.lock", "HEAD.lock", "config.lock"):
            path = os.path.join(self._directory, name)
            if _age(path, now) > _LOCK_SECONDS:
                durable.remove(path)

    def refs(self) -> dict[str, Oid]:
        """Return every ref of ours."""
        listed = self._must("for-each-ref", "--format=%(refname) %(objectname) %(objecttype)", "refs/postmaster/")
        rows = [line.split(" ") for line in listed.decode("utf-8", "replace").splitlines()]
        return {row[0]: Oid(row[1]) for row in rows if len(row) == 3 and row[2] == "commit"}

    def move(self, changes: Sequence[Change]) -> None:
        """Move refs of this repository, all or none.

        Raises:
            DiskFault: one of them is not where it was, or the disk refused; none has moved.
        """
        told = b"start\0"
        for ref, new, old in changes:
            if not ref.startswith("refs/postmaster/"):
                raise ValueError(ref)
            before = old.hex if old is not None else NOTHING
            if new is None:
                told += f"delete {ref}\0{before}\0".encode()
            else:
                told += f"update {ref}\0{new.hex}\0{before}\0".encode()
        self._must("update-ref", "--no-deref", "-z", "--stdin", data=told + b"prepare\0commit\0")

    def behind(self, tip: Oid, under: str) -> list[Oid]:
        """Return the refs whose names begin so, and whose history `tip` has."""
        listed = self._must("for-each-ref", f"--merged={tip.hex}", "--format=%(objectname)", under)
        return [Oid(line) for line in listed.decode("ascii").split()]

    def pack(self) -> None:
        """Put loose objects together once there are many; the number of packs stays small (git-repack(1))."""
        try:
            sample = os.listdir(os.path.join(self._directory, "objects", "17"))  # as git gc --auto guesses
        except OSError:
            return
        if len(sample) > _MANY_LOOSE // 256:
            self._run(["repack", "--geometric=2", "-d", "-l", "--quiet"])

    def is_ancestor(self, old: Oid, new: Oid) -> bool:
        """Tell whether `new` holds all of the history of `old`."""
        return self._run(["merge-base", "--is-ancestor", old.hex, new.hex]).returncode == 0

    def history(self, head: Oid) -> list[tuple[Oid, int]]:
        """Return the commits of a linear history, the newest first, with their times (seconds since the epoch)."""
        listed = self._must("log", "--first-parent", "--format=%H %ct", head.hex, "--")
        return [(Oid(row.split(" ")[0]), int(row.split(" ")[1])) for row in listed.decode("ascii").splitlines()]

    def add_history(
        self, ref: str, parent: Oid | None, name: str, text: str, steps: Sequence[tuple[int, bytes]]
    ) -> list[Oid]:
        """Keep commits that follow each other, each with one file, as `write_commit` makes them, up to `ref`.

        Args:
            ref: whatever it was before.
            parent: what the first of them follows; None: nothing.
            name, text: what each commit calls its file, and says of itself (ASCII).
            steps: for each commit its time (seconds since the epoch) and what its file `name` holds; not empty.

        Raises:
            DiskFault: the disk refused.
        """
        self._must("update-ref", "--no-deref", "-d", ref)
        told = bytearray(b"feature done\nfeature get-mark\n")  # git-fast-import(1)
        for mark, (seconds, content) in enumerate(steps, 1):
            told += f"commit {ref}\nmark :{mark}\n".encode()
            told += f"committer {_WHO} <{_WHO}> {seconds} +0000\ndata {len(text)}\n{text}\n".encode()
            if mark == 1 and parent is not None:
                told += f"from {parent.hex}\n".encode()
            told += f"M 100644 inline {name}\ndata {len(content)}\n".encode() + content + b"\n"
            told += f"get-mark :{mark}\n".encode()
        told += b"done\n"
        made = self._must("fast-import", "--quiet", "--done", "--date-format=raw", data=bytes(told))
        return [Oid(line) for line in made.decode("ascii").split()]

    def files(self, commits: Sequence[Oid], name: str) -> list[bytes]:
        """Return the content of the file `name` in each of these commits."""
        asked = "".join(f"{commit.hex}:{name}\n" for commit in commits).encode()
        return _contents(self._must("cat-file", "--batch", data=asked), len(commits)) if commits else []

    def entries(self, tree: Oid) -> dict[str, tuple[str, Oid]]:
        """Return what a tree or commit holds at its top: name -> (mode, id)."""
        found = {}
        for row in self._must("ls-tree", "-z", tree.hex).split(b"\0")[:-1]:
            meta, _, name = row.partition(b"\t")
            mode, _, oid = meta.decode().split(" ")
            found[name.decode("utf-8", "backslashreplace")] = (mode, Oid(oid))
        return found

    def changed(self, old: Oid | None, new: Oid) -> list[tuple[str, str, Oid, str]]:
        """Return the files that differ between two commits: (how: A, D, M ..., mode, id, path)."""
        if old is None:
            listed = self._must("ls-tree", "-r", "-z", new.hex).split(b"\0")[:-1]
            rows = [(b"A", *row.partition(b"\t")[::2]) for row in listed]
            return [
                ("A", meta.split(b" ")[0].decode(), Oid(meta.split(b" ")[2].decode()), path.decode("utf-8", "replace"))
                for _, meta, path in rows
            ]
        parts = self._must("diff-tree", "-r", "-z", "--no-renames", "--raw", old.hex, new.hex).split(b"\0")[:-1]
        found = []
        for meta, path in zip(parts[::2], parts[1::2], strict=True):
            _, mode, before, after, how = meta.decode().split(" ")
            oid = before if how == "D" else after
            found.append((how, mode, Oid(oid), path.decode("utf-8", "backslashreplace")))
        return found

    def blobs(self, oids: Sequence[Oid]) -> list[bytes]:
        """Return the contents of files."""
        if not oids:
            return []
        asked = "".join(f"{oid.hex}\n" for oid in oids).encode()
        return _contents(self._must("cat-file", "--batch", data=asked), len(oids))

    def write_blob(self, content: bytes) -> Oid:
        """Keep the content of a file."""
        return Oid(self._must("hash-object", "-w", "--no-filters", "--stdin", data=content).decode().strip())

    def write_tree(self, entries: Mapping[str, tuple[str, Oid]]) -> Oid:
        """Keep a directory: name -> (mode, id)."""
        rows = [
            f"{mode} {'tree' if mode == '040000' else 'blob'} {oid.hex}\t{name}\0"
            for name, (mode, oid) in entries.items()
        ]
        return Oid(self._must("mktree", "-z", data="".join(rows).encode()).decode().strip())

    def write_commit(self, tree: Oid, parents: Sequence[Oid], text: str) -> Oid:
        """Keep a state of an inbox. `text` says why it came to be."""
        words = [word for parent in parents for word in ("-p", parent.hex)]
        return Oid(self._must("commit-tree", tree.hex, *words, data=text.encode()).decode().strip())

    # -- running git -------------------------------------------------------------------------------------------

    def _must(self, *words: str, data: bytes = b"") -> bytes:
        done = self._run(words, data)
        if done.returncode:
            raise DiskFault(f"{self._directory}: git {words[0]}: {_words(done.stderr)}; the next run tries again")
        return done.stdout

    def _run(self, words: Sequence[str], data: bytes = b"", most: int = 0) -> subprocess.CompletedProcess[bytes]:
        options = [part for one in _CONFIG for part in ("-c", one)]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))) if most else None
        try:
            return subprocess.run(  # noqa: S603
                ["git", "--no-replace-objects", *options, *words],  # noqa: S607
                input=data,
                capture_output=True,
                env=dict(self._environment),
                cwd="/",
                timeout=_SECONDS,
                preexec_fn=limit,
                check=False,
            )
        except FileNotFoundError as fault:
            raise Missing("git is not installed; mail between offices needs it (apt install git)") from fault
        except subprocess.TimeoutExpired as fault:
            raise Unreachable(f"no end after {_SECONDS:g} seconds") from fault


def _contents(out: bytes, number: int) -> list[bytes]:
    """Return the files in an answer of `cat-file --batch`. Raises BadData if one of them is none."""
    found, at = [], 0
    for _ in range(number):
        end = out.index(b"\n", at)
        name, _, rest = out[at:end].partition(b" ")
        kind, _, size = rest.partition(b" ")
        if kind != b"blob":
            raise BadData(f"{name.decode('utf-8', 'backslashreplace')} is no file in the mail repository")
        found.append(out[end + 1 : end + 1 + int(size)])
        at = end + 2 + int(size)
    return found


def _age(path: str, now: float) -> float:
    """Return for how many seconds a file has been there; 0 if it is not."""
    try:
        return now - os.lstat(path).st_mtime
    except OSError:
        return 0


def _fetched(name: str) -> str:
    return f"refs/postmaster/fetched/{name}/"


def _environment(directory: str) -> dict[str, str]:
    """Return the environment of git: no settings of a machine or account, nobody to ask for a password."""
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSH_AUTH_SOCK", "TMPDIR") if name in os.environ}
    who = {f"GIT_{role}_{part}": _WHO for role in ("AUTHOR", "COMMITTER") for part in ("NAME", "EMAIL")}
    return kept | who | {
        "GIT_DIR": directory,
        "GIT_CONFIG_NOSYSTEM": "1",
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_ATTR_NOSYSTEM": "1",
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_ASKPASS": "/bin/false",
        "SSH_ASKPASS": "/bin/false",
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes -oConnectTimeout=20 -oServerAliveInterval=15 -oServerAliveCountMax=4",
        "GIT_ALLOW_PROTOCOL": ":".join(_PROTOCOLS),
        "GIT_PROTOCOL_FROM_USER": "0",
        "LC_ALL": "C",
        "TZ": "UTC",
    }  # fmt: skip


def _words(said: bytes) -> str:
    return " ".join(said[-400:].decode("utf-8", "backslashreplace").split()) or "git said nothing"
