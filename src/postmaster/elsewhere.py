"""What `status` says of other offices: mail that waits for the carrier, and the last letters that were read there."""

import os
from typing import Any, Final

from postmaster import delivery_log, maildir, reasons
from postmaster.office import Office
from postmaster.settings import Settings

_SHOWN: Final = 5
_BYTES: Final = 256 * 1024  # of the end of the log: older receipts are in `postmaster log --action receipt`


def survey(office: Office, settings: Settings, problems: list[str]) -> list[dict[str, Any]]:
    """Return for each remote its `name`, `waiting` (letters) and `receipts` (the last, newest first).

    A queue or log that cannot be read is told of in `problems`.
    """
    if not settings.remotes:
        return []
    found: list[dict[str, Any]] = []
    try:
        receipts = _receipts(office)
        for remote in settings.remotes:
            own = [one for one in receipts if one["agent"].startswith(f"{remote.name}:")]
            found.append({"name": remote.name, "waiting": _waiting(office, remote.name), "receipts": own[:_SHOWN]})
    except OSError as fault:
        problems.append(f"{fault.filename or office.carrier}: cannot be read: {fault.strerror}")
    return found


def _waiting(office: Office, remote: str) -> int:
    place = os.path.dirname(office.outgoing(remote, "_"))
    names = os.listdir(place) if os.path.isdir(place) else []
    return sum(len(maildir.messages(os.path.join(place, name), maildir.UNREAD)) for name in names)


def _receipts(office: Office) -> list[dict[str, Any]]:
    try:
        with open(office.log, "rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - _BYTES))
            lines = stream.read().splitlines()
    except FileNotFoundError:
        return []
    records = [one for line in reversed(lines) if (one := delivery_log.decode(line)) is not None]
    wanted = ("time", "to", "subject", "correlation_id", "sequence", "agent", "detail")
    return [{key: one.get(key) for key in wanted} for one in records if one["action"] == reasons.RECEIPT]
