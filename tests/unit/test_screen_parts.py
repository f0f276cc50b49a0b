"""The page's pure parts: rendering of bodies, states of a flow, the door."""

import re

import pytest

pytest.importorskip("nh3")
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster.screen import bodies, flow
from postmaster.screen.guard import Door, is_loopback

PIECES = st.sampled_from(
    [
        "<script>",
        "</p>",
        "[a](",
        "javascript:",
        "x)",
        "![",
        "](//e)",
        "`",
        "\n\n",
        "# ",
        "|a|\n|-|\n",
        '"',
        "'",
        "&#106;",
        "<!--",
    ]
)
TEXT = st.lists(st.one_of(PIECES, st.text(max_size=8)), max_size=30).map("".join)
ALLOWED = re.compile(
    r"</?(blockquote|br|code|del|em|hr|li|ol|pre|s|strong|table|tbody|td|th|thead|tr|ul|p)>"
    r'|<p class="heading">|</a>'
    r'|<a( href="(?i:https?|mailto):[^"<>]*")?( title="[^"<>]*")? rel="noopener noreferrer nofollow">'
)


@settings(max_examples=150, deadline=None)
@given(TEXT)
def test_a_body_has_only_harmless_markup(text: str) -> None:
    """Whatever a body holds, its HTML has a few elements without attributes, and links that lead outside."""
    html = str(bodies.as_markdown(text))
    assert "<" not in ALLOWED.sub("", html), html
    hidden = [c for c in html if not c.isprintable() and c not in "\n\t\u00a0\u202f\u3000"]
    assert hidden == []


@settings(max_examples=100, deadline=None)
@given(st.text(max_size=200))
def test_text_is_escaped(text: str) -> None:
    """As written, no character of a body is markup, or moves anything."""
    shown = str(bodies.as_text(text))
    assert not set("<>\"'") & set(shown)
    assert all(c.isprintable() or c in "\n\t\u00a0\u202f\u3000" for c in shown)


def test_rendering_is_quick_whatever_the_body() -> None:
    """The worst bodies that are rendered at all take a bounded time."""
    import time

    for piece in ("[", "*a ", "`", "> ", "- ", "![", "<a ", "|", "_", "\\", "&", "a](", "1. ", "#"):
        start = time.process_time()
        bodies.as_markdown((piece * bodies.MOST_MARKDOWN)[: bodies.MOST_MARKDOWN])
        assert time.process_time() - start < 5, piece


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.1", "::1", "localhost"])
def test_loopback(host: str) -> None:
    """These are reached from this machine alone."""
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "localhost.example.org"])
def test_no_loopback(host: str) -> None:
    """These are not."""
    assert not is_loopback(host)


def test_the_door_of_another_host() -> None:
    """Served to the network: its own name and addresses in numbers; no name that somebody may have pointed here."""
    door = Door("office.example", "secret")
    assert all(
        map(door.admits_host, ["office.example", "OFFICE.example:80", "10.0.0.7:8025", "[fe80::1]:8025", "localhost"])
    )
    assert not any(map(door.admits_host, ["evil.example", "", "office.example.evil", "[", "10.0.0.7.evil"]))
    assert door.admits_token("secret")
    assert not door.admits_token("Secret")
    assert door.admits_cookie(f"a=b; postmaster-screen={door.proof()}")
    assert not door.admits_cookie("postmaster-screen=secret")
    assert not Door("localhost").admits_token("")


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0 ms"), (0.8504, "850 ms"), (12.9, "12 s"), (185, "3 min 5 s"), (7800, "2 h 10 min"), (273600, "3 d 4 h")],
)
def test_durations(seconds: float, shown: str) -> None:
    """A wait in the two largest units that it has."""
    assert flow.duration(seconds) == shown


def test_states_follow_the_log_and_the_disk() -> None:
    """Delivered, told of, read; read again as unread; moved by hand; returned."""
    base = {"sequence": 1, "correlation_id": "c", "agent": "a", "to": "a@x", "file": "f"}
    path = "inboxes/a/unread/n.md"

    def line(action: str, second: int, **more: object) -> dict[str, object]:
        return {"time": f"2026-01-01T00:00:{second:02d}.000000Z", "action": action, "path": path, **base, **more}

    def state(*lines: dict[str, object], told: int | None = None, folder: str | None = "unread") -> str:
        nudges = [] if told is None else [line("nudged", told)]
        (step,) = flow.thread(list(lines), lambda agent, name: nudges)
        (copy,) = step.copies
        flow.settle(copy, folder)
        return copy.state

    delivered = line("delivered", 1)
    assert state(delivered) == "unread"
    assert state(delivered, told=2) == "nudged"
    assert state(delivered, folder="read") == "read"
    assert state(delivered, line("read", 3, path="inboxes/a/read/n.md"), told=2, folder="read") == "read"
    assert state(delivered, folder=None) == "gone from the mailbox"
    about = {"sequence": None, "in_reply_to": "i"}
    returned = {key: value for key, value in line("returned", 4, **about).items() if value is not None}
    assert state(delivered, returned) == "returned"
