"""Locks of the kernel that are held, or not, and never waited for (flock(2))."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from typing import Final

from postmaster import durable
from postmaster.errors import CannotCreate

_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW


@contextlib.contextmanager
def locked(path: str) -> Iterator[int | None]:
    """Hold a lock file, or get None if another has it; the descriptor is close-on-exec.

    Raises:
        CannotCreate: there can be no such file.
    """
    try:
        durable.make_directories(os.path.dirname(path))
        descriptor = os.open(path, _FLAGS, 0o600)
    except OSError as fault:
        raise CannotCreate(f"{path}: {fault.strerror}") from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        yield descriptor
    finally:
        os.close(descriptor)
