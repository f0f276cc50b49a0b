"""`postmaster screen`."""

import importlib.util
import secrets
import signal

import click

from postmaster.cli.app import say
from postmaster.errors import Missing, UsageProblem, how_to_install
from postmaster.office import Office

_NEEDED = ("jinja2", "markdown_it", "nh3", "starlette", "uvicorn")


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, metavar="HOST", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8025, show_default=True, help="0: any that is free.")
@click.option("--token", is_flag=True, help="Make a secret that one must know to look; it is printed once.")
@click.option("--open", "open_browser", is_flag=True, help="Open the page in a browser.")
@click.pass_obj
def screen(office: Office, host: str, port: int, token: bool, open_browser: bool) -> int:
    """Show the office as a web page, for people: mailboxes, messages, flows, dead letters, the map. Until Ctrl-C.

    It only shows: nothing can be sent or acknowledged there, and looking changes nothing of the office. What you have
    opened is remembered in your account, apart from the agents' read state.

    Everybody who can connect can read all that this account can: on this machine alone by default. Another --host
    needs --token. It needs the extra `screen` (pip install '.[screen]' in the checkout).

    Exit codes: 0 ended by SIGTERM, 64 another host without --token, 69 the extra is not installed, 73 the port cannot
    be had, 78 no office, 130 ended by Ctrl-C.

    \b
    Example:
      postmaster screen --open
      postmaster screen --host 0.0.0.0 --token
    """
    office.require()
    absent = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        raise Missing(f"the page needs {', '.join(absent)}: {how_to_install('screen')}")
    from postmaster.screen import guard, server

    if not guard.is_loopback(host) and not token:
        raise UsageProblem(f"{host} can be reached from other machines: add --token, or leave --host out")
    secret = secrets.token_urlsafe(32) if token else None

    def on_ready(bound: int) -> None:
        shown = f"[{host}]" if ":" in host else host
        address = f"http://{shown}:{bound}/" + (f"?token={secret}" if secret else "")
        click.echo(f"the mail page of {office.root}: {address}")
        if open_browser and click.launch(address) != 0:
            say("no browser could be opened here")

    received = server.serve(office, guard.Door(host, secret), port, on_ready)
    return 130 if received == signal.SIGINT else 0
