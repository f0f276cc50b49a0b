"""A pass of the carrier that sends, receives, marks and notes receipts, killed at each call that changes the disk.

A sample of the calls, the same every time; POSTMASTER_SWEEP=full takes all.
"""

import os
import random
import shutil
import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "system"))

from test_carry import carry, got, hub, mail, office, refs, to_hub, turn

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("strace")), reason="needs git and strace")

CALLS = "rename,renameat2,unlink,unlinkat,fsync,fdatasync,mkdir,vfork,clone,clone3,flock"
FULL = os.environ.get("POSTMASTER_SWEEP") == "full"
MOST = 400  # more calls than a pass has


def test_killed_at_any_call(tmp_path: Path) -> None:
    """Wherever it was killed: after the next pass every letter has arrived once, and every receipt is logged once."""
    there = hub(tmp_path)
    a, b = (office(tmp_path, name, 1, to_hub(there, name)) for name in "ab")
    before = refs(there)
    points = range(1, MOST) if FULL else sorted(random.Random(5).sample(range(1, 70), 5))
    sent: list[bytes] = []
    for number, point in enumerate(points):
        body = f"{point}".encode()
        a.drop("x.md", mail("a0@b.internal", "a0@a.internal", body=body, second=number % 60))
        b.drop("x.md", mail("a0@a.internal", "a0@b.internal", body=body, second=number % 60))
        b.route()
        carry(b)
        a.route()
        for one in a.unread("a.a0"):
            assert a.run("ack", "a.a0", one.name).returncode == 0
        sent.append(body)
        inject = f"inject={CALLS}:signal=KILL:when={point}"
        killed = not carry(a, code=None, prefix=["strace", "-o", "/dev/null", "-e", f"trace={CALLS}", "-e", inject])
        if number % 2:
            a.route()  # what was handed in may be gone from the outbox before the next pass looks
        turn(a, b)
        assert got(a, "a.a0") == got(b, "b.a0") == sorted(sent), point
        assert a.dead() == b.dead() == [], point
        if FULL and not killed:
            break
    for box, agent in ((a, "a.a0"), (b, "b.a0")):
        for one in box.unread(agent):
            assert box.run("ack", agent, one.name).returncode == 0
    turn(b, a, a, b)
    for box, other in ((a, "b"), (b, "a")):
        receipts = [one["sequence"] for one in box.log() if one["action"] == "receipt"]
        assert len(receipts) == len(set(receipts)) == len(sent), (box.world.name, other)
        assert box.run("verify").returncode == 0
    assert {r: o for r, o in refs(there).items() if "/inbox/" not in r} == before
