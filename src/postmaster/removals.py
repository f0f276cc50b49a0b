"""Taking delivered letters out of the outbox, and remembering those that cannot be taken out.

A letter gets here when its copies are in their mailboxes and its lines in the log, both durable. What cannot be removed
is remembered by device and inode, so that it is not taken for new mail.
"""

import contextlib
import errno
import json
import os
import signal
import sys
from typing import NoReturn

from postmaster import durable, outbox
from postmaster.errors import DiskFault, guarded
from postmaster.office import Office
from postmaster.outbox import Source

_Stuck = tuple[Source, OSError]  # a letter that cannot be removed, and why


class Remover:
    """Takes the letters of one batch at a time out of the outbox. Close it, or use it as a context manager.

    A removal is little work and, on many disks, a long wait. So for more than one batch a process of its own does it,
    while the next batch is made ready: threads would wait for each other at every system call. It shares the router's
    lock (flock(2): a lock belongs to the open file, which a fork shares), so that no other router begins before it has
    ended, and it ends when the router does.

    Args:
        beside: whether to have that process; it is forked here, while this one is still small.
    """

    def __init__(self, office: Office, *, beside: bool = False) -> None:
        self._office = office
        self._sources: list[Source] = []
        self._stuck: list[_Stuck] | None = None
        self._worker = _Worker.fork(office.outbox) if beside else None

    def __enter__(self) -> "Remover":
        return self

    def __exit__(self, *_: object) -> None:
        if self._worker is not None:
            self._worker.close()

    def begin(self, sources: list[Source]) -> None:
        """Begin to remove letters that are delivered; without the process beside, it is done on return."""
        self._sources, self._stuck = sources, None
        if self._worker is None or not self._worker.ask(sources):
            self._stuck = self._remove_here()

    def end(self) -> list[str]:
        """Wait for what was begun; return, in words, which letters cannot be removed and are remembered.

        Raises:
            DiskFault: they cannot be remembered.
        """
        stuck = self._stuck
        if stuck is None:
            assert self._worker is not None
            stuck = self._worker.answer(self._sources)
        if stuck is None:
            stuck = self._remove_here()
        self._stuck = []
        if stuck:
            guarded(_remember, self._office, [*pending(self._office), *(source for source, _ in stuck)])
        return _in_words(self._office, stuck)

    def _remove_here(self) -> list[_Stuck]:
        """Remove the letters in this process; a process beside that has failed has done some of that, or nothing."""
        if self._worker is not None:
            self._worker.close()
            self._worker = None
            for place in outbox.places(self._office.outbox, self._sources):
                guarded(outbox.recover_taken, place, self._sources)
        return outbox.take_all(self._office.outbox, self._sources)


class _Worker:
    """The process beside: reads a line of letters, removes them, answers with a line; ends at the end of its input."""

    def __init__(self, process: int, asking: int, answered: int) -> None:
        self._process = process
        self._asking = asking
        self._answered = answered

    @classmethod
    def fork(cls, directory: str) -> "_Worker | None":
        """Make the process; None where that cannot be, or would not be safe (fork(2) copies one thread only)."""
        if sys.modules.get("threading") is not None and sys.modules["threading"].active_count() > 1:
            return None
        try:
            asked, asking = os.pipe()
            answered, answering = os.pipe()
        except OSError:
            return None
        try:
            process = os.fork()
        except OSError:
            for descriptor in (asked, asking, answered, answering):
                os.close(descriptor)
            return None
        if process == 0:
            os.close(asking)
            os.close(answered)
            _work(directory, asked, answering)
        os.close(asked)
        os.close(answering)
        return cls(process, asking, answered)

    def ask(self, sources: list[Source]) -> bool:
        """Have letters removed; False if it cannot be asked."""
        try:
            durable.write_all(self._asking, json.dumps(sources).encode("ascii") + b"\n")
        except OSError:
            return False
        return True

    def answer(self, sources: list[Source]) -> list[_Stuck] | None:
        """Wait for the answer; None if there is none, or half of one."""
        line = b""
        try:
            while not line.endswith(b"\n"):
                part = os.read(self._answered, 1 << 16)
                if not part:
                    return None
                line += part
        except OSError:
            return None
        return [(sources[number], OSError(code, os.strerror(code))) for number, code in json.loads(line)]

    def close(self) -> None:
        """End the process and wait for its end. It ends when what it was asked is done."""
        for descriptor in (self._asking, self._answered):
            with contextlib.suppress(OSError):
                os.close(descriptor)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self._process, 0)


def _work(directory: str, asked: int, answering: int) -> NoReturn:
    """Be the process beside. Nothing of the router is cleaned up here: it is the router's."""
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent to both from a terminal; the router's end is ours
        with os.fdopen(asked, "rb") as questions:
            for line in questions:
                sources = [Source(*one) for one in json.loads(line)]
                place = {source: number for number, source in enumerate(sources)}
                stuck = outbox.take_all(directory, sources)
                answer = json.dumps([[place[source], fault.errno or errno.EIO] for source, fault in stuck])
                durable.write_all(answering, answer.encode("ascii") + b"\n")
    except BaseException:  # the router sees an end without an answer, and does the work itself
        os._exit(1)
    os._exit(0)


def retry(office: Office) -> tuple[list[Source], list[str]]:
    """Try again to remove what could not be removed; return what still cannot, and in words why.

    Raises:
        DiskFault: what is left cannot be remembered, or was not.
    """
    sources = pending(office)
    if not sources:
        return [], []
    stuck = outbox.take_all(office.outbox, sources)
    left = [source for source, _ in stuck]
    if left:
        guarded(_remember, office, left)
    else:
        guarded(os.unlink, office.removals)
    return left, _in_words(office, stuck)


def pending(office: Office) -> list[Source]:
    """Return the letters that are delivered and logged but could not be removed from the outbox.

    Raises:
        DiskFault: the file that names them cannot be read.
    """
    try:
        with open(office.removals, "rb") as stream:
            return [Source(**item) for item in json.loads(stream.read())]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, TypeError) as fault:
        raise DiskFault(f"{office.removals}: cannot be read: {fault}") from fault


def _in_words(office: Office, stuck: list[_Stuck]) -> list[str]:
    return [
        f"{office.shown(os.path.join(office.outbox, source.name))}: delivered, but cannot be removed from the outbox: "
        f"{fault.strerror}"
        for source, fault in stuck
    ]


def _remember(office: Office, sources: list[Source]) -> None:
    unique = {(source.name, source.inode): source for source in sources}
    durable.replace(office.removals, json.dumps([source._asdict() for source in unique.values()]).encode("ascii"))
