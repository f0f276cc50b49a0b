"""Making a batch ready: numbers given, temporaries written, so that committing it is one rename.

Nothing here is visible to a receiver. What fails turns into a deferral of that copy and takes no number.
"""

import contextlib
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Protocol

from postmaster import accounts, address, durable, journal, message, reasons, refusals, remotes, times
from postmaster.commit import deferral, fault_reason
from postmaster.decide import Routes, decide
from postmaster.delivery_log import Record
from postmaster.history import History
from postmaster.journal import Entry, Publication
from postmaster.letter import Item
from postmaster.office import Office, visible
from postmaster.open_items import OpenItem
from postmaster.parties import Agent, RegistryView
from postmaster.registry.compiled import Roster
from postmaster.reports import Report
from postmaster.senders import Origin
from postmaster.settings import Settings
from postmaster.spool import Spool, already_there
from postmaster.verdict import Envelope, Verdict


class Reporter(Protocol):
    """Who writes the office's own mail: a layer, handed in by the command."""

    def on_refusal(
        self, item: Item, refused: Sequence[Record], registry: RegistryView, settings: Settings, now_ns: int
    ) -> Report | None:
        """Return the report of a letter that was refused, if its sender wants one. `refused`: its lines in the log."""

    def overdue(
        self, registry: RegistryView, history: History, settings: Settings, now_ns: int, problems: list[str]
    ) -> Iterator[Report]:
        """Yield the reports that are due for other reasons, each until `history` knows of it."""

    def close(self) -> None:
        """Note that all that was due is made."""


