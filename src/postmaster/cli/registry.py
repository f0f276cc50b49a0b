"""`postmaster registry`: new, check, merge, show, flows, schema."""

import json
from collections.abc import Callable, Sequence
from typing import Any

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory import merging
from postmaster.errors import BadData
from postmaster.office import Office
from postmaster.registry import compiled, flows, lint, source
from postmaster.registry import merge as registry_merge
from postmaster.registry.merge import MergeReport
from postmaster.registry.source import Problem

_json_option = click.option("--json", "as_json", is_flag=True, help="Answer in JSON.")


@click.group()
def registry() -> None:
    """Merge, check and show the registry: who has which address, and who may write to whom.

    \b
    Example:
      postmaster registry new council
      postmaster registry check
      postmaster registry merge
    """


@registry.command()
@click.argument("plugin")
@click.option("--stdout", "prints", is_flag=True, help="Print it, and write nothing.")
@click.pass_obj
def new(office: Office, plugin: str, prints: bool) -> int:
    """Write a first declaration of PLUGIN, with comments, to registry.d/PLUGIN.yml.

    It is valid as it stands: two agents that write to each other. One that is there already is left alone.

    Exit codes: 0 written, 65 it is there, or no plugin can be called so, 73 it cannot be written, 78 no office.

    \b
    Example:
      postmaster registry new council
      postmaster registry new council --stdout > council.yml
    """
    from postmaster.registry import scaffold

    if prints:
        click.echo(scaffold.text(plugin), nl=False)
        return 0
    office.require()
    path = scaffold.write(office, plugin)
    click.echo(f"made {path}; edit it, then: postmaster registry check, postmaster registry merge")
    return 0


@registry.command()
@click.option("--dry-run", is_flag=True, help="Say what would change, and change nothing.")
@click.option("--make-inboxes", is_flag=True, help="Make known inboxes outside the office again that are gone.")
@_json_option
@click.pass_obj
def merge(office: Office, dry_run: bool, make_inboxes: bool, as_json: bool) -> int:
    """Write agent-registry.yml from registry.d/*.yml.

    All declarations are checked first; with any problem (exit 78) the old registry is kept. Inboxes that are
    missing are made; but one outside the office that an earlier merge knew may be on a disk that is not mounted: it
    is made again with --make-inboxes only.

    Exit codes: 0 merged, or nothing to do, 73 an inbox is missing (what could be merged is), or the registry cannot be
    written, 78 no office, or problems in the declarations.

    \b
    Example:
      postmaster registry merge --dry-run
      postmaster registry merge
    """
    office.require()
    report = merging.merge(office, dry_run=dry_run, make_inboxes=make_inboxes)
    answer = _merge_answer(report, dry_run)
    if as_json:
        echo_json(answer)
    elif not report.problems:
        _print(_merge_lines(answer))
    _refuse(office, report.problems, "" if dry_run else "; the registry is as it was")
    for warning in (*report.warnings, *report.failures):
        say(printable(warning))
    return 73 if report.failures else 0


def _merge_answer(report: MergeReport, dry_run: bool) -> dict[str, Any]:
    """Return what a merge says, for people and programs alike."""
    return {
        "dry_run": dry_run,
        "unchanged": report.unchanged,
        "agents": report.agents,
        "added": list(report.added),
        "moved": [{"id": m.id, "what": m.what, "was": m.was, "now": m.now} for m in report.moved],
        "changed": list(report.changed),
        "removed": list(report.removed),
        "made": list(report.made),
        "warnings": list(report.warnings),
        "failures": list(report.failures),
        "problems": _problem_list(report.problems),
    }


def _merge_lines(answer: dict[str, Any]) -> list[str]:
    agents = _count(answer["agents"], "agent")
    lines = [f"added {agent_id}" for agent_id in answer["added"]]
    lines += [f"moved {m['id']}: {m['what']} {m['was']} -> {m['now']}" for m in answer["moved"]]
    lines += [f"changed {agent_id}" for agent_id in answer["changed"]]
    lines += [f"removed {agent_id}" for agent_id in answer["removed"]]
    made = "would make inbox" if answer["dry_run"] else "made inbox"
    lines += [f"{made} {path}" for path in answer["made"]]
    if answer["unchanged"]:
        return [*lines, f"unchanged: {agents}"]
    return [*lines, f"would merge: {agents}" if answer["dry_run"] else f"merged: {agents}"]


@registry.command()
@click.option("--strict", is_flag=True, help="End with exit code 1 if there are findings (notes do not count).")
@_json_option
@click.pass_obj
def check(office: Office, strict: bool, as_json: bool) -> int:
    """Check the declarations, and the map they make; change nothing.

    Problems (exit 78) would stop a merge. Findings would not: mail that is sent but not accepted, senders that
    do not exist, types that nobody sends.

    Exit codes: 0 no problem, 1 there are findings, and --strict is given, 78 problems, or no office.

    \b
    Example:
      postmaster registry check --strict
    """
    office.require()
    plan = registry_merge.plan(office)
    found = [] if plan.report.problems else lint.lint(plan.entries)
    answer = {
        "agents": plan.report.agents,
        "merged": plan.report.unchanged,
        "problems": _problem_list(plan.report.problems),
        "findings": [finding.to_json() for finding in found],
    }
    if as_json:
        echo_json(answer)
    _refuse(office, plan.report.problems)
    serious = sum(finding.level == lint.FINDING for finding in found)
    if not as_json:
        _print(_check_lines(answer, serious))
        for warning in plan.report.warnings:
            say(printable(warning))
    return 1 if strict and serious else 0


