"""The rules of what an entry says of its turns and of its instances for flows, as far as no schema can tell them."""

from collections.abc import Iterator, Sequence
from typing import Final

from postmaster import address, per_flow, times
from postmaster.printable import quoted
from postmaster.registry.declarations import TURN_KEYS, Declared
from postmaster.registry.source import Path, Problem

MAX_TIMEOUT: Final = 7 * 86400  # seconds
_MAX_LOCAL_PART: Final = 64 - 1 - per_flow.KEY_LENGTH
_RUN: Final = "run"


def check(declared: Sequence[Declared]) -> Iterator[Problem]:
    """Yield every breach of these rules."""
    classes: dict[str, Declared] = {}
    for item in declared:
        yield from _keys(item)
        if item.entry.get("instances") == per_flow.PER_FLOW:
            yield from _long(item)
            for _, name, _ in _mailboxes(item):
                classes.setdefault(address.fold(name), item)
    if classes:
        yield from _subaddresses(declared, classes)


def _keys(item: Declared) -> Iterator[Problem]:
    """Yield what cannot be meant: how turns are taken of an agent that takes none, and turns that never end."""
    if not item.raw.get(_RUN) and not any(address.nearest(key, [_RUN]) for key in item.raw if key not in item.entry):
        for key in TURN_KEYS:
            if key in item.raw:
                message = f"`{key}` is about turns, and without `run` there are none"
                yield item.problem(f"{message}; write `run: [a-program, its-arguments]`, or remove it", key)
    timeout = item.entry.get("turn_timeout")
    if timeout is not None:
        try:
            seconds = times.parse_span(timeout)
        except ValueError:
            return  # the schema has told
        if seconds > MAX_TIMEOUT:
            yield item.problem(
                f"`turn_timeout` is {quoted(timeout)}, and at most 7d; write `turn_timeout: 15m`", "turn_timeout"
            )


def _mailboxes(item: Declared) -> Iterator[tuple[str, str, Path]]:
    """Yield (what it is, address, where it stands) of the address and the aliases of an entry."""
    if item.entry.get("address"):
        yield "address", item.entry["address"], ("address",)
    typed = item.raw.get("aliases")
    for number, alias in enumerate(typed if isinstance(typed, list) else ()):
        if isinstance(alias, str):
            yield "alias", alias, ("aliases", number)


def _long(item: Declared) -> Iterator[Problem]:
    for kind, name, keys in _mailboxes(item):
        if len(name.rpartition("@")[0]) > _MAX_LOCAL_PART and kind == "address":
            yield item.problem(
                f"{kind} {quoted(name)} leaves no room for `+` and the name of an instance: with `instances: per-flow` "
                f"at most {_MAX_LOCAL_PART} characters stand before the `@`",
                *keys,
            )


def _subaddresses(declared: Sequence[Declared], classes: dict[str, Declared]) -> Iterator[Problem]:
    """Yield the addresses that an instance for a flow could have."""
    for item in declared:
        for kind, name, keys in _mailboxes(item):
            parts = per_flow.split_address(name)
            other = classes.get(address.fold(parts[0])) if parts is not None else None
            if other is not None:
                whose = f"an instance of {quoted(other.entry['id'])} at {other.where}, which has `instances: per-flow`"
                yield item.problem(f"{kind} {quoted(name)} can be that of {whose}; choose another", *keys)
