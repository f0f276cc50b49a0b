"""`postmaster turn`, `wake`, `cycle` and `turns`."""

import time
from collections import Counter
from typing import Any

import click

from postmaster.cli.answers import echo_json, seconds
from postmaster.cli.app import printable, say
from postmaster.office import Office
from postmaster.turns import waking

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
_JOBS = click.option(
    "--jobs", type=click.IntRange(1, 1000), default=4, show_default=True, metavar="N", help="So many turns at once."
)


@click.command()
@click.argument("agent")
@click.argument("command", metavar="[-- CMD...]", nargs=-1, type=click.UNPROCESSED)
@_JSON
@click.pass_obj
def turn(office: Office, agent: str, command: tuple[str, ...], as_json: bool) -> int:
    """Take one turn of AGENT (an id, an address or a live name), if it has unread mail.

    CMD, or the `run` of its declaration, gets the oldest message on standard input: `thread:`, `from:`, `---`, the
    text. If it exits with 0 the message is acknowledged, and what it has sent leaves; else the message stays unread,
    and nothing was sent. After `max_attempts` failed turns the message is a dead letter (`turn-failed`).

    Exit codes: 0 a turn was taken, or there is no unread mail, 65 no such agent, or one that takes no turns, 73 or 74
    the disk refused, 75 the turn failed, or cannot be taken now (busy, paused, concurrency), 78 no usable office or
    registry.

    \b
    Example:
      postmaster turn council.product-agent
      postmaster turn council.product-agent -- sh -c 'sed 1,/^---$/d | wc -w'
    """
    found, taken = waking.take_one(office, agent, command)
    answer: dict[str, Any] = {
        "office": office.root,
        "id": found.id,
        "outcome": taken.outcome,
        "detail": taken.detail,
    }
    if as_json:
        echo_json(answer)
    elif taken.outcome == "done":
        click.echo(f"{found.id}: {printable(taken.detail)}")
    elif taken.outcome == "quiet":
        click.echo(f"{found.id}: {taken.detail}")
    if taken.outcome in ("done", "quiet"):
        return 0
    what = {"failed": "the turn failed", "dead": "the turn failed for the last time; the message is a dead letter"}
    say(f"{found.id}: {what.get(taken.outcome, 'no turn now')}: {taken.detail}")
    return 75


@click.command()
@_JOBS
@click.option("-v", "--verbose", is_flag=True, help="Say how many turns were taken.")
@_JSON
@click.pass_obj
def wake(office: Office, jobs: int, verbose: bool, as_json: bool) -> int:
    """Take a turn of every agent with `run` and unread mail, and exit.

    One turn each, N at once. Who is in a turn already, is paused, or waits for the next try of a message is left alone,
    and so is whoever would be more than the `concurrency` of its class. Safe to call at any time, as often as you like.

    Exit codes: 0 done (failed turns too: the log and `postmaster turns` tell), 73 or 74 the disk refused, 78 no usable
    office or registry.

    \b
    Example:
      postmaster wake --jobs 8
    """
    woken = waking.wake(office, jobs, on_fault=lambda text: say(printable(text)))
    _tell(office, woken.outcomes, woken.faults, {}, as_json=as_json, verbose=verbose)
    return 74 if woken.faults else 0


@click.command()
@_JOBS
@click.option("--max-seconds", type=seconds, metavar="SECONDS", help="Begin nothing after so long. Default: no limit.")
@click.option("-v", "--verbose", is_flag=True, help="Say how many turns were taken.")
@_JSON
@click.pass_obj
def cycle(office: Office, jobs: int, max_seconds: float | None, verbose: bool, as_json: bool) -> int:
    """Route, wake, route, until nothing moves any more: for cron, in place of `route`.

    What waits for its next try, or for a turn that others have begun, is left for the next cycle. Safe to call at any
    time, as often as you like.

    Exit codes: 0 quiet, 73 or 74 the disk refused, 75 something is deferred, or the time was over before all was quiet,
    78 no usable office or registry.

    \b
    Example:
      postmaster cycle --jobs 4 --max-seconds 500
    """
    from postmaster.directory.passes import route_and_nudge

    end = None if max_seconds is None else time.monotonic() + max_seconds
    outcomes: Counter[str] = Counter()
    faults, quiet, passes = 0, False, 0
    while not quiet:
        report, _ = route_and_nudge(office, say, wait=True)
        passes += 1
        if end is not None and time.monotonic() >= end:
            break
        woken = waking.wake(office, jobs, on_fault=lambda text: say(printable(text)), deadline=end)
        outcomes += woken.outcomes
        faults += woken.faults
        quiet = woken.turns == 0
    for problem in report.problems:
        say(printable(problem))
    _tell(office, outcomes, faults, {"passes": passes, "quiet": quiet}, as_json=as_json, verbose=verbose)
    if not quiet:
        say("the time is over, and not all is quiet: the next cycle goes on")
    return 74 if faults else 75 if report.deferred or not quiet else 0


def _tell(
    office: Office, outcomes: Counter[str], faults: int, more: dict[str, Any], *, as_json: bool, verbose: bool
) -> None:
    if as_json:
        counts = {name: outcomes[name] for name in waking.OUTCOMES if outcomes[name]}
        echo_json({"office": office.root, "turns": counts, "faults": faults, **more})
    elif verbose:
        told = [f"{outcomes[name]} {name}" for name in waking.OUTCOMES if outcomes[name]]
        click.echo("turns: " + (", ".join(told) or "none"))


@click.command()
@_JSON
@click.pass_obj
def turns(office: Office, as_json: bool) -> int:
    """List who takes turns: busy or idle, unread mail, attempts, how the last turn ended, when the next try is.

    Exit codes: 0 listed, 74 something could not be read, 78 no usable office or registry.

    \b
    Example:
      postmaster turns
      postmaster turns --json
    """
    answer = waking.survey(office)
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
        for problem in answer["problems"]:
            say(printable(problem))
    return 74 if answer["problems"] else 0


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of the listing."""
    if not answer["instances"]:
        return ["nobody takes turns; an agent with `run` in its declaration does"]
    rows = [("ID", "STATE", "UNREAD", "ATTEMPTS", "NEXT TRY", "LAST TURN")]
    for one in answer["instances"]:
        last = one["last"]
        state = "busy" if one["busy"] else "idle" if one["state"] == "active" else one["state"]
        cells = (
            one["id"],
            state,
            str(one["unread"]),
            str(one["attempts"]),
            one["next_try"] or "-",
            f"{last['outcome']} ({last['exit']}) {last['time']}" if last else "-",
        )
        rows.append(tuple(printable(cell) for cell in cells))  # type: ignore[arg-type]
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    return ["  ".join([*(c.ljust(w) for c, w in zip(row, widths, strict=False)), row[-1]]) for row in rows]
