"""Addresses and the patterns that match them. Pure: no file, clock or environment.

An address is ``local@domain`` (RFC 5321 section 4.1.2, dot-string form without quoting), ``role:NAME`` or
``agent:ID``. Addresses compare case-insensitively, local part included: an office is one authority, and two
agents that differ only in case would be one typing mistake apart.
"""

import re
from collections.abc import Iterable
from typing import Final

# RFC 5321 section 4.5.3.1: 64 octets of local part, 255 of domain. The characters are RFC 5322 `atext` with
# dots, less `/` and `|`, which have no business in something that is typed at a shell.
_ATOM: Final = r"[A-Za-z0-9!#$%&'*+=?^_`{}~-]+"
_LABEL: Final = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
MAILBOX_PATTERN: Final = rf"{_ATOM}(?:\.{_ATOM})*@{_LABEL}(?:\.{_LABEL})*"
NAME_PATTERN: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,126}[A-Za-z0-9_-])?"
# An id: a name, or for a live instance CLASS+NAME or CLASS+NAME+NUMBER, which no declaration can take.
ID_PATTERN: Final = rf"{NAME_PATTERN}(?:\+{NAME_PATTERN}){{0,2}}"

_MAILBOX: Final = re.compile(MAILBOX_PATTERN)
_NAME: Final = re.compile(NAME_PATTERN)
_ID: Final = re.compile(ID_PATTERN)

ROLE: Final = "role:"
AGENT: Final = "agent:"
CLASS: Final = "class:"


def fold(address: str) -> str:
    """Return the form in which two addresses, names or roles are compared."""
    return address.casefold()


def is_mailbox(text: str) -> bool:
    """Tell whether `text` has the form ``local@domain``."""
    local, _, domain = text.rpartition("@")
    return len(local) <= 64 and len(domain) <= 255 and _MAILBOX.fullmatch(text) is not None


def is_name(text: str) -> bool:
    """Tell whether `text` can be a declared id, a role or an instance's name: letters, digits, and ``._-`` inside."""
    return _NAME.fullmatch(text) is not None


def is_id(text: str) -> bool:
    """Tell whether `text` can be the id of an agent, declared or live."""
    return _ID.fullmatch(text) is not None


def is_recipient(text: str) -> bool:
    """Tell whether `text` can stand in ``to``: a mailbox, ``role:NAME`` or ``agent:ID``."""
    if text.startswith(ROLE):
        return is_name(text[len(ROLE) :])
    if text.startswith(AGENT):
        return is_id(text[len(AGENT) :])
    return is_mailbox(text)


def is_sender_pattern(text: str) -> bool:
    """Tell whether `text` can stand in ``accepts_from``: a mailbox, ``*@domain``, ``*``, ``role:``, ``class:``."""
    if text == "*":
        return True
    if text.startswith("*@"):
        return is_mailbox("x" + text[1:])
    for prefix in (ROLE, CLASS):
        if text.startswith(prefix):
            return is_name(text[len(prefix) :])
    return is_mailbox(text)


def matches_sender(pattern: str, sender: str, *, roles: Iterable[str] = (), classes: Iterable[str] = ()) -> bool:
    """Tell whether `pattern` of an ``accepts_from`` admits `sender`.

    Args:
        roles: the roles the sender holds.
        classes: the ids of the registry entries (classes) the sender belongs to.
    """
    if pattern == "*":
        return True
    if pattern.startswith("*@"):
        return fold(sender.rpartition("@")[2]) == fold(pattern[2:])
    if pattern.startswith(ROLE):
        return fold(pattern[len(ROLE) :]) in {fold(role) for role in roles}
    if pattern.startswith(CLASS):
        return fold(pattern[len(CLASS) :]) in {fold(name) for name in classes}
    return fold(pattern) == fold(sender)


def without_detail(mailbox: str) -> str:
    """Return the address that a subaddress belongs to (RFC 5233: ``user+detail@domain``); any other as it is."""
    local, _, domain = mailbox.rpartition("@")
    base, _, detail = local.rpartition("+")
    return f"{base}@{domain}" if base and detail else mailbox


def matches_type(pattern: str, message_type: str) -> bool:
    """Tell whether `pattern`, a type or a type ending in ``.*``, covers `message_type`. Types keep their case."""
    if pattern.endswith(".*"):
        return message_type.startswith(pattern[:-1]) and len(message_type) > len(pattern) - 1
    return pattern == message_type


def nearest(wrong: str, known: Iterable[str]) -> str | None:
    """Return the one of `known` that `wrong` was most likely meant to be, or None if none is near.

    Two addresses are near if one of their halves is the same and the other nearly is, or if both nearly are: a shared
    domain alone says nothing, and a wrong hint is worse than none.
    """
    best, found = 0.0, None
    for name in known:
        score = _likeness(fold(wrong), fold(name))
        if score > best:
            best, found = score, name
    return found


def _likeness(wrong: str, name: str) -> float:
    """Return how alike two names are: 0 if they are not near each other, at most 1."""
    if wrong == name:
        return 1.0
    halves = [(wrong, name)]
    if "@" in wrong and "@" in name:
        halves = list(zip(wrong.rsplit("@", 1), name.rsplit("@", 1), strict=True))
    elif "@" in name:
        halves = [(wrong, name.rsplit("@", 1)[0])]  # the domain was left out
    import difflib  # late: only a wrong address needs it

    ratios = [difflib.SequenceMatcher(None, left, right).ratio() for left, right in halves]
    return sum(ratios) / len(ratios) if min(ratios) >= 0.7 else 0.0
