"""What a check says: what is wrong, where, and what mends it. Pure."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from postmaster.doctor.facts import Facts, Node


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake.

    Attributes:
        where: the path, the agent or the line of the crontab that it is in.
        what: what is wrong there, and what comes of it.
        fix: what to do, in words.
        commands: the shell commands that do it as they are, if any can.
        look: those that show more, or that somebody has to finish.
    """

    where: str
    what: str
    fix: str
    commands: tuple[str, ...] = ()
    look: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Check:
    """A check: its name, the mistake that it finds in a few words, and the function that finds it."""

    name: str
    mistake: str
    find: Callable[[Facts], Iterator[Finding]]

    def to_json(self, finding: Finding) -> dict[str, Any]:
        """Return a finding of this check as plain data."""
        return {
            "check": self.name,
            "where": finding.where,
            "what": finding.what,
            "fix": finding.fix,
            "commands": list(finding.commands),
            "look": list(finding.look),
        }


def shell(*words: str) -> str:
    """Return a shell command."""
    return shlex.join(words)


def postmaster(facts: Facts, *words: str) -> str:
    """Return a command of ours for this office."""
    return shlex.join(["postmaster", "--root", facts.root, *words])


def opened(facts: Facts, *nodes: Node) -> tuple[str, tuple[str, ...]]:
    """Return how what the router has to write to is opened to it: in words, and the commands."""
    strange = [node for node in nodes if node.uid not in (-1, facts.places["root"].uid)]
    commands, fix = [], "open it to the account that routes"
    if strange:
        fix = f"give it back to {facts.owner!r}, as root: a command was run there as another account (`sudo`?)"
        commands.append(shell("chown", facts.owner, *(node.path for node in strange)))
    for bits, words, are in ((0o600, "u+rw", "file"), (0o700, "u+rwx", "directory")):
        if shut := [node.path for node in nodes if node.kind == are and node.mode & bits != bits]:
            commands.append(shell("chmod", words, *shut))
    if not commands:
        fix = "open the directories that lead there, or mount its file system to be written to"
    return fix, tuple(commands)


def readable(facts: Facts, *nodes: Node) -> tuple[str, tuple[str, ...]]:
    """Return how files of others, whose owner they keep, are opened for the router to read."""
    strange = [node.path for node in nodes if node.uid != facts.places["root"].uid]
    own = [node.path for node in nodes if node.uid == facts.places["root"].uid]
    commands = [shell("chmod", "u+r", *own)] if own else []
    if not strange:
        return "open it to the account that routes", tuple(commands)
    commands += [shell("chgrp", facts.owner_group, *strange), shell("chmod", "g+r", *strange)]
    return f"open it to the group of {facts.owner!r}, as root", tuple(commands)
