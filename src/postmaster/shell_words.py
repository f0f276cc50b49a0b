"""Reading what a line for the shell starts, without a shell: its commands, each with its directory and variables. Pure.

What a shell knows only when it runs (a substitution, a variable that nobody has set) is `UNKNOWN` in the words.
"""

import os
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Final

UNKNOWN: Final = "\0"
ASSIGNMENT: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=\s*(.*)", re.DOTALL)
_VARIABLE: Final = re.compile(r"\$\{(\w+)\}|\$(\w+)|\$\{[^}]*\}?|\$|`[^`]*`?")
_SHELLS: Final = frozenset({"sh", "bash", "dash", "ash", "ksh", "zsh"})
_KEYWORDS: Final = frozenset({"if", "then", "else", "elif", "do", "while", "until", "!", "{"})
# Programs that start another: the options that have a value, and how many words come before that other.
_WRAPPERS: Final = {
    "env": ("uCS", 0),
    "exec": ("a", 0),
    "flock": ("wE", 1),
    "ionice": ("cnpPu", 0),
    "nice": ("n", 0),
    "runuser": ("ugGs", 0),
    "stdbuf": ("ioe", 0),
    "sudo": ("ugphCTrtD", 0),
    "time": ("fo", 0),
    "timeout": ("ks", 1),
    **dict.fromkeys(("builtin", "chronic", "command", "nohup", "setsid"), ("", 0)),
}
_OPERATORS: Final = frozenset(";&|()")
_DEEP: Final = 4  # shells that start shells


@dataclass(frozen=True, slots=True)
class Command:
    """What is started, and from where.

    Attributes:
        words: the command without what only starts it (`env`, `nice`, `sudo` ...).
        directory: the current one; UNKNOWN if nobody can tell.
        variables: those that are known to be set.
        settled: nothing else can have set variables: no profile, and no file that was read in.
    """

    account: str
    home: str
    directory: str
    variables: dict[str, str] = field(default_factory=dict)
    settled: bool = True
    words: tuple[str, ...] = ()

    def expand(self, word: str) -> str:
        """Return a word with its variables, and its `~`, put in."""

        def value(found: re.Match[str]) -> str:
            name = found[1] or found[2]
            return self.variables.get(name, self.home if name == "HOME" else UNKNOWN) if name else UNKNOWN

        word = _VARIABLE.sub(value, word)
        return self.home + word[1:] if word == "~" or word.startswith("~/") else word

    def at(self, path: str) -> str:
        """Return a path from the current directory; with UNKNOWN in it if nobody can tell."""
        return os.path.normpath(os.path.join(self.directory, path))


def read(text: str, start: Command, deep: int = 0) -> Iterator[Command]:
    """Yield the commands of a line, in their order; `start` is where and as whom it begins.

    Raises:
        ValueError: the shell would not run it either, or it is too deep.
    """
    if deep > _DEEP:
        raise ValueError("too many shells")
    now = start
    for words in _simple(text):
        one = _unwrapped(replace(now, words=tuple(map(now.expand, words)), variables=dict(now.variables)))
        first = os.path.basename(one.words[0]) if one.words else ""
        if not first:
            now = replace(now, variables=one.variables)  # assignments alone stay
        elif first == "export":
            for word in one.words[1:]:
                if assigned := ASSIGNMENT.fullmatch(word):
                    now = replace(now, variables={**now.variables, assigned[1]: assigned[2]})
        elif first in ("cd", "pushd"):
            to = next((word for word in one.words[1:] if not word.startswith("-")), None)
            now = replace(now, directory=UNKNOWN if "-" in one.words else now.at(to) if to else now.home)
        elif first in (".", "source"):
            now = _read_in(now, one.words)
        elif (inner := _inner(one)) is not None:
            yield from read(inner.words[0], replace(inner, words=()), deep + 1)
        else:
            yield one


def _read_in(now: Command, words: tuple[str, ...]) -> Command:
    """Return what is known after a file was read in; of a virtual environment, that is all but its place in PATH."""
    path = now.at(words[1]) if len(words) > 1 else ""
    if path.endswith("/bin/activate") and "PATH" in now.variables:
        return replace(now, variables={**now.variables, "PATH": f"{os.path.dirname(path)}:{now.variables['PATH']}"})
    return replace(now, settled=False)


def _inner(one: Command) -> Command | None:
    """Return the line that a shell is started with, as the only word; None if it is no such command."""
    first, rest = os.path.basename(one.words[0]), list(one.words[1:])
    if first in ("su", "runuser") and "-c" in rest[:-1]:
        line = rest[rest.index("-c") + 1]
        named = [word for word in rest if not word.startswith("-") and word != line]
        return replace(one, account=named[0] if named else "root", settled=False, words=(line,))
    if first == "flock" and "-c" in rest[:-1]:
        return replace(one, words=(rest[rest.index("-c") + 1],))
    if first not in _SHELLS:
        return None
    options = ""
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        options += "l" if option == "--login" else option[1:] if not option.startswith("--") else ""
    if "c" not in options or not rest:
        return None
    return replace(one, settled=one.settled and "l" not in options, words=(rest[0],))


def _unwrapped(one: Command) -> Command:
    """Return a command without what only starts it."""
    words, account, directory, variables = list(one.words), one.account, one.directory, one.variables
    while words:
        first = os.path.basename(words[0])
        if assigned := ASSIGNMENT.fullmatch(words[0]):
            variables[assigned[1]] = assigned[2]
            words.pop(0)
        elif words[0] in _KEYWORDS:
            words.pop(0)
        elif first in _WRAPPERS and "-c" not in words[:5]:
            valued, places = _WRAPPERS[first]
            words.pop(0)
            while words and words[0].startswith("-"):
                option = words.pop(0)
                takes = len(option) == 2 and option[1] in valued and bool(words)
                value = words.pop(0) if takes else ""
                if option == "-i" and first == "env":
                    variables.clear()
                elif option in ("-C", "-D") and value:
                    directory = os.path.normpath(os.path.join(directory, value))
                elif option == "-u" and first != "env" and value:
                    account = value
            del words[:places]
        else:
            break
    home = one.home if account == one.account else UNKNOWN
    return replace(one, words=tuple(words), account=account, home=home, directory=directory, variables=variables)


def _simple(text: str) -> Iterator[list[str]]:
    """Yield the simple commands of a line, as words."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="".join(sorted(_OPERATORS)))
    lexer.whitespace_split = True
    words: list[str] = []
    for word in lexer:
        if word and set(word) <= _OPERATORS:
            yield words
            words = []
        else:
            words.append(word)
    yield words
