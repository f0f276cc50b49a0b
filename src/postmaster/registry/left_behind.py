"""Unread mail that a change of the registry leaves where nobody reads any more, in words, for the operator."""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping

from postmaster import address, maildir, per_flow
from postmaster.errors import ConfigurationFault
from postmaster.office import Office
from postmaster.registry.view import Entry


def of_inboxes(office: Office, left: Iterable[tuple[Entry, str]], inboxes: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each inbox that its agent leaves with unread mail in it.

    Args:
        left: the entry as it was, and why it leaves.
        inboxes: those of the new registry: agent id -> absolute path.
    """
    now = {os.path.realpath(path): agent_id for agent_id, path in inboxes.items()}
    for entry, why in left:
        try:
            path = office.inbox(entry["inbox"])
            count = len(maildir.messages(path, maildir.UNREAD))
        except (OSError, ValueError, ConfigurationFault) as fault:
            yield f"{entry['id']} {why}; whether its old inbox holds unread mail cannot be told: {fault}"
            continue
        taken_by = now.get(os.path.realpath(path))
        if not count or taken_by == entry["id"]:
            continue
        where = office.shown(os.path.join(path, maildir.UNREAD))
        then = f"the inbox is now that of {taken_by}" if taken_by else "the mail is kept, but nobody reads there now"
        yield f"UNREAD MAIL: {entry['id']} {why} and leaves {_messages(count)} in {where}: {then}"


def of_flows(office: Office, before: Mapping[str, Entry], after: Mapping[str, Entry]) -> Iterator[str]:
    """Yield a warning where a class begins or ceases to have an instance for each flow, and mail is left unread.

    Args:
        before, after: the entries by their folded ids.
    """
    ended = {key: entry for key, entry in before.items() if _has(entry) and not _has(after.get(key, {}))}
    for entry in ended.values():
        inboxes = list(_instances(office, entry["id"]))
        count = sum(_count(inbox) for inbox in inboxes)
        if count:
            where = f"{office.shown(office.default_inbox(entry['id']))}+*/{maildir.UNREAD}"
            yield (
                f"UNREAD MAIL: {entry['id']} has no instances for flows any more and leaves {_messages(count)} in "
                f"{where}: the mail is kept, but nobody reads there now"
            )
    for key, entry in after.items():
        if not _has(entry) or key not in before or _has(before[key]):
            continue
        with contextlib.suppress(ConfigurationFault):
            inbox = office.inbox(entry["inbox"])
            if count := _count(inbox):
                yield (
                    f"UNREAD MAIL: {entry['id']} has an instance for each flow now and leaves {_messages(count)} in "
                    f"{office.shown(os.path.join(inbox, maildir.UNREAD))}: no instance reads there"
                )


def _has(entry: Entry) -> bool:
    return entry.get("instances") == per_flow.PER_FLOW


def _instances(office: Office, class_id: str) -> Iterator[str]:
    with contextlib.suppress(OSError):
        for name in os.listdir(office.inboxes):
            parts = per_flow.split_id(name)
            inbox = office.default_inbox(name)
            if parts is not None and address.fold(parts[0]) == address.fold(class_id) and not office.is_archived(inbox):
                yield inbox


def _count(inbox: str) -> int:
    try:
        return len(maildir.messages(inbox, maildir.UNREAD))
    except OSError:
        return 0  # closed to whoever merges


def _messages(count: int) -> str:
    return "1 unread message" if count == 1 else f"{count} unread messages"
