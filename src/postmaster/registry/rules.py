"""The rules that no schema can tell: nothing open by accident, and no two agents that could be mistaken.

`check` asks the disk only where symlinks lead (realpath), so that two paths to one directory count as one.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address
from postmaster.errors import ConfigurationFault
from postmaster.maildir import FOLDERS
from postmaster.office import Office
from postmaster.printable import quoted
from postmaster.registry import schema, turn_rules
from postmaster.registry.declarations import OWN, Declared
from postmaster.registry.source import Path, Problem

_HOW_TO_OPEN: Final = (
    "write `accepts_from: [orchestrator@council.internal]` beside `type`, or once for the agent "
    '(`accepts_from: ["*"]` for anyone)'
)


def check(declared: Sequence[Declared], office: Office) -> list[Problem]:
    """Return every breach of the rules beyond the schema, sorted."""
    problems = list(_unsaid_senders(declared))
    same_id = _ids(declared, problems)
    problems += _addresses(declared)
    problems += turn_rules.check(declared)
    problems += _inboxes(declared, office, same_id)
    return sorted(set(problems))


def _unsaid_senders(declared: Sequence[Declared]) -> Iterator[Problem]:
    """Yield a problem for each accepted type that does not say from whom: never open by accident."""
    for item in declared:
        accepts = item.raw.get("accepts")
        if not isinstance(accepts, list) or _says_senders(item.raw, "entry"):
            continue
        for number, accept in enumerate(accepts):
            if isinstance(accept, dict) and _says_senders(accept, "accept_mapping"):
                continue
            name = accept if isinstance(accept, str) else accept.get("type") if isinstance(accept, dict) else None
            if isinstance(name, str):
                message = f"`accepts_from` is missing: nobody may send {quoted(name)} to {_name(item)}"
                yield item.problem(f"{message}; {_HOW_TO_OPEN}", "accepts", number)


def _says_senders(mapping: dict[str, Any], definition: str) -> bool:
    """Tell whether a mapping has `accepts_from`, or a misspelling of it that is a problem already."""
    if "accepts_from" in mapping:
        return True
    known = schema.known_keys(definition)
    return any(
        key not in known and not key.startswith(OWN) and address.nearest(key, known) == "accepts_from"
        for key in mapping
    )


def _name(item: Declared) -> str:
    return quoted(item.entry.get("id", "")) if item.entry.get("id") else "an entry without id"


def _ids(declared: Sequence[Declared], problems: list[Problem]) -> set[tuple[int, int]]:
    """Add the collisions of ids to `problems`; return the pairs of entries (by identity) that collide."""
    first: dict[str, Declared] = {}
    pairs = set()
    for item in declared:
        name = item.entry.get("id")
        if not name:
            continue
        other = first.setdefault(address.fold(name), item)
        if other is not item:
            pairs.add((id(other), id(item)))
            problems.append(item.problem(_taken("id", name, "id", other.entry["id"], other.where), "id"))
    return pairs


def _taken(kind: str, name: str, other_kind: str, other: str, where: str) -> str:
    if name == other:
        clash = f"{kind} {quoted(name)} is taken: it is the {other_kind} of an agent at {where}"
    else:
        clash = f"{kind} {quoted(name)} equals, but for case, the {other_kind} {quoted(other)} at {where}"
    return f"{clash}; rename or remove one of the two"


def _addresses(declared: Sequence[Declared]) -> Iterator[Problem]:
    """Yield the collisions of addresses and aliases, which share one space of names."""
    first: dict[str, tuple[Declared, str, str]] = {}
    for item in declared:
        names: list[tuple[str, str, Path]] = [("address", item.entry.get("address", ""), ("address",))]
        typed = item.raw.get("aliases")
        for number, alias in enumerate(typed if isinstance(typed, list) else ()):
            if isinstance(alias, str):
                names.append(("alias", alias, ("aliases", number)))
        for kind, name, keys in names:
            folded = address.fold(name)
            if not name or folded not in first:
                first[folded] = (item, kind, name)
                continue
            other, other_kind, other_name = first[folded]
            if other is item:
                yield item.problem(f"alias {quoted(name)} is this agent's {other_kind} already; remove it", *keys)
            else:
                yield item.problem(_taken(kind, name, other_kind, other_name, other.where), *keys)


@dataclass(frozen=True, slots=True)
class _Place:
    """An inbox under one of its paths: as written, or where its symlinks lead. `parts` are folded."""

    parts: tuple[str, ...]
    path: str
    item: Declared


def _inboxes(declared: Sequence[Declared], office: Office, known_pairs: set[tuple[int, int]]) -> Iterator[Problem]:
    """Yield inboxes that are no place for mail, are shared, or lie one inside another."""
    places: list[_Place] = []
    reserved = _reserved(office)
    for item in declared:
        configured = item.entry.get("inbox", "")
        if not configured or not configured.isprintable():
            continue  # the schema has told
        try:
            path = office.inbox(configured)
        except ConfigurationFault as fault:
            yield item.problem(str(fault), "inbox")
            continue
        mine = [_Place(_parts(form), path, item) for form in dict.fromkeys((path, os.path.realpath(path)))]
        wrong = _misplaced(path, mine, reserved, item, office)
        if wrong:
            yield item.problem(f"inbox {quoted(configured)} {wrong}", "inbox")
        else:
            places += mine
    yield from _overlaps(places, office, known_pairs)


def _parts(path: str) -> tuple[str, ...]:
    return tuple(part for part in address.fold(path).split("/") if part)


def _reserved(office: Office) -> list[tuple[tuple[str, ...], str, bool]]:
    """Return (parts, name for people, whether an inbox may lie inside) of what is not for inboxes."""
    inside_too = (office.root, office.inboxes)
    others = (
        office.outbox,
        office.dead_letter,
        office.logs,
        office.declarations,
        office.directory,
        office.turns,
        office.carrier,
        office.schemas,
        office.private,
        office.registry,
        office.renames,
        office.settings_file,
    )
    return [
        (_parts(form), "the office itself" if path == office.root else office.shown(path), path in inside_too)
        for path in (*inside_too, *others)
        for form in dict.fromkeys((path, os.path.realpath(path)))
    ]


def _misplaced(
    path: str,
    places: Sequence[_Place],
    reserved: Sequence[tuple[tuple[str, ...], str, bool]],
    item: Declared,
    office: Office,
) -> str | None:
    """Return why an inbox cannot be where it is, or None."""
    for place in places:
        for parts, name, inside_allowed in reserved:
            if parts[: len(place.parts)] == place.parts:
                relation = "is" if parts == place.parts else "contains"
                return f"{relation} {name}; give the agent a directory of its own, or leave `inbox` out"
            if not inside_allowed and place.parts[: len(parts)] == parts:
                return f"lies in {name}; give the agent a directory of its own, or leave `inbox` out"
    home = _parts(office.inboxes)
    if any(place.parts[: len(home)] == home and "+" in place.parts[len(home)] for place in places):
        return "has a `+` in its name below inboxes/, where the mailboxes of live instances are; choose another name"
    last = os.path.basename(path)
    if last in FOLDERS and path != office.default_inbox(item.entry.get("id", "")):
        return f"ends in {last}/, which Postmaster makes in every inbox; name the directory above it"
    return None


def _overlaps(places: list[_Place], office: Office, known_pairs: set[tuple[int, int]]) -> Iterator[Problem]:
    """Yield pairs of inboxes of which one is or holds the other. Sorted, a holder precedes what it holds."""
    seen = set(known_pairs)
    order = {id(place.item): number for number, place in enumerate(places)}
    around: list[_Place] = []
    for place in sorted(places, key=lambda place: place.parts):
        while around and place.parts[: len(around[-1].parts)] != around[-1].parts:
            around.pop()
        holder = next((other for other in reversed(around) if other.item is not place.item), None)
        around.append(place)
        if holder is None:
            continue
        first, later = sorted((holder, place), key=lambda one: order[id(one.item)])
        pair = (id(first.item), id(later.item))
        if pair not in seen:
            seen.add(pair)
            yield later.item.problem(_overlap(first, later, office), "inbox")


def _overlap(first: _Place, later: _Place, office: Office) -> str:
    mine, other = quoted(office.shown(later.path)), quoted(office.shown(first.path))
    whose = f"that of {_name(first.item)} at {first.item.where}"
    if first.path == later.path:
        relation = f"inbox {mine} is taken: it is {whose}"
    elif first.parts == later.parts and address.fold(first.path) == address.fold(later.path):
        relation = f"inbox {mine} equals, but for case, the inbox {other}, {whose}"
    elif first.parts == later.parts:
        relation = f"inbox {mine} is, through a symlink, the inbox {other}, {whose}"
    elif len(first.parts) < len(later.parts):
        relation = f"inbox {mine} lies inside the inbox {other}, {whose}"
    else:
        relation = f"inbox {mine} contains the inbox {other}, {whose}"
    return f"{relation}; give each agent a directory of its own"
