"""Asking for what is known of the agents and the remotes: inboxes, accounts, programs, keys, hosts."""

import contextlib
import grp
import os
import pwd
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Final

from postmaster import maildir, names
from postmaster.carrier.alarms import TYPE
from postmaster.carrier.git import PROGRAM
from postmaster.decide import check_accepts
from postmaster.doctor import executables, mounts
from postmaster.doctor.facts import Facts, Inbox, Node, Program, RemoteFacts
from postmaster.doctor.nodes import above, closed_to, listed, node
from postmaster.errors import PostmasterError
from postmaster.office import Office, absolute
from postmaster.parties import RegistryView
from postmaster.registry.view import Entry
from postmaster.remotes import Remote, domain_of
from postmaster.settings import Settings

_AHEAD_NS: Final = 300 * 10**9
_LOOKED_AT: Final = 100  # of the unread messages of an inbox: whether its reader can read them
_SSH_URL: Final = re.compile(r"ssh://(?:[^/@]*@)?([^/:]+)(?::(\d+))?/.*")
_SCP_URL: Final = re.compile(r"(?:[^/:@]*@)?([A-Za-z0-9._-]+):(?!//).*")
_SECONDS: Final = 10.0
_OF_MAILDIR: Final = ("new", "cur")  # maildir(5); an inbox has unread/ and read/


def gather(office: Office, facts: Facts, settings: Settings) -> None:
    """Add what is known of agents and remotes; without a usable registry, of remotes only."""
    from postmaster.directory import open_view

    with contextlib.suppress(PostmasterError), open_view(office, write=False) as view:
        for agent in view.all_agents():
            entry = view.entry(agent.class_id or agent.id) or {}
            facts.inboxes.append(_inbox(office, facts, agent.id, agent.inbox, entry))
            if agent.class_id is None:
                _of_entry(office, facts, agent.id, entry)
        _strangers(office, facts)
        local = {domain_of(name) for agent in view.all_agents() for name in agent.names}
        facts.own_domains = [(one.name, both) for one in settings.remotes for both in sorted(local & {*one.domains})]
        if settings.operator and settings.remotes:
            facts.operator_fault = _operator_fault(view, settings.operator)
    wanted = [PROGRAM] if settings.remotes else []
    for remote in settings.remotes:
        found = _remote(office, remote)
        facts.remotes.append(found)
        wanted += (["ssh"] if found.host else []) + (["ssh-keygen"] if found.keys else [])
    facts.tools = {name: shutil.which(name) is not None for name in dict.fromkeys(wanted)}


def _operator_fault(view: RegistryView, operator: str) -> str | None:
    """Return why a letter of the carrier does not reach the operator."""
    agent = view.find(operator)
    if agent is None:
        return f"`operator` is {operator}, and no agent of the registry has this address: `{TYPE}` reaches nobody"
    _, detail = check_accepts(agent, TYPE, f"carrier@{domain_of(operator)}", view)
    return None if detail is None else f"`operator` is refused what it should get: {detail}"


# -- inboxes -------------------------------------------------------------------------------------------------------


def _inbox(office: Office, facts: Facts, agent: str, path: str, entry: Entry) -> Inbox:
    router = facts.asked_for
    folders = {name: node(office, os.path.join(path, name), follow=False, router=router) for name in maildir.FOLDERS}
    inside = path.startswith(office.root.rstrip("/") + "/")
    unread = listed(office, folders[maildir.UNREAD].path) if folders[maildir.UNREAD].is_directory else []
    messages = [one for one in unread if one.kind == "file" and not os.path.basename(one.path).startswith(".")]
    facts.future += [one for one in messages if one.mtime_ns > facts.now_ns + _AHEAD_NS]
    for one in listed(office, path):
        name = os.path.basename(one.path)
        if one.kind == "file" and name.endswith(".md") and names.is_mail(name):
            facts.strays.append(one)
        elif one.is_directory and name in _OF_MAILDIR:
            inner = listed(office, one.path)
            facts.foreign_mail += [mail for mail in inner if mail.kind == "file" and mail.size]
    user = entry.get("user")
    closed: list[Node] = []
    mail_closed: list[Node] = []
    if user and folders[maildir.UNREAD].is_directory:
        way = [(node(office, one), 1) for one in (*above(path), path)]
        own = [(folders[maildir.UNREAD], 7), (folders[maildir.READ], 3)]
        closed = list(closed_to(user, [*way, *own]))
        mail_closed = list(closed_to(user, [(one, 4) for one in messages[-_LOOKED_AT:]]))
    temporaries: list[Node] = []
    with contextlib.suppress(OSError):
        place = folders[maildir.TMP].path
        temporaries = [node(office, os.path.join(place, name)) for name in maildir.stale_temporaries(place)]
    mount = None if inside or folders[maildir.UNREAD].is_there else mounts.missing(path)
    declared_in = str(entry.get("declared_in", ""))
    read_by = (user, group_of(user) if user else None)
    return Inbox(
        agent,
        declared_in,
        node(office, path, router=router),
        folders,
        inside,
        mount,
        *read_by,
        closed,
        mail_closed,
        temporaries,
    )


