"""Where things are in an office, its settings and its lock. The one place that knows a path."""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Final

from postmaster.errors import CannotCreate, ConfigurationFault, DiskFault

DEFAULT_ROOT: Final = "~/.dna/post-office"
ENVIRONMENT: Final = "POSTMASTER_ROOT"


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


@dataclass(frozen=True, slots=True)
class Settings:
    """What post-office.yml may set; every value has a default. Sizes in bytes, times in seconds."""

    name: str = "post-office"
    max_message_bytes: int = 10 * 1024 * 1024
    settle_seconds: int = 60
    expire_after_seconds: int = 5 * 24 * 3600


class Office:
    """One root directory and everything in it. Making this object touches no disk."""

    def __init__(self, root: str) -> None:
        self.root = root
        self.settings_file = os.path.join(root, "post-office.yml")
        self.declarations = os.path.join(root, "registry.d")
        self.registry = os.path.join(root, "agent-registry.yml")
        self.outbox = os.path.join(root, "outbox")
        self.inboxes = os.path.join(root, "inboxes")
        self.dead_letter = os.path.join(root, "dead-letter")
        self.directory = os.path.join(root, "directory")
        self.logs = os.path.join(root, "logs")
        self.log = os.path.join(self.logs, "delivery-log.jsonl")
        self.private = os.path.join(root, ".postmaster")
        self.lock_file = os.path.join(self.private, "lock")
        self.journal = os.path.join(self.private, "journal")
        self.removals = os.path.join(self.private, "removals")
        self.history = os.path.join(self.private, "history.sqlite")

    def inbox(self, configured: str) -> str:
        """Return the absolute path of an inbox as a declaration writes it (relative: to the root)."""
        return absolute(configured, self.root)

    def default_inbox(self, agent_id: str) -> str:
        """Return where an agent's inbox is when its declaration does not say."""
        return os.path.join(self.inboxes, agent_id)

    def shown(self, path: str) -> str:
        """Return `path` relative to the root if it is inside, for the log and for people."""
        inside = path.startswith(self.root.rstrip("/") + "/")
        return visible(path[len(self.root.rstrip("/")) + 1 :] if inside else path)

    def require(self) -> None:
        """Raise ConfigurationFault unless this root is an office."""
        if not os.path.isdir(self.outbox):
            what = "is not an office (it has no outbox/)" if os.path.isdir(self.root) else "does not exist"
            raise ConfigurationFault(
                f"{self.root} {what}; run `postmaster --root {self.root} init`, or name the office with --root "
                f"or ${ENVIRONMENT}"
            )

    def make_private(self) -> None:
        """Make .postmaster/ if it is not there."""
        try:
            os.makedirs(self.private, mode=0o700, exist_ok=True)
        except OSError as fault:
            raise CannotCreate(f"{self.private}: {fault.strerror}") from fault

    @contextlib.contextmanager
    def lock(self, *, wait: bool) -> Iterator[bool]:
        """Hold the router's lock (flock(2), close-on-exec). Yields False if another has it and `wait` is false.

        The lock file's mtime is the time of the last run that got the lock.
        """
        self.make_private()
        try:
            descriptor = os.open(self.lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as fault:
            raise CannotCreate(f"{self.lock_file}: {fault.strerror}") from fault
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            except OSError as fault:
                raise DiskFault(f"{self.lock_file}: cannot lock: {fault.strerror}") from fault
            with contextlib.suppress(OSError):
                os.utime(descriptor)
            yield True
        finally:
            os.close(descriptor)

    def last_run(self) -> float | None:
        """Return when a router last ran here (seconds since the epoch), or None."""
        try:
            return os.stat(self.lock_file).st_mtime
        except OSError:
            return None

    def settings(self) -> Settings:
        """Read post-office.yml.

        Raises:
            ConfigurationFault: it cannot be read, has an unknown key or a value out of range; names file and line.
        """
        try:
            with open(self.settings_file, "rb") as stream:
                raw = stream.read()
        except FileNotFoundError:
            return Settings()
        except OSError as fault:
            raise ConfigurationFault(f"{self.settings_file}: cannot be read: {fault.strerror}") from fault
        if not any(line.strip() and not line.lstrip().startswith(b"#") for line in raw.splitlines()):
            return Settings()  # all comments, as `init` writes it: spares the YAML parser
        from postmaster import settings

        return settings.parse(raw, self.settings_file)


def visible(path: str) -> str:
    r"""Return a path as text that any JSON or YAML reader takes: undecodable bytes become ``\xff``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def is_missing(fault: OSError) -> bool:
    """Tell whether a fault says that the thing is not there."""
    return fault.errno in (errno.ENOENT, errno.ENOTDIR)


SETTING_NAMES: Final = tuple(item.name for item in fields(Settings))
