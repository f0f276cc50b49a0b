"""Mailboxes: a directory with tmp/ unread/ read/ (after Maildir, https://cr.yp.to/proto/maildir.html).

A message is written in tmp/, synced there, and renamed into unread/, so that a reader of unread/ never sees half
of one.
"""

import contextlib
import errno
import os
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from postmaster import durable, names

TMP: Final = "tmp"
UNREAD: Final = "unread"
READ: Final = "read"
FOLDERS: Final = (TMP, UNREAD, READ)

_SPARED_SECONDS: Final = 3600


@dataclass(frozen=True, slots=True)
class Temporary:
    """A file that is written and waits to be published: `path`, and its inode number."""

    path: str
    inode: int


def make(path: str) -> None:
    """Make a mailbox, or those of its folders that are missing. Raises OSError."""
    for folder in FOLDERS:
        durable.make_directories(os.path.join(path, folder))


def open_for_delivery(path: str, *, may_make: bool) -> None:
    """Make sure that mail can be put into the mailbox at `path`, and clear what a killed run left in its tmp/.

    Args:
        may_make: whether the mailbox itself, with its unread/, may be made. One outside the office is not: where its
            disk is not mounted, mail would vanish below the mount point.

    Raises:
        OSError: it is missing or closed.
    """
    if not may_make:
        os.stat(os.path.join(path, UNREAD))  # an empty directory may be the place where its disk is to be mounted
    make(path)
    for folder in (TMP, UNREAD):
        checked = os.path.join(path, folder)
        _check_folder(checked)
        if not os.access(checked, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids):
            raise PermissionError(13, "Permission denied", checked)
    clear_temporaries(os.path.join(path, TMP))


def _check_folder(path: str, *, follow: bool = False) -> None:
    """Raise NotADirectoryError for what is no directory: a link would lead mail out of its mailbox."""
    if not stat.S_ISDIR((os.stat if follow else os.lstat)(path).st_mode):
        what = "a symbolic link, not a directory" if os.path.islink(path) else os.strerror(errno.ENOTDIR)
        raise NotADirectoryError(errno.ENOTDIR, what, path)


def clear_temporaries(directory: str) -> None:
    """Remove the temporaries of routers that are no longer alive."""
    for name in stale_temporaries(directory):
        durable.remove(os.path.join(directory, name))


def stale_temporaries(directory: str) -> list[str]:
    """Return the names of the temporaries of routers that are no longer at work. Raises OSError.

    The router's lock makes all of them stale but our own; a living owner is spared for an hour all the same, for file
    systems on which the lock does not work.
    """
    with os.scandir(directory) as entries:
        ours = [entry for entry in entries if entry.name.startswith(durable.TEMPORARY)]
        old_ns = time.time_ns() - _SPARED_SECONDS * 10**9
        return [
            entry.name
            for entry in ours
            if not owner_lives(entry.name) or entry.stat(follow_symlinks=False).st_mtime_ns < old_ns
        ]


def owner_lives(name: str) -> bool:
    """Tell whether the process that wrote a temporary still runs (signal 0, kill(2)); not so for our own."""
    number = name.partition(durable.TEMPORARY)[2].partition("-")[0]
    if not number.isdecimal() or int(number) == os.getpid():
        return False
    try:
        os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def temporary_name(number: int) -> str:
    """Return the name of this process's temporary number `number`."""
    return f"{durable.TEMPORARY}{os.getpid()}-{number}"


def free_name(directory: str, name: str) -> str:
    """Return `name`, or the name near it, that nothing in `directory` has."""
    return next(one for one in names.free_names(name) if not os.path.lexists(os.path.join(directory, one)))


def messages(path: str, folder: str) -> list[str]:
    """Return the names of the messages in one folder of a mailbox, sorted; none if the folder is missing."""
    try:
        with os.scandir(os.path.join(path, folder)) as entries:
            return sorted(
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_file(follow_symlinks=False)
            )
    except FileNotFoundError:
        return []


def waits_longest(path: str, names_of: Iterable[str]) -> tuple[int, str] | None:
    """Return (when it was delivered, in nanoseconds; name) of the message in unread/ that was delivered first.

    A name begins with `sent_at`, which is what its sender says; the file's own time is that of its delivery.
    """
    found = []
    for name in names_of:
        with contextlib.suppress(OSError):  # read meanwhile
            found.append((os.lstat(os.path.join(path, UNREAD, name)).st_mtime_ns, name))
    return min(found, default=None)


def publish(temporary: Temporary, target: str, *, again: bool) -> None:
    """Rename a temporary to its final name.

    Commit point: the rename. A crash before it leaves the temporary, which the journal names.

    Args:
        again: a run that was killed may have renamed it, and its recipient may have moved it on since: then a
            missing temporary means that all is done.

    Raises:
        FileExistsError: another message has this name.
        OSError: the mailbox is gone or closed.
    """
    try:
        durable.rename_new(temporary.path, target)
    except FileNotFoundError:
        if not again and not _is(temporary, target):
            raise
        os.stat(os.path.dirname(temporary.path))  # the mailbox itself must be there
        os.stat(os.path.dirname(target))
    except FileExistsError:
        if not _is(temporary, target):
            raise


def _is(temporary: Temporary, target: str) -> bool:
    try:
        return os.lstat(target).st_ino == temporary.inode
    except OSError:
        return False


def move_message(path: str, name: str, origin: str, destination: str) -> str:
    """Move one message between the folders of a mailbox; return its new name there. Nothing is replaced.

    Raises:
        FileNotFoundError: there is no such message in `origin`.
        OSError: the mailbox is closed.
    """
    durable.make_directories(os.path.join(path, destination))
    _check_folder(os.path.join(path, origin))
    _check_folder(os.path.join(path, destination))
    for candidate in names.free_names(name):
        try:
            durable.rename_new(os.path.join(path, origin, name), os.path.join(path, destination, candidate))
        except FileExistsError:
            continue
        durable.sync_directory(os.path.join(path, destination))
        durable.sync_directory(os.path.join(path, origin))
        return candidate
    raise AssertionError("free_names is endless")


def check_for_delivery(path: str, *, may_make: bool) -> None:
    """Look, without touching anything, whether `open_for_delivery` would succeed. Raises OSError if not."""
    for folder in ("", TMP, UNREAD):
        checked = os.path.join(path, folder)
        try:
            _check_folder(checked, follow=not folder)
        except FileNotFoundError:
            if not may_make and folder != TMP:
                raise
            continue
        if not os.access(checked, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied", checked)
