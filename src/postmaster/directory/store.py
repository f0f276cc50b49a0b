"""The claims on disk: one file for each live instance in directory/live/, those of the past in directory/archive/.

A claim is made, and archived, by one rename that replaces nothing, under the directory's lock. Beside it stands
directory/live/pending, which says what has to follow (docs/directory.md). `live/` goes with the last live instance:
that there is none is told by one stat.
"""

import contextlib
import errno
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Final

from postmaster import delivery_log, durable, maildir
from postmaster.delivery_log import Record
from postmaster.directory import claims
from postmaster.directory.claims import Claim
from postmaster.errors import CannotCreate, DiskFault
from postmaster.office import Office

SUFFIX: Final = ".json"
_MAX_BYTES: Final = 1 << 20
_CLOSED: Final = (errno.EACCES, errno.EPERM, errno.ELOOP, errno.EINVAL, errno.ENXIO)  # of one file, and for good


@dataclass(frozen=True, slots=True)
class _Step:
    """What is under way: `id` gets the file `target`, `leaving` goes, and the log gets `line`.

    Paths are relative to directory/, since an office may be moved.
    """

    id: str
    target: str
    leaving: str | None
    line: str
    since: tuple[int, int]


# -- asking --------------------------------------------------------------------------------------------------------


def live_path(office: Office, name: str) -> str:
    """Return where the claim of a name is while it is alive."""
    return os.path.join(office.live, claims.key(name) + SUFFIX)


def archive_path(office: Office, instance_id: str) -> str:
    """Return where the claim of an instance is when it has been archived."""
    return office.archived_claim(instance_id)


def holder(office: Office, name: str) -> Claim | None:
    """Return who is alive under `name`, which has the form of one."""
    return _read(live_path(office, name))


def archived(office: Office, instance_id: str) -> Claim | None:
    """Return an archived instance; `instance_id` has the form of an id."""
    return _read(archive_path(office, instance_id))


def live_names(office: Office) -> list[str]:
    """Return the names that are held, folded and sorted."""
    return _names(office.live)


def archived_ids(office: Office) -> list[str]:
    """Return the ids of the archived instances, folded and sorted."""
    return _names(office.archive)


def living(office: Office) -> Iterator[Claim]:
    """Yield every live instance, in the order of the names. A file that is damaged is passed over."""
    for name in live_names(office):
        if (claim := _read(os.path.join(office.live, name + SUFFIX))) is not None:
            yield claim


def past(office: Office) -> Iterator[Claim]:
    """Yield every archived instance, in the order of the ids."""
    for name in archived_ids(office):
        if (claim := _read(os.path.join(office.archive, name + SUFFIX))) is not None:
            yield claim


def damaged(office: Office) -> list[str]:
    """Return the paths of claims that cannot be read."""
    paths = [os.path.join(office.live, name + SUFFIX) for name in live_names(office)]
    paths += [os.path.join(office.archive, name + SUFFIX) for name in archived_ids(office)]
    return [path for path in paths if _read(path) is None and os.path.lexists(path)]


def _names(directory: str) -> list[str]:
    try:
        listed = os.listdir(directory)
    except FileNotFoundError:
        return []
    except OSError as fault:
        raise DiskFault(f"{directory}: cannot be listed: {fault.strerror}") from fault
    return sorted(name.removesuffix(SUFFIX) for name in listed if name.endswith(SUFFIX))


def _read(path: str) -> Claim | None:
    """Return the claim in a file; None if there is none that can be one.

    Raises:
        DiskFault: the disk does not say. Nobody is called unknown for that.
    """
    try:
        return _load(path)
    except OSError as fault:
        if fault.errno in _CLOSED:
            return None
        raise DiskFault(f"{path}: cannot be read: {fault.strerror}") from fault


def _load(path: str) -> Claim | None:
    """Return the claim in a file; None if there is none, or it is damaged. Raises OSError."""
    try:
        with open(durable.open_regular(path), "rb") as stream:
            found = claims.from_json(stream.read(_MAX_BYTES))
    except FileNotFoundError:
        return None
    name = os.path.basename(path).removesuffix(SUFFIX)
    return found if found is not None and name in (claims.key(found.name), claims.key(found.id)) else None


# -- changing ------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def locked(office: Office) -> Iterator[None]:
    """Hold the directory's lock (flock(2), close-on-exec), and end first what was cut off.

    Raises:
        CannotCreate, DiskFault: the lock cannot be had, or what was cut off cannot be ended.
    """
    office.make_private()
    path = office.directory_lock
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as fault:
        raise CannotCreate(f"{path}: {fault.strerror}") from fault
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as fault:
            raise DiskFault(f"{path}: cannot lock: {fault.strerror}") from fault
        _recover(office)
        yield
    finally:
        os.close(descriptor)


