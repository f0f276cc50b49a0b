"""Which mail nobody was told of yet: the delivery log, followed.

A message comes in with the log line that says that it is in somebody's unread/, and goes out with its `nudged` line. So
the log is the memory, and `.postmaster/nudges` holds what it says up to an offset: it can be deleted, and is made anew.
As long as the registry has an agent to be nudged that file is there, so that a run with an empty outbox looks too.
"""

import contextlib
import fcntl
import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import address, delivery_log, durable, maildir
from postmaster.delivery_log import Record
from postmaster.directory import claims, store
from postmaster.directory.view import DirectoryView
from postmaster.errors import CannotCreate, DiskFault
from postmaster.office import Office
from postmaster.registry import stamp
from postmaster.registry.compiled import CompiledRegistry

NUDGED: Final = "nudged"  # the log's `action`
FAILED: Final = "nudge-failed"
_NO_ARRIVAL: Final = (NUDGED, FAILED, "read", "unread")
_VERSION: Final = 1
_TAIL: Final = 256  # bytes of the log before the offset, by which it is known again
_IN_UNREAD: Final = b"/unread/"

View = CompiledRegistry | DirectoryView


@dataclass(slots=True)
class Untold:
    """What the log says of mail that somebody may have to be told of.

    Attributes:
        registry: the stamp of the registry that `known` was taken from.
        known: the folded ids of the entries that say how they are to be nudged.
        place: how far the log was read: inode, offset, and the MD5 of what stands before.
        names: by agent id, the names in unread/ that came and were not told of, in the order in which they came.
        trouble: by agent id, what was last said to be wrong with its commands.
    """

    registry: str = ""
    known: frozenset[str] = frozenset()
    place: tuple[int, int, str] = (0, 0, "")
    names: dict[str, dict[str, None]] = field(default_factory=dict)
    trouble: dict[str, str] = field(default_factory=dict)

    def take(self, line: bytes, only: Mapping[str, frozenset[str]] | None = None) -> None:
        """Take one more line of the log; with `only`, no other names of an agent than these."""
        if _IN_UNREAD not in line:
            return
        record = delivery_log.decode(line)
        if record is None or "agent" not in record or not is_known(record["agent"], self.known):
            return
        agent, name = record["agent"], os.path.basename(record["path"])
        if record["action"] == NUDGED:
            self.drop(agent, [name])
        elif _arrives(record) and (only is None or name in only.get(agent, ())):
            self.names.setdefault(agent, {})[name] = None

    def drop(self, agent_id: str, names: list[str]) -> None:
        """Forget names of an agent: told of, or no longer there."""
        left = self.names.get(agent_id, {})
        for name in names:
            left.pop(name, None)
        if not left:
            self.names.pop(agent_id, None)


def _arrives(record: Record) -> bool:
    return record["action"] not in _NO_ARRIVAL and os.path.basename(os.path.dirname(record["path"])) == maildir.UNREAD


def is_known(agent_id: str, known: frozenset[str]) -> bool:
    """Tell whether an agent, or the class of an instance, is in `known`."""
    return address.fold(agent_id.partition("+")[0]) in known


# -- the file ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(office: Office) -> Iterator[None]:
    """Hold the lock of the nudges (flock(2), close-on-exec); never while a command runs.

    Raises:
        CannotCreate, DiskFault: it cannot be had.
    """
    office.make_private()
    path = office.nudges_lock
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise CannotCreate(f"{path}: {fault.strerror}") from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as fault:
            raise DiskFault(f"{path}: cannot lock: {fault.strerror}") from fault
        yield
    finally:
        os.close(descriptor)


