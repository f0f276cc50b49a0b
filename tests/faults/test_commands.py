"""Kill `send`, `ack`, `dead-letter retry`, `registry merge`, `register`, `archive`, `nudge` and `rule --write` at every
call; let each fail. So, too, a run with drop folders, and one that bounces."""

import json
import os
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest

from faults.sweep import CHANGING, ERRORS, FALLIBLE, Point, assert_civil, collect, optional, points, sample
from faults.warm import Done, Warm

Record = Callable[[str, object], None]

_ACCEPT = "accepts: [{type: job.run, accepts_from: ['*']}]"
_DECLARATION = f"agents: [{{id: lab.one, address: one@lab.internal, {_ACCEPT}}}]\n"
_LARGER = (
    f"agents: [{{id: lab.one, address: one@lab.internal, {_ACCEPT}}}, "
    f"{{id: lab.two, address: two@lab.internal, {_ACCEPT}}}]\n"
)
_BODY = b"the only copy there is\n"
_LETTER = (
    b"---\nto: one@lab.internal\nfrom: sender@lab.internal\ntype: job.run\nsubject: only one\n"
    b"correlation_id: run-1\nsent_at: 2026-03-04T10:00:00Z\n---\n" + _BODY
)


@dataclass
class Desk:
    """A small office, and how it is run."""

    root: Path
    warm: Warm

    def run(self, *arguments: str, strace: tuple[str, ...] = ()) -> Done:
        """Run a command."""
        return self.warm.run("--root", str(self.root), *arguments, strace=strace)

    def do(self, *arguments: str) -> None:
        """Run a command that must succeed."""
        done = self.run(*arguments)
        assert done.code == 0, (arguments, done.code, done.err)

    def holding(self, content: bytes) -> list[str]:
        """Return the visible files that hold these bytes, by their paths in the office."""
        found = []
        for folder, _, names in os.walk(self.root):
            for name in names:
                path = Path(folder, name)
                shown = str(path.relative_to(self.root))
                mail = shown.startswith(("outbox/", "inboxes/", "dead-letter/")) and "/tmp/" not in shown
                if mail and not name.startswith(".") and content in path.read_bytes():
                    found.append(shown)
        return sorted(found)


class Case:
    """One command, how its office is made, what is always true of it, and what is true at the end."""

    arguments: tuple[str, ...] = ()

    def make(self, desk: Desk) -> None:
        """Make the office."""

    def holds(self, desk: Desk) -> None:
        """Assert what is true at every moment."""

    def again(self, desk: Desk) -> None:
        """Do what a person would do after the fault, and assert that all is well then."""


class Send(Case):
    """A letter is in the outbox, whole, or is not."""

    arguments = (
        *("send", "--to", "one@lab.internal", "--from", "sender@lab.internal", "--type", "job.run"),
        *("--subject", "only one", "--correlation", "run-1", "--body", _BODY.decode()),
    )

    def holds(self, desk: Desk) -> None:
        sent = desk.holding(b"")
        assert len(sent) <= 1 and sent == desk.holding(_BODY), sent

    def again(self, desk: Desk) -> None:
        sent = desk.holding(_BODY)
        desk.do("route")
        there = desk.holding(_BODY)
        assert len(there) == len(sent) and all(name.startswith("inboxes/lab.one/unread/") for name in there), there
        desk.do(*self.arguments, "--now")
        assert len(desk.holding(_BODY)) == len(sent) + 1


class Ack(Case):
    """A message is unread or read, never both, never neither."""

    arguments = ("ack", "lab.one")

    def make(self, desk: Desk) -> None:
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER)
        desk.do("route")
        (name,) = os.listdir(desk.root / "inboxes/lab.one/unread")
        self.arguments = ("ack", "lab.one", name)

    def holds(self, desk: Desk) -> None:
        there = desk.holding(_BODY)
        assert len(there) == 1 and there[0].startswith("inboxes/lab.one/"), there

    def again(self, desk: Desk) -> None:
        assert_civil(desk.run(*self.arguments))
        self.holds(desk)
        assert desk.holding(_BODY)[0].startswith("inboxes/lab.one/read/")


