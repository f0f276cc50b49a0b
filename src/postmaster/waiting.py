"""Being woken when a directory changes: by the kernel through the package `watchfiles`, else by looking again.

Nothing is lost between two waits: the kernel keeps what happened since `Wakeups` was made, so that a state that is
looked at after it was made, and after every wait, is never missed. Even so `wait` never lasts longer than a second or
so: where no news comes (network file systems) things are seen a little later, and not never.
"""

import contextlib
import importlib
import importlib.util
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, TypeVar

from postmaster.errors import how_to_install

EXTRA: Final = how_to_install("watchfiles")
LOOK_SECONDS: Final = 1.0  # after which a state is looked at though no news of it came
_STEP_MS: Final = 5  # how often watchfiles asks whether there is news, at first
_LATER_STEP_MS: Final = 20  # and when nothing came for a while, to spare the processor
_AT_FIRST_SECONDS: Final = 60.0
_FIRST_POLL: Final = 0.02
_LAST_POLL: Final = 0.5
_LOOK_FOR_STOP: Final = 0.1

_T = TypeVar("_T")


def is_installed() -> bool:
    """Tell whether the package is there that lets the kernel wake us."""
    return importlib.util.find_spec("watchfiles") is not None


class Unavailable(Exception):
    """There is no file notification here; says why."""


class Wakeups:
    """Tells when names come or go, or files change, in some directories. Close it, or use it with `with`.

    Args:
        directories: those to watch, not what is below them. No link is followed but those in these paths.

    Raises:
        Unavailable: `watchfiles` is not installed, or the kernel watches no more.
    """

    def __init__(self, directories: Sequence[str]) -> None:
        try:
            rust = importlib.import_module("watchfiles._rust_notify")
        except ImportError as fault:
            raise Unavailable(f"the package `watchfiles` is not installed: {EXTRA}") from fault
        self._since = time.monotonic()
        try:
            self._notify: Any = rust.RustNotify(list(directories), False, False, 0, False, False)
        except (OSError, rust.WatchfilesRustInternalError, ValueError) as fault:
            raise Unavailable(f"the system does not watch files for us: {fault}") from fault

    def __enter__(self) -> "Wakeups":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Watch no longer."""
        self._notify.close()

    def wait(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Return at the next news, after `seconds`, or when `stop` is set.

        Raises:
            KeyboardInterrupt: Ctrl-C.
        """
        step = _STEP_MS if time.monotonic() < self._since + _AT_FIRST_SECONDS else _LATER_STEP_MS
        if self._notify.watch(1, step, max(1, math.ceil(seconds * 1000)), stop) == "signal":
            raise KeyboardInterrupt


class Polling:
    """The same without news: waits a little longer each time."""

    def __init__(self, first: float = _FIRST_POLL, last: float = _LAST_POLL) -> None:
        self._interval = first
        self._last = last

    def wait(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Return after a while, at most `seconds`, or when `stop` is set."""
        end = time.monotonic() + max(0.0, min(self._interval, seconds))
        self._interval = min(self._interval * 1.5, self._last)
        while not (stop is not None and stop.is_set()) and (rest := end - time.monotonic()) > 0:
            time.sleep(min(rest, _LOOK_FOR_STOP))  # and no Event.wait, which a signal's handler could block for ever

    def close(self) -> None:
        """Do nothing."""


@contextlib.contextmanager
def watching(directories: Sequence[str]) -> Iterator[Wakeups | Polling]:
    """Yield what wakes us when one of `directories` changes: the kernel if it can, else the clock."""
    try:
        source: Wakeups | Polling = Wakeups(directories)
    except Unavailable:
        source = Polling()
    try:
        yield source
    finally:
        source.close()


def wait_for(look: Callable[[], _T | None], directories: Sequence[str], seconds: float) -> _T | None:
    """Return what `look` finds as soon as it finds something; None if it has not within `seconds`.

    Args:
        look: looks at a state that changes with one of `directories`.
    """
    end = time.monotonic() + seconds
    with watching(directories) as wakeups:
        while True:
            found = look()  # after the watch is set up, so that nothing falls between
            rest = end - time.monotonic()
            if found is not None or rest <= 0:
                return found
            wakeups.wait(min(rest, LOOK_SECONDS))
