"""The errors a user can meet: one root, and the exit code (sysexits.h) each one ends the command with."""


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