def mark(office: Office) -> None:
    """Leave a note that there may be somebody to nudge, for the next run; what is there stays."""
    with contextlib.suppress(OSError):
        os.close(os.open(office.nudges, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def unmark(office: Office) -> None:
    """Take that note away: the registry has nobody to nudge."""
    with contextlib.suppress(OSError):
        os.unlink(office.nudges)


def save(office: Office, untold: Untold) -> None:
    """Write the file; the lock is held. If that fails, the next run reads more of the log, and nothing is lost.

    Raises:
        DiskFault: it cannot be written.
    """
    fields = {
        "version": _VERSION,
        "registry": untold.registry,
        "known": sorted(untold.known),
        "place": untold.place,
        "names": {agent: list(names) for agent, names in untold.names.items()},
        "trouble": untold.trouble,
    }
    data = json.dumps(fields).encode("ascii")
    temporary = os.path.join(office.private, ".nudges.tmp")
    durable.remove(temporary)
    try:
        durable.write_new(temporary, _digest(data) + b"\n" + data, sync=False, mode=0o600)
        os.rename(temporary, office.nudges)
    except OSError as fault:
        durable.remove(temporary)
        raise DiskFault(f"{office.nudges}: cannot be written: {fault.strerror}") from fault


def _load(office: Office) -> Untold | None:
    """Return what the file says; None if it is not there or not whole."""
    try:
        with open(durable.open_regular(office.nudges), "rb") as stream:
            digest, _, data = stream.read().partition(b"\n")
        found: Any = json.loads(data) if digest == _digest(data) else {}
        if found.get("version") != _VERSION:
            return None
        inode, offset, tail = found["place"]
        names = {agent: dict.fromkeys(listed) for agent, listed in found["names"].items()}
        return Untold(found["registry"], frozenset(found["known"]), (inode, offset, tail), names, found["trouble"])
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _digest(data: bytes) -> bytes:
    return hashlib.md5(data, usedforsecurity=False).hexdigest().encode("ascii")


# -- following the log ---------------------------------------------------------------------------------------------


def current(office: Office, view: View) -> Untold:
    """Return what the log says now; the lock is held. Not saved yet.

    Raises:
        DiskFault: the log or the registry cannot be read.
    """
    untold = _load(office)
    try:
        registry = stamp.stamp_name(os.stat(office.registry))
        if untold is not None and untold.registry != registry:
            known = frozenset(map(address.fold, view.nudged()))
            if known <= untold.known:
                untold.registry, untold.known = registry, known
                untold.names = {one: names for one, names in untold.names.items() if is_known(one, known)}
            else:
                untold = None  # somebody new has mail from before
        if untold is not None and catch_up(office, untold):
            return untold
        return _anew(office, view, registry)
    except delivery_log.DAMAGE as fault:
        raise DiskFault(f"{office.logs}: cannot be read: {fault}") from fault


def again(office: Office) -> Untold | None:
    """Return what the log says now, from what was saved a moment ago; None if that cannot be gone on from.

    The lock is held. Raises DiskFault.
    """
    untold = _load(office)
    try:
        return untold if untold is not None and catch_up(office, untold) else None
    except delivery_log.DAMAGE as fault:
        raise DiskFault(f"{office.logs}: cannot be read: {fault}") from fault


def catch_up(office: Office, untold: Untold) -> bool:
    """Read what was appended to the log since; False if the log is another one by now."""
    inode, offset, tail = untold.place
    here, size = delivery_log.position(office)
    if not inode:  # there was no log
        return not delivery_log.log_files(office)
    if (here, size) == (inode, offset):
        return True
    if here == inode and size >= offset:
        rest = [office.log]
    else:
        files = delivery_log.log_files(office)
        same = [number for number, path in enumerate(files) if os.stat(path).st_ino == inode]
        if not same or files[same[0]].endswith((".gz", ".zst")) or os.stat(files[same[0]]).st_size < offset:
            return False
        rest = files[same[0] :]
    for number, path in enumerate(rest):
        start = offset if number == 0 else 0
        with delivery_log.open_log(path) as stream:
            if start and _tail(stream, start) != tail:
                return False
            stream.seek(start)
            end = start
            while (line := stream.readline()).endswith(b"\n"):
                untold.take(line)
                end += len(line)
            if path == office.log:
                untold.place = (os.fstat(stream.fileno()).st_ino, end, _tail(stream, end))
    return rest[-1] == office.log


def _tail(stream: Any, offset: int) -> str:
    stream.seek(max(0, offset - _TAIL))
    return _digest(stream.read(min(offset, _TAIL))).decode("ascii")


def _anew(office: Office, view: View, registry: str) -> Untold:
    """Make it from the mailboxes and the whole log: what is unread, came by a line of the log, and was not told of."""
    untold = Untold(registry, frozenset(map(address.fold, view.nudged())))
    untold.place = _end(office)  # before the mailboxes are listed: what comes later is met when the log is followed
    unread = {}
    for agent_id, inbox in _mailboxes(office, view, untold.known):
        with contextlib.suppress(OSError):
            if found := frozenset(maildir.messages(inbox, maildir.UNREAD)):
                unread[agent_id] = found
    if unread:
        for path in delivery_log.log_files(office):
            with delivery_log.open_log(path) as stream:
                for line in stream:
                    untold.take(line, unread)
    return untold


def _end(office: Office) -> tuple[int, int, str]:
    """Return where the whole lines of the log end."""
    try:
        with open(durable.open_regular(office.log), "rb") as stream:
            end = stream.seek(0, os.SEEK_END)
            size = 4096
            while end:
                stream.seek(max(0, end - size))
                part = stream.read(min(size, end))
                if (last := part.rfind(b"\n")) >= 0:
                    end -= len(part) - last - 1
                    break
                if size >= end:
                    end = 0
                size *= 8
            return os.fstat(stream.fileno()).st_ino, end, _tail(stream, end)
    except FileNotFoundError:
        return 0, 0, ""


def _mailboxes(office: Office, view: View, known: frozenset[str]) -> Iterator[tuple[str, str]]:
    """Yield (id, inbox) of every agent, and every live instance of a class, that is to be nudged."""
    for agent_id in view.nudged():
        if (agent := view.agent(agent_id)) is not None:
            yield agent.id, agent.inbox
    if isinstance(view, DirectoryView):
        for claim in store.living(office):
            if claims.key(claim.class_id) in known:
                yield claim.id, office.default_inbox(claim.id)
        for agent in view.for_flows():
            if is_known(agent.id, known):
                yield agent.id, agent.inbox
