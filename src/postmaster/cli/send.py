"""`postmaster send` and `postmaster reply`."""

import os
import sys
import time
from collections.abc import Callable
from typing import Any, Final

import click

from postmaster import composition, maildir, message, reading, submission, times
from postmaster.address import is_mailbox
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.cli.route import route_now
from postmaster.composition import Draft
from postmaster.decide import Agent, quoted
from postmaster.directory import open_view
from postmaster.errors import BadData, PostmasterError, UsageProblem
from postmaster.office import Office, visible
from postmaster.settings import load_settings
from postmaster.submission import Refusal, Submitted
from postmaster.tracking import Outcome, Watch


def _seconds(text: str) -> float:
    """Read a time to wait: not negative, and an end to it."""
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_WAIT:  # false for `nan` too
        raise click.BadParameter(f"{text!r} is no number of seconds from 0 to {_LONGEST_WAIT}")
    return seconds


_LONGEST_WAIT: Final = 30 * 24 * 3600
_BODY = click.argument("file", required=False)
_OPTIONS = [
    click.option("--body", "text", metavar="TEXT", help="The body, instead of FILE or standard input; used as it is."),
    click.option("--sent-at", metavar="TIME", help="RFC 3339. Default: now. With the same text again: a duplicate."),
    click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, help="A header field of your own."),
    click.option("--now", is_flag=True, help="Route at once, and say what became of the message."),
    click.option("--wait", type=_seconds, metavar="SECONDS", help="Wait so long for it to be routed."),
    click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object."),
]


def _with_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--to", "to", metavar="ADDRESS", multiple=True, required=True, help="Give it again, or use commas.")
@click.option("--from", "sender", metavar="ADDRESS", required=True, help="The address you send from.")
@click.option("--type", "message_type", metavar="TYPE", required=True, help="What kind of message it is.")
@click.option("--subject", metavar="TEXT", required=True)
@click.option("--correlation", metavar="FLOW", help="The flow it belongs to. Default: a new one, which is printed.")
@click.option("--reply-to", metavar="ID", help="The id of the message that it answers.")
@_with_options
@_BODY
@click.pass_obj
def send(
    office: Office,
    to: tuple[str, ...],
    sender: str,
    message_type: str,
    subject: str,
    correlation: str | None,
    reply_to: str | None,
    text: str | None,
    sent_at: str | None,
    headers: tuple[str, ...],
    now: bool,
    wait: float | None,
    as_json: bool,
    file: str | None,
) -> int:
    """Put a message in the outbox, after the checks that routing will make.

    The body is FILE, byte for byte; standard input if FILE is `-` or left out; or --body TEXT. If any recipient would
    not get the message, nothing is sent.

    Exit codes: 0 sent (with --now or --wait: delivered), 64 wrong use, 65 refused, 73 or 74 the disk refused, 75 sent
    but not delivered yet, 78 no usable office or registry.

    \b
    Example:
      echo "Ready for review." | postmaster send --to product-agent@council.internal \\
        --from orchestrator@council.internal --type council.evaluate --subject "Plan B" --correlation run-42
      postmaster send --to builder@lab.internal --from conductor@lab.internal --type job.run \\
        --subject "nightly build" --body "Please run it." --now
    """
    office.require()
    settings = load_settings(office)
    now_ns = time.time_ns()
    draft = Draft(
        to=composition.recipients(list(to)),
        sender=sender,
        type=message_type,
        subject=subject,
        correlation_id=composition.new_flow(now_ns) if correlation is None else correlation,
        sent_at=times.timestamp(now_ns) if sent_at is None else sent_at,
        in_reply_to=reply_to,
        headers=composition.own_fields(list(headers)),
        body=_body(file, text, settings.max_message_bytes),
    )
    if not draft.to:
        raise UsageProblem("--to names nobody")

    with open_view(office) as registry:
        try:
            submitted = submission.send(office, draft, registry, settings, may_repeat=sent_at is not None)
        except Refusal as refusal:
            return _refuse(refusal, as_json)
    answer = describe(office, submitted)
    return _finish(office, submitted, answer, now=now, wait=wait, as_json=as_json)


