"""The outbox: what counts as mail in it, reading a letter safely, taking one away safely.

An outbox is writable by everyone, so nothing in it is trusted: links are not followed, only regular files are
opened, and a name is only removed while it still means the file that was read.
"""

import contextlib
import errno
import fcntl
import os
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from postmaster import address, durable
from postmaster.errors import ConfigurationFault
from postmaster.names import TAKEN, free_names, is_mail

_KINDS: Final = {
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a character device",
    stat.S_IFBLK: "a block device",
}


def survive_lease_breaks() -> None:
    """Ignore SIGIO, which ends a process and is sent if a writer opens a file while we hold a lease on it (fcntl(2)).

    Only the main thread can do that; a program that works in others has to call this first.
    """
    with contextlib.suppress(ValueError):
        signal.signal(signal.SIGIO, signal.SIG_IGN)


class Source(NamedTuple):
    """One name in the outbox and what it meant when it was looked at. In a drop folder `name` is ``folder/name``."""

    name: str
    device: int
    inode: int
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, name: str, seen: os.stat_result) -> "Source":
        """Return the source that `name` is, having these attributes."""
        return cls(name, seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns)


@dataclass(frozen=True, slots=True)
class Letter:
    """A regular file that was read. `raw` is all of it, or only its beginning where it is `too_large`.

    `owner` (a uid) and `mode` are those of the file that was read, whatever its name means by now.
    """

    source: Source
    raw: bytes
    too_large: bool
    owner: int = -1
    mode: int = 0


