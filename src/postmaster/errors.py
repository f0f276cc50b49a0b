"""The errors a user can meet: one root, and the exit code (sysexits.h) each one ends the command with."""

from collections.abc import Callable


class PostmasterError(Exception):
    """Root of every error that is told to the user as one message, without a traceback."""

    exit_code = 70  # EX_SOFTWARE


class UsageProblem(PostmasterError):
    """The command was called in a way that cannot work (EX_USAGE)."""

    exit_code = 64


class BadData(PostmasterError):
    """What was given on the command line is refused: an address, a message, a name (EX_DATAERR)."""

    exit_code = 65


class Missing(PostmasterError):
    """Something is not installed that this needs, or a command that it runs failed (EX_UNAVAILABLE)."""

    exit_code = 69


class CannotCreate(PostmasterError):
    """An output file cannot be created (EX_CANTCREAT)."""

    exit_code = 73


class DiskFault(PostmasterError):
    """The disk refused to read, write or sync (EX_IOERR); the next run repairs what was begun."""

    exit_code = 74


class ConfigurationFault(PostmasterError):
    """The office, its settings or its registry is missing or invalid (EX_CONFIG); no mail was touched."""

    exit_code = 78


def how_to_install(extra: str) -> str:
    """Return how an extra of this package is installed, from a checkout or from a wheel; it is on no index."""
    return f"pip install '.[{extra}]' in the checkout, or pipx install --force 'WHEEL[{extra}]' (the extra `{extra}`)"


def guarded(step: Callable[..., None], *arguments: object) -> None:
    """Do a step that must succeed for the work to go on.

    Raises:
        DiskFault: the system refused; names the path.
    """
    try:
        step(*arguments)
    except OSError as fault:
        where = fault.filename or arguments[0]
        raise DiskFault(f"{where}: {fault.strerror}; the next run goes on from here") from fault


class Refused(Exception):
    """A message that cannot be routed as it stands.

    Attributes:
        reason: `malformed-header` or `invalid-header`.
        detail: the line and the field, and what is wrong there.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason
        self.detail = detail
