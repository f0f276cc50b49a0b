"""Who gets a message, and why not, as the one pure rule says it."""

import pytest

from postmaster.decide import decide
from postmaster.recipients import Relay
from postmaster.registry.view import EntriesView
from postmaster.remotes import Remote, Remotes
from postmaster.verdict import Envelope

FOREIGN, OWN = "ann@laptop.internal", "ann@lab.internal"
RELAY = Relay(Remotes([Remote("laptop", "/srv/mail.git", ("laptop.internal",))]), lambda remote, name: "")


class Repeated:
    """A history in which every message was delivered before."""

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        """Return a place: there is always an identical message."""
        return "inboxes/lab.desk/unread/earlier.md"

    def made(self, envelope: Envelope) -> bool:
        """Return whether the office made it: it did not."""
        return False


def envelope(sender: str, *to: str) -> Envelope:
    """Return a message from this sender."""
    return Envelope("0" * 32, {}, to, sender, "job.run", "subject", "run-1")


def rule(*senders: str, duplicates: str = "refuse", remote: str = "false") -> dict[str, object]:
    """Return one entry of `accepts`."""
    return {"type": "job.run", "accepts_from": list(senders), "duplicates": duplicates, "remote": remote}


@pytest.mark.parametrize(
    ("sender", "rules", "reason"),
    [
        (OWN, [rule("*", duplicates="deliver")], None),
        (OWN, [rule("*", duplicates="deliver"), rule(OWN)], None),
        (OWN, [rule("*"), rule(OWN, duplicates="deliver")], None),
        (OWN, [rule("*")], "duplicate"),
        (FOREIGN, [rule("*", duplicates="deliver")], "sender-not-accepted"),
        (FOREIGN, [rule("*", duplicates="deliver"), rule(FOREIGN)], "duplicate"),
        (FOREIGN, [rule("*", duplicates="deliver"), rule("*@laptop.internal")], "duplicate"),
        (FOREIGN, [rule("role:clerk", duplicates="deliver"), rule(FOREIGN)], "duplicate"),
        (FOREIGN, [rule("class:lab.clerk", duplicates="deliver"), rule(FOREIGN)], "duplicate"),
        (FOREIGN, [rule(FOREIGN, duplicates="deliver")], None),
        (FOREIGN, [rule("*", duplicates="deliver", remote="true")], None),
        (FOREIGN, [rule("*", remote="true"), rule(FOREIGN, duplicates="deliver")], None),
    ],
)
def test_only_a_rule_that_admits_the_sender_admits_its_duplicates(
    sender: str, rules: list[dict[str, object]], reason: str | None
) -> None:
    """`duplicates: deliver` counts only in a rule that admits the sender; `*`, roles and classes mean this office."""
    desk = {"id": "lab.desk", "address": "desk@lab.internal", "inbox": "", "accepts": rules}
    clerk = {"id": "lab.clerk", "address": "clerk@lab.internal", "inbox": "", "roles": ["clerk"], "aliases": [FOREIGN]}
    registry = EntriesView([desk, clerk])
    (verdict,) = decide(envelope(sender, "desk@lab.internal"), registry, Repeated(), relay=RELAY)
    assert verdict.reason == reason