@click.command()
@click.argument("agent")
@click.argument("msg")
@click.option("--type", "message_type", metavar="TYPE", help="Default: the one type AGENT declares to send there.")
@click.option("--subject", metavar="TEXT", help="Default: `Re: ` and the subject that is answered.")
@click.option("--ack", is_flag=True, help="Acknowledge MSG once the answer is sent.")
@_with_options
@_BODY
@click.pass_obj
def reply(
    office: Office,
    agent: str,
    msg: str,
    message_type: str | None,
    subject: str | None,
    ack: bool,
    text: str | None,
    sent_at: str | None,
    headers: tuple[str, ...],
    now: bool,
    wait: float | None,
    as_json: bool,
    file: str | None,
) -> int:
    """Answer message MSG of AGENT: to its sender, in its flow, from the address it reached AGENT under.

    MSG is a file name or the beginning of an id (`postmaster inbox AGENT` shows it), unread or read. Answering does not
    acknowledge: MSG stays unread until `ack`, or use --ack. The body and the exit codes are those of `send`.

    \b
    Example:
      postmaster reply council.product-agent 5d41402a --body "Approved." --ack
      postmaster reply product-agent@council.internal 5d41402a --type council.vote verdict.md --now
    """
    from postmaster.directory import readers

    office.require()
    settings = load_settings(office)
    now_ns = time.time_ns()
    may_repeat = sent_at is not None
    reader = readers.find_reader(office, agent)
    reader.require_live()
    replier = reader.agent
    with open_view(office) as registry:
        item = reading.find_message(office, replier, msg)
        original = reading.load(os.path.join(replier.inbox, item.folder, item.name))
        origin, flow, message_id = _origin(office, replier, item, original)
        if message_type is None:
            emits = (registry.entry(replier.id) or {}).get("emits", [])
            message_type = submission.reply_type(replier, emits, registry.find(origin), origin)
        reached = reading.own_address(replier, original.to) or replier.address
        draft = Draft(
            to=(origin,),
            sender=reached,
            type=message_type,
            subject=composition.reply_subject(original.text("subject") or "") if subject is None else subject,
            correlation_id=flow,
            sent_at=times.timestamp(now_ns) if sent_at is None else sent_at,
            in_reply_to=message_id,
            headers=composition.own_fields(list(headers)),
            body=_body(file, text, settings.max_message_bytes),
        )
        senders = list(dict.fromkeys([reached, replier.address]))
        draft = submission.choose_sender(office, draft, senders, registry, settings, may_repeat=may_repeat)
        try:
            submitted = submission.send(office, draft, registry, settings, may_repeat=may_repeat)
        except Refusal as refusal:
            return _refuse(refusal, as_json)
    answer = describe(office, submitted)
    answer["from"] = draft.sender
    answer["to"] = origin

    def acknowledge() -> None:
        moved = reading.move(office, replier, item, maildir.READ)
        answer["acknowledged"] = moved.path

    return _finish(office, submitted, answer, now=now, wait=wait, as_json=as_json, after=acknowledge if ack else None)


def _origin(office: Office, agent: Agent, item: reading.Name, original: reading.Message) -> tuple[str, str, str]:
    """Return the sender, the flow and the id of the message that is answered."""
    path = os.path.join(agent.inbox, item.folder, item.name)
    if original.problem is not None:
        raise BadData(f"{office.shown(path)}: it cannot be answered: {original.problem}")
    sender, flow = original.text("from"), original.text("correlation_id")
    if sender is None or not is_mailbox(sender):
        raise BadData(f"{office.shown(path)}: it cannot be answered: its `from` is no address")
    if not flow:
        raise BadData(f"{office.shown(path)}: it cannot be answered: it has no `correlation_id`")
    message_id = original.text("id")
    if message_id is None:  # put there by hand
        message_id = message.body_id(b"".join(reading.chunks(path, original.body)))
    return sender, flow, message_id


