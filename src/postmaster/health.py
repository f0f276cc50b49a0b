"""Whether mail flows, judged from what `status` has found. Pure: the same answer gives the same verdict."""

from dataclasses import dataclass
from typing import Any, Final

from postmaster.printable import printable

OK: Final = "ok"
WARNING: Final = "warning"
CRITICAL: Final = "critical"
LEVELS: Final = (OK, WARNING, CRITICAL)  # their places are the exit codes of `status --check`
_ARRIVING: Final = 60  # seconds in which whoever waits for letters (`watch`) may still be about to route one
UNKNOWN_CODE: Final = 3  # as monitoring plugins say that nothing can be told


@dataclass(frozen=True, slots=True)
class Limits:
    """From when on something is a concern. Times in seconds.

    Attributes:
        run: the age of the last run, while mail waits.
        deferred: for how long a letter is deferred, or another office does not get its mail.
        unread: the age of the oldest unread message.
        dead: how many dead letters there may be of the last day; None for any number.
        free_percent: what must be left of a file system, in bytes and in inodes.
    """

    run: int = 30 * 60
    deferred: int = 60 * 60
    unread: int = 2**62
    dead: int | None = None
    free_percent: float = 5.0


@dataclass(frozen=True, slots=True)
class Concern:
    """Something that keeps mail from flowing (`critical`), or that wants to be looked at (`warning`)."""

    level: str
    text: str


