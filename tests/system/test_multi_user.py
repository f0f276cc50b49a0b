"""docs/multi-user.md: an office for several accounts, set up by its own commands, with real accounts.

Needs root, since it makes accounts; without it these tests are skipped.
"""

import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support import letter

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "multi-user.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```sh\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
UNITS = ("post-office.service", "post-office.path", "post-office.timer")
NEEDED = ("useradd", "userdel", "groupadd", "groupdel", "runuser", "bash", "install")
missing = [name for name in NEEDED if shutil.which(name) is None]
accounts = pytest.mark.skipif(
    os.geteuid() != 0 or bool(missing), reason="only root can make accounts" if not missing else f"no {missing}"
)

# What the command imports, to be copied where this Python is in a directory that is closed to other accounts.
_PACKAGES = ("postmaster", "click", "yaml", "_yaml", "frontmatter", "jsonschema", "jsonschema_specifications")
_PACKAGES += ("referencing", "rpds", "attr", "attrs", "typing_extensions")
_LEFT_OUT = ("test", "idlelib", "tkinter", "turtledemo", "ensurepip", "lib2to3", "site-packages", "config-*")


@dataclass(frozen=True)
class Machine:
    """Accounts with names of their own, and an office that the page's commands have made."""

    world: Path
    suffix: str

    @property
    def root(self) -> Path:
        return self.world / "post-office"

    def name(self, account: str) -> str:
        """Return what an account or agent of the page is called here."""
        return f"{account}{self.suffix}"

    def text(self, of_page: str) -> str:
        """Return a text of the page with this machine's names."""
        named = re.sub(r"\b(post|ann|ben)\b(?!-office|-\d)", rf"\g<1>{self.suffix}", of_page)
        return named.replace("/srv/post-office", str(self.root))

    def run(self, script: str, account: str | None = None, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run a script of the page with bash, as root or as an account; `check` is the exit code it must have."""
        command = ["bash", "-euo", "pipefail", "-c", self.text(script)]
        if account is not None:
            command = ["runuser", "-u", self.name(account), "--", *command]
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            cwd=self.world,
            env={"PATH": f"{self.world / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8", "HOME": str(self.world)},
            timeout=120,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        if check is not None:
            assert done.returncode == check, (script, done.returncode, done.stdout, done.stderr)
        return done

    def refused(self, script: str, account: str) -> bool:
        """Tell whether the system does not let an account do something."""
        done = self.run(script, account, check=None)
        return done.returncode != 0 and ("ermission denied" in done.stderr or "not permitted" in done.stderr)

    def post(self, *args: str, check: int | None = 0) -> subprocess.CompletedProcess[str]:
        """Run postmaster as the account that routes."""
        return self.run(f"umask 027; postmaster --root /srv/post-office {' '.join(args)}", "post", check)

    def hand_in(self, account: str, name: str, mode: str = "0644", **fields: Any) -> None:
        """Put a letter into the outbox, by hand, as an account."""
        given = {"to": "ben@crew.internal", "from_": "ann@crew.internal", **fields}
        data = letter(**{key: self.text(value) for key, value in given.items()})
        away = self.world / "letters" / name
        away.write_bytes(data)
        away.chmod(0o644)
        put = f"cp {away} outbox/.{name}; chmod {mode} outbox/.{name}; touch -d '1 hour ago' outbox/.{name}"
        self.run(f"cd /srv/post-office; {put}; mv outbox/.{name} outbox/{name}", account)

    def line(self, name: str) -> dict[str, Any]:
        """Return the last log line about a file of the outbox."""
        lines = (self.root / "logs/delivery-log.jsonl").read_text().splitlines()
        found: dict[str, Any] = [one for one in map(json.loads, lines) if one.get("file") == name][-1]
        return found

    def unread(self, agent: str) -> list[Path]:
        return sorted((self.root / "inboxes" / self.text(agent) / "unread").iterdir())


def command(world: Path) -> str:
    """Return a shell script that runs the command, whoever runs it."""
    try:
        test = subprocess.run(
            [sys.executable, "-c", "import postmaster.cli, yaml, jsonschema"],
            user=65534,
            group=65534,
            extra_groups=[],
            capture_output=True,
            cwd="/",
            check=False,
        )
        if test.returncode == 0:
            return f'#!/bin/sh\nexec "{sys.executable}" -m postmaster "$@"\n'
    except PermissionError:
        pass
    home, base = world / "python", Path(sys.base_prefix)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (home / "bin").mkdir(parents=True)
    shutil.copy2(os.path.realpath(sys.executable), home / "bin" / "python3")
    shutil.copytree(base / "lib" / version, home / "lib" / version, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    for library in (base / "lib").glob("libpython*.so*"):
        shutil.copy2(library, home / "lib")
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin)
        if spec.submodule_search_locations:
            shutil.copytree(source.parent, home / "packages" / package)
        else:
            shutil.copy2(source, home / "packages")
    return (
        f'#!/bin/sh\nexport LD_LIBRARY_PATH="{home}/lib" PYTHONHOME="{home}" PYTHONPATH="{home}/packages"\n'
        f'export PYTHONDONTWRITEBYTECODE=1\nexec "{home}/bin/python3" -m postmaster "$@"\n'
    )


@pytest.fixture(scope="module")
def machine() -> Iterator[Machine]:
    """The office of the page, after all of its commands up to those that open the log."""
    world = Path(tempfile.mkdtemp(prefix="postmaster-accounts-"))
    made = Machine(world, f"-{os.getpid()}")
    try:
        world.chmod(0o755)
        (world / "bin").mkdir()
        (world / "letters").mkdir()
        (world / "bin/postmaster").write_text(command(world))
        (world / "bin/postmaster").chmod(0o755)
        for block in BLOCKS[:-1]:
            made.run(block)
        yield made
    finally:
        for account in ("post", "ann", "ben"):
            subprocess.run(["userdel", "--remove", made.name(account)], capture_output=True, check=False)
        subprocess.run(["groupdel", made.text("post-agents")], capture_output=True, check=False)
        shutil.rmtree(world)


@accounts
def test_the_page(machine: Machine) -> None:
    """Its mail has arrived, under the accounts of the two agents, and was acknowledged."""
    assert len(BLOCKS) == PAGE.count("```sh\n") == 7
    (answer,) = machine.unread("crew.ann")
    shown = machine.run(f"postmaster --root /srv/post-office read crew.ann {answer.name} --body", "ann")
    assert shown.stdout == "Done."
    assert machine.unread("crew.ben") == []
    assert len(os.listdir(machine.root / "inboxes" / machine.text("crew.ben") / "read")) == 1
    assert os.listdir(machine.root / "dead-letter") == []
    machine.post("verify")


@accounts
def test_what_the_page_says_is_refused(machine: Machine) -> None:
    """Each command of the section is refused, and leaves nothing behind."""
    (block,) = [block for block in BLOCKS if "refused" in block]
    done = machine.run(block)
    assert done.stdout.count("refused, exit code") == block.count("refused, exit code") == 5
    assert done.stdout.startswith("refused, exit code 65")
    assert "sender-not-authentic" in done.stderr


@accounts
def test_nobody_writes_in_the_name_of_another_account(machine: Machine) -> None:
    """Neither by hand nor with `send`, nor root; a live instance's letters are those of its class's account."""
    machine.hand_in("ben", "forged.md", body="forged")
    machine.hand_in("ann", "right.md", body="right")
    machine.hand_in("ben", "benny.md", from_="benny@crew.internal", to="ann@crew.internal", type="job.done", body="1")
    machine.hand_in("ann", "no-benny.md", from_="benny@crew.internal", to="ben@crew.internal", body="2")
    mail = "send --to ben@crew.internal --from ann@crew.internal --type job.run --subject s --body x"
    for account in ("ben", "post"):
        refused = machine.run(f"postmaster --root /srv/post-office {mail}", account, check=65)
        assert "sender-not-authentic (5.7.1)" in refused.stderr
        assert machine.text(f"belongs to {account}") in refused.stderr
    assert machine.run(f"postmaster --root /srv/post-office {mail}", check=65).stderr
    machine.post("route")
    assert [machine.line(f"{name}.md").get("reason") for name in ("forged", "right", "no-benny")] == [
        "sender-not-authentic",
        None,
        "sender-not-authentic",
    ]
    assert machine.line("benny.md")["reason"] == "sender-not-accepted"  # it is believed, and not admitted


@accounts
def test_what_was_delivered_cannot_be_sent_on_in_its_senders_name(machine: Machine) -> None:
    """A reader may rename its mail into the outbox: it belongs to the router, who is nobody special."""
    machine.hand_in("ann", "first.md", body="to be replayed", correlation_id="replay")
    machine.post("route")
    name = machine.line("first.md")["path"]
    machine.run(f"cd /srv/post-office; mv {name} outbox/replay.md", "ben")
    machine.post("route", check=None)
    assert machine.line("replay.md")["reason"] == "sender-not-authentic"
    assert machine.text("belongs to post") in machine.line("replay.md")["detail"]
    machine.run(f"cd /srv/post-office; cp -p dead-letter/replay.md {name}")
    machine.post("verify")


@accounts
def test_letters_of_others_are_safe_in_the_outbox(machine: Machine) -> None:
    """Nobody lists it; who knows a name can neither read, change, rename, link nor remove it. Its sender can."""
    machine.hand_in("ann", "mine.md", mode="0640", body="mine")
    inside = "cd /srv/post-office/outbox; "
    for script in (
        "ls .",
        "cat mine.md",
        "echo x >> mine.md",
        "mv mine.md other.md",
        "rm -f mine.md",
        "mv -f /etc/hostname mine.md",
    ):
        assert machine.refused(inside + script, "ben"), script
    if Path("/proc/sys/fs/protected_hardlinks").read_text().strip() == "1":
        assert machine.refused(inside + "ln mine.md linked.md", "ben")
    assert machine.refused(inside + "ls .", "ann")
    machine.run(inside + "rm mine.md", "ann")
    machine.post("route")


@accounts
def test_what_the_table_says(machine: Machine) -> None:
    """Each `no` is refused by the system, each `yes` is not."""
    at = "cd /srv/post-office; "
    for script in (
        "ls dead-letter",
        "ls logs",
        "cat logs/delivery-log.jsonl",
        "ls .postmaster",
        "ls inboxes",
        "ls inboxes/crew.ann",
        "ls inboxes/crew.ann/unread",
        "ls inboxes/crew.ben+benny/../crew.ann",
        "touch x",
        "touch registry.d/x.yml",
        "echo x >> agent-registry.yml",
        "echo x >> post-office.yml",
        "echo x >> logs/delivery-log.jsonl",
        "touch directory/live/x.json",
        "mkdir inboxes/crew.ben/unread2",
        "mv inboxes/crew.ben/tmp inboxes/crew.ben/away",
    ):
        assert machine.refused(at + script, "ben"), script
    for script in (
        "cat agent-registry.yml registry.d/crew.yml post-office.yml directory/live/benny.json",
        "ls inboxes/crew.ben/unread inboxes/crew.ben+benny/read",
    ):
        machine.run(at + script, "ben")
    assert machine.run(at + "ls .", check=None).returncode == 0
    outsider = subprocess.run(
        ["/bin/ls", str(machine.root)], user=65534, group=65534, extra_groups=[], capture_output=True, check=False
    )
    assert b"ermission denied" in outsider.stderr
    for args in ("route", "registry merge", "register crew.ben --name x", "archive benny"):
        done = machine.run(f"postmaster --root /srv/post-office {args}", "ben", check=None)
        assert done.returncode in (73, 74, 78), (args, done.returncode, done.stderr)
    assert machine.run("postmaster --root /srv/post-office directory --json", "ben").stdout.count('"benny"') == 1
    machine.post("verify")


@accounts
def test_what_agents_may_do_with_their_mail(machine: Machine) -> None:
    """List, read, acknowledge with the command or by hand, take that back; the log has no line of it, and no fault."""
    for number in ("1", "2"):
        machine.hand_in("ann", f"n{number}.md", body=f"read me {number}", correlation_id=f"read-{number}")
    machine.post("route")
    first, second = [Path(machine.line(f"n{number}.md")["path"]) for number in ("1", "2")]
    program = "postmaster --root /srv/post-office"
    listing = machine.run(f"{program} inbox crew.ben", "ben").stdout
    assert "outbox waiting ?" in listing and "read-1" in listing
    acked = machine.run(f"{program} ack crew.ben {first.name}", "ben")
    assert acked.stderr == "" and "is now in read/" in acked.stdout
    machine.run(f"cd /srv/post-office; mv {second} {second.parent.parent}/read/", "ben")
    machine.run(f"{program} unread crew.ben {second.name}", "ben")
    assert machine.refused(f"cat /srv/post-office/{second}", "ann")
    status = machine.run(f"stat -c '%U:%G %a' /srv/post-office/{second}").stdout.strip()
    assert status == machine.text("post:ben 640")
    machine.post("verify")


@accounts
@pytest.mark.parametrize("umask", ["077", "000", "022"])
def test_any_umask_of_a_sender_will_do(machine: Machine, umask: str) -> None:
    """`send` lets the router read its letter, and nobody change it; and it needs not list the outbox for that."""
    mail = "send --to ben@crew.internal --from ann@crew.internal --type job.run --subject s"
    sent = machine.run(f"umask {umask}; postmaster --root /srv/post-office {mail} --body {umask} --json", "ann")
    answer = json.loads(sent.stdout)
    status = machine.run(f"stat -c '%U:%G' /srv/post-office/{answer['path']}").stdout.strip()
    assert status == machine.text("ann:post")
    machine.post("route")
    assert machine.line(answer["file"])["action"] == "delivered"


@accounts
def test_a_letter_that_the_router_may_not_read_waits(machine: Machine) -> None:
    """It is told of, and routed once its sender has opened it to the group."""
    machine.hand_in("ann", "closed.md", mode="0600", body="closed")
    assert "closed.md" in machine.post("route", check=75).stderr
    assert machine.line("closed.md")["reason"] == "io-error"
    machine.run("chmod g+r /srv/post-office/outbox/closed.md", "ann")
    machine.post("route")
    assert machine.line("closed.md")["action"] == "delivered"


@accounts
def test_what_cannot_be_moved_stops_nobody(machine: Machine) -> None:
    """A directory that its owner has closed stays in the outbox, told of once; other mail is routed."""
    machine.run("mkdir -m 0700 /srv/post-office/outbox/closed", "ben")
    machine.hand_in("ann", "beside.md", body="beside")
    machine.post("route", check=75)
    assert machine.line("closed")["action"] == "deferred"
    assert machine.line("beside.md")["action"] == "delivered"
    machine.run("rmdir /srv/post-office/outbox/closed", "ben")
    machine.post("route")


@accounts
def test_mail_for_a_live_instance(machine: Machine) -> None:
    """An agent's account finds it, and the instance's own reads its mail."""
    mail = "send --to benny --from ann@crew.internal --type job.run --subject s --body benny"
    machine.run(f"postmaster --root /srv/post-office {mail}", "ann")
    machine.post("route")
    (there,) = machine.unread("crew.ben+benny")
    shown = machine.run(f"postmaster --root /srv/post-office read benny {there.name} --body", "ben")
    assert shown.stdout == "benny"
    assert '"unread": null' in machine.run("postmaster --root /srv/post-office directory --json", "ann").stdout
    machine.run(f"postmaster --root /srv/post-office ack benny {there.name}", "ben")


@accounts
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="no setpriv")
def test_the_capability_of_the_service(machine: Machine) -> None:
    """With CAP_LEASE the router sees that a sender of another account still writes, and waits."""
    machine.hand_in("ann", "open.md", body="open")
    path = machine.root / "outbox" / "open.md"
    route = ["postmaster", "--root", str(machine.root), "route", "--json"]
    as_post = ["setpriv", "--reuid", machine.name("post"), "--regid", machine.name("post"), "--init-groups"]
    env = {"PATH": f"{machine.world / 'bin'}:{os.environ['PATH']}"}
    umask = ["/bin/sh", "-c", 'umask 027; exec "$@"', "sh"]

    def routed(*capability: str) -> list[dict[str, str]]:
        command = [*umask, *as_post, *capability, "--", *route]
        done = subprocess.run(command, capture_output=True, text=True, env=env, cwd="/", check=True)
        waiting: list[dict[str, str]] = json.loads(done.stdout)["waiting"]
        return waiting

    with open(path, "ab"):
        waiting = routed("--inh-caps", "+lease", "--ambient-caps", "+lease")
        assert waiting == [{"file": "open.md", "why": "a writer still holds it open"}]
    assert routed("--inh-caps", "+lease", "--ambient-caps", "+lease") == []
    assert machine.line("open.md")["action"] == "delivered"


@accounts
def test_the_log_can_be_opened_for_reading(machine: Machine) -> None:
    """By the last commands of the page: then `log` and `send --wait` work; writing to it does not."""
    machine.run(BLOCKS[-1])
    program = "postmaster --root /srv/post-office"
    assert "registered" in machine.run(f"{program} log", "ann").stdout
    assert machine.refused("echo x >> /srv/post-office/logs/delivery-log.jsonl", "ann")
    assert machine.refused("touch /srv/post-office/logs/x", "ann")
    mail = "send --to ben@crew.internal --from ann@crew.internal --type job.run --subject s"
    waited = machine.run(f"{program} {mail} --body wait --wait 0.2 --json", "ann", check=75)
    assert json.loads(waited.stdout)["state"] == "waiting"
    now = machine.run(f"{program} {mail} --body now --now --json", "ann", check=75)
    assert json.loads(now.stdout)["state"] == "waiting"
    machine.post("route")
    machine.post("verify")


@pytest.mark.parametrize("name", UNITS)
def test_units(name: str, tmp_path: Path) -> None:
    """The page shows the unit files as they are, and systemd takes them."""
    text = (DOCS / "systemd" / name).read_text(encoding="utf-8")
    assert f"<!-- systemd/{name} -->\n```ini\n{text}```\n" in PAGE
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not installed")
    shutil.copytree(DOCS / "systemd", tmp_path / "units")
    service = tmp_path / "units" / "post-office.service"
    there = service.read_text("utf-8").replace("/usr/local/bin/postmaster", "/bin/sh")
    service.write_text(re.sub(r"^(User|Group)=post$", r"\1=root", there, flags=re.MULTILINE), "utf-8")
    done = subprocess.run(
        [analyze, "verify", str(tmp_path / "units" / name)], capture_output=True, text=True, check=False
    )
    if "Failed to initialize manager" in done.stderr or "Failed to create" in done.stderr:
        pytest.skip("systemd-analyze does not work here")
    assert (done.returncode, [line for line in done.stderr.splitlines() if "post-office" in line]) == (0, [])
