"""How much is left of the file systems that an office and its inboxes are on (statvfs(3))."""

import contextlib
import os
from collections.abc import Iterable
from typing import Any


def survey(places: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return each file system once, in the order of the places, as plain data.

    Bytes and inodes are what is left to an account that is not root. `inodes_free` is None where the file system
    counts none (btrfs).

    Args:
        places: paths, each with what to call it; those that are not there are passed over.
    """
    found: dict[int, dict[str, Any]] = {}
    for path, name in places:
        with contextlib.suppress(OSError):
            device = os.stat(path).st_dev
            if device in found:
                found[device]["places"].append(name)
                continue
            left = os.statvfs(path)
            found[device] = {
                "path": path,
                "bytes_free": left.f_bavail * left.f_frsize,
                "bytes_total": left.f_blocks * left.f_frsize,
                "inodes_free": left.f_favail if left.f_files else None,
                "inodes_total": left.f_files or None,
                "places": [name],
            }
    return list(found.values())


def least_percent(disk: dict[str, Any]) -> float:
    """Return how many percent are left, of bytes or of inodes, whichever is less."""
    shares = [100.0 * disk["bytes_free"] / disk["bytes_total"]] if disk["bytes_total"] else []
    if disk["inodes_total"]:
        shares.append(100.0 * disk["inodes_free"] / disk["inodes_total"])
    return min(shares, default=100.0)