def judge(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    """Return what is of concern in the answer of `status.survey`, the worst first."""
    found = [
        *_of_setup(answer),
        *_of_runs(answer, limits),
        *_of_deferred(answer, limits),
        *_of_disks(answer, limits),
        *_of_remotes(answer, limits),
        *_of_mail(answer, limits),
        *(Concern(WARNING, text) for text in answer["problems"] if text not in answer["log_problems"]),
    ]
    return sorted(found, key=lambda one: -LEVELS.index(one.level))  # stable: the order above within a level


def verdict(concerns: list[Concern]) -> dict[str, Any]:
    """Return concerns as plain data: whether mail flows, the worst level, what is of concern."""
    level = concerns[0].level if concerns else OK
    told = [{"level": one.level, "text": one.text} for one in concerns]
    return {"flows": level != CRITICAL, "level": level, "concerns": told}


def headline(answer: dict[str, Any]) -> str:
    """Return the answer in one line."""
    first, more = answer["concerns"][:1], len(answer["concerns"]) - 1
    if not first:
        return "mail flows"
    but = "mail does not flow" if answer["level"] == CRITICAL else "mail flows, but look"
    return f"{but}: {printable(first[0]['text'])}" + (f" (and {more} more)" if more > 0 else "")


def _of_setup(answer: dict[str, Any]) -> list[Concern]:
    registry = answer["registry"]
    found = [Concern(CRITICAL, text) for text in answer["log_problems"]]
    if registry["state"] in ("missing", "invalid"):
        found.append(Concern(CRITICAL, f"the registry is {registry['state']}: {registry['detail']}"))
    elif registry["state"] == "stale":
        found.append(Concern(WARNING, registry["detail"]))
    return found


def _of_runs(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    """Tell of mail that no run has taken up, and of runs that were cut off."""
    age, box = answer["last_run_age_seconds"], answer["outbox"]
    late = age is None or age >= limits.run
    since = "no run yet" if age is None else f"no run for {span(age)}"
    found = []
    routable = box["waiting"] - len(box["held_back"])
    if (
        routable > 0
        and late
        and not answer["at_work"]
        and _oldest(box) >= (_ARRIVING if age is not None else limits.run)
    ):
        found.append(Concern(CRITICAL, f"{since} while {counted(routable, 'letter')} in the outbox; {_starts(answer)}"))
    elif box["overlooked"]:
        name = box["overlooked"][0]
        text = f"{counted(len(box['overlooked']), 'letter')} in the outbox though a run was made since ({name})"
        found.append(Concern(CRITICAL, f"{text}; `postmaster route -v` says why"))
    for one in answer["unfinished"]:
        if not one["at_work"]:
            level = CRITICAL if one["holds_mail"] and late else WARNING
            found.append(Concern(level, f"{one['path']}: {one['what']}; {one['remedy']}"))
    if not found and answer["starters"]["crontab"] == "absent" and not answer["starters"]["started_by"]:
        found.append(Concern(WARNING, "nothing starts runs: `postmaster cron --install`"))
    return found


def _starts(answer: dict[str, Any]) -> str:
    starters = answer["starters"]
    if not starters["started_by"]:
        return "nothing that is known starts runs here: `postmaster cron --install`"
    if starters["cron_runs"] is False and starters["crontab"] == "present":
        return "no cron daemon runs"
    return "`postmaster doctor` looks for the cause"


def _oldest(box: dict[str, Any]) -> int:
    return int((box["oldest"] or {}).get("age_seconds") or 0)


def _of_deferred(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    """Tell of deferred mail, in one concern for each reason."""
    found = []
    for reason in dict.fromkeys(one["reason"] for one in answer["deferred"]):
        rows = [one for one in answer["deferred"] if one["reason"] == reason]
        oldest = max(one["age_seconds"] or 0 for one in rows)
        whom = sorted({one["agent"] or one["to"] or one["file"] for one in rows})
        told = ", ".join(whom[:3]) + (f" and {len(whom) - 3} more" if len(whom) > 3 else "")
        what = "1 letter is deferred" if len(rows) == 1 else f"{len(rows)} letters are deferred"
        text = f"{what}: {reason or 'no reason given'}, for {span(oldest)} ({told})"
        found.append(Concern(CRITICAL if oldest >= limits.deferred else WARNING, text))
    return found


def _of_disks(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    found = []
    for disk in answer["disks"]:
        where = f"{disk['path']}: " + (f"{disk['percent_free']:.1f}% of its file system is left")
        if disk["bytes_free"] < answer["max_message_bytes"] or disk["inodes_free"] == 0:
            found.append(Concern(CRITICAL, f"{where}: no room for the largest message"))
        elif disk["percent_free"] < limits.free_percent:
            found.append(Concern(WARNING, where))
    return found


def _of_remotes(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    found = []
    for one in answer["remotes"]:
        waits = one["oldest_seconds"] is not None and one["oldest_seconds"] >= limits.deferred
        if one["wrong"] is not None:
            found.append(Concern(CRITICAL, f"remote {one['name']} looks wrong: {one['wrong']}"))
        elif one["failures"]:
            silent = one["unanswered_seconds"] is not None and one["unanswered_seconds"] >= limits.deferred
            level = CRITICAL if waits or silent else WARNING
            why = f": {one['why']}" if one["why"] else ""
            found.append(Concern(level, f"remote {one['name']} does not answer ({one['failures']} times{why})"))
        elif waits:
            text = f"{counted(one['waiting'], 'letter')} for remote {one['name']} for {span(one['oldest_seconds'])}"
            found.append(Concern(CRITICAL, f"{text}; `postmaster carry` takes them there"))
    return found


def _of_mail(answer: dict[str, Any], limits: Limits) -> list[Concern]:
    found = []
    oldest, dead = answer["oldest_unread"], sum(answer["dead_letters_last_day"].values())
    if oldest and oldest["age_seconds"] >= limits.unread:
        who = oldest["agent"] or "nobody in the registry"
        found.append(Concern(WARNING, f"unread for {span(oldest['age_seconds'])}: {oldest['file']} for {who}"))
    if limits.dead is not None and dead > limits.dead:
        found.append(Concern(WARNING, f"{dead} dead letters in the last day; `postmaster dead-letter list`"))
    return found


def counted(number: int, noun: str) -> str:
    """Return a number of things that wait, in words."""
    return f"1 {noun} waits" if number == 1 else f"{number} {noun}s wait"


def span(seconds: int) -> str:
    """Return a span of time in its largest unit."""
    for unit, size in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size} {unit}"
    return f"{seconds} seconds"