def _check_lines(answer: dict[str, Any], serious: int) -> list[str]:
    lines = []
    for item in answer["findings"]:
        mark = "note: " if item["level"] == lint.NOTE else ""
        lines.append(f"{item['declared_in']}: {item['agent']}: {mark}{item['message']}")
    notes = len(answer["findings"]) - serious
    lines.append(
        f"{_count(answer['agents'], 'agent')}, no problems, {_count(serious, 'finding')}, {_count(notes, 'note')}"
    )
    if not answer["merged"]:
        lines.append("not merged yet: `postmaster registry merge` puts these declarations into effect")
    return lines


@registry.command()
@click.argument("agent", required=False)
@_json_option
@click.pass_obj
def show(office: Office, agent: str | None, as_json: bool) -> int:
    """List the agents of the merged registry, or show one: by id, address or alias.

    Exit codes: 0 shown, 65 no such AGENT, 78 no usable office or registry.

    \b
    Example:
      postmaster registry show
      postmaster registry show product-agent@council.internal
    """
    office.require()
    with compiled.open_view(office, write=False) as view:
        if agent is None:
            entries = list(view.all_entries())
            _answer({"agents": entries}, as_json, lambda answer: _list_lines(answer["agents"]))
        else:
            _answer({"agent": _one(view, agent)}, as_json, lambda answer: _entry_lines(answer["agent"]))
    return 0


def _one(view: compiled.CompiledRegistry, name: str) -> dict[str, Any]:
    found = view.agent(name.removeprefix("agent:")) or view.find(name)
    entry = view.entry(found.id) if found else None
    if entry is None:
        near = view.suggest(name)
        hint = f"; did you mean {near}?" if near else "; `postmaster registry show` lists them all"
        raise BadData(f"no agent has the id, address or alias {name!a}{hint}")
    return entry


def _list_lines(entries: Sequence[dict[str, Any]]) -> list[str]:
    if not entries:
        return ["no agents: declare them in registry.d/, then `postmaster registry merge`"]
    rows = [("ID", "ADDRESS", "ROLES", "ACCEPTS")]
    for entry in entries:
        types = dict.fromkeys(accept["type"] for accept in entry.get("accepts", ()))
        rows.append((entry["id"], entry["address"], ", ".join(entry.get("roles", ())) or "-", ", ".join(types) or "-"))
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return ["  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[3]]) for row in rows]


def _entry_lines(entry: dict[str, Any]) -> list[str]:
    lines = []
    for key, value in entry.items():
        if key == "accepts":
            lines.append("accepts:" if value else "accepts: nothing")
            for accept in value:
                again = "  (duplicates are delivered)" if accept.get("duplicates") == "deliver" else ""
                lines.append(f"  {accept['type']} from {', '.join(accept['accepts_from'])}{again}")
                lines += [f"      {accept['description']}"] if "description" in accept else []
        elif key == "emits":
            lines.append("emits:")
            for emit in value:
                lines.append(f"  {emit['type']} to {', '.join(emit['to'])}")
                lines += [f"      {emit['description']}"] if "description" in emit else []
        elif isinstance(value, list) and all(isinstance(item, str) for item in value):
            lines.append(f"{key}: {', '.join(value)}")
        else:
            lines.append(f"{key}: {value if isinstance(value, str) else json.dumps(value)}")
    return lines


@registry.command(name="flows")
@click.option(
    "--format",
    "form",
    type=click.Choice(["tree", "mermaid", "dot", "json"]),
    default="tree",
    show_default=True,
    help="How to draw the map.",
)
@click.option("--json", "as_json", is_flag=True, help="The same as --format json.")
@click.pass_obj
def draw_flows(office: Office, form: str, as_json: bool) -> int:
    """Draw who sends what to whom, from what the merged registry says is emitted and accepted.

    What is marked as dangling would not be delivered.

    Exit codes: 0 drawn, 78 no usable office or registry.

    \b
    Example:
      postmaster registry flows
      postmaster registry flows --format dot | dot -Tsvg > flows.svg
    """
    office.require()
    with compiled.open_view(office, write=False) as view:
        map_data = flows.to_json(list(view.all_entries()))
    renderers = {"tree": flows.render_tree, "mermaid": flows.render_mermaid, "dot": flows.render_dot}
    if as_json or form == "json":
        echo_json(map_data)
    else:
        _print(renderers[form](map_data).split("\n"))
    return 0


@registry.command(name="schema")
@click.argument("which", type=click.Choice(["declaration", "agent-registry", "post-office"]), default="declaration")
def show_schema(which: str) -> int:
    """Print the JSON Schema of a declaration, of agent-registry.yml or of post-office.yml, for editors.

    `init` writes them all to schemas/ in the office; a file names its own in a comment, which editors with the YAML
    language server read: # yaml-language-server: $schema=PATH

    Exit codes: 0 printed.

    \b
    Example:
      postmaster registry schema > declaration.schema.json
      postmaster registry schema post-office > post-office.schema.json
    """
    from postmaster import schemas

    click.echo(schemas.text(which), nl=False)
    return 0


def _refuse(office: Office, problems: Sequence[Problem], consequence: str = "") -> None:
    """Raise ConfigurationFault if there are problems."""
    if problems:
        raise source.fault(f"{_count(len(problems), 'problem')} in {office.declarations}{consequence}:", problems)


def _problem_list(problems: Sequence[Problem]) -> list[dict[str, Any]]:
    return [{"file": p.file, "line": p.line, "column": p.column, "message": p.message} for p in problems]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _answer(answer: dict[str, Any], as_json: bool, lines: Callable[[dict[str, Any]], list[str]]) -> None:
    if as_json:
        echo_json(answer)
    else:
        _print(lines(answer))


def _print(lines: Sequence[str]) -> None:
    """Print lines in which other people's text can move no cursor."""
    if lines:
        click.echo("\n".join(map(printable, lines)))
