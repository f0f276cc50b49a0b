"""`postmaster rule`."""

import os

import click

from postmaster.cli.app import printable
from postmaster.directory import marked, open_view
from postmaster.directory import rule as rules
from postmaster.directory.readers import find_reader
from postmaster.office import Office, visible


@click.command()
@click.argument("agent")
@click.option("--write", "path", metavar="FILE", help="Keep the text in FILE, between two markers.")
@click.pass_obj
def rule(office: Office, agent: str, path: str | None) -> int:
    """Print the text on mail that belongs in the prompt of AGENT (an id, an address, an alias or a live name).

    When to use mail and when not, the agent's own address, what it declares to send and to whom, and the commands.
    For a class it says how to claim a name.

    With --write the text is put into FILE, or brought up to date there, and every other byte of FILE stays.

    Exit codes: 0 printed or written, 65 no such AGENT, or markers in FILE that are no pair, 73 FILE cannot be written,
    78 no usable office or registry.

    \b
    Example:
      postmaster rule council.product-agent
      postmaster rule council.reviewer --write AGENTS.md
    """
    reader = find_reader(office, agent)
    reader.require_live()
    found = reader.agent
    with open_view(office, write=False) as view:
        entry = view.entry(found.id) or {}
    text = rules.render(rules.subject_of(found, entry), office.root)
    if path is None:
        click.echo(text, nl=False)
        return 0
    changed = marked.keep(os.path.abspath(path), found.id, text)
    click.echo(f"{printable(visible(path))}: {'written' if changed else 'unchanged'}")
    return 0
