"""`postmaster init`, `verify`, `status` and `cron`."""

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postmaster import setup
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable
from postmaster.office import Office

if TYPE_CHECKING:
    from postmaster.audit import Audit


@click.command()
@click.pass_obj
def init(office: Office) -> int:
    """Make an office. Run again, it changes nothing but adds what is missing.

    Exit codes: 0 it is an office, 73 something cannot be made.

    \b
    Example:
      postmaster --root /srv/post-office init
    """
    made = setup.make_office(office)
    for path in made:
        click.echo(f"made {path}")
    click.echo(f"{office.root} is an office" + ("" if made else "; nothing to do"))
    return 0


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@click.pass_obj
def verify(office: Office, as_json: bool) -> int:
    """Compare the log with what is on disk, and hash every message again. Changes nothing.

    Every difference is one line: the path or the log's file:line, what is wrong there, what to do. The last line is
    the sum: what came in is unread, read, dead or waiting.

    Exit codes: 0 nothing differs, 1 something does, 78 no office.

    \b
    Example:
      postmaster verify
      postmaster verify --json | jq -r '.differences[].place'
    """
    from postmaster import audit
    from postmaster.directory import open_view

    found = audit.verify(office, open_view=open_view)
    answer = describe_audit(office, found)
    if as_json:
        echo_json(answer)
    else:
        for line in audit_lines(answer):
            click.echo(line)
    return 1 if found.differences else 0


def describe_audit(office: Office, found: "Audit") -> dict[str, Any]:
    """Return an audit as plain data: what both the human and the JSON form say."""
    differences = [{**asdict(one), "text": str(one)} for one in found.differences]
    return {
        "office": office.root,
        "ok": not differences,
        "counts": found.counts,
        "sum": found.total(),
        "differences": differences,
        "notes": found.notes,
    }