def group_of(user: str) -> str | None:
    """Return the name of the group of an account."""
    try:
        entry = pwd.getpwuid(int(user)) if user.isdecimal() else pwd.getpwnam(user)
        return grp.getgrgid(entry.pw_gid).gr_name
    except (KeyError, OverflowError):
        return None


def _strangers(office: Office, facts: Facts) -> None:
    """Find mailboxes with unread mail that no agent has, and no archived one had."""
    known = {one.node.path for one in facts.inboxes}
    for one in listed(office, office.inboxes):
        if one.is_directory and one.path not in known and not office.is_archived(one.path):
            with contextlib.suppress(OSError):
                if unread := maildir.messages(one.path, maildir.UNREAD):
                    facts.nobody.append((one, len(unread)))


# -- programs ------------------------------------------------------------------------------------------------------


def _of_entry(office: Office, facts: Facts, agent: str, entry: Entry) -> None:
    """Add what a declaration says of accounts and programs."""
    declared_in = str(entry.get("declared_in", "")) or agent
    user = entry.get("user")
    if user is not None and not _is_account(user):
        facts.unknown_users.append((agent, declared_in, user))
    if entry.get("run"):
        facts.takes_turns.append(agent)
    for key in ("run", "nudge", "idle"):
        if words := entry.get(key):
            facts.programs.append(_program(office, facts, agent, declared_in, key, words[0]))


def _is_account(user: str) -> bool:
    if user.isdecimal():
        return True  # a number needs no name
    try:
        pwd.getpwnam(user)
    except (KeyError, ValueError):
        return False
    return True


def _program(office: Office, facts: Facts, agent: str, declared_in: str, key: str, program: str) -> Program:
    path = os.path.expanduser(program)
    if "/" in path:
        path = os.path.join(office.root, path)
        if trouble := executables.trouble(path, program):
            return Program(agent, declared_in, key, program, *trouble)
        return Program(agent, declared_in, key, program, path=path)
    more = f":{os.path.dirname(sys.executable)}" if key == "run" else ""  # a turn finds `postmaster` (docs/turns.md)
    found = shutil.which(program, path=os.environ.get("PATH", os.defpath) + more)
    if found is None:
        return Program(agent, declared_in, key, program, *executables.not_found(program))
    if trouble := executables.trouble(found, program):
        return Program(agent, declared_in, key, program, *trouble)
    lines = [one for one in facts.starters.found if one.root == facts.real_root and one.is_cron]
    lacking = [one.path for one in lines if one.path and shutil.which(program, path=one.path + more) is None]
    return Program(agent, declared_in, key, program, path=found, missing_in=lacking[0] if lacking else None)


# -- remotes -------------------------------------------------------------------------------------------------------


def _remote(office: Office, remote: Remote) -> RemoteFacts:
    keys = {
        key: node(office, absolute(path, office.root))
        for key, path in (("sign", remote.sign), ("verify", remote.verify))
        if path
    }
    if remote.url.startswith(("/", "file://")):
        return RemoteFacts(remote.name, node(office, "/" + remote.url.removeprefix("file://").lstrip("/")), keys=keys)
    found = _SSH_URL.fullmatch(remote.url) or _SCP_URL.fullmatch(remote.url)
    if found is None:
        return RemoteFacts(remote.name, keys=keys)
    port = found[2] if found.re is _SSH_URL else None
    host = found[1] if port in (None, "22") else f"[{found[1]}]:{port}"
    return RemoteFacts(remote.name, None, found[1], _is_known(host, found[1]), keys)


def _is_known(host: str, name: str) -> bool | None:
    """Tell whether ssh knows the key of a host; None where its configuration says something of the host."""
    for path in ("~/.ssh/config", "/etc/ssh/ssh_config"):
        with contextlib.suppress(OSError), open(os.path.expanduser(path), encoding="utf-8", errors="replace") as stream:
            if any(name in line for line in stream):
                return None
    if shutil.which("ssh-keygen") is None:
        return None
    return any(_finds(host, path) for path in _known_hosts())


def _known_hosts() -> Iterator[str]:
    for path in ("~/.ssh/known_hosts", "~/.ssh/known_hosts2", "/etc/ssh/ssh_known_hosts"):
        if os.path.isfile(os.path.expanduser(path)):
            yield os.path.expanduser(path)


def _finds(host: str, path: str) -> bool:
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        command = ["ssh-keygen", "-F", host, "-f", path]
        done = subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)  # noqa: S603
        return done.returncode == 0
    return False
