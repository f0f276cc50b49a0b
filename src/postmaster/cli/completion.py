"""`postmaster completion`, and the answers to the scripts that it prints.

A script calls the command with $_POSTMASTER_COMPLETE (the shell's name) and the words up to the cursor; the answer is a
line for each candidate. Whatever goes wrong, nothing is said: a half-typed line is no place for an error.
"""

import contextlib
import os
import re
import shlex
import sys
from collections.abc import Sequence
from typing import Final

import click
from click.shell_completion import CompletionItem, _resolve_context, _resolve_incomplete

from postmaster.cli import candidates
from postmaster.cli.app import COMMANDS, cli, printable
from postmaster.cli.candidates import Candidate

VARIABLE: Final = "_POSTMASTER_COMPLETE"
FILES: Final = ":files"  # in place of candidates: the shell completes paths itself
DIRECTORIES: Final = ":directories"

_LONGEST_HELP: Final = 60
# Candidates may come from messages, and be inserted into a command line: nothing that a shell could act upon.
_HARMLESS: Final = re.compile(r"[A-Za-z0-9@_./][A-Za-z0-9@%_:./+=,-]*|--?[a-z][a-z-]*")

_BASH: Final = """\
# postmaster completion for bash. In ~/.bashrc: eval "$(postmaster completion bash)"
_postmaster_completion() {
    local line
    COMPREPLY=()
    while IFS= read -r line; do
        case $line in
            :files) compopt -o default 2>/dev/null ;;
            :directories) compopt -o dirnames 2>/dev/null ;;
            *) COMPREPLY+=("$line") ;;
        esac
    done < <(_POSTMASTER_COMPLETE=bash "${1/#\\~\\//$HOME/}" "${COMP_LINE:0:COMP_POINT}" "$COMP_WORDBREAKS" 2>/dev/null)
}
complete -o nosort -F _postmaster_completion postmaster 2>/dev/null ||
    complete -F _postmaster_completion postmaster
"""

_ZSH: Final = """\
#compdef postmaster
# postmaster completion for zsh. In ~/.zshrc, after compinit: eval "$(postmaster completion zsh)"; or keep it as a file
# called _postmaster in a directory of $fpath.
_postmaster() {
    local -a answer
    answer=("${(@f)$(_POSTMASTER_COMPLETE=zsh ${words[1]/#\\~\\//$HOME/} "${(@Q)words[2,CURRENT]}" 2>/dev/null)}")
    case $answer[1] in
        '') return 1 ;;
        :files) _files ;;
        :directories) _files -/ ;;
        *) _describe -V postmaster answer ;;
    esac
}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _postmaster "$@"
else
    compdef _postmaster postmaster
fi
"""

_FISH: Final = """\
# postmaster completion for fish. In ~/.config/fish/config.fish: postmaster completion fish | source
function __postmaster_complete
    set -l words (commandline -opc)
    set -l command $words[1]
    set -e words[1]
    set -l last (commandline -ct)
    set -l answer (env _POSTMASTER_COMPLETE=fish $command $words "$last" 2>/dev/null)
    switch "$answer[1]"
        case :files
            __fish_complete_path "$last"
        case :directories
            __fish_complete_directories "$last"
        case '*'
            string join \\n -- $answer
    end
end
complete --command postmaster --no-files --keep-order --arguments '(__postmaster_complete)'
"""

SCRIPTS: Final = {"bash": _BASH, "zsh": _ZSH, "fish": _FISH}


@click.command()
@click.argument("shell", type=click.Choice(list(SCRIPTS)))
def completion(shell: str) -> int:
    """Print a script with which SHELL completes commands, options, agents, addresses, messages and flows.

    Exit codes: 0 printed.

    \b
    Example:
      eval "$(postmaster completion bash)"                       # in ~/.bashrc
      eval "$(postmaster completion zsh)"                        # in ~/.zshrc, after compinit
      postmaster completion fish | source                        # in ~/.config/fish/config.fish
    """
    click.echo(SCRIPTS[shell], nl=False)
    return 0


# -- answering ---------------------------------------------------------------------------------------------------------


def answer(arguments: Sequence[str]) -> int:
    """Print what may come next, for the shell in $_POSTMASTER_COMPLETE. If that fails, print nothing."""
    shell = os.environ.get(VARIABLE, "")
    with contextlib.suppress(Exception):
        sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]
        text = "\n".join(_lines(shell, list(arguments)))
        if text:
            click.echo(text)
    return 0


