"""`postmaster transcript export` and `import`: copies of a transcript, and what to do when two went on."""

import contextlib
import os
import shlex
import sys
from collections.abc import Iterator
from typing import IO, TYPE_CHECKING

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory.readers import find_reader
from postmaster.errors import BadData, DiskFault
from postmaster.locks import locked
from postmaster.office import Office, visible

if TYPE_CHECKING:
    from postmaster.carrier.copies import Written
    from postmaster.carrier.meeting import Meeting
    from postmaster.carrier.transcripts import Transcript

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")


@click.command()
@click.argument("agent")
@click.argument("file", required=False)
@click.pass_obj
def export(office: Office, agent: str, file: str | None) -> int:
    """Write the transcript of AGENT to FILE, or standard output, as JSON lines: a copy, which `import` reads.

    A FILE that is there is not replaced. A line has number, time, commit, and entry (entry_base64, if it is not UTF-8).

    Exit codes: 0 written, 65 no such AGENT, or FILE is there, 69 no git, 74 FILE cannot be written or the transcript
    cannot be read, 78 no usable office or registry.

    \b
    Example:
      postmaster transcript export council.product-agent copy.jsonl
    """
    from postmaster.carrier.transcripts import Transcript

    found = Transcript(office, find_reader(office, agent).agent.names)
    entries = found.entries()
    with _target(file) as stream:
        for one, written in zip(entries, found.written(entries), strict=True):
            stream.write(written.line(one.number))
    return 0


@contextlib.contextmanager
def _target(file: str | None) -> Iterator[IO[bytes]]:
    """Give the file to write to; one that could not be written whole is taken away again."""
    if file is None or file == "-":
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    try:
        with open(file, "xb") as stream:
            yield stream
    except FileExistsError as fault:
        raise BadData(f"{visible(file)}: is there already; name another") from fault
    except OSError as fault:
        with contextlib.suppress(OSError):
            os.unlink(file)
        raise DiskFault(f"{visible(file)}: cannot be written: {fault.strerror}") from fault


@click.command("import")
@click.argument("agent")
@click.argument("file")
@click.option("--adopt", type=click.Choice(["here", "there"]), help="Let one of two histories stay; the other is kept.")
@click.option(
    "--splice", metavar="LIST", help="Make one history of two by a list, which is written if it is not there."
)
@_JSON
@click.pass_obj
def import_copy(office: Office, agent: str, file: str, adopt: str | None, splice: str | None, as_json: bool) -> int:
    """Bring the transcript of AGENT together with a copy of it, which `export` has written to FILE (`-`: stdin).

    What the copy has more is added. If both have gone on by themselves, nothing is changed: you are shown where they
    part, and what can be done. Whatever gives way is kept in the mail repository, below refs/postmaster/kept/.

    Exit codes: 0 both are one, or a LIST was written; 65 no such AGENT, an archived one, or FILE or LIST cannot be
    used; 69 no git; 74 the disk refused; 76 they have diverged, and nothing was said of what is to stay; 78 no usable
    office or registry.

    \b
    Example:
      postmaster transcript import council.product-agent copy.jsonl
      postmaster transcript import council.product-agent copy.jsonl --adopt there
    """
    from postmaster.carrier import copies
    from postmaster.carrier.transcripts import Transcript

    if adopt and splice:
        raise click.UsageError("--adopt and --splice: one of the two")
    reader = find_reader(office, agent)
    reader.require_live()
    found = Transcript(office, reader.agent.names)
    copy = list(copies.read(_lines_of(file), visible(file)))
    if not copy:
        raise BadData(f"{visible(file)}: is empty: a copy has a line for each entry")
    with locked(office.transcripts_lock) as alone:
        if alone is None:
            raise DiskFault("another import is at work here; run it again: nothing was changed")
        return _import(office, reader.agent.id, found, copy, file, adopt, splice, as_json)


