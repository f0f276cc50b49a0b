"""What each page says, as plain data for its template. Nothing here changes the office."""

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from postmaster import excerpts, message, reading, reasons, reports
from postmaster.errors import BadData
from postmaster.office import visible
from postmaster.screen import bodies, links
from postmaster.screen.log_index import searched
from postmaster.screen.office_view import Box, OfficeView
from postmaster.screen.seen import Seen
from postmaster.screen.threads import thread_of
from postmaster.settings import load_settings

PAGE: Final = 50
_NOBODY: Final = "No such mailbox. It may have been renamed; the list on the left has all there are."
Data = dict[str, Any]


class NotThere(Exception):
    """There is nothing under this address; says what to do."""


@dataclass(frozen=True, slots=True)
class Query:
    """What an address says besides its path. `page` and `part` are from 1."""

    q: str = ""
    page: int = 1
    part: int = 1
    reason: str = ""
    form: str = ""


@dataclass(slots=True)
class Paged:
    """One page of a list: its items, where it is in the whole, and the addresses of its neighbours."""

    items: Sequence[Any]
    first: int
    total: int
    newer: str | None = None
    older: str | None = None
    rows: list[Data] = field(default_factory=list)


def paged(found: Sequence[Any], page: int, link: Callable[[int], str]) -> Paged:
    """Return page `page` of what was found; the last one if there are fewer."""
    last = max(1, -(-len(found) // PAGE))
    page = min(max(1, page), last)
    start = (page - 1) * PAGE
    return Paged(
        found[start : start + PAGE],
        start + 1 if found else 0,
        len(found),
        link(page - 1) if page > 1 else None,
        link(page + 1) if page < last else None,
    )


class Views:
    """The pages of one office."""

    def __init__(self, view: OfficeView, seen: Seen) -> None:
        self.view = view
        self.seen = seen

    # -- the left pane

    def sidebar(self, current: str) -> Data:
        """Return the pane of the mailboxes. `current` is the address of what is selected in it."""
        self.view.index.refresh()
        index = self.view.index
        rows = []
        for box in self.view.boxes():
            agent = box.agent
            rows.append(
                {
                    "id": agent.id,
                    "address": agent.address,
                    "roles": agent.roles,
                    "kind": box.kind,
                    "since": box.since,
                    "state": self.view.state(box),
                    "unread": self.view.listings.unread(agent.inbox),
                    "last_read": index.last_read.get(agent.id),
                    "returned": index.returned[agent.id],
                    "href": links.box(agent.id),
                }
            )
        waiting = self.view.waiting()
        dead = Counter(one.text("reason") or "unknown" for one in self.view.dead())
        problems = [self.view.problem, self.seen.problem, *index.problems]
        return {
            "boxes": [row for row in rows if row["kind"] != "archived"],
            "archived": [row for row in rows if row["kind"] == "archived"],
            "waiting": None if waiting is None else len(waiting),
            "dead": [(reason, number, links.dead(reason=reason)) for reason, number in sorted(dead.items())],
            "dead_total": dead.total(),
            "flows": len(index.flows),
            "problems": [problem for problem in problems if problem],
            "current": current,
            "office": self.view.office.root,
        }

    # -- a mailbox

    def find_box(self, agent_id: str) -> Box:
        """Return a mailbox. Raises NotThere."""
        box = self.view.box(agent_id)
        if box is None:
            raise NotThere(_NOBODY)
        return box

    def mailbox(self, box: Box, query: Query) -> Data:
        """Return one page of a mailbox's mail, newest first: what matches the search."""
        agent = box.agent
        try:
            mail = self.view.listings.mail(agent.inbox)
        except OSError as fault:
            raise NotThere(f"{self.view.office.shown(agent.inbox)}: {fault.strerror}") from fault
        found: Sequence[reading.Name] = mail.items
        if words := query.q.casefold().split():
            known = self.view.index.texts.setdefault(box.agent.id, {})
            texts = ((item, known.get(item.name) or self._learn(box, item, known)) for item in found)
            found = [item for item, text in texts if all(word in text for word in words)]
        page = paged(found, query.page, lambda number: links.box(agent.id, query.q, number))
        seen = self.seen.which(agent.id, [visible(item.name) for item in page.items])
        for item in page.items:
            row = self.view.listings.row(agent, item)
            name = visible(item.name)
            page.rows.append(
                {
                    **row,
                    "name": name,
                    "unread": item.folder == "unread" and box.kind != "archived",
                    "seen": name in seen,
                    "href": links.message(agent.id, name, query.q, query.page),
                }
            )
        return {
            "kind": "mail",
            "title": agent.id,
            "about": agent.address,
            "box": box,
            "unread": mail.unread,
            "page": page,
            "q": query.q,
            "action": links.box(agent.id),
        }

    def _learn(self, box: Box, item: reading.Name, known: dict[str, str]) -> str:
        """Return what a search looks through, of a message that the log does not tell of, and note it."""
        return known.setdefault(item.name, searched(self.view.listings.row(box.agent, item)))

    def message(self, box: Box, name: str, query: Query, *, mark: bool) -> Data:
        """Return one message of a mailbox with its whole flow. With `mark` it is seen from now on."""
        item = self.view.listings.mail(box.agent.inbox).find(name)
        if item is None:
            raise NotThere("No such message in this mailbox. It may have been moved away; the list has all there are.")
        if item.kind is not None:
            raise NotThere(f"This is {item.kind}, not a message; it is not opened.")
        try:
            item, content = reading.load_wherever(box.agent.inbox, item, self._limit())
        except (OSError, BadData) as fault:
            raise NotThere(f"It cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
        if mark:
            self.seen.add(box.agent.id, name)
        described = excerpts.describe_content(content)
        flow, number = content.text("correlation_id"), content.sequence
        return {
            **self._content(described, query),
            "path": self.view.office.shown(os.path.join(box.agent.inbox, item.folder, item.name)),
            "folder": item.folder,
            "as_text": links.message(box.agent.id, name, query.q, query.page, "text"),
            "as_markdown": links.message(box.agent.id, name, query.q, query.page),
            "flow": thread_of(self.view, flow, query.part, at=number) if flow else None,
        }

    def _limit(self) -> int:
        return min(load_settings(self.view.office).max_message_bytes, bodies.MOST_SHOWN) + message.HEAD_BYTES

    def _content(self, described: Data, query: Query) -> Data:
        """Return a message's header and body for the page. `described` is excerpts.describe_content's."""
        body, problem = described.get("body"), described.get("problem")
        binary = body is None
        if body is None:
            import base64

            body = base64.b64decode(described["body_base64"]).decode("utf-8", "backslashreplace")
        cut = described["cut"] or len(body) > bodies.MOST_SHOWN
        body = body[: bodies.MOST_SHOWN]
        header = described["header"]
        ours = reports.is_reserved(str(header.get("from")), str(header.get("type")))  # in a form of its own
        large = cut or len(body) > bodies.MOST_MARKDOWN
        plain = binary or large or ours or problem is not None or query.form == "text"
        return {
            "title": header.get("subject") or "(no subject)",
            "header": [(key, value if isinstance(value, str) else _listed(value)) for key, value in header.items()],
            "problem": problem,
            "body": bodies.as_text(body) if plain else bodies.as_markdown(body),
            "plain": plain,
            "asked_plain": query.form == "text",
            "cut": cut,
            "size": described["size"],
        }

    # -- the outbox, the dead letters, the flows

    def outbox(self, query: Query) -> Data:
        """Return what waits in the outbox."""
        names = self.view.waiting()
        found = [visible(name) for name in names or () if query.q.casefold() in visible(name).casefold()]
        page = paged(found, query.page, lambda number: f"/outbox?page={number}")
        page.rows = [{"name": name, "subject": name, "href": links.outbox(name)} for name in found and page.items]
        about = "closed to this account" if names is None else "not yet routed"
        return {"kind": "outbox", "title": "Outbox", "about": about, "page": page, "q": query.q, "action": "/outbox"}

    def waiting_letter(self, name: str, query: Query, *, mark: bool) -> Data:
        """Return a letter in the outbox."""
        found = next((one for one in self.view.waiting() or () if visible(one) == name), None)
        if found is None:
            raise NotThere("It is no longer in the outbox: the router has taken it. Look for its flow.")
        return self._file(os.path.join(self.view.office.outbox, found), query, "/outbox", name, mark=mark)

    def dead(self, query: Query) -> Data:
        """Return the dead letters, of one reason if that is asked for."""
        words = query.q.casefold().split()
        found = [
            one
            for one in self.view.dead()
            if (not query.reason or (one.text("reason") or "unknown") == query.reason)
            and all(word in f"{one.shown}\n{searched(one.reason or {})}".casefold() for word in words)
        ]
        page = paged(found, query.page, lambda number: links.dead(reason=query.reason, q=query.q, page=number))
        seen = self.seen.which("/dead-letter", [one.shown for one in page.items])
        page.rows = [
            {
                "name": one.shown,
                "from": one.text("from"),
                "type": one.text("type"),
                "subject": one.text("subject") or one.shown,
                "correlation_id": one.text("correlation_id"),
                "sequence": one.sequence,
                "sent_at": one.time,
                "reason": one.text("reason"),
                "seen": one.shown in seen,
                "href": links.dead(one.shown, query.reason, query.q, query.page),
            }
            for one in page.items
        ]
        return {
            "kind": "dead",
            "title": "Dead letters",
            "about": query.reason or "all reasons",
            "page": page,
            "q": query.q,
            "reason": query.reason,
            "action": "/dead",
        }

    def dead_letter(self, name: str, query: Query, *, mark: bool) -> Data:
        """Return one dead letter, why it died and what to do."""
        one = next((one for one in self.view.dead() if one.shown == name), None)
        if one is None:
            raise NotThere("No such dead letter. It may have been sent again (`postmaster dead-letter retry`).")
        if one.kind is not None:
            raise NotThere(f"This is {one.kind}, not a file; it is not opened.")
        path = os.path.join(self.view.office.dead_letter, one.name)
        reason = one.text("reason")
        flow = one.text("correlation_id")
        return {
            **self._file(path, query, "/dead-letter", name, mark=mark),
            "why": one.recipients or [{"reason": reason or "unknown", "detail": one.text("detail") or ""}],
            "remedy": reasons.remedy(reason) if reason in reasons.REASONS else None,
            "as_text": links.dead(name, query.reason, query.q, query.page, "text"),
            "as_markdown": links.dead(name, query.reason, query.q, query.page),
            "flow": thread_of(self.view, flow, query.part, at=one.sequence) if flow else None,
        }

    def _file(self, path: str, query: Query, place: str, name: str, *, mark: bool) -> Data:
        try:
            content = reading.load(path, self._limit() + reports.ROOM)
        except (OSError, BadData) as fault:
            raise NotThere(f"It cannot be read: {getattr(fault, 'strerror', None) or fault}") from fault
        if mark:
            self.seen.add(place, name)
        return {
            **self._content(excerpts.describe_content(content), query),
            "path": self.view.office.shown(path),
            "as_text": links.outbox(name) + "?form=text",
            "as_markdown": links.outbox(name),
        }

    def flows(self, query: Query) -> Data:
        """Return the flows, the one last changed first."""
        found = self.view.index.newest_flows(query.q)
        page = paged(found, query.page, lambda number: links.flows(query.q, number))
        page.rows = [
            {
                "name": flow.name,
                "subject": flow.name,
                "about": flow.subject,
                "messages": flow.highest,
                "sent_at": flow.last,
                "href": links.flow(flow.name, query.q, query.page),
            }
            for flow in page.items
        ]
        about = "by last change"
        return {"kind": "flows", "title": "Flows", "about": about, "page": page, "q": query.q, "action": "/flows"}

    def flow(self, name: str, query: Query) -> Data:
        """Return one flow as a thread, with its timeline. Raises NotThere."""
        found = thread_of(self.view, name, query.part)
        if not found["steps"]:
            raise NotThere("The log knows no such flow.")
        return {"title": name, "flow": found, "only_flow": True}


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
