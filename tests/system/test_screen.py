"""The mail page over HTTP: what it shows, who may look, and that looking changes nothing."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from screens import Served, served
from support import LAB, POSTMASTER, Box, letter, tree

pytest.importorskip("starlette")
pytest.importorskip("nh3")

ODD = "odd/flow ?&#"
EVIL = "<script>document.title='owned'</script>"


@pytest.fixture
def office(lab: Box) -> Box:
    """An office with a flow of three: one read, one unread, one dead; and odd mail."""
    lab.drop("a.md", letter(subject="first thing", body="# Hello\n\n*all* of you\n"))
    lab.drop("b.md", letter(subject="second thing", body=f"{EVIL} ![pic](http://evil.example/x.png)\n"))
    lab.drop("c.md", letter(to="nobody@lab.internal", subject="lost thing"))
    lab.drop(
        "d.md",
        letter(subject=f'"{EVIL} \\u202Eevil\\u202C \\e[31m"', correlation_id=ODD, body="x [y](javascript:z)"),
    )
    lab.run("route")
    name = lab.unread("lab.builder")[0].name
    lab.run("ack", "lab.builder", name)
    return lab


@pytest.fixture
def page(office: Box) -> Iterator[Served]:
    """The page of that office."""
    with served(office) as there:
        yield there


def test_three_panes(page: Served, office: Box) -> None:
    """The mailboxes, the mail of one, a message with its flow: each at an address of its own."""
    home = page.get("/").text
    for agent in ("lab.builder", "lab.conductor", "lab.checker"):
        assert agent in home
    listed = page.get("/box/lab.builder").text
    assert listed.index("second thing") < listed.index("first thing") or "first thing" in listed
    mail = next(one for one in office.read("lab.builder"))
    opened = page.get(f"/box/lab.builder/{mail.name}").text
    assert '<p class="heading">Hello</p>' in opened
    assert "<em>all</em>" in opened
    thread = opened[opened.index('class="thread"') :]
    assert [int(n) for n in re.findall(r"<b>#(\d+)</b>", thread)] == [1, 2, 3]
    assert re.findall(r'<b class="state \w+">([^<]+)</b>', thread) == ["read", "unread", "dead letter"]
    assert "unknown-recipient" in thread


def test_search_and_pages(lab: Box) -> None:
    """A list has pages of fifty; a search looks through all of them."""
    for number in range(120):
        lab.drop(f"{number}.md", letter(subject=f"job number {number:03d}", body=f"{number}\n"))
    lab.run("route")
    with served(lab) as page:
        assert page.get("/box/lab.builder").text.count('class="row ') == 50
        last = page.get("/box/lab.builder?page=3").text
        assert last.count('class="row ') == 20
        assert "120 of 120" in last
        found = page.get("/box/lab.builder?q=NUMBER+017").text
        assert found.count('class="row ') == 1
        assert "job number 017" in found
        assert "Nothing matches" in page.get("/box/lab.builder?q=zebra").text
        assert page.get("/box/lab.builder?page=999999999&q=" + "x" * 5000).status == 200


def test_dead_letters_flows_map(page: Served) -> None:
    """Dead letters by reason with the remedy, flows, the map with counts and dangling edges, a timeline."""
    assert "unknown-recipient" in page.get("/").text
    assert "c.md" in page.get("/dead?reason=unknown-recipient").text
    assert "Empty" in page.get("/dead?reason=duplicate").text
    dead = page.get("/dead/c.md").text
    assert "What to do" in dead
    assert "run-1" in page.get("/flows").text
    assert page.get("/flow?name=" + quote("odd/flow ?&#")).status == 200
    edges = json.loads(page.get("/map.json").text)["edges"]
    assert [(edge["from"], edge["agent"], edge["count"]) for edge in edges] == [("lab.conductor", "lab.builder", 3)]
    drawn = json.loads(page.get("/flow.json?name=run-1").text)
    assert [one["state"] for one in drawn["messages"]] == ["read", "unread", "dead"]


@pytest.mark.parametrize(
    "path",
    [
        "/box/nobody",
        "/box/lab.builder/nothing.md",
        "/box/lab.builder/..%2f..%2f..%2fagent-registry.yml",
        "/box/..%2f..%2fetc/passwd",
        "/dead/..%2fagent-registry.yml",
        "/outbox/../agent-registry.yml",
        "/outbox/%2e%2e/agent-registry.yml",
        "/static/..%2fserver.py",
        "/static/%2e%2e/server.py",
        "/dead/%00",
        "/flow?name=none",
        "/nowhere",
    ],
)
def test_no_way_out(page: Served, path: str) -> None:
    """An address leads to mail of the office or to nothing: 404, and no file of another place."""
    answer = page.get(path)
    assert answer.status == 404
    assert "plugin: lab" not in answer.text
    assert "root:" not in answer.text


def test_links_in_a_mailbox_are_not_followed(office: Box) -> None:
    """A symbolic link or a pipe in a mailbox, the outbox or dead-letter/ is named and never opened."""
    secret = office.world / "secret.txt"
    secret.write_text("---\nto: x\n---\nTOP SECRET\n")
    for folder in ("inboxes/lab.builder/unread", "outbox", "dead-letter"):
        os.symlink(secret, office.root / folder / "link.md")
        os.mkfifo(office.root / folder / "pipe.md")
    with served(office) as page:
        for place in ("/box/lab.builder", "/outbox", "/dead"):
            assert "link.md" in page.get(place).text
            for name in ("link.md", "pipe.md"):
                answer = page.get(f"{place}/{name}")
                assert "TOP SECRET" not in answer.text
                assert answer.status == 404


def test_looking_changes_nothing(office: Box, page: Served) -> None:
    """Every page is opened, following every link: not one byte of the office changes, and nothing was read."""
    before = tree(office.root)
    stamps = {path: os.lstat(office.root / path).st_mtime_ns for path in before}
    todo, done = ["/"], set()
    while todo:
        path = todo.pop()
        if path in done or not path.startswith("/"):
            continue
        done.add(path)
        answer = page.get(path)
        assert answer.status in (200, 404), path
        todo += [href.replace("&amp;", "&") for href in re.findall(r'(?:href|data-source)="([^"#]+)"', answer.text)]
    assert len(done) > 20
    assert tree(office.root) == before
    assert {path: os.lstat(office.root / path).st_mtime_ns for path in before} == stamps
    assert "seen by you" in page.get("/box/lab.builder").text
    assert len(office.unread("lab.builder")) == 2


def test_seen_is_kept_with_the_person(office: Box) -> None:
    """What was opened is known to the next page, in the person's own account; a fetch ahead or a HEAD marks nothing."""
    name = office.unread("lab.builder")[0].name
    address = f"/box/lab.builder/{name}"
    with served(office) as page:
        page.get(address, {"Sec-Purpose": "prefetch"})
        page.get(address, method="HEAD")
        assert "seen by you" not in page.get("/box/lab.builder").text
        page.get(address)
    with served(office) as page:
        assert page.get("/box/lab.builder").text.count("seen by you") == 1


