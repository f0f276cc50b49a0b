"""Bounces: a report of refused mail for the sender that declares to accept one (docs/directory.md)."""

from collections.abc import Sequence
from typing import Final

from postmaster import reports
from postmaster.delivery_log import Record
from postmaster.directory.reporting import Failure, Original, write
from postmaster.letter import Item
from postmaster.reports import Report
from postmaster.settings import Settings

MAX_QUOTED: Final = 8 * 1024  # bytes of the letter: `from` is a claim, and must not send a stranger much


def bounce(item: Item, refused: Sequence[Record], sender: str, settings: Settings, now_ns: int) -> Report:
    """Return the report of a refused letter.

    Args:
        refused: its lines in the log, one for each recipient that does not get it.
        sender: the office's own address.
    """
    record = {**item.record, "sequence": refused[0].get("sequence")}
    path = str(refused[0]["path"])
    part = item.raw[:MAX_QUOTED]
    failures = [Failure(one.get("to"), one.get("agent"), one["reason"], one.get("detail")) for one in refused]
    others = f" and for {len(refused) - 1} more" if len(refused) > 1 else ""
    opening = f"Your message was not delivered ({failures[0].reason}{others}); it is kept as {path}."
    return write(
        reports.BOUNCE,
        record["from"],
        sender,
        Original(record, path, part, item.source.size),
        failures,
        opening,
        agent=None,
        office_name=settings.name,
        now_ns=now_ns,
    )
