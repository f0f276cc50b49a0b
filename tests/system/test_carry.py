"""Mail between offices: whole commands over real git repositories."""

import json
import random
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from support import Box, letter, write_atomically

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("jq")), reason="needs git and jq")


def git(repository: Path, *args: str) -> str:
    """Run git in a repository as its keeper would."""
    command = ["git", "-C", str(repository), "-c", "user.name=k", "-c", "user.email=k@k", *args]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def refs(repository: Path) -> dict[str, str]:
    """Return all refs of a repository."""
    rows = git(repository, "for-each-ref", "--format=%(refname) %(objectname)").splitlines()
    return dict(row.split(" ") for row in rows)


def hub(tmp_path: Path) -> Path:
    """Make a bare hub with a branch, a tag and a note of its own."""
    made = tmp_path / "hub.git"
    git(tmp_path, "init", "-q", "--bare", str(made))
    tree = subprocess.run(["git", "-C", str(made), "mktree"], input=b"", capture_output=True, check=True).stdout
    commit = git(made, "commit-tree", "-m", "x", tree.decode().strip()).strip()
    for ref in ("refs/heads/main", "refs/tags/v1", "refs/postmaster/entity/alice"):
        git(made, "update-ref", ref, commit)
    return made


def office(world: Path, name: str, agents: int, settings: str, accepts: str = '["*", "*@{others}"]') -> Box:
    """Make an office `name` with agents a0, a1 ... at NAME.internal that accept everybody's mail."""
    box = Box(world / name)
    box.init()
    others = [one for one in ("a", "b", "c") if one != name]
    senders = ", ".join(["'*'", *(f"'*@{one}.internal'" for one in others)])
    entries = "".join(
        f"  - id: {name}.a{n}\n    address: a{n}@{name}.internal\n"
        f"    accepts: [{{type: t, accepts_from: [{senders}]}}, {{type: carrier.problem, accepts_from: ['*']}}]\n"
        for n in range(agents)
    )
    box.declare(name, f"plugin: {name}\nagents:\n{entries}")
    (box.root / "post-office.yml").write_text(f"name: {name}\noperator: a0@{name}.internal\n{settings}")
    box.merge()
    return box


def to_hub(url: Path | str, name: str) -> str:
    others = ", ".join(f"{one}.internal" for one in ("a", "b", "c") if one != name)
    return f"remotes:\n  hub: {{url: '{url}', domains: [{others}]}}\n"


def carry(box: Box, *args: str, code: int | None = 0, prefix: Sequence[str] = ()) -> dict[str, object]:
    """Run a pass; return what it says."""
    done = box.run("carry", "--json", *args, prefix=prefix)
    assert code is None or done.returncode == code, (done.returncode, done.stdout, done.stderr)
    return json.loads(done.stdout) if done.stdout.startswith("{") else {}


def turn(*boxes: Box) -> None:
    """What cron does: route, carry, route."""
    for box in boxes:
        box.route(check=None)
        carry(box, code=None)
        box.route(check=None)


def got(box: Box, agent: str) -> list[bytes]:
    """Return the bodies of an agent's mail, read or not."""
    return sorted(mail.body for mail in (*box.unread(agent), *box.read(agent)))


def mail(to: str, sender: str, subject: str = "hello", body: bytes | str = b"text\n", second: int = 0) -> bytes:
    return letter(to=to, from_=sender, type="t", subject=subject, body=body, sent_at=f"2026-03-04T10:00:{second:02d}Z")


@pytest.fixture
def two(tmp_path: Path) -> tuple[Box, Box, Path]:
    """Two offices, a and b, around a hub."""
    there = hub(tmp_path)
    return office(tmp_path, "a", 2, to_hub(there, "a")), office(tmp_path, "b", 2, to_hub(there, "b")), there


