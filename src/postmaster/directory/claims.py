"""What a claim is: a name, an address and roles, held by one live instance of a class. Pure.

The id of an instance is ``CLASS+NAME``, or ``CLASS+NAME+2`` and so on if an archived one has that. It is never given
again, so that the mailbox, which is named after it, belongs to one instance for ever.
"""

import json
import re
from collections.abc import Container, Iterator
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from postmaster import address, reports
from postmaster.parties import Agent

VERSION: Final = 1
RESERVED: Final = reports.LOCAL_PART
_MAX_LOCAL_PART: Final = 64
_ODD: Final = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass(frozen=True, slots=True)
class Claim:
    """Who holds a name. Times are RFC 3339; `archived` is when the name was released."""

    id: str
    name: str
    address: str
    class_id: str
    roles: tuple[str, ...]
    since: str
    archived: str | None = None

    def holds(self, role: str) -> bool:
        """Tell whether it holds a role."""
        return address.fold(role) in {address.fold(one) for one in self.roles}

    def to_json(self) -> bytes:
        """Return the claim as its file holds it."""
        fields: dict[str, Any] = {
            "version": VERSION,
            "id": self.id,
            "name": self.name,
            "address": self.address,
            "class": self.class_id,
            "roles": list(self.roles),
            "since": self.since,
        }
        if self.archived is not None:
            fields["archived"] = self.archived
        return json.dumps(fields, indent=2).encode("ascii") + b"\n"


def from_json(raw: bytes) -> Claim | None:
    """Return the claim in a file, or None if it is not as we write them."""
    try:
        found = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or found.get("version") != VERSION or not isinstance(found.get("roles"), list):
        return None
    texts = [found.get(name) for name in ("id", "name", "address", "class", "since")]
    texts += [*found["roles"], found.get("archived", "")]
    if not all(isinstance(text, str) for text in texts):
        return None
    claim = Claim(
        found["id"],
        found["name"],
        found["address"],
        found["class"],
        tuple(found["roles"]),
        found["since"],
        found.get("archived"),
    )
    right = address.is_id(claim.id) and claim.id.count("+") > 0 and claim.id.split("+")[1] == claim.name
    right = right and claim.id.startswith(claim.class_id + "+") and address.is_mailbox(claim.address)
    return claim if right and all(address.is_name(role) for role in claim.roles) else None


def name_of(instance_id: str) -> str | None:
    """Return the name in the id of an instance; None if it is no such id."""
    return instance_id.split("+")[1] if "+" in instance_id and address.is_id(instance_id) else None


def key(name: str) -> str:
    """Return what a name is kept under: names that differ in case are one."""
    return address.fold(name)


def problem(name: str, domain: str) -> str | None:
    """Return why nobody can be called `name` at `domain`, or None."""
    if not address.is_name(name) or not address.is_mailbox(f"{name}@{domain}"):
        return f"a name has letters, digits, and . _ - inside (no two dots together), at most {_MAX_LOCAL_PART}"
    if key(name) == RESERVED:
        return "that is the office itself"
    return None


def made_names(class_address: str) -> Iterator[str]:
    """Yield the names that are made for the instances of a class, in order: its local part and a number."""
    stem = _ODD.sub("-", class_address.rpartition("@")[0])[: _MAX_LOCAL_PART - 8].strip("._-") or "agent"
    return (f"{stem}-{number}" for number in count(1))


def new_id(class_id: str, name: str, taken: Container[str]) -> str:
    """Return an id for a new instance. `taken`: the ids of archived ones, as `key` has them."""
    ids = (f"{class_id}+{name}" + (f"+{number}" if number > 1 else "") for number in count(1))
    return next(one for one in ids if key(one) not in taken)


def as_agent(claim: Claim, class_: Agent | None, inbox: str) -> Agent:
    """Return the instance as routing sees it. One whose class has left the registry accepts nothing."""
    base = class_ or Agent(claim.class_id, claim.address, inbox, ())
    return replace(
        base,
        id=claim.id,
        address=claim.address,
        inbox=inbox,
        aliases=(),
        roles=claim.roles,
        class_id=claim.class_id,
    )