@dataclass(frozen=True, slots=True)
class Special:
    """A name that is not a regular file with one link. `kind` says what it is."""

    source: Source
    kind: str


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A name that the system does not let us read. `source` is None if not even its attributes can be had."""

    name: str
    source: Source | None
    fault: OSError


@dataclass(frozen=True, slots=True)
class Waiting:
    """A name that is left for a later run, and why."""

    name: str
    why: str


def scan(outbox: str, *, drop_folders: bool = False, every: bool = False) -> list[str]:
    """Return the names of mail in the outbox, in no order; with `drop_folders` also what is in these: ``folder/name``.

    Args:
        every: return names that are no mail, too.

    Raises:
        OSError: it cannot be listed.
        ConfigurationFault: there can be no drop folders in this outbox (folders).
    """
    if not drop_folders:
        with os.scandir(outbox) as entries:
            return [entry.name for entry in entries if every or is_mail(entry.name)]
    with os.scandir(outbox) as entries:
        listed = list(entries)
    inside = _folders(outbox, listed)
    found = [entry.name for entry in listed if (every or is_mail(entry.name)) and entry.name not in inside]
    for folder in inside:
        with contextlib.suppress(FileNotFoundError):
            names = os.listdir(os.path.join(outbox, folder))
            found += [f"{folder}/{name}" for name in names if every or is_mail(name)]
    return found


def folders(outbox: str) -> list[str]:
    """Return the names of the drop folders: the directories that are called as an agent's id can be, and are ours.

    Only who routes (or root) may be able to put another directory, or a link, in the place of one: mail is read and
    moved through these names. So a directory of somebody else's is no drop folder, and an outbox in which others may
    rename what is not theirs can have none.

    Raises:
        OSError: the outbox cannot be listed.
        ConfigurationFault: others may rename what is in it.
    """
    with os.scandir(outbox) as entries:
        return _folders(outbox, list(entries))


def _folders(outbox: str, listed: list[os.DirEntry[str]]) -> list[str]:
    ours = (os.geteuid(), 0)
    found = []
    for entry in listed:
        with contextlib.suppress(FileNotFoundError):
            is_folder = entry.is_dir(follow_symlinks=False) and address.is_id(entry.name)
            if is_folder and entry.stat(follow_symlinks=False).st_uid in ours:
                found.append(entry.name)
    seen = os.stat(outbox)
    if found and (seen.st_uid not in ours or (seen.st_mode & 0o022 and not seen.st_mode & stat.S_ISVTX)):
        raise ConfigurationFault(
            f"{outbox}: has drop folders, and others may rename them: it must belong to the account that routes, and "
            f"be writable by no other, or sticky (`chmod +t {outbox}`)"
        )
    return found


def kind(mode: int) -> str:
    """Return what a name that is no regular file is, in words, from its `st_mode`."""
    return _KINDS.get(stat.S_IFMT(mode), "no regular file")


def is_young(mtime_ns: int, now_ns: int, settle_seconds: int) -> bool:
    """Tell whether a file was changed so lately that its writer may not be done. A time far ahead is a wrong clock."""
    return abs(now_ns - mtime_ns) < settle_seconds * 10**9


def read(
    outbox: str, name: str, *, max_bytes: int, head_bytes: int, settle_seconds: int, now_ns: int
) -> Letter | Special | Unreadable | Waiting | None:
    """Read one letter; None if it is gone.

    Args:
        max_bytes: a file larger than this is `too_large`; of such a file only `head_bytes` are read.
        settle_seconds: how long a file with a second hard link may wait for its writer to unlink the other.
    """
    path = os.path.join(outbox, name)
    seen: os.stat_result | None = None
    try:
        seen = os.lstat(path)
        if not stat.S_ISREG(seen.st_mode):
            return Special(Source.of(name, seen), kind(seen.st_mode))
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as fault:
        if fault.errno == errno.ELOOP:  # became a link since the lstat
            return Waiting(name, "it changed while it was looked at")
        return Unreadable(name, Source.of(name, seen) if seen else None, fault)
    try:
        seen = os.fstat(descriptor)
        if not stat.S_ISREG(seen.st_mode):
            return Waiting(name, "it changed while it was looked at")
        source = Source.of(name, seen)
        if _held_for_writing(descriptor):
            return Waiting(name, "a writer still holds it open")
        if seen.st_nlink > 1:
            if is_young(seen.st_mtime_ns, now_ns, settle_seconds):
                return Waiting(name, "it has a second hard link; its writer may be about to unlink that")
            return Special(source, "a file with a second hard link")
        too_large = seen.st_size > max_bytes
        raw = _read(descriptor, head_bytes if too_large else max_bytes + 1, seen.st_size)
        if not too_large and len(raw) != seen.st_size:
            return Waiting(name, "it grew while it was read")
        return Letter(source, raw, too_large, seen.st_uid, seen.st_mode)
    except OSError as fault:
        return Unreadable(name, Source.of(name, seen), fault)
    finally:
        os.close(descriptor)


def _held_for_writing(descriptor: int) -> bool:
    """Tell whether anyone has the file open for writing: then a read lease is refused (fcntl(2), F_SETLEASE).

    Closing the descriptor gives the lease back. Where leases are not to be had (other systems, files of other
    users without CAP_LEASE) nobody can tell, and a letter is taken as it is.
    """
    try:
        fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)
    except OSError as fault:
        return fault.errno == errno.EAGAIN
    except AttributeError:  # no leases on this system
        return False
    return False


def _read(descriptor: int, limit: int, expected: int) -> bytes:
    """Read at most `limit` bytes; one read(2) if the file has the `expected` size still."""
    first = os.read(descriptor, min(limit, expected + 1))
    if len(first) == expected or len(first) == limit or not first:
        return first
    parts, limit = [first], limit - len(first)
    while limit > 0 and (part := os.read(descriptor, min(limit, 1 << 20))):
        parts.append(part)
        limit -= len(part)
    return b"".join(parts)


def is_same(source: Source, seen: os.stat_result) -> bool:
    """Tell whether what is seen now is the file that was read, unchanged."""
    return (seen.st_dev, seen.st_ino, seen.st_size, seen.st_mtime_ns) == (
        source.device,
        source.inode,
        source.size,
        source.mtime_ns,
    )


def take_all(outbox: str, sources: Sequence[Source]) -> list[tuple[Source, OSError]]:
    """Remove letters that have been delivered; a newer one that has come under the name of one stays.

    Each is renamed to a private name and looked at there. A letter that is the right one is gone when the next
    replaces it under that name, which saves the file system a removal for each; the last is unlinked. A crash leaves at
    most one under the private name, from where `recover_taken` removes it or puts it back.

    Returns:
        those that could not be removed, each with the fault.
    """
    found: dict[str, list[Source]] = {}
    for source in sources:
        found.setdefault(_place(outbox, source), []).append(source)
    return [stuck for place, there in found.items() for stuck in _take_from(place, there)]


def places(outbox: str, sources: Sequence[Source]) -> list[str]:
    """Return the directories that these letters are in: the outbox, and perhaps drop folders in it."""
    return [outbox, *sorted({_place(outbox, source) for source in sources} - {outbox})]


def _place(outbox: str, source: Source) -> str:
    folder = source.name.rpartition("/")[0]
    return os.path.join(outbox, folder) if folder else outbox


def _take_from(place: str, sources: Sequence[Source]) -> list[tuple[Source, OSError]]:
    taken = os.path.join(place, TAKEN)
    stuck: list[tuple[Source, OSError]] = []
    held: Source | None = None  # a letter of these that has the private name, and is done with
    for source in sources:
        name = source.name.rpartition("/")[2]
        try:
            (durable.rename_new if held is None else os.rename)(os.path.join(place, name), taken)
        except FileNotFoundError:
            continue
        except OSError as fault:
            if held is None or not isinstance(fault, NotADirectoryError):  # rename(2): a directory has its name now
                stuck.append((source, fault))
            continue
        held = source
        try:
            if not is_same(source, os.lstat(taken)):
                held = None
                put_back(place, name)
        except OSError as fault:
            held = None
            stuck.append((source, fault))
            _try_to_put_back(place, name)
    if held is not None:
        try:
            os.unlink(taken)
        except OSError as fault:
            stuck.append((held, fault))
            _try_to_put_back(place, held.name.rpartition("/")[2])
    return stuck


def _try_to_put_back(place: str, name: str) -> None:
    """Give the taken letter its name again; where that fails, it is the next run that does (recover_taken)."""
    with contextlib.suppress(OSError):
        put_back(place, name)


def move(outbox: str, source: Source, target: str) -> bool:
    """Rename a letter to `target` without replacing; False if it is gone or is another file by now."""
    name = os.path.join(outbox, source.name)
    try:
        if not is_same(source, os.lstat(name)):
            return False
        durable.rename_new(name, target)
    except FileNotFoundError:
        return False
    try:
        moved_another = not is_same(source, os.lstat(target))
    except OSError:  # it is moved; what cannot be looked at is taken for what it was a moment ago
        return True
    if moved_another:
        place, own = os.path.split(name)
        _give_back(place, target, own)
    return not moved_another


def recover_taken(place: str, finished: Sequence[Source]) -> None:
    """Complete an interrupted `take_all`: remove the taken file if it is one of `finished`, else put it back.

    An inode number alone proves nothing: once a letter of the batch is unlinked, a new letter can get its inode, and be
    renamed over another name of the batch.

    Args:
        place: the outbox, or a drop folder in it.
    """
    taken = os.path.join(place, TAKEN)
    try:
        seen = os.lstat(taken)
    except (FileNotFoundError, NotADirectoryError):
        return
    if any(is_same(source, seen) for source in finished):
        os.unlink(taken)
    else:
        put_back(place, "recovered.md")


def put_back(place: str, name: str) -> None:
    """Give the taken letter a name in its place again."""
    _give_back(place, os.path.join(place, TAKEN), name)


def _give_back(place: str, path: str, name: str) -> None:
    """Rename `path` to its own name in the place it came from, or to one near it if that has been taken."""
    for candidate in free_names(name):
        with contextlib.suppress(FileExistsError):
            durable.rename_new(path, os.path.join(place, candidate))
            return
