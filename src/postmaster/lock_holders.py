"""Who holds a lock file, as the kernel lists it (/proc/locks, proc(5)). Asking takes no lock itself."""

import os
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Holder:
    """A process that holds a lock. `stopped`: it does not run, and will not before it is sent SIGCONT."""

    pid: int
    name: str
    stopped: bool


def holders(path: str) -> list[Holder] | None:
    """Return who holds a lock file (flock(2)); None if nobody can tell (no /proc)."""
    try:
        seen = os.stat(path)
    except OSError:
        return []
    try:
        with open("/proc/locks", encoding="ascii", errors="replace") as stream:
            lines = [line.split() for line in stream]
    except OSError:
        return None
    file = f"{os.major(seen.st_dev):02x}:{os.minor(seen.st_dev):02x}:{seen.st_ino}"
    # "1: FLOCK ADVISORY WRITE 512 00:2f:11 0 EOF"; a line with "->" is of one that waits
    held = (line for line in lines if len(line) > 5 and line[1] == "FLOCK" and line[5] == file)
    return [_holder(int(line[4])) for line in held if line[4].lstrip("-").isdecimal()]


def is_stopped(pid: int) -> bool:
    """Tell whether a process is stopped (proc(5): state T or t)."""
    return _holder(pid).stopped


def _holder(pid: int) -> Holder:
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as stream:
            text = stream.read()
    except OSError:
        return Holder(pid, "", False)
    name = text[text.index("(") + 1 : text.rindex(")")]
    return Holder(pid, name, text.rpartition(")")[2].split()[0] in ("T", "t"))
