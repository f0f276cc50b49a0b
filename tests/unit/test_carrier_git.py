"""What the carrier can say to git: fetches and pushes of mail, to remotes that are in the settings. Nothing else."""

import ast
import re
import subprocess
from collections.abc import Sequence
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postmaster.carrier import git as plumbing
from postmaster.carrier.git import Git
from postmaster.carrier.refs import Inbox, Oid
from postmaster.remotes import Remote

PACKAGE = Path(plumbing.__file__).parents[1]
URL = "/srv/hub.git"
REMOTE = Remote("hub", URL, ("b.internal",))
OIDS = st.text("0123456789abcdef", min_size=40, max_size=40).filter(lambda text: set(text) != {"0"})
ADDRESSES = st.from_regex(r"[A-Za-z0-9!#$%&'*+=?^_`{}~-]{1,20}@[a-z0-9]{1,10}(\.lock)?", fullmatch=True)
REFSPEC = re.compile(r"[0-9a-f]{40}:refs/postmaster/inbox/[a-z0-9@_.%-]+")


class Spy:
    """Stands for `subprocess.run` and keeps what git was told."""

    def __init__(self) -> None:
        self.told: list[list[str]] = []
        self.environments: list[dict[str, str]] = []

    def __call__(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[bytes]:
        self.told.append(list(command))
        self.environments.append(options["env"])
        assert not options.get("shell")
        return subprocess.CompletedProcess(command, 0, b"", b"")


def words(told: list[str]) -> list[str]:
    """Return what follows git's own options."""
    at = 1
    while told[at] in ("--no-replace-objects", "-c"):
        at += 2 if told[at] == "-c" else 1
    return told[at:]


@settings(deadline=None)
@given(st.lists(st.tuples(ADDRESSES, OIDS), min_size=1, max_size=5))
def test_whatever_is_pushed_is_mail_and_fast_forward(due: list[tuple[str, str]]) -> None:
    """For any addresses and states: this URL, these refs, each in full, nothing forced or deleted."""
    spy = Spy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", spy)
        assert Git("/x/mail.git", [REMOTE]).push("hub", [(Inbox(address), Oid(oid)) for address, oid in due])
    (told,) = map(words, spy.told)
    cut = told.index("--")
    assert told[0] == "push" and told[cut + 1] == URL
    assert all(REFSPEC.fullmatch(one) for one in told[cut + 2 :]) and len(told) == cut + 2 + len(due)
    allowed = {"--quiet", "--no-verify", "--no-follow-tags", "--no-signed", "--recurse-submodules=no"}
    assert set(told[1:cut]) == allowed


@settings(deadline=None)
@given(st.text(max_size=60))
def test_no_text_becomes_an_option_a_refspec_or_a_remote(text: str) -> None:
    """Whatever text is tried as an id, an address or a remote: it is one, or it is refused before git runs."""
    spy = Spy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "run", spy)
        capability = Git("/x/mail.git", [REMOTE])
        for attempt in (
            lambda: capability.push("hub", [(Inbox("a@b.internal"), Oid(text))]),
            lambda: capability.push("hub", [(Inbox(text), Oid("a" * 40))]),
            lambda: capability.push(text, [(Inbox("a@b.internal"), Oid("a" * 40))]),
            lambda: capability.fetch(text),
        ):
            with pytest.raises((ValueError, KeyError)):
                attempt()
    assert spy.told == []


@pytest.mark.parametrize("oid", ["", "0" * 40, "A" * 40, "a" * 39, "a" * 41, "+" + "a" * 39, "HEAD", "a" * 40 + "\n"])
def test_a_deletion_cannot_be_said(oid: str) -> None:
    """An id of nothing is no id, so that no refspec can have an empty side."""
    with pytest.raises(ValueError, match="no object id"):
        Oid(oid)


def test_the_capability_cannot_be_changed() -> None:
    """Its remotes, and what a ref or an id stands for, are fixed once it is made."""
    capability = Git("/x/mail.git", [REMOTE])
    for name, value in (("_remotes", {}), ("_environment", {}), ("url", "x")):
        with pytest.raises(AttributeError):
            setattr(capability, name, value)
    with pytest.raises(TypeError):
        capability._remotes["evil"] = REMOTE  # type: ignore[index]
    for frozen, name in ((REMOTE, "url"), (Inbox("a@b.c"), "address"), (Oid("a" * 40), "hex")):
        with pytest.raises(FrozenInstanceError):
            setattr(frozen, name, "x")


def runs_ssh_keygen_alone(tree: ast.Module) -> None:
    """Make sure that a module starts processes in one place, of a program named by a constant, without a shell."""
    uses = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "subprocess"
    ]
    assert sorted(one.attr for one in uses) == ["CompletedProcess", "TimeoutExpired", "run"]
    calls = [one for one in ast.walk(tree) if isinstance(one, ast.Call) and ast.unparse(one.func) == "subprocess.run"]
    (call,) = calls
    assert ast.unparse(call.args[0]) == "['ssh-keygen', *words]"
    assert not {"shell", "executable", None} & {keyword.arg for keyword in call.keywords}


def test_only_one_function_can_push_and_it_takes_no_words() -> None:
    """A search of the package: git is run in one place, and `push` and `fetch` are told by constants."""
    pushes = 0
    for path in PACKAGE.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        strings = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
        modules = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
        names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        if path.name == "git.py":
            pushes += strings.count("push")
            texts = [one for one in strings if isinstance(one, str)]
            assert not any(one.startswith(("--force", "--delete", "--mirror", "--all", "--tags")) for one in texts)
            continue
        assert "git" not in strings, path
        if path.name == "signatures.py":
            runs_ssh_keygen_alone(tree)
        elif path.parent.name == "carrier":
            assert not modules & {"subprocess", "pty", "multiprocessing", "asyncio"}, path
            assert not names & {"system", "popen", "execv", "execve", "execvp", "posix_spawn", "spawnv", "fork"}, path
    assert pushes == 1


def test_git_runs_without_the_settings_of_a_machine_or_account(monkeypatch: pytest.MonkeyPatch) -> None:
    """No variable that changes what git does reaches it, and no hook, helper or other protocol is left on."""
    for name in ("GIT_SSH", "GIT_DIR", "GIT_CONFIG_COUNT", "GIT_EXEC_PATH", "GIT_PROXY_COMMAND", "LD_PRELOAD"):
        monkeypatch.setenv(name, "evil")
    spy = Spy()
    monkeypatch.setattr(subprocess, "run", spy)
    Git("/x/mail.git", [REMOTE]).fetch("hub")
    (told,), (environment,) = spy.told, spy.environments
    assert "evil" not in environment.values()
    assert environment["GIT_CONFIG_GLOBAL"] == environment["GIT_CONFIG_SYSTEM"] == "/dev/null"
    assert environment["GIT_TERMINAL_PROMPT"] == "0" and environment["GIT_CONFIG_NOSYSTEM"] == "1"
    for one in ("core.hooksPath=/dev/null", "transfer.fsckObjects=true", "protocol.allow=never", "credential.helper="):
        assert told[told.index(one) - 1] == "-c"
    assert words(told)[-3:] == ["--", URL, "+refs/postmaster/inbox/*:refs/postmaster/fetched/hub/*"]
