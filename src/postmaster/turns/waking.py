"""Starting turns: of one instance, of all that have unread mail; and telling how they are."""

import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from postmaster import times
from postmaster.directory import open_view
from postmaster.errors import CannotCreate, DiskFault, PostmasterError
from postmaster.office import Office, visible
from postmaster.reading import Message
from postmaster.settings import load_settings
from postmaster.turns import instances, taking
from postmaster.turns import rules as turn_rules
from postmaster.turns.home import Home, unread
from postmaster.turns.instances import Instance
from postmaster.turns.rules import Rules
from postmaster.turns.taking import Taken

OUTCOMES: Final = ("done", "failed", "dead", "quiet", "busy", "full", "paused")
TAKEN: Final = ("done", "failed", "dead")
_FAULT: Final = 74  # a child that met a fault, and said so
_BASE: Final = 100  # of the exit codes with which a child tells its outcome


@dataclass(frozen=True, slots=True)
class Due:
    """An instance whose turn is due."""

    instance: Instance
    rules: Rules


def take_one(office: Office, name: str, command: tuple[str, ...]) -> tuple[Instance, Taken]:
    """Take one turn of the instance that `name` names.

    Args:
        command: the program and its arguments, instead of those that its declaration says; empty for those.

    Raises:
        BadData: nobody has that name, or it takes no turns.
        PostmasterError: as taking.take.
    """
    office.require()
    settings = load_settings(office)
    with open_view(office) as view:
        found = instances.find(office, view, name)
        instances.require_one(found)
        if not command or found.state == instances.TERMINATED:
            instances.require_turns(view, found)
        entry = dict(view.entry(found.class_id) or {})
    if command:
        entry["run"] = list(command)
    rules = turn_rules.rules_of(entry)
    assert rules is not None
    return found, _take(office, Due(found, rules), settings.turn_retry_seconds, hold_back=False)


def _take(office: Office, due: Due, first_delay: float, *, hold_back: bool) -> Taken:
    def finish(instance: Instance, woken_by: Message, text: bytes, stage: str) -> None:
        from postmaster.turns.answering import stage_final_message

        stage_final_message(office, instance, woken_by, text, stage)

    return taking.take(office, due.instance, due.rules, first_delay=first_delay, finish=finish, hold_back=hold_back)


def due(office: Office, now_ns: int, on_fault: Callable[[str], None]) -> Iterator[Due]:
    """Yield every instance that has unread mail whose time has come, and is not paused.

    Args:
        on_fault: told of an instance whose state cannot be read; the others have their turns.
    """
    with open_view(office) as view:
        rules: dict[str, Rules | None] = {}
        for one in instances.runnable(office, view, on_fault):
            if one.class_id not in rules:
                rules[one.class_id] = turn_rules.rules_of(view.entry(one.class_id) or {})
            known = rules[one.class_id]
            if known is None or one.state != instances.ACTIVE:
                continue
            try:
                has_work = taking.has_work(one, Home(office, one.id), now_ns)
            except (DiskFault, OSError) as fault:
                on_fault(f"{one.id}: {fault}")
                continue
            if has_work:
                yield Due(one, known)


@dataclass(slots=True)
class Woken:
    """What came of a wake: how many of each outcome; `faults` are runners that met a fault, and said so."""

    outcomes: Counter[str]
    faults: int = 0

    @property
    def turns(self) -> int:
        """How many turns were taken."""
        return sum(self.outcomes[name] for name in TAKEN)


def wake(
    office: Office,
    jobs: int,
    *,
    on_fault: Callable[[str], None],
    deadline: float | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Woken:
    """Take a turn of every instance for which one is due, several at once, each in a process of its own.

    Args:
        on_fault: called, in that process, with what went wrong in words.
        deadline: (time.monotonic) after which none is started any more.

    Raises:
        PostmasterError: no office, no registry, or the disk refused.
    """
    office.require()
    first_delay = load_settings(office).turn_retry_seconds
    woken = Woken(Counter())
    children: set[int] = set()

    def damaged(text: str) -> None:
        woken.faults += 1
        on_fault(text)

    for one in list(due(office, clock(), damaged)):
        if deadline is not None and time.monotonic() >= deadline:
            break
        if len(children) >= jobs:
            _reap(children, woken)
        child = os.fork()
        if child == 0:
            os._exit(_child(office, one, first_delay, on_fault))
        children.add(child)
    while children:
        _reap(children, woken)
    return woken


def _child(office: Office, one: Due, first_delay: float, on_fault: Callable[[str], None]) -> int:
    try:
        taken = _take(office, one, first_delay, hold_back=True)
        return _BASE + OUTCOMES.index(taken.outcome)
    except BaseException as fault:  # the process ends here, whatever it was
        known = isinstance(fault, PostmasterError | OSError)
        on_fault(f"{one.instance.id}: {fault}" if known else f"{one.instance.id}: internal error: {fault!r}")
        return _FAULT


def _reap(children: set[int], woken: Woken) -> None:
    """Wait until one of our children has ended. The children of our children are theirs."""
    child, status = os.waitpid(-1, 0)
    if child not in children:
        return
    children.discard(child)
    code = os.waitstatus_to_exitcode(status)
    if _BASE <= code < _BASE + len(OUTCOMES):
        woken.outcomes[OUTCOMES[code - _BASE]] += 1
    else:
        woken.faults += 1


# -- the listing ---------------------------------------------------------------------------------------------------


def survey(office: Office) -> dict[str, Any]:
    """Return every instance that takes turns, as plain data. Changes nothing.

    Raises:
        PostmasterError: no office, no registry.
    """
    office.require()
    answer: dict[str, Any] = {"office": office.root, "instances": [], "problems": []}
    with open_view(office, write=False) as view:
        for one in instances.runnable(office, view, answer["problems"].append):
            try:
                answer["instances"].append(_row(office, one))
            except (DiskFault, CannotCreate, OSError) as fault:
                answer["problems"].append(f"{one.id}: {fault}")
    return answer


def _row(office: Office, one: Instance) -> dict[str, Any]:
    home = Home(office, one.id)
    waiting = unread(one.inbox)
    state = home.read_state()
    first = waiting[0] if waiting else ""
    attempts, next_ns = state.attempts.get(first, (0, 0))
    last = state.last or {}
    return {
        "id": one.id,
        "address": one.address,
        "class": one.class_id,
        "state": one.state,
        "busy": office.is_in_turn(one.id),
        "unread": len(waiting),
        "next_message": visible(first) or None,
        "attempts": attempts,
        "next_try": times.timestamp(next_ns) if next_ns else None,
        "last": {key: last[key] for key in ("turn", "time", "outcome", "exit") if key in last} or None,
        "origin": one.origin.correlation_id if one.origin is not None else None,
    }
