"""Telling that a run has nothing to do, with a handful of system calls and no imports that cost time.

Cron starts a router every few minutes and most of those find an empty outbox. It must be certain: no mail, nothing
left by a killed run, no mail to be given back, nobody who may have to be nudged, a registry whose compiled form is
current and settings that are no younger than the last run (so that broken ones are reported, not skipped).
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
        if _settings_changed(office):
            return False
        os.utime(office.lock_file)  # the time of the last run; missing before the first one
    except OSError:
        return False
    left = (office.journal, office.removals, office.returning, office.nudges)
    return not any(map(os.path.lexists, left))


def _settings_changed(office: Office) -> bool:
    """Tell whether post-office.yml has changed since the last run that could read it. Raises OSError."""
    try:
        settings = os.stat(office.settings_file)
    except FileNotFoundError:
        return False
    return max(settings.st_mtime_ns, settings.st_ctime_ns) >= os.stat(office.lock_file).st_mtime_ns
