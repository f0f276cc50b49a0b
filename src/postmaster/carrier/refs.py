"""What refs and objects of the mail repository are called. Pure.

A name is made from an address, and an object id is forty hex digits: nothing else can be said to git.
"""

import re
from dataclasses import dataclass
from typing import Final

from postmaster import remotes

INBOX: Final = "refs/postmaster/inbox/"
ENTITY: Final = "refs/postmaster/entity/"
HANDED: Final = "refs/postmaster/handed/"  # how far an inbox of this office was handed in; never leaves it
KEPT: Final = "refs/postmaster/kept/"
BUILDING: Final = "refs/postmaster/building/"
NOTHING: Final = "0" * 40
_OID: Final = re.compile(r"[0-9a-f]{40}")


@dataclass(frozen=True, slots=True)
class Oid:
    """The id of a git object that exists."""

    hex: str

    def __post_init__(self) -> None:
        if not isinstance(self.hex, str) or not _OID.fullmatch(self.hex) or self.hex == NOTHING:
            raise ValueError(f"no object id: {self.hex!r}")


@dataclass(frozen=True, slots=True)
class Inbox:
    """The mailbox ref of an address."""

    address: str

    def __post_init__(self) -> None:
        remotes.encode(self.address)

    @property
    def name(self) -> str:
        """The encoded address: the last part of its refs."""
        return remotes.encode(self.address)


@dataclass(frozen=True, slots=True)
class Entity:
    """The ref of an agent's transcript. It is in no refspec: nothing can fetch or push it."""

    address: str

    def __post_init__(self) -> None:
        remotes.encode(self.address)

    @property
    def ref(self) -> str:
        """Its name."""
        return ENTITY + remotes.encode(self.address)

    @property
    def building(self) -> str:
        """Return the name of the ref under which a history is made that is to take its place."""
        return BUILDING + remotes.encode(self.address)

    def kept(self, head: Oid) -> str:
        """Return the name of the ref that keeps what the transcript was before another history was adopted."""
        return self.kept_below + head.hex

    @property
    def kept_below(self) -> str:
        """Return how the names of those refs begin."""
        return f"{KEPT}{remotes.encode(self.address)}/"


# Of a ref of this repository: its name, where it goes (None: away), and where it was (None: nowhere).
Change = tuple[str, Oid | None, Oid | None]
