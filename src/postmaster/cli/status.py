"""`postmaster status`: whether mail flows, for people, for programs and for monitoring."""

import json
import os
import stat
import time
from typing import Any, Final

import click

from postmaster import health, times
from postmaster.cli.answers import FORMAT_VERSION
from postmaster.cli.app import printable, say
from postmaster.errors import CannotCreate, ConfigurationFault, UsageProblem
from postmaster.health import Limits
from postmaster.office import Office

_FORMATS: Final = ("text", "json", "prometheus")
_NEVER: Final = 2**62


def _span(text: str) -> int:
    """Read a span of time (the `type` of an option), in seconds; `off` is one that no age reaches."""
    try:
        return _NEVER if text == "off" else times.parse_span(text)
    except ValueError as fault:
        raise click.BadParameter(f"{text!r} is {fault}, or off") from fault


@click.command()
@click.option("-v", "--verbose", "--all", "everybody", is_flag=True, help="Agents without unread mail too.")
@click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object; the same as --format json.")
@click.option(
    "--format", "form", type=click.Choice(_FORMATS), default="text", show_default=True, help="How to tell it."
)
@click.option(
    "--output",
    metavar="FILE",
    help="Write the answer to a file, which is replaced as a whole; `-` is standard output.",
)
@click.option("--check", is_flag=True, help="End with 0, 1, 2 or 3: ok, warning, critical, cannot be told.")
@click.option(
    "--max-run-age",
    type=_span,
    default="30m",
    metavar="SPAN",
    show_default=True,
    help="Critical: no run for so long while mail waits.",
)
@click.option(
    "--max-deferred-age",
    type=_span,
    default="1h",
    metavar="SPAN",
    show_default=True,
    help="Critical: mail is deferred, or another office does not get its mail, for so long.",
)
@click.option(
    "--max-unread-age",
    type=_span,
    default="off",
    metavar="SPAN",
    show_default=True,
    help="Warning: a message is unread for so long.",
)
@click.option(
    "--max-dead",
    type=click.IntRange(min=0),
    metavar="COUNT",
    help="Warning: more dead letters than that in the last 24 hours. Default: any number will do.",
)
@click.option(
    "--min-free",
    type=click.FloatRange(0, 100),
    default=5.0,
    metavar="PERCENT",
    show_default=True,
    help="Warning: less is left of the bytes or inodes of a disk that mail is on.",
)
@click.pass_obj
def status(
    office: Office,
    everybody: bool,
    as_json: bool,
    form: str,
    output: str | None,
    check: bool,
    max_run_age: int,
    max_deferred_age: int,
    max_unread_age: int,
    max_dead: int | None,
    min_free: float,
) -> int:
    """Say whether mail flows: what the office holds, what waits and why. Changes nothing.

    The first line is the answer, what is of concern follows, then the facts. A SPAN is 90s, 30m, 2h, 1d or off.

    An existing FILE keeps its mode; a new one can be read by everybody. A link, a device, a pipe or a directory is not
    replaced.

    Exit codes: 0 shown, 64 FILE is empty, 73 FILE cannot be written or is no regular file, 78 no office. With --check,
    as monitoring plugins do: 0 mail flows, 1 it flows and something should be looked at, 2 it does not flow, 3 nobody
    can tell.

    \b
    Example:
      postmaster status
      postmaster status --check --max-unread-age 4h
      postmaster status --json | jq '.totals'
      postmaster status --format prometheus --output /var/lib/node_exporter/postmaster.prom
    """
    from postmaster import status as module
    from postmaster.directory import open_view

    if output == "":
        raise UsageProblem("--output '': it is empty; name a file, or `-` for standard output")
    limits = Limits(max_run_age, max_deferred_age, max_unread_age, max_dead, min_free)
    form = "json" if as_json else form
    now_ns = time.time_ns()
    try:
        answer = module.survey(office, limits=limits, clock=lambda: now_ns, open_view=open_view)
    except ConfigurationFault as fault:
        if form == "prometheus":
            from postmaster import metrics

            _put(metrics.render_down(office.root, now_ns), output)
        if not check:
            raise
        if form == "text" and output in (None, "-"):
            click.echo(f"nobody can tell whether mail flows: {printable(str(fault))}")
        else:
            say(str(fault))
        return health.UNKNOWN_CODE
    _put(_rendered(answer, form, now_ns, everybody=everybody), output)
    return health.LEVELS.index(answer["level"]) if check else 0


