"""The few ways in which bytes are made to stay: write, rename without replacing, sync.

Every function raises OSError as the system gave it; the callers know what it means for the mail.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Iterable
from typing import Final

_AT_FDCWD: Final = -100  # fcntl.h
_RENAME_NOREPLACE: Final = 1  # rename(2)

TEMPORARY: Final = "postmaster-"  # how the names of temporaries begin; the number of their process follows

_libc: Final = ctypes.CDLL(None, use_errno=True)
_renameat2: Final = getattr(_libc, "renameat2", None)
if _renameat2 is not None:
    _renameat2.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
_syncfs: Final = getattr(_libc, "syncfs", None)
HAS_SYNCFS: Final = _syncfs is not None


def write_new(path: str, data: bytes, *, sync: bool, mode: int = 0o666) -> int:
    """Write a file that must not exist yet; return its inode number. On a fault no file is left behind."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            write_all(descriptor, data)
            if sync:
                os.fsync(descriptor)
            inode = os.fstat(descriptor).st_ino
        finally:
            os.close(descriptor)
    except BaseException:
        remove(path)
        raise
    return inode


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, going on after short writes (write(2))."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def replace(path: str, data: bytes) -> None:
    """Write a file whole: after a crash it has the old bytes or the new ones. Synced, its directory too.

    What a crash leaves has the name of a temporary, and goes with those (maildir.clear_temporaries).
    """
    directory, name = os.path.split(path)
    temporary = os.path.join(directory, f"{TEMPORARY}{os.getpid()}-{name}")
    remove(temporary)
    write_new(temporary, data, sync=True)
    try:
        os.rename(temporary, path)
    except OSError:
        remove(temporary)
        raise
    sync_directory(directory)


def rename_new(source: str, target: str) -> None:
    """Rename, never replacing: FileExistsError if `target` is there. Atomic where renameat2(2) is.

    On a file system or system without RENAME_NOREPLACE the check comes just before the rename; the router's
    lock makes it the only one that makes names there.
    """
    if _renameat2 is not None:
        done = _renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
        if done == 0:
            return
        code = ctypes.get_errno()
        if code not in (errno.EINVAL, errno.ENOSYS):
            raise OSError(code, os.strerror(code), source, None, target)
    if os.path.lexists(target):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), source, None, target)
    os.rename(source, target)


def remove(path: str) -> None:
    """Unlink a file of ours if it is there; a fault leaves litter, which the next run clears, and is not raised."""
    try:
        os.unlink(path)
    except OSError:
        return


def make_directories(path: str) -> None:
    """Make a directory, and those above it that are missing, durably: the parent of each is synced."""
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        make_directories(parent)
    try:
        os.mkdir(path)
    except FileExistsError as taken:
        if not os.path.isdir(path):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from taken
    sync_directory(parent)


def open_regular(path: str) -> int:
    """Open a regular file for reading: no link is followed, no pipe waited for. Raises OSError for anything else."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", path)
    return descriptor


def sync_directory(path: str) -> None:
    """Make the names in a directory durable (fsync(2) on the directory)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_through(path: str) -> None:
    """Make the name of a file durable where its directory cannot be opened, only written to: by its file system.

    Where there is no syncfs(2) every file system is synced.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if _syncfs is None:
            os.sync()
        elif _syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(descriptor)


def sync_file(path: str) -> None:
    """Make the bytes of a file durable."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_filesystem(directory: str, files: Iterable[str]) -> None:
    """Make `files`, all on the file system that holds `directory`, durable with one call (syncfs(2)).

    Since Linux 5.8 syncfs reports write-back errors. Where there is no syncfs each file is synced by itself; a
    directory may be among them.
    """
    if _syncfs is None:
        for path in files:
            sync_file(path)
        return
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        if _syncfs(descriptor) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), directory)
    finally:
        os.close(descriptor)
