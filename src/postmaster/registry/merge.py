"""`registry merge`: every declaration together becomes agent-registry.yml, or nothing changes.

The plan is made first (`plan`, which reads and changes nothing); then the disk follows it: inboxes, so that no
run meets an agent without one; the registry, by rename; the compiled lookup, which any run could make as well.
"""

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from postmaster import accounts, address, durable, maildir
from postmaster.errors import CannotCreate, ConfigurationFault
from postmaster.office import Office
from postmaster.registry import compiled, declarations, left_behind, renames, rules, source, written
from postmaster.registry.renames import Rename
from postmaster.registry.source import Problem
from postmaster.registry.view import Entry
from postmaster.settings import load_settings

_TEMPORARY: Final = ".agent-registry.yml.tmp"  # one name, under the lock: the next merge takes it away


@dataclass(frozen=True, slots=True)
class Move:
    """An agent whose address or inbox is another now. `what` is "address" or "inbox"."""

    id: str
    what: str
    was: str
    now: str


@dataclass(frozen=True, slots=True)
class MergeReport:
    """What a merge found and did.

    Attributes:
        problems: why nothing was changed; everything else is empty then.
        added, removed, changed: ids of agents; a changed one differs in more than its address and inbox.
        moved: one for each address or inbox that changed.
        unchanged: agent-registry.yml already said all this, byte for byte.
        agents: how many agents the registry has now.
        warnings: what the operator should know, above all unread mail that is left behind.
        failures: inboxes that could not be made.
        made: inboxes that were made, as they are shown to people.
    """

    problems: tuple[Problem, ...] = ()
    added: tuple[str, ...] = ()
    moved: tuple[Move, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    unchanged: bool = False
    agents: int = 0
    warnings: tuple[str, ...] = ()
    failures: tuple[str, ...] = ()
    made: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """What a merge would do: the report, and the new registry as entries and as bytes."""

    report: MergeReport
    entries: Sequence[Entry] = ()
    raw: bytes = b""
    inboxes: Mapping[str, str] = field(default_factory=dict)  # agent id -> absolute path
    known: frozenset[str] = frozenset()  # the inboxes that the registry there is names


def merge(office: Office, *, dry_run: bool = False, make_inboxes: bool = False) -> MergeReport:
    """Write agent-registry.yml from the declarations; with problems the old one is kept.

    Commit point: the rename of the new registry. A crash before it leaves the old one, and at most new empty
    inboxes; a crash after it leaves nothing to do but the compiled lookup, which the next run makes.

    Args:
        dry_run: report what would change, and change nothing.
        make_inboxes: make also inboxes outside the office that earlier merges knew. Without it they are not made
            again: where a disk is not mounted, their mail would vanish below the mount point.

    Raises:
        CannotCreate, DiskFault: the lock or the registry cannot be written; the old registry is kept.
    """
    if dry_run:
        planned = plan(office)
        wanted, failures = _missing(office, planned, make_inboxes=make_inboxes)
        shown = tuple(office.shown(path) for path in wanted.values())
        return replace(planned.report, made=shown, failures=tuple(failures))
    with compiled.locked(office):
        durable.remove(os.path.join(office.root, _TEMPORARY))
        planned = plan(office)
        if planned.report.problems:
            return planned.report
        wanted, failures = _missing(office, planned, make_inboxes=make_inboxes)
        made = _make(office, wanted, failures)
        if not planned.report.unchanged:
            _write(office, planned.raw)
            _compile(office, planned)
        return replace(planned.report, made=tuple(made), failures=tuple(failures))


def plan(office: Office, extra: Sequence[Rename] = ()) -> Plan:
    """Read and check every declaration, and compare with the registry there is. Changes nothing.

    Args:
        extra: renames besides those that are in force.
    """
    loaded = declarations.load(office)
    given, wrong = renames.load(office)
    loaded.declared = renames.apply(loaded.declared, [*given, *extra])
    problems = loaded.problems + wrong + rules.check(loaded.declared, office)
    if problems:
        return Plan(MergeReport(problems=tuple(sorted(set(problems)))))
    entries = loaded.entries()
    raw = written.render(entries)
    warnings = []
    if not entries:
        holds = "holds no declarations" if not loaded.files else "declares no agents"
        warnings.append(f"{office.shown(office.declarations)}/ {holds}: the registry is empty")
    required = False
    with contextlib.suppress(ConfigurationFault):  # which is told to whoever needs the settings
        required = load_settings(office).require_owner
    warnings += accounts.warnings(entries, required=required)
    old_raw, unreadable = _old(office)
    inboxes = {entry["id"]: office.inbox(entry["inbox"]) for entry in entries}
    report = MergeReport(unchanged=old_raw == raw, agents=len(entries), warnings=tuple(warnings))
    known = frozenset(inboxes.values())
    if not report.unchanged:
        old: list[Entry] = []
        if old_raw is not None:
            parsed = declarations.parse_merged(old_raw, office, trusted=True)
            old = [entry for entry in parsed.entries() if entry.get("id")]
            unreadable = unreadable or (str(parsed.problems[0]) if parsed.problems else None)
        if unreadable:
            warnings.append(f"what the old registry said is not known, it is written anew ({unreadable})")
        report = _compare(office, old, entries, inboxes, replace(report, warnings=tuple(warnings)))
        known = frozenset(_paths(office, old))
    return Plan(report, entries, raw, inboxes, known)


def _old(office: Office) -> tuple[bytes | None, str | None]:
    """Return the bytes of the registry there is, or why they cannot be had."""
    try:
        return source.read_file(office.registry, declarations.MAX_REGISTRY_BYTES)[0], None
    except FileNotFoundError:
        return None, None
    except (OSError, ValueError) as fault:
        return None, str(fault)


def _compare(
    office: Office, old: Sequence[Entry], new: Sequence[Entry], inboxes: Mapping[str, str], report: MergeReport
) -> MergeReport:
    """Return `report` with what changed between two registries, and the unread mail this leaves behind."""
    before = {address.fold(entry["id"]): entry for entry in old}
    after = {address.fold(entry["id"]): entry for entry in new}
    moved: list[Move] = []
    changed = []
    for key, entry in after.items():
        was = before.get(key)
        if was is None:
            continue
        moves = [
            Move(entry["id"], what, str(was.get(what, "")), str(entry[what]))
            for what in ("address", "inbox")
            if was.get(what) != entry[what]
        ]
        moved += moves
        differs = {name for name in was.keys() | entry.keys() if was.get(name) != entry.get(name)}
        if differs - {"address", "inbox"}:
            changed.append(entry["id"])
    removed = [entry for key, entry in before.items() if key not in after]
    left = [(entry, "is removed") for entry in removed]
    left += [
        (before[address.fold(move.id)], f"has moved to {office.shown(inboxes[move.id])}")
        for move in moved
        if move.what == "inbox"
    ]
    return replace(
        report,
        added=tuple(entry["id"] for key, entry in after.items() if key not in before),
        moved=tuple(moved),
        removed=tuple(entry["id"] for entry in removed),
        changed=tuple(changed),
        warnings=(
            *report.warnings,
            *left_behind.of_inboxes(office, left, inboxes),
            *left_behind.of_flows(office, before, after),
        ),
    )


def _paths(office: Office, entries: Iterable[Entry]) -> Iterator[str]:
    """Yield the inboxes of entries of an older registry, as far as they can be read."""
    for entry in entries:
        with contextlib.suppress(KeyError, TypeError, ValueError, ConfigurationFault):
            yield office.inbox(entry["inbox"])


def _missing(office: Office, planned: Plan, *, make_inboxes: bool) -> tuple[dict[str, str], list[str]]:
    """Return the inboxes to be made (agent id -> path), and in words those that are gone and not made again."""
    wanted: dict[str, str] = {}
    gone = []
    for agent_id, path in planned.inboxes.items():
        if all(os.path.isdir(os.path.join(path, folder)) for folder in maildir.FOLDERS):
            continue
        inside = path.startswith(office.root.rstrip("/") + "/")
        there = os.path.isdir(os.path.join(path, maildir.UNREAD))
        if inside or make_inboxes or there or path not in planned.known:
            wanted[agent_id] = path
            continue
        gone.append(
            f"{agent_id}: its inbox {office.shown(path)} is not there: mount its disk, or, if it is to be made, "
            "`postmaster registry merge --make-inboxes`; its mail waits in the outbox until then"
        )
    return wanted, gone


def _make(office: Office, wanted: Mapping[str, str], failures: list[str]) -> list[str]:
    """Make inboxes, durably; return those made, and add to `failures` why others could not be."""
    made = []
    parents: dict[str, list[str]] = {}
    for agent_id, path in wanted.items():
        try:
            maildir.make(path)
        except OSError as fault:
            why = f"{agent_id}: its inbox {office.shown(path)} cannot be made: {fault.strerror}"
            inside = path.startswith(office.root.rstrip("/") + "/")
            again = "merged again" if inside else "merged again with --make-inboxes"
            failures.append(f"{why}; its mail waits in the outbox until that is mended and {again}")
            continue
        made.append(office.shown(path))
        parents.setdefault(os.path.dirname(path), []).append(path)
    for parent, paths in parents.items():
        with contextlib.suppress(OSError):  # the inboxes are there; after a power loss the next merge makes them
            durable.sync_filesystem(parent, [parent, *paths])
    return made


def _write(office: Office, raw: bytes) -> None:
    """Replace the registry, durably."""
    temporary = os.path.join(office.root, _TEMPORARY)
    try:
        durable.write_new(temporary, raw, sync=True)
        try:
            os.rename(temporary, office.registry)
        except OSError:
            durable.remove(temporary)
            raise
        durable.sync_directory(office.root)
    except OSError as fault:
        raise CannotCreate(f"{office.registry}: cannot be written: {fault.strerror}") from fault


def _compile(office: Office, planned: Plan) -> None:
    """Make the compiled lookup from what is in memory; a run that finds none makes it from the YAML."""
    with contextlib.suppress(OSError, ValueError):
        raw, status = compiled.read_settled(office)
        if raw == planned.raw:
            compiled.store(office, planned.entries, status)