def _rendered(answer: dict[str, Any], form: str, now_ns: int, *, everybody: bool) -> str:
    if form == "json":
        return json.dumps({"version": FORMAT_VERSION, **answer}, indent=2) + "\n"
    if form == "prometheus":
        from postmaster import metrics

        return metrics.render(answer, now_ns)
    return "\n".join(status_lines(answer, everybody=everybody)) + "\n"


def _put(text: str, output: str | None) -> None:
    """Print an answer, or put it into a file: a reader of that sees the old answer or the new one, whole."""
    if output in (None, "-"):
        click.echo(text, nl=False)
        return
    from postmaster import durable

    folder, name = os.path.split(os.path.abspath(output))
    target = os.path.join(folder, name)
    before = _replaceable(target, output)
    temporary = os.path.join(folder, f".{name}.{os.getpid()}.tmp")  # a collector reads *.prom only
    try:
        durable.remove(temporary)
        durable.write_new(temporary, text.encode("utf-8", "backslashreplace"), sync=False, mode=0o600)
        if before is not None and os.geteuid() == 0:
            os.chown(temporary, before.st_uid, before.st_gid)
        # a new one: whoever collects it is another account
        os.chmod(temporary, 0o644 if before is None else stat.S_IMODE(before.st_mode))
        os.rename(temporary, target)
    except OSError as fault:
        durable.remove(temporary)
        raise CannotCreate(f"{output}: cannot be written: {fault.strerror}") from fault


def _replaceable(target: str, shown: str) -> os.stat_result | None:
    """Return what is known of the file that is there, None if there is none; refuse what is no regular file."""
    from postmaster import outbox

    try:
        found = os.lstat(target)
    except FileNotFoundError:
        return None
    except OSError as fault:
        raise CannotCreate(f"{shown}: cannot be written: {fault.strerror}") from fault
    if stat.S_ISREG(found.st_mode):
        return found
    is_now = outbox.kind(found.st_mode)
    raise CannotCreate(f"{shown}: is {is_now}, not a regular file; nothing was written (`-` is standard output)")


def status_lines(answer: dict[str, Any], *, everybody: bool) -> list[str]:
    """Return the human form of `status.survey`."""
    totals = answer["totals"]
    lines = [
        health.headline(answer),
        *(f"  {one['level']:<10} {printable(one['text'])}" for one in answer["concerns"]),
        f"office {printable(answer['name'])} at {printable(answer['office'])}",
        _registry_line(answer["registry"]),
        "last run     "
        + (f"{answer['last_run']} ({_ago(answer['last_run_age_seconds'])})" if answer["last_run"] else "never"),
    ]
    if answer["unfinished_run"]:
        lines.append("             a run is at work, or was cut off in the middle; the next one ends it")
    lines += _starter_lines(answer["starters"])
    lines.append(f"mail         {totals['unread']} unread, {totals['read']} read")
    if oldest := answer["oldest_unread"]:
        who = oldest["agent"] or "nobody in the registry"
        lines.append(f"oldest       {printable(oldest['file'])} for {who} ({_ago(oldest['age_seconds'])})")
    for one in answer["agents"]:
        if (one["unread"] and not one["archived"]) or everybody:
            nobody = "archived" if one["archived"] else "not in the registry"
            who = one["agent"] or f"{printable(one['inbox'])} ({nobody})"
            lines.append(f"  {one['unread']:>7} unread {one['read']:>7} read  {who}")
    lines += _outbox_lines(answer)
    reasons = ", ".join(f"{count} {printable(name)}" for name, count in answer["dead_letters"].items())
    lines.append(f"dead letters {totals['dead']}" + (f": {reasons}" if reasons else ""))
    if totals["dead"]:
        lately = ", ".join(f"{count} {printable(name)}" for name, count in answer["dead_letters_last_day"].items())
        lines.append(f"             in the last 24 hours {lately or 'none'}")
    lines += _disk_lines(answer["disks"])
    lines += [f"unfinished   {one['path']}: {one['what']}" for one in answer["unfinished"] if not one["at_work"]]
    for one in answer["remotes"]:
        lines.append(f"remote       {one['name']}: {one['waiting']} waiting for the carrier{_remote(one)}")
        for receipt in one["receipts"]:
            about = f"{printable(receipt['to'])} {printable(receipt['correlation_id'])} #{receipt['sequence']}"
            lines.append(f"  {printable(receipt['detail'])}: {about} {printable(receipt['subject'])}")
    return [*lines, *(f"problem      {printable(text)}" for text in answer["problems"])]


