"""Registering a live instance of a class, and archiving it."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from postmaster import address, maildir, per_flow, times
from postmaster.delivery_log import Record
from postmaster.directory import claims, returning, store
from postmaster.directory.claims import Claim
from postmaster.directory.view import DirectoryView
from postmaster.errors import BadData, CannotCreate, DiskFault
from postmaster.office import Office
from postmaster.parties import Agent
from postmaster.printable import brief, quoted
from postmaster.registry import compiled
from postmaster.registry.compiled import CompiledRegistry

REGISTERED: Final = "registered"  # the log's `action`
ARCHIVED: Final = "archived"


class NameTaken(BadData):
    """Somebody has this name. `held_by` is its id; `since` when it was claimed, None for an agent of the registry."""

    def __init__(self, name: str, who: str, held_by: str, since: str | None) -> None:
        super().__init__(f"the name {quoted(name)} is taken: {who}; choose another")
        self.held_by = held_by
        self.since = since


@dataclass(frozen=True, slots=True)
class Archived:
    """An instance that was archived, and how many messages it leaves unread; None: that cannot be told."""

    claim: Claim
    inbox: str
    unread: int | None


def register(
    office: Office,
    class_text: str,
    name: str | None,
    roles: Sequence[str],
    *,
    clock: Callable[[], int] = time.time_ns,
) -> Claim:
    """Make a live instance of a class; without a name one is made. Its mailbox is there before it can be found.

    Raises:
        NameTaken: somebody has the name; says who, and since when.
        BadData: no such class, no such name or role, or as many of the class are alive as may be.
        CannotCreate, DiskFault: the disk refused (store.add).
    """
    office.require()
    for role in roles:
        if not address.is_name(role):
            raise BadData(f"{quoted(role)} is no role: letters, digits, and . _ - inside, at most 128")
    with store.locked(office), compiled.open_view(office) as registry:
        class_, limit = _class(registry, class_text)
        domain = class_.address.rpartition("@")[2]
        if name is not None:
            wrong = claims.problem(name, domain)
            if wrong is not None:
                raise BadData(f"{quoted(name)} cannot be a name: {wrong}")
            _check_free(office, registry, name)
        _check_room(office, class_, limit)
        chosen = name if name is not None else _made_name(office, registry, class_)
        claim = Claim(
            id=claims.new_id(class_.id, chosen, frozenset(store.archived_ids(office))),
            name=chosen,
            address=f"{chosen}@{domain}",
            class_id=class_.id,
            roles=tuple({address.fold(role): role for role in roles}.values()),
            since=times.timestamp(clock()),
        )
        inbox = office.default_inbox(claim.id)
        try:
            maildir.make(inbox)
        except OSError as fault:
            raise CannotCreate(f"{fault.filename or inbox}: {fault.strerror}; nothing was claimed") from fault
        try:
            store.add(office, claim, _record(office, claim, REGISTERED, claim.since))
        except FileExistsError as fault:  # not one of ours, or one that cannot be read
            raise CannotCreate(
                f"{store.live_path(office, chosen)}: in the way, and no claim that can be read; look, and remove it"
            ) from fault
        return claim


def _class(registry: CompiledRegistry, text: str) -> tuple[Agent, int | None]:
    """Return a class, and how many of it may be alive; None for any number."""
    plain = text.removeprefix(address.CLASS).removeprefix(address.AGENT)
    found = registry.agent(plain) or registry.find(plain)
    if found is None:
        near = registry.suggest(text if "@" in text else address.AGENT + plain)
        hint = f"; did you mean {near.removeprefix(address.AGENT)}?" if near else ""
        raise BadData(f"no agent has the id or address {quoted(text)}{hint} (`postmaster registry show` lists them)")
    instances: Any = (registry.entry(found.id) or {}).get("instances")
    if not instances:
        raise BadData(
            f"{found.id} is no class: its declaration has no `instances`; write `instances: many`, or "
            "`instances: {max: 4}`, there, then `postmaster registry merge`"
        )
    if instances == per_flow.PER_FLOW:
        raise BadData(
            f"{found.id} has `instances: per-flow`, which nobody registers: mail to {found.address} in a new flow "
            "makes one"
        )
    if instances == "single":
        raise BadData(f"{found.id} has `instances: single`: it is the only one; write `instances: many` there for more")
    return found, None if instances == "many" else int(instances["max"])


def _check_free(office: Office, registry: CompiledRegistry, name: str) -> None:
    held = store.holder(office, name)
    if held is not None:
        raise NameTaken(name, f"{held.address} ({held.id}) has held it since {held.since}", held.id, held.since)
    agent = _in_registry(registry, name)
    if agent is not None:
        raise NameTaken(name, f"it is that of {agent.id} <{agent.address}> in the registry", agent.id, None)


def _in_registry(registry: CompiledRegistry, name: str) -> Agent | None:
    """Return the agent of the registry that has this name as its id, or in its address or an alias."""
    return registry.agent(name) or registry.with_local_part(name)


def taken_names(office: Office) -> list[str]:
    """Return, in words, which living instances have a name that the registry has too."""
    found = []
    with compiled.open_view(office, write=False) as registry:
        for claim in store.living(office):
            agent = _in_registry(registry, claim.name)
            if agent is not None:
                who = f"{agent.id} <{agent.address}> has the name of {claim.id} <{claim.address}>, which is alive"
                found.append(f"{who}: where the addresses are one, the mail is now for {agent.id}")
    return found


def _check_room(office: Office, class_: Agent, limit: int | None) -> None:
    if limit is None:
        return
    alive = [claim.name for claim in store.living(office) if claims.key(claim.class_id) == claims.key(class_.id)]
    if len(alive) >= limit:
        raise BadData(
            f"{class_.id} is full: {len(alive)} of at most {limit} are alive ({brief(alive)}); archive one first"
        )


def _made_name(office: Office, registry: CompiledRegistry, class_: Agent) -> str:
    """Return the made name with the lowest number that nobody has."""
    held = frozenset(store.live_names(office))
    names = claims.made_names(class_.address)
    return next(name for name in names if claims.key(name) not in held and _in_registry(registry, name) is None)


def archive(office: Office, text: str, *, clock: Callable[[], int] = time.time_ns) -> Archived:
    """Archive a live instance: its name is free then; its mailbox stays as it is, as history.

    The next run gives what is unread there back to its senders (returning.py): the caller makes one.

    Args:
        text: its name, its address, or ``agent:ID``.

    Raises:
        BadData: nobody is alive under it.
        CannotCreate, DiskFault: the disk refused (store.retire).
    """
    office.require()
    with store.locked(office), compiled.open_view(office) as registry:
        view = DirectoryView(office, registry, write=False)
        claim = _living(office, view, text)
        done = replace(claim, archived=times.timestamp(clock()))
        assert done.archived is not None
        inbox = office.default_inbox(done.id)
        unread = _unread(inbox)
        try:
            returning.mark(office, done.id)
        except OSError as fault:
            raise CannotCreate(
                f"{fault.filename or office.returning}: {fault.strerror}; nothing was changed"
            ) from fault
        try:
            store.retire(office, done, _record(office, done, ARCHIVED, done.archived))
        except FileExistsError as fault:
            raise CannotCreate(f"{store.archive_path(office, done.id)}: in the way; look at it") from fault
        return Archived(done, inbox, unread)


def _unread(inbox: str) -> int | None:
    """Return how many messages are unread; None if that cannot be told, which keeps nobody from being archived."""
    try:
        return len(maildir.messages(inbox, maildir.UNREAD))
    except OSError:
        return None


def _living(office: Office, view: DirectoryView, text: str) -> Claim:
    """Return the live instance that `text` names."""
    found = view.agent(text.removeprefix(address.AGENT)) or view.find(text)
    claim = view.claim(found.id) if found is not None else None
    if claim is not None:
        return claim
    if found is not None and found.per_flow and found.class_id is not None:
        if found.terminated:
            raise BadData(f"{found.id} was archived before" + archived_hint(office, found.id))
        return flow_claim(office, found)
    if found is not None:
        raise BadData(f"{found.id} is an agent of the registry, not a live instance: its declaration says that it is")
    near = view.suggest(text)
    hint = f"; did you mean {near.removeprefix(address.AGENT)}?" if near else ""
    hint += archived_hint(office, text)
    raise BadData(f"nobody is alive under {quoted(text)}{hint}; `postmaster directory` lists the living")


def flow_claim(office: Office, agent: Agent) -> Claim:
    """Return an instance for a flow in the form of a claim; it is alive since its mailbox was made.

    Raises:
        DiskFault: its mailbox cannot be looked at.
    """
    assert agent.class_id is not None
    try:
        since = os.stat(agent.inbox).st_mtime_ns  # its folders are made with it, and nothing else changes it
    except OSError as fault:
        raise DiskFault(f"{agent.inbox}: {fault.strerror}") from fault
    name = claims.name_of(agent.id)
    assert name is not None
    return Claim(agent.id, name, agent.address, agent.class_id, (), times.timestamp(since))


def archived_hint(office: Office, text: str) -> str:
    """Return, for a text that names nobody alive, which archived instances it may mean; else an empty text."""
    plain = text.removeprefix(address.AGENT)
    name = claims.key(claims.name_of(plain) or plain.rpartition("@")[0] or plain)
    ids = [one for one in store.archived_ids(office) if claims.name_of(one) == name]
    found = [claim for one in ids if (claim := store.archived(office, one)) is not None]
    if not found:
        return ""
    last = max(found, key=lambda claim: claim.archived or "")
    return f"; {last.id} was archived at {last.archived}"


def _record(office: Office, claim: Claim, action: str, moment: str) -> Record:
    roles = f", roles {', '.join(claim.roles)}" if claim.roles else ""
    return {
        "time": moment,
        "action": action,
        "agent": claim.id,
        "path": office.shown(office.default_inbox(claim.id)),
        "detail": f"{claim.address}, of class {claim.class_id}{roles}",
    }
