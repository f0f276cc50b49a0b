"""The message map: who sends what to whom, from what the entries say they emit and accept. Pure.

Whether an edge holds is decided by `decide`, the function that routes: the map cannot promise what the router
would refuse.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from postmaster import address
from postmaster.decide import decide
from postmaster.printable import brief
from postmaster.registry.view import EntriesView, Entry
from postmaster.verdict import Envelope

OK: Final = "ok"
DANGLING: Final = "dangling"


@dataclass(frozen=True, slots=True)
class Edge:
    """One type that one agent sends to one recipient.

    Attributes:
        sender: id of the sending agent.
        to: the recipient as written in `emits`.
        recipient: id of the agent that is reached; None when there is none.
        state: `ok`, or `dangling`: the mail would not be delivered.
        why: what is wrong with a dangling edge.
    """

    sender: str
    sender_address: str
    type: str
    to: str
    recipient: str | None
    state: str = OK
    why: str | None = None


class _NoHistory:
    """No message was given to anybody yet."""

    def earlier(self, envelope: Envelope, agent_id: str) -> str | None:
        return None

    def made(self, envelope: Envelope) -> bool:
        return False


def edges(entries: Sequence[Entry]) -> list[Edge]:
    """Return the edges of the map, in the order of senders and of their `emits`."""
    view = EntriesView(entries)
    found = []
    for entry in sorted(entries, key=lambda entry: str(entry["id"])):
        for emit in entry.get("emits", ()):
            for to in emit["to"]:
                found += _edges_to(entry, emit["type"], to, view)
    return found


def _edges_to(entry: Entry, message_type: str, to: str, view: EntriesView) -> list[Edge]:
    envelope = Envelope(
        id="", fields={}, to=(to,), sender=entry["address"], type=message_type, subject="", correlation_id=""
    )
    return [
        Edge(
            sender=entry["id"],
            sender_address=entry["address"],
            type=message_type,
            to=to,
            recipient=verdict.agent.id if verdict.agent else None,
            state=OK if verdict.reason is None else DANGLING,
            why=verdict.detail,
        )
        for verdict in decide(envelope, view, _NoHistory())
    ]


def to_json(entries: Sequence[Entry]) -> dict[str, Any]:
    """Return the map as plain data: agents, and edges between them."""
    map_edges = edges(entries)
    arriving = arrivals(map_edges)
    agents = [
        {
            "id": entry["id"],
            "address": entry["address"],
            "roles": list(entry.get("roles", ())),
            "accepts": [
                {
                    "type": accept["type"],
                    "accepts_from": list(accept.get("accepts_from", ())),
                    "sent_by": senders_of(accept["type"], arriving.get(entry["id"], ())),
                }
                for accept in entry.get("accepts", ())
            ],
        }
        for entry in sorted(entries, key=lambda entry: str(entry["id"]))
    ]
    return {
        "agents": agents,
        "edges": [
            {
                "from": edge.sender,
                "from_address": edge.sender_address,
                "type": edge.type,
                "to": edge.to,
                "agent": edge.recipient,
                "state": edge.state,
                **({"why": edge.why} if edge.why else {}),
            }
            for edge in map_edges
        ],
    }


def arrivals(map_edges: Sequence[Edge]) -> dict[str, list[Edge]]:
    """Return the edges that hold, by the id of the agent they reach."""
    found: dict[str, list[Edge]] = {}
    for edge in map_edges:
        if edge.recipient is not None and edge.state == OK:
            found.setdefault(edge.recipient, []).append(edge)
    return found


def senders_of(accepted: str, arriving: Sequence[Edge]) -> list[str]:
    """Return the ids of the agents that send an accepted type, of the edges that reach who accepts it."""
    return list(dict.fromkeys(edge.sender for edge in arriving if address.matches_type(accepted, edge.type)))


def render_tree(map_data: dict[str, Any]) -> str:
    """Return the map (`to_json`) as text: for each agent what it sends to whom, and what it takes from whom."""
    lines: list[str] = []
    leaving: dict[str, list[str]] = {}
    for edge in map_data["edges"]:
        leaving.setdefault(edge["from"], []).append(_sent(edge))
    for agent in map_data["agents"]:
        roles = f"  (roles: {', '.join(agent['roles'])})" if agent["roles"] else ""
        lines.append(f"{agent['id']} <{agent['address']}>{roles}")
        branches = [("sends   ", text) for text in leaving.get(agent["id"], ())]
        branches += [("accepts ", _accepted(accept)) for accept in agent["accepts"]]
        for number, (verb, text) in enumerate(branches, 1):
            lines.append(f"{'└── ' if number == len(branches) else '├── '}{verb} {text}")
        if not branches:
            lines.append("└── neither sends nor accepts anything")
        lines.append("")
    dangling = sum(edge["state"] == DANGLING for edge in map_data["edges"])
    counts = f"{len(map_data['agents'])} agents, {len(map_data['edges'])} connections"
    lines.append(f"{counts}, {dangling} of them dangling: that mail would not be delivered" if dangling else counts)
    return "\n".join(lines)


def _sent(edge: dict[str, Any]) -> str:
    names_agent = edge["agent"] and edge["to"] != address.AGENT + edge["agent"]
    text = f"{edge['type']} -> {edge['to']}" + (f" ({edge['agent']})" if names_agent else "")
    return text if edge["state"] == OK else f"{text}   !! nobody accepts this: {edge['why']}"


def _accepted(accept: dict[str, Any]) -> str:
    senders = brief(accept["sent_by"]) if accept["sent_by"] else "no agent declares to send it"
    return f"{accept['type']} from {', '.join(accept['accepts_from']) or 'nobody'}   [{senders}]"


def _nodes(map_data: dict[str, Any]) -> tuple[dict[str, str], dict[str, str]]:
    """Return node names for the agents by id, and for recipients that are nobody by address."""
    agents = {agent["id"]: f"a{number}" for number, agent in enumerate(map_data["agents"])}
    lost = dict.fromkeys(edge["to"] for edge in map_data["edges"] if edge["agent"] is None)
    return agents, {to: f"x{number}" for number, to in enumerate(lost)}


def render_mermaid(map_data: dict[str, Any]) -> str:
    """Return the map (`to_json`) as a Mermaid flowchart; what is dangling is dotted."""
    agents, lost = _nodes(map_data)
    lines = ["flowchart LR"]
    lines += [f'  {node}["{_mermaid(agent_id)}"]' for agent_id, node in agents.items()]
    lines += [f'  {node}(["{_mermaid(to)}"]):::dangling' for to, node in lost.items()]
    for edge in map_data["edges"]:
        target = agents[edge["agent"]] if edge["agent"] else lost[edge["to"]]
        arrow = "-->" if edge["state"] == OK else "-.->"
        lines.append(f'  {agents[edge["from"]]} {arrow}|"{_mermaid(edge["type"])}"| {target}')
    if lost:
        lines.append("  classDef dangling stroke-dasharray: 5 5")
    return "\n".join(lines)


def _mermaid(text: str) -> str:
    """Return a label: what Mermaid could take for syntax or HTML stands as a character code (``#34;``)."""
    return "".join(c if c.isascii() and (c.isalnum() or c in " .@:_/-") else f"#{ord(c)};" for c in text)


def render_dot(map_data: dict[str, Any]) -> str:
    """Return the map (`to_json`) in Graphviz DOT; what is dangling is dashed."""
    agents, lost = _nodes(map_data)
    lines = ["digraph postmaster {", "  rankdir=LR;", "  node [shape=box];"]
    lines += [f"  {node} [label={_dot(agent_id)}];" for agent_id, node in agents.items()]
    lines += [f"  {node} [label={_dot(to)}, shape=ellipse, style=dashed];" for to, node in lost.items()]
    for edge in map_data["edges"]:
        target = agents[edge["agent"]] if edge["agent"] else lost[edge["to"]]
        style = "" if edge["state"] == OK else ", style=dashed, color=red"
        lines.append(f"  {agents[edge['from']]} -> {target} [label={_dot(edge['type'])}{style}];")
    return "\n".join([*lines, "}"])


def _dot(text: str) -> str:
    r"""Return a quoted DOT string; a backslash is doubled, or ``\N`` would become the node's name."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