def test_there_and_back(two: tuple[Box, Box, Path]) -> None:
    """A letter arrives byte for byte, is answered, and the sender hears that it was read; no other ref moved."""
    a, b, there = two
    before = refs(there)
    body = bytes(range(256)) + b"\r\n---\nno end"
    a.drop("one.md", letter("a0@b.internal", "a0@a.internal", "t", "hi", "flow", body=body, extra="priority: high"))
    a.route()
    (line,) = [one for one in a.log() if one["action"] == "relayed"]
    assert (line["agent"], line["sequence"], line["to"]) == ("hub:a0@b.internal", 1, "a0@b.internal")
    assert a.outbox() == []
    assert carry(a)["sent"] == 1
    assert carry(b)["received"] == 1
    b.route()
    (arrived,) = b.unread("b.a0")
    assert arrived.body == body and arrived.fields["priority"] == "high" and arrived.fields["from"] == "a0@a.internal"
    done = b.run("reply", "b.a0", arrived.name, "--type", "t", "--body", "yes", "--now")
    assert done.returncode == 0, done.stderr
    b.run("ack", "b.a0", arrived.name)
    assert carry(b)["marked"] == 1
    assert carry(a)["receipts"] == 1
    a.route()
    assert got(a, "a.a0") == [b"yes"]
    said = a.run("log", "--action", "receipt").stdout
    assert "read at b, 20" in said
    shown = a.run("status").stdout
    assert "remote       hub: 0 waiting for the carrier" in shown and "  read at b, 20" in shown
    assert b.run("unread", "b.a0", arrived.name).returncode == 0
    assert carry(b)["marked"] == 1
    kinds = [next(iter(one)) for one in read_with_jq(there, "a0@b.internal") if "at" in one]
    assert sorted(kinds) == ["read", "unread"]
    after = refs(there)
    assert {ref: oid for ref, oid in after.items() if not ref.startswith("refs/postmaster/inbox/")} == before
    assert a.run("verify").returncode == 0 and b.run("verify").returncode == 0
    for box in (a, b):  # nothing new: nothing happens
        turn(box)
    assert refs(there) == after


def read_with_jq(repository: Path, mailbox: str) -> list[dict[str, object]]:
    """Read a mailbox out of a clone, as docs/carrier.md says."""
    clone = repository.with_name(f"clone-{random.random()}.git")
    git(repository.parent, "clone", "-q", "--mirror", str(repository), str(clone))
    whole = ["git", "-C", str(clone), "archive", f"refs/postmaster/inbox/{mailbox}"]
    archive = subprocess.run(whole, capture_output=True, check=True).stdout
    files = subprocess.run(["tar", "-xO"], input=archive, capture_output=True, check=True).stdout
    text = subprocess.run(["jq", "-c", "."], input=files, capture_output=True, check=True).stdout
    return [json.loads(line) for line in text.splitlines()]


def test_send_knows_who_is_elsewhere(two: tuple[Box, Box, Path]) -> None:
    """`send` takes an address of a remote's domain, and waits with success once it is relayed."""
    a, _, _ = two
    send = ["send", "--from", "a0@a.internal", "--type", "t", "--subject", "s", "--body", "x"]
    assert a.run(*send, "--to", "whoever@b.internal", "--now").returncode == 0
    assert a.run(*send, "--to", "whoever@nowhere.internal").returncode == 65
    assert a.run(*send, "--to", f"{'+%' * 32}@b.internal").returncode == 65


def inject(repository: Path, mailbox: str, line: bytes, *, parent: bool = True) -> None:
    """Put a line into a mailbox ref of a hub, as somebody who may push to it can."""
    ref = f"refs/postmaster/inbox/{mailbox}"

    def run(*args: str, data: bytes = b"") -> str:
        command = ["git", "-C", str(repository), "-c", "user.name=k", "-c", "user.email=k@k", *args]
        return subprocess.run(command, input=data, capture_output=True, check=True).stdout.decode().strip()

    blob = run("hash-object", "-w", "--stdin", data=line)
    day = run("mktree", data=f"100644 blob {blob}\t{blob}.jsonl\n".encode())
    old = refs(repository).get(ref) if parent else None
    days = len(run("ls-tree", old).splitlines()) if old else 0
    rows = f"040000 tree {day}\t2027-01-{days + 1:02d}\n" + (run("ls-tree", old) + "\n" if old else "")
    tree = run("mktree", data=rows.encode())
    run("update-ref", ref, run("commit-tree", tree, *(["-p", old] if old else []), data=b"x"))


def line(to: str, sender: str, body: str = "forged") -> bytes:
    from postmaster.carrier.lines import Letter

    return Letter(sender, to, "t", "s", "flow", "2026-03-04T10:00:00Z", body.encode(), "x").line()


def test_a_remote_speaks_for_its_own_domains_only(two: tuple[Box, Box, Path]) -> None:
    """Mail with a sender of this office, or of nobody's domain, is a dead letter: origin-mismatch."""
    a, _, there = two
    for sender in ("a1@a.internal", "x@elsewhere.internal", "a0@b.internal"):
        inject(there, "a0@a.internal", line("a0@a.internal", sender, sender))
    carry(a)
    a.route()
    dead = [one for one in a.log() if one["action"] == "dead-letter"]
    assert {one["reason"] for one in dead} == {"origin-mismatch"}
    assert {one["from"] for one in dead} == {"a1@a.internal", "x@elsewhere.internal"}
    assert got(a, "a.a0") == [b"a0@b.internal"]
    a.run("dead-letter", "retry", "--all", "--now")
    assert got(a, "a.a0") == [b"a0@b.internal"]