class Retry(Case):
    """A dead letter is dead or in the outbox; it reaches its recipient once, with the number that it had."""

    arguments = ("dead-letter", "retry", "letter.md")

    def make(self, desk: Desk) -> None:
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER.replace(b"one@", b"two@"))
        desk.do("route")
        assert desk.holding(_BODY) == ["dead-letter/letter.md"]
        (desk.root / "registry.d" / "lab.yml").write_text(_LARGER)
        desk.do("registry", "merge")

    def holds(self, desk: Desk) -> None:
        there = desk.holding(_BODY)
        assert len(there) == 1 and there[0].startswith(("dead-letter/", "outbox/")), there

    def again(self, desk: Desk) -> None:
        desk.do("dead-letter", "retry", "--all")
        desk.do("route")
        (there,) = desk.holding(_BODY)
        assert there.startswith("inboxes/lab.two/unread/20260304T100000Z-000001-"), there
        assert os.listdir(desk.root / "dead-letter") == []
        log = (desk.root / "logs/delivery-log.jsonl").read_text()
        assert log.count('"action":"delivered"') == 1 and log.count('"action":"dead-letter"') == 1, log


class Merge(Case):
    """The registry is the old one or the new one, and mail is routed by either."""

    arguments = ("registry", "merge")

    def make(self, desk: Desk) -> None:
        self._old = (desk.root / "agent-registry.yml").read_bytes()
        (desk.root / "registry.d" / "lab.yml").write_text(_LARGER)

    def holds(self, desk: Desk) -> None:
        registry = (desk.root / "agent-registry.yml").read_bytes()
        whole = re.search(rb"\n# end of registry: 2 agents, md5 [0-9a-f]{32}\n$", registry) is not None
        assert registry == self._old or (whole and b"lab.two" in registry), "the registry is neither old nor new"

    def again(self, desk: Desk) -> None:
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER)
        desk.do("route")
        desk.do("registry", "merge")
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER.replace(b"one@", b"two@"))
        desk.do("route")
        assert [name.split("/")[1] for name in desk.holding(_BODY)] == ["lab.one", "lab.two"]
        assert not [name for name in os.listdir(desk.root) if name.endswith(".tmp")]


_CLASS = _DECLARATION.replace("accepts:", "instances: many, accepts:")


class Register(Case):
    """A name is claimed, with a mailbox, or free; in the end the log tells once of everyone alive."""

    arguments = ("register", "lab.one", "--name", "alice")

    def make(self, desk: Desk) -> None:
        (desk.root / "registry.d" / "lab.yml").write_text(_CLASS)
        desk.do("registry", "merge")

    def holds(self, desk: Desk) -> None:
        claim = desk.root / "directory/live/alice.json"
        if claim.exists():
            assert claim.read_bytes().endswith(b"}\n")
            assert sorted(os.listdir(desk.root / "inboxes/lab.one+alice")) == ["read", "tmp", "unread"]

    def again(self, desk: Desk) -> None:
        claimed = (desk.root / "directory/live/alice.json").exists()
        assert desk.run(*self.arguments).code == (65 if claimed else 0)
        assert _told(desk) == ["registered lab.one+alice"]
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER.replace(b"one@", b"alice@"))
        desk.do("route")
        (there,) = desk.holding(_BODY)
        assert there.startswith("inboxes/lab.one+alice/unread/"), there
        assert _listed(desk) == ["live", "live/alice.json"]
        desk.do("verify")


_REPORT = b"X-Postmaster-Path: "
_CREW = (
    "agents: [{id: lab.one, address: one@lab.internal, instances: many, "
    + _ACCEPT
    + "}, {id: lab.sender, address: sender@lab.internal, "
    "accepts: [{type: postmaster.bounce, accepts_from: [postmaster@lab.internal]}]}]\n"
)


