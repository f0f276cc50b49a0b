"""Twenty hold a role, a thousand messages go to it, half of them are archived meanwhile, and killed at it: the sums."""

import os
import random
import signal
import time
from collections import Counter

import pytest
from support import Box, letter

_CREW = """\
plugin: crew
agents:
  - id: lab.worker
    address: worker@crew.internal
    instances: many
    accepts: [job.run]
    accepts_from: ["*"]
"""
_SENDERS = ("conductor@lab.internal", "builder@lab.internal", "ghost@lab.internal")  # the last is nobody


@pytest.mark.timeout(600)
def test_every_copy_is_accounted_for(lab: Box) -> None:
    """Every copy is read, unread with a living owner, returned once to its sender, or returned to a dead letter."""
    chance = random.Random(20260304)
    instances, messages, rounds = 20, 1000, 10
    lab.declare("crew", _CREW)
    lab.merge()
    names = [f"w{number}" for number in range(instances)]
    for name in names:
        assert lab.run("register", "lab.worker", "--name", name, "--role", "crew").returncode == 0
    archived: list[str] = []
    kills = 0
    for turn in range(rounds):
        for number in range(messages // rounds):
            raw = letter(
                to="role:crew",
                from_=_SENDERS[(turn + number) % 3],
                subject=f"{turn}-{number}",
                correlation_id=f"flow-{number % 7}",
                sent_at=None,
                body=f"{turn} {number}\n",
            )
            lab.drop(f"{turn}-{number}.md", raw)
        kills += _killed(lab, chance, "route")
        lab.route("--now", timeout=300)
        for name in names:
            inbox = lab.inbox(f"lab.worker+{name}")
            if name not in archived:
                for file in os.listdir(inbox / "unread"):
                    if chance.random() < 0.5:
                        os.rename(inbox / "unread" / file, inbox / "read" / file)
        leaving = chance.choice([name for name in names if name not in archived])
        kills += _killed(lab, chance, "archive", leaving)
        lab.run("archive", leaving)  # 65 if the one that was killed had done it
        archived.append(leaving)
    lab.route("--now", timeout=300)
    assert kills, "nothing was killed: the test shows nothing"

    log = lab.log()
    delivered = Counter(line["agent"] for line in log if line["action"] == "delivered" and line["type"] == "job.run")
    returned = [line["path"] for line in log if line["action"] == "returned"]
    assert len(set(returned)) == len(returned), "something was returned twice"
    left = set()
    for name in names:
        unread = os.listdir(lab.inbox(f"lab.worker+{name}") / "unread")
        read = os.listdir(lab.inbox(f"lab.worker+{name}") / "read")
        assert delivered[f"lab.worker+{name}"] == len(unread) + len(read)
        if name in archived:
            left |= {f"inboxes/lab.worker+{name}/unread/{file}" for file in unread}
    assert left == set(returned) and len(left) > 100, "what the archived left unread is what was returned"
    assert sum(delivered.values()) == sum(messages // rounds * (instances - turn) for turn in range(rounds)), (
        "each message has a copy for everyone alive"
    )

    senders = Counter(line["to"] for line in log if line["action"] == "returned")
    reports = {one: [mail.fields["type"] for mail in lab.unread(f"lab.{one}")] for one in ("conductor", "builder")}
    for one, types in reports.items():
        assert types == ["postmaster.returned"] * senders[f"{one}@lab.internal"]
    assert len(lab.dead()) == senders["ghost@lab.internal"] > 0
    assert lab.outbox() == [] and lab.tmp_litter() == []
    numbers: dict[str, set[int]] = {}
    for line in log:
        if "sequence" in line:
            numbers.setdefault(line["correlation_id"], set()).add(line["sequence"])
    assert sum(map(len, numbers.values())) == messages + len(returned)
    assert all(given == set(range(1, len(given) + 1)) for given in numbers.values())
    checked = lab.run("verify", timeout=300)
    assert checked.returncode == 0, checked.stdout


def _killed(box: Box, chance: random.Random, *command: str) -> int:
    """Start a command and kill it somewhere on its way; return 1 if it was still at work."""
    running = box.start(*command)
    time.sleep(chance.uniform(0.15, 0.9))
    running.send_signal(signal.SIGKILL)
    running.communicate()
    return running.returncode == -signal.SIGKILL
