"""`postmaster doctor`."""

from typing import Any

import click

from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable
from postmaster.office import Office


@click.command()
@click.option("--json", "as_json", is_flag=True, help="The findings as one JSON object.")
@click.pass_obj
def doctor(office: Office, as_json: bool) -> int:
    """Find the mistakes that are made when an office is set up, and say what mends each. Changes nothing.

    Ask as the account that routes. A finding is the name of its check, where it is, what is wrong and what comes of it;
    then the fix, and the commands that do it, for you to look at and run; after `look:` those that only show more.

    Exit codes: 0 nothing found, 1 findings.

    \b
    Example:
      postmaster doctor
      postmaster doctor --json | jq -r '.findings[].commands[]'
    """
    from postmaster.doctor import catalogue, gathering

    found = catalogue.examine(gathering.gather(office))
    answer = {"office": office.root, "ok": not found, "checks": len(catalogue.CHECKS), "findings": found}
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(_lines(answer)))
    return 1 if found else 0


def _lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of the answer."""
    lines = []
    for one in answer["findings"]:
        lines.append(f"{one['check']}: {printable(one['where'])}: {printable(one['what'])}")
        lines.append(f"    {printable(one['fix'])}" + (":" if one["commands"] else ""))
        lines += [f"      {printable(command)}" for command in one["commands"]]
        lines += [f"    look: {printable(command)}" for command in one["look"]]
    count = len(answer["findings"])
    said = "nothing found" if not count else "1 finding" if count == 1 else f"{count} findings"
    return [*lines, f"office {printable(answer['office'])}: {answer['checks']} checks, {said}"]
