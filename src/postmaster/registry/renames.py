"""renames.yml: what agents of this office are called now, whatever their plugins' declarations say.

A declaration is its plugin's, and comes anew with every release; a name that was given here has to outlive that. Each
rename holds for one agent, by its id: where its declaration still has the old address, it has the new one, and the old
one is an alias. If the declaration has moved on by itself, its address stands, and both are aliases.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from postmaster import address, durable, times
from postmaster.errors import CannotCreate
from postmaster.office import Office
from postmaster.registry import source, written
from postmaster.registry.declarations import Declared
from postmaster.registry.source import Document, Problem

_HEADER: Final = "# written by `postmaster rename`, read by `postmaster registry merge`: the old addresses stay valid\n"
_KEYS: Final = ("agent", "was", "now", "at")


@dataclass(frozen=True, slots=True)
class Rename:
    """That an agent's address is another now; `at` is when that was said (RFC 3339)."""

    agent: str
    was: str
    now: str
    at: str


def load(office: Office) -> tuple[list[Rename], list[Problem]]:
    """Return the renames of an office, oldest first, and what is wrong with the file."""
    shown = office.shown(office.renames)
    try:
        raw, _ = source.read_file(office.renames, source.MAX_DECLARATION_BYTES)
    except FileNotFoundError:
        return [], []
    except (OSError, ValueError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else fault
        return [], [Problem(shown, 0, 0, f"{why}: it says which addresses were renamed; mend it")]
    document, problems = source.parse(raw, shown)
    if problems:
        return [], problems
    found = []
    for number, item in enumerate(document.data if isinstance(document.data, list) else [document.data]):
        one = _rename(item)
        if one is None:
            problems.append(_problem(document, number))
        else:
            found.append(one)
    return found, problems


def _rename(item: Any) -> Rename | None:
    if not isinstance(item, dict) or set(item) != set(_KEYS) or not all(isinstance(one, str) for one in item.values()):
        return None
    try:
        times.parse_time(item["at"])
    except ValueError:
        return None
    right = address.is_name(item["agent"]) and address.is_mailbox(item["was"]) and address.is_mailbox(item["now"])
    return Rename(**item) if right else None


def _problem(document: Document, number: int) -> Problem:
    return document.problem(
        (number,), "no rename: it has `agent` (an id), `was` and `now` (addresses), and `at` (a time)"
    )


def save(office: Office, renames: Iterable[Rename]) -> None:
    """Write the renames, durably.

    Raises:
        CannotCreate: the disk refused; the old file is kept.
    """
    rows = [
        "- {" + ", ".join(f"{key}: {written.scalar(getattr(one, key))}" for key in _KEYS) + "}\n" for one in renames
    ]
    try:
        durable.replace(office.renames, (_HEADER + "".join(rows)).encode())
    except OSError as fault:
        raise CannotCreate(f"{office.renames}: cannot be written: {fault.strerror}; nothing was changed") from fault


def apply(declared: Sequence[Declared], renames: Sequence[Rename]) -> list[Declared]:
    """Return entries as the office calls them."""
    names: dict[str, list[str]] = {}
    by_id = {address.fold(item.entry.get("id", "")): item for item in declared}
    for one in renames:
        item = by_id.get(address.fold(one.agent))
        if item is not None and item.entry.get("address"):
            key = address.fold(one.agent)
            names[key] = _renamed(names.get(key) or [item.entry["address"], *item.entry.get("aliases", ())], one)
    return [_with(item, names.get(address.fold(item.entry.get("id", "")))) for item in declared]


def _renamed(names: Sequence[str], one: Rename) -> list[str]:
    """Return the names of an agent (the address, then its aliases) after a rename."""
    first = one.now if address.fold(names[0]) in (address.fold(one.was), address.fold(one.now)) else names[0]
    every = {address.fold(name): name for name in (first, *names, one.was, one.now)}
    return list(every.values())


def _with(item: Declared, names: Sequence[str] | None) -> Declared:
    if names is None:
        return item
    changed: dict[str, Any] = {"address": names[0], "aliases": list(names[1:])}
    entry = {key: changed.get(key, value) for key, value in item.entry.items()}
    if "aliases" not in entry:  # it stands after the address
        at = list(entry).index("address") + 1
        pairs = list(entry.items())
        entry = dict([*pairs[:at], ("aliases", changed["aliases"]), *pairs[at:]])
    if not entry["aliases"]:
        del entry["aliases"]
    return replace(item, entry=entry, raw={**item.raw, **changed})