def _lines(shell: str, arguments: list[str]) -> list[str]:
    if shell == "bash":
        line, breaks = arguments
        words = split(line)[1:]
    else:
        words, breaks = arguments, ""
    if shell not in SCRIPTS or not words:
        return []
    *before, last = words
    found = offered(before, last)
    if isinstance(found, str):
        return [found]
    chosen = [one for one in found if _HARMLESS.fullmatch(one.value)]
    if shell == "bash":
        start = _start_of_word(re.sub(r"^--[a-z-]+=", "", last), breaks)
        return [one.value[start:] for one in chosen]
    form = {"zsh": _for_zsh, "fish": _for_fish}[shell]
    return [form(one.value, _short(one.help)) for one in chosen]


def _for_zsh(value: str, said: str) -> str:
    """Return a line as _describe(1) of zsh takes it: a colon ends the value."""
    escaped = value.replace(":", "\\:")
    return f"{escaped}:{said}" if said else escaped


def _for_fish(value: str, said: str) -> str:
    return f"{value}\t{said}" if said else value


def _short(said: str) -> str:
    shown = printable(said)
    return shown if len(shown) <= _LONGEST_HELP else shown[: _LONGEST_HELP - 1] + "…"


def _start_of_word(typed: str, breaks: str) -> int:
    """Return where in it that begins which bash replaces: behind a $COMP_WORDBREAKS, but an `@` belongs to it.

    (readline(3), rl_special_prefixes: bash keeps `@` and `$` with the word that they end.)
    """
    behind = [typed.rfind(mark) + 1 for mark in ":=" if mark in breaks]
    return max([0, *behind, *([typed.rfind("@")] if "@" in breaks else [])])


def split(line: str) -> list[str]:
    """Return the words of a line that ends at the cursor, the last one unfinished and perhaps empty."""
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=False)
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        words.extend(lexer)
    except ValueError:  # a quote or a backslash that is not closed yet
        return [*words, lexer.token]
    return [*words, ""] if not line or line[-1:].isspace() else words


def offered(before: list[str], last: str) -> list[Candidate] | str:
    """Return what can stand in the place of `last`, an unfinished word after `before`; or FILES or DIRECTORIES."""
    ctx = _resolve_context(cli, {}, "postmaster", before)
    place, last = _resolve_incomplete(ctx, before, last)
    if place is cli and not last.startswith("-"):
        return [Candidate(name, said) for name, (_, _, said) in COMMANDS.items() if name.startswith(last)]
    if isinstance(place, click.Parameter):
        kind = _kind(ctx, place)
        if kind in (FILES, DIRECTORIES):
            return kind
        if kind is not None:
            return candidates.find(kind, ctx.find_root().params.get("root"), _given(ctx), last)
    return [_candidate(item) for item in place.shell_complete(ctx, last)]


def _candidate(item: "CompletionItem[str]") -> Candidate:
    return Candidate(str(item.value), item.help or "")


# What a parameter takes, by its name in the code; where one name means different things, by that of the command too.
_KINDS: Final = {
    "agent": candidates.AGENTS,
    "class_": candidates.AGENTS,
    "old": candidates.AGENTS,
    "archive name": candidates.AGENTS,
    "mcp agent": candidates.ADDRESSES,
    "to": candidates.RECIPIENTS,
    "sender": candidates.ADDRESSES,
    "msg": candidates.MESSAGES,
    "msgs": candidates.UNREAD,
    "unread msgs": candidates.READ,
    "reply_to": candidates.ANSWERABLE,
    "message_type": candidates.TYPES,
    "correlation": candidates.FLOWS,
    "id_prefix": candidates.IDS,
    "action": candidates.ACTIONS,
    "reason": candidates.REASONS,
    "name": candidates.DEAD_LETTERS,
    "names": candidates.DEAD_LETTERS,
    "roles": candidates.ROLES,
    "remotes": candidates.REMOTES,
    "accept": candidates.REMOTES,
    "root": DIRECTORIES,
    "file": FILES,
    "path": FILES,
    "output": FILES,
    "splice": FILES,
    "command": FILES,
}
# The words of `reply` are told apart by their number.
_REPLY: Final = (candidates.AGENTS, candidates.MESSAGES, FILES)


def _kind(ctx: click.Context, place: click.Parameter) -> str | None:
    if place.name == "words":
        return _REPLY[min(len(ctx.params.get("words") or ()), len(_REPLY) - 1)]
    if ctx.info_name == "register" and place.name == "name":
        return None  # a new one
    return _KINDS.get(f"{ctx.info_name} {place.name}") or _KINDS.get(str(place.name))


def _given(ctx: click.Context) -> candidates.Given:
    """Return what the line says already."""
    words = ctx.params.get("words") or ()
    return candidates.Given(
        agent=ctx.params.get("agent") or (words[0] if words else None),
        sender=ctx.params.get("sender"),
        to=tuple(ctx.params.get("to") or ()),
        taken=frozenset(ctx.params.get("msgs") or ctx.params.get("names") or ctx.params.get("remotes") or ()),
    )
