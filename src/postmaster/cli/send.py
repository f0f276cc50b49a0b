"""`postmaster send` and `postmaster reply`."""

import os
import sys
import time
from collections.abc import Callable

import click

from postmaster import acknowledging, composition, maildir, reading, submission, times
from postmaster.cli.answers import seconds
from postmaster.cli.following import Ways, finish, refuse
from postmaster.composition import Draft
from postmaster.directory import open_view
from postmaster.errors import BadData, UsageProblem
from postmaster.office import Office, visible
from postmaster.printable import quoted
from postmaster.settings import load_settings
from postmaster.submission import Refusal
from postmaster.turns import inside

_BODY = click.argument("file", required=False)
_OPTIONS = [
    click.option("--body", "text", metavar="TEXT", help="The body, instead of FILE or standard input; used as it is."),
    click.option("--allow-empty", is_flag=True, help="Send it although FILE or standard input is empty."),
    click.option("--sent-at", metavar="TIME", help="RFC 3339. Default: now. With the same text again: a duplicate."),
    click.option("--header", "headers", metavar="KEY=VALUE", multiple=True, help="A header field of your own."),
    click.option("--now", is_flag=True, help="Route at once, and say what became of the message."),
    click.option("--wait", type=seconds, metavar="SECONDS", help="Wait so long for the answer, and print it."),
    click.option("--wait-delivered", type=seconds, metavar="SECONDS", help="Wait so long for it to be routed."),
    click.option("--immediately", is_flag=True, help="In a turn: send it now, whatever becomes of the turn."),
    click.option("--json", "as_json", is_flag=True, help="The answer as one JSON object."),
]


def _with_options(command: Callable[..., int]) -> Callable[..., int]:
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


@click.command()
@click.option("--to", "to", metavar="ADDRESS", multiple=True, required=True, help="Give it again, or use commas.")
@click.option("--from", "sender", metavar="ADDRESS", help="The address you send from. Needed, but in a turn.")
@click.option("--type", "message_type", metavar="TYPE", required=True, help="What kind of message it is.")
@click.option("--subject", metavar="TEXT", required=True)
@click.option(
    *("--correlation", "--thread", "correlation"),
    metavar="FLOW",
    help="The flow it belongs to. Default: a new one, which is printed; in a turn, its default thread.",
)
@click.option("--reply-to", metavar="ID", help="The id of the message that it answers.")
@_with_options
@_BODY
@click.pass_obj
def send(
    office: Office,
    to: tuple[str, ...],
    sender: str | None,
    message_type: str,
    subject: str,
    correlation: str | None,
    reply_to: str | None,
    text: str | None,
    allow_empty: bool,
    sent_at: str | None,
    headers: tuple[str, ...],
    now: bool,
    wait: float | None,
    wait_delivered: float | None,
    immediately: bool,
    as_json: bool,
    file: str | None,
) -> int:
    """Put a message in the outbox, after the checks that routing will make.

    The body is FILE, byte for byte; standard input if FILE is `-` or left out; or --body TEXT. An empty FILE or
    standard input is refused, unless --allow-empty. If any recipient would not get the message, nothing is sent.

    With --wait it ends when the answer is in the inbox of --from: a message of the same flow whose `in_reply_to` is the
    id of this one. It is printed, and stays unread; if it comes later it is ordinary mail. A refusal ends the waiting.
    The package `watchfiles` makes that quick (pip install '.[watchfiles]' in the checkout).

    In a turn --from is the agent whose turn it is, --thread its default thread, and the message leaves when the turn
    has succeeded, unless --immediately.

    Exit codes: 0 sent (with --now or --wait-delivered: delivered; with --wait: answered), 64 wrong use, 65 refused,
    73 or 74 the disk refused, 75 sent but not delivered or not answered yet, 78 no usable office or registry.

    \b
    Example:
      echo "Ready for review." | postmaster send --to product-agent@council.internal \\
        --from orchestrator@council.internal --type council.evaluate --subject "Plan B" --correlation run-42
      postmaster send --to builder@lab.internal --from conductor@lab.internal --type job.run \\
        --subject "nightly build" --body "Please run it." --now --wait 600
    """
    ways = Ways(now, wait, wait_delivered)
    office.require()
    turn = _turn(office, ways, immediately=immediately)
    stage = None if turn is None or immediately else turn.stage
    if sender is None:
        if turn is None:
            raise UsageProblem("--from is needed: the address that you send from")
        sender = turn.address
    settings = load_settings(office)
    now_ns = time.time_ns()
    if correlation is None:
        correlation = composition.new_flow(now_ns) if turn is None else inside.thread_of(turn)
    draft = Draft(
        to=composition.recipients(list(to)),
        sender=sender,
        type=message_type,
        subject=subject,
        correlation_id=correlation,
        sent_at=times.timestamp(now_ns) if sent_at is None else sent_at,
        in_reply_to=reply_to,
        headers=composition.own_fields(list(headers)),
        body=_body(file, text, settings.max_message_bytes, allow_empty=allow_empty),
    )
    if not draft.to:
        raise UsageProblem("--to names nobody")

    with open_view(office) as registry:
        ways.watch_for(office, registry.find(sender), sender)
        try:
            submitted = submission.send(office, draft, registry, settings, may_repeat=sent_at is not None, stage=stage)
        except Refusal as refusal:
            return refuse(refusal, as_json)
    answer = submission.describe(office, submitted)
    return finish(office, submitted, answer, ways, as_json=as_json)


