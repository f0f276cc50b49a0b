"""Who may write in whose name, as the one pure rule says it."""

import os
import sqlite3
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster.accounts import Accounts
from postmaster.decide import decide
from postmaster.parties import Agent
from postmaster.registry import database
from postmaster.senders import Origin, Senders
from postmaster.verdict import Envelope

UIDS = {"ann": 1001, "ben": 1002, "root": 0}
AGENTS = {
    "a@x": Agent("lab.a", "a@x", "", (), user="ann"),
    "b@x": Agent("lab.b", "b@x", "", (), user="ben"),
    "r@x": Agent("lab.r", "r@x", "", (), user="root"),
    "lost@x": Agent("lab.lost", "lost@x", "", (), user="nobody-here"),
    "free@x": Agent("lab.free", "free@x", "", ()),
}


class Book:
    """A registry that counts what it is asked."""

    def __init__(self) -> None:
        self.asked = 0

    def find(self, mailbox: str) -> Agent | None:
        self.asked += 1
        return AGENTS.get(mailbox)

    def agent(self, agent_id: str) -> Agent | None:
        raise AssertionError("nobody but the sender is to be looked up")

    def holders(self, role: str) -> Sequence[Agent]:
        raise AssertionError("nobody but the sender is to be looked up")

    def suggest(self, recipient: str) -> str | None:
        raise AssertionError("nothing is to be suggested to an impostor")


class Machine:
    """The accounts of a machine."""

    def uid(self, user: str) -> int | None:
        return UIDS.get(user)

    def shown(self, uid: int) -> str:
        return f"uid {uid}"


class Never:
    """A past that is not to be asked."""

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        raise AssertionError("an impostor is not told what was sent before")


@settings(deadline=None)
@given(
    sender=st.sampled_from([*AGENTS, "stranger@x"]),
    owner=st.sampled_from([-1, 0, 1001, 1002, 1003]),
    open_to_all=st.booleans(),
    folder=st.sampled_from([None, "lab.a", "LAB.A", "lab.free", "lab.gone"]),
    required=st.booleans(),
)
def test_the_rule(sender: str, owner: int, open_to_all: bool, folder: str | None, required: bool) -> None:
    """Believed is exactly who is in the own folder, and owns the file alone, or is not asked to."""
    agent = AGENTS.get(sender)
    reason, detail = Senders(Book(), Machine(), required=required).check(sender, Origin(owner, open_to_all, folder))
    in_place = folder is None or (agent is not None and agent.id == folder.lower())
    if agent is None or agent.user is None:
        believed = in_place and not required
    else:
        believed = in_place and UIDS.get(agent.user) == owner and not open_to_all
    assert (reason is None) is believed and (detail is None) is believed
    if in_place and sender == "lost@x":
        assert reason == "account-unknown"
    elif not believed:
        assert reason == "sender-not-authentic"


def test_decide_says_nothing_more_to_an_impostor() -> None:
    """One verdict for each recipient; neither registry nor past is asked about them; a sender is looked up once."""
    book = Book()
    senders = Senders(book, Machine(), required=False)
    envelope = Envelope("0" * 32, {}, ("nobody@x", "b@x", "role:r", "b@x"), "a@x", "t", "s", "c")
    for _ in range(3):
        found = decide(envelope, book, Never(), senders=senders, origin=Origin(1002))
        assert [(one.recipient, one.agent, one.reason) for one in found] == [
            (to, None, "sender-not-authentic") for to in ("nobody@x", "b@x", "role:r")
        ]
    assert book.asked == 1


def test_many_senders_are_not_kept_for_ever() -> None:
    """A run over letters from ever new senders does not grow with them."""
    senders = Senders(Book(), Machine(), required=False)
    for number in range(25_000):
        senders.check(f"s{number}@x", Origin(0))
    assert len(senders._known) <= 10_000


@pytest.mark.parametrize(
    ("user", "uid"),
    [("root", 0), ("0", 0), ("61001", 61001), ("no-such-account-here", None), ("4294967295", None), ("9" * 40, None)],
)
def test_accounts(user: str, uid: int | None) -> None:
    """A name is looked up, a number is itself; (uid_t) -1 is nobody's."""
    accounts = Accounts()
    assert accounts.uid(user) == uid == accounts.uid(user)
    assert accounts.shown(0) == "root (uid 0)" and accounts.shown(61001) == "uid 61001"


@pytest.mark.parametrize("change", ["users = 0", "users = NULL", "crc = crc + 1", "agents = 5", "names = 0"])
def test_damaged_counts_do_not_switch_the_rule_off(change: str) -> None:
    """A count that does not agree with its checksum is damage, and no count."""
    entry = {"id": "lab.a", "address": "a@x", "inbox": "i", "accepts": [], "user": "ann"}
    connection = database.in_memory([entry])
    assert database.count_users(connection) == 1
    with pytest.raises(sqlite3.DatabaseError):
        connection.execute(f"UPDATE meta SET {change}")
        database.count_users(connection)
    connection.close()


def test_owner_numbers_are_those_of_the_system() -> None:
    """What `os.stat` calls an owner is what the rule compares."""
    assert Accounts().uid(str(os.getuid())) == os.stat(f"/proc/{os.getpid()}").st_uid
