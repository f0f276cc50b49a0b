"""The form of every machine-readable answer, and of a time to wait."""

import json
from typing import Any, Final

import click

FORMAT_VERSION: Final = 1
_LONGEST_WAIT: Final = 30 * 24 * 3600


def echo_json(answer: dict[str, Any]) -> None:
    """Print an answer as one JSON object that carries the version of its form."""
    click.echo(json.dumps({"version": FORMAT_VERSION, **answer}, indent=2))


def seconds(text: str) -> float:
    """Read a time to wait (the `type` of an option): not negative, and an end to it."""
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found <= _LONGEST_WAIT:  # false for `nan` too
        raise click.BadParameter(f"{text!r} is no number of seconds from 0 to {_LONGEST_WAIT}")
    return found
