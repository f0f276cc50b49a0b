"""`postmaster init`, `verify` and `cron`."""

import os
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from postmaster import setup
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable
from postmaster.office import Office

if TYPE_CHECKING:
    from postmaster.audit.sheet import Audit


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
