"""One run for all the office: route, then tell those who have mail. What goes wrong besides is only said."""

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from postmaster import router
from postmaster.delivery_log import Record
from postmaster.directory import Opening, Reports
from postmaster.errors import PostmasterError
from postmaster.office import Office
from postmaster.summary import Summary

if TYPE_CHECKING:
    from postmaster.directory.nudging import Told

Say = Callable[[str], None]  # tells a person what went wrong


def route_and_nudge(
    office: Office, say: Say, *, wait: bool, on_record: Callable[[Record], None] | None = None
) -> tuple[Summary, dict[str, Any]]:
    """Route, then tell those who have mail; return what the router did and what came of the nudges.

    Raises:
        ConfigurationFault, CannotCreate, DiskFault: of routing (router.route); those of the nudges are only said.
    """
    opening = Opening()
    report = router.route(office, wait=wait, on_record=on_record, open_view=opening, reporter=Reports(office))
    if report.busy or not (opening.has_nudges or os.path.lexists(office.nudges)):
        return report, {}
    return report, _nudge(office, say, has_nudges=opening.has_nudges)


def route_now(office: Office, say: Say) -> list[Record]:
    """Route mail that was just put in the outbox; return what was logged.

    A fault is told of and is none of sending: a later run routes it.
    """
    records: list[Record] = []
    try:
        problems = route_and_nudge(office, say, wait=True, on_record=records.append)[0].problems
    except PostmasterError as fault:
        problems = [str(fault)]
    except OSError as fault:
        problems = [f"{fault.filename or office.root}: {fault.strerror or fault}"]
    for problem in problems:
        say(problem)
    return records


def _nudge(office: Office, say: Say, *, has_nudges: bool) -> dict[str, Any]:
    """Nudge whom a run of the router has left mail for. Whatever goes wrong is said, and no fault of routing."""
    if not has_nudges:
        from postmaster.directory import untold

        untold.unmark(office)
        return {}
    from postmaster.directory import nudging

    try:
        told = nudging.tell(office)
    except PostmasterError as fault:
        say(f"nobody was nudged: {fault}")
        return {}
    except OSError as fault:
        say(f"nobody was nudged: {fault.filename or office.root}: {fault.strerror or fault}")
        return {}
    for problem in told.problems:
        say(problem)
    return describe_nudges(told)


def describe_nudges(told: "Told") -> dict[str, Any]:
    """Return what came of the nudges as plain data."""
    return {"nudged": told.nudged, "busy": told.busy, "later": told.later}