def test_door(page: Served) -> None:
    """Another Host (DNS rebinding) and every method but looking are refused; every answer has the browser's rules."""
    for host in (
        "evil.example",
        "evil.example:8025",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "10.0.0.1",
    ):
        assert page.get("/", {"Host": host}).status in (400, 421), host
    for host in ("localhost", "LOCALHOST:9", "127.0.0.1:1", "[::1]:80"):
        assert page.get("/", {"Host": host}).status == 200, host
    for method in ("POST", "PUT", "DELETE", "OPTIONS", "TRACE"):
        assert page.get("/", method=method).status == 405
    for path in ("/", "/static/screen.css", "/map.json", "/nowhere"):
        answer = page.get(path)
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    html = page.get("/").text
    assert not re.search(r"<script(?![^>]*\bsrc=)|\son\w+=|style=|javascript:", html)


def test_markup_of_a_message_is_text(page: Served, office: Box) -> None:
    """HTML, images, script links, bidi and control characters of a message are shown, and do nothing."""
    for mail in office.unread("lab.builder"):
        html = page.get(f"/box/lab.builder/{mail.name}").text
        assert "<script>document" not in html
        assert "<img" not in html
        assert "javascript:z" not in re.findall(r'href="([^"]*)"', html)
        assert not re.search("[\u202a-\u202e\u2066-\u2069\x1b]", html)
    assert "\\u202eevil" in page.get("/box/lab.builder").text


def test_token(office: Box) -> None:
    """With --token nothing is shown without it; it is printed once, and its cookie opens the page."""
    with served(office, "--token") as page:
        secret = page.address.partition("?token=")[2]
        assert len(secret) >= 40
        for path in ("/", "/static/screen.css", "/events", "/?token=wrong", f"/?token={secret[:-1]}", "/?token="):
            answer = page.get(path)
            assert answer.status == 401, path
            assert "lab.builder" not in answer.text
        came = page.get(f"/box/lab.builder?q=a&token={secret}")
        assert came.status == 303
        assert came.headers["location"] == "/box/lab.builder?q=a"
        cookie = came.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=Strict" in cookie
        assert secret not in cookie
        assert page.get("/", {"Cookie": cookie.partition(";")[0]}).status == 200
        assert page.get("/", {"Cookie": "postmaster-screen=wrong"}).status == 401
        assert page.get(f"//evil.example/?token={secret}").headers["location"].startswith("/evil.example")


def test_other_hosts_need_a_token(office: Box) -> None:
    """Without --token only this machine is served."""
    done = office.run("screen", "--host", "0.0.0.0", "--port", "0")
    assert done.returncode == 64
    assert "--token" in done.stderr


