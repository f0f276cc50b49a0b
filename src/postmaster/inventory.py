"""Every mailbox of an office and every file of mail in it, as an audit needs them. Nothing is followed or changed."""

import os
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from postmaster import inspection, maildir
from postmaster.errors import ConfigurationFault
from postmaster.inspection import Inspected
from postmaster.ledger import Copy, Difference, Letter
from postmaster.office import Office
from postmaster.registry import compiled
from postmaster.registry.compiled import OpenView


@dataclass(slots=True)
class Findings:
    """What an audit has found so far."""

    differences: list[Difference] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)

    def differs(self, kind: str, place: str, what: str, remedy: str, message: dict[str, Any] | None = None) -> None:
        """Add a difference."""
        self.differences.append(Difference(kind, place, what, remedy, message or {}))

    def note(self, text: str) -> None:
        """Add what is worth knowing and no difference."""
        self.notes.append(text)


@dataclass(frozen=True, slots=True)
class Mailbox:
    """A mailbox on disk; `agent` is empty if it is nobody's in the registry."""

    path: str
    agent: str


@dataclass(slots=True)
class File:
    """A file in a mailbox, inspected."""

    mailbox: Mailbox
    shown: str
    name: str
    seen: Inspected

    @property
    def letter(self) -> Letter | None:
        """What the log calls the message that this file claims to be."""
        return (self.seen.key, self.seen.sequence) if self.seen.key is not None else None


def home_of(office: Office, copy: Copy) -> str | None:
    """Return the mailbox that a copy's path is in; None if it was put somewhere else (an archive)."""
    folder = os.path.dirname(os.path.join(office.root, copy.path))
    return os.path.dirname(folder) if os.path.basename(folder) in (maildir.UNREAD, maildir.READ) else None


def obstacle(folder: str) -> str | None:
    """Return what is in the place of a mailbox's folder; None if it is a directory, or missing. Raises OSError.

    A link is one too: it would lead mail out of its mailbox, so that the router does not follow it.
    """
    try:
        mode = os.lstat(folder).st_mode
    except FileNotFoundError:
        return None
    return None if stat.S_ISDIR(mode) else inspection.kind_of(mode) or "a file"


def remedy_of_missing(office: Office, inbox: str) -> str:
    """Return what to do about an inbox that is not there: those outside the office may be on a disk of their own."""
    if os.path.lexists(inbox) and not os.path.isdir(inbox):
        return "mend or move away what is in its place"
    if _is_inside(office, inbox):
        return "the next delivery or `postmaster registry merge` makes it"
    return "mount it, or make it with `postmaster registry merge --make-inboxes`"


def is_empty_mount_point(office: Office, inbox: str) -> bool:
    """Tell whether a directory outside the office is no inbox, as it has no unread/: its disk may not be mounted."""
    try:
        os.stat(os.path.join(inbox, maildir.UNREAD))
    except FileNotFoundError:
        return not _is_inside(office, inbox)
    except OSError:
        return False
    return False


def _is_inside(office: Office, path: str) -> bool:
    return path.startswith(office.root.rstrip("/") + "/")


