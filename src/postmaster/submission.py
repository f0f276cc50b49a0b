"""Submitting mail: checking a message as the router will, and putting it in the outbox.

Nothing is written unless every recipient would get it: the sender hears of a refusal at once, with its remedy. The
router decides again when it routes, since the registry may have changed by then.
"""

import contextlib
import os
import re
import secrets
import stat
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from postmaster import accounts, delivery_log, durable, message, reasons, times
from postmaster.composition import Draft, compose, without_lines
from postmaster.decide import decide
from postmaster.errors import BadData, CannotCreate, DiskFault, UsageProblem
from postmaster.header import Refused
from postmaster.history import History
from postmaster.office import Office
from postmaster.parties import Agent, RegistryView
from postmaster.printable import brief, quoted
from postmaster.recipients import Relay
from postmaster.registry.compiled import Roster
from postmaster.registry.view import emitted_to
from postmaster.senders import Origin, Senders
from postmaster.settings import Settings
from postmaster.verdict import Envelope, Verdict

_TEMPORARY: Final = re.compile(r"\.send-(\d+)-[0-9a-f]+\.tmp")
_STALE_SECONDS: Final = 3600
_ATTEMPTS: Final = 100


@dataclass(frozen=True, slots=True)
class Submitted:
    """A message that is in the outbox. `since` is where the log ended before."""

    id: str
    correlation_id: str
    file: str
    path: str
    since: tuple[int, int]


class Refusal(BadData):
    """A message that was not sent, because a recipient would not get it.

    Attributes:
        refused: for each of them `to`, `agent`, `reason`, `status`, `detail` and `remedy`.
    """

    def __init__(self, refused: list[dict[str, Any]]) -> None:
        lines = []
        for item in refused:
            lines.append(f"to {quoted(item['to'], 200)}: {item['reason']} ({item['status']}): {item['detail']}")
            lines.append(f"  remedy: {item['remedy']}")
        super().__init__("\n".join([*lines, "nothing was sent"]))
        self.refused = refused


# -- checking ------------------------------------------------------------------------------------------------------


class _NoHistory:
    """A past in which nothing was sent."""

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        return None

    def made(self, envelope: Envelope) -> bool:
        return False


def describe(office: Office, submitted: Submitted) -> dict[str, Any]:
    """Return what was sent as plain data: what both the human and the JSON form say."""
    return {
        "office": office.root,
        "sent": True,
        "state": "submitted",
        "id": submitted.id,
        "correlation_id": submitted.correlation_id,
        "file": submitted.file,
        "path": submitted.path,
    }


def envelope_of(raw: bytes, max_bytes: int) -> Envelope:
    """Return what will be decided on.

    Raises:
        BadData: the message would be a dead letter, whoever it is for.
    """
    if len(raw) > max_bytes:
        hint = _remedy("too-large")
        raise BadData(f"too-large: {len(raw)} bytes are more than max_message_bytes ({max_bytes}); {hint}")
    try:
        start, end, body = message.split(raw)
        header = message.read_header(raw, start, end, body)
        return message.envelope(header, message.body_id(memoryview(raw)[body:]))
    except Refused as fault:
        raise BadData(f"{fault.reason}: {without_lines(fault.detail)}; nothing was sent") from fault


def refusals(
    office: Office,
    envelope: Envelope,
    registry: RegistryView,
    senders: Senders | None,
    relay: Relay | None,
    *,
    may_repeat: bool,
) -> list[dict[str, Any]]:
    """Return who would not get the message, and why; an empty list if all would.

    Args:
        senders: who may write in whose name, if the office restricts it (accounts.senders).
        relay: who is elsewhere (Settings.relay).
        may_repeat: the message may be one that was sent before, so that the past has to be asked.
    """
    origin = Origin(os.geteuid(), folder=_folder(office, envelope.sender, senders))
    if not may_repeat:
        verdicts = decide(envelope, registry, _NoHistory(), senders=senders, origin=origin, relay=relay)
    else:
        history = History(office, write=False)
        try:
            verdicts = decide(envelope, registry, history, senders=senders, origin=origin, relay=relay)
        finally:
            history.close()
    return [_refused(verdict) for verdict in verdicts if verdict.reason is not None]


def _refused(verdict: Verdict) -> dict[str, Any]:
    assert verdict.reason is not None
    return {
        "to": verdict.recipient,
        "agent": verdict.agent.id if verdict.agent else None,
        "reason": verdict.reason,
        "status": reasons.REASONS[verdict.reason].status,
        "detail": verdict.detail,
        "remedy": _remedy(verdict.reason),
    }


def _remedy(reason: str) -> str:
    """Return the remedy for mail that has not been sent, so that there is no dead letter to retry."""
    return re.sub(r",? (then|or) `postmaster dead-letter retry[^`]*`$", "", reasons.remedy(reason))


# -- sending -------------------------------------------------------------------------------------------------------


