"""`postmaster inbox`, `read`, `ack` and `unread`."""

import sys
from typing import Any

import click

from postmaster import acknowledging, excerpts, maildir, reading, reports
from postmaster.acknowledging import Moved
from postmaster.cli.answers import echo_json, seconds
from postmaster.cli.app import printable, say
from postmaster.directory.readers import find_reader
from postmaster.errors import BadData, UsageProblem
from postmaster.message import HEAD_BYTES
from postmaster.office import Office
from postmaster.reading import Message
from postmaster.settings import load_settings
from postmaster.turns import inside

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
_SHOWN_TEXT = 60


@click.command()
@click.argument("agent")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="So many; 0 for all.")
@click.option("--all", "every", is_flag=True, help="Show mail in read/ too.")
@click.option("--wait", type=seconds, metavar="SECONDS", help="Wait so long until there is unread mail.")
@_JSON
@click.pass_obj
def inbox(office: Office, agent: str, limit: int, every: bool, wait: float | None, as_json: bool) -> int:
    """List the mail of AGENT (an id, an address, an alias or a live name), newest first. Changes nothing.

    With --wait it is listed as soon as there is unread mail: at once, if there is some already. The package
    `watchfiles` makes that quick (pip install '.[watchfiles]' in the checkout).

    Exit codes: 0 shown, 65 no such AGENT, 74 the mail cannot be read, 75 there was no unread mail all the time of
    --wait, 78 no usable office or registry.

    \b
    Example:
      postmaster inbox council.product-agent
      postmaster inbox product-agent@council.internal --all --limit 0 --json
      postmaster inbox council.product-agent --wait 600
    """
    reader = find_reader(office, agent)
    found = reader.agent
    came = True
    if wait is not None:
        reader.require_live()
        came = reading.wait_for_mail(found.inbox, wait)
    answer = excerpts.mailbox(office, found, limit, every=every)
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
    return 0 if came else 75


@click.command()
@click.argument("agent")
@click.argument("msg")
@click.option("--raw", is_flag=True, help="The file, byte for byte.")
@click.option("--body", is_flag=True, help="The body, byte for byte.")
@click.option("--original", is_flag=True, help="The message that a report of the office is about, byte for byte.")
@_JSON
@click.pass_obj
def read(office: Office, agent: str, msg: str, raw: bool, body: bool, original: bool, as_json: bool) -> int:
    """Show message MSG of AGENT. It stays where it is: only `ack` moves mail.

    MSG is a file name or the beginning of an id, unread or read.

    Exit codes: 0 shown, 65 no such AGENT or MSG, or it is no message, 74 it cannot be read, 78 no usable office,
    registry or settings.

    \b
    Example:
      postmaster read council.product-agent 5d41402a
      postmaster read council.product-agent 5d41402a --body > body.txt
      postmaster read council.product-agent 7d793037 --original > returned.md
    """
    if raw + body + original + as_json > 1:
        raise UsageProblem("--raw, --body, --original and --json exclude each other")
    found = find_reader(office, agent).agent
    item = reading.find_message(office, found, msg)
    path = reading.path_of(office, found, item)
    if raw:
        return copy_out(path)
    limit = HEAD_BYTES if body else load_settings(office).max_message_bytes + HEAD_BYTES + reports.ROOM
    content = reading.load(path, limit)
    if body:
        if content.problem is not None:
            raise BadData(f"{office.shown(path)}: it has no body: {content.problem}")
        return copy_out(path, content.body)
    if original:
        return _copy_attached(office.shown(path), content)
    answer = {
        "office": office.root,
        "agent": found.id,
        **excerpts.place(office, found, item),
        **excerpts.describe_content(content),
    }
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join([answer["path"], *content_lines(content)]))
    return 0


def _copy_attached(shown: str, content: Message) -> int:
    """Write what a report has attached to stdout."""
    found = reports.attached(content.raw[content.body :]) if content.problem is None else None
    if found is None:
        raise BadData(f"{shown}: it is no report of the office with a message attached; --body shows what it is")
    part, whole = found
    sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    if not whole:
        say(f"{shown}: only the beginning of the message is attached; X-Postmaster-Path says where it is kept")
    return 0


@click.command()
@click.argument("agent")
@click.argument("msgs", metavar="MSG...", nargs=-1, required=True)
@_JSON
@click.pass_obj
def ack(office: Office, agent: str, msgs: tuple[str, ...], as_json: bool) -> int:
    """Acknowledge messages of AGENT: move them from unread/ to read/. Done again, it changes nothing.

    MSG is a file name or the beginning of an id. If one of them is unknown, none is moved.

    Exit codes: 0 done, or done before, 65 no such AGENT or MSG, 74 one cannot be moved, or was moved but cannot be
    logged (stderr says which), 78 no usable office or registry.

    \b
    Example:
      postmaster ack council.product-agent 5d41402a 7d793037
    """
    return _move_all(office, agent, msgs, maildir.READ, as_json)


