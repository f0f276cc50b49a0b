"""The accounts of this machine, and whether an office restricts who may write in whose name."""

import pwd
from collections.abc import Iterable, Iterator
from typing import Any, Final

from postmaster.printable import brief, quoted
from postmaster.registry.compiled import Roster
from postmaster.senders import Senders
from postmaster.settings import Settings

_LARGEST: Final = 2**32 - 2  # (uid_t) -1 is nobody's: chown(2)


class Accounts:
    """What `decide` asks of the accounts (decide.AccountsView). Each is looked up once."""

    def __init__(self) -> None:
        self._uids: dict[str, int | None] = {}

    def uid(self, user: str) -> int | None:
        """Return the number of an account, which may be given as a number; None if there is no such account."""
        if user not in self._uids:
            self._uids[user] = _uid(user)
        return self._uids[user]

    def shown(self, uid: int) -> str:
        """Return an account as people read it: its name and its number."""
        try:
            return f"{quoted(pwd.getpwuid(uid).pw_name)} (uid {uid})"
        except (KeyError, OverflowError):
            return f"uid {uid}"


def _uid(user: str) -> int | None:
    if user.isascii() and user.isdigit():
        return int(user) if len(user) < 20 and int(user) <= _LARGEST else None
    try:
        return pwd.getpwnam(user).pw_uid
    except (KeyError, ValueError):
        return None


def senders(registry: Roster, settings: Settings) -> Senders | None:
    """Return the rule of who may write in whose name; None if this office has none, so that nothing is looked up."""
    if not (settings.require_owner or settings.drop_folders or registry.has_users()):
        return None
    return Senders(registry, Accounts(), required=settings.require_owner)


def warnings(entries: Iterable[dict[str, Any]], *, required: bool) -> Iterator[str]:
    """Yield what is wrong with the accounts that entries name.

    Args:
        required: whether every sender must have a `user`.
    """
    accounts = Accounts()
    without = []
    for entry in entries:
        user = entry.get("user")
        if user is None:
            without.append(entry["id"])
        elif accounts.uid(user) is None:
            yield (
                f"{entry['id']}: its `user` is {quoted(user)}, and there is no such account on this machine: what it "
                "sends waits in the outbox until there is"
            )
    if required and without:
        yield f"post-office.yml says `require_owner: true`, and no mail is accepted from {brief(without)}: no `user`"