def send(
    office: Office,
    draft: Draft,
    registry: Roster,
    settings: Settings,
    *,
    may_repeat: bool,
    stage: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> Submitted:
    """Check a message and put it in the outbox.

    Commit point: the rename into its final name. A crash before it leaves a private name that is no mail.

    Args:
        may_repeat: its `sent_at` was given, so that the same message may have been sent before.
        stage: a directory in which it waits, under the name that it will have in the outbox, instead of going there.

    Raises:
        Refusal, BadData: it would not be delivered; nothing is written.
        CannotCreate: the outbox cannot be written to.
    """
    raw = compose(draft)
    envelope = envelope_of(raw, settings.max_message_bytes)
    senders = accounts.senders(registry, settings)
    refused = refusals(office, envelope, registry, senders, settings.relay(office), may_repeat=may_repeat)
    if refused:
        raise Refusal(refused)
    since = (0, 0)
    with contextlib.suppress(PermissionError):  # a log that is closed to this account
        since = delivery_log.position(office)
    folder = _folder(office, envelope.sender, senders) if settings.drop_folders else None
    place = office.outbox if stage is None else stage
    if stage is not None and folder is not None:
        os.makedirs(os.path.join(stage, folder), exist_ok=True)
    file = put(place, raw, clock(), folder)
    return Submitted(envelope.id, envelope.correlation_id, file, office.shown(os.path.join(place, file)), since)


def _folder(office: Office, sender: str, senders: Senders | None) -> str | None:
    """Return the drop folder of a sender, if there is one. One that others have made is none."""
    agent = senders.find(sender) if senders is not None else None
    if agent is None:
        return None
    try:
        seen = os.lstat(os.path.join(office.outbox, agent.id))
        ours = seen.st_uid in (os.stat(office.outbox).st_uid, 0)
    except OSError:
        return None
    return agent.id if ours and stat.S_ISDIR(seen.st_mode) else None


def put(outbox: str, raw: bytes, now_ns: int, folder: str | None = None) -> str:
    """Write a message into an outbox, durably and whole or not at all; return its name there.

    Args:
        outbox: its path, or that of a directory which mail leaves for it.
        folder: the drop folder that it goes into.

    Raises:
        CannotCreate: the system refused; nothing is left behind.
        DiskFault: it is in the outbox, but perhaps not durably.
    """
    place = outbox if folder is None else os.path.join(outbox, folder)
    _clear_stale(place, now_ns)
    temporary = os.path.join(place, f".send-{os.getpid()}-{secrets.token_hex(4)}.tmp")
    try:
        durable.write_new(temporary, raw, sync=True, mode=0o664)  # never open to everybody, whatever the umask
        try:
            _show_to_group(place, temporary)
            name = _publish(place, temporary, now_ns)
        except BaseException:
            durable.remove(temporary)
            raise
    except OSError as fault:
        raise CannotCreate(f"{place}: cannot be written to: {fault.strerror}; nothing was sent") from fault
    try:
        _sync_name(place, name)
    except OSError as fault:
        raise DiskFault(
            f"{os.path.join(place, name)}: sent, but it may not outlast a power failure: {fault.strerror}; "
            "do not send it again without looking"
        ) from fault
    return name if folder is None else f"{folder}/{name}"


def _show_to_group(place: str, temporary: str) -> None:
    """Let the group of a letter read it where the outbox gives its letters its own group (set-group-id): the router's.

    With a umask of 077 a router of another account could not read it otherwise.
    """
    if not os.stat(place).st_mode & stat.S_ISGID:
        return
    mode = stat.S_IMODE(os.lstat(temporary).st_mode)
    if not mode & stat.S_IRGRP:
        os.chmod(temporary, mode | stat.S_IRGRP)
        durable.sync_file(temporary)


def _sync_name(place: str, name: str) -> None:
    try:
        durable.sync_directory(place)
    except PermissionError:  # an outbox that may be written to and not be listed
        with contextlib.suppress(FileNotFoundError):  # a router has taken it
            durable.sync_through(os.path.join(place, name))


def _publish(place: str, temporary: str, now_ns: int) -> str:
    for attempt in range(_ATTEMPTS):
        name = f"{times.compact_time(now_ns)}-{secrets.token_hex(4)}.md"
        try:
            durable.rename_new(temporary, os.path.join(place, name))
            return name
        except FileExistsError:
            if attempt == _ATTEMPTS - 1:
                raise
    raise AssertionError("the last attempt returns or raises")


def _clear_stale(place: str, now_ns: int) -> None:
    """Remove what senders that were killed in the middle left an hour ago or more."""
    try:
        with os.scandir(place) as entries:
            found = [entry.path for entry in entries if _TEMPORARY.fullmatch(entry.name)]
        for path in found:
            if now_ns - os.lstat(path).st_mtime_ns > _STALE_SECONDS * 10**9:
                durable.remove(path)
    except OSError:
        return  # litter costs nothing, and the write that follows says what is wrong


# -- answering -----------------------------------------------------------------------------------------------------


def reply_type(agent: Agent, emits: list[dict[str, Any]], recipient: Agent | None, address_: str) -> str:
    """Return the only type that `agent` declares to send to this address.

    Raises:
        UsageProblem: there is not exactly one; says what the recipient accepts.
    """
    types = emitted_to(emits, recipient, address_)
    if len(types) == 1:
        return types.pop()
    accepted = [accept.type for accept in recipient.accepts] if recipient is not None else []
    why = f"{agent.id} emits {brief(sorted(types))} to it" if types else f"{agent.id} emits no one type to it"
    raise UsageProblem(f"--type is needed: {why}; {quoted(address_)} accepts {brief(accepted, 20) or 'nothing'}")


def choose_sender(
    office: Office, draft: Draft, own: list[str], registry: Roster, settings: Settings, *, may_repeat: bool
) -> Draft:
    """Return `draft` from the first of an agent's `own` addresses that all recipients accept, else from the first."""
    senders = accounts.senders(registry, settings)
    for sender in own:
        candidate = replace(draft, sender=sender)
        envelope = envelope_of(compose(candidate), settings.max_message_bytes)
        if not refusals(office, envelope, registry, senders, settings.relay(office), may_repeat=may_repeat):
            return candidate
    return replace(draft, sender=own[0])
