"""`postmaster route`."""

import gc
from typing import Any

import click

from postmaster import reasons, router
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.delivery_log import Record
from postmaster.directory import Reports, open_view
from postmaster.directory.passes import route_and_nudge
from postmaster.office import Office
from postmaster.summary import Summary


@click.command()
@click.option("--now", is_flag=True, help="Wait for a router that is at work, then route: for urgent mail.")
@click.option("--dry-run", is_flag=True, help="Say what would happen; change nothing.")
@click.option("-v", "--verbose", is_flag=True, help="Say what became of every letter.")
@click.option("--json", "as_json", is_flag=True, help="The report as one JSON object.")
@click.pass_obj
def route(office: Office, now: bool, dry_run: bool, verbose: bool, as_json: bool) -> int:
    """Route what is in the outbox. Quiet on success, so that cron has nothing to mail.

    Exit codes: 0 done (dead letters too), 73 the lock cannot be made, 74 the disk refused, 75 something is deferred,
    78 no usable office or registry: nothing was touched.

    \b
    Example:
      postmaster route --dry-run
      postmaster route --now -v
    """
    gc.disable()  # a pass makes many objects and no cycles worth the time that looking for them takes
    records: list[Record] = []
    on_record = records.append if verbose or as_json or dry_run else None
    nudges: dict[str, Any] = {}
    if dry_run:
        report = router.preview(office, on_record=on_record, open_view=open_view, reporter=Reports(office))
    else:
        report, nudges = route_and_nudge(office, say, wait=now, on_record=on_record)
    answer = describe(office, report, records, dry_run=dry_run) | nudges
    if as_json:
        echo_json(answer)
    elif verbose or dry_run:
        for line in lines(answer):
            click.echo(line)
    for problem in report.problems:
        say(printable(problem))
    return 75 if report.deferred and not dry_run else 0


def describe(office: Office, report: Summary, records: list[Record], *, dry_run: bool) -> dict[str, Any]:
    """Return the report as plain data: what both the human and the JSON form say."""
    return {
        "office": office.root,
        "dry_run": dry_run,
        "busy": report.busy,
        "counts": {action: report.actions[action] for action in sorted(report.actions)},
        "deferred": report.deferred,
        "waiting": [{"file": one.name, "why": one.why} for one in report.waiting],
        "problems": report.problems,
        "letters": records,
    }


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `describe`."""
    if answer["busy"]:
        return [f"{answer['office']}: another router is at work; it takes the mail"]
    shown = []
    for record in answer["letters"]:
        number = f" #{record['sequence']}" if "sequence" in record else ""
        flow = f" {printable(record['correlation_id'])}{number}" if "correlation_id" in record else ""
        where = f" -> {printable(record['path'])}" if record.get("path") else ""
        why = f" [{record['reason']}] {printable(record['detail'])}".rstrip() if record.get("reason") else ""
        shown.append(f"{record['action']:<11} {printable(record['file'])}{flow}{where}{why}")
    shown.extend(f"waiting     {printable(one['file'])}: {printable(one['why'])}" for one in answer["waiting"])
    counted = [f"{count} {action}" for action, count in answer["counts"].items() if action != reasons.DEFERRED]
    counted += [f"{answer['deferred']} deferred"] if answer["deferred"] else []
    counted += [f"{len(answer['waiting'])} waiting"] if answer["waiting"] else []
    would = "would be: " if answer["dry_run"] else ""
    if "nudged" in answer:
        from postmaster.cli import nudge

        shown += nudge.lines(answer)
    return [*shown, f"{answer['office']}: {would}{', '.join(counted) or 'nothing to route'}"]
