"""What the checks are told of an office. Plain data: nothing here asks the system. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from postmaster.lock_holders import Holder
from postmaster.starters import Starters


@dataclass(frozen=True, slots=True)
class Node:
    """A path, and what is there: the target of a link, unless it is named otherwise.

    Attributes:
        shown: the path for people, relative to the root where it can be.
        kind: `directory`, `file`, `link`, `other`, or `missing`; `closed` where nobody lets us look.
        may_write, may_read: whether this account may (for a directory: put names there, list it).
    """

    path: str
    shown: str
    kind: str = "missing"
    mode: int = 0
    uid: int = -1
    gid: int = -1
    size: int = 0
    mtime_ns: int = 0
    may_write: bool = False
    may_read: bool = False

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return self.kind == "directory"

    @property
    def is_there(self) -> bool:
        """Whether anything is there."""
        return self.kind != "missing"


@dataclass(frozen=True, slots=True)
class Inbox:
    """The inbox of an agent.

    Attributes:
        folders: tmp, unread, read: the names themselves, no link followed.
        inside: it is in the office, so that a delivery may make it.
        known_mount: the place of /etc/fstab at or above it whose disk is not mounted.
        user: the account that reads it, as the declaration says; None for that of the office.
        closed_to_user: the directories that this account cannot come through, or not work in.
        mail_closed: messages that it cannot read.
        temporaries: files in tmp/ that routers which are gone have left.
    """

    agent: str
    declared_in: str
    node: Node
    folders: dict[str, Node]
    inside: bool
    known_mount: str | None = None
    user: str | None = None
    group: str | None = None
    closed_to_user: Sequence[Node] = ()
    mail_closed: Sequence[Node] = ()
    temporaries: Sequence[Node] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A command of a declaration (`run`, `nudge`, `idle`), and where its program is.

    `trouble` is why it cannot be run by this account, and `mend` what to do then, with `commands` that do it;
    `missing_in` a PATH of cron in which it is not found though it is in ours.
    """

    agent: str
    declared_in: str
    key: str
    program: str
    trouble: str | None = None
    mend: str = "install it, or correct the declaration and merge"
    commands: tuple[tuple[str, ...], ...] = ()
    path: str | None = None
    missing_in: str | None = None


@dataclass(frozen=True, slots=True)
class RemoteFacts:
    """A remote.

    Attributes:
        directory: the path that its URL is, if it is one of this machine.
        host: the host of an SSH URL, and `host_known` whether its key is known (None: nobody can tell).
        keys: the files that `sign` and `verify` name, by key.
    """

    name: str
    directory: Node | None = None
    host: str | None = None
    host_known: bool | None = None
    keys: dict[str, Node] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Mount:
    """What a place of mail is mounted from: its file system's type.

    `temporary`: the place is one for what may be gone at the next start.
    """

    node: Node
    type: str
    temporary: bool = False


@dataclass(slots=True)
class Facts:
    """All of it. Times in nanoseconds since the epoch; 0 if there is none.

    Attributes:
        uid, account: who asks.
        owner, owner_group: the names of the account that the office belongs to, and of its first group.
        real_root: the root, links followed.
        helpers: the programs for fixes that are installed.
        closed_letters, closed_declarations: those that the router cannot read.
        closed_private: what is in .postmaster/ and cannot be opened by the router.
        folded_declarations: declarations in a directory of registry.d/.
        foreign_mail: mail in `new/` or `cur/` of an inbox.
        operator_fault: why the `operator` of post-office.yml gets no mail.
        own_domains: remote, and the domain of ours that is among its `domains`.
        places: the parts of the office, by name: `root`, `outbox`, `inboxes`, `dead-letter`, `logs`, `registry.d`,
            `.postmaster`, `post-office.yml`, `agent-registry.yml`, `log`.
        other_offices: where another office is named (`$POSTMASTER_ROOT`, `the current directory` ...), and its root.
        registry: `merged`, `missing`, `invalid` or `stale`; `registry_detail` says more.
        edited: agent-registry.yml is not as a merge wrote it.
        outbox: every name in the outbox, no link followed.
        strays: letters, or what looks like one, where no mail is looked for.
        nobody: mailboxes with unread mail that the registry does not name, and how much.
        log_parts: how many rotated logs there are.
        future: files of mail whose time is ahead.
        holders: who holds a lock of the office.
        unfinished: what runs that are gone have left, with the command that ends it.
        unknown_users: agent, declaration, account.
        tools: whether the programs that the settings call for are there.
        runnable: whether the programs that crontab lines may start are there, by path.
    """

    root: str
    now_ns: int
    uid: int
    account: str
    owner: str
    starters: Starters
    real_root: str = ""
    owner_group: str = ""
    helpers: frozenset[str] = frozenset()
    closed_letters: list[Node] = field(default_factory=list)
    closed_declarations: list[Node] = field(default_factory=list)
    closed_private: list[Node] = field(default_factory=list)
    folded_declarations: list[Node] = field(default_factory=list)
    foreign_mail: list[Node] = field(default_factory=list)
    operator_fault: str | None = None
    own_domains: list[tuple[str, str]] = field(default_factory=list)
    places: dict[str, Node] = field(default_factory=dict)
    other_offices: list[tuple[str, str]] = field(default_factory=list)
    settings_faults: list[str] = field(default_factory=list)
    drop_folders: bool = False
    settle_seconds: int = 60
    registry: str = "missing"
    registry_detail: str = ""
    edited: bool = False
    declaration_faults: list[str] = field(default_factory=list)
    ignored_declarations: list[Node] = field(default_factory=list)
    inboxes: list[Inbox] = field(default_factory=list)
    outbox: list[Node] = field(default_factory=list)
    strays: list[Node] = field(default_factory=list)
    nobody: list[tuple[Node, int]] = field(default_factory=list)
    log_parts: int = 0
    last_logged_ns: int = 0
    last_run_ns: int = 0
    future: list[Node] = field(default_factory=list)
    holders: list[tuple[str, Holder]] = field(default_factory=list)
    unfinished: list[tuple[Node, str]] = field(default_factory=list)
    unknown_users: list[tuple[str, str, str]] = field(default_factory=list)
    programs: list[Program] = field(default_factory=list)
    takes_turns: list[str] = field(default_factory=list)
    remotes: list[RemoteFacts] = field(default_factory=list)
    tools: dict[str, bool] = field(default_factory=dict)
    runnable: dict[str, bool] = field(default_factory=dict)
    mounts: list[Mount] = field(default_factory=list)
    disks: list[dict[str, Any]] = field(default_factory=list)

    @property
    def asked_for(self) -> str | None:
        """The account that root asks for: the owner of the office, if that is another."""
        return self.owner if self.uid == 0 and self.owner not in ("", self.account) else None

    @property
    def router(self) -> str:
        """The account whose rights count: who asks; if that is root, the owner of the office."""
        return self.asked_for or self.account

    @property
    def is_office(self) -> bool:
        """Whether there is an office to look at."""
        return self.places["outbox"].is_directory
