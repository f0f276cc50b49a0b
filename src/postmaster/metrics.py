"""The answer of `status` as metrics in the text format of Prometheus
(https://prometheus.io/docs/instrumenting/exposition_formats/), version 0.0.4. Pure.

Every metric is a gauge and carries the label `office` (the root), so that those of several offices can be collected
by one node_exporter. Times are seconds since the epoch.
"""

from collections.abc import Iterator
from typing import Any, Final

from postmaster import health, times

Sample = tuple[dict[str, str], float]

_HELP: Final = {
    "up": "Whether the office can be looked at.",
    "mail_flows": "Whether mail flows.",
    "level": "What `status --check` would end with: 0 ok, 1 warning, 2 critical.",
    "concerns": "How many things are of concern, by level.",
    "status_timestamp_seconds": "When this was told.",
    "last_run_timestamp_seconds": "When a router ran last.",
    "outbox_messages": "Letters in the outbox.",
    "outbox_held_back": "Letters that the router leaves alone for now.",
    "outbox_oldest_timestamp_seconds": "The time of the oldest letter in the outbox.",
    "unread_messages": "Unread messages, by agent.",
    "read_messages": "Acknowledged messages, by agent.",
    "unread_oldest_timestamp_seconds": "When the oldest unread message was delivered.",
    "deferred_messages": "Copies that are tried again, by reason.",
    "dead_letters": "Dead letters, by reason.",
    "dead_letters_last_day": "Dead letters of the last 24 hours, by reason.",
    "disk_free_bytes": "Bytes left of a file system that mail is on.",
    "disk_size_bytes": "The size of that file system.",
    "disk_free_inodes": "Inodes left of that file system.",
    "crontab_present": "Whether the crontab of this account names the office.",
    "starters": "How many crontab lines, units and processes are known to start runs.",
    "unfinished": "Things that a run which was cut off has left.",
    "remote_waiting_messages": "Letters that wait for the carrier, by remote.",
    "remote_failures": "How often in a row a remote did not answer.",
    "remote_wrong": "Whether a remote looks wrong.",
}


def render(answer: dict[str, Any], now_ns: int) -> str:
    """Return the metrics of an office; `now_ns` is the time of the answer."""
    return _text(answer["office"], _samples(answer, now_ns))


def render_down(root: str, now_ns: int) -> str:
    """Return the metrics of an office that cannot be looked at."""
    down: list[tuple[str, Sample]] = [
        ("up", ({}, 0)),
        ("mail_flows", ({}, 0)),
        ("status_timestamp_seconds", ({}, now_ns / 1e9)),
    ]
    return _text(root, iter(down))


def _samples(answer: dict[str, Any], now_ns: int) -> Iterator[tuple[str, Sample]]:
    yield "up", ({}, 1)
    yield "mail_flows", ({}, answer["flows"])
    yield "level", ({}, health.LEVELS.index(answer["level"]))
    for level in health.LEVELS[1:]:
        yield "concerns", ({"level": level}, sum(one["level"] == level for one in answer["concerns"]))
    yield "status_timestamp_seconds", ({}, now_ns / 1e9)
    if answer["last_run"] is not None:
        yield "last_run_timestamp_seconds", ({}, times.parse_time(answer["last_run"]) / 1e9)
    box = answer["outbox"]
    yield "outbox_messages", ({}, box["waiting"])
    yield "outbox_held_back", ({}, len(box["held_back"]))
    for name, oldest in (("outbox", box["oldest"]), ("unread", answer["oldest_unread"])):
        if oldest:
            yield f"{name}_oldest_timestamp_seconds", ({}, times.parse_time(oldest["since"]) / 1e9)
    for one in answer["agents"]:
        labels = {"agent": one["agent"] or "", "inbox": one["inbox"]}
        yield "unread_messages", (labels, 0 if one["archived"] else one["unread"])
        yield "read_messages", (labels, one["read"])
    reasons = [one["reason"] or "" for one in answer["deferred"]]
    for reason in dict.fromkeys(reasons):
        yield "deferred_messages", ({"reason": reason}, reasons.count(reason))
    for name in ("dead_letters", "dead_letters_last_day"):
        for reason, count in answer[name].items():
            yield name, ({"reason": reason}, count)
    yield from _surroundings(answer)


def _surroundings(answer: dict[str, Any]) -> Iterator[tuple[str, Sample]]:
    for disk in answer["disks"]:
        labels = {"path": disk["path"]}
        yield "disk_free_bytes", (labels, disk["bytes_free"])
        yield "disk_size_bytes", (labels, disk["bytes_total"])
        if disk["inodes_free"] is not None:
            yield "disk_free_inodes", (labels, disk["inodes_free"])
    if answer["starters"]["crontab"] != "unknown":
        yield "crontab_present", ({}, answer["starters"]["crontab"] == "present")
    yield "starters", ({}, len(answer["starters"]["started_by"]))
    yield "unfinished", ({}, sum(not one["at_work"] for one in answer["unfinished"]))
    for one in answer["remotes"]:
        labels = {"remote": one["name"]}
        yield "remote_waiting_messages", (labels, one["waiting"])
        yield "remote_failures", (labels, one["failures"])
        yield "remote_wrong", (labels, one["wrong"] is not None)


def _text(root: str, samples: Iterator[tuple[str, Sample]]) -> str:
    by_name: dict[str, list[Sample]] = {}
    for name, sample in samples:
        by_name.setdefault(name, []).append(sample)
    lines = []
    for name in _HELP:
        if name in by_name:
            lines += [f"# HELP postmaster_{name} {_HELP[name]}", f"# TYPE postmaster_{name} gauge"]
            lines += [_line(name, {"office": root, **labels}, value) for labels, value in by_name[name]]
    return "\n".join(lines) + "\n"


def _line(name: str, labels: dict[str, str], value: float) -> str:
    told = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items())
    number = str(int(value)) if float(value).is_integer() else f"{value:.3f}"
    return f"postmaster_{name}{{{told}}} {number}"


def _escaped(text: str) -> str:
    # a byte that is no text is shown as \xff in paths (office.visible); a surrogate could not be written at all
    whole = text.encode("utf-8", "backslashreplace").decode("utf-8")
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
