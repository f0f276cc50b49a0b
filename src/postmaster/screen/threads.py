"""A flow for the pages: its thread, with the addresses of its copies; and the data of the two pictures."""

from typing import Any, Final

from postmaster import address
from postmaster.registry import flows
from postmaster.screen import links
from postmaster.screen.flow import DEAD, Step, duration, seconds_between, settle, thread
from postmaster.screen.office_view import OfficeView

PART: Final = 50  # messages of a flow on one page
_MOST_DRAWN: Final = 100


def thread_of(view: OfficeView, name: str, part: int, at: int | None = None) -> dict[str, Any]:
    """Return one page of a flow's thread.

    Args:
        part: which page of it, from 1.
        at: the number of the message that is open: its page is shown unless another one is asked for.
    """
    steps = thread(view.index.records(name), view.index.nudges)
    if part == 1 and at is not None:
        place = next((place for place, step in enumerate(steps) if step.sequence == at), 0)
        part = place // PART + 1
    last = max(1, -(-len(steps) // PART))
    part = min(max(1, part), last)
    shown = steps[(part - 1) * PART : part * PART]
    before = steps[(part - 1) * PART - 1] if part > 1 else None
    return {
        "name": name,
        "href": links.flow(name),
        "data": links.timeline(name),
        "total": len(steps),
        "steps": [_step(view, step, earlier, at) for step, earlier in zip(shown, [before, *shown], strict=False)],
        "earlier": links.flow(name, part=part - 1) if part > 1 else None,
        "later": links.flow(name, part=part + 1) if part < last else None,
    }


def _step(view: OfficeView, step: Step, earlier: Step | None, at: int | None) -> dict[str, Any]:
    waited = seconds_between(earlier.time, step.time) if earlier is not None else None
    copies = []
    for copy in step.copies:
        box = view.box(copy.agent) if copy.agent else None
        if box is not None:
            settle(copy, view.folder_of(box.agent.inbox, copy.name))
        href = None
        if copy.state == DEAD:
            href = links.dead(copy.name)
        elif box is not None and copy.state != "gone from the mailbox":
            href = links.message(copy.agent, copy.name)
        copies.append(
            {
                "to": copy.to or copy.agent,
                "agent": copy.agent,
                "state": copy.state or "?",
                "class": "dead" if copy.state == DEAD else copy.state.split(" ")[0],
                "href": href,
                "records": copy.records,
            }
        )
    return {
        "sequence": step.sequence or None,
        "sender": step.sender,
        "type": step.type,
        "subject": step.subject,
        "time": step.time,
        "waited": duration(waited) if waited is not None and waited >= 0 else None,
        "copies": copies,
        "current": at is not None and step.sequence == at,
    }


def timeline_data(view: OfficeView, name: str) -> dict[str, Any]:
    """Return what the picture of a flow is drawn from: lanes (who), and messages between them in their order."""
    steps = thread(view.index.records(name), view.index.nudges)
    lanes: dict[str, int] = {}
    drawn = []
    previous: Step | None = None
    for step in steps[:_MOST_DRAWN]:
        waited = seconds_between(previous.time, step.time) if previous is not None else None
        lanes.setdefault(address.fold(step.sender), len(lanes))
        for copy in step.copies:
            lanes.setdefault(address.fold(copy.to or copy.agent), len(lanes))
            drawn.append(
                {
                    "from": lanes[address.fold(step.sender)],
                    "to": lanes[address.fold(copy.to or copy.agent)],
                    "label": f"#{step.sequence or '-'} {step.type}",
                    "state": "dead" if copy.state == DEAD else copy.state,
                    "time": step.time,
                    "waited": duration(waited) if waited is not None and waited >= 0 else "",
                    "step": steps.index(step),
                }
            )
        previous = step
    return {"lanes": list(lanes), "messages": drawn, "more": max(0, len(steps) - _MOST_DRAWN)}


def map_data(view: OfficeView) -> dict[str, Any]:
    """Return the map of the office (registry.flows.to_json) with how many messages went along each edge so far."""
    found = view.map()
    counts = list(view.index.counts.items())  # the log may grow meanwhile
    edges = []
    for edge in found["edges"]:
        sender = address.fold(edge["from_address"])
        number = sum(
            count
            for (who, kind, agent), count in counts
            if who == sender and agent == edge["agent"] and address.matches_type(edge["type"], kind)
        )
        edges.append({**edge, "count": number})
    dangling = sum(edge["state"] == flows.DANGLING for edge in edges)
    return {"agents": found["agents"], "edges": edges, "dangling": dangling}