class Archive(Case):
    """An instance is alive, or archived with its mail where it was; in the end each message is returned once."""

    arguments = ("archive", "alice")

    def make(self, desk: Desk) -> None:
        (desk.root / "registry.d" / "lab.yml").write_text(_CREW)
        desk.do("registry", "merge")
        desk.do("register", "lab.one", "--name", "alice")
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER.replace(b"one@", b"alice@"))
        (desk.root / "outbox" / "second.md").write_bytes(
            _LETTER.replace(b"one@", b"alice@").replace(b"run-1", b"run-2")
        )
        desk.do("route")

    def holds(self, desk: Desk) -> None:
        files = ("live/alice.json", "archive/lab.one+alice.json")
        assert any((desk.root / "directory" / name).exists() for name in files)
        there, reports = _apart(desk)
        assert len(there) == 2 and all(name.startswith("inboxes/lab.one+alice/unread/") for name in there), there
        # from the outbox to the inbox a report may be in both for a moment, as any mail
        assert len([name for name in reports if name.startswith("outbox/")]) <= 2
        assert len([name for name in reports if name.startswith("inboxes/lab.sender/unread/")]) <= 2
        assert all(_whole(desk.root / name) for name in reports), reports

    def again(self, desk: Desk) -> None:
        assert_civil(desk.run(*self.arguments))
        desk.do("route", "--now")  # which has work to do even if the outbox is empty
        self.holds(desk)
        assert _told(desk) == ["registered lab.one+alice", "archived lab.one+alice"]
        assert _listed(desk) == ["archive", "archive/lab.one+alice.json"]
        reports = _apart(desk)[1]
        assert len(reports) == 2 and all(name.startswith("inboxes/lab.sender/unread/") for name in reports), reports
        told = [action for action in _actions(desk) if action != "deferred"]
        assert sorted(told) == ["archived", *["delivered"] * 4, "registered", "returned", "returned"]
        desk.do("register", "lab.one", "--name", "alice")
        assert _told(desk)[2:] == ["registered lab.one+alice+2"]
        desk.do("verify")


class Folders(Case):
    """A letter in a drop folder is there, delivered or dead; never in the outbox above, where nobody asks whose."""

    arguments = ("route",)
    _SENT: ClassVar = {"lab.one/a.md": b"first", "lab.one/b.md": b"to nobody", "lab.two/a.md": b"forged"}

    def make(self, desk: Desk) -> None:
        (desk.root / "registry.d" / "lab.yml").write_text(_LARGER)
        desk.do("registry", "merge")
        (desk.root / "post-office.yml").write_text("drop_folders: true\n")
        for name, body in self._SENT.items():
            to = b"three@" if b"nobody" in body else b"one@"
            (desk.root / "outbox" / name).parent.mkdir(exist_ok=True)
            text = _LETTER.replace(b"sender@", b"one@").replace(b"to: one@", b"to: " + to)
            (desk.root / "outbox" / name).write_bytes(text.replace(_BODY, body))

    def holds(self, desk: Desk) -> None:
        assert sorted(path.name for path in (desk.root / "outbox").iterdir()) == ["lab.one", "lab.two"]
        for body in self._SENT.values():
            assert desk.holding(body) or list((desk.root / "outbox").glob("*/.postmaster-taken")), body

    def again(self, desk: Desk) -> None:
        desk.do("route")
        dead = {name: (desk.root / "dead-letter" / name).read_bytes() for name in ("a.md", "b.md")}
        assert b"forged" in dead["a.md"] and b"to nobody" in dead["b.md"]
        ends = [name.split("/")[0] for body in self._SENT.values() for name in desk.holding(b"---\n" + body)]
        assert ends == ["inboxes", "dead-letter", "dead-letter"], ends
        assert [path.name for path in (desk.root / "outbox").rglob("*")] in (
            ["lab.one", "lab.two"],
            ["lab.two", "lab.one"],
        )
        lines = [json.loads(line) for line in (desk.root / "logs/delivery-log.jsonl").read_text().splitlines()]
        final = sorted((one["file"], one.get("reason", "")) for one in lines if one["action"] != "deferred")
        assert final == [
            ("lab.one/a.md", ""),
            ("lab.one/b.md", "unknown-recipient"),
            ("lab.two/a.md", "sender-not-authentic"),
        ], final
        desk.do("verify")


class Bounce(Case):
    """A refused letter waits or is dead, with one report in the end; who else is to have it has it once."""

    arguments = ("route",)

    def make(self, desk: Desk) -> None:
        (desk.root / "registry.d" / "lab.yml").write_text(_CREW)
        desk.do("registry", "merge")
        for name, to in (("a.md", b"two@lab.internal"), ("b.md", b"[one@lab.internal, two@lab.internal]")):
            raw = _LETTER.replace(b"one@lab.internal", to).replace(b"run-1", name.encode())
            (desk.root / "outbox" / name).write_bytes(raw)

    def holds(self, desk: Desk) -> None:
        letters, reports = _apart(desk)
        for name in ("a.md", "b.md"):
            assert {f"outbox/{name}", f"dead-letter/{name}"} & set(letters), letters
        assert len([name for name in letters if name.startswith("inboxes/lab.one/")]) <= 1, letters
        assert all(_whole(desk.root / name) for name in reports), reports
        told = [desk.root / name for name in reports if name.startswith("inboxes/lab.sender/unread/")]
        dead = [name for name in letters if name.startswith("dead-letter/")]
        assert len(told) <= len(dead) and len(reports) <= 2 * len(dead), (letters, reports)

    def again(self, desk: Desk) -> None:
        desk.do("route", "--now")
        self.holds(desk)
        letters, reports = _apart(desk)
        assert [name.rpartition("/")[0] for name in letters] == ["dead-letter", "dead-letter", "inboxes/lab.one/unread"]
        assert [name.rpartition("/")[0] for name in reports] == ["inboxes/lab.sender/unread"] * 2
        told = [action for action in _actions(desk) if action != "deferred"]
        assert sorted(told) == ["bounced", "bounced", "dead-letter", "dead-letter", *["delivered"] * 3]
        desk.do("verify")