@pytest.mark.parametrize("says", ["", ", remote: true"])
def test_everybody_means_this_office(tmp_path: Path, says: str) -> None:
    """`*` does not admit a sender of another office, unless the accepted type says `remote: true`."""
    there = hub(tmp_path)
    a = office(tmp_path, "a", 1, to_hub(there, "a"))
    accepts = f"{{type: t, accepts_from: ['*']{says}}}"
    a.declare("a", f"plugin: a\nagents: [{{id: a.a0, address: a0@a.internal, accepts: [{accepts}]}}]")
    a.merge()
    inject(there, "a0@a.internal", line("a0@a.internal", "a0@b.internal"))
    carry(a)
    a.drop("x.md", mail("a0@a.internal", "somebody@a.internal"))
    a.route()
    assert got(a, "a.a0") == ([b"forged", b"text\n"] if says else [b"text\n"])
    refused = [one for one in a.log() if one["action"] == "rejected"]
    assert [one["reason"] for one in refused] == ([] if says else ["sender-not-accepted"])
    assert all("another office" in one["detail"] for one in refused)


@pytest.mark.parametrize("wrong", ["rewound", "removed", "gone", "foreign", "edited", "flood"])
def test_a_remote_that_looks_wrong(two: tuple[Box, Box, Path], wrong: str) -> None:
    """It is neither merged nor pushed to, the operator has mail once, and `--accept` goes on without a loss."""
    a, b, there = two
    ref = "refs/postmaster/inbox/a0@b.internal"
    for n in range(2):
        a.drop("x.md", mail("a0@b.internal", "a0@a.internal", body=f"{n}"))
        turn(a)
    tip = refs(there)[ref]
    if wrong == "rewound":
        git(there, "update-ref", ref, f"{tip}^")
    elif wrong == "removed":
        git(there, "update-ref", ref, git(there, "commit-tree", "-m", "x", "-p", tip, f"{tip}^^{{tree}}").strip())
    elif wrong == "gone":
        git(there, "update-ref", "-d", ref)
    elif wrong == "foreign":
        inject(there, "a0@b.internal", b"not json\n")
    elif wrong == "edited":
        inject(there, "a0@b.internal", line("a0@b.internal", "a0@a.internal").replace(b"forged", b"edited"))
    else:
        settings = (a.root / "post-office.yml").read_text().replace("url:", "max_messages: 3, url:")
        (a.root / "post-office.yml").write_text(settings)
        for n in range(4):
            inject(there, "a1@b.internal", line("a1@b.internal", "a0@a.internal", str(n)))
    there_before = refs(there)
    a.drop("y.md", mail("a1@b.internal", "a0@a.internal", body="later"))
    a.route()
    for _ in range(2):
        answer = carry(a, code=76)
        assert answer["remotes"][0]["state"] == "wrong", answer  # type: ignore[index]
        a.route()
    assert refs(there) == there_before
    (told,) = a.unread("a.a0")
    assert told.fields["type"] == "carrier.problem" and b"--accept hub" in told.body
    if wrong in ("rewound", "gone"):
        done = a.run("status", "--check")
        assert done.returncode == 2 and "remote hub looks wrong: " in done.stdout.splitlines()[0]
        carry(a, "--accept", "hub")
        assert "looks wrong" not in a.run("status").stdout
        turn(b)
        assert (got(b, "b.a0"), got(b, "b.a1")) == ([b"0", b"1"], [b"later"])


def test_a_remote_that_is_away_is_tried_again_later(tmp_path: Path) -> None:
    """It costs exit code 75, a pause, and no letter; naming it tries at once."""
    a = office(tmp_path, "a", 1, to_hub(tmp_path / "hub.git", "a"))
    a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
    a.route()
    assert carry(a, code=75)["remotes"][0]["state"] == "unreachable"  # type: ignore[index]
    assert carry(a, code=75)["remotes"][0]["state"] == "later"  # type: ignore[index]
    hub(tmp_path)
    assert carry(a, "hub")["remotes"][0]["state"] == "done"  # type: ignore[index]
    assert carry(a)["remotes"][0]["state"] == "done"  # type: ignore[index]
    assert len(read_with_jq(tmp_path / "hub.git", "a0@b.internal")) == 1


