"""Mail between offices: one form of a line, and a merge that no order of exchange can change."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster import remotes
from postmaster.carrier import lines
from postmaster.carrier.lines import READ, UNREAD, Letter, Mark, Signature

ADDRESSES = st.sampled_from(["cook@b.internal", "waiter@a.internal", "o'neil+x@c.internal", "a@b.lock"])
TIMES = st.integers(0, 59).map(lambda second: f"2026-03-04T10:00:{second:02d}Z")
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20)
LETTERS = st.builds(
    Letter, ADDRESSES, ADDRESSES, TEXT, TEXT, TEXT, TIMES, st.binary(max_size=40), TEXT,
    st.none() | TEXT, st.dictionaries(TEXT, TEXT, max_size=2),
)  # fmt: skip


BASE64 = st.text("AZaz09+/=\n", min_size=1, max_size=100)


def signed(message_id: str, text: str) -> Signature:
    """Make a signature as ssh-keygen dresses it."""
    return Signature(message_id, f"-----BEGIN SSH SIGNATURE-----\n{text}\n-----END SSH SIGNATURE-----\n")


@settings(deadline=None)
@given(TEXT, BASE64)
def test_a_signature_reads_back(message_id: str, text: str) -> None:
    """It is a line of one form, like any other."""
    one = signed(message_id, text)
    assert lines.decode(one.line()) == one and one.line().count(b"\n") == 1


@settings(deadline=None)
@given(LETTERS)
def test_a_line_reads_back_byte_for_byte(letter: Letter) -> None:
    """A message is the same after its journey, whatever bytes its body is made of."""
    line = letter.line()
    assert line.endswith(b"\n") and b"\n" not in line[:-1]
    assert lines.decode(line) == letter
    assert json.loads(line)["id"] == letter.id


@settings(deadline=None)
@given(LETTERS, TEXT)
def test_an_edited_line_is_none(letter: Letter, other: str) -> None:
    """Nobody changes a message and keeps its id."""
    fields = json.loads(letter.line())
    if fields["subject"] == other:
        return
    fields["subject"] = other
    with pytest.raises(ValueError, match="not a line of mail"):
        lines.decode(json.dumps(fields, separators=(",", ":")).encode() + b"\n")


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]\n",
        b"{}\n",
        b"nul\n",
        b'{"read":1}\n',
        b"[" * 100000,
        b'{"body":"\xff"}\n',
        b'{"signed":"x","signature":"-n"}\n',
    ],
)
def test_a_foreign_line_is_refused(line: bytes) -> None:
    """Whatever stands in a ref, reading it ends in one kind of error."""
    with pytest.raises(ValueError, match="not a line of mail"):
        lines.decode(line)


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[bytes], list[tuple[int, bytes]], list[tuple[int, int]]]:
    letters = draw(st.lists(LETTERS, min_size=1, max_size=5))
    made = [one.line() for one in letters]
    marks = st.builds(
        lambda kind, letter, at: Mark(kind, letter.id, at, "b").line(),
        st.sampled_from([READ, UNREAD]), st.sampled_from(letters), TIMES,
    )  # fmt: skip
    made += draw(st.lists(marks, max_size=6))
    signatures = st.builds(lambda letter, text: signed(letter.id, text).line(), st.sampled_from(letters), BASE64)
    made += draw(st.lists(signatures, max_size=4))
    placed = [(draw(st.integers(0, 4)), line) for line in made]
    exchanges = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=15))
    return made, placed, exchanges


@settings(deadline=None)
@given(histories())
def test_any_order_of_exchange_ends_the_same(history: tuple[list[bytes], list, list]) -> None:
    """Five replicas that exchange in any order, and then with everybody, hold the same and say the same."""
    made, placed, exchanges = history
    replicas: list[frozenset[bytes]] = [frozenset()] * 5
    for at, line in placed:
        replicas[at] = lines.merge(replicas[at], [line])
    for one, other in exchanges:
        replicas[one] = replicas[other] = lines.merge(replicas[one], replicas[other])
    everything = lines.merge(*replicas)
    assert everything == lines.merge(*reversed(replicas)) == frozenset(made)
    assert lines.merge(everything, everything) == everything
    assert lines.state(sorted(everything)) == lines.state(sorted(everything, reverse=True))
    assert lines.state([*made, *reversed(made)]) == lines.state(made)


@settings(deadline=None)
@given(LETTERS)
def test_a_mark_and_its_message_meet_in_any_order(letter: Letter) -> None:
    """A tombstone counts whichever comes first, and a later revival takes it back."""
    read, again = (
        Mark(kind, letter.id, f"2026-03-04T11:00:0{n}Z", "b").line() for n, kind in enumerate((READ, UNREAD))
    )
    assert lines.state([read, letter.line()]).unread() == lines.state([letter.line(), read]).unread() == []
    assert lines.state([again, letter.line(), read]).unread() == [letter]


@settings(deadline=None)
@given(st.from_regex(r"[A-Za-z0-9.!#$%&'*+=?^_`{}~-]{1,30}@[a-z0-9.-]{1,20}(\.lock)?", fullmatch=True))
def test_an_address_is_one_safe_name(mailbox: str) -> None:
    """An address and its name in refs lead to each other; no other name is taken for one."""
    try:
        name = remotes.encode(mailbox)
    except ValueError:
        return
    assert remotes.decode(name) == mailbox.casefold()
    assert not set(name) & set(" ~^:?*[\\/") and ".." not in name and "@{" not in name and not name.endswith(".lock")


@pytest.mark.parametrize("name", ["x", "../x", "a%40b", "A@b", "a@b%zz", "a@b.lock", "a@b/../c", "a@b%2Elock", "%61@b"])
def test_an_odd_name_is_no_address(name: str) -> None:
    """A ref whose name is not the one form of an address is not ours."""
    with pytest.raises(ValueError, match="not the name of an address"):
        remotes.decode(name)
