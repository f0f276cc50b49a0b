"""`postmaster carry`."""

from typing import Any

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory import open_view
from postmaster.office import Office


@click.command()
@click.argument("remotes", nargs=-1, metavar="[REMOTE]...")
@click.option("--accept", multiple=True, metavar="REMOTE", help="Take this remote as it is, though it looks wrong.")
@click.option("-v", "--verbose", is_flag=True, help="Say what was exchanged.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@click.pass_obj
def carry(office: Office, remotes: tuple[str, ...], accept: tuple[str, ...], verbose: bool, as_json: bool) -> int:
    """Exchange mail with the offices that post-office.yml names (`remotes`), one pass. Route before it and after it.

    Exit codes: 0 done, 65 no such remote, 69 no git or ssh-keygen, 73/74 the disk refused, 75 a letter was not taken,
    or a remote does not answer (it is tried again, ever more rarely), 76 a remote looks wrong: nothing of it was
    merged or pushed; 78 no usable office, registry or settings.

    \b
    Example:
      postmaster route && postmaster carry && postmaster route
      postmaster carry laptop -v
    """
    from postmaster.carrier import carrying

    done = carrying.carry(office, remotes, accept=accept, open_view=open_view)
    answer: dict[str, Any] = {
        "office": office.root,
        "busy": done.busy,
        "sent": done.sent,
        "received": done.received,
        "marked": done.marked,
        "receipts": done.receipts,
        "remotes": done.remotes,
        "problems": done.problems,
    }
    if as_json:
        echo_json(answer)
    elif verbose:
        click.echo("\n".join(_lines(answer)))
    for row in done.remotes:
        if row["why"]:
            say(printable(f"{row['remote']}: {row['state']}: {row['why']}"))
    for problem in done.problems:
        say(printable(problem))
    states = {row["state"] for row in done.remotes}
    if "wrong" in states:
        return 76
    return 75 if done.problems or states & {"unreachable", "later"} else 0


def _lines(answer: dict[str, Any]) -> list[str]:
    if answer["busy"]:
        return [f"{answer['office']}: another carrier is at work; it takes the mail"]
    rows = [f"{row['state']:<11} {row['remote']}" for row in answer["remotes"]]
    counts = [f"{answer[key]} {key}" for key in ("sent", "received", "marked", "receipts")]
    return [*rows, f"{answer['office']}: {', '.join(counts)}"]
