"""`postmaster mcp`."""

import importlib.util

import click

from postmaster.cli.app import say
from postmaster.errors import BadData, Missing, how_to_install
from postmaster.office import Office


@click.command()
@click.option("--as", "agent", metavar="ADDRESS", help="Whose mail it is. Default: who registers, or whose turn it is.")
@click.pass_obj
def mcp(office: Office, agent: str | None) -> int:
    """Serve an agent its mail as tools of the Model Context Protocol, on stdin and stdout, until they are closed.

    For the settings of an agent program (docs/mcp.md). One server is one agent: it reads its own mailbox and no other.
    Without --as it claims a name first (mail_register). It needs the extra `mcp`
    (pip install '.[mcp]' in the checkout).

    Exit codes: 0 ended by the client, 65 no such ADDRESS, 69 the extra is not installed, 78 no usable office or
    registry.

    \b
    Example:
      postmaster mcp --as product-agent@council.internal
      claude mcp add mail -- postmaster mcp
    """
    office.require()
    if importlib.util.find_spec("mcp") is None:
        raise Missing(f"the tools need the package mcp: {how_to_install('mcp')}")
    from postmaster.mcp.desk import Desk
    from postmaster.turns import inside

    desk = Desk(office, say)
    try:
        turn = inside.current(office)
    except BadData:  # it is over
        turn = None
    if agent is not None:
        desk.sit(agent)
    elif turn is not None:
        desk.sit(turn.agent_id)
    from postmaster.mcp.server import serve

    serve(desk)
    return 0
