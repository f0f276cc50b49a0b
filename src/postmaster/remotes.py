"""The other offices that mail is exchanged with, as post-office.yml names them: whose domains are whose. Pure.

The router asks it who is elsewhere; how mail gets there is the carrier's affair.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from postmaster import address

CARRIED: Final = "carried-"  # how the names of letters in the outbox begin that the carrier has handed in
UNKNOWN: Final = "_"  # in place of a remote's name where nobody can say who brought a letter
UNSIGNED: Final = "unsigned"
BADLY_SIGNED: Final = "badly-signed"
_DOUBT: Final = f"{UNSIGNED}|{BADLY_SIGNED}"
_FILE: Final = re.compile(rf"{CARRIED}({address.NAME_PATTERN}|{UNKNOWN})-([0-9a-f]{{32}})(?:-({_DOUBT}))?(?:-\d+)?\.md")
_KEPT: Final = frozenset("abcdefghijklmnopqrstuvwxyz0123456789@_-.")
_ESCAPE: Final = re.compile(r"%([0-9a-f]{2})")
MAX_NAME: Final = 200  # characters of an encoded address: it is the name of a file and of a ref


@dataclass(frozen=True, slots=True)
class Remote:
    """Another office, or a hub between offices.

    Attributes:
        name: what this office calls it.
        url: where its mail repository is, as git writes it.
        domains: those whose mail it brings and takes, folded.
        max_messages, max_bytes: the most that it may bring in one pass.
        sign: the file of the SSH key that letters to it are signed with; empty: they are not.
        verify: the file of allowed signers (ssh-keygen(1)) that its letters are held against; empty: they are not.
    """

    name: str
    url: str
    domains: tuple[str, ...]
    max_messages: int = 10_000
    max_bytes: int = 64 * 1024 * 1024
    sign: str = ""
    verify: str = ""


class Stated(NamedTuple):
    """What the name of a letter in the outbox says of where it came from. `doubt`: how its signature failed, or ""."""

    remote: str
    digest: str
    doubt: str


class Remotes:
    """The remotes of an office. False if there are none."""

    def __init__(self, remotes: Iterable[Remote] = ()) -> None:
        self.all: Final = tuple(remotes)
        self._by_domain: Final = {domain: remote for remote in self.all for domain in remote.domains}
        self._by_name: Final = {remote.name: remote for remote in self.all}

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, mailbox: str) -> Remote | None:
        """Return the remote that the domain of an address belongs to."""
        return self._by_domain.get(domain_of(mailbox))

    def mismatch(self, stated: Stated, sender: str) -> tuple[str, str] | None:
        """Return why a letter that says that this remote has brought it is not believed to be from `sender`.

        Returns:
            The reason and what in particular; None if it is.
        """
        remote = self._by_name.get(stated.remote)
        if remote is None:
            return "origin-mismatch", f"it says that it came from {stated.remote}, which is no remote of this office"
        domain = domain_of(sender)
        if domain not in remote.domains:
            allowed = ", ".join(remote.domains)
            return (
                "origin-mismatch",
                f"{remote.name} brought it, and may bring mail from {allowed} only, not from {sender}",
            )
        if not stated.doubt or not remote.verify:
            return None
        what = "without a signature" if stated.doubt == UNSIGNED else "with a signature that does not hold"
        return "signature-mismatch", f"{remote.name} brought it {what}; {remote.verify} says who signs for {domain}"


def domain_of(mailbox: str) -> str:
    """Return the domain of an address, folded."""
    return address.fold(mailbox.rpartition("@")[2])


def file_name(stated: Stated) -> str:
    """Return what a letter that a remote has brought is called in the outbox. Its digest is the end of its id there."""
    doubt = f"-{stated.doubt}" if stated.doubt else ""
    return f"{CARRIED}{stated.remote}-{stated.digest}{doubt}.md"


def stated(file: str) -> Stated | None:
    """Return what the name of a letter that was carried here says; None for any other name."""
    found = _FILE.fullmatch(file)
    return Stated(found[1], found[2], found[3] or "") if found else None


def encode(mailbox: str) -> str:
    """Return the name under which an address stands in a ref or directory: folded, and safe for git and any disk.

    Raises:
        ValueError: it is no address, or too long to be a name.
    """
    if not address.is_mailbox(mailbox):
        raise ValueError(f"not an address: {mailbox!r}")
    name = "".join(c if c in _KEPT else "".join(f"%{b:02x}" for b in c.encode()) for c in address.fold(mailbox))
    if name.endswith(".lock"):  # git keeps that for itself: git-check-ref-format(1)
        name = name.removesuffix(".lock") + "%2elock"
    if len(name) > MAX_NAME:
        raise ValueError(f"{mailbox}: too long for mail between offices")
    return name


def decode(name: str) -> str:
    """Return the address that `encode` has written so.

    Raises:
        ValueError: it has written no such name.
    """
    mailbox = _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name)
    if not address.is_mailbox(mailbox) or encode(mailbox) != name:
        raise ValueError(f"not the name of an address: {name!r}")
    return mailbox