def audit_lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `describe_audit`."""
    lines = [printable(one["text"]) for one in answer["differences"]]
    lines += [f"note: {printable(note)}" for note in answer["notes"]]
    counts, differ = answer["counts"], len(answer["differences"])
    said = f"{differ} differences" if differ != 1 else "1 difference"
    lines.append(
        f"office {printable(answer['office'])}: {counts['lines']} log lines read, {counts['hashed']} messages hashed "
        f"in {counts['mailboxes']} inboxes and dead-letter/, {said}"
    )
    return [*lines, answer["sum"]]


@click.command()
@click.option("-v", "--verbose", "--all", "everybody", is_flag=True, help="Agents without unread mail too.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@click.pass_obj
def status(office: Office, everybody: bool, as_json: bool) -> int:
    """Show what the office holds, what waits and why. Changes nothing.

    Exit codes: 0 shown, 78 no office.

    \b
    Example:
      postmaster status
      postmaster status --json | jq '.totals'
    """
    from postmaster import status as module
    from postmaster.directory import open_view

    answer = module.survey(office, open_view=open_view)
    if as_json:
        echo_json(answer)
        return 0
    for line in status_lines(answer, everybody=everybody):
        click.echo(line)
    return 0


def status_lines(answer: dict[str, Any], *, everybody: bool) -> list[str]:
    """Return the human form of `status.survey`."""
    totals = answer["totals"]
    lines = [
        f"office {printable(answer['name'])} at {printable(answer['office'])}",
        _registry_line(answer["registry"]),
        "last run     "
        + (f"{answer['last_run']} ({_ago(answer['last_run_age_seconds'])})" if answer["last_run"] else "never"),
    ]
    if answer["unfinished_run"]:
        lines.append("             a run is at work, or was cut off in the middle; the next one ends it")
    lines.append(f"mail         {totals['unread']} unread, {totals['read']} read")
    if oldest := answer["oldest_unread"]:
        who = oldest["agent"] or "nobody in the registry"
        lines.append(f"oldest       {printable(oldest['file'])} for {who} ({_ago(oldest['age_seconds'])})")
    for one in answer["agents"]:
        if (one["unread"] and not one["archived"]) or everybody:
            nobody = "archived" if one["archived"] else "not in the registry"
            who = one["agent"] or f"{printable(one['inbox'])} ({nobody})"
            lines.append(f"  {one['unread']:>7} unread {one['read']:>7} read  {who}")
    lines += _outbox_lines(answer)
    reasons = ", ".join(f"{count} {printable(name)}" for name, count in answer["dead_letters"].items())
    lines.append(f"dead letters {totals['dead']}" + (f": {reasons}" if reasons else ""))
    for one in answer["remotes"]:
        lines.append(f"remote       {one['name']}: {one['waiting']} waiting for the carrier")
        for receipt in one["receipts"]:
            about = f"{printable(receipt['to'])} {printable(receipt['correlation_id'])} #{receipt['sequence']}"
            lines.append(f"  {printable(receipt['detail'])}: {about} {printable(receipt['subject'])}")
    return [*lines, *(f"problem      {printable(text)}" for text in answer["problems"])]


def _registry_line(registry: dict[str, Any]) -> str:
    counted = f"{registry['agents']} agents"
    counted += f", {registry['instances']} live instances" if registry["instances"] else ""
    if registry["state"] == "merged":
        return f"registry     {counted}"
    if registry["state"] == "stale":
        return f"registry     {counted}; {printable(registry['detail'])}"
    return f"registry     {registry['state']}: {printable(registry['detail'])}"


def _outbox_lines(answer: dict[str, Any]) -> list[str]:
    box = answer["outbox"]
    oldest = box["oldest"]
    told = f", the oldest {printable(oldest['file'])} ({_ago(oldest['age_seconds'])})" if oldest else ""
    lines = [f"outbox       {box['waiting']} waiting{told}"]
    for one in answer["deferred"]:
        why = f"{printable(one['reason'] or 'no reason given')}, since {printable(one['since'])}"
        lines.append(f"  deferred   {_letter_for(one)}: {why}")
    for one in answer["retried"]:
        was = f" (it died of {printable(one['reason'])})" if one["reason"] else ""
        lines.append(f"  retried    {_letter_for(one)}: waits for the next run since {printable(one['since'])}{was}")
    for one in box["held_back"]:
        lines.append(f"  held back  {printable(one['file'])}: {printable(one['why'])} ({_ago(one['age_seconds'])})")
    for one in box["stray"]:
        lines.append(f"  stray      {printable(one['file'])}: {printable(one['why'])} ({_ago(one['age_seconds'])})")
    young = box["unfinished"] - len(box["stray"])
    if young:
        lines.append(f"  unfinished {young} by their names; their writers may be at work")
    return lines


def _letter_for(item: dict[str, Any]) -> str:
    """Return the file of a letter that waits, and for whom where that is known."""
    whom = item["agent"] or item["to"]
    return printable(item["file"]) + (f" for {printable(whom)}" if whom else "")


def _ago(seconds: int | None) -> str:
    """Return an age in its largest unit."""
    if seconds is None:
        return "age unknown"
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit} ago"
    return f"{seconds} seconds ago"


@click.command()
@click.option("--install", is_flag=True, help="Put the line into your crontab; other lines stay as they are.")
@click.option("--remove", is_flag=True, help="Take the line of this office out of your crontab.")
@click.option("--every", type=int, default=10, metavar="MINUTES", show_default=True, help="How often to route.")
@click.option("--cycle", "turns", is_flag=True, help="Take turns of agents too: `cycle` in place of `route`.")
@click.option("--carry", "carries", is_flag=True, help="Exchange mail with other offices too: route, carry, route.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@click.pass_obj
def cron(office: Office, install: bool, remove: bool, every: int, turns: bool, carries: bool, as_json: bool) -> int:
    """Print the crontab line that routes this office, or install it. It needs no environment.

    Exit codes: 0 done, 64 cron has no such step, 78 no office or no usable crontab (the line is printed for you to
    paste).

    \b
    Example:
      postmaster cron
      postmaster cron --install --every 5
      postmaster cron --install --cycle --carry
    """
    from postmaster import crontab

    if install and remove:
        raise click.UsageError("--install and --remove exclude each other")
    changed: bool | None = None
    if remove:
        changed = crontab.remove(office)
        line = None
    else:
        office.require()
        job = crontab.Job(every, turns, carries)
        line = crontab.line(office, job).decode("utf-8", "surrogateescape")
        changed = crontab.install(office, job) if install else None
    answer = {"office": office.root, "line": line, "changed": changed}
    if as_json:
        echo_json(answer)
    elif line is None:
        click.echo(f"office {printable(office.root)}: " + ("removed" if changed else "no line of it in your crontab"))
    elif changed is None:
        click.echo(os.fsencode(line))
    else:
        what = "installed" if changed else "is installed already"
        click.echo(f"office {printable(office.root)}: {what}: {printable(line)}")
    return 0
