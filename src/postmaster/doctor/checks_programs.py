"""Checks of the programs, keys and hosts that declarations and settings name. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from postmaster.doctor.facts import Facts, Node
from postmaster.doctor.findings import Check, Finding, opened, shell

_PACKAGES: Final = {"ssh": "openssh-client", "ssh-keygen": "openssh-client"}
_SECRET: Final = 0o077


def command_missing(facts: Facts) -> Iterator[Finding]:
    """`run`, `nudge` or `idle` names a program that cannot be run."""
    for one in facts.programs:
        if one.trouble is not None:
            what = f"`{one.key}` of {one.agent} starts {one.program}, which {one.trouble}"
            yield Finding(one.declared_in, what, one.mend, tuple(shell(*words) for words in one.commands))


def command_not_in_cron(facts: Facts) -> Iterator[Finding]:
    """A program that is found from a shell, and not from cron."""
    for one in facts.programs:
        if one.trouble is None and one.missing_in is not None and one.path is not None:
            what = f"`{one.key}` of {one.agent} starts {one.program}, which is not in cron's PATH ({one.missing_in})"
            fix = f"write `{one.path}` in the declaration and merge, or link it into a place that cron knows"
            yield Finding(one.declared_in, what, fix, (shell("ln", "-s", one.path, f"/usr/bin/{one.program}"),))


def tool_missing(facts: Facts) -> Iterator[Finding]:
    """The settings call for a program that is not installed."""
    for name, is_there in facts.tools.items():
        if not is_there:
            what = f"calls for {name}, which is not installed"
            command = shell("apt-get", "install", "-y", _PACKAGES.get(name, name))
            commands = (command,) if "apt-get" in facts.helpers else ()
            yield Finding("post-office.yml", what, "install it, as root", commands)


def key_missing(facts: Facts) -> Iterator[Finding]:
    """A key that mail is signed with, or held against, cannot be read."""
    for remote in facts.remotes:
        for key, node in remote.keys.items():
            if node.kind != "file" or not node.may_read:
                what = f"`{key}` of remote {remote.name}: cannot be read, so that no mail is exchanged with anybody"
                yield Finding(node.shown, what, *_key(facts, key, node))


def _key(facts: Facts, key: str, node: Node) -> tuple[str, tuple[str, ...]]:
    """Return what mends a key or a list of keys that cannot be read."""
    if node.kind == "file":
        return opened(facts, node)
    if key == "verify":
        return "write the allowed signers there, a line `DOMAIN ssh-ed25519 AAAA...` each; or correct the path", ()
    if node.path.endswith(".pub") or node.is_there:
        return "put the key there, or correct the path", ()
    folder = shell("mkdir", "-p", "-m", "700", os.path.dirname(node.path))
    make = shell("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", node.path)
    return "make the key, or correct the path", (folder, make)


def key_open(facts: Facts) -> Iterator[Finding]:
    """A secret that others can read."""
    for remote in facts.remotes:
        node = remote.keys.get("sign")
        is_secret = node is not None and not node.path.endswith(".pub")  # that of a key which an agent holds
        if node is not None and is_secret and node.kind == "file" and node.mode & _SECRET:
            what = f"the key that mail to {remote.name} is signed with can be read by others: ssh-keygen refuses it"
            yield Finding(node.shown, what, "close it", (shell("chmod", "600", node.path),))


def remote_missing(facts: Facts) -> Iterator[Finding]:
    """The repository of a remote on this machine is not there."""
    for remote in facts.remotes:
        if remote.directory is not None and not remote.directory.is_directory:
            what = f"`url` of remote {remote.name}: there is no repository"
            fix = "mount its disk, correct the URL, or make it"
            yield Finding(remote.directory.path, what, fix, (f"git init --bare {shell(remote.directory.path)}",))


def host_unknown(facts: Facts) -> Iterator[Finding]:
    """ssh asks whether a host is the right one, and cron cannot answer."""
    for remote in facts.remotes:
        if remote.host is not None and remote.host_known is False:
            what = f"the key of {remote.host} (remote {remote.name}) is not known to {facts.account!r}: ssh refuses it"
            fix = "look at the key that it shows, and take it if it is the right one"
            command = shell("ssh", "-o", "StrictHostKeyChecking=ask", remote.host, "true")
            yield Finding(f"remote {remote.name}", what, fix, look=(command,))


def operator_unreached(facts: Facts) -> Iterator[Finding]:
    """What the carrier has to tell of a remote that looks wrong reaches nobody."""
    if facts.operator_fault is not None:
        fix = "name an agent that accepts `carrier.problem` from `*` (docs/carrier.md)"
        yield Finding("post-office.yml", facts.operator_fault, fix)


def remote_own_domain(facts: Facts) -> Iterator[Finding]:
    """A remote that is to bring mail of the domain of this office."""
    for name, domain in facts.own_domains:
        what = f"`domains` of remote {name} holds {domain}, a domain of agents of this office: `carry` refuses to run"
        yield Finding("post-office.yml", what, f"take {domain} out of `domains` of {name}")


CHECKS: Final = (
    Check("command-missing", "`run`, `nudge` or `idle` names a program that cannot be run", command_missing),
    Check("command-not-in-cron", "a program of a declaration is not in cron's PATH", command_not_in_cron),
    Check("tool-missing", "git, ssh or ssh-keygen is not installed, and the settings need it", tool_missing),
    Check("key-missing", "a file that `sign` or `verify` names cannot be read", key_missing),
    Check("key-open", "others can read the key that mail is signed with", key_open),
    Check("remote-missing", "the repository of a remote is not there", remote_missing),
    Check("host-unknown", "the key of an SSH host is not known", host_unknown),
    Check("operator-unreached", "`operator` is no agent, or does not accept `carrier.problem`", operator_unreached),
    Check("remote-own-domain", "the `domains` of a remote hold a domain of this office", remote_own_domain),
)
