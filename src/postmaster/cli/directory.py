"""`postmaster register`, `archive` and `directory`."""

from collections.abc import Sequence
from typing import Any

import click

from postmaster import reasons
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory import listing, registration, returning
from postmaster.directory.passes import route_now
from postmaster.errors import BadData
from postmaster.office import Office
from postmaster.settings import load_settings

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")


@click.command()
@click.argument("class_", metavar="CLASS")
@click.option("--name", metavar="NAME", help="The name to claim. Default: one is made.")
@click.option("--role", "roles", metavar="ROLE", multiple=True, help="A role to hold; give it again for more.")
@_JSON
@click.pass_obj
def register(office: Office, class_: str, name: str | None, roles: tuple[str, ...], as_json: bool) -> int:
    """Make a live instance of CLASS (an id or an address), with a mailbox of its own, and print its address.

    A name belongs to one living instance in the whole office, whatever the case; nobody gets that of an agent in the
    registry. Roles may be held by many.

    Exit codes: 0 registered, 65 the name is taken, the class is full or is none: nothing was done, 73 or 74 the disk
    refused, 78 no usable office or registry.

    \b
    Example:
      postmaster register council.reviewer
      postmaster register council.reviewer --name alice --role security --role reviewer
    """
    try:
        claim = registration.register(office, class_, name, roles)
    except BadData as refusal:
        if as_json:
            held: dict[str, Any] = {}
            if isinstance(refusal, registration.NameTaken):
                held = {"held_by": refusal.held_by, "since": refusal.since}
            echo_json({"office": office.root, "registered": False, "problem": str(refusal), **held})
        raise
    answer = {"office": office.root, "registered": True, **listing.describe(office, claim)}
    if as_json:
        echo_json(answer)
    else:
        click.echo(answer["address"])
    return 0


@click.command()
@click.argument("name")
@_JSON
@click.pass_obj
def archive(office: Office, name: str, as_json: bool) -> int:
    """Archive the live instance NAME (a name, an address or agent:ID): its name can be claimed again.

    Its mailbox stays where it is, to be read and not changed. What is unread there goes back to its senders, as mail of
    type `postmaster.returned`; so what is in the outbox is routed.

    Exit codes: 0 archived, 65 nobody is alive under NAME, 73 or 74 the disk refused, 75 archived, but not all of its
    mail is returned yet (the next run goes on), 78 no usable office, registry or settings.

    \b
    Example:
      postmaster archive alice
      postmaster archive agent:council.reviewer+alice
    """
    load_settings(office)  # else the run that follows may refuse to begin
    done = registration.archive(office, name)
    records = route_now(office, say)
    described = listing.describe(office, done.claim)
    answer = {
        "office": office.root,
        **described,
        "archived": done.claim.archived,
        "unread": done.unread,
        "returned": sum(one["action"] == reasons.RETURNED and one["agent"] == done.claim.id for one in records),
    }
    if as_json:
        echo_json(answer)
    else:
        count = "?" if answer["unread"] is None else answer["unread"]
        unread = f"with {count} unread, {answer['returned']} of them returned"
        click.echo(f"{answer['id']} is archived; its mailbox is {answer['inbox']}, {unread}")
    return 75 if returning.is_marked(office, done.claim.id) else 0


@click.command()
@click.option("--all", "every", is_flag=True, help="Show the archived too.")
@_JSON
@click.pass_obj
def directory(office: Office, every: bool, as_json: bool) -> int:
    """List who is alive: name, class, roles, unread mail, and since when. Changes nothing.

    Exit codes: 0 shown, 74 a claim, a mailbox or the log cannot be read (the others are shown), 78 no office.

    \b
    Example:
      postmaster directory
      postmaster directory --all --json
    """
    answer = listing.survey(office, every=every)
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
        for problem in answer["problems"]:
            say(problem)
    return 74 if answer["problems"] else 0


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of the listing."""
    if not answer["live"] and not answer.get("archived"):
        return ["nobody is alive; `postmaster register CLASS` makes a live instance"]
    rows: list[Sequence[str]] = [("ADDRESS", "ID", "ROLES", "UNREAD", "OLDEST UNREAD", "LAST READ", "SINCE")]
    rows += [_row(one) for one in answer["live"]]
    rows += [(*_row(one)[:-1], _history(one)) for one in answer.get("archived", ())]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    return [
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]]) for row in rows
    ]


def _history(one: dict[str, Any]) -> str:
    returned = f", {len(one['returned'])} returned" if one["returned"] else ""
    more = ", more to be returned by the next run" if one["still_to_return"] else ""
    return f"{one['since']}, archived {one['archived']}{returned}{more}"


def _row(one: dict[str, Any]) -> Sequence[str]:
    cells = (
        one["address"],
        one["id"],
        ", ".join(one["roles"]) or "-",
        "?" if one["unread"] is None else str(one["unread"]),
        one["oldest_unread"] or "-",
        one["last_read"] or "-",
        one["since"],
    )
    return [printable(cell) for cell in cells]
