"""Shell completion, in real shells: what an office has is offered, quickly, and nothing is ever said on an error."""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from support import LAB, Box, letter

from postmaster.cli import candidates, completion
from postmaster.cli.app import cli

REAL = Path(sys.executable).parent / "postmaster"
DELIVERY_LOG = Path(__file__).parents[2] / "docs" / "formats" / "delivery-log.md"
BREAKS = " \t\n\"'@><=;|&(:"  # bash's own COMP_WORDBREAKS
EXTRA = """\
plugin: more
agents:
  - id: more.reviewer
    address: reviewer@more.internal
    roles: [reviewer]
    instances: many
    accepts: [{type: review.ask, accepts_from: ["*"]}]
"""


@pytest.fixture(scope="module")
def office(tmp_path_factory: pytest.TempPathFactory) -> Box:
    """An office with mail, a live instance, a dead letter and a remote; and letters that mean harm."""
    box = Box(tmp_path_factory.mktemp("completion") / "world")
    box.init()
    box.declare("lab", LAB)
    box.declare("more", EXTRA)
    (box.root / "post-office.yml").write_text("remotes: {hub: {url: /srv/mail.git, domains: [far.internal]}}\n")
    box.merge()
    assert box.run("register", "more.reviewer", "--name", "rita").returncode == 0
    box.drop("a.md", letter(body="first\n", subject="nightly build"))
    box.drop("b.md", letter(body="second\n", subject='"evil \\e[31m: \\t\\n name"', correlation_id="run-2"))
    box.drop("c.md", letter(body="third\n", correlation_id='"$(touch PWNED)"'))
    box.drop("nobody.md", letter(to="nobody@lab.internal"))
    box.drop("x;touch PWNED", letter(to="nobody@lab.internal", body="x"))
    box.route()
    return box


