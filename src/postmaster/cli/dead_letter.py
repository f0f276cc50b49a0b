"""`postmaster dead-letter`: list, show, retry."""

import os
from collections import Counter
from typing import Any

import click

from postmaster import dead_letters, reading, reasons, resubmission
from postmaster.address import nearest
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.cli.following import outcome_lines
from postmaster.cli.inbox import content_lines, copy_out, cut
from postmaster.dead_letters import DeadLetter
from postmaster.directory.passes import route_now
from postmaster.errors import BadData, PostmasterError, UsageProblem
from postmaster.excerpts import describe_content
from postmaster.message import HEAD_BYTES
from postmaster.office import Office
from postmaster.printable import brief, quoted
from postmaster.resubmission import Result, Retried
from postmaster.settings import load_settings
from postmaster.tracking import Watch, describe_outcome, explain

_JSON = click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object.")
_REASONS = tuple(reason.name for reason in reasons.REASONS.values() if reason.action in reasons.REFUSED)
_TEXTS = ("reason", "action", "status", "detail", "remedy", "id", "correlation_id", "from", "type", "subject")


def _reason(context: click.Context, parameter: click.Parameter, value: str | None) -> str | None:
    if value is not None and value not in _REASONS:
        near = nearest(value, _REASONS)
        hint = f"did you mean {near}?" if near else "one of " + ", ".join(_REASONS)
        raise click.BadParameter(f"no reason is called {quoted(value)}; {hint}", context, parameter)
    return value


@click.group("dead-letter")
def dead_letter() -> None:
    """Mail that could not be delivered, kept byte for byte with the reason.

    \b
    Example:
      postmaster dead-letter list
      postmaster dead-letter show a.md
      postmaster dead-letter retry a.md --now
    """


@dead_letter.command("list")
@click.option("--reason", metavar="REASON", callback=_reason, help="Only those that died of this.")
@click.option("--limit", type=click.IntRange(min=0), default=20, show_default=True, help="So many; 0 for all.")
@_JSON
@click.pass_obj
def list_command(office: Office, reason: str | None, limit: int, as_json: bool) -> int:
    """List dead letters, newest first. Changes nothing.

    Exit codes: 0 shown, 64 no such REASON, 74 dead-letter/ cannot be read, 78 no office.

    \b
    Example:
      postmaster dead-letter list --reason unknown-recipient
    """
    office.require()
    answer = describe(office, reason, limit)
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
    return 0


@dead_letter.command()
@click.argument("name")
@click.option("--raw", is_flag=True, help="The letter, byte for byte.")
@_JSON
@click.pass_obj
def show(office: Office, name: str, raw: bool, as_json: bool) -> int:
    """Show why a letter died, what to do about it, and the letter. NAME is its file or the beginning of its id.

    Exit codes: 0 shown, 65 no such NAME, or --raw of what is no file, 74 it cannot be read, 78 no usable office or
    settings.

    \b
    Example:
      postmaster dead-letter show a.md
      postmaster dead-letter show a.md --raw > mended.md
    """
    if raw and as_json:
        raise UsageProblem("--raw and --json exclude each other")
    office.require()
    one = dead_letters.find(office, name, dead_letters.scan(office)[0])
    path = os.path.join(office.dead_letter, one.name)
    if one.kind is not None and raw:
        raise BadData(f"{office.shown(path)}: it is {one.kind}, not a letter; it is not opened")
    if raw:
        return copy_out(path)
    answer = {"office": office.root, **_row(office, one)}
    content = None
    if one.kind is None:
        content = reading.load(path, load_settings(office).max_message_bytes + HEAD_BYTES)
        answer |= describe_content(content)
    if as_json:
        echo_json(answer)
        return 0
    click.echo("\n".join(_reason_lines(answer)))
    if content is not None:
        click.echo("\n".join(["", *content_lines(content)]))
    return 0


@dead_letter.command()
@click.argument("names", metavar="NAME...", nargs=-1)
@click.option("--all", "every", is_flag=True, help="Retry every dead letter.")
@click.option("--reason", metavar="REASON", callback=_reason, help="Retry those that died of this.")
@click.option("--allow-duplicate", is_flag=True, help="Deliver it though the recipient was given the same before.")
@click.option("--now", is_flag=True, help="Route at once, and say what became of them.")
@_JSON
@click.pass_obj
def retry(
    office: Office,
    names: tuple[str, ...],
    every: bool,
    reason: str | None,
    allow_duplicate: bool,
    now: bool,
    as_json: bool,
) -> int:
    """Put dead letters back in the outbox, for those recipients who have not been served.

    Mend the cause first, or the letter itself: one whose text was changed is routed as a new one. NAME is a file or the
    beginning of an id. If one of those named cannot be retried, none is.

    Exit codes: 0 done, 65 a wrong NAME (with --now also: dead again), 73 or 74 the disk refused, 75 deferred, 78 no
    usable office or settings (with --now also: registry).

    \b
    Example:
      postmaster dead-letter retry a.md --now
      postmaster dead-letter retry --reason unknown-recipient
      postmaster dead-letter retry --allow-duplicate a.md
    """
    if bool(names) + every + (reason is not None) != 1:
        raise UsageProblem("say which: NAME..., --all, or --reason REASON")
    result = resubmission.retry(office, list(names), every=every, reason=reason, allow_duplicate=allow_duplicate)
    answer: dict[str, Any] = {
        "office": office.root,
        "retried": [_describe_retried(office, one) for one in result.retried],
        "left": [{"file": name, "why": why} for name, why in result.left],
    }
    code = 74 if any(one.problem for one in result.retried) else 0
    try:
        if now and result.retried:
            code = max(code, _route(office, result, answer), key=(0, 75, 65, 74).index)
    except (PostmasterError, OSError):
        _print(answer, as_json)  # they are in the outbox, whatever went wrong since
        raise
    _print(answer, as_json)
    for item in answer["left"]:
        say(f"{printable(item['file'])}: left: {printable(item['why'])}")
    for item in answer["retried"]:
        if item["problem"]:
            say(f"{printable(item['file'])}: {item['problem']}")
        elif item.get("state") in ("deferred", "waiting", "gone"):
            say(f"{printable(item['path'])}: {explain(item['state'])}")
    return code


