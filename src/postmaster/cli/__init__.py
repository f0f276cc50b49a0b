"""The command line. This module stays light: a `route` that finds nothing to do never imports click."""

import gc
import os
import sys


def main() -> None:
    """Run the `postmaster` command (the console script's entry point)."""
    arguments = sys.argv[1:]
    if "_POSTMASTER_COMPLETE" in os.environ:  # a shell asks what may come next: nothing is run
        from postmaster.cli import completion

        sys.exit(completion.answer(arguments))
    root = _plain_route(arguments)
    if root is not None and _is_idle(root):
        sys.exit(0)
    code = _run(arguments)
    gc.freeze()  # else the interpreter looks through all there is once more before it ends, for some 20 ms
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """Run a command; end what nobody foresaw with one line too, unless $POSTMASTER_DEBUG asks for the traceback."""
    try:
        from postmaster.cli import app

        return app.run(arguments)
    except Exception as fault:
        if os.environ.get("POSTMASTER_DEBUG"):
            raise
        # app.run ends every OSError of a command; one that comes here is of the interpreter, loading a module
        cannot_load = isinstance(fault, ImportError | OSError)
        what = "cannot be loaded" if cannot_load else f"internal error: {type(fault).__name__}"
        hint = "" if cannot_load else "; set POSTMASTER_DEBUG=1 for the traceback, and please report it"
        sys.stderr.write(f"postmaster: {what}: {fault}{hint}\n")
        return 71 if cannot_load else 70  # EX_OSERR, EX_SOFTWARE


def _plain_route(arguments: list[str]) -> str | None:
    """Return the --root of a call that is just `[--root DIR] route [--now]` (empty: none given), else None."""
    root = ""
    if arguments[:1] == ["--root"] and len(arguments) > 2 and arguments[1]:
        root, arguments = arguments[1], arguments[2:]
    return root if arguments in (["route"], ["route", "--now"]) else None


def _is_idle(given: str) -> bool:
    from postmaster.errors import PostmasterError
    from postmaster.idle import is_idle
    from postmaster.office import Office, find_root

    try:
        return is_idle(Office(find_root(given)))
    except (PostmasterError, OSError):
        return False


__all__ = ["main"]
if os.name != "posix":  # pragma: no cover
    sys.exit("postmaster: needs a POSIX system (flock, atomic rename)")
