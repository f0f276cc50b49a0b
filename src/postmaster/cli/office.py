"""`postmaster init`, `verify`, `status` and `cron`."""

import click

from postmaster import setup
from postmaster.office import Office


@click.command()
@click.pass_obj
def init(office: Office) -> int:
    """Make an office. Run again, it changes nothing but adds what is missing.

    \b
    Example:
      postmaster --root /srv/post-office init
    """
    made = setup.make_office(office)
    for path in made:
        click.echo(f"made {path}")
    click.echo(f"{office.root} is an office" + ("" if made else "; nothing to do"))
    return 0
