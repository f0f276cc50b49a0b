"""A text that is kept between two markers in a file of somebody else's."""

import contextlib
import os
import re
import stat
from typing import Final

from postmaster import durable, maildir
from postmaster.errors import BadData, CannotCreate
from postmaster.office import visible
from postmaster.printable import quoted

_MARKER: Final = re.compile(rb"<!-- (begin|end) postmaster rule ([^ \r\n]+) -->[ \t]*\r?")
_MAX_BYTES: Final = 16 * 1024 * 1024
_ATTEMPTS: Final = 5


def splice(content: bytes, agent_id: str, text: str) -> bytes:
    """Return `content` with `text` between the markers of this agent, at the end if there are none. Pure.

    Every other byte stays; a file without a newline at its end gets one before the markers.

    Raises:
        BadData: the markers are not in pairs; says in which line, and what to do.
    """
    newline = b"\r\n" if b"\r\n" in content.split(b"\n", 1)[0] + b"\n" else b"\n"
    lines = [_marker("begin", agent_id), *text.encode().splitlines(), _marker("end", agent_id)]
    block = b"".join(line + newline for line in lines)
    found = _blocks(content).get(agent_id.encode())
    if found is not None:
        start, end = found
        return (
            content[:start]
            + (block if end < len(content) or content.endswith(b"\n") else block.rstrip())
            + content[end:]
        )
    gap = b"" if not content else newline if content.endswith(b"\n") else newline * 2
    return content + gap + block


def _marker(which: str, agent_id: str) -> bytes:
    return f"<!-- {which} postmaster rule {agent_id} -->".encode()


def _blocks(content: bytes) -> dict[bytes, tuple[int, int]]:
    """Return where the blocks are, by the id in their markers. Raises BadData."""
    found: dict[bytes, tuple[int, int]] = {}
    begun: tuple[bytes, int, int] | None = None
    place = 0
    for number, line in enumerate(content.split(b"\n"), 1):
        match = _MARKER.fullmatch(line)
        end = min(place + len(line) + 1, len(content))
        if match is not None and match[1] == b"begin":
            if begun is not None:
                raise _broken(begun[2], begun[0], "has no end before the next begins")
            if match[2] in found:
                raise _broken(number, match[2], "is the second one for this agent")
            begun = (match[2], place, number)
        elif match is not None:
            if begun is None or begun[0] != match[2]:
                raise _broken(number, match[2], "ends what was not begun")
            found[match[2]] = (begun[1], end)
            begun = None
        place = end
    if begun is not None:
        raise _broken(begun[2], begun[0], "has no end")
    return found


def _broken(number: int, agent_id: bytes, why: str) -> BadData:
    name = quoted(agent_id.decode("utf-8", "replace"))
    return BadData(
        f"line {number}: the marker `postmaster rule {name}` {why}; mend the pair of `<!-- begin ... -->` and "
        "`<!-- end ... -->` lines, or remove what is left of it, and run this again; nothing was changed"
    )


def keep(path: str, agent_id: str, text: str) -> bool:
    """Bring the text in a file up to date; tell whether that changed anything. A file that is not there is made.

    The file is replaced as a whole, by a rename: whoever reads it sees the old bytes or the new. It keeps its mode and,
    where the system allows, its owner; a symbolic link stays one, and what it leads to is replaced.

    Raises:
        BadData: it is no file, is too large, or its markers are broken.
        CannotCreate: it cannot be read or written.
    """
    target = os.path.realpath(path)
    try:
        for _ in range(_ATTEMPTS):
            before = _status(target, path)
            old = _read(target, path) if before is not None else b""
            try:
                new = splice(old, agent_id, text)
            except BadData as fault:
                raise BadData(f"{visible(path)}: {fault}") from fault
            if before is not None and new == old:
                return False
            if _replace(target, new, before):
                return True
    except OSError as fault:
        raise CannotCreate(f"{visible(fault.filename or path)}: {fault.strerror}; it is as it was") from fault
    raise CannotCreate(f"{visible(path)}: somebody else writes to it all the time; it is as they left it")


def _status(target: str, path: str) -> os.stat_result | None:
    try:
        seen = os.lstat(target)
    except FileNotFoundError:
        if os.path.islink(path):
            raise BadData(f"{visible(path)}: a link to {visible(target)}, which is not there; mend it first") from None
        return None
    if not stat.S_ISREG(seen.st_mode):
        raise BadData(f"{visible(path)}: it is no file")
    if seen.st_size > _MAX_BYTES:
        raise BadData(f"{visible(path)}: larger than {_MAX_BYTES} bytes; is it the right file?")
    return seen


def _read(target: str, path: str) -> bytes:
    with open(durable.open_regular(target), "rb") as stream:
        return stream.read(_MAX_BYTES + 1)


def _replace(target: str, data: bytes, before: os.stat_result | None) -> bool:
    """Put a new file in the place of the one that was read; False, and nothing done, if it is another one by now."""
    directory, name = os.path.split(target)
    prefix = f".{name[:200]}.{durable.TEMPORARY}"
    temporary = os.path.join(directory, f"{prefix}{os.getpid()}")
    for left in os.listdir(directory):
        if left.startswith(prefix) and not maildir.owner_lives(left):
            durable.remove(os.path.join(directory, left))
    durable.write_new(temporary, data, sync=True)
    try:
        if before is None:
            try:
                durable.rename_new(temporary, target)
            except FileExistsError:
                durable.remove(temporary)
                return False
        else:
            with contextlib.suppress(PermissionError):
                os.chown(temporary, before.st_uid, before.st_gid, follow_symlinks=False)
            os.chmod(temporary, stat.S_IMODE(before.st_mode))
            now = os.lstat(target)
            same = (before.st_ino, before.st_size, before.st_mtime_ns) == (now.st_ino, now.st_size, now.st_mtime_ns)
            if not same:
                durable.remove(temporary)
                return False
            os.rename(temporary, target)
    except BaseException:
        durable.remove(temporary)
        raise
    durable.sync_directory(directory)
    return True
