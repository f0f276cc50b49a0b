"""What a batch has written and no receiver sees yet: temporaries in mailboxes, names kept for them; made durable."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice, product
from typing import Final

from postmaster import durable, maildir, names
from postmaster.maildir import Temporary
from postmaster.office import Office

SMALL: Final = 16  # up to so many copies are synced one by one; more of them file system by file system
_NAMES_TRIED: Final = 16  # where a copy may be that an earlier run has put into a mailbox


@dataclass(slots=True)
class Mailbox:
    """A mailbox of this pass: its folders, `unread` as the log writes it, and why nothing can be put there, if so."""

    tmp: str
    unread: str
    shown: str
    fault: OSError | None = None


class UnsyncedDevice(Exception):
    """A file system that holds mailboxes cannot be synced. `device` is its st_dev."""

    def __init__(self, device: int, fault: OSError) -> None:
        super().__init__(str(fault))
        self.device = device
        self.fault = fault


class Spool:
    """The mailboxes of a pass, and what its batch has written.

    Args:
        writes: False for a dry run, which looks, keeps names, and writes nothing.

    Attributes:
        names: the paths that this batch keeps for itself.
        moved: where letters go as they are, when the batch is committed.
        one_by_one: whether what is written is synced at once, each by itself.
    """

    def __init__(self, office: Office, *, writes: bool) -> None:
        self._office = office
        self._writes = writes
        self._mailboxes: dict[str, Mailbox] = {}
        self._count = 0
        self._written: list[Temporary] = []
        self.names: Final[set[str]] = set()
        self.moved: Final[list[str]] = []
        self.one_by_one = True

    def begin(self, copies: int) -> None:
        """Begin a batch of so many copies."""
        self._written.clear()
        self.names.clear()
        self.moved.clear()
        self.one_by_one = copies <= SMALL

    def abandon(self) -> None:
        """Remove what was written for a batch that is not committed."""
        for temporary in self._written:
            durable.remove(temporary.path)
        self._written.clear()

    def mailbox(self, inbox: str) -> Mailbox:
        """Open a mailbox once in a pass."""
        mailbox = self._mailboxes.get(inbox)
        if mailbox is None:
            unread = os.path.join(inbox, maildir.UNREAD)
            mailbox = Mailbox(os.path.join(inbox, maildir.TMP), unread, self._office.shown(unread))
            self._mailboxes[inbox] = mailbox
            inside = inbox.startswith(self._office.root.rstrip("/") + "/")
            try:
                if self._writes:
                    maildir.open_for_delivery(inbox, may_make=inside)
                else:
                    maildir.check_for_delivery(inbox, may_make=inside)
            except OSError as fault:
                mailbox.fault = fault
        return mailbox

    def close_mailboxes(self, device: int, fault: OSError) -> list[str]:
        """Close, for this pass, the mailboxes on a file system that cannot be synced; return them."""
        closed = []
        for inbox, mailbox in self._mailboxes.items():
            if mailbox.fault is None and os.stat(inbox).st_dev == device:
                mailbox.fault = fault
                closed.append(inbox)
        return closed

    def write(self, directory: str, content: bytes) -> Temporary | None:
        """Write a temporary; None in a dry run. Raises OSError."""
        if not self._writes:
            return None
        self._count += 1
        path = f"{directory}/{maildir.temporary_name(self._count)}"
        temporary = Temporary(path, durable.write_new(path, content, sync=self.one_by_one))
        self._written.append(temporary)
        return temporary

    def free(self, directory: str, name: str) -> str:
        """Return a path in `directory` that is free, and keep it for this batch."""
        found = f"{directory}/{name}"
        if found in self.names or os.path.lexists(found):
            candidates = (os.path.join(directory, one) for one in names.free_names(name))
            found = next(path for path in candidates if path not in self.names and not os.path.lexists(path))
        self.names.add(found)
        return found

    def sync(self) -> None:
        """Make everything that was written durable, names too.

        Raises:
            UnsyncedDevice: a file system other than the office's own refused.
            OSError: the office's own did.
        """
        if not self._writes or not (self._written or self.moved):
            return
        directories = {os.path.dirname(temporary.path) for temporary in self._written}
        if self.moved and not self.one_by_one:
            directories.add(self._office.outbox)
        if self.one_by_one:
            for directory in sorted(directories):
                self._blame(durable.sync_directory, directory)
            return
        by_device: dict[int, set[str]] = {}
        for directory in directories:
            by_device.setdefault(os.stat(directory).st_dev, set()).add(directory)
        for found in by_device.values():
            files = [written.path for written in self._written if os.path.dirname(written.path) in found]
            self._blame(durable.sync_filesystem, min(found), [*files, *sorted(found)])

    def _blame(self, step: Callable[..., None], directory: str, *more: list[str]) -> None:
        try:
            step(directory, *more)
        except OSError as fault:
            device = os.stat(directory).st_dev
            if device == os.stat(self._office.root).st_dev:
                raise
            raise UnsyncedDevice(device, fault) from fault


def already_there(inbox: str, name: str, content: bytes) -> str | None:
    """Return where an earlier run that was cut off has put this very copy, if it has; synced. Raises OSError."""
    # Its own name may have been taken when it was published: then it has one near it.
    for candidate, folder in product(islice(names.free_names(name), _NAMES_TRIED), (maildir.UNREAD, maildir.READ)):
        path = os.path.join(inbox, folder, candidate)
        try:
            with open(durable.open_regular(path), "rb") as stream:
                same = stream.read(len(content) + 1) == content
        except OSError:
            continue
        if same:
            durable.sync_directory(os.path.dirname(path))
            return path
    return None
