"""What a check says: what is wrong, where, and what mends it. Pure."""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from postmaster.doctor.facts import Facts


@dataclass(frozen=True, slots=True)
class Finding:
    """One mistake.

    Attributes:
        where: the path, the agent or the line of the crontab that it is in.
        what: what is wrong there, and what comes of it.
        fix: what to do, in words.
        commands: the shell commands that do it, if any can.
    """

    where: str
    what: str
    fix: str
    commands: tuple[str, ...] = ()


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
        }


def shell(*words: str) -> str:
    """Return a shell command."""
    return shlex.join(words)


def postmaster(facts: Facts, *words: str) -> str:
    """Return a command of ours for this office."""
    return shlex.join(["postmaster", "--root", facts.root, *words])
