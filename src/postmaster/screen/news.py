"""When there is something new to show: mail was sent, read, nudged or returned."""

import asyncio
import contextlib
import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final

from postmaster import maildir
from postmaster.office import Office
from postmaster.screen.listings import Stamp, stamp
from postmaster.screen.log_index import LogIndex
from postmaster.waiting import Polling, Unavailable, Wakeups

_LOOK_SECONDS: Final = 2.0  # where news does not come by itself (network file systems) we look so often
_KEEP_ALIVE_SECONDS: Final = 20.0
_SETTLE_SECONDS: Final = 0.05  # a delivery changes several places: it is told of once


class News:
    """Counts the changes that a page is to be shown for, and wakes those that wait for the next.

    Args:
        inboxes: returns the mailboxes to watch.
    """

    def __init__(self, office: Office, index: LogIndex, inboxes: Callable[[], Sequence[str]]) -> None:
        self._office = office
        self._index = index
        self._inboxes = inboxes
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changed = asyncio.Event()
        self._lines = index.mail_lines
        self.version = 1

    def start(self) -> None:
        """Begin to watch; called in the event loop that serves."""
        self._loop = asyncio.get_running_loop()
        self._thread = threading.Thread(target=self._watch, name="news", daemon=True)
        self._thread.start()

    def end(self) -> None:
        """Let whoever waits for news go; from any thread, or a signal's handler."""
        self._stop.set()
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                self._loop.call_soon_threadsafe(lambda: self._changed.set())

    def stop(self) -> None:
        """End the watching."""
        self.end()
        if self._thread is not None:
            self._thread.join(timeout=5)

    async def events(self) -> AsyncIterator[str]:
        """Yield the version, now and at each change, as server-sent events (WHATWG HTML, section 9.2)."""
        told = 0
        while not self._stop.is_set():
            changed = self._changed
            if told != self.version:
                told = self.version
                yield f"event: mail\ndata: {told}\n\n"
                continue
            try:
                await asyncio.wait_for(changed.wait(), _KEEP_ALIVE_SECONDS)
            except TimeoutError:
                yield ": still here\n\n"

    def _tell(self) -> None:
        self.version += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def _watch(self) -> None:
        watched: list[str] = []
        source: Wakeups | Polling | None = None
        seen = self._places()
        while not self._stop.is_set():
            wanted = [path for path in seen if os.path.isdir(path)]
            if source is None or wanted != watched:
                if source is not None:
                    source.close()
                source, watched = _source(wanted), wanted
            source.wait(_LOOK_SECONDS, self._stop)
            self._stop.wait(_SETTLE_SECONDS)
            now = self._places()
            if self._is_news(seen, now) and self._loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop has ended
                    self._loop.call_soon_threadsafe(self._tell)
            seen = now
        if source is not None:
            source.close()

    def _is_news(self, before: dict[str, Stamp], now: dict[str, Stamp]) -> bool:
        moved = any(before.get(path) != seen for path, seen in now.items() if path != self._office.logs)
        self._index.refresh()
        lines, self._lines = self._lines, self._index.mail_lines
        return moved or lines != self._lines

    def _places(self) -> dict[str, Stamp]:
        """Return the directories that mail moves in, each with its stamp."""
        paths = [self._office.logs, self._office.outbox, self._office.dead_letter]
        for inbox in self._inboxes():
            paths += [os.path.join(inbox, maildir.UNREAD), os.path.join(inbox, maildir.READ)]
        found: dict[str, Stamp] = {}
        for path in paths:
            with contextlib.suppress(OSError):
                found[path] = stamp(path)
        return found


def _source(directories: Sequence[str]) -> Wakeups | Polling:
    try:
        return Wakeups(directories)
    except Unavailable:
        return Polling(first=_LOOK_SECONDS, last=_LOOK_SECONDS)
