"""`postmaster rename`."""

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory.merging import note_nudges
from postmaster.office import Office


@click.command()
@click.argument("old")
@click.argument("new")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
@click.pass_obj
def rename(office: Office, old: str, new: str, as_json: bool) -> int:
    """Give the agent OLD (an id or address of the registry) the address NEW, or NEW at its domain.

    Its mailbox and its transcript move with it, and the old address becomes an alias, so that mail to it still
    arrives. The rename is kept in renames.yml, beside the declarations, which stay as their plugins ship them, and
    the registry is merged. To do it again completes what was cut off.

    Exit codes: 0 renamed, 65 no such agent, or NEW is no address or taken, 69 no git (if there is mail for other
    offices), 73/74 the disk refused (do it again), 78 no usable office, or problems in the declarations.

    \b
    Example:
      postmaster rename council.product-agent customer-voice
      postmaster rename product-agent@council.internal customer-voice@council.internal
    """
    from postmaster.carrier.renaming import rename as give_name

    done = give_name(office, old, new)
    note_nudges(office)
    if as_json:
        echo_json(
            {
                "office": office.root,
                "agent": done.agent,
                "was": done.was,
                "now": done.now,
                "carried": done.carried,
                "warnings": [*done.report.warnings, *done.report.failures],
            }
        )
    else:
        click.echo(f"{done.agent}: {done.was} is {done.now} now; mail to the old address still arrives")
    for warning in (*done.report.warnings, *done.report.failures):
        say(printable(warning))
    if not done.carried:
        say(f"a carrier is at work: its next pass moves the mailbox of {done.now} for other offices")
    return 0
