"""Telling that a run has nothing to do, with a handful of system calls and no imports that cost time.

Cron starts a router every few minutes and most of those find an empty outbox. It must be certain: no mail, nothing
left by a killed run, and a registry whose compiled form is current (so that a broken one is reported, not skipped).
"""

import os

from postmaster import names
from postmaster.office import Office
from postmaster.registry import stamp


def is_idle(office: Office) -> bool:
    """Tell whether a run would find no work here; in doubt, no."""
    try:
        with os.scandir(office.outbox) as entries:
            for entry in entries:
                if names.is_mail(entry.name) or entry.name == names.TAKEN:
                    return False
        if not stamp.is_current(office):
            return False
        os.utime(office.lock_file)  # the time of the last run; missing before the first one
    except OSError:
        return False
    return not os.path.lexists(office.journal) and not os.path.lexists(office.removals)
