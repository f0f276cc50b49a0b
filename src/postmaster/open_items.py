"""Letters that are in the outbox and in the log: deferred, or sent again. Pure: what the log's records say of them.

An open item begins with a `deferred` or `retried` line, or with that of a report of the office, and ends with the last
outcome of the letter, or when the letter is `withdrawn`: no longer in the outbox, though nobody was told why.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from hashlib import md5
from typing import Any, Final

from postmaster import address, reasons, reports

Record = dict[str, Any]

RETRIED: Final = "retried"
WITHDRAWN: Final = "withdrawn"
ALLOW_DUPLICATE: Final = "duplicate allowed"  # the detail of a `retried` line
_FINAL: Final = (reasons.DELIVERED, reasons.RELAYED, reasons.DEAD_LETTER, reasons.REJECTED)
_TEXT: Final = ("id", "correlation_id", "from", "type", "subject", "sent_at", "in_reply_to")


@dataclass(slots=True)
class OpenItem:
    """A letter that the log tells of and that is in the outbox still.

    Attributes:
        letter: the log fields that say which: its file and its text.
        sequence: its number, if a copy of it was delivered or refused before.
        pending: for every (recipient, agent id) still to be served: the reason and time (text) of the deferral.
        done: every (recipient, agent id) that was served since the item was opened.
        retried: it was sent again, to the pending recipients only.
        allow_duplicate: it was sent again with `--allow-duplicate`.
    """

    letter: Record
    sequence: int | None = None
    pending: dict[tuple[str, str], tuple[str, str]] = field(default_factory=dict)
    done: set[tuple[str, str]] = field(default_factory=set)
    retried: bool = False
    allow_duplicate: bool = False

    @property
    def is_report(self) -> bool:
        """Whether it says that it is the office's own."""
        return reports.is_reserved(self.letter.get("from", ""), self.letter.get("type", ""))

    def waits_for(self, recipient: str, agent_id: str | None) -> tuple[str, str] | None:
        """Return the deferral of this copy, if it is pending. An address means whoever has it now; a role does not."""
        for who in ((recipient, agent_id or ""), (recipient, "")):
            if who in self.pending:
                return self.pending[who]
        if recipient.startswith(address.ROLE) and agent_id is not None:
            return None
        return next((what for (waiting, _), what in self.pending.items() if waiting == recipient), None)

    def is_over_for(self, recipient: str, agent_id: str | None) -> bool:
        """Tell whether an earlier run has dealt with this copy. A recipient that was added since is not over."""
        if self.sequence is None or self.waits_for(recipient, agent_id) is not None:
            return False
        known = {to for to, _ in self.done} | {to for to, _ in self.pending}
        return self.retried or recipient in known or (agent_id or "-") in {agent for _, agent in self.done}

    def names_any(self, recipients: Iterable[str]) -> bool:
        """Tell whether one of `recipients` is pending."""
        waiting = {recipient for recipient, _ in self.pending}
        return any(recipient in waiting for recipient in recipients)

    def to_json(self) -> str:
        """Return the item as the index keeps it."""
        pending = [[*who, *what] for who, what in self.pending.items()]
        return json.dumps([self.letter, self.sequence, pending, sorted(self.done), self.retried, self.allow_duplicate])

    @classmethod
    def from_json(cls, text: str) -> "OpenItem":
        """Return the item that `to_json` wrote."""
        letter, sequence, pending, done, retried, allow = json.loads(text)
        waiting = {(to, agent): (reason, time) for to, agent, reason, time in pending}
        return cls(letter, sequence, waiting, {(to, agent) for to, agent in done}, retried, allow)


def follow(record: Record, open_items: dict[str, OpenItem]) -> None:
    """Take one more record of the log into `open_items`, which are kept by their `item_key`."""
    action = record["action"]
    if "file" not in record or (not open_items and action in _FINAL):
        return
    key = item_key(record["file"], letter_key(record))
    if action in (reasons.DEFERRED, RETRIED, *reports.ACTIONS):
        _open(record, key, open_items)
    elif action == WITHDRAWN:
        open_items.pop(key, None)
    elif action in _FINAL:
        # A letter that could not even be read has left after all.
        open_items.pop(item_key(record["file"], letter_key({})), None)
        if key in open_items:
            _serve(record, key, open_items)


def _open(record: Record, key: str, open_items: dict[str, OpenItem]) -> None:
    item = open_items.get(key)
    if item is None:
        letter: Record = {name: record[name] for name in ("file", *_TEXT) if name in record}
        item = open_items[key] = OpenItem(letter)
    if record["action"] == RETRIED:
        item.retried = True
        item.allow_duplicate = record.get("detail") == ALLOW_DUPLICATE
    if record["action"] in reports.ACTIONS:  # `agent`, `path` and `reason` are those of the mail that it is about
        item.pending[record.get("to", ""), ""] = ("", record["time"])
        return
    who = (record.get("to", ""), record.get("agent", ""))
    since = item.pending.get(who, ("", record["time"]))[1]
    item.pending[who] = (str(record.get("reason", "")), since)
    item.sequence = record.get("sequence", item.sequence)


def _serve(record: Record, key: str, open_items: dict[str, OpenItem]) -> None:
    item = open_items[key]
    recipient, agent_id = record.get("to", ""), record.get("agent", "")
    item.sequence = record.get("sequence", item.sequence)
    item.done.add((recipient, agent_id))
    everyone = not agent_id or not recipient.startswith(address.ROLE)  # else: this holder of the role
    for who in [one for one in item.pending if one[0] == recipient and (everyone or one[1] in ("", agent_id))]:
        del item.pending[who]
    if not item.pending:
        del open_items[key]


def letter_key(record: Record) -> bytes:
    """Return what two log lines about the same text from the same sender have in common."""
    get = record.get
    text = (
        f"{get('id', '')}\0{get('correlation_id', '')}\0{get('from', '')}\0{get('type', '')}\0{get('subject', '')}\0"
        f"{get('sent_at', '')}\0{get('in_reply_to', '')}"
    )
    return md5(text.encode("utf-8", "surrogatepass"), usedforsecurity=False).digest()


def item_key(file: str, key: bytes) -> str:
    """Return the name under which an open letter is kept: its file in the outbox and its text."""
    return f"{key.hex()} {file}"
