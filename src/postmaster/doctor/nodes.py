"""Looking at paths, and at who may do what there. Changes nothing."""

import contextlib
import os
import pwd
import stat
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Final

from postmaster.doctor.facts import Node
from postmaster.office import Office

_KINDS: Final = {stat.S_IFDIR: "directory", stat.S_IFREG: "file", stat.S_IFLNK: "link"}
_EFFECTIVE: Final = os.access in os.supports_effective_ids
_ACL: Final = "system.posix_acl_access"


def node(office: Office, path: str, *, follow: bool = True, router: str | None = None) -> Node:
    """Return what is at a path; with `router`, the rights are those of that account, and not ours."""
    found = _node(office, path, follow=follow)
    if router is None or found.kind not in ("directory", "file"):
        return found
    enter = 1 if found.is_directory else 0
    may_write, may_read = (not any(closed_to(router, [(found, bits | enter)])) for bits in (2, 4))
    return replace(found, may_write=may_write, may_read=may_read)


def _node(office: Office, path: str, *, follow: bool) -> Node:
    shown = office.shown(path) if path != office.root else path
    try:
        seen = os.stat(path) if follow else os.lstat(path)
    except (FileNotFoundError, NotADirectoryError):
        return Node(path, shown, "link" if os.path.islink(path) else "missing")
    except OSError:
        return Node(path, shown, "closed")
    kind = _KINDS.get(stat.S_IFMT(seen.st_mode), "other")
    may_write = may_read = False
    if kind in ("directory", "file"):
        enter = os.X_OK if kind == "directory" else 0
        may_write = os.access(path, os.W_OK | enter, effective_ids=_EFFECTIVE)
        may_read = os.access(path, os.R_OK | enter, effective_ids=_EFFECTIVE)
    mode, owner = stat.S_IMODE(seen.st_mode), (seen.st_uid, seen.st_gid)
    return Node(path, shown, kind, mode, *owner, seen.st_size, seen.st_mtime_ns, may_write, may_read)


def listed(office: Office, directory: str, *, router: str | None = None) -> list[Node]:
    """Return what is in a directory, no link followed; nothing if it cannot be listed."""
    with contextlib.suppress(OSError):
        paths = [os.path.join(directory, name) for name in sorted(os.listdir(directory))]
        return [node(office, path, follow=False, router=router) for path in paths]
    return []


def closed_to(user: str, nodes: Iterable[tuple[Node, int]]) -> Iterator[Node]:
    """Yield the nodes at which an account lacks one of the bits (4 read, 2 write, 1 enter); unknown accounts lack none.

    By owner, group and mode alone: where there is an access control list nobody can tell so.
    """
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
    except (KeyError, OverflowError, OSError):
        return
    for one, bits in nodes:
        if not one.is_there or entry.pw_uid == 0 or _has_list(one.path):
            continue
        shift = 6 if one.uid == entry.pw_uid else 3 if one.gid in groups else 0
        if one.mode >> shift & bits != bits:
            yield one


def _has_list(path: str) -> bool:
    try:
        return bool(os.getxattr(path, _ACL))
    except (OSError, AttributeError):
        return False


def above(path: str) -> list[str]:
    """Return the directories that lead to a path, from the topmost on."""
    found = []
    while (parent := os.path.dirname(path)) != path:
        path = parent
        found.append(path)
    return found[::-1]