def _apart(desk: Desk) -> tuple[list[str], list[str]]:
    """Return where the letters are, and where reports are."""
    reports = desk.holding(_REPORT)
    return [name for name in desk.holding(_BODY) if name not in reports and not name.endswith(".yml")], reports


def _whole(path: Path) -> bool:
    """Tell whether a report has all of a message attached."""
    body = path.read_bytes()
    found = re.search(rb"(?m)^Original-Message: (\d+) bytes, md5 [0-9a-f]{32}\n", body)
    return found is not None and len(body) - found.end() == int(found[1]) and body.endswith(_BODY)


class Nudge(Case):
    """An agent is told of a message once or not at all, and only of one that the log says it was told of."""

    arguments = ("nudge",)

    def make(self, desk: Desk) -> None:
        ask, tell = f"test -e {desk.root}/idle", f"echo $POSTMASTER_UNREAD >> {desk.root}/told"
        commands = f"idle: [/bin/sh, '-c', '{ask}'], nudge: [/bin/sh, '-c', '{tell}']"
        (desk.root / "registry.d" / "lab.yml").write_text(_DECLARATION.replace("accepts:", f"{commands}, accepts:"))
        desk.do("registry", "merge")
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER)
        desk.do("route")
        assert _actions(desk) == ["delivered"]
        (desk.root / "idle").touch()

    def holds(self, desk: Desk) -> None:
        assert self._runs(desk) <= 1
        if self._runs(desk):
            assert "nudged" in _actions(desk)

    def again(self, desk: Desk) -> None:
        for _ in range(2):
            desk.run("route")
            desk.do("nudge")
        assert _actions(desk).count("nudged") == 1
        assert self._runs(desk) <= 1
        (desk.root / "outbox" / "letter.md").write_bytes(_LETTER.replace(b"only one", b"another"))
        told = self._runs(desk)
        desk.do("route")
        assert self._runs(desk) == told + 1, "the next message is told of"
        assert not (desk.root / ".postmaster/.nudges.tmp").exists()
        desk.do("verify")

    def _runs(self, desk: Desk) -> int:
        told = desk.root / "told"
        return len(told.read_text().splitlines()) if told.exists() else 0


class Rule(Case):
    """The file holds the old text or the new one, whole, with all that others wrote in it."""

    def make(self, desk: Desk) -> None:
        self._file = desk.root / "AGENTS.md"
        self._file.write_bytes(b"# Ours\n")
        self._file.chmod(0o640)
        self.arguments = ("rule", "lab.one", "--write", str(self._file))

    def holds(self, desk: Desk) -> None:
        held = self._file.read_bytes()
        assert held == b"# Ours\n" or (
            held.startswith(b"# Ours\n\n<!-- begin ") and held.endswith(b"rule lab.one -->\n")
        )
        assert self._file.stat().st_mode & 0o777 == 0o640

    def again(self, desk: Desk) -> None:
        desk.do(*self.arguments)
        held = self._file.read_bytes()
        assert held.count(b"<!-- begin") == 1
        desk.do(*self.arguments)
        assert self._file.read_bytes() == held
        assert [name for name in os.listdir(desk.root) if "postmaster-" in name] == []


class Scaffold(Case):
    """A new declaration is there whole, or is not; nothing that is there is replaced."""

    arguments = ("registry", "new", "council")

    def holds(self, desk: Desk) -> None:
        path = desk.root / "registry.d" / "council.yml"
        assert not path.exists() or path.read_text() == desk.run(*self.arguments, "--stdout").out

    def again(self, desk: Desk) -> None:
        there = (desk.root / "registry.d" / "council.yml").exists()
        assert desk.run(*self.arguments).code == (65 if there else 0)
        desk.do("registry", "check", "--strict")
        assert sorted(os.listdir(desk.root / "registry.d")) == ["council.yml", "lab.yml"]


