"""`postmaster pause` and `resume`."""

from typing import Any

import click

from postmaster.cli.answers import echo_json
from postmaster.directory import open_view
from postmaster.office import Office
from postmaster.turns import instances
from postmaster.turns.instances import Instance

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")


@click.command()
@click.argument("agent")
@_JSON
@click.pass_obj
def pause(office: Office, agent: str, as_json: bool) -> int:
    """Start no more turns of AGENT (an id, an address or a live name): its mail is delivered, and waits.

    A class that is paused pauses all its instances, those to come too. A turn that is under way ends as it would. That
    is for a while: to end an instance for good use `postmaster archive`, after which its mail is refused.

    Exit codes: 0 paused now or before, 65 no such agent, or one that takes no turns, 73 the disk refused, 78 no usable
    office or registry.

    \b
    Example:
      postmaster pause council.coordinator
      postmaster pause coordinator+jzs5h67ivvst@council.internal
    """
    found = _find(office, agent)
    changed = instances.pause(office, found)
    return _answer(office, found, as_json, changed, "is paused: its mail waits" if changed else "is paused already")


@click.command()
@click.argument("agent")
@_JSON
@click.pass_obj
def resume(office: Office, agent: str, as_json: bool) -> int:
    """Start turns of AGENT again: the next wake begins with what has waited.

    Exit codes: 0 active now or before, 65 no such agent, or one that takes no turns, 74 the disk refused, 78 no usable
    office or registry.

    \b
    Example:
      postmaster resume council.coordinator
    """
    found = _find(office, agent)
    changed = instances.resume(office, found)
    said = "is active again" if changed else "was not paused"
    if instances.is_paused(office, found.id):
        said += f", but its class {found.class_id} is paused: `postmaster resume {found.class_id}`"
    return _answer(office, found, as_json, changed, said)


def _find(office: Office, agent: str) -> Instance:
    office.require()
    with open_view(office) as view:
        found = instances.find(office, view, agent)
        instances.require_turns(view, found)
    return found


def _answer(office: Office, found: Instance, as_json: bool, changed: bool, said: str) -> int:
    answer: dict[str, Any] = {
        "office": office.root,
        "id": found.id,
        "address": found.address,
        "state": instances.PAUSED if instances.is_paused(office, found.id) else instances.ACTIVE,
        "changed": changed,
    }
    if as_json:
        echo_json(answer)
    else:
        click.echo(f"{found.id} {said}")
    return 0