class Inventory:
    """The mailboxes of an office.

    Args:
        findings: where to tell what is no mail, or not to be had.
        unfinished: paths that the next run will bring in order.
        open_view: how the address book is opened.
    """

    def __init__(
        self, office: Office, findings: Findings, unfinished: set[str], open_view: OpenView = compiled.open_view
    ) -> None:
        self._office = office
        self._open_view = open_view
        self._findings = findings
        self._unfinished = unfinished
        self._by_path: dict[str, Mailbox] = {}
        self._inbox_of: dict[str, str] = {}  # by agent id
        self._closed: set[str] = set()  # mailboxes, some or all of whose mail cannot be seen
        self._is_list_closed = False  # inboxes/ itself cannot be read, and has been told of

    def mailboxes(self, copies: Iterable[Copy]) -> tuple[list[Mailbox], dict[str, Mailbox]]:
        """Return every mailbox once, and by each path it has: of the registry, below inboxes/, named by the log."""
        candidates: list[tuple[str, str]] = []
        try:
            with self._open_view(self._office, write=False) as registry:
                candidates.extend((agent.inbox, agent.id) for agent in registry.all_agents())
            self._inbox_of = {agent: inbox for inbox, agent in candidates}
        except ConfigurationFault as fault:
            what = str(fault).removeprefix(self._office.registry + ": ")
            place = self._office.shown(self._office.registry)
            self._findings.differs(
                "registry", place, what, "until then inboxes are looked for below inboxes/ and in the log"
            )
        known = {inbox for inbox, _ in candidates}
        candidates.extend((path, "") for path in self._below_inboxes(known))
        for copy in copies:
            home = home_of(self._office, copy)
            if home is not None and home not in known:
                known.add(home)
                candidates.append((home, ""))
        found: dict[tuple[int, int], Mailbox] = {}
        by_path = self._by_path
        for path, agent in candidates:
            try:
                seen = os.stat(path)
            except OSError as fault:
                self._not_opened(path, agent, fault)
                continue
            if agent and not stat.S_ISDIR(seen.st_mode):
                what = f"the inbox of {agent} is no directory"
                self._findings.differs(
                    "inbox-missing", self._office.shown(path), what, "move away what is in its place"
                )
            if stat.S_ISDIR(seen.st_mode):
                mailbox = found.setdefault((seen.st_dev, seen.st_ino), Mailbox(path, agent))
                by_path[path] = mailbox
                if agent and is_empty_mount_point(self._office, path):
                    self._closed.add(mailbox.path)
                    what = f"the inbox of {agent} has no {maildir.UNREAD}/"
                    remedy = remedy_of_missing(self._office, path)
                    self._findings.differs("inbox-missing", self._office.shown(path), what, remedy)
        return list(found.values()), by_path

    def _below_inboxes(self, known: set[str]) -> Iterator[str]:
        """Yield what else is an inbox below inboxes/: mail of agents that have left the registry counts too."""
        try:
            with os.scandir(self._office.inboxes) as entries:
                ordered = sorted(entries, key=lambda entry: entry.name)
        except FileNotFoundError as fault:
            self._findings.differs("inbox-missing", "inboxes", f"cannot be listed: {fault.strerror}", "mend it")
            return
        except OSError as fault:
            self._is_list_closed = True
            self._findings.differs("unreadable", "inboxes", f"cannot be listed: {fault.strerror}", "mend it")
            return
        for entry in ordered:
            shown = self._office.shown(entry.path)
            if entry.path in known or entry.name.startswith("."):
                continue
            if entry.is_symlink():
                self._findings.differs(
                    "not-a-file", shown, "is a symbolic link that no agent has as its inbox", "remove it"
                )
            elif entry.is_dir(follow_symlinks=False):
                yield entry.path

    def _not_opened(self, path: str, agent: str, fault: OSError) -> None:
        """Tell of an inbox that is missing, or that nobody can tell of."""
        shown = self._office.shown(path)
        if isinstance(fault, (FileNotFoundError, NotADirectoryError)):
            if agent:
                what = f"the inbox of {agent} cannot be opened: {fault.strerror}"
                self._findings.differs("inbox-missing", shown, what, remedy_of_missing(self._office, path))
            return
        self._closed.add(path)
        if not (self._is_list_closed and os.path.dirname(path) == self._office.inboxes):
            self._findings.differs("unreadable", shown, f"cannot be opened: {fault.strerror}", "mend or mount it")

    def closed(self, copy: Copy) -> str | None:
        """Return the mailbox (as shown) that a copy may be in unseen, as it cannot be read; None if there is none."""
        for path in (home_of(self._office, copy), self._inbox_of.get(copy.agent)):
            if path is not None:
                path = self._by_path[path].path if path in self._by_path else path
                if path in self._closed:
                    return self._office.shown(path)
        return None

    def files(self, mailbox: Mailbox) -> Iterator[File]:
        """Yield every file of mail in a mailbox; a receiver may move them meanwhile."""
        if self._is_open(mailbox, maildir.TMP):
            self.temporaries(os.path.join(mailbox.path, maildir.TMP))
        seen = {folder: self._list(mailbox, folder) for folder in (maildir.UNREAD, maildir.READ)}
        for folder, listed in seen.items():
            for name in listed:
                path = os.path.join(mailbox.path, folder, name)
                if path in self._unfinished:
                    continue
                found = self._inspect(path)
                if found is None and folder == maildir.UNREAD and name not in seen[maildir.READ]:
                    folder_now = maildir.READ
                    path = os.path.join(mailbox.path, folder_now, name)
                    found = self._inspect(path)
                else:
                    folder_now = folder
                if found is not None:
                    self._findings.counts[folder_now] += 1
                    yield File(mailbox, self._office.shown(path), name, found)

    def _is_open(self, mailbox: Mailbox, folder: str) -> bool:
        """Tell whether a folder of a mailbox can be entered, and tell why not. A missing one counts as empty."""
        path = os.path.join(mailbox.path, folder)
        try:
            kind = obstacle(path)
        except OSError as fault:  # the same for each folder, and told of once
            self._closed.add(mailbox.path)
            shown = self._office.shown(mailbox.path)
            self._findings.differs("unreadable", shown, f"cannot be entered: {fault.strerror}", "mend it")
            return False
        if kind is None:
            return True
        deferred = "nothing can be acknowledged" if folder == maildir.READ else "the router defers its mail"
        what = f"is {kind}, not a directory, and was not followed; {deferred}"
        remedy = "put a directory in its place" + (
            "" if folder == maildir.TMP else ", with the mail that belongs there"
        )
        self._findings.differs("not-a-directory", self._office.shown(path), what, remedy)
        if folder != maildir.TMP:
            self._closed.add(mailbox.path)
        return False

    def _list(self, mailbox: Mailbox, name: str) -> list[str]:
        """Return the names of regular files in a folder; tell of anything else that is there."""
        if not self._is_open(mailbox, name):
            return []
        folder = os.path.join(mailbox.path, name)
        try:
            os.stat(os.path.join(folder, os.curdir))  # one that can be listed only: its files could not be opened
            with os.scandir(folder) as entries:
                listed = []
                for entry in entries:
                    shown = self._office.shown(entry.path)
                    if entry.is_file(follow_symlinks=False):
                        if entry.name.startswith("."):
                            self._findings.note(f"{shown}: a hidden name, which no reader of mail lists")
                        else:
                            listed.append(entry.name)
                    elif os.path.lexists(entry.path):
                        kind = inspection.kind_of(entry.stat(follow_symlinks=False).st_mode) or "no file"
                        what = f"is {kind}, not a message, and was not followed"
                        self._findings.differs("not-a-file", shown, what, "move it out of the inbox")
        except FileNotFoundError:
            return []
        except OSError as fault:
            self._closed.add(mailbox.path)
            self._findings.differs(
                "unreadable", self._office.shown(folder), f"cannot be read: {fault.strerror}", "mend it"
            )
            return []
        return sorted(listed)

    def _inspect(self, path: str) -> Inspected | None:
        try:
            found = inspection.delivered(path)
        except FileNotFoundError:
            return None
        except OSError as fault:
            found = Inspected(faults=[f"cannot be read: {fault.strerror}"], unreadable=True)
        self._findings.counts["hashed"] += 1
        return found

    def temporaries(self, folder: str) -> None:
        try:
            for name in maildir.stale_temporaries(folder):
                path = self._office.shown(os.path.join(folder, name))
                self._findings.note(f"{path}: left by a run that was killed; the next delivery here clears it")
        except OSError:
            return
