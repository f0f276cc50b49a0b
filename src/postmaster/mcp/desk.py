"""What the tools do, without the protocol: one agent's desk, which knows whose it is. Calls what the commands call."""

import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from postmaster import (
    acknowledging,
    composition,
    delivery_log,
    excerpts,
    maildir,
    message,
    reading,
    submission,
    times,
    waiting,
)
from postmaster.address import AGENT
from postmaster.composition import Draft
from postmaster.delivery_log import Record
from postmaster.directory import listing, open_view, passes, registration, replying, rule
from postmaster.directory.readers import find_reader
from postmaster.directory.replying import Answer
from postmaster.errors import BadData, PostmasterError, UsageProblem
from postmaster.office import Office, visible
from postmaster.parties import Agent
from postmaster.printable import quoted
from postmaster.registry import compiled, flows
from postmaster.settings import load_settings
from postmaster.submission import Submitted
from postmaster.tracking import Watch, describe_outcome
from postmaster.turns import inside, instances

LONGEST_WAIT: Final = 50  # seconds: clients give a call up after 60, as a rule
MOST_LINES: Final = 500  # of a flow
MOST_AGENTS: Final = 200
MOST_BODY: Final = 256 * 1024  # bytes of a message that one call gives

Data = dict[str, Any]


class Desk:
    """The desk of one agent, or of nobody yet. Safe to use from several threads.

    Args:
        say: told what went wrong besides; not for the agent.
    """

    def __init__(self, office: Office, say: Callable[[str], None]) -> None:
        self.office = office
        self._say = say
        self._id: str | None = None

    # -- whose it is

    def sit(self, name: str) -> Agent:
        """Take the place of an agent of the registry, or of a live instance.

        Raises:
            BadData: nobody has that name, it is archived, or a class whose instances serve a flow each.
        """
        reader = find_reader(self.office, name)
        reader.require_live()
        with open_view(self.office, write=False) as view:
            instances.require_one(instances.find(self.office, view, AGENT + reader.agent.id))
        self._id = reader.agent.id
        return reader.agent

    def me(self) -> Agent:
        """Return whose desk it is, as the registry has it now.

        Raises:
            BadData: nobody's, or its agent is gone.
        """
        if self._id is None:
            raise BadData(
                "you have no mailbox yet: call mail_register with your class first (mail_directory lists the classes), "
                "or let the server be started with `postmaster mcp --as ADDRESS`"
            )
        reader = find_reader(self.office, AGENT + self._id)
        reader.require_live()
        return reader.agent

    def unread(self) -> int:
        """Return how much unread mail there is; 0 where nobody can tell."""
        try:
            return len(maildir.messages(self.me().inbox, maildir.UNREAD))
        except (PostmasterError, OSError):
            return 0

    def register(self, class_: str, name: str | None, roles: Sequence[str]) -> Data:
        """Make a live instance of a class, and take its place. Raises as registration.register."""
        if self._id is not None:
            raise BadData(f"you are {self._id} already: one server is one agent; go on with mail_list")
        claim = registration.register(self.office, class_, name, roles)
        self._id = claim.id
        return listing.describe(self.office, claim)

    # -- sending

    def send(
        self, to: Sequence[str], kind: str, subject: str, body: str, flow: str | None, answers: str | None
    ) -> Data:
        """Send a message and route it. Raises Refusal, BadData: nothing was sent; and as routing does."""
        sender = self.me()
        turn = self._turn(sender)
        now_ns = time.time_ns()
        if flow is None:
            flow = composition.new_flow(now_ns) if turn is None else inside.thread_of(turn)
        draft = Draft(
            to=composition.recipients(list(to)),
            sender=sender.address,
            type=kind,
            subject=subject,
            correlation_id=flow,
            sent_at=times.timestamp(now_ns),
            in_reply_to=answers,
            body=_bytes(body),
        )
        if not draft.to:
            raise UsageProblem("`to` names nobody")
        settings = load_settings(self.office)
        with open_view(self.office) as view:
            stage = None if turn is None else turn.stage
            sent = submission.send(self.office, draft, view, settings, may_repeat=False, stage=stage)
        return self._sent(sent, routes=turn is None)

    def reply(self, name: str, body: str, kind: str | None, subject: str | None, *, acknowledge: bool) -> Data:
        """Answer a message of one's own and route the answer. Raises as `send`."""
        replier = self.me()
        turn = self._turn(replier)
        if turn is not None and acknowledge:
            raise UsageProblem("a turn that succeeds acknowledges its messages itself: leave `acknowledge` out")
        settings = load_settings(self.office)
        with open_view(self.office) as view:
            item = reading.find_message(self.office, replier, name)
            answer = Answer(_bytes(body), kind, subject)
            draft = replying.draft(self.office, replier, item, answer, view, settings, time.time_ns())
            stage = None if turn is None else turn.stage
            sent = submission.send(self.office, draft, view, settings, may_repeat=False, stage=stage)
        told = self._sent(sent, routes=turn is None)
        if acknowledge and told["state"] != "refused":
            told["acknowledged"] = acknowledging.move(self.office, replier, item, maildir.READ).file
        return told

    def _turn(self, sender: Agent) -> inside.Inside | None:
        """Return the turn that the server runs in, if it is one of this very agent."""
        turn = inside.current(self.office)
        return turn if turn is not None and turn.is_called(sender.id) else None

    def _sent(self, sent: Submitted, *, routes: bool) -> Data:
        told = {key: value for key, value in submission.describe(self.office, sent).items() if key != "office"}
        if not routes:
            return told | {"state": "leaves when this turn has succeeded", "outcomes": []}
        watch = Watch(self.office, [sent.file], sent.since, "")
        passes.route_now(self.office, self._say)
        return told | describe_outcome(watch.outcomes()[sent.file])

    # -- reading

    def list(self, limit: int, *, every: bool) -> Data:
        """Return the newest mail. Raises BadData: nobody's desk."""
        found = excerpts.mailbox(self.office, self.me(), limit, every=every)
        return {key: value for key, value in found.items() if key not in ("office", "inbox")}

    def read(self, name: str) -> Data:
        """Return one message with its body. It stays where it is. Raises BadData: no such message."""
        item, content = self._open(name)
        return {"folder": item.folder, "file": visible(item.name), **excerpts.describe_content(content)}

    def raw(self, name: str) -> str:
        """Return one message as it is; bytes that are not UTF-8 as escapes. Raises BadData: no such message."""
        return self._open(name)[1].raw.decode("utf-8", "backslashreplace")

    def _open(self, name: str) -> tuple[reading.Name, reading.Message]:
        agent = self.me()
        item = reading.find_message(self.office, agent, name)
        reading.path_of(self.office, agent, item)
        return reading.load_wherever(agent.inbox, item, MOST_BODY + message.HEAD_BYTES)

    def acknowledge(self, names: Sequence[str]) -> Data:
        """Move messages to read/; all or none if one is unknown. Raises BadData."""
        agent = self.me()
        items = {reading.find_message(self.office, agent, name): None for name in names}
        if not items:
            raise UsageProblem("`messages` names none")
        turn = inside.current(self.office, immediately=True)
        if turn is not None:
            turn.require_unfinished(agent.id, [item.name for item in items])
        moved = [acknowledging.move(self.office, agent, item, maildir.READ) for item in items]
        return {
            "messages": [{"file": one.file, "already": one.already, **excerpts.fields(one.message)} for one in moved]
        }

    def wait(self, seconds: float, answers: str | None) -> Data:
        """Wait for unread mail, or for the answer to a message of one's own; return the newest there is."""
        agent = self.me()
        folder = os.path.join(agent.inbox, maildir.UNREAD)
        passed_over: set[str] = set()

        def look() -> list[str] | None:
            names = maildir.messages(agent.inbox, maildir.UNREAD)
            if answers is None:
                return names or None
            for name in names:
                if name not in passed_over:
                    if self._answers(os.path.join(folder, name), answers):
                        return [name]
                    passed_over.add(name)
            return None

        found = waiting.wait_for(look, [folder], min(max(0.0, seconds), LONGEST_WAIT))
        listed = [reading.Name(maildir.UNREAD, name) for name in found or ()]
        newest = reading.newest(agent.inbox, listed, 20)
        return {"came": bool(newest), "messages": [excerpts.row(self.office, agent, item) for item in newest]}

    def _answers(self, path: str, message_id: str) -> bool:
        try:
            return (reading.load(path).text("in_reply_to") or "").casefold() == message_id.casefold()
        except (OSError, BadData):
            return False

    # -- the office

    def directory(self) -> Data:
        """Return who is alive, and the agents and classes of the registry with what they accept."""
        live = [
            {key: one[key] for key in ("id", "name", "address", "class", "roles", "unread", "since")}
            for one in listing.survey(self.office, every=False)["live"]
        ]
        agents = []
        with compiled.open_view(self.office, write=False) as registry:
            entries = list(registry.all_entries())
        for entry in entries[:MOST_AGENTS]:
            accepts = [{"type": one["type"], "from": list(one.get("accepts_from", ()))} for one in entry["accepts"]]
            about = {"id": entry["id"], "address": entry["address"], "roles": list(entry.get("roles", ()))}
            agents.append({**about, "is_class": bool(entry.get("instances")), "accepts": accepts})
        you = None if self._id is None else self.me().address
        return {"you": you, "live": live, "agents": agents, "hidden": max(0, len(entries) - MOST_AGENTS)}

    def flow(self, name: str) -> Data:
        """Return what the log says of a flow, oldest first. Raises BadData: it knows no such flow."""
        found = [_line(one) for one in delivery_log.records(self.office) if one.get("correlation_id") == name]
        if not found:
            raise BadData(f"the log knows no flow {quoted(name)}; the `correlation_id` of a message names its flow")
        return {"correlation_id": name, "lines": found[-MOST_LINES:], "hidden": max(0, len(found) - MOST_LINES)}

    def map(self) -> Data:
        """Return who may write what to whom (`postmaster registry flows --format json`)."""
        with compiled.open_view(self.office, write=False) as registry:
            return flows.to_json(list(registry.all_entries()))

    def rule(self, name: str | None) -> str:
        """Return the mail rule of an agent, one's own by default. Raises BadData: nobody has that name."""
        agent = self.me() if name is None else find_reader(self.office, name).agent
        with open_view(self.office, write=False) as view:
            return rule.render(rule.subject_of(agent, view.entry(agent.id) or {}), self.office.root)


def _line(record: Record) -> Data:
    keys = ("time", "action", "sequence", "id", "from", "to", "agent", "type", "subject", "reason", "detail", "path")
    return {key: record[key] for key in keys if record.get(key) is not None}


def _bytes(body: str) -> bytes:
    return body.encode("utf-8", "surrogateescape")