def test_hooks_and_config_of_a_hostile_repository(two: tuple[Box, Box, Path], tmp_path: Path) -> None:
    """What the mail repository, the account or the machine is configured to run is not run."""
    a, _, _ = two
    trap = tmp_path / "trap"
    script = f"#!/bin/sh\ntouch {trap}\n"
    carry(a)
    mine = a.root / "carrier" / "mail.git"
    hooks = tmp_path / "hooks"
    for place in (hooks, mine / "hooks"):
        place.mkdir(exist_ok=True)
        for name in ("pre-push", "reference-transaction", "post-update", "pre-auto-gc", "post-checkout"):
            (place / name).write_text(script)
            (place / name).chmod(0o755)
    home = a.world / "home" / ".gitconfig"
    home.write_text(f'[core]\n\thooksPath = {hooks}\n[url "{tmp_path}/nowhere"]\n\tinsteadOf = {tmp_path}/hub.git\n')
    a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
    a.route()
    assert carry(a)["sent"] == 1
    assert not trap.exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ("remotes: {x: {url: 'ext::sh -c evil', domains: [b.internal]}}", "`url` must be"),
        ("remotes: {x: {url: '--upload-pack=evil', domains: [b.internal]}}", "`url` must be"),
        ("remotes: {x: {url: 'ssh://-oProxyCommand=evil/x', domains: [b.internal]}}", None),
        ("remotes: {x: {url: /h.git, domains: []}}", "`domains` must list"),
        ("remotes: {x: {url: /h.git, domains: [a.internal]}}", "is this office's own"),
        ("remotes: {'../x': {url: /h.git, domains: [b.internal]}}", "must be called by a name"),
        ("remotes: {x: {url: /h, domains: [b.c]}, y: {url: /h, domains: [B.c]}}", "belongs to two remotes"),
        ("remotes: {x: {url: /h, domain: [b.c]}}", "unknown key domain"),
        ("", "names no `remotes`"),
    ],
)
def test_remotes_that_cannot_be(tmp_path: Path, settings: str, said: str | None) -> None:
    """A remote that could make git do anything but exchange mail is a fault of the settings."""
    a = office(tmp_path, "a", 1, "")
    (a.root / "post-office.yml").write_text(settings + "\n")
    done = a.run("carry")
    assert done.returncode == (78 if said else 75) and (said or "strange hostname") in done.stderr, done.stderr


def offices(tmp_path: Path, how: str) -> tuple[list[Box], list[Path]]:
    """Three offices around a hub, or each with the mail repositories of the two others."""
    names = ("a", "b", "c")
    if how == "hub":
        there = hub(tmp_path)
        return [office(tmp_path, name, 3, to_hub(there, name)) for name in names], [there]
    made = []
    for name in names:
        lines = [
            f"  {one}: {{url: {tmp_path / one / 'office' / 'carrier' / 'mail.git'}, domains: [{one}.internal]}}\n"
            for one in names
            if one != name
        ]
        made.append(office(tmp_path, name, 3, "remotes:\n" + "".join(lines)))
    for box in made:
        carry(box, code=None)
    for box in made:
        (box.root / "carrier").exists()
        for note in (box.root / "carrier").glob("*.later"):
            note.unlink()
    return made, [box.root / "carrier" / "mail.git" for box in made]


@pytest.mark.parametrize("how", ["hub", "pairwise"])
def test_three_offices_with_kills(tmp_path: Path, how: str) -> None:
    """Everybody writes to everybody while carriers are killed: each letter arrives once, and only inbox refs change."""
    boxes, repositories = offices(tmp_path, how)
    before = [{r: o for r, o in refs(one).items() if "/entity/" in r or "/heads/" in r} for one in repositories]
    chance = random.Random(6)
    expected: dict[str, list[bytes]] = {}
    kills = shutil.which("strace") is not None
    for step in range(4):
        for box in boxes:
            for n in range(4):
                to, own = chance.choice("abc"), box.world.name
                agent = chance.randrange(3)
                body = f"{own}{step}{n}".encode()
                sent = mail(f"a{agent}@{to}.internal", f"a{n % 3}@{own}.internal", body=body, second=step)
                write_atomically(str(box.root / "outbox" / f"{own}{step}{n}.md"), sent)
                expected.setdefault(f"{to}.a{agent}", []).append(body)
            box.route(check=None)
            if kills:
                calls = "trace=rename,renameat2,unlink,write,fsync,execve,vfork,clone"
                when = chance.randrange(3, 200)
                prefix = ["strace", "-o", "/dev/null", "-e", calls, "-e"]
                calls = "inject=rename,renameat2,unlink,unlinkat,fsync,fdatasync"
                carry(box, code=None, prefix=[*prefix, f"{calls}:signal=KILL:when={when % 25 + 1}"])
            if chance.random() < 0.5:
                box.route(check=None)
    for _ in range(3):
        for box in boxes:
            for note in (box.root / "carrier").glob("*.later"):
                note.unlink()
        turn(*boxes)
    arrived = {f"{box.world.name}.a{n}": got(box, f"{box.world.name}.a{n}") for box in boxes for n in range(3)}
    assert {key: value for key, value in arrived.items() if value} == {k: sorted(v) for k, v in expected.items()}
    for box in boxes:
        assert box.dead() == [] and box.outbox() == []
        assert box.run("verify").returncode == 0
        assert not (box.root / "carrier" / "unfinished").exists()
    after = [{r: o for r, o in refs(one).items() if "/entity/" in r or "/heads/" in r} for one in repositories]
    assert after == before
