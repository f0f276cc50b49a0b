"""Why a program of a declaration cannot be started (execve(2)). Changes nothing, and starts nothing."""

import os
import shutil
from typing import Final

Trouble = tuple[str, str, tuple[tuple[str, ...], ...]]  # what is wrong, what to do, the commands that do it

_LINE_BYTES: Final = 256  # of `#!` and what follows: BINPRM_BUF_SIZE
_CORRECT: Final = "install it, or correct the declaration and merge"


def not_found(program: str) -> Trouble:
    """Return what is wrong with a program that is not in PATH, or not at its path."""
    words = program.split()
    if len(words) > 1 and (shutil.which(words[0]) or os.path.isfile(words[0])):
        fix = f"write [{', '.join(words)}]: arguments are separate items of the list; then merge"
        return ("is not there: it has a blank in its name", fix, ())
    return ("is not there" if "/" in program else "is not found in PATH", _CORRECT, ())


def trouble(path: str, program: str) -> Trouble | None:
    """Return what keeps the program at a path from being started; None if nothing is known to."""
    if not os.path.exists(path):
        return not_found(program)
    if os.path.isdir(path):
        return ("is a directory", "name the program in it, and merge", ())
    if not os.path.isfile(path) or not os.access(path, os.X_OK):
        return ("is not executable", "make it executable", (("chmod", "+x", path),))
    try:
        with open(path, "rb") as stream:
            start = stream.read(_LINE_BYTES)
    except OSError:
        return None  # closed to us: it may run all the same
    if start.startswith(b"#!"):
        return _of_first_line(path, start[2:].split(b"\n")[0])
    if b"\0" in start:
        return None  # not a text: the system knows what it is
    return (
        "has no `#!` line: the system does not know what runs it",
        "write `#!/bin/sh`, or what runs it, as its first line",
        (),
    )


def _of_first_line(path: str, line: bytes) -> Trouble | None:
    if line.endswith(b"\r"):
        fix = "take the carriage returns out"
        return (
            "has a first line that ends with a carriage return, as on Windows",
            fix,
            (("sed", "-i", r"s/\r$//", path),),
        )
    words = os.fsdecode(line).split()
    if not words:
        return ("has a `#!` line that names no interpreter", "write what runs it after `#!`", ())
    if not os.path.exists(words[0]):
        return (f"is run by {words[0]}, which is not there", "install that, or correct the first line", ())
    if os.path.basename(words[0]) == "env":
        named = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
        if named and shutil.which(named[0]) is None:
            return (f"is run by {named[0]}, which is not found in PATH", "install that, or correct the first line", ())
    return None
