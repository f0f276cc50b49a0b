"""`postmaster nudge`."""

from typing import Any

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory.passes import describe_nudges
from postmaster.errors import Missing
from postmaster.office import Office


@click.command()
@click.option("-v", "--verbose", is_flag=True, help="Say who was nudged, and who is busy.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@click.pass_obj
def nudge(office: Office, verbose: bool, as_json: bool) -> int:
    """Tell every idle agent that has new mail, with the command in its declaration (`nudge`). `route` does it too.

    An agent is told of a message at most once, whoever runs this and how often; several new messages make one nudge.
    An agent whose `idle` command does not end with 0 is busy, and is told by a later run.

    Exit codes: 0 done, 69 a command failed or could not be run (it is logged), 73 or 74 the disk refused, 78 no
    usable office or registry.

    \b
    Example:
      postmaster nudge -v
    """
    from postmaster.directory import nudging

    told = nudging.tell(office)
    answer = {"office": office.root, **describe_nudges(told)}
    if as_json:
        echo_json(answer)
    elif verbose:
        click.echo("\n".join(lines(answer) or ["nobody to nudge"]))
    for problem in told.problems:
        say(problem)
    return Missing.exit_code if told.problems else 0


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `describe_nudges`."""
    shown = []
    for row in answer.get("nudged", ()):
        how = f" [failed] {printable(row['failed'])}" if row["failed"] else ""
        shown.append(f"nudged      {row['agent']}: {row['new']} new of {row['unread']} unread{how}")
    shown += [f"busy        {agent}" for agent in answer.get("busy", ())]
    shown += [f"later       {agent}" for agent in answer.get("later", ())]
    return shown
