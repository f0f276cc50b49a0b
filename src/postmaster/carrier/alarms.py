"""What becomes of a remote that does not answer (it is tried again, ever more rarely) or looks wrong (an alarm)."""

import contextlib
from typing import Final

from postmaster import elsewhere, remotes, times
from postmaster.carrier.files import Notes
from postmaster.composition import Draft, compose, new_flow
from postmaster.office import Office
from postmaster.remotes import Remote
from postmaster.settings import Settings
from postmaster.submission import put

TYPE: Final = "carrier.problem"
_FIRST_SECONDS: Final = 60
_LAST_SECONDS: Final = 3600


def not_before(notes: Notes, remote: str, now: int) -> int:
    """Return when a remote is to be tried again, in seconds since the epoch; 0: at once.

    Args:
        now: a time that lies further ahead than any pause was noted under another clock, and counts as past.
    """
    found = notes.read(remote + elsewhere.LATER)
    later = int(found["not_before"]) if found else 0
    return later if later <= now + _LAST_SECONDS else 0


def failed(notes: Notes, remote: str, now: int, why: str) -> None:
    """Note that a remote did not answer, and why: each time twice as long until the next attempt."""
    found = notes.read(remote + elsewhere.LATER)
    failures = int(found["failures"]) + 1 if found else 1
    pause = min(_FIRST_SECONDS * 2 ** min(failures - 1, 10), _LAST_SECONDS)
    since = found.get("since", now) if found else now
    note = {"failures": failures, "not_before": now + pause, "since": since, "why": why}
    notes.write(remote + elsewhere.LATER, note)


def answered(notes: Notes, remote: str) -> None:
    """Note that a remote has answered."""
    notes.drop(remote + elsewhere.LATER)


def looks_right(notes: Notes, remote: str) -> None:
    """Note that nothing is wrong with a remote."""
    notes.drop(remote + elsewhere.LOOKS)
    notes.drop(f"{remote}.wrong")


def looks_wrong(notes: Notes, remote: str, facts: str) -> None:
    """Note what is wrong with a remote, for `status`."""
    if notes.read(remote + elsewhere.LOOKS) != facts:
        notes.write(remote + elsewhere.LOOKS, facts)


def raise_alarm(office: Office, settings: Settings, notes: Notes, remote: Remote, facts: str, now_ns: int) -> None:
    """Write to the operator that a remote looks wrong; once for the same facts.

    Raises:
        CannotCreate: the outbox cannot be written to.
    """
    if not settings.operator or notes.read(f"{remote.name}.wrong") == facts:
        return
    body = (
        f"The remote {remote.name} ({remote.url}) looks wrong: {facts}.\n\n"
        "Nothing of it was merged, and nothing is pushed to it. Other remotes are not touched.\n\n"
        "What can be done:\n"
        f"- Ask whoever keeps {remote.url} what happened; if it is mended there, the next `postmaster carry` goes on.\n"
        "- If it was restored from a backup or made anew, and you take it as it is now:\n"
        f"  `postmaster carry --accept {remote.name}`. What it has lost is given to it again; nothing here is lost.\n"
        f"- If it is over the limits, and means well: raise `max_messages` or `max_bytes` of {remote.name} in\n"
        "  post-office.yml.\n"
        f"- If you do not trust it any more, take {remote.name} out of post-office.yml.\n"
    )
    draft = Draft(
        to=(settings.operator,),
        sender=f"carrier@{remotes.domain_of(settings.operator)}",
        type=TYPE,
        subject=f"remote {remote.name} looks wrong",
        correlation_id=new_flow(now_ns),
        sent_at=times.timestamp(now_ns),
        body=body.encode("utf-8", "backslashreplace"),
    )
    put(office.outbox, compose(draft), now_ns)
    with contextlib.suppress(OSError):
        notes.write(f"{remote.name}.wrong", facts)