def ask(box: Box, shell: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Ask as the script of a shell does."""
    return subprocess.run(
        [REAL, *arguments],
        env=box.environment({"_POSTMASTER_COMPLETE": shell, "POSTMASTER_ROOT": str(box.root)}),
        cwd=box.world / "cwd",
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )


def offered(box: Box, line: str, shell: str = "fish") -> list[str]:
    """Return the values that are offered after a line (its words are split at blanks)."""
    done = ask(box, shell, *line.split(" "))
    assert done.returncode == 0 and done.stderr == ""
    return [one.split("\t")[0] for one in done.stdout.splitlines()]


def first_id(box: Box, subject: str) -> str:
    return next(str(mail.fields["id"])[:12] for mail in box.unread("lab.builder") if mail.fields["subject"] == subject)


def test_what_is_offered(office: Box) -> None:
    """Agents (declared and live), addresses, roles, types, messages, flows, dead letters, remotes; by what is typed."""
    agents = ["lab.builder", "lab.checker", "lab.conductor", "lab.echo", "more.reviewer", "more.reviewer+rita"]
    assert offered(office, "inbox ") == agents
    assert offered(office, "inbox mas") == ["mason@lab.internal"]
    assert offered(office, "read more.reviewer+") == ["more.reviewer+rita"]
    assert offered(office, "archive more.reviewer+r") == ["more.reviewer+rita"]
    assert "role:reviewer" in offered(office, "send --to ")
    assert offered(office, "send --to role:") == ["role:reviewer"]
    assert offered(office, "send --to agent:lab.e") == ["agent:lab.echo"]
    assert offered(office, "send --from con") == ["conductor@lab.internal"]
    assert offered(office, "send --to reviewer@more.internal --type ") == ["review.ask"]
    assert offered(office, "send --type job.") == ["job.done"]
    assert offered(office, "send --to echo@lab.internal --type ") == ["job.done"]  # of what it takes, job.*
    assert set(offered(office, "log --correlation ")) == {"run-1", "run-2"}
    assert offered(office, "log --action turn-d") == ["turn-done"]
    assert offered(office, "log --reason type") == ["type-not-accepted"]
    assert offered(office, "carry ") == ["hub"] and offered(office, "carry hub ") == []
    assert offered(office, "dead-letter show ") == ["nobody.md"]
    assert offered(office, "register more.reviewer --role r") == ["reviewer"]
    assert offered(office, "regis") == ["registry", "register"]
    assert offered(office, "registry fl") == ["flows"]
    assert offered(office, "registry schema post") == ["post-office"]
    assert offered(office, "ack --js") == ["--json"]
    assert offered(office, "send --root") == [] and offered(office, "--root ") == [":directories"]
    assert offered(office, "send letter") == [":files"]


def test_messages_are_those_of_the_agent_on_the_line(office: Box) -> None:
    """`ack` and `read` offer unread mail, newest first, without what stands on the line; `unread` what was read."""
    nightly = first_id(office, "nightly build")
    ids = offered(office, "ack lab.builder ")
    assert len(ids) == 3 and nightly in ids
    assert nightly not in offered(office, f"ack lab.builder {nightly} ")
    assert offered(office, f"read mason@lab.internal {nightly[:5]}") == [nightly]
    assert offered(office, f"reply lab.builder {nightly[:5]}") == [nightly]
    assert offered(office, "reply lab.buil") == ["lab.builder"]
    assert offered(office, "reply lab.builder x ") == [":files"]
    (whole,) = offered(office, f"send --from builder@lab.internal --reply-to {nightly[:5]}")
    assert len(whole) == 32
    name = offered(office, "read lab.builder 2026")
    assert len(name) == 3 and all(re.fullmatch(r"2026\S+\.md", one) for one in name)
    assert offered(office, "unread lab.builder ") == [] and offered(office, "ack nobody ") == []


def test_nothing_of_a_message_can_act(office: Box) -> None:
    """What a shell could act upon is not offered; what is shown beside a value moves no cursor and is one line."""
    for line in ("log --correlation ", "dead-letter show ", "ack lab.builder "):
        for shell in ("fish", "zsh"):
            done = ask(office, shell, *line.split(" "))
            assert "touch" not in done.stdout
            assert all(0x20 <= ord(c) < 0x7F or c in "\n\t…" for c in done.stdout), done.stdout
    assert sum(line.count("\t") for line in ask(office, "fish", "ack", "lab.builder", "").stdout.splitlines()) == 3


@pytest.mark.parametrize(
    "line",
    ["inbox ", "ack nobody ", "log --correlation ", "carry ", "send --to ", "no-such ", "reply ", "a b c d"],
)
@pytest.mark.parametrize("state", ["no office", "no registry", "broken"])
def test_quiet_when_it_cannot_tell(tmp_path: Path, line: str, state: str) -> None:
    """Without an office, a registry, or with broken files: no candidate, no word, no traceback, exit code 0."""
    box = Box(tmp_path / "world")
    if state != "no office":
        (box.root / "outbox").mkdir(parents=True)
    if state == "broken":
        for name in ("agent-registry.yml", "post-office.yml"):
            (box.root / name).write_text(": [")
        (box.root / "logs").mkdir()
        (box.root / "logs" / "delivery-log.jsonl").write_bytes(b"\xff\n{")
    for shell, arguments in (("zsh", line.split(" ")), ("bash", [f"postmaster {line}", BREAKS])):
        done = ask(box, shell, *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (0, "", ""), (state, line)


@pytest.mark.parametrize("arguments", [[], ["route"], ["postmaster inbox 'lab"], ["x", "y", "z"]])
@pytest.mark.parametrize("shell", ["bash", "tcsh", ""])
def test_a_question_runs_nothing(office: Box, shell: str, arguments: list[str]) -> None:
    """Whatever is asked, in whatever form, no command runs and nothing is said."""
    before = office.snapshot(private=True)
    done = ask(office, shell, *arguments)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert office.snapshot(private=True) == before


def test_a_line_is_split_as_a_shell_does() -> None:
    """Quotes that are not closed, backslashes, blanks at the end."""
    for line, words in {
        "a b": ["a", "b"],
        "a b ": ["a", "b", ""],
        "a 'b c": ["a", "b c"],
        'a "b c" d': ["a", "b c", "d"],
        "a b\\ c": ["a", "b c"],
        "a #b": ["a", "#b"],
        "": [""],
    }.items():
        assert completion.split(line) == words, line


def test_bash_is_given_the_part_behind_its_word_breaks(office: Box) -> None:
    """What readline has taken as words of their own (local@, role:, --to=) is not repeated."""
    for line, wanted in {
        "send --to echo@": ["@lab.internal"],
        "send --to=echo@l": ["@lab.internal"],
        "send --to role:": ["reviewer"],
        "send --to=ech": ["echo@lab.internal"],
        "inbox lab.e": ["lab.echo"],
    }.items():
        assert ask(office, "bash", f"postmaster {line}", BREAKS).stdout.splitlines() == wanted, line
    assert ask(office, "bash", "postmaster send --to echo@", " \t\n").stdout.splitlines() == ["echo@lab.internal"]


def test_the_actions_are_those_of_the_documentation() -> None:
    """The table in docs/formats/delivery-log.md and the completion of `log --action` name the same actions."""
    table = DELIVERY_LOG.read_text("utf-8").split("## Actions\n", 1)[1].strip().split("\n\n", 1)[0]
    found = candidates.find(candidates.ACTIONS, "/nowhere", candidates.Given(), "")
    assert [one.value for one in found] == re.findall(r"^\| `([a-z-]+)`", table, re.M)[1:]


# What has no candidates: texts, numbers, and names that are new.
FREE = {
    "subject",
    "text",
    "sent_at",
    "headers",
    "wait",
    "wait_delivered",
    "limit",
    "poll",
    "jobs",
    "max_seconds",
    "host",
}
FREE |= {"port", "last", "every", "plugin", "new"}
FREE |= {"max_run_age", "max_deferred_age", "max_unread_age", "max_dead", "min_free"}


def parameters(command: click.Command, path: str) -> Iterator[tuple[str, str, click.Parameter]]:
    """Yield (command, its name, parameter) for all that takes a value."""
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from parameters(found, f"{path} {name}")
    for one in command.params:
        if not (isinstance(one, click.Option) and (one.is_flag or one.count)):
            yield path, str(command.name), one


def test_every_parameter_has_candidates_or_cannot() -> None:
    """A new option or argument is either completed or listed here as free text."""
    for path, command, one in parameters(cli, "postmaster"):
        known = isinstance(one.type, click.Choice) or one.name == "words" or one.name in completion._KINDS
        known = known or f"{command} {one.name}" in completion._KINDS
        assert known != (one.name in FREE), f"{path}: {one.name}"


# -- real shells -------------------------------------------------------------------------------------------------------


@pytest.fixture
def stage(office: Box, tmp_path: Path) -> dict[str, str]:
    """An environment whose `postmaster` answers questions, and else prints the words that it was given."""
    command = tmp_path / "bin" / "postmaster"
    command.parent.mkdir()
    command.write_text(
        f'#!/bin/sh\n[ -z "$_POSTMASTER_COMPLETE" ] || exec {REAL} "$@"\n'
        "printf 'ran '; for word; do printf '<%s>' \"$word\"; done; echo\n"
    )
    command.chmod(0o755)
    for shell in completion.SCRIPTS:
        printed = office.run("completion", shell)
        assert printed.returncode == 0
        (tmp_path / f"script.{shell}").write_text(printed.stdout)
    return office.environment(
        {
            "PATH": f"{command.parent}:{os.environ['PATH']}",
            "HOME": str(tmp_path),
            "POSTMASTER_ROOT": str(office.root),
            "TERM": "dumb",
            "SCRIPTS": str(tmp_path),
        }
    )


def needs(shell: str) -> str:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"no {shell}")
    return found


class Terminal:
    """A shell at a terminal."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            try:
                os.chdir(environment["HOME"])
                os.execve(command[0], command, environment)
            finally:
                os._exit(127)
        self._seen = ""

    def until(self, wanted: str, seconds: float = 30) -> str:
        """Read until something is shown; return all that was shown up to it."""
        end = time.monotonic() + seconds
        while wanted not in self._seen:
            ready, _, _ = select.select([self._master], [], [], max(0, end - time.monotonic()))
            assert ready, f"{wanted!r} is not shown: {self._seen!r}"
            self._seen += os.read(self._master, 4096).decode("utf-8", "replace")
        shown, _, self._seen = self._seen.partition(wanted)
        return shown

    def type(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def close(self) -> None:
        os.close(self._master)  # which hangs the shell up
        os.waitpid(self._pid, 0)


LINES = {
    "postmaster inb\tlab.e\t\n": "<inbox><lab.echo>",
    "postmaster send --to echo@\t--type job.d\t\n": "<send><--to><echo@lab.internal><--type><job.done>",
    "postmaster send --to role:rev\t\n": "<send><--to><role:reviewer>",
    "postmaster dead-letter show nob\t\n": "<dead-letter><show><nobody.md>",
}


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_at_a_terminal(stage: dict[str, str], shell: str) -> None:
    """Tab completes commands, agents, addresses, roles, types and dead letters in a real shell."""
    start = {
        "bash": [needs("bash"), "--norc", "--noprofile", "-i"] if shell == "bash" else [],
        "zsh": [needs("zsh"), "-f", "-i"] if shell == "zsh" else [],
    }[shell]
    prepare = "autoload -U compinit; compinit -D -u; " if shell == "zsh" else ""
    terminal = Terminal(start, stage)
    try:
        terminal.type(f"PS1=; {prepare}. $SCRIPTS/script.{shell}; echo read''y\n")
        terminal.until("ready")
        for line, wanted in LINES.items():
            terminal.type(line)
            terminal.until("ran " + wanted)
    finally:
        terminal.close()


def test_the_function_of_bash(stage: dict[str, str]) -> None:
    """The function that bash calls fills COMPREPLY, at the cursor and not at the end of the line."""
    done = subprocess.run(
        [
            needs("bash"),
            "-c",
            '. "$SCRIPTS/script.bash"; COMP_LINE="postmaster inbox lab.e --all"; COMP_POINT=22; '
            '_postmaster_completion postmaster lab.e inbox; printf "%s\\n" "${COMPREPLY[@]}"',
        ],
        env=stage,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("lab.echo\n", "")


def test_fish(stage: dict[str, str]) -> None:
    """fish completes commands, agents with their addresses, addresses, messages and paths."""
    fish = needs("fish")
    (Path(stage["HOME"]) / "letter.md").touch()

    def complete(line: str) -> list[str]:
        script = f"source $SCRIPTS/script.fish; complete -C '{line}'"
        done = subprocess.run(
            [fish, "--no-config", "-c", script],
            env=stage,
            cwd=stage["HOME"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.stderr == ""
        return done.stdout.splitlines()

    assert complete("postmaster inb") == ["inbox\tList an agent's mail."]
    assert complete("postmaster inbox lab.e") == ["lab.echo\techo@lab.internal"]
    assert complete("postmaster send --to role:") == ["role:reviewer\tmore.reviewer"]
    assert len(complete("postmaster ack lab.builder ")) == 3
    assert complete("postmaster send lett") == ["letter.md"]
    assert complete("postmaster inbox nobody-at-all") == []