def _body(file: str | None, text: str | None, limit: int) -> bytes:
    """Return the body from its one source; of a longer one as much as shows that it is too long."""
    if file is not None and text is not None:
        raise UsageProblem("give the body once: FILE, `-`, or --body TEXT")
    if text is not None:
        return os.fsencode(text)
    if file is None and sys.stdin.isatty():
        raise UsageProblem("no body: give FILE, `-` for standard input, or --body TEXT (which may be empty)")
    if file is None or file == "-":
        return sys.stdin.buffer.read(limit + 1)
    try:
        with open(file, "rb") as stream:
            return stream.read(limit + 1)
    except (OSError, ValueError) as fault:
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise BadData(f"{quoted(visible(file))}: cannot be read: {why}; nothing was sent") from fault


# -- answers -------------------------------------------------------------------------------------------------------


def _refuse(refusal: Refusal, as_json: bool) -> int:
    if as_json:
        echo_json({"state": "refused", "sent": False, "refused": refusal.refused})
    say(str(refusal))
    return refusal.exit_code


def _finish(
    office: Office,
    submitted: Submitted,
    answer: dict[str, Any],
    *,
    now: bool,
    wait: float | None,
    as_json: bool,
    after: Callable[[], None] | None = None,
) -> int:
    """Route or wait if asked to, acknowledge, and say what became of the message; return the exit code."""
    code = 0
    try:
        if now or wait is not None:
            watch = Watch(office, [submitted.file], submitted.since, "")
            if now:
                route_now(office)
            outcome = watch.wait(wait or 0)[submitted.file]
            answer |= describe_outcome(outcome)
            code = outcome.exit_code
        if after is not None and code != BadData.exit_code:
            after()
    except (PostmasterError, OSError):
        _print(answer, as_json)  # it is sent, whatever went wrong since
        raise
    _print(answer, as_json)
    if code == 75:
        say(f"{submitted.path}: {explain(answer['state'])}")
    return code


def describe(office: Office, submitted: Submitted) -> dict[str, Any]:
    """Return what was sent as plain data: what both the human and the JSON form say."""
    return {
        "office": office.root,
        "sent": True,
        "state": "submitted",
        "id": submitted.id,
        "correlation_id": submitted.correlation_id,
        "file": submitted.file,
        "path": submitted.path,
    }


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return what became of a letter as plain data."""
    keys = ("action", "to", "agent", "sequence", "path", "reason", "status", "detail")
    shown = [{key: record[key] for key in keys if key in record} for record in outcome.records]
    return {"state": outcome.state, "outcomes": shown}


def explain(state: str) -> str:
    """Return what a state means that is not the end."""
    return {
        "deferred": "deferred; the next run tries again",
        "gone": "it has left the outbox, and the log does not say where to",
    }.get(state, "not routed yet; the next run takes it")


def outcome_lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of `describe_outcome`."""
    shown = []
    for item in answer.get("outcomes", ()):
        who = printable(item.get("to", ""))
        agent = f" ({item['agent']})" if "agent" in item else ""
        number = f" #{item['sequence']}" if "sequence" in item else ""
        where = f" -> {printable(item['path'])}" if "path" in item else ""
        why = f" [{item['reason']}] {printable(item.get('detail', ''))}" if "reason" in item else ""
        shown.append(f"{item['action']:<11} {who}{agent}{number}{where}{why}")
    return shown


def lines(answer: dict[str, Any]) -> list[str]:
    """Return the human form of what was sent."""
    shown = [
        f"id          {answer['id']}",
        f"flow        {printable(answer['correlation_id'])}",
        f"file        {answer['path']}",
        *outcome_lines(answer),
    ]
    if "acknowledged" in answer:
        shown.append(f"acknowledged {answer['acknowledged']}")
    return shown


def _print(answer: dict[str, Any], as_json: bool) -> None:
    if as_json:
        echo_json(answer)
    else:
        click.echo("\n".join(lines(answer)))