@click.command()
@click.option("--type", "message_type", metavar="TYPE", help="Default: the one type AGENT declares to send there.")
@click.option("--subject", metavar="TEXT", help="Default: `Re: ` and the subject that is answered.")
@click.option("--ack", is_flag=True, help="Acknowledge MSG once the answer is sent.")
@_with_options
@click.argument("words", metavar="AGENT MSG [FILE]", nargs=-1)
@click.pass_obj
def reply(
    office: Office,
    message_type: str | None,
    subject: str | None,
    ack: bool,
    text: str | None,
    allow_empty: bool,
    sent_at: str | None,
    headers: tuple[str, ...],
    now: bool,
    wait: float | None,
    wait_delivered: float | None,
    immediately: bool,
    as_json: bool,
    words: tuple[str, ...],
) -> int:
    """Answer message MSG of AGENT: to its sender, in its flow, from the address it reached AGENT under.

    MSG is a file name or the beginning of an id (`postmaster inbox AGENT` shows it), unread or read. Answering does not
    acknowledge: MSG stays unread until `ack`, or use --ack. The body is given as for `send`.

    In a turn AGENT may be left out: it is the agent whose turn it is; and MSG too, if the turn has one message. The
    answer leaves when the turn has succeeded, unless --immediately.

    Exit codes: 0 sent (with --now or --wait-delivered: delivered; with --wait: answered), 64 wrong use, 65 refused, or
    no such AGENT or MSG, 73 or 74 the disk refused, 75 sent but not delivered or not answered yet, 78 no usable office
    or registry.

    \b
    Example:
      postmaster reply council.product-agent 5d41402a --body "Approved." --ack
      postmaster reply product-agent@council.internal 5d41402a --type council.vote verdict.md --now
      postmaster reply --body "Done: in a turn, to the message that woke me."
    """
    ways = Ways(now, wait, wait_delivered)
    from postmaster.directory import readers, replying
    from postmaster.directory.replying import Answer

    office.require()
    turn = _turn(office, ways, immediately=immediately)
    stage = None if turn is None or immediately else turn.stage
    agent, msg, file = _answered(turn, words)
    if stage is not None and ack:
        raise UsageProblem("a turn that succeeds acknowledges its messages itself: leave --ack out")
    settings = load_settings(office)
    now_ns = time.time_ns()
    reader = readers.find_reader(office, agent)
    reader.require_live()
    replier = reader.agent
    with open_view(office) as registry:
        item = reading.find_message(office, replier, msg)
        body = _body(file, text, settings.max_message_bytes, allow_empty=allow_empty)
        said = Answer(body, message_type, subject, sent_at, composition.own_fields(list(headers)))
        draft = replying.draft(office, replier, item, said, registry, settings, now_ns)
        ways.watch_for(office, replier, draft.sender)
        try:
            submitted = submission.send(office, draft, registry, settings, may_repeat=sent_at is not None, stage=stage)
        except Refusal as refusal:
            return refuse(refusal, as_json)
    answer = submission.describe(office, submitted)
    answer["from"] = draft.sender
    answer["to"] = draft.to[0]

    def acknowledge() -> None:
        moved = acknowledging.move(office, replier, item, maildir.READ)
        answer["acknowledged"] = moved.path

    return finish(office, submitted, answer, ways, as_json=as_json, after=acknowledge if ack else None)


def _answered(turn: inside.Inside | None, words: tuple[str, ...]) -> tuple[str, str, str | None]:
    """Return AGENT, MSG and FILE; in a turn the first is known, and if it has one message the second too."""
    if turn is not None and not (len(words) > 1 and turn.is_called(words[0])):
        words = (turn.agent_id, *(words or (turn.the_message(),)))
    if not 2 <= len(words) <= 3:
        raise UsageProblem("say whose mail is answered, and which message: postmaster reply AGENT MSG [FILE]")
    return words[0], words[1], words[2] if len(words) > 2 else None


def _turn(office: Office, ways: Ways, *, immediately: bool) -> inside.Inside | None:
    """Return the turn that we run in; in one, mail that waits for its end cannot be waited for."""
    turn = inside.current(office, immediately=immediately)
    if turn is not None and not immediately and (ways.now or ways.answer is not None or ways.delivered is not None):
        raise UsageProblem(
            "mail of a turn leaves when the turn has succeeded: leave --now and --wait out (the answer wakes the "
            "agent), or use --immediately"
        )
    return turn


def _body(file: str | None, text: str | None, limit: int, *, allow_empty: bool) -> bytes:
    """Return the body from its one source; of a longer one as much as shows that it is too long."""
    if file is not None and text is not None:
        raise UsageProblem("give the body once: FILE, `-`, or --body TEXT")
    if text is not None:
        return os.fsencode(text)
    try:
        body = _read_body(file, limit)
    except (OSError, ValueError) as fault:
        where = "standard input" if file in (None, "-") else quoted(visible(file or ""))
        why = fault.strerror if isinstance(fault, OSError) else str(fault)
        raise BadData(f"{where}: cannot be read: {why}; nothing was sent") from fault
    if not body and not allow_empty:
        raise UsageProblem(
            "no body: give FILE, `-` for standard input, or --body TEXT (--allow-empty, or --body '', sends an empty "
            "body); nothing was sent"
        )
    return body


def _read_body(file: str | None, limit: int) -> bytes:
    if file is not None and file != "-":
        with open(file, "rb") as stream:
            return stream.read(limit + 1)
    if sys.stdin is None or (file is None and sys.stdin.isatty()):  # None: it is closed
        return b""
    return sys.stdin.buffer.read(limit + 1)
