"""`postmaster log`."""

import os
import select
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Final

import click

from postmaster import delivery_log, reasons
from postmaster.cli.app import printable, say
from postmaster.delivery_log import Record
from postmaster.directory import selection
from postmaster.directory.selection import Wanted
from postmaster.errors import DiskFault
from postmaster.office import Office
from postmaster.tail import Tail

_POLL_MILLISECONDS: Final = 200


@click.command()
@click.option("--correlation", metavar="C", help="Only this flow (correlation_id).")
@click.option("--agent", metavar="A", help="Only mail to this agent: its id, or one of its addresses.")
@click.option("--action", metavar="X", help="Only this action: delivered, dead-letter, rejected, deferred, read, ...")
@click.option("--reason", metavar="R", help="Only this reason: unknown-recipient, duplicate, ...")
@click.option("--id", "id_prefix", metavar="PREFIX", help="Only messages whose id begins so.")
@click.option("--limit", type=click.IntRange(min=0), metavar="N", help="Only the last N of them; 0: none.")
@click.option("-f", "--follow", is_flag=True, help="Go on with what is appended, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="The lines as they are in the log: JSON, one a line.")
@click.pass_obj
def log(
    office: Office,
    correlation: str | None,
    agent: str | None,
    action: str | None,
    reason: str | None,
    id_prefix: str | None,
    limit: int | None,
    follow: bool,
    as_json: bool,
) -> int:
    """Show the delivery log, rotated logs included, oldest first. `--limit 0` shows no line that is there already.

    Exit codes: 0 shown, 74 a log file cannot be read (the others are shown), 78 no office; 130 for a --follow that
    is ended with Ctrl-C.

    \b
    Example:
      postmaster log --correlation run-42
      postmaster log --agent council.product-agent --action delivered --limit 10
      postmaster log --follow --json | jq -r .subject
    """
    office.require()
    fields = {"correlation_id": correlation, "action": action, "reason": reason}
    wanted = selection.wanted(office, fields, id_prefix=id_prefix, agent=agent)
    tail = Tail(office)
    try:
        problems = _show(office, tail, wanted, limit=limit, as_json=as_json)
        while follow:
            _write(tail.read(), wanted, as_json=as_json)
            _wait_for_more()
    finally:
        tail.close()
    for problem in problems:
        say(problem)
    return 74 if problems else 0


def _show(office: Office, tail: Tail, wanted: Wanted, *, limit: int | None, as_json: bool) -> list[str]:
    """Print what is in the log now; return what could not be read. `tail` is left at the end of the log."""
    problems: list[str] = []
    total, matched = 0, 0
    if not as_json:  # the first line says how many: count before anything is printed
        for line in _rotated(office, problems):
            total, matched = _counted(line, wanted, total, matched)
        counting = Tail(office)
        for line in counting.read():
            total, matched = _counted(line, wanted, total, matched)
        counting.close()
        shown = matched if limit is None else min(limit, matched)
        click.echo(f"office {printable(office.root)}: {total} lines, {shown} shown")
    problems.clear()

    def everything() -> Iterator[bytes]:
        yield from _rotated(office, problems)
        yield from tail.read()

    if limit is None:
        _write(everything(), wanted, as_json=as_json)
    else:
        _write(deque(_matching(everything(), wanted), maxlen=limit), wanted, as_json=as_json)
    return problems


def _rotated(office: Office, problems: list[str]) -> Iterator[bytes]:
    for path in delivery_log.log_files(office):
        if path == office.log:
            continue
        try:
            with delivery_log.open_log(path) as stream:
                yield from stream
        except delivery_log.DAMAGE as fault:
            problems.append(f"{path}: cannot be read to its end: {fault}")
        except DiskFault as fault:
            problems.append(str(fault))


def _counted(line: bytes, wanted: Wanted, total: int, matched: int) -> tuple[int, int]:
    record = delivery_log.decode(line)
    if record is None:
        return total, matched
    return total + 1, matched + wanted(record)


def _matching(lines: Iterable[bytes], wanted: Wanted) -> Iterator[bytes]:
    for line in lines:
        record = delivery_log.decode(line)
        if record is not None and wanted(record):
            yield line


def _write(lines: Iterable[bytes], wanted: Wanted, *, as_json: bool) -> None:
    for line in lines:
        record = delivery_log.decode(line)
        if record is not None and wanted(record):
            text = line.decode("ascii", "backslashreplace").rstrip("\n") if as_json else describe(record)
            sys.stdout.write(text + "\n")
    sys.stdout.flush()


def describe(record: Record) -> str:
    """Return a record as one line for people."""
    flow = f" {printable(record['correlation_id'])}" if "correlation_id" in record else ""
    number = f" #{record['sequence']}" if "sequence" in record else ""
    to = printable(record.get("to") or record.get("agent", "?"))
    if "from" in record or "file" in record:
        to = f"{printable(record.get('from', '?'))} -> {to}"
    subject = f" {printable(record['type'])}" if "type" in record else ""
    subject += f' "{printable(record["subject"])}"' if "subject" in record else ""
    where = f" [{record['id'][:8]}]" if "id" in record else ""
    place = record.get("path") or record.get("file")
    where += f" {printable(place)}" if place else ""
    why = f" ({printable(record['reason'])}" if "reason" in record else ""
    why += f": {printable(record['detail'])})" if why and record.get("detail") else ")" if why else ""
    about_none = "from" not in record and "file" not in record
    if "detail" in record and (about_none or record["action"] == reasons.RECEIPT):
        why = f" ({printable(record['detail'])})"
    action = printable(record["action"])
    return f"{printable(record['time'])} {action:<11}{flow}{number} {to}{subject}{where}{why}"


def _wait_for_more() -> None:
    """Wait a moment; notice at once, without writing, that nobody reads our output any more."""
    poller = select.poll()
    try:
        poller.register(sys.stdout.fileno(), 0)
        events = poller.poll(_POLL_MILLISECONDS)
    except (OSError, ValueError):
        events = [(1, select.POLLERR)]
    if any(event & (select.POLLERR | select.POLLNVAL) for _, event in events):
        raise BrokenPipeError(32, os.strerror(32))