class Schemas(Case):
    """Each schema for editors is the old one or the new one, whole; `init` again brings all up to date."""

    arguments = ("init",)
    _OLD = b"{}"

    def make(self, desk: Desk) -> None:
        folder = desk.root / "schemas"
        self._whole = {path.name: path.read_bytes() for path in folder.iterdir()}
        (folder / "declaration.schema.json").write_bytes(self._OLD)
        (folder / "post-office.schema.json").unlink()

    def _there(self, desk: Desk) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (desk.root / "schemas").iterdir()}

    def holds(self, desk: Desk) -> None:
        for name, content in self._there(desk).items():
            assert name.startswith("postmaster-") or content in (self._OLD, self._whole[name]), name

    def again(self, desk: Desk) -> None:
        desk.do("init")
        assert self._there(desk) == self._whole


def _actions(desk: Desk) -> list[str]:
    """Return the actions in the log, in order."""
    lines = (desk.root / "logs/delivery-log.jsonl").read_text().splitlines()
    return [json.loads(line)["action"] for line in lines]


def _told(desk: Desk) -> list[str]:
    """Return what the log says of instances."""
    lines = (desk.root / "logs/delivery-log.jsonl").read_text().splitlines()
    return [f"{one['action']} {one['agent']}" for one in map(json.loads, lines) if "file" not in one]


def _listed(desk: Desk) -> list[str]:
    """Return every name in directory/."""
    root = desk.root / "directory"
    return sorted(str(path.relative_to(root)) for path in root.rglob("*"))


def made(case: Case, root: Path, warm: Warm) -> Desk:
    """Return the office of a case, made anew."""
    shutil.rmtree(root, ignore_errors=True)
    desk = Desk(root, warm)
    desk.do("init")
    (root / "registry.d" / "lab.yml").write_text(_DECLARATION)
    desk.do("registry", "merge")
    case.make(desk)
    return desk


def command_points(case: Case, root: Path, warm: Warm, names: tuple[str, ...]) -> list[Point]:
    """Return the calls of an undisturbed run of a case."""
    done = made(case, root, warm).run(*case.arguments, strace=("-e", f"trace={optional(names)}"))
    assert done.code == 0, done
    return points(done.trace, names, f'"{root}')


CASES = (
    Send(),
    Ack(),
    Retry(),
    Merge(),
    Register(),
    Archive(),
    Folders(),
    Bounce(),
    Nudge(),
    Rule(),
    Scaffold(),
    Schemas(),
)
_cases = pytest.mark.parametrize("case", CASES, ids=[type(case).__name__.lower() for case in CASES])


@_cases
def test_a_command_killed_anywhere(warm: Warm, directory: Path, record_property: Record, case: Case) -> None:
    """Killed at any call: every message in exactly one place, the registry whole; doing it again does it."""
    root = directory / "commands" / "killed"

    def kill(point: Point) -> None:
        desk = made(case, root, warm)
        inject = f"inject={point.name}:signal=KILL:when={point.number}"
        done = desk.run(*case.arguments, strace=("-e", f"trace={point.name}", "-e", inject))
        assert done.killed, f"it was not killed: {done}"
        case.holds(desk)
        case.again(desk)

    chosen = sample(command_points(case, root, warm, CHANGING), 11)
    record_property("kills", len(chosen))
    collect(kill, chosen)


@_cases
def test_a_command_meets_an_error_anywhere(warm: Warm, directory: Path, record_property: Record, case: Case) -> None:
    """Any error at any call: the same, and it is told of in words."""
    root = directory / "commands" / "failing"

    def fail(item: tuple[Point, str]) -> None:
        point, error = item
        desk = made(case, root, warm)
        inject = f"inject={point.name}:error={error}:when={point.number}"
        done = desk.run(*case.arguments, strace=("-e", f"trace={point.name}", "-e", inject))
        assert "(INJECTED)" in done.trace, "no error was injected"
        assert_civil(done)
        case.holds(desk)
        case.again(desk)

    cases = [(point, error) for point in command_points(case, root, warm, FALLIBLE) for error in ERRORS]
    chosen = sample(cases, 11)
    record_property("errors", len(chosen))
    collect(fail, chosen)
