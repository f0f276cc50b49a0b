"""How a turn ends on disk: all of it, or none of it, also across a crash.

**Commit point: commit.json**, which says all that is to be done: which letters leave, which messages are acknowledged
or die, which lines the log gets, what the state is then. A crash before it leaves the messages unread and the letters
where nobody sees them; after it, whoever takes the lock of the instance next carries it out. Every step can be
repeated: a letter leaves by a rename that replaces nothing, which finds it in its place once.
"""

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field

from postmaster import delivery_log, durable, maildir, names
from postmaster.delivery_log import Record
from postmaster.errors import DiskFault, guarded
from postmaster.office import Office
from postmaster.refusals import REASON_SUFFIX
from postmaster.turns.home import Home, State, state_of


@dataclass(slots=True)
class Ending:
    """What is to be done when a turn has ended.

    Attributes:
        turn: its id.
        inbox: of the instance.
        since: where the log ended before the turn's first line.
        lines: what the log gets; those that it has are passed over.
        letters: names, below the turn's stage, that go into the outbox.
        reads: (name in unread/, name in read/) of what is acknowledged.
        dead: (name in unread/, name in dead-letter/, text of its reason file).
        state: of the instance, after that.
    """

    turn: str
    inbox: str
    since: tuple[int, int]
    lines: list[Record]
    state: State
    letters: list[str] = field(default_factory=list)
    reads: list[tuple[str, str]] = field(default_factory=list)
    dead: list[tuple[str, str, str]] = field(default_factory=list)


def commit(office: Office, home: Home, ending: Ending) -> None:
    """End a turn.

    Raises:
        DiskFault: the disk refused; what is committed is carried out by the next that comes.
    """
    if ending.letters:
        guarded(_sync_stage, home.stage(ending.turn), ending.letters)
    guarded(durable.replace, home.commit_file, json.dumps(asdict(ending)).encode("ascii"))
    _carry_out(office, home, ending)


def _sync_stage(stage: str, letters: Iterable[str]) -> None:
    """Make the staged letters durable, bytes and names: their command may have written them without a sync."""
    for name in letters:
        path = os.path.join(stage, name)
        if stat.S_ISREG(os.lstat(path).st_mode):
            with contextlib.suppress(PermissionError):  # the router cannot read it either, and says so
                durable.sync_file(path)
    for folder in {stage, *(os.path.dirname(os.path.join(stage, name)) for name in letters)}:
        durable.sync_directory(folder)


def recover(office: Office, home: Home) -> bool:
    """Carry out what a killed runner has committed; tell whether there was anything. The lock is held.

    Raises:
        DiskFault: it cannot be read, or the disk refused.
    """
    for name in _stale(home):
        durable.remove(os.path.join(home.path, name))
    found = home.read_commit()
    if found is None:
        return False
    try:
        ending = Ending(
            found["turn"],
            found["inbox"],
            (found["since"][0], found["since"][1]),
            found["lines"],
            state_of(found["state"]),
            found["letters"],
            [(one[0], one[1]) for one in found["reads"]],
            [(one[0], one[1], one[2]) for one in found["dead"]],
        )
    except (KeyError, IndexError, TypeError, AttributeError) as fault:
        raise DiskFault(f"{home.commit_file}: damaged; look what it says, then remove it: {fault!r}") from fault
    _carry_out(office, home, ending)
    return True


def _stale(home: Home) -> list[str]:
    """Return the temporaries of killed runners: we hold the lock, so all of them are."""
    with contextlib.suppress(OSError), os.scandir(home.path) as entries:
        return [one.name for one in entries if one.name.startswith(durable.TEMPORARY)]
    return []


def _carry_out(office: Office, home: Home, ending: Ending) -> None:
    guarded(_send, office, home, ending)
    guarded(_acknowledge, ending)
    guarded(_bury, office, ending)
    lines = [delivery_log.encode(record) for record in ending.lines]
    try:
        missing = delivery_log.missing_lines(office, lines, ending.since)
    except delivery_log.DAMAGE as fault:
        raise DiskFault(f"{office.log}: cannot be read: {fault}") from fault
    delivery_log.append(office, missing, sync_always=True)
    guarded(home.write_state, ending.state)
    drop_stages(home)
    guarded(_drop, home)


def _drop(home: Home) -> None:
    os.unlink(home.commit_file)
    durable.sync_directory(home.path)


def _send(office: Office, home: Home, ending: Ending) -> None:
    """Let the letters leave: each by one rename."""
    stage = home.stage(ending.turn)
    if not is_stage(stage):  # they have left, all of them, or somebody has taken it away since
        return
    folders = {os.path.dirname(name) for name in ending.letters} | ({""} if ending.letters else set())
    for name in ending.letters:
        folder = os.path.dirname(name)
        if folder and not os.path.isdir(os.path.join(office.outbox, folder)):
            folder = ""  # no drop folder, or none any more: the router says what it thinks of the letter
        try:
            _leave(os.path.join(stage, name), os.path.join(office.outbox, folder, os.path.basename(name)))
        except FileNotFoundError:
            if os.path.lexists(os.path.join(stage, name)):
                raise  # it is the outbox that is missing
    for folder in folders:
        if os.path.isdir(os.path.join(office.outbox, folder)):
            durable.sync_directory(os.path.join(office.outbox, folder))


