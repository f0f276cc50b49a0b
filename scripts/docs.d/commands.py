"""docs/reference/cli.md: every command, from what `--help` says."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import click
from written import cell, code, fence, prose, table

from postmaster.cli.app import cli

HEAD: Final = """
# Commands

What `postmaster COMMAND --help` says, in one page. `-h` and `--help` work everywhere. `--root DIR` stands before the
command. What an exit code means, and what to do about it: [reasons.md](reasons.md#exit-codes).

"""


@dataclass(frozen=True)
class Described:
    """What the help of a command says.

    Attributes:
        name: as it is called: `postmaster registry merge`.
        usage: the line after `Usage:`.
        paragraphs: its text, without the exit codes and the example.
        exit_codes: that paragraph, without its first words; empty if there is none.
        example: its lines.
        options: names and help of each.
        group: whether it only holds other commands.
    """

    name: str
    usage: str
    paragraphs: list[str]
    exit_codes: str
    example: str
    options: list[tuple[str, str]]
    group: bool

    def codes(self) -> Iterator[tuple[int, str]]:
        """Yield each exit code with what the command says of it."""
        found = re.split(r"(?:^|[,;:] )(?=\d+(?:(?:/| or )\d+)? )", self.exit_codes)
        for numbers, meaning in re.findall(r"(?m)^(\d+(?:(?:/| or )\d+)?) (.*)$", "\n".join(found)):
            for number in re.findall(r"\d+", numbers):
                yield int(number), meaning.rstrip(".,;")


def described() -> list[Described]:
    """Return every command, in the order of `postmaster --help`."""
    return list(_walk(cli, None, "postmaster"))


def page() -> str:
    """Return the page."""
    every = described()
    index = table(
        ["command", ""],
        ([f"[{one.name}](#{one.name.replace(' ', '-')})", cell(one.paragraphs[0])] for one in every if not one.group),
    )
    return HEAD + index + "".join(f"\n## {one.name}\n\n{_section(one)}" for one in every)


def _walk(command: click.Command, parent: click.Context | None, name: str) -> Iterator[Described]:
    context = click.Context(command, parent=parent, info_name=name.rpartition(" ")[2], terminal_width=100)
    yield _describe(command, context, name)
    if isinstance(command, click.Group):
        for below in command.list_commands(context):
            found = command.get_command(context, below)
            assert found is not None
            yield from _walk(found, context, f"{name} {below}")


def _describe(command: click.Command, context: click.Context, name: str) -> Described:
    paragraphs, exit_codes, example = [], "", ""
    for part in re.split(r"\n\s*\n", inspect.cleandoc(command.help or "")):
        part = part.replace("\b", "").strip("\n")
        if part.startswith("Exit codes:"):
            exit_codes = " ".join(part.removeprefix("Exit codes:").split())
        elif part.startswith("Example:"):
            example = inspect.cleandoc(part.removeprefix("Example:"))
        else:
            paragraphs.append(part)
    options = []
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            options.append((_names(parameter), _help(parameter)))
    usage = command.collect_usage_pieces(context)
    return Described(
        name, " ".join([name, *usage]), paragraphs, exit_codes, example, options, isinstance(command, click.Group)
    )


# By hand, and not as click prints an option: the pages must not depend on which release of click made them.
def _names(option: click.Option) -> str:
    names = ", ".join(sorted(option.opts, key=lambda name: name.startswith("--")))
    if option.is_flag or option.count:
        return names
    choices = f"[{'|'.join(map(str, option.type.choices))}]" if isinstance(option.type, click.Choice) else ""
    return f"{names} {option.metavar or choices or option.type.name.split()[0].upper()}"


def _help(option: click.Option) -> str:
    said = [option.help or ""]
    low, high = getattr(option.type, "min", None), getattr(option.type, "max", None)
    if low is not None and high is not None:
        said.append(f"From {low} to {high}.")
    elif low is not None:
        said.append(f"At least {low}.")
    if option.show_default and not option.is_flag:
        said.append(f"Default: {option.default}.")
    if option.required:
        said.append("Required.")
    return " ".join(said).strip()


def _section(one: Described) -> str:
    parts = [fence("text", one.usage)]
    parts += [prose(part) + "\n" for part in one.paragraphs]
    if one.options:
        parts.append(table(["option", ""], ([code(names), cell(help_text)] for names, help_text in one.options)))
    if one.exit_codes:
        parts.append(prose(f"Exit codes: {one.exit_codes}") + "\n")
    parts.append(fence("sh", one.example))
    return "\n".join(parts)
