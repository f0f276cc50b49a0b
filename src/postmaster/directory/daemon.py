"""Routing as mail comes: `postmaster watch`.

Each round looks which names are in the outbox, and runs the router if there is one that it has not met, or if there is
something to be tried again. News from the kernel only makes the next round come at once. So nothing is lost if news is.
"""

import os
import stat
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from postmaster import names, router, waiting
from postmaster.delivery_log import Record
from postmaster.directory import Opening, Reports, nudging
from postmaster.errors import ConfigurationFault, PostmasterError
from postmaster.office import Office
from postmaster.summary import Summary
from postmaster.waiting import Polling, Wakeups

REST_SECONDS: Final = 60.0  # what is deferred, or broken in a way that does not show, is tried again after that
SOON_SECONDS: Final = 0.5  # for a letter whose writer is not done, and for looking though there was no news
BUSY_SECONDS: Final = 0.1  # another router is at work
BROKEN_SECONDS: Final = 5.0  # the disk refused
NUDGE_SECONDS: Final = 5.0  # after which a busy agent is asked again
_FOLDERS: Final = 1000  # of the outbox that are watched

Seen = frozenset[tuple[str, int]]


@dataclass(slots=True)
class _Voice:
    """Says problems, and each only when it is new."""

    say: Callable[[str], None]
    last: frozenset[str] = frozenset()

    def tell(self, problems: list[str]) -> None:
        for problem in dict.fromkeys(problems):
            if problem not in self.last:
                self.say(problem)
        self.last = frozenset(problems)


class Daemon:
    """Routes an office's mail until it is told to stop.

    Args:
        stop: set by whoever wants it to end; the pass that runs is brought to its end.
        say: tells a problem to a person.
        on_pass: called after every pass that did something, with its report and records.
        poll: look so often (seconds), and ask the kernel for nothing.
    """

    def __init__(
        self,
        office: Office,
        stop: threading.Event,
        say: Callable[[str], None],
        on_pass: Callable[[Summary, list[Record]], None],
        *,
        poll: float | None = None,
    ) -> None:
        self._office = office
        self._stop = stop
        self._say = say
        self._voice = _Voice(say)
        self._on_pass = on_pass
        self._poll = poll
        self._met: Seen = frozenset()
        self._broken: tuple[object, ...] | None = None  # how registry and settings look that cannot be used
        self._source: Wakeups | Polling = Polling()
        self._watched: tuple[tuple[str, int], ...] = ()
        self._nudger = _Nudger(office, stop, say)

    def run(self) -> None:
        """Route, wait, and again.

        Raises:
            ConfigurationFault: there is no office to begin with.
        """
        self._office.require()
        due = 0.0
        try:
            while not self._stop.is_set():
                self._watch()  # before the outbox is looked at, so that nothing falls between
                found = self._look()
                new = found is None or bool(found - self._met)
                if time.monotonic() >= due or (new and self._broken is None) or self._is_mended():
                    due = time.monotonic() + self._pass(found)
                rest = max(0.0, due - time.monotonic())
                self._source.wait(min(rest, SOON_SECONDS if self._poll is None else self._poll), self._stop)
        finally:
            self._source.close()
            self._nudger.end()

    def _pass(self, found: Seen | None) -> float:
        """Run the router once; return after how many seconds it has to run again, if nothing new comes."""
        records: list[Record] = []
        opening = Opening()
        try:
            report = router.route(
                self._office, on_record=records.append, open_view=opening, reporter=Reports(self._office)
            )
        except ConfigurationFault as fault:
            self._broken = self._configuration()
            self._voice.tell([f"{fault}; waiting until that is mended"])
            return REST_SECONDS
        except (PostmasterError, OSError) as fault:
            self._voice.tell([_words(fault, self._office)])
            self._met = found or frozenset()
            return BROKEN_SECONDS
        if report.busy:
            return BUSY_SECONDS
        if self._broken is not None:
            self._say("routing again")
            self._broken = None
        self._met = found or frozenset()
        self._voice.tell(report.problems)
        if records:
            self._on_pass(report, records)
        if opening.has_nudges:
            self._nudger.wake()
        return SOON_SECONDS if report.waiting else REST_SECONDS

    # -- looking -----------------------------------------------------------------------------------------------

    def _look(self) -> Seen | None:
        """Return every name of mail in the outbox, and in real directories in it, with its inode; None: no outbox."""
        try:
            found = set()
            for place in (self._office.outbox, *self._folders()):
                with os.scandir(place) as entries:
                    found |= {(entry.path, entry.inode()) for entry in entries if names.is_mail(entry.name)}
        except OSError:
            return None
        return frozenset(found)

    def _folders(self) -> list[str]:
        with os.scandir(self._office.outbox) as entries:
            return [one.path for one in entries if one.is_dir(follow_symlinks=False)][:_FOLDERS]

    def _is_mended(self) -> bool:
        return self._broken is not None and self._configuration() != self._broken

    def _configuration(self) -> tuple[object, ...]:
        """Return how the files look whose fault can keep the router from its work."""
        found: list[object] = []
        for path in (self._office.registry, self._office.settings_file, self._office.outbox):
            try:
                seen = os.stat(path)
            except OSError as fault:
                found.append(fault.errno)
                continue
            changed = 0 if stat.S_ISDIR(seen.st_mode) else seen.st_ctime_ns
            found.append((seen.st_ino, seen.st_mode, changed))
        return tuple(found)

    def _watch(self) -> None:
        """Have the outbox watched that is there now, and its folders."""
        if self._poll is not None:
            if not self._watched:
                self._source, self._watched = Polling(self._poll, self._poll), (("", 0),)
            return
        try:
            paths = [self._office.outbox, *self._folders()]
            watched = tuple((path, os.stat(path).st_ino) for path in paths)
        except OSError:
            return  # the pass tells what is wrong
        if watched == self._watched:
            return
        self._source.close()
        try:
            self._source = Wakeups(paths)
        except waiting.Unavailable as fault:
            self._say(f"{fault}; looking every {SOON_SECONDS:g} seconds instead")
            self._source = Polling(SOON_SECONDS, SOON_SECONDS)
        self._watched = watched


class _Nudger:
    """Runs the nudges beside the router, so that none of them holds up mail."""

    def __init__(self, office: Office, stop: threading.Event, say: Callable[[str], None]) -> None:
        self._office = office
        self._stop = stop
        self._voice = _Voice(say)
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None

    def wake(self) -> None:
        """Nudge whom there is to nudge, now or as soon as the nudges that run are done."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="nudges", daemon=True)
            self._thread.start()
        self._wanted.set()

    def end(self) -> None:
        """Wait for the nudges that run: not longer than one may take."""
        self._wanted.set()
        if self._thread is not None:
            self._thread.join(nudging.COMMAND_SECONDS + 2)

    def _work(self) -> None:
        again: float | None = None
        while not self._stop.is_set():
            self._wanted.wait(again)
            self._wanted.clear()
            if self._stop.is_set():
                return
            try:
                told = nudging.tell(self._office)
            except (PostmasterError, OSError) as fault:
                self._voice.tell([f"nobody was nudged: {_words(fault, self._office)}"])
                again = REST_SECONDS
                continue
            self._voice.tell(told.problems)
            again = NUDGE_SECONDS if told.busy or told.later else None


def _words(fault: PostmasterError | OSError, office: Office) -> str:
    if isinstance(fault, PostmasterError):
        return str(fault)
    return f"{fault.filename or office.root}: {fault.strerror or fault}"
