"""How the turns of an agent are taken: what its declaration says, with the defaults. Pure.

The keys are checked at merge (registry/registry.schema.json); here they are only read.
"""

from dataclasses import dataclass
from typing import Final, Literal

from postmaster import times
from postmaster.registry.view import Entry

DefaultThread = Literal["origin", "none"]
FinalMessage = Literal["discard", "default_thread"]

MAX_ATTEMPTS: Final = 5


@dataclass(frozen=True, slots=True)
class Rules:
    """What a declaration says of turns.

    Attributes:
        run: a program and its arguments; no shell sees them.
        default_thread: where a message goes that names no flow: `origin`, the flow that the instance was made to
            serve, or `none`, nowhere.
        final_message: what becomes of the stdout of a turn: `discard`, or `default_thread`, it is sent there.
        all_messages: a turn gets all that is unread, not one message.
        timeout: seconds that a turn may take; None for any time.
        max_attempts: after so many failed turns a message is a dead letter.
        concurrency: how many instances of the class may be in a turn at once; None for any number.
    """

    run: tuple[str, ...]
    default_thread: DefaultThread = "origin"
    final_message: FinalMessage = "discard"
    all_messages: bool = False
    timeout: float | None = None
    max_attempts: int = MAX_ATTEMPTS
    concurrency: int | None = None


def rules_of(entry: Entry) -> Rules | None:
    """Return what a valid entry says of turns; None if it has no `run`, so that no turn of it is ever taken."""
    run = entry.get("run")
    if not run:
        return None
    concurrency = entry.get("concurrency")
    timeout = entry.get("turn_timeout")
    return Rules(
        run=tuple(run),
        default_thread="none" if entry.get("default_thread") == "none" else "origin",
        final_message="default_thread" if entry.get("final_message") == "default_thread" else "discard",
        all_messages=entry.get("messages_per_turn") == "all",
        timeout=float(times.parse_span(timeout)) if timeout is not None else None,
        max_attempts=int(entry.get("max_attempts", MAX_ATTEMPTS)),
        concurrency=int(concurrency) if concurrency is not None else None,
    )


FIRST_DELAY: Final = 10.0  # seconds
LONGEST_DELAY: Final = 3600.0


def delay(attempt: int, first: float = FIRST_DELAY) -> float:
    """Return how many seconds to wait after failed attempt number `attempt` (from 1): twice as long each time."""
    return float(min(first * 2 ** min(attempt - 1, 30), max(LONGEST_DELAY, first)))


def answered(rules: Rules, origin_flow: str | None, text: bytes) -> str | None:
    """Return why the final message of a turn is sent nowhere, in words; None if it is to be sent."""
    if rules.final_message == "discard":
        return "its output is discarded"
    if not text.strip():
        return "it said nothing"
    if rules.default_thread == "none":
        return "there is no default thread"
    if origin_flow is None:
        return "it has no origin"
    return None
