"""Whether agent-registry.yml lags behind the declarations. Only if one of these looks newer are they read."""

import os

from postmaster.office import Office
from postmaster.registry import declarations, merge
from postmaster.registry.merge import MergeReport


def since_merge(office: Office) -> MergeReport | None:
    """Return what a merge would say, if it would change anything or be refused; None if nothing is newer.

    Raises:
        OSError: the registry is missing, or the declarations cannot be looked at.
    """
    merged = os.stat(office.registry).st_mtime_ns
    changed = [os.stat(office.declarations).st_mtime_ns]
    with os.scandir(office.declarations) as entries:
        listed = [entry for entry in entries if entry.name.endswith(declarations.SUFFIXES)]
        changed += [entry.stat().st_mtime_ns for entry in listed]
    if max(changed) < merged:
        return None
    report = merge.plan(office).report
    return None if report.unchanged and not report.problems else report


def told(report: MergeReport) -> str:
    """Return in words how the declarations have changed."""
    said = "the declarations have changed since the merge"
    if report.problems:
        return f"{said}, and {len(report.problems)} of their lines cannot be merged"
    changes = {"added": report.added, "moved": report.moved, "changed": report.changed, "removed": report.removed}
    counted = ", ".join(f"{len(found)} {what}" for what, found in changes.items() if found)
    return said + (f" ({counted})" if counted else "")
