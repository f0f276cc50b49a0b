"""`postmaster transcript`."""

import sys
from typing import Any

import click

from postmaster.cli import transcript_copies
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable
from postmaster.directory.readers import find_reader
from postmaster.errors import BadData
from postmaster.office import Office, visible

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")


@click.group()
def transcript() -> None:
    """Keep an agent's own transcript, in the mail repository; it never leaves this office.

    \b
    Example:
      echo "Decided on plan B." | postmaster transcript append council.product-agent
      postmaster transcript show council.product-agent
    """


@transcript.command()
@click.argument("agent")
@click.argument("file", required=False)
@_JSON
@click.pass_obj
def append(office: Office, agent: str, file: str | None, as_json: bool) -> int:
    """Add FILE, or standard input, to the transcript of AGENT as one entry, byte for byte.

    Exit codes: 0 added, 65 no such AGENT, an archived one, or an entry that is empty or too large, 69 no git, 74 the
    disk refused, 78 no usable office or registry.

    \b
    Example:
      postmaster transcript append council.product-agent notes.md
    """
    from postmaster.carrier.transcripts import MOST_BYTES, Transcript

    reader = find_reader(office, agent)
    reader.require_live()
    if file is None or file == "-":
        content = sys.stdin.buffer.read(MOST_BYTES + 1)
    else:
        try:
            with open(file, "rb") as stream:
                content = stream.read(MOST_BYTES + 1)
        except OSError as fault:
            raise BadData(f"{visible(file)}: cannot be read: {fault.strerror}; nothing was added") from fault
    added = Transcript(office, reader.agent.names).append(content)
    answer = {"office": office.root, "agent": reader.agent.id, "number": added.number, "commit": added.commit}
    if as_json:
        echo_json(answer | {"time": added.time})
    else:
        click.echo(f"{reader.agent.id}: entry {added.number}, {added.commit[:12]}")
    return 0


@transcript.command()
@click.argument("agent")
@click.option("--last", type=click.IntRange(min=1), metavar="N", help="Only the last N entries.")
@click.pass_obj
def show(office: Office, agent: str, last: int | None) -> int:
    """Print the transcript of AGENT, oldest first, byte for byte. An archived one's too, by its id.

    Exit codes: 0 printed, 65 no such AGENT, or its ref holds no transcript, 69 no git, 74 it cannot be read, 78 no
    usable office or registry.

    \b
    Example:
      postmaster transcript show council.product-agent --last 5
    """
    from postmaster.carrier.transcripts import Transcript

    found = Transcript(office, find_reader(office, agent).agent.names)
    entries = found.entries()
    for content in found.contents(entries[-last:] if last else entries):
        sys.stdout.buffer.write(content)
    sys.stdout.buffer.flush()
    return 0


@transcript.command("log")
@click.argument("agent")
@_JSON
@click.pass_obj
def log_entries(office: Office, agent: str, as_json: bool) -> int:
    """List the entries of the transcript of AGENT, oldest first: number, time, size, and how each begins.

    Exit codes: those of `show`: 0 listed, 65 no such AGENT, 69 no git, 74 it cannot be read, 78 no usable office.

    \b
    Example:
      postmaster transcript log council.product-agent --json
    """
    from postmaster.carrier.transcripts import Transcript, beginning

    reader = find_reader(office, agent)
    found = Transcript(office, reader.agent.names)
    entries = found.entries()
    rows: list[dict[str, Any]] = [
        {
            "number": one.number,
            "time": one.time,
            "commit": one.commit,
            "bytes": len(content),
            "begins": beginning(content),
        }
        for one, content in zip(entries, found.contents(entries), strict=True)
    ]
    if as_json:
        echo_json({"office": office.root, "agent": reader.agent.id, "entries": rows})
    elif not rows:
        click.echo(f"{reader.agent.id} has no transcript; `postmaster transcript append {reader.agent.id}` begins one")
    for row in rows if not as_json else ():
        click.echo(f"{row['number']:>5}  {row['time']}  {row['bytes']:>8} bytes  {printable(row['begins'])}")
    return 0


transcript.add_command(transcript_copies.export)
transcript.add_command(transcript_copies.import_copy)
