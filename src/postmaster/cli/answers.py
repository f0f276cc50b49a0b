"""The form of every machine-readable answer."""

import json
from typing import Any, Final

import click

FORMAT_VERSION: Final = 1


def echo_json(answer: dict[str, Any]) -> None:
    """Print an answer as one JSON object that carries the version of its form."""
    click.echo(json.dumps({"version": FORMAT_VERSION, **answer}, indent=2))
