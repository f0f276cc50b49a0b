"""The top of the command line: finds the office, loads a command's module when it is called, ends every error well."""

import importlib
import os
import sys
from typing import Any, Final

import click

from postmaster import __version__
from postmaster.errors import PostmasterError
from postmaster.office import ENVIRONMENT, Office, find_root
from postmaster.printable import printable as printable  # the commands find it here

# command -> (module in postmaster.cli, attribute, one line of help)
COMMANDS: Final = {
    "init": ("office", "init", "Make an office."),
    "route": ("route", "route", "Route what is in the outbox."),
    "registry": ("registry", "registry", "Merge, check and show the registry."),
    "send": ("send", "send", "Put a message in the outbox."),
    "reply": ("send", "reply", "Answer a message."),
    "inbox": ("inbox", "inbox", "List an agent's mail."),
    "read": ("inbox", "read", "Show a message."),
    "ack": ("inbox", "ack", "Acknowledge messages: move them to read/."),
    "unread": ("inbox", "unread", "Move a message back to unread/."),
    "log": ("log", "log", "Show the delivery log."),
    "dead-letter": ("dead_letter", "dead_letter", "List, show and retry dead letters."),
    "verify": ("office", "verify", "Compare log, inboxes and dead letters."),
    "status": ("status", "status", "Say whether mail flows, and what waits."),
    "doctor": ("doctor", "doctor", "Find mistakes in the set-up, and their fixes."),
    "register": ("directory", "register", "Make a live instance of a class."),
    "archive": ("directory", "archive", "Archive a live instance; its name is free then."),
    "directory": ("directory", "directory", "List who is alive."),
    "watch": ("watch", "watch", "Route mail as it comes."),
    "rule": ("rule", "rule", "Print the text on mail for an agent's prompt."),
    "nudge": ("nudge", "nudge", "Tell idle agents that they have mail."),
    "pause": ("instances", "pause", "Let an agent's mail wait: no more turns."),
    "resume": ("instances", "resume", "Start turns of an agent again."),
    "turn": ("turns", "turn", "Take one turn of an agent."),
    "wake": ("turns", "wake", "Take a turn of every agent with mail."),
    "cycle": ("turns", "cycle", "Route and wake until all is quiet."),
    "turns": ("turns", "turns", "List who takes turns, and how they went."),
    "screen": ("screen", "screen", "Show the office as a web page, for people."),
    "mcp": ("mcp", "mcp", "Serve an agent its mail as MCP tools."),
    "transcript": ("transcript", "transcript", "Keep an agent's own transcript."),
    "rename": ("rename", "rename", "Give an agent another address; the old one stays valid."),
    "carry": ("carry", "carry", "Exchange mail with other offices, over git."),
    "cron": ("office", "cron", "Print or install the crontab line."),
    "completion": ("completion", "completion", "Print the completion script of a shell."),
}


class _Lazy(click.Group):
    """A group whose commands are imported when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command: click.Command = getattr(importlib.import_module(f"postmaster.cli.{module}"), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, _, help_line) in COMMANDS.items()])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            from postmaster.address import nearest

            near = nearest(args[0], COMMANDS)
            ctx.fail(f"No such command {args[0]!r}." + (f" Did you mean {near!r}?" if near else ""))
        return super().resolve_command(ctx, args)


@click.group(cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--root",
    metavar="DIR",
    help=f"The office. Default: ${ENVIRONMENT}, else ~/.dna/post-office.",
)
@click.version_option(__version__, prog_name="postmaster")
@click.pass_context
def cli(ctx: click.Context, root: str | None) -> None:
    """A post office for agents: one outbox, one registry, every letter accounted for.

    \b
    Example:
      postmaster --root /tmp/office init
      postmaster --root /tmp/office route -v
    """
    ctx.obj = Office(find_root(root))


def run(arguments: list[str]) -> int:
    """Run a command; return its exit code (sysexits.h). Every error of ours ends in one message on stderr."""
    _prepare_streams()
    stdout = sys.stdout
    try:
        result: Any = cli.main(args=arguments, prog_name="postmaster", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.UsageError as fault:
        fault.show()
        return 64
    except click.Abort:
        return 130
    except click.ClickException as fault:
        fault.show()
        return fault.exit_code
    except PostmasterError as fault:
        say(str(fault))
        return fault.exit_code
    except SystemExit:
        if sys.stdout is stdout:
            raise
        # Click ends so when it meets EPIPE, whatever it was told; it has put a wrapper in place of stdout.
        _silence_stdout()
        return 141
    except BrokenPipeError:
        _silence_stdout()
        return 141  # 128 + SIGPIPE, as the shell says of `yes | head`
    except OSError as fault:
        say(f"{fault.filename or 'system'}: {fault.strerror or fault}")
        return 74
    except KeyboardInterrupt:
        return 130


def _prepare_streams() -> None:
    """Make sure that no text is too odd to be said: closed streams, and encodings that lack a character."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def _silence_stdout() -> None:
    """Keep the interpreter from failing again when it flushes a closed pipe at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


def say(text: str) -> None:
    """Say something on stderr that is no result: a problem, or what was done on the side."""
    click.echo("\n".join(f"postmaster: {printable(line)}" for line in text.split("\n")), err=True)