def is_unfinished(office: Office) -> bool:
    """Tell whether a register or archive was cut off, or is under way."""
    return os.path.lexists(office.pending)


def add(office: Office, claim: Claim, record: Record) -> None:
    """Make a claim; the lock is held.

    Commit point: the rename into live/. A crash before it leaves a temporary and an empty mailbox, which nobody sees;
    a crash after it leaves the log without its line, which the next change, or run that meets mail, adds.

    Raises:
        FileExistsError: the name is held.
        CannotCreate: the system refused, and nothing was claimed.
        DiskFault: it is claimed, but not to the end.
    """
    _change(office, claim, live_path(office, claim.name), None, record)


def retire(office: Office, claim: Claim, record: Record) -> None:
    """Archive a claim, whose `archived` is set; the lock is held.

    Commit point: the rename into archive/. A crash before it leaves the instance alive; after it the next change, or
    run that meets mail, releases the name and logs it.

    Raises:
        CannotCreate: the system refused, and nothing was archived.
        DiskFault: it is archived, but not to the end.
    """
    _change(office, claim, archive_path(office, claim.id), live_path(office, claim.name), record)


def _change(office: Office, claim: Claim, target: str, leaving: str | None, record: Record) -> None:
    line = delivery_log.encode(record).decode("ascii")
    temporary = os.path.join(office.directory, f"{durable.TEMPORARY}{os.getpid()}-claim")
    pending = office.pending
    try:
        durable.make_directories(os.path.dirname(target))
        durable.make_directories(office.live)
        step = _Step(
            claim.id,
            os.path.relpath(target, office.directory),
            os.path.relpath(leaving, office.directory) if leaving is not None else None,
            line,
            delivery_log.position(office),
        )
        durable.write_new(temporary, claim.to_json(), sync=True)
        durable.replace(pending, json.dumps(asdict(step)).encode("ascii"))
        durable.rename_new(temporary, target)
    except OSError as fault:
        durable.remove(temporary)
        durable.remove(pending)
        _prune(office)
        if isinstance(fault, FileExistsError):
            raise
        raise CannotCreate(f"{fault.filename or office.directory}: {fault.strerror}; nothing was changed") from fault
    try:
        _finish(office, step)
    except (OSError, DiskFault) as fault:
        why = fault.strerror or fault if isinstance(fault, OSError) else fault
        what = "registered" if leaving is None else "archived"
        raise DiskFault(f"{claim.id} is {what}, but not to the end: {why}; the next run brings it there") from fault


def _recover(office: Office) -> None:
    """End what was cut off: a claim that was made is logged; one that was not is forgotten."""
    pending = office.pending
    try:
        for directory in (office.directory, office.live):
            if os.path.isdir(directory):
                maildir.clear_temporaries(directory)
        if not os.path.lexists(pending):
            _prune(office)
            return
        with open(durable.open_regular(pending), "rb") as stream:
            found = json.loads(stream.read(_MAX_BYTES))
        step = _Step(**{**found, "since": (found["since"][0], found["since"][1])})
        made = _load(os.path.join(office.directory, step.target))
        if made is not None and made.id == step.id:
            _finish(office, step)
        else:
            os.unlink(pending)
            _prune(office)
    except OSError as fault:
        raise DiskFault(f"{fault.filename or pending}: {fault.strerror or fault}") from fault
    except (ValueError, TypeError, KeyError, IndexError) as fault:
        raise DiskFault(f"{pending}: damaged; look what it says, then remove it: {fault}") from fault


def _finish(office: Office, step: _Step) -> None:
    """Do all that follows the rename. Can be done again."""
    durable.sync_directory(os.path.dirname(os.path.join(office.directory, step.target)))
    if step.leaving is not None:
        leaving = os.path.join(office.directory, step.leaving)
        claim = _load(leaving)
        if claim is not None and claim.id == step.id:
            os.unlink(leaving)
        durable.sync_directory(office.live)
    line = step.line.encode("ascii")
    try:
        missing = delivery_log.missing_lines(office, [line], step.since)
    except delivery_log.DAMAGE as fault:
        raise DiskFault(f"{office.logs}: cannot be read: {fault}") from fault
    delivery_log.append(office, missing, sync_always=True)
    os.unlink(office.pending)
    _prune(office)


def _prune(office: Office) -> None:
    """Remove live/ if nobody is alive."""
    with contextlib.suppress(OSError):
        os.rmdir(office.live)