def _import(
    office: Office,
    agent_id: str,
    found: "Transcript",
    copy: "list[Written]",
    file: str,
    adopt: str | None,
    splice: str | None,
    as_json: bool,
) -> int:
    from postmaster.carrier import meeting

    met = meeting.meet(found, copy)
    wrote = None
    if not met.there:
        outcome = "nothing new"
    elif not met.here:
        meeting.take(found, met)
        outcome = "added"
    elif adopt:
        meeting.adopt(found, met, adopt)
        outcome = f"adopted {adopt}"
    elif splice:
        plan = _plan(met, splice, agent_id)
        if plan is None:
            outcome, wrote = "list written", splice
        else:
            meeting.splice(found, met, meeting.read_plan(met, plan, visible(splice)))
            outcome = "spliced"
    elif copy[-1].commit in found.aside():
        outcome = "set aside before"
    else:
        outcome = "diverged"
    answer = {
        "office": office.root,
        "agent": agent_id,
        "outcome": outcome,
        "common": met.common,
        "here": len(met.here),
        "there": len(met.there),
    }
    if as_json:
        echo_json(answer)
    elif outcome == "diverged":
        for line in _told(met, agent_id, file):
            say(line)
    else:
        click.echo(_short(met, agent_id, outcome, wrote))
    return 76 if outcome == "diverged" else 0


def _lines_of(file: str) -> Iterator[bytes]:
    if file == "-":
        yield from sys.stdin.buffer
        return
    try:
        with open(file, "rb") as stream:
            yield from stream
    except OSError as fault:
        raise BadData(f"{visible(file)}: cannot be read: {fault.strerror}; nothing was changed") from fault


def _plan(met: "Meeting", path: str, agent_id: str) -> str | None:
    """Return what a list says; None if there was none: now it is there, to be edited."""
    from postmaster.carrier.meeting import write_plan

    try:
        with open(path, encoding="utf-8") as stream:
            return stream.read()
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as fault:
        raise BadData(f"{visible(path)}: cannot be read: {fault}") from fault
    with _target(path) as stream:
        stream.write(write_plan(met, agent_id).encode())
    return None


def _shown(one: "Written") -> str:
    from postmaster.carrier.transcripts import beginning

    return printable(beginning(one.content))


def _told(met: "Meeting", agent_id: str, file: str) -> Iterator[str]:
    """Yield what the owner of a transcript that went on in two places is told."""
    from postmaster import times

    yield f"the transcript of {agent_id} was continued in two places, and nobody but you can say how it goes on:"
    if met.last_common is None:
        yield "  they have nothing in common: not even the first entry"
    else:
        last_common = f"{met.last_common.commit[:12]} of {times.timestamp(met.last_common.seconds * 10**9)}"
        yield f"  they part after entry {met.common}, {last_common}: {_shown(met.last_common)}"
    for side, entries in (("here", met.here), ("there", met.there)):
        first, last = _shown(entries[0]), _shown(entries[-1])
        shown = first if len(entries) == 1 else f"{first} ... {last}"
        yield f"  {side}: {len(entries)} since, the last of {times.timestamp(entries[-1].seconds * 10**9)}: {shown}"
    yield "nothing was changed; what can be done:"
    quoted = shlex.quote(visible(file))
    command = f"postmaster transcript import {agent_id} {quoted}"
    yield f"  a new name for the other: postmaster transcript import NAME {quoted}   (an agent that has none)"
    yield f"  adopt one history:        {command} --adopt here   (or: --adopt there)"
    yield f"  splice by hand:           {command} --splice LIST   (writes LIST; edit it; again)"


def _short(met: "Meeting", agent_id: str, outcome: str, wrote: str | None) -> str:
    entries = f"{met.common} entries in common, {len(met.here)} here and {len(met.there)} there since"
    if outcome == "nothing new":
        return f"{agent_id}: nothing new: all {met.common} entries of the copy are here"
    if outcome == "added":
        return f"{agent_id}: {len(met.there)} added to {met.common}"
    if wrote is not None:
        return f"{visible(wrote)}: written; edit it, then run the same command again ({entries})"
    return f"{agent_id}: {outcome}: {entries}"