def _route(office: Office, result: Result, answer: dict[str, Any]) -> int:
    """Route, and add to the answer what became of every letter; return the exit code."""
    files = [one.target for one in result.retried if one.problem is None]
    watch = Watch(office, files, result.since, result.time)
    route_now(office, say)
    outcomes = watch.outcomes()
    code = 0
    for one, item in zip(result.retried, answer["retried"], strict=True):
        if one.problem is None:
            outcome = outcomes[one.target]
            item |= describe_outcome(outcome)
            code = max(code, outcome.exit_code, key=(0, 75, 65).index)
    return code


def _describe_retried(office: Office, one: Retried) -> dict[str, Any]:
    return {
        "file": one.file_shown,
        "path": office.shown(os.path.join(office.outbox, one.target)),
        "mended": one.mended,
        "sequence": one.lines[0].get("sequence"),
        "recipients": [line["to"] for line in one.lines if "to" in line],
        "problem": one.problem,
    }


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(answer)
        return
    for item in answer["retried"]:
        if item["problem"]:
            continue
        number = f" #{item['sequence']}" if item["sequence"] else ""
        new = " (mended: routed as a new letter)" if item["mended"] else ""
        who = brief([printable(to) for to in item["recipients"]])
        to = f", to {who}" if who else ""
        click.echo(f"{printable(item['file'])} -> {printable(item['path'])}{number}{to}{new}")
        for line in outcome_lines(item):
            click.echo(f"  {line}")
    moved = [item for item in answer["retried"] if not item["problem"]]
    routed = any("state" in item for item in moved)
    if not moved:
        click.echo(f"{answer['office']}: nothing to retry")
    elif not routed:
        click.echo(f"{answer['office']}: {len(moved)} back in the outbox; `postmaster route` takes it from there")


# -- the listing ---------------------------------------------------------------------------------------------------


def describe(office: Office, reason: str | None, limit: int) -> dict[str, Any]:
    """Return the dead letters as plain data: what both the human and the JSON form say."""
    letters, orphans = dead_letters.scan(office)
    counts = Counter(one.text("reason") or "no reason file" for one in letters)
    listed = [one for one in letters if reason is None or one.text("reason") == reason]
    shown = listed[:limit] if limit else listed
    return {
        "office": office.root,
        "count": len(letters),
        "reasons": dict(sorted(counts.items())),
        "hidden": len(listed) - len(shown),
        "orphans": [os.fsencode(name).decode("utf-8", "backslashreplace") for name in orphans],
        "letters": [_row(office, one) for one in shown],
    }


def _row(office: Office, one: DeadLetter) -> dict[str, Any]:
    row: dict[str, Any] = {
        "file": one.shown,
        "path": office.shown(os.path.join(office.dead_letter, one.name)),
        "time": one.time,
        "kind": one.kind,
        "has_reason": one.reason is not None,
        "sequence": one.sequence,
    }
    return row | {key: one.text(key) for key in _TEXTS} | {"recipients": one.recipients}


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `describe`."""
    counts = ", ".join(f"{count} {printable(reason)}" for reason, count in answer["reasons"].items())
    plural = "dead letter" if answer["count"] == 1 else "dead letters"
    shown = [f"{answer['office']}: {answer['count']} {plural}" + (f" ({counts})" if counts else "")]
    for row in answer["letters"]:
        if not row["has_reason"]:
            kind = f", {row['kind']}" if row["kind"] else ""
            shown.append(f"{row['time']}  no reason file  {printable(row['file'])}{kind}")
            continue
        number = f" #{row['sequence']}" if row["sequence"] else ""
        flow = f"  [{row['correlation_id']}]{number}" if row["correlation_id"] else ""
        subject = f"  {cut(row['subject'])}" if row["subject"] else ""
        first = f"{row['time']}  {row['reason']}  {row['file']}{flow}{subject}"
        shown += [printable(first), f"    {printable(row['detail'] or '')}"]
    if answer["hidden"]:
        shown.append(f"… {answer['hidden']} older; --limit 0 shows all")
    shown += [f"{printable(name)}: a reason file whose letter is gone" for name in answer["orphans"]]
    return shown


def _reason_lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of why one letter died."""
    shown = [f"{'path':<10} {printable(answer['path'])}"]
    if answer["kind"]:
        shown.append(f"{'kind':<10} {answer['kind']}; it is not opened")
    if not answer["has_reason"]:
        return [*shown, f"{'reason':<10} unknown: there is no reason file that can be read"]
    for key in ("reason", "status", "detail", "remedy", "time"):
        if answer[key]:
            shown.append(f"{key:<10} {printable(answer[key])}")
    if answer["correlation_id"]:
        number = f" #{answer['sequence']}" if answer["sequence"] else ""
        shown.append(f"{'flow':<10} {printable(answer['correlation_id'])}{number}")
    for one in answer["recipients"]:
        agent = f" ({one['agent']})" if "agent" in one else ""
        shown.append(printable(f"{'recipient':<10} {one.get('to', '-')}{agent}: {one.get('detail', '')}"))
    return shown
