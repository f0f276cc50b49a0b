"""Instances of their own for each flow: how they are named, and what they are to routing. Pure.

The instance of a class in a flow follows from the two alone, so that the same flow leads to the same instance, and
nothing has to be kept for that. Its address is a subaddress of its class's (RFC 5233): ``class+KEY@domain``.
"""

import re
from dataclasses import replace
from typing import Final

from postmaster.address import is_mailbox
from postmaster.parties import Agent

PER_FLOW: Final = "per-flow"  # the value of `instances`
KEY_LENGTH: Final = 12
_BASE32: Final = "abcdefghijklmnopqrstuvwxyz234567"  # RFC 4648 section 6, in lower case
_KEY: Final = re.compile(rf"[a-z2-7]{{{KEY_LENGTH}}}")


def key(correlation_id: str) -> str:
    """Return what the instances of a flow are called: 12 letters and digits (base32, 60 bits of its SHA-256)."""
    from hashlib import sha256  # late: it costs as much as a whole idle run, and few offices have such classes

    digest = sha256(correlation_id.encode("utf-8", "surrogateescape")).digest()
    bits = int.from_bytes(digest[:8], "big") >> 4
    return "".join(_BASE32[bits >> 5 * place & 31] for place in reversed(range(KEY_LENGTH)))


def is_key(text: str) -> bool:
    """Tell whether `text`, folded, has the form of a key."""
    return _KEY.fullmatch(text) is not None


def instance_id(class_id: str, flow_key: str) -> str:
    """Return the id of the instance of a class that has this key."""
    return f"{class_id}+{flow_key}"


def split_id(agent_id: str) -> tuple[str, str] | None:
    """Return the class's id and the key in the id of such an instance; None if it can be none."""
    class_id, plus, last = agent_id.partition("+")
    found = last.casefold()
    return (class_id, found) if plus and is_key(found) else None


def split_address(mailbox: str) -> tuple[str, str] | None:
    """Return the class's address and the key in the address of such an instance; None if it can be none."""
    local, _, domain = mailbox.rpartition("@")
    base, plus, detail = local.rpartition("+")
    found = detail.casefold()
    return (f"{base}@{domain}", found) if base and plus and is_key(found) else None


def subaddress(mailbox: str, flow_key: str) -> str:
    """Return the address of the instance with this key of the class that has the address `mailbox`."""
    local, _, domain = mailbox.rpartition("@")
    return f"{local}+{flow_key}@{domain}"


def instance(class_: Agent, flow_key: str, inbox: str, *, terminated: bool) -> Agent:
    """Return an instance as routing sees it: what its class accepts and is, under an address of its own."""
    return replace(
        class_,
        id=instance_id(class_.id, flow_key),
        address=subaddress(class_.address, flow_key),
        inbox=inbox,
        aliases=tuple(found for alias in class_.aliases if is_mailbox(found := subaddress(alias, flow_key))),
        class_id=class_.id,
        class_address=class_.address,
        terminated=terminated,
    )
