"""Where things are in an office, and its lock. The one place that knows a path. Light: idle runs import it."""

import fcntl
import os

from postmaster.errors import CannotCreate, ConfigurationFault, DiskFault

DEFAULT_ROOT = "~/.dna/post-office"
ENVIRONMENT = "POSTMASTER_ROOT"


def find_root(given: str | None) -> str:
    """Return the absolute office root: `given` (``--root``), else $POSTMASTER_ROOT, else the default.

    Raises:
        ConfigurationFault: the path begins with ``~`` and the account has no home directory.
    """
    return absolute(given or os.environ.get(ENVIRONMENT) or DEFAULT_ROOT, os.getcwd())


def absolute(path: str, base: str) -> str:
    """Return `path` with ``~`` expanded (from the account, without $HOME too) and made absolute from `base`."""
    expanded = os.path.expanduser(path)
    if expanded.startswith("~"):
        raise ConfigurationFault(f"{path}: there is no home directory for `~`; write the path in full")
    return os.path.normpath(os.path.join(base, expanded))


class Office:
    """One root directory and everything in it. Making this object touches no disk."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.settings_file = os.path.join(root, "post-office.yml")
        self.declarations = os.path.join(root, "registry.d")
        self.registry = os.path.join(root, "agent-registry.yml")
        self.schemas = os.path.join(root, "schemas")  # for editors; `init` writes them
        self.renames = os.path.join(root, "renames.yml")
        self.outbox = os.path.join(root, "outbox")
        self.inboxes = os.path.join(root, "inboxes")
        self.dead_letter = os.path.join(root, "dead-letter")
        self.directory = os.path.join(root, "directory")
        self.live = os.path.join(self.directory, "live")
        self.pending = os.path.join(self.live, "pending")  # what follows a register or archive that is under way
        self.archive = os.path.join(self.directory, "archive")
        self.returning = os.path.join(self.directory, "returning")  # there while unread mail has to be given back
        self.turns = os.path.join(root, "turns")
        self.logs = os.path.join(root, "logs")
        self.log = os.path.join(self.logs, "delivery-log.jsonl")
        self.private = os.path.join(root, ".postmaster")
        self.lock_file = os.path.join(self.private, "lock")
        self.directory_lock = os.path.join(self.private, "directory.lock")
        self.journal = os.path.join(self.private, "journal")
        self.removals = os.path.join(self.private, "removals")
        self.nudges = os.path.join(self.private, "nudges")
        self.nudges_lock = os.path.join(self.private, "nudges.lock")
        self.carrier = os.path.join(root, "carrier")  # mail for other offices, and what the carrier knows of them
        self.mail_repository = os.path.join(self.carrier, "mail.git")
        self.carrier_lock = os.path.join(self.private, "carrier.lock")
        self.transcripts_lock = os.path.join(self.private, "transcripts.lock")
        self.history = os.path.join(self.private, "history.sqlite")

    def inbox(self, configured: str) -> str:
        """Return the absolute path of an inbox as a declaration writes it (relative: to the root)."""
        return absolute(configured, self.root)

    def default_inbox(self, agent_id: str) -> str:
        """Return where an agent's inbox is when its declaration does not say."""
        return os.path.join(self.inboxes, agent_id)

    def outgoing(self, remote: str, address: str) -> str:
        """Return the mailbox in which mail to an address (encoded) waits for the carrier to take it to `remote`."""
        return os.path.join(self.carrier, "outgoing", remote, address)

    def carrier_account(self) -> int | None:
        """Return the number of the account that exchanges mail with other offices; None before it has begun to."""
        try:
            return os.lstat(self.carrier).st_uid
        except OSError:
            return None

    def turn_home(self, instance_id: str) -> str:
        """Return where all is that the turns of an instance keep: its disk, its state, what is under way."""
        return os.path.join(self.turns, instance_id)

    def is_in_turn(self, instance_id: str) -> bool:
        """Tell whether a turn of an instance is under way."""
        home = self.turn_home(instance_id)
        return is_held(os.path.join(home, "lock")) or is_held(os.path.join(home, "running"))

    def archived_claim(self, agent_id: str) -> str:
        """Return where the claim of a live instance is once it is archived. Ids that differ in case are one."""
        return os.path.join(self.archive, agent_id.casefold() + ".json")

    def is_archived(self, inbox: str) -> bool:
        """Tell whether a mailbox is that of an archived instance: history, which nobody reads as new mail."""
        folder, name = os.path.split(inbox)
        return folder == self.inboxes and os.path.lexists(self.archived_claim(name))

    def shown(self, path: str) -> str:
        """Return `path` relative to the root if it is inside, for the log and for people."""
        inside = path.startswith(self.root.rstrip("/") + "/")
        return visible(path[len(self.root.rstrip("/")) + 1 :] if inside else path)

    def require(self) -> None:
        """Raise ConfigurationFault unless this root is an office."""
        if not os.path.isdir(self.outbox):
            what = "is not an office (it has no outbox/)" if os.path.isdir(self.root) else "is not a directory"
            what = what if os.path.lexists(self.root) else "does not exist"
            from shlex import quote

            raise ConfigurationFault(
                f"{self.root} {what}; run `postmaster --root {quote(self.root)} init`, or name the office with --root "
                f"or ${ENVIRONMENT}"
            )

    def make_private(self) -> None:
        """Make .postmaster/ if it is not there."""
        if os.path.isdir(self.private):
            return
        from postmaster import durable

        try:
            durable.make_directories(self.private)
        except OSError as fault:
            raise CannotCreate(f"{self.private}: {fault.strerror}") from fault

    def lock(self, *, wait: bool) -> "RouterLock":
        """Return the router's lock, to be held with `with`."""
        return RouterLock(self, wait)

    def last_run(self) -> float | None:
        """Return when a router last ran here (seconds since the epoch), or None."""
        try:
            return os.stat(self.lock_file).st_mtime
        except OSError:
            return None


def visible(path: str) -> str:
    r"""Return a path as text that any JSON or YAML reader takes: undecodable bytes become ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_held(path: str) -> bool:
    """Tell whether another process holds a lock file (flock(2)), without waiting; not if it cannot be asked."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False


class RouterLock:
    """The kernel's lock (flock(2), close-on-exec) that lets one router work at a time.

    `with` gives True, or False if another has it and we do not wait. The lock file's mtime is the time of the last
    run that got the lock.

    Raises:
        CannotCreate: there can be no lock file.
        DiskFault: the system refuses to lock.
    """

    def __init__(self, office: Office, wait: bool) -> None:
        self._office = office
        self._wait = wait
        self._descriptor = -1

    def __enter__(self) -> bool:
        path = self._office.lock_file
        self._office.make_private()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as fault:
            raise CannotCreate(f"{path}: {fault.strerror}") from fault
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | (0 if self._wait else fcntl.LOCK_NB))
        except BlockingIOError:
            return False
        except OSError as fault:
            os.close(self._descriptor)
            raise DiskFault(f"{path}: cannot lock: {fault.strerror}") from fault
        try:
            os.utime(self._descriptor)
        except OSError:
            return True  # the time is for people; the lock is what counts
        return True

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)