def _starter_lines(starters: dict[str, Any]) -> list[str]:
    """Say what starts runs here."""
    known = [f"{one['source']} of {one['account']}: {one['text']}" for one in starters["started_by"]]
    if starters["crontab"] == "unknown":
        known.append(f"the crontab of {starters['account']} is not known: {starters['crontab_detail']}")
    if starters["cron_runs"] is False and starters["crontab"] == "present":
        known.append("no cron daemon runs")
    nothing = f"nothing that is known: no line of {starters['account']}'s crontab names this office"
    return [f"{'started by' if not at else '':<12} {printable(text)}" for at, text in enumerate(known or [nothing])]


def _disk_lines(disks: list[dict[str, Any]]) -> list[str]:
    lines: list[str] = []
    for disk in disks:
        inodes = f", {disk['inodes_free']} inodes" if disk["inodes_free"] is not None else ""
        others = len(disk["places"]) - 1
        told = printable(disk["path"]) + (f" and {others} more" if others else "")
        free = f"{disk['bytes_free'] // 2**20} MiB{inodes} left ({disk['percent_free']:.0f}%)"
        lines.append(f"{'disk' if not lines else '':<12} {free}: {told}")
    return lines


def _remote(one: dict[str, Any]) -> str:
    if one["wrong"] is not None:
        return f"; it looks wrong: {printable(one['wrong'])}"
    if one["failures"]:
        return f"; no answer {one['failures']} times, tried again at {one['next_try']}"
    return ""


def _registry_line(registry: dict[str, Any]) -> str:
    counted = f"{registry['agents']} agents"
    counted += f", {registry['instances']} live instances" if registry["instances"] else ""
    if registry["state"] == "merged":
        return f"registry     {counted}"
    if registry["state"] == "stale":
        return f"registry     {counted}; {printable(registry['detail'])}"
    return f"registry     {registry['state']}: {printable(registry['detail'])}"


def _outbox_lines(answer: dict[str, Any]) -> list[str]:
    box = answer["outbox"]
    oldest = box["oldest"]
    told = f", the oldest {printable(oldest['file'])} ({_ago(oldest['age_seconds'])})" if oldest else ""
    lines = [f"outbox       {box['waiting']} waiting{told}"]
    for one in answer["deferred"]:
        why = f"{printable(one['reason'] or 'no reason given')}, since {printable(one['since'])}"
        lines.append(f"  deferred   {_letter_for(one)}: {why}")
    for one in answer["retried"]:
        was = f" (it died of {printable(one['reason'])})" if one["reason"] else ""
        lines.append(f"  retried    {_letter_for(one)}: waits for the next run since {printable(one['since'])}{was}")
    for one in box["held_back"]:
        lines.append(f"  held back  {printable(one['file'])}: {printable(one['why'])} ({_ago(one['age_seconds'])})")
    for one in box["stray"]:
        lines.append(f"  stray      {printable(one['file'])}: {printable(one['why'])} ({_ago(one['age_seconds'])})")
    young = box["unfinished"] - len(box["stray"])
    if young:
        lines.append(f"  unfinished {young} by their names; their writers may be at work")
    return lines


def _letter_for(item: dict[str, Any]) -> str:
    """Return the file of a letter that waits, and for whom where that is known."""
    whom = item["agent"] or item["to"]
    return printable(item["file"]) + (f" for {printable(whom)}" if whom else "")


def _ago(seconds: int | None) -> str:
    """Return an age in its largest unit."""
    return "age unknown" if seconds is None else f"{health.span(seconds)} ago"
