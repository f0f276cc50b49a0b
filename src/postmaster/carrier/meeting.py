"""When two copies of a transcript meet: what each has, and what can be done. Nothing is resolved by itself.

A copy that goes on where the transcript ends is taken. Where both went on, somebody says which history is to stay, or
puts one together from both (docs/transcripts.md); whichever gives way is kept beside it.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from postmaster import times
from postmaster.carrier import copies
from postmaster.carrier.copies import Written
from postmaster.carrier.transcripts import Entry, Transcript, beginning, check
from postmaster.errors import BadData
from postmaster.printable import printable

HERE: Final = "here"
THERE: Final = "there"
_LINE: Final = re.compile(rf"({HERE}|{THERE})\s+(\d+)\s+([0-9a-f]{{12}})(?:\s.*)?")
_BETWEEN: Final = "between"


@dataclass(frozen=True, slots=True)
class Meeting:
    """Two histories of one transcript.

    Attributes:
        known: the entries here.
        common: how many are the same in both.
        here, there: what follows those, here and in the copy.
        last_common: the last that is the same; None if there is none.
    """

    known: tuple[Entry, ...]
    common: int
    here: tuple[Written, ...]
    there: tuple[Written, ...]
    last_common: Written | None


def meet(transcript: Transcript, copy: Sequence[Written]) -> Meeting:
    """Compare a transcript with a copy.

    Raises:
        BadData: the copy holds what cannot be an entry.
    """
    known = transcript.entries()
    common = copies.common([one.commit for one in known], [one.commit for one in copy])
    for one in copy[common:]:
        check(one.content)
    here = tuple(transcript.written(known[common:]))
    return Meeting(tuple(known), common, here, tuple(copy[common:]), copy[common - 1] if common else None)


def take(transcript: Transcript, met: Meeting) -> None:
    """Add what a copy has more. Both have not diverged. Raises DiskFault."""
    transcript.replace(met.known, len(met.known), met.there)


def adopt(transcript: Transcript, met: Meeting, whose: str) -> None:
    """Let one of two histories stay, HERE or THERE; the other is set aside. Raises DiskFault."""
    if whose == HERE:
        transcript.set_aside(met.known, met.common, met.there)
    else:
        transcript.replace(met.known, met.common, met.there)


def splice(transcript: Transcript, met: Meeting, plan: Sequence[Written]) -> None:
    """Let what both agree on be followed by `plan`; both histories are set aside. Raises DiskFault."""
    transcript.set_aside(met.known, met.common, met.there)
    transcript.replace(met.known, met.common, plan)


def write_plan(met: Meeting, name: str) -> str:
    """Return the list from which somebody makes one history of two, as `git rebase --interactive` has it."""
    rows = [
        f"# What follows entry {met.common} of the transcript of {name}: first what is here, then what the copy has.",
        "# Put the lines in the order that the entries are to have, take out those that are to be left out, and run",
        "# the same command again. Only the first three words of a line count. The first line stays as it is.",
    ]
    rows.append(_between(met))
    for side, entries in ((HERE, met.here), (THERE, met.there)):
        for number, one in enumerate(entries, met.common + 1):
            when = times.timestamp(one.seconds * 10**9)
            rows.append(f"{side:<5} {number:>5} {one.commit[:12]}  {when}  {printable(beginning(one.content))}")
    return "\n".join(rows) + "\n"


def _between(met: Meeting) -> str:
    """Return the line of a list that says of which two histories it was made."""
    return f"{_BETWEEN} {met.here[-1].commit} {met.there[-1].commit}"


def read_plan(met: Meeting, text: str, name: str) -> list[Written]:
    """Return the entries that such a list names, in its order.

    Args:
        name: of the list, for errors.

    Raises:
        BadData: a line names no entry of the two, or one is named twice, or none at all.
    """
    sides = {HERE: met.here, THERE: met.there}
    found: list[Written] = []
    if _between(met) not in (line.strip() for line in text.splitlines()):
        raise BadData(f"{name}: was made of other entries: one of the two has gone on since; take a new list")
    for at, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith(("#", _BETWEEN)):
            continue
        match = _LINE.fullmatch(line.strip())
        place = int(match[2]) - met.common - 1 if match else -1
        if match is None or not 0 <= place < len(sides[match[1]]):
            raise BadData(f"{name}:{at}: no entry of the two since they went apart: write `here 13 COMMIT` as it was")
        one = sides[match[1]][place]
        if not one.commit.startswith(match[3]):
            raise BadData(f"{name}:{at}: entry {match[2]} is another by now; take a new list")
        if one in found:
            raise BadData(f"{name}:{at}: this entry is in the list already; take it out")
        found.append(one)
    if not found:
        raise BadData(f"{name}: names no entry; to have none of either, there is no need of a list: --adopt one")
    return found