@click.command()
@click.argument("agent")
@click.argument("msgs", metavar="MSG...", nargs=-1, required=True)
@_JSON
@click.pass_obj
def unread(office: Office, agent: str, msgs: tuple[str, ...], as_json: bool) -> int:
    """Take an acknowledgement back: move messages of AGENT from read/ to unread/.

    MSG is as for `ack`.

    Exit codes: 0 done, 65 no such AGENT or MSG, 74 not moved or not logged, 78 no usable office or registry.

    \b
    Example:
      postmaster unread council.product-agent 5d41402a
    """
    return _move_all(office, agent, msgs, maildir.UNREAD, as_json)


def _move_all(office: Office, agent: str, msgs: tuple[str, ...], destination: str, as_json: bool) -> int:
    reader = find_reader(office, agent)
    reader.require_live()
    found = reader.agent
    items = {reading.find_message(office, found, msg): None for msg in msgs}
    turn = inside.current(office, immediately=True)
    if turn is not None and destination == maildir.READ:
        turn.require_unfinished(found.id, [item.name for item in items])
    moved: list[Moved] = []
    try:
        for item in items:
            moved.append(acknowledging.move(office, found, item, destination))
    finally:
        answer: dict[str, Any] = {
            "office": office.root,
            "agent": found.id,
            "messages": [_describe_moved(one, destination) for one in moved],
        }
        if as_json:
            echo_json(answer)
        else:
            for one in answer["messages"]:
                how = "is already" if one["already"] else "is now"
                click.echo(f"{printable(one['file'])} {how} in {destination}/{_number(one)}")
    return 0


def _describe_moved(one: Moved, destination: str) -> dict[str, Any]:
    return {
        "file": one.file,
        "path": one.path,
        "folder": destination,
        "already": one.already,
        **excerpts.fields(one.message),
    }


# -- the listing ---------------------------------------------------------------------------------------------------


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `excerpts.mailbox`."""
    waiting = "?" if answer["waiting"] is None else answer["waiting"]
    counts = f"unread {answer['unread']}, read {answer['read']}, outbox waiting {waiting}"
    shown = [f"{answer['office']}: {answer['agent']} <{answer['address']}>: {counts}"]
    both = answer["read"] and any(row["folder"] == maildir.READ for row in answer["messages"])
    for row in answer["messages"]:
        folder = f"{row['folder']:<6}  " if both else ""
        if "problem" in row:
            shown.append(f"{folder}{printable(row['file'])}: not a message: {printable(row['problem'])}")
            continue
        parts = (
            (row["id"] or "-")[: reading.SHOWN_ID],
            f"#{row['sequence']}" if row["sequence"] else "#-",
            row["from"] or "-",
            row["type"] or "-",
            cut(row["subject"] or "-"),
            f"[{row['correlation_id'] or '-'}]",
            row["sent_at"] or "-",
        )
        shown.append(folder + "  ".join(printable(part) for part in parts))
    if answer["hidden"]:
        shown.append(f"… {answer['hidden']} older; --limit 0 shows all")
    return shown


def cut(text: str) -> str:
    """Return as much of a text as a listing shows."""
    return text if len(text) <= _SHOWN_TEXT else text[: _SHOWN_TEXT - 1] + "…"


def _number(row: dict[str, Any]) -> str:
    flow, number = row.get("correlation_id"), row.get("sequence")
    return f": {printable(flow)} #{number}" if flow and number else ""


# -- one message ---------------------------------------------------------------------------------------------------


def content_lines(content: Message) -> list[str]:
    """Return a message for people: as it is, but for what would drive a terminal."""
    text = content.raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    shown = [] if content.problem is None else [f"(not a message: {printable(content.problem)})"]
    shown += ["\t".join(printable(part) for part in line.split("\t")) for line in text.removesuffix("\n").split("\n")]
    if content.size > len(content.raw):
        shown.append(f"… {content.size - len(content.raw)} more bytes; --raw shows all")
    return shown


def copy_out(path: str, start: int = 0) -> int:
    """Write a file's bytes to standard output as they are."""
    sys.stdout.flush()
    for part in reading.chunks(path, start):
        sys.stdout.buffer.write(part)
    sys.stdout.buffer.flush()
    return 0
