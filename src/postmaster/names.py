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
        yield (stem if len(_bytes(stem)) <= space else _cut(stem, space)) + suffix
        number += 1


def _cut(stem: str, space: int) -> str:
    """Return the beginning of `stem` that fits: whole characters, or bare bytes where there are none."""
    beginning = _bytes(stem)[:space]
    return beginning.decode("utf-8", "ignore") or beginning.decode("utf-8", "surrogateescape")


def _bytes(text: str) -> bytes:
    """Return a file name as the system has it (as os.fsencode does under UTF-8)."""
    return text.encode("utf-8", "surrogateescape")