def test_taken_port(office: Box, page: Served) -> None:
    """A port that another has is said in one line, with exit code 73."""
    done = office.run("screen", "--port", str(page.port))
    assert done.returncode == 73
    assert "--port" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_office(box: Box, tmp_path: Path) -> None:
    """No office: exit code 78, and what to do."""
    done = subprocess.run(
        [*POSTMASTER, "--root", str(tmp_path / "none"), "screen"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 78


def test_news(office: Box) -> None:
    """Sent, read and moved mail makes an event within a second or two; an office at rest makes none."""
    with served(office) as page, urllib.request.urlopen(page.base + "/events", timeout=10) as stream:
        assert stream.readline() == b"event: mail\n"
        stream.readline(), stream.readline()
        version = page.get("/version").text
        time.sleep(1.2)
        assert page.get("/version").text == version
        start = time.monotonic()
        office.drop("new.md", letter(subject="news", body="news\n"))
        office.run("route")
        assert stream.readline() == b"event: mail\n"
        assert time.monotonic() - start < 5
        assert "news" in page.get("/box/lab.builder").text
        assert page.get("/version").text != version


def test_instances_and_archives(box: Box) -> None:
    """A live instance appears; once archived, it stands last with its returned mail. A broken registry is told of."""
    extra = """\
  - id: lab.team
    address: team@lab.internal
    instances: {max: 3}
    accepts:
      - type: job.*
    accepts_from: ['*']
"""
    box.declare("lab", LAB + extra)
    box.merge()
    box.run("register", "lab.team", "--name", "alice")
    with served(box) as page:
        assert "alice@lab.internal" in page.get("/").text
        box.drop("x.md", letter(to="alice@lab.internal", body="for alice\n"))
        box.run("route")
        box.run("archive", "alice")
        home = page.get("/").text
        assert home.index("Archived") < home.index("alice@lab.internal")
        assert "1 returned" in home
        assert "returned" in page.get("/flow?name=run-1").text
        (box.root / "agent-registry.yml").write_text("nonsense: [")
        time.sleep(0.1)
        assert page.get("/").status == 200
        assert 'role="alert"' in page.get("/").text


def test_turns(box: Box) -> None:
    """Who takes turns is busy, idle or paused; a flow tells of the turns, and of the dead letter of the last."""
    go = box.world / "scratch" / "go"
    crew = f"""\
  - id: lab.cat
    address: cat@lab.internal
    run: [/bin/sh, -c, "while [ ! -e {go} ]; do sleep 0.05; done; exit 3"]
    max_attempts: 1
    accepts:
      - type: job.*
    accepts_from: ['*']
"""
    box.declare("lab", LAB + crew)
    box.merge()
    with served(box) as page:

        def state() -> str:
            home = page.get("/").text
            row = re.sub("<[^>]*>", " ", home[home.index("cat@lab.internal") :].split("</li>")[0])
            return row.split("\u00b7")[-1].strip()

        assert state() == "idle"
        box.drop("x.md", letter(to="cat@lab.internal", subject="purr"))
        box.run("route")
        with subprocess.Popen([*POSTMASTER, "--root", box.root, "wake"]) as turn:
            end = time.monotonic() + 20
            while state() != "busy":
                assert time.monotonic() < end
                time.sleep(0.05)
            go.touch()
            assert turn.wait(20) == 0
        box.run("pause", "lab.cat")
        assert state() == "paused"
        flow = page.get("/flow?name=run-1").text
        thread = flow[flow.index('class="thread"') :]
        assert re.findall(r"<b>#(\d+)</b>", thread) == ["1"]
        assert re.findall(r'<b class="state \w+">([^<]+)</b>', thread) == ["dead letter"]
        assert thread.count("turn-started") == 1 and "exit 3" in thread
        [letter_page] = re.findall(r'href="(/dead[^"]+)"', thread)
        assert "exit 3" in page.get(letter_page.replace("&amp;", "&")).text


def test_ended_by_sigterm(office: Box) -> None:
    """SIGTERM and Ctrl-C end it within seconds, also with a page that listens; no traceback."""
    for number in (signal.SIGTERM, signal.SIGINT):
        with served(office) as page, urllib.request.urlopen(page.base + "/events", timeout=10) as stream:
            stream.readline()
            page.process.send_signal(number)
            assert page.process.wait(10) == (130 if number == signal.SIGINT else 0)
            assert "Traceback" not in page.errors()


def test_without_the_extra(office: Box) -> None:
    """Where the extra is not installed, that is said, with what to install: exit code 69."""
    hidden = "import sys; sys.modules['nh3'] = None; from postmaster.cli import main; main()"
    command = [sys.executable, "-c", hidden, "--root", str(office.root), "screen", "--port", "0"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == 69
    assert "nh3" in done.stderr
    assert "pip install '.[screen]'" in done.stderr