class Posting:
    """The making ready of batches in one pass.

    Args:
        writes: False for a dry run, which decides and numbers but touches nothing.
        reporter: who is asked for a report of refused mail.
    """

    def __init__(
        self,
        office: Office,
        settings: Settings,
        registry: Roster,
        history: History,
        *,
        writes: bool,
        reporter: Reporter | None = None,
    ) -> None:
        self._office = office
        self._settings = settings
        self._registry = registry
        self._senders = accounts.senders(registry, settings)
        self._relay = settings.relay(office)
        self._history = history
        self._writes = writes
        self._reporter = reporter
        self.spool = Spool(office, writes=writes)
        self._routes: Routes = {}
        self._first: dict[str, int] = {}  # of each flow: the highest number in the history
        self._numbers: dict[str, int] = {}  # the highest number with this batch
        self._now_ns = 0
        self._now = ""  # as the log writes it
        self.still_deferred = 0

    def begin(self, copies: int, now_ns: int) -> None:
        """Begin a batch of so many copies, at this time."""
        self._first.clear()
        self._numbers.clear()
        self._history.forget()
        self._now_ns = now_ns
        self._now = times.timestamp(now_ns)
        self.spool.begin(copies)
        self.still_deferred = 0

    def numbers_hold(self) -> bool:
        """Tell whether the history still ends where this batch's numbers began."""
        return all(self._history.highest(flow) == first for flow, first in self._first.items())

    # -- one letter --------------------------------------------------------------------------------------------

    def post(self, item: Item) -> Entry:
        """Make one letter ready."""
        known = self._history.open_item(item.record)
        if known is not None and item.envelope is not None and not known.names_any(item.envelope.to):
            known = None  # its `to` was changed in the outbox
        verdicts = self._verdicts(item, known)
        sequence = known.sequence if known is not None and known.sequence is not None else self._next(item)
        entry = Entry(item.source, journal.REMOVE)
        base = {**item.record, "time": self._now, "sequence": sequence}
        refused: list[tuple[Verdict, Record]] = []
        deferred: list[tuple[Verdict, Record]] = []
        for verdict in verdicts:
            record = self._record(base, verdict, item.notes)
            if verdict.reason is None:
                assert verdict.agent is not None
                fault = self._deliver(item, verdict.agent, sequence, record, entry, resumed=known)
                if fault is not None:
                    where = self._office.shown(fault.filename or verdict.agent.inbox)
                    verdict = replace(verdict, reason=fault_reason(fault), detail=f"{where}: {fault.strerror}")
            if verdict.action == reasons.DEFERRED:
                late = self._expired(verdict, known)
                if late is None:
                    deferred.append((verdict, record))
                    continue
                verdict = late
            if verdict.action in (reasons.DEAD_LETTER, reasons.REJECTED):
                refused.append((verdict, self._record(base, verdict, item.notes)))
        if refused:
            fault = self._refuse(item, refused, entry, keep=bool(deferred))
            if fault is not None:
                reason = "disk-full" if fault_reason(fault) == "disk-full" else "io-error"
                detail = f"{self._office.shown(fault.filename or self._office.dead_letter)}: {fault.strerror}"
                deferred.extend((replace(v, reason=reason, detail=detail), record) for v, record in refused)
            elif self._reporter is not None:
                lines = entry.records[-len(refused) :]
                report = self._reporter.on_refusal(item, lines, self._registry, self._settings, self._now_ns)
                if report is not None:
                    self._enclose(report, entry)
        if deferred:
            entry.ending = journal.KEEP
        self._put_off(entry, deferred, known)
        self._settle_number(item, sequence, entry, known)
        return entry

    def _origin(self, item: Item) -> Origin:
        """Return what the system knows of where a letter comes from."""
        folder = os.path.dirname(item.source.name)
        carrier = self._relay is not None and self._office.carrier_account() == item.owner
        return Origin(item.owner, bool(item.mode & stat.S_IWOTH), folder or None, carrier)

    def _verdicts(self, item: Item, known: OpenItem | None) -> list[Verdict]:
        if item.refusal is not None:
            reason, detail = item.refusal
            return [Verdict(item.record.get("to", ""), None, reason, detail)]
        assert item.envelope is not None
        allow = known is not None and known.allow_duplicate
        senders, origin = self._senders, self._origin(item) if self._senders is not None else None
        brought_by = remotes.stated(os.path.basename(item.source.name)) if self._relay is not None else None

        def decided(envelope: Envelope) -> list[Verdict]:
            return decide(
                envelope,
                self._registry,
                self._history,
                allow_duplicate=allow,
                known=self._routes,
                senders=senders,
                origin=origin,
                relay=self._relay,
                brought_by=brought_by,
            )

        if known is None or known.sequence is None:
            return decided(item.envelope)
        # Only those who are not served yet: another recipient of the same agent must not stand in their place.
        to = tuple(one for one in item.envelope.to if known.names_any([one]) or not known.is_over_for(one, None))
        envelope = replace(item.envelope, to=to)
        verdicts = decided(envelope)
        found = {verdict.recipient for verdict in verdicts}
        open_ = [v for v in verdicts if not known.is_over_for(v.recipient, v.agent.id if v.agent else None)]
        doubled = [
            Verdict(one, None, "duplicate", "its agent is reached by another recipient of this message")
            for one in to
            if one not in found
        ]
        return open_ + doubled + _unreached(verdicts, known)

    def _record(self, base: Record, verdict: Verdict, notes: str | None) -> Record:
        status = reasons.DELIVERED_STATUS if verdict.reason is None else reasons.REASONS[verdict.reason].status
        details = [text for text in (verdict.detail, notes) if text]
        return {
            **base,
            "action": verdict.action,
            "to": verdict.recipient or None,
            "agent": verdict.agent.id if verdict.agent else None,
            "reason": verdict.reason,
            "status": status,
            "detail": "; ".join(details) or None,
        }

    # -- numbers -----------------------------------------------------------------------------------------------

    def _next(self, item: Item) -> int | None:
        flow = item.record.get("correlation_id")
        if flow is None:
            return None
        if flow not in self._numbers:
            self._numbers[flow] = self._first[flow] = self._history.highest(flow)
        return self._numbers[flow] + 1

    def _settle_number(self, item: Item, sequence: int | None, entry: Entry, known: OpenItem | None) -> None:
        """Use the number up if any copy left the outbox; a letter that only waits has none yet."""
        if sequence is None or (known is not None and known.sequence is not None):
            return
        if any(record["action"] != reasons.DEFERRED for record in entry.records):
            self._numbers[item.record["correlation_id"]] = sequence
            return
        for record in entry.records:
            record.pop("sequence", None)

    # -- delivering --------------------------------------------------------------------------------------------

    def _deliver(
        self,
        item: Item,
        agent: Agent,
        sequence: int | None,
        record: Record,
        entry: Entry,
        *,
        resumed: OpenItem | None,
    ) -> OSError | None:
        """Write the copy for one agent; return the fault that puts it off."""
        mailbox = self.spool.mailbox(agent.inbox)
        if mailbox.fault is not None:
            return mailbox.fault
        assert item.header is not None and item.envelope is not None and sequence is not None
        content = message.compose(item.header, item.envelope.id, sequence, memoryview(item.raw)[item.body :])
        stem = f"{times.compact_time(item.time_ns)}-{sequence:06d}-{item.envelope.id}.md"
        try:
            there = already_there(agent.inbox, stem, content) if _was_cut_off(resumed, record, agent) else None
            if there is not None:
                record["path"] = self._office.shown(there)
                entry.records.append(record)
                return None
            target = self.spool.free(mailbox.unread, stem)
            temporary = self.spool.write(mailbox.tmp, content)
        except OSError as failed:
            return failed
        record["path"] = mailbox.shown + target[len(mailbox.unread) :]
        entry.records.append(record)
        if temporary is not None:
            entry.publications.append(Publication(temporary, target, agent.id, [len(entry.records) - 1]))
        self._history.expect(item.envelope, agent.id, record["path"])
        return None

    # -- refusing ----------------------------------------------------------------------------------------------

    def _refuse(self, item: Item, refused: list[tuple[Verdict, Record]], entry: Entry, *, keep: bool) -> OSError | None:
        """Make the dead letter ready: moved there at the end, or copied if the letter stays for another recipient."""
        dead = self._office.dead_letter
        lines = list(range(len(entry.records), len(entry.records) + len(refused)))
        try:
            own_name = os.path.basename(item.source.name)
            target, reason_target = refusals.pair(dead, refusals.free_pair(dead, own_name, self.spool.names))
            self.spool.names.update((target, reason_target))
            records = [{**record, "path": self._office.shown(target)} for _, record in refused]
            if self._writes:
                private = self._office.private  # on the disk of dead-letter/: no need to look through all of that
                copied = self.spool.write(private, item.raw) if keep else None
                if copied is not None and self._senders is not None and os.geteuid() == 0:
                    with contextlib.suppress(OSError):  # so that it can be sent again in its sender's name
                        os.chown(copied.path, item.owner, -1, follow_symlinks=False)
                reason = self.spool.write(private, refusals.reason_file(records))
                if not keep and item.regular and (self.spool.one_by_one or not durable.HAS_SYNCFS):
                    durable.sync_file(os.path.join(self._office.outbox, item.source.name))
                for temporary, path in ((copied, target), (reason, reason_target)):
                    if temporary is not None:
                        entry.publications.append(Publication(temporary, path, None, lines))
        except OSError as fault:
            return fault
        entry.records.extend(records)
        if not keep:
            entry.ending, entry.moved_to = journal.MOVE, target
            self.spool.moved.append(target)
        return None

    # -- the office's own mail ---------------------------------------------------------------------------------

    def report(self, report: Report) -> Entry:
        """Make a report ready that goes with no letter. Raises OSError."""
        entry = Entry(journal.NOWHERE, journal.KEEP)
        self._enclose(report, entry)
        return entry

    def _enclose(self, report: Report, entry: Entry) -> None:
        """Add a report to an entry: with it, it will be in the outbox and in the log, or not at all. Raises OSError."""
        target = self.spool.free(self._office.outbox, report.file)
        file = visible(os.path.basename(target))
        entry.records.append({**report.record, "time": self._now, "file": file})
        temporary = self.spool.write(self._office.private, report.content)
        if temporary is not None:
            entry.publications.append(Publication(temporary, target, journal.OUTBOX, [len(entry.records) - 1]))

    # -- putting off -------------------------------------------------------------------------------------------

    def _expired(self, verdict: Verdict, known: OpenItem | None) -> Verdict | None:
        """Return the verdict `expired` if this copy has waited too long."""
        waiting = known.waits_for(verdict.recipient, verdict.agent.id if verdict.agent else None) if known else None
        if waiting is None:
            return None
        since = times.parse_time(waiting[1])
        if self._now_ns - since < self._settings.expire_after_seconds * 10**9:
            return None
        return replace(verdict, reason="expired", detail=f"waiting since {waiting[1]}: {verdict.detail}")

    def _put_off(self, entry: Entry, deferred: list[tuple[Verdict, Record]], known: OpenItem | None) -> None:
        """Record deferrals; one that the log already tells of, for the same reason, is only counted."""
        for verdict, record in deferred:
            self.still_deferred += 1
            assert verdict.reason is not None
            waiting = known.waits_for(verdict.recipient, verdict.agent.id if verdict.agent else None) if known else None
            if waiting is None or waiting[0] != verdict.reason:
                entry.records.append(deferral(record, verdict.reason, verdict.detail or ""))


def _unreached(verdicts: list[Verdict], known: OpenItem) -> list[Verdict]:
    """Return a refusal for every agent whose copy is pending, but whom its role no longer names."""
    reached = {verdict.agent.id for verdict in verdicts if verdict.agent is not None}
    refused = {verdict.recipient for verdict in verdicts if verdict.agent is None}
    return [
        Verdict(recipient, Agent(agent_id, "", "", ()), "unknown-recipient", f"{recipient} is no longer {agent_id}")
        for recipient, agent_id in known.pending
        if recipient.startswith(address.ROLE) and agent_id and agent_id not in reached and recipient not in refused
    ]


def _was_cut_off(resumed: OpenItem | None, record: Record, agent: Agent) -> bool:
    """Tell whether a copy with this number may be in the mailbox: it was deferred when it had its number."""
    if resumed is None or resumed.sequence is None:
        return False
    waiting = resumed.waits_for(record["to"], agent.id)
    return waiting is not None and reasons.action_of(waiting[0]) == reasons.DEFERRED
