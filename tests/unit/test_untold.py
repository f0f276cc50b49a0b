"""What nobody was told of: the log, followed or read anew, says the same."""

import os
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster import delivery_log, setup
from postmaster.directory import nudging, open_view, registration, untold
from postmaster.office import Office
from postmaster.registry import merge

_REGISTRY = """\
agents:
  - {id: a, address: a@x, nudge: [/bin/true]}
  - {id: b, address: b@x, nudge: [/bin/true], instances: many}
  - {id: c, address: c@x}
"""
_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["came", "came", "came", "told", "read", "rotate", "look", "torn", "other"]),
        st.sampled_from(["a", "b", "b+ann", "c"]),
        st.integers(0, 5),
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Office:
    """An office with two agents that are nudged, and one that is not."""
    office = Office(str(tmp_path_factory.mktemp("untold") / "office"))
    setup.make_office(office)
    Path(office.declarations, "x.yml").write_text(_REGISTRY)
    assert not merge.merge(office).problems
    registration.register(office, "b", "ann", [])
    return office


def current(office: Office) -> dict[str, list[str]]:
    """Return what is untold now, and keep it as a run does."""
    with open_view(office) as view, untold.locked(office):
        found = untold.current(office, view)
        untold.save(office, found)
    return {agent: sorted(names) for agent, names in found.names.items()}


@settings(max_examples=60, deadline=None)
@given(_STEPS)
def test_following_is_reading_anew(made: Office, steps: list[tuple[str, str, int]]) -> None:
    """Whatever comes, is told of, read, rotated away or torn: the kept state and one from the start agree."""
    office = made
    for folder in (office.logs, *(f"{office.inboxes}/{one}/unread" for one in ("a", "b", "b+ann", "c"))):
        for name in os.listdir(folder):
            os.unlink(os.path.join(folder, name))
    untold.unmark(office)
    current(office)
    came: dict[str, set[str]] = {}
    rotations = 0

    def log(action: str, agent: str, name: str) -> None:
        record = {"time": f"2026-03-04T10:00:{number:02d}.000000Z", "action": action, "agent": agent}
        record["path"] = f"inboxes/{agent}/unread/{name}"
        delivery_log.append(office, [delivery_log.encode(record)])

    for number, (what, agent, which) in enumerate(steps):
        unread = os.path.join(office.inboxes, agent, "unread")
        present = sorted(os.listdir(unread))
        name = present[which % len(present)] if present else ""
        if what == "came":
            fresh = f"{number}.md"
            Path(unread, fresh).touch()
            log("delivered", agent, fresh)
            came.setdefault(agent, set()).add(fresh)
        elif what == "told" and name:
            log("nudged", agent, name)
            came[agent].discard(name)
        elif what == "read" and name:
            os.unlink(os.path.join(unread, name))
            came[agent].discard(name)
        elif what == "rotate" and os.path.exists(office.log):
            rotations += 1
            os.rename(office.log, os.path.join(office.logs, f"delivery-log.jsonl.{100 - rotations}"))
        elif what == "look":
            current(office)
        elif what == "torn":
            with open(office.log, "ab") as stream:
                stream.write(b'{"time":"2026')
        elif what == "other":
            log("unread", agent, name or "x.md")

    wanted = {agent: sorted(names) for agent, names in came.items() if names and agent != "c"}
    followed = current(office)
    there = {
        agent: [n for n in names if os.path.exists(f"{office.inboxes}/{agent}/unread/{n}")]
        for agent, names in followed.items()
    }
    assert {agent: names for agent, names in there.items() if names} == wanted
    untold.unmark(office)
    assert current(office) == wanted


@pytest.mark.parametrize("damage", [b"", b"x", b"[]\n", b"d41d8cd98f00b204e9800998ecf8427e\n"])
def test_a_damaged_file_is_made_anew(made: Office, damage: bytes) -> None:
    """Nothing in it is trusted that does not carry its digest."""
    Path(made.nudges).write_bytes(damage)
    before = current(made)
    raw = bytearray(Path(made.nudges).read_bytes())
    raw[random.Random(1).randrange(40, len(raw))] ^= 1
    Path(made.nudges).write_bytes(raw)
    assert current(made) == before


@given(st.lists(st.text(max_size=100), max_size=8), st.integers(1, 99), st.integers(1, 99))
def test_the_text_is_harmless(senders: list[str], unread: int, new: int) -> None:
    """One line of few characters, that begins with a letter and is not long."""
    text = nudging.text("lab.one+ann", unread, min(new, unread), senders)
    assert text.startswith("Mail for ") and len(text) < 700
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789 @.,:_+-")
