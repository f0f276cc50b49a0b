"""What is mounted where, and what should be (proc(5) mountinfo, fstab(5))."""

import os
import re
import tempfile
from collections.abc import Iterable
from typing import Final

from postmaster.doctor.facts import Mount, Node

_OCTAL: Final = re.compile(r"\\([0-7]{3})")


def of(nodes: Iterable[Node]) -> list[Mount]:
    """Return the file system's type of every place, each mount once."""
    known = _mounted()
    found: dict[str, Mount] = {}
    for one in nodes:
        path = os.path.realpath(one.path)
        places = [place for place in known if is_below(path, place)]
        if places:
            place = max(places, key=len)
            found.setdefault(place, Mount(one, known[place], any(is_below(path, name) for name in _temporary())))
    return list(found.values())


def _temporary() -> list[str]:
    """Return the places for what may be gone at the next start (file-hierarchy(7))."""
    return [os.path.realpath(one) for one in ("/tmp", "/run", "/dev/shm", tempfile.gettempdir())]  # noqa: S108


def missing(path: str) -> str | None:
    """Return the place at or above a path at which fstab wants a disk that is not mounted."""
    known = _mounted()
    wanted = [place for place in _wanted() if place != "/" and is_below(path, place) and place not in known]
    return max(wanted, key=len, default=None)


def is_below(path: str, place: str) -> bool:
    """Tell whether a path is a place or below it."""
    return (path + "/").startswith(place.rstrip("/") + "/")


def _mounted() -> dict[str, str]:
    """Return the type of what is mounted, by place; of several one above the other the last."""
    found = {}
    for line in _lines("/proc/self/mountinfo"):
        before, _, after = line.partition(" - ")
        if after:
            found[_text(before.split(" ")[4])] = after.split(" ")[0]
    return found


def _wanted() -> list[str]:
    rows = [line.split() for line in _lines("/etc/fstab") if not line.lstrip().startswith("#")]
    return [_text(row[1]) for row in rows if len(row) > 2 and row[1].startswith("/")]


def _lines(path: str) -> list[str]:
    try:
        with open(path, encoding="utf-8", errors="surrogateescape") as stream:
            return stream.read().splitlines()
    except OSError:
        return []


def _text(field: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), field)
