"""The public Python API: the page is true, the types hold, and the commands do not pay for it."""

import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from support import Box

import postmaster
from postmaster import api

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs" / "api.md"


def example() -> str:
    """Return the code of the page: its blocks, one after the other, are one program."""
    return "\n".join(re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.M | re.S))


def python(code: str, *options: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *options, "-c", code],
        env={"PATH": "/usr/bin:/bin", "HOME": str(folder), "TMPDIR": str(folder)},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_the_page(tmp_path: Path) -> None:
    """The code of docs/api.md runs as it stands, says nothing, and every assertion in it holds."""
    done = python(example(), "-W", "error", folder=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    office = next(tmp_path.glob("*/office"))
    checked = subprocess.run(
        [sys.executable, "-m", "postmaster", "--root", str(office), "verify"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout


def strictly_typed(program: Path) -> subprocess.CompletedProcess[str]:
    """Ask mypy what it thinks of a program, as its author would."""
    place = program.parent
    words = ["--strict", "--config-file=", "--cache-dir", str(place / "cache"), str(program)]
    command = [sys.executable, "-m", "mypy", *words]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=200, check=False)


def test_the_page_is_typed(tmp_path: Path) -> None:
    """`mypy --strict` takes the code of the page, and finds what is wrong in code that misuses it."""
    pytest.importorskip("mypy")
    right, wrong = tmp_path / "right.py", tmp_path / "wrong.py"
    right.write_text(example())
    wrong.write_text("from postmaster import Office\n\nOffice().inbox(7)\nOffice().inbox('a')[0].sender + 'x'\n")
    done = strictly_typed(right)
    assert done.returncode == 0, done.stdout + done.stderr
    done = strictly_typed(wrong)
    assert "wrong.py:3" in done.stdout and "wrong.py:4" in done.stdout, done.stdout


def test_the_table_names_all_there_is() -> None:
    """Every public method and every field of what they give is in the page's table; every error in that of errors."""
    table = PAGE.read_text("utf-8").split("## All of it", 1)[1]
    methods = [name for name in vars(api.Office) if not name.startswith("_") and name != "root"]
    for name in methods:
        assert re.search(rf"`(?:Office\.)?{name}\(", table), name
    for kind in (api.Merged, api.Agent, api.Sent, api.Routed, api.Mail):
        for field in kind.__dataclass_fields__:
            assert f"`{field}`" in table, f"{kind.__name__}.{field}"
    for name in postmaster.__all__:
        assert name in PAGE.read_text("utf-8") or name == "Accept", name
        assert getattr(postmaster, name) is getattr(api, name)
    assert sorted(postmaster.__all__) == sorted(api.__all__)
    assert set(postmaster.__all__) <= set(dir(postmaster))
    with pytest.raises(AttributeError, match="no attribute 'Ofice'"):
        postmaster.Ofice  # noqa: B018


def test_commands_do_not_pay_for_it(tmp_path: Path) -> None:
    """`import postmaster` loads nothing but itself, and an idle run loads no more than it did."""
    loaded = "print(sorted(name for name in set(sys.modules) - before if not name.startswith('encodings')))"
    done = python(f"import sys; before = set(sys.modules); import postmaster; {loaded}", "-I", folder=tmp_path)
    assert done.stdout == "['postmaster']\n"


def test_faults(lab: Box) -> None:
    """No office, a broken registry, unknown names, what the disk refuses: each is one of the package's errors."""
    office = api.Office(lab.root)
    with pytest.raises(api.ConfigurationFault, match="does not exist"):
        api.Office(lab.root / "nowhere")
    with pytest.raises(api.BadData, match="did you mean"):
        office.agent("lab.bilder")
    for call in (
        lambda: office.send("", sender="a@b", to=[], type="t", subject="s"),
        lambda: office.send("", sender="a@b", to="c@d", type="t", subject="s", header={"id": "7"}),
        lambda: office.send("", sender="a@b", to="c@d", type="t", subject="s", header={"a=b": "7"}),
    ):
        with pytest.raises(api.UsageProblem):
            call()
    lab.declare("broken", "agents: [{id: a}]\n")
    with pytest.raises(api.ConfigurationFault, match=r"broken.yml:1"):
        office.merge()
    (lab.root / "outbox").rmdir()
    (lab.root / "outbox").touch()
    with pytest.raises((api.CannotCreate, api.ConfigurationFault, api.DiskFault)):
        office.send("x", sender="conductor@lab.internal", to="builder@lab.internal", type="job.run", subject="s")


def test_what_cannot_be_meant(lab: Box) -> None:
    """Values of a wrong type, and text that is not UTF-8, are the package's errors; nothing is sent."""
    office: Any = api.Office(lab.root)
    right = {"sender": "conductor@lab.internal", "to": "builder@lab.internal", "type": "job.run", "subject": "s"}
    office.send("x", **right)
    office.route()
    (mail,) = office.inbox("lab.builder")
    wrong: list[tuple[str, Any]] = [
        ("subject", 5),
        ("sent_at", datetime.now(UTC)),
        ("sender", mail),
        ("to", 5),
        ("to", b"x"),
        ("to", None),
        ("correlation_id", 7),
        ("in_reply_to", mail),
        ("header", ["a"]),
        ("header", {"a": 1}),
        ("header", {1: "a"}),
    ]
    for key, value in wrong:
        with pytest.raises(api.UsageProblem, match=f"`{key}.*` must be .*, not "):
            office.send("x", **(right | {key: value}))
    for key in ("subject", "sender", "to", "type", "correlation_id", "in_reply_to", "sent_at"):
        with pytest.raises(api.BadData):
            office.send("x", **(right | {key: "a\ud800"}))
    for body, fault in (("\udc80", api.BadData), (5, api.UsageProblem), (None, api.UsageProblem)):
        with pytest.raises(fault, match="`body`"):
            office.send(body, **right)
        with pytest.raises(fault, match="`body`"):
            office.reply("lab.builder", mail, body, type="job.done")
    calls = (
        lambda: office.agent(5),
        lambda: office.inbox(mail),
        lambda: office.read("lab.builder", 5),
        lambda: office.ack("lab.builder", None),
        lambda: office.wait("lab.builder", "5"),
        lambda: office.log(agent=5),
        lambda: api.Office(""),
        lambda: office.init(""),
        lambda: office.init(5),
        lambda: api.Office(b"/srv"),
    )
    for call in calls:
        with pytest.raises(api.UsageProblem):
            call()
    assert os.listdir(lab.root / "outbox") == []
    assert list(office.log(agent="nobody", action="flown")) == []


def test_values_stand_for_their_names(lab: Box) -> None:
    """An Agent will do for a name or an address, a Mail for a message; both can be hashed."""
    office = api.Office(lab.root)
    conductor, builder = office.agent("conductor@lab.internal"), office.agent("lab.builder")
    office.send("x", sender=conductor, to=[builder], type="job.run", subject="s")
    office.route()
    (mail,) = office.inbox(builder)
    message = office.read(builder, mail)
    assert len({mail, message, builder, conductor, mail}) == 4
    office.ack(builder, message)
    office.unread(office.agent(builder), mail)
    assert [line["action"] for line in office.log(agent=builder)] == ["delivered", "read", "unread"]


def test_an_office_that_vanished(lab: Box) -> None:
    """Every method says so, at once; none makes it anew."""
    office = api.Office(lab.root)
    lab.root.rename(lab.root.with_name("moved"))
    right = {"sender": "conductor@lab.internal", "to": "builder@lab.internal", "type": "job.run", "subject": "s"}
    calls: list[Callable[[], object]] = [
        office.merge,
        office.agents,
        office.route,
        office.log,
        lambda: office.agent("lab.builder"),
        lambda: office.send("x", **right),
        lambda: office.reply("lab.builder", "abcd", "x"),
        lambda: office.inbox("lab.builder"),
        lambda: office.wait("lab.builder", 0),
        lambda: office.read("lab.builder", "abcd"),
        lambda: office.ack("lab.builder", "abcd"),
        lambda: office.unread("lab.builder", "abcd"),
    ]
    for call in calls:
        with pytest.raises(api.ConfigurationFault, match="does not exist"):
            call()
    assert not lab.root.exists()


def test_what_lies_in_a_mailbox(lab: Box) -> None:
    """Links and broken files are listed with their problem, and not read; bytes come back as they were sent."""
    office = api.Office(lab.root)
    body = bytes(range(256)) * 3
    office.send(body, sender="conductor@lab.internal", to="builder@lab.internal", type="job.run", subject="s: 'x'")
    office.route()
    (lab.inbox("lab.builder") / "unread" / "link.md").symlink_to("/etc/passwd")
    (lab.inbox("lab.builder") / "unread" / "torn.md").write_text("---\nto: [")
    by_file = {mail.file: mail for mail in office.inbox("builder@lab.internal")}
    assert "not a message" in str(by_file.pop("link.md").problem) and by_file.pop("torn.md").problem
    (mail,) = by_file.values()
    assert (mail.problem, mail.subject, mail.to) == (None, "s: 'x'", ("builder@lab.internal",))
    assert office.read("lab.builder", str(mail.id)[:8]).body == body
    for name in ("link.md", "torn.md", "../../x"):
        with pytest.raises(api.BadData):
            office.read("lab.builder", name)
    office.ack("lab.builder", mail.file)
    office.ack("lab.builder", mail.file)
    assert [one.folder for one in office.inbox("lab.builder", every=True) if one.problem is None] == ["read"]
    office.unread("lab.builder", mail.file)
    assert [line["action"] for line in office.log(id=str(mail.id)[:6])] == ["delivered", "read", "unread"]
    assert [line["action"] for line in office.log(agent="mason@lab.internal", action="read")] == ["read"]


def test_from_several_threads(lab: Box) -> None:
    """One office used by many threads at once: every message arrives once, numbered without gap or repeat."""
    office = api.Office(lab.root)
    faults: list[BaseException] = []

    def work(number: int) -> None:
        try:
            for turn in range(5):
                office.send(
                    f"{number} {turn}",
                    sender="conductor@lab.internal",
                    to="builder@lab.internal",
                    type="job.run",
                    subject="s",
                    correlation_id="run-1",
                )
                office.route(wait=turn % 2 == 0)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(60)
    assert faults == []
    office.route()
    assert sorted(mail.sequence or 0 for mail in office.inbox("lab.builder")) == list(range(1, 21))
