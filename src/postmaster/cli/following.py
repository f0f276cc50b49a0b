"""What `send` and `reply` do and say once a message is checked: refusals, routing, waiting, answers."""

import os
from collections.abc import Callable
from typing import Any

import click

from postmaster import excerpts, message, reading
from postmaster.cli import inbox as mailbox
from postmaster.cli.answers import echo_json
from postmaster.cli.app import printable, say
from postmaster.directory.passes import route_now
from postmaster.errors import BadData, PostmasterError, UsageProblem
from postmaster.office import Office, visible
from postmaster.parties import Agent
from postmaster.printable import quoted
from postmaster.settings import load_settings
from postmaster.submission import Refusal, Submitted
from postmaster.tracking import AnswerWatch, Watch, describe_outcome, explain


def refuse(refusal: Refusal, as_json: bool) -> int:
    """Say why a message was not sent; return the exit code."""
    if as_json:
        echo_json({"state": "refused", "sent": False, "refused": refusal.refused})
    say(str(refusal))
    return refusal.exit_code


class Ways:
    """How long a message is followed after it was sent, and to what end."""

    def __init__(self, now: bool, answer: float | None, delivered: float | None) -> None:
        if answer is not None and delivered is not None:
            raise UsageProblem("--wait and --wait-delivered exclude each other: an answered message was delivered")
        self.now = now
        self.answer = answer
        self.delivered = delivered
        self.desk: AnswerWatch | None = None

    def watch_for(self, office: Office, asks: Agent | None, sender: str) -> None:
        """Prepare to see the answer; before the message is sent."""
        if self.answer is None:
            return
        if asks is None:
            raise BadData(
                f"nobody has the address {quoted(sender)}, so there is no inbox to wait at; send without --wait, or "
                "from an address of the registry; nothing was sent"
            )
        self.desk = AnswerWatch(office, asks)


def finish(
    office: Office,
    submitted: Submitted,
    answer: dict[str, Any],
    ways: Ways,
    *,
    as_json: bool,
    after: Callable[[], None] | None = None,
) -> int:
    """Route or wait if asked to, acknowledge, and say what became of the message; return the exit code."""
    code = 0
    left_to_do = [after] if after is not None else []

    def acknowledge() -> None:
        if left_to_do:
            left_to_do.pop()()

    try:
        watch = Watch(office, [submitted.file], submitted.since, "")
        if ways.now:
            route_now(office, say)
        if ways.desk is not None:
            code = _await_answer(office, submitted, answer, ways, watch, acknowledge)
        elif ways.now or ways.delivered is not None:
            outcome = watch.wait(ways.delivered or 0)[submitted.file]
            answer |= describe_outcome(outcome)
            code = outcome.exit_code
        if code != BadData.exit_code:
            acknowledge()
    except (PostmasterError, OSError, KeyboardInterrupt):
        _print(answer, as_json)  # it is sent, whatever went wrong since
        raise
    _print(answer, as_json)
    if ways.desk is not None and code != 0:
        say(f"{submitted.id}: {_no_answer(answer, ways.answer or 0, ways.desk.agent)}")
    elif code == 75:
        say(f"{submitted.path}: {explain(answer['state'])}")
    return code


def _await_answer(
    office: Office,
    submitted: Submitted,
    answer: dict[str, Any],
    ways: Ways,
    watch: Watch,
    on_delivered: Callable[[], None],
) -> int:
    """Wait for the answer and put it into `answer`; return the exit code."""
    assert ways.desk is not None
    agent = ways.desk.agent
    item, outcome = ways.desk.wait(
        watch, submitted.id, submitted.correlation_id, ways.answer or 0, on_delivered=on_delivered
    )
    answer |= describe_outcome(outcome)
    if item is None:
        answer["answerable"] = not outcome.unanswerable
        return 65 if outcome.unanswerable and outcome.over else 75
    limit = load_settings(office).max_message_bytes + message.HEAD_BYTES
    item, content = reading.load_wherever(agent.inbox, item, limit)
    answer["state"] = "answered"
    answer["answer"] = {"agent": agent.id, "folder": item.folder, "file": visible(item.name)}
    path = os.path.join(agent.inbox, item.folder, item.name)
    answer["answer"] |= {"path": office.shown(path), **excerpts.describe_content(content)}
    answer["answer_lines"] = mailbox.content_lines(content)
    return 0


def _no_answer(answer: dict[str, Any], seconds: float, agent: Agent) -> str:
    """Say why there is no answer."""
    if answer["state"] == "refused" and not answer["answerable"]:
        return "refused, so no answer can come; `postmaster dead-letter list` has it"
    if answer["state"] == "gone":
        return f"no answer can come: {explain('gone')}"
    state = "" if answer["state"] in ("delivered", "refused") else f"{explain(answer['state'])}; "
    return f"{state}no answer within {seconds:g} seconds; when it comes it is unread mail of {agent.id}"


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
    answered = answer.pop("answer_lines", [])
    if as_json:
        echo_json(answer)
    else:
        shown = ["", answer["answer"]["path"], *answered] if "answer" in answer else []
        click.echo("\n".join([*lines(answer), *shown]))
