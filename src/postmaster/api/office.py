"""An office in use: what the commands do, for programs."""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence

from postmaster import (
    acknowledging,
    composition,
    delivery_log,
    maildir,
    message,
    office,
    outbox,
    parties,
    reading,
    reports,
    setup,
    submission,
    times,
)
from postmaster.api import forms, given
from postmaster.api.forms import Agent, LogLine, Mail, Merged, Message, Routed, Sent
from postmaster.api.given import Path
from postmaster.composition import Draft
from postmaster.directory import merging, open_view, passes, replying, selection
from postmaster.directory.readers import find_reader
from postmaster.errors import BadData, CannotCreate, DiskFault, UsageProblem
from postmaster.registry import source
from postmaster.settings import load_settings
from postmaster.turns import inside


class Office:
    """A post office in use. It keeps nothing open and nothing in memory, so it may be used from several threads.

    Agents are named by id, address or alias, or by the name of a live instance; messages by file name, or by the
    beginning of an id (4 characters or more) that only one message has. An `Agent` or a `Mail` will do as well.

    Every method raises a PostmasterError if it cannot do what it says: ConfigurationFault (no office, or its registry
    or settings cannot be used), BadData (what was given is refused), UsageProblem (it is of a wrong type), DiskFault or
    CannotCreate (the disk refuses).

    Args:
        root: its directory. Default: $POSTMASTER_ROOT, else ~/.dna/post-office.

    Raises:
        ConfigurationFault: there is no office. `Office.init` makes one.
        UsageProblem: `root` is empty, or no path.
    """

    def __init__(self, root: Path | None = None) -> None:
        self._places = _places(root)
        self._places.require()
        outbox.survive_lease_breaks()  # in the main thread, if this is it

    @classmethod
    def init(cls, root: Path | None = None) -> "Office":
        """Make an office, or what is missing of one, and return it."""
        with _told():
            setup.make_office(_places(root))
        return cls(root)

    def __repr__(self) -> str:
        return f"Office({self.root!r})"

    @property
    def root(self) -> str:
        """Its directory, as an absolute path."""
        return self._places.root

    # -- who there is

    def merge(self) -> Merged:
        """Put the declarations in registry.d/ into effect (`postmaster registry merge`).

        Raises:
            ConfigurationFault: there are problems, which it lists; the registry is as it was.
            CannotCreate: an inbox is missing or cannot be made; what could be merged is.
        """
        with self._open():
            report = merging.merge(self._places)
        if report.problems:
            raise source.fault(f"problems in {self._places.declarations} ({len(report.problems)}):", report.problems)
        if report.failures:
            raise CannotCreate("\n".join(report.failures))
        moved = [one.id for one in report.moved]
        changed = tuple(dict.fromkeys([*moved, *report.changed]))
        return Merged(report.added, changed, report.removed, report.warnings)

    def agents(self) -> list[Agent]:
        """Return the agents of the registry, then the live instances, in the order of the ids."""
        with self._open(), open_view(self._places, write=False) as view:
            return [forms.agent(one) for one in view.all_agents()]

    def agent(self, name: str | Agent) -> Agent:
        """Return one agent. Raises BadData: nobody has that name; says who may have been meant."""
        with self._open():
            return forms.agent(find_reader(self._places, given.agent(name)).agent)

    # -- sending

    def send(
        self,
        body: str | bytes,
        *,
        sender: str | Agent,
        to: str | Agent | Sequence[str | Agent],
        type: str,
        subject: str,
        correlation_id: str | None = None,
        in_reply_to: str | None = None,
        sent_at: str | None = None,
        header: Mapping[str, str] | None = None,
    ) -> Sent:
        """Put a message in the outbox, once it is there durably; `route` delivers it.

        Args:
            correlation_id: the flow it belongs to. Default: a new one.
            sent_at: RFC 3339. Default: now. The same message with the same time is a duplicate.
            header: fields of your own.

        Raises:
            Refusal: a recipient would not get it (`refused` says which, and why); nothing was sent.
            BadData: it can be no message; nothing was sent.
        """
        with self._open():
            now_ns = time.time_ns()
            flow, moment = given.optional("correlation_id", correlation_id), given.moment("sent_at", sent_at)
            draft = Draft(
                to=composition.recipients(given.addresses(to)),
                sender=given.address("sender", sender),
                type=given.text("type", type),
                subject=given.text("subject", subject),
                correlation_id=composition.new_flow(now_ns) if flow is None else flow,
                sent_at=times.timestamp(now_ns) if moment is None else moment,
                in_reply_to=given.optional("in_reply_to", in_reply_to),
                headers=composition.own_header(given.header(header)),
                body=given.body(body),
            )
            if not draft.to:
                raise UsageProblem("`to` names nobody")
            return self._submit(draft, may_repeat=sent_at is not None)

    def reply(
        self,
        agent: str | Agent,
        message: str | Mail,
        body: str | bytes,
        *,
        type: str | None = None,
        subject: str | None = None,
        header: Mapping[str, str] | None = None,
    ) -> Sent:
        """Answer a message in an agent's mailbox: to its sender, in its flow. It stays unread until `ack`.

        Args:
            type: may be left out if the agent declares to send one type only to the sender.
            subject: default: that of the message, after `Re: `.

        Raises:
            Refusal, BadData: as `send`, or it cannot be answered.
        """
        with self._open():
            who = self._live(agent)
            own = composition.own_header(given.header(header))
            kind, about = given.optional("type", type), given.optional("subject", subject)
            answer = replying.Answer(given.body(body), kind, about, headers=own)
            settings = load_settings(self._places)
            with open_view(self._places) as view:
                item = reading.find_message(self._places, who, given.message(message))
                draft = replying.draft(self._places, who, item, answer, view, settings, time.time_ns())
            return self._submit(draft, may_repeat=False)

    def _submit(self, draft: Draft, *, may_repeat: bool) -> Sent:
        turn = inside.current(self._places)  # in a turn it leaves when the turn has succeeded
        settings = load_settings(self._places)
        with open_view(self._places) as view:
            stage = None if turn is None else turn.stage
            sent = submission.send(self._places, draft, view, settings, may_repeat=may_repeat, stage=stage)
        return Sent(sent.id, sent.correlation_id, sent.file)

    def route(self, *, wait: bool = True) -> Routed:
        """Route what is in the outbox, and nudge who has mail.

        Args:
            wait: wait for a router that is at work; else leave the mail to it.
        """
        lines: list[LogLine] = []
        said: list[str] = []
        with self._open():
            report, _ = passes.route_and_nudge(self._places, said.append, wait=wait, on_record=lines.append)
        return Routed(report.busy, tuple(lines), report.deferred, (*report.problems, *said))

    # -- reading

    def inbox(self, agent: str | Agent, *, every: bool = False) -> list[Mail]:
        """Return an agent's unread mail, oldest first; with `every` what was read too. Changes nothing."""
        with self._open():
            who = find_reader(self._places, given.agent(agent)).agent
            found = reading.mail(who.inbox)
            listed = [item for item in found if every or item.folder == maildir.UNREAD]
            return [self._mail(who, item) for item in reversed(reading.newest(who.inbox, listed, 0))]

    def wait(self, agent: str | Agent, seconds: float) -> bool:
        """Wait until an agent has unread mail; tell whether it has. At once if there is some."""
        with self._open():
            return reading.wait_for_mail(self._live(agent).inbox, given.seconds(seconds))

    def read(self, agent: str | Agent, message: str | Mail) -> Message:
        """Return a message, body and all. It stays where it is.

        Raises:
            BadData: there is no such message, or it is larger than any that this office carries.
        """
        with self._open():
            who = find_reader(self._places, given.agent(agent)).agent
            item = reading.find_message(self._places, who, given.message(message))
            path = reading.path_of(self._places, who, item)
            item, content = reading.load_wherever(
                who.inbox, item, load_settings(self._places).max_message_bytes + _ROOM
            )
            problem = content.problem or ("it is too large" if content.size > len(content.raw) else None)
            if problem is not None:
                raise BadData(f"{self._places.shown(path)}: it cannot be read as a message: {problem}")
            return forms.message(who, item, content)

    def ack(self, agent: str | Agent, *messages: str | Mail) -> None:
        """Acknowledge mail: move it to read/. Done again, it changes nothing. If one is unknown, none is moved."""
        self._move(agent, messages, maildir.READ)

    def unread(self, agent: str | Agent, *messages: str | Mail) -> None:
        """Take an acknowledgement back: move messages to unread/."""
        self._move(agent, messages, maildir.UNREAD)

    def _move(self, agent: str | Agent, messages: Sequence[str | Mail], folder: str) -> None:
        with self._open():
            who = self._live(agent)
            items = [reading.find_message(self._places, who, given.message(one)) for one in messages]
            turn = inside.current(self._places, immediately=True)
            if turn is not None and folder == maildir.READ:
                turn.require_unfinished(who.id, [item.name for item in items])
            for item in items:
                acknowledging.move(self._places, who, item, folder)

    # -- what happened

    def log(
        self,
        *,
        correlation_id: str | None = None,
        agent: str | Agent | None = None,
        action: str | None = None,
        id: str | None = None,
    ) -> Iterator[LogLine]:
        """Return the lines of the delivery log, rotated logs included, oldest first (docs/formats/delivery-log.md).

        A name or an action that nothing has is no fault: no line is about it.

        Args:
            correlation_id, agent, action: only lines of this flow, about mail of this agent, with this action.
            id: only messages whose id begins so.
        """
        with self._open():
            who = None if agent is None else given.agent(agent)
            asked = {
                "correlation_id": given.optional("correlation_id", correlation_id),
                "action": given.optional("action", action),
            }
            wanted = selection.wanted(self._places, asked, id_prefix=given.optional("id", id), agent=who)
        return self._lines(wanted)

    def _lines(self, wanted: selection.Wanted) -> Iterator[LogLine]:
        with _told():
            yield from (record for record in delivery_log.records(self._places) if wanted(record))

    @contextlib.contextmanager
    def _open(self) -> Iterator[None]:
        """Work in an office that is still there, and tell what the system refuses."""
        with _told():
            self._places.require()
            yield

    def _live(self, agent: str | Agent) -> parties.Agent:
        reader = find_reader(self._places, given.agent(agent))
        reader.require_live()
        return reader.agent

    def _mail(self, who: parties.Agent, item: reading.Name) -> Mail:
        problem = None if item.kind is None else f"it is {item.kind}, not a message"
        if problem is None:
            try:
                return forms.mail(who, *reading.load_wherever(who.inbox, item, 0))
            except (OSError, BadData) as fault:
                problem = str(fault)
        return forms.mail(who, item, reading.Message(b"", 0, problem=problem))


_ROOM = message.HEAD_BYTES + reports.ROOM  # what a message may have besides what its sender wrote


def _places(root: Path | None) -> office.Office:
    return office.Office(office.find_root(given.root(root)))


@contextlib.contextmanager
def _told() -> Iterator[None]:
    """Make of what the system refuses one of our errors."""
    try:
        yield
    except OSError as fault:
        raise DiskFault(f"{fault.filename or 'system'}: {fault.strerror or fault}") from fault
