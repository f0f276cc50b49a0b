"""Checks of the declarations and the registry that is merged from them. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from postmaster.doctor.facts import Facts
from postmaster.doctor.findings import Check, Finding, postmaster, readable, shell


def registry_missing(facts: Facts) -> Iterator[Finding]:
    """Nothing was merged yet."""
    if facts.is_office and facts.registry == "missing":
        what = "there is no registry: nothing is routed"
        yield Finding("agent-registry.yml", what, "merge the declarations", (postmaster(facts, "registry", "merge"),))


def registry_invalid(facts: Facts) -> Iterator[Finding]:
    """The registry cannot be used."""
    if facts.is_office and facts.registry == "invalid":
        what = facts.registry_detail.replace("\n", "; ")
        yield Finding("agent-registry.yml", what, "merge anew", (postmaster(facts, "registry", "merge"),))


def registry_edited(facts: Facts) -> Iterator[Finding]:
    """Somebody has written into what the next merge writes anew."""
    if facts.edited and facts.registry in ("merged", "stale"):
        what = "was edited by hand: the next merge takes that back"
        fix = "write it into a declaration in registry.d/, then merge"
        yield Finding("agent-registry.yml", what, fix, (postmaster(facts, "registry", "merge"),))


def registry_stale(facts: Facts) -> Iterator[Finding]:
    """Declarations have changed since the merge."""
    if facts.registry == "stale" and not facts.declaration_faults and not facts.edited:
        yield Finding("agent-registry.yml", facts.registry_detail, "merge", (postmaster(facts, "registry", "merge"),))


def declaration_faulty(facts: Facts) -> Iterator[Finding]:
    """A declaration cannot be merged, and holds up the others."""
    closed = tuple(node.shown for node in facts.closed_declarations)
    for fault in facts.declaration_faults:
        where, _, what = fault.partition(": ")
        if where.partition(":")[0] in closed:
            continue  # `declaration-closed` says more
        fix = "mend that line; until then no declaration is merged"
        yield Finding(where, what, fix, look=(postmaster(facts, "registry", "check"),))


def declaration_closed(facts: Facts) -> Iterator[Finding]:
    """A declaration that the account which routes cannot read."""
    for node in facts.closed_declarations:
        what = f"{facts.router!r} cannot read it: no declaration is merged"
        yield Finding(node.shown, what, *readable(facts, node))


def declaration_in_folder(facts: Facts) -> Iterator[Finding]:
    """A declaration below registry.d/, where none is looked for."""
    for node in facts.folded_declarations:
        what = "is not read: declarations are in registry.d/ itself, and not in a directory there"
        target = os.path.join(facts.places["registry.d"].path, os.path.basename(node.path))
        commands = (shell("mv", "-n", node.path, target), postmaster(facts, "registry", "merge"))
        yield Finding(node.shown, what, "move it up, and merge; or move it away", commands)


def declaration_ignored(facts: Facts) -> Iterator[Finding]:
    """A file in registry.d/ whose name is not that of a declaration."""
    for node in facts.ignored_declarations:
        what = "is not read: the name of a declaration ends in .yml or .yaml"
        target = node.path.rpartition(".")[0] if node.path.count(".yml") or node.path.count(".yaml") else node.path
        target = target if target.endswith((".yml", ".yaml")) else f"{target}.yml"
        commands = (shell("mv", "-n", node.path, target), postmaster(facts, "registry", "merge"))
        yield Finding(node.shown, what, "rename it, and merge; or move it away", commands)


def user_unknown(facts: Facts) -> Iterator[Finding]:
    """The account of an agent does not exist."""
    for agent, declared_in, user in facts.unknown_users:
        what = f"`user` of {agent} is {user!r}, and there is no such account: what it sends waits"
        fix = f"correct `user` in {declared_in} and merge, or make the account"
        yield Finding(declared_in, what, fix, (shell("useradd", user),))


CHECKS: Final = (
    Check("registry-missing", "nothing was merged yet", registry_missing),
    Check("registry-invalid", "agent-registry.yml is damaged, or half a file", registry_invalid),
    Check("registry-edited", "agent-registry.yml was edited by hand", registry_edited),
    Check("registry-stale", "declarations have changed since the merge", registry_stale),
    Check("declaration-faulty", "a declaration cannot be merged, and holds up the others", declaration_faulty),
    Check("declaration-ignored", "a file in registry.d/ is not read for its name", declaration_ignored),
    Check("declaration-closed", "a declaration that the router cannot read", declaration_closed),
    Check("declaration-in-folder", "a declaration in a directory of registry.d/", declaration_in_folder),
    Check("user-unknown", "the `user` of an agent is no account of this machine", user_unknown),
)
