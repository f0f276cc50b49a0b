"""What is durable before what, read from a trace (DESIGN section 6, guarantee 3; the table in docs/states.md).

A power failure cannot be made here; that the calls come in an order that survives one can be proved.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from faults.sweep import CHANGING, Sweep, optional

Get = Callable[..., Sweep]


@dataclass(frozen=True)
class Call:
    """One system call that succeeded: its name, and the paths it is about (`strace -y` tells those of descriptors)."""

    name: str
    paths: tuple[str, ...]
    text: str


def calls(trace: str) -> list[Call]:
    """Return the calls in a trace that succeeded, in order."""
    found = []
    for line in trace.splitlines():
        match = re.match(r"(\w+)\((.*)\) += (\d+)(?:<([^>]*)>)?$", line)
        if match is None:
            continue
        name, arguments, _, opened = match.groups()
        if name.startswith(("rename", "link")):
            paths = tuple(re.findall(r'"((?:[^"\\]|\\.)*)"', arguments))
        elif opened is not None:
            paths = (opened,)
        elif at := re.match(r"\d+<([^>]*)>", arguments):
            paths = (at[1],)
        else:
            paths = tuple(re.findall(r'"((?:[^"\\]|\\.)*)"', arguments))[:1]
        found.append(Call(name, paths, line))
    return found


class Order:
    """The calls of a run in an office, to be asked which came before which."""

    def __init__(self, trace: str, root: Path) -> None:
        self.calls = calls(trace)
        self.root = str(root)

    def where(self, name: str, *patterns: str) -> list[int]:
        """Return the places of the calls of this kind whose paths, relative to the office, match fully."""
        return [
            place
            for place, call in enumerate(self.calls)
            if re.fullmatch(name, call.name)
            and len(call.paths) >= len(patterns)
            and all(
                re.fullmatch(pattern, path.removeprefix(self.root + "/"))
                for pattern, path in zip(patterns, call.paths, strict=False)
            )
        ]

    def once(self, name: str, *patterns: str) -> int:
        """Return the place of the only such call."""
        found = self.where(name, *patterns)
        assert len(found) == 1, (name, patterns, found)
        return found[0]

    def assert_synced(self, path: str, after: int, before: int) -> None:
        """Between two places this file or directory is made durable: by itself, or with its file system."""
        shown = re.escape(path.removeprefix(self.root + "/"))
        synced = [*self.where("fsync|fdatasync", shown), *self.where("syncfs")]
        where = f"after {self.calls[after].text}\nbefore {self.calls[before].text}"
        assert any(after < place < before for place in synced), f"{path} is not synced\n{where}"


RENAME, WRITE = "rename.*", "p?writev?(64|2)?"
JOURNAL = r"\.postmaster/journal"
LOG = r"logs/delivery-log\.jsonl"
TEMPORARY = r"(inboxes/[^/]+/tmp|\.postmaster|dead-letter)/\.?postmaster-.*"
VISIBLE = r"(inboxes/[^/]+/unread|dead-letter)/[^.].*"
LETTER = r"outbox/[^.][^/]*"
TAKEN = r"outbox/\.postmaster-taken"


def assert_durable_order(order: Order) -> None:
    """Everything that docs/states.md says of the order of a batch."""
    commit = order.once(RENAME, JOURNAL + r"\.tmp", JOURNAL)
    published = order.where(RENAME, TEMPORARY, VISIBLE)
    moved = order.where(RENAME, LETTER, r"dead-letter/.*")
    written_log = order.where(WRITE, LOG)
    removed = [*order.where(RENAME, LETTER, TAKEN), *order.where("unlink(at)?", "outbox/.*")]
    dropped = order.once("unlink(at)?", JOURNAL)
    assert published and moved and written_log and removed, "this run shows nothing"

    # 1, 2: the temporaries, and their names, before the commit
    for place in published:
        temporary = order.calls[place].paths[0]
        shown = re.escape(temporary.removeprefix(order.root + "/"))
        created, *_ = order.where("openat", shown)
        order.assert_synced(temporary, max(order.where(WRITE, shown)), commit)
        order.assert_synced(str(Path(temporary).parent), created, commit)
    for place in moved:  # what is moved is as durable as what is copied
        letter = order.calls[place].paths[0]
        if not Path(letter).name.startswith("link"):
            order.assert_synced(letter, 0, commit)
    # 3: the journal before it is in place, its name before anything follows from it
    order.assert_synced(f"{order.root}/.postmaster/journal.tmp", max(order.where(WRITE, JOURNAL + r"\.tmp")), commit)
    order.assert_synced(f"{order.root}/.postmaster", commit, min(published + moved))
    # 4, 5, 6: nothing is seen before the commit; what is seen stays, before the log tells of it
    assert commit < min(published + moved)
    for place in published + moved:
        order.assert_synced(str(Path(order.calls[place].paths[1]).parent), place, min(written_log))
    # 7, 8: the log before the letters go
    order.assert_synced(f"{order.root}/logs/delivery-log.jsonl", max(written_log), min(removed))
    order.assert_synced(f"{order.root}/logs", max(written_log), min(removed))
    # 9: the journal last
    order.assert_synced(f"{order.root}/outbox", max(removed + moved), dropped)


def _trace(sweep: Sweep) -> Order:
    scene = sweep.build()
    return Order(sweep.run("-y", "-e", f"trace={optional(CHANGING)}").trace, scene.root)


@pytest.mark.parametrize("kind", ["few", "mixed", "many"])
def test_everything_is_durable_before_the_next_step(sweep_of: Get, kind: str) -> None:
    """Data before names, names before the log, the log before the letters are unlinked, all before the journal goes."""
    order = _trace(sweep_of(kind))
    assert bool(order.where("syncfs")) == (kind == "many"), "the scenes are to show both ways to sync"
    assert_durable_order(order)


@pytest.mark.parametrize(
    "wrong", ["clear_before_publishing", "drop_the_journal_early", "forget_to_sync", "unlink_before_logging"]
)
def test_a_wrong_order_is_seen(sweep_of: Get, wrong: str) -> None:
    """A run that leaves a sync out, or does things in another order, fails the test above."""
    with pytest.raises(AssertionError):
        assert_durable_order(_trace(sweep_of("few", wrong)))
