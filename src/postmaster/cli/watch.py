"""`postmaster watch`."""

import os
import signal
import threading

import click

from postmaster import waiting
from postmaster.cli import route as routing
from postmaster.cli.app import printable, say
from postmaster.delivery_log import Record
from postmaster.errors import Missing
from postmaster.office import Office
from postmaster.summary import Summary


@click.command()
@click.option(
    "--poll",
    type=click.FloatRange(min=0.05, max=3600),
    metavar="SECONDS",
    help="Look into the outbox so often instead of being told by the system.",
)
@click.option("-v", "--verbose", is_flag=True, help="Say what became of every letter.")
@click.pass_obj
def watch(office: Office, poll: float | None, verbose: bool) -> int:
    """Route each letter within a second of its arrival, until SIGTERM or Ctrl-C.

    For those who want a process that stays, besides cron. It also nudges, and tries again what is deferred. A registry
    that breaks meanwhile is told of once; the mail waits until it is mended. Any number of these, and of other
    routers, may run at once.

    It needs the package `watchfiles` (pip install '.[watchfiles]' in the checkout), or --poll.

    Exit codes: 0 ended by SIGTERM, 69 `watchfiles` is not installed, 78 no office, 130 ended by Ctrl-C. What the disk
    refuses (73 and 74 of `route`) is told of and tried again.

    \b
    Example:
      postmaster watch
      postmaster watch --poll 0.5 -v
    """
    from postmaster.directory.daemon import Daemon

    office.require()
    if poll is None and not waiting.is_installed():
        raise Missing(f"watching needs the package `watchfiles`: {waiting.EXTRA}; or look often: --poll 0.5")
    stop = threading.Event()
    received: list[int] = []

    def end(number: int, _: object) -> None:
        received.append(number)
        stop.set()

    signal.signal(signal.SIGTERM, end)
    signal.signal(signal.SIGINT, end)

    def on_pass(report: Summary, records: list[Record]) -> None:
        if verbose:
            answer = routing.describe(office, report, records, dry_run=False)
            click.echo("\n".join(routing.lines(answer)))

    if verbose:
        click.echo(f"{printable(office.root)}: watching, as process {os.getpid()}")
    Daemon(office, stop, lambda problem: say(printable(problem)), on_pass, poll=poll).run()
    return 130 if received[:1] == [signal.SIGINT] else 0