def _leave(staged: str, path: str) -> None:
    """Move a letter into the outbox, where everybody may have taken its name."""
    directory, name = os.path.split(path)
    for free in names.free_names(name):
        with contextlib.suppress(FileExistsError):
            durable.rename_new(staged, os.path.join(directory, free))
            return


def _acknowledge(ending: Ending) -> None:
    _move_all(ending.inbox, maildir.READ, ending.reads)


def _move_all(inbox: str, folder: str, moves: Iterable[tuple[str, str]]) -> None:
    moved = False
    for name, target in moves:
        moved = True
        with contextlib.suppress(FileNotFoundError):  # moved before, or by hand
            durable.rename_new(os.path.join(inbox, maildir.UNREAD, name), os.path.join(inbox, folder, target))
    if moved:
        for one in (folder, maildir.UNREAD):
            durable.sync_directory(os.path.join(inbox, one))


def _bury(office: Office, ending: Ending) -> None:
    """Move what has failed too often into dead-letter/, its reason file first."""
    if not ending.dead:
        return
    durable.make_directories(office.dead_letter)
    for name, target, reason in ending.dead:
        source, path = os.path.join(ending.inbox, maildir.UNREAD, name), os.path.join(office.dead_letter, target)
        if not os.path.lexists(source):
            continue
        if not os.path.lexists(path + REASON_SUFFIX):
            durable.replace(path + REASON_SUFFIX, reason.encode())
        try:
            durable.rename_new(source, path)
        except OSError as fault:
            if fault.errno not in (errno.EXDEV, errno.EEXIST):
                raise
            _carry_over(source, path)
    durable.sync_directory(office.dead_letter)
    durable.sync_directory(os.path.join(ending.inbox, maildir.UNREAD))


def _carry_over(source: str, path: str) -> None:
    """Move a file to another file system; it may have been copied before, and not removed."""
    with open(durable.open_regular(source), "rb") as stream:
        raw = stream.read()
    if os.path.lexists(path):
        with open(durable.open_regular(path), "rb") as there:
            if there.read() != raw:
                raise FileExistsError(errno.EEXIST, "another file has the name of this dead letter", path)
    else:
        durable.replace(path, raw)
    os.unlink(source)


# -- the stage -----------------------------------------------------------------------------------------------------


def open_stage(office: Office, home: Home, turn: str) -> str:
    """Make the directory in which a turn's letters wait, and drop those of turns that were cut off.

    Raises:
        DiskFault: the disk refused, or a letter could not leave from there by a rename.
    """
    drop_stages(home)
    stage = home.stage(turn)
    try:
        durable.make_directories(stage)
        outbox = os.stat(office.outbox)
        apart = os.stat(stage).st_dev != outbox.st_dev
        if outbox.st_mode & stat.S_ISGID:  # letters get the group that the router reads them with
            os.chown(stage, -1, outbox.st_gid)
            os.chmod(stage, 0o2750)  # noqa: S103 - read by the router's group
    except OSError as fault:
        raise DiskFault(f"{fault.filename or stage}: {fault.strerror}") from fault
    if apart:
        raise DiskFault(
            f"{office.turns} and {office.outbox} are on different file systems: letters could not leave with the "
            "acknowledgement; put both on one"
        )
    return stage


def drop_stages(home: Home) -> None:
    """Drop what no ended turn has sent. What cannot be removed is litter and goes with the next turn."""
    try:
        if not stat.S_ISDIR(os.lstat(home.staged).st_mode):  # a link leads to what is not ours
            os.unlink(home.staged)
            return
        for name in os.listdir(home.staged):
            os.rmdir(home.stage(name))
        os.rmdir(home.staged)
    except FileNotFoundError:
        return
    except OSError:
        import shutil  # late: it takes as long to load as all of this turn

        shutil.rmtree(home.staged, ignore_errors=True)


def is_stage(stage: str) -> bool:
    """Tell whether a stage is what was made: a directory. The command could put anything in its place, a link too."""
    try:
        return stat.S_ISDIR(os.lstat(stage).st_mode) and stat.S_ISDIR(os.lstat(os.path.dirname(stage)).st_mode)
    except OSError:
        return False


def staged(stage: str) -> Iterator[str]:
    """Yield the letters that wait in a stage, in the order of their names, those of drop folders too."""
    for name in sorted(os.listdir(stage)):
        path = os.path.join(stage, name)
        if name.startswith("."):
            continue
        if os.path.isdir(path) and not os.path.islink(path):
            yield from (f"{name}/{one}" for one in sorted(os.listdir(path)) if not one.startswith("."))
        else:
            yield name
