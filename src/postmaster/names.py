"""File names: which are mail, and which are free. Light, so that a run with nothing to do imports little."""

from collections.abc import Iterator

UNFINISHED = (".tmp", ".part", ".swp", "~")
TAKEN = ".postmaster-taken"  # a letter between its outbox name and its end; only one at a time


def is_mail(name: str) -> bool:
    """Tell whether a name in the outbox is mail, not a writer's private name."""
    return not name.startswith(".") and not name.endswith(UNFINISHED)


def free_names(name: str, room: int = 255) -> Iterator[str]:
    """Yield `name`, then ``stem-2.md``, ``stem-3.md``, ...: each at most `room` bytes long (NAME_MAX)."""
    stem, dot, extension = name.rpartition(".")
    if not stem or len(_bytes(extension)) > 15:
        stem, dot, extension = name, "", ""
    number = 1
    while True:
        suffix = (f"-{number}" if number > 1 else "") + dot + extension
        space = room - len(_bytes(suffix))
        short = _bytes(stem)[:space].decode("utf-8", "ignore") if len(_bytes(stem)) > space else stem
        yield short + suffix
        number += 1


def _bytes(text: str) -> bytes:
    """Return a file name as the system has it (as os.fsencode does under UTF-8)."""
    return text.encode("utf-8", "surrogateescape")
