"""The merge of the registry, with what it means for the living: who is nudged, and who has a name that is taken now."""

import os
from dataclasses import replace

from postmaster.office import Office
from postmaster.registry import compiled
from postmaster.registry import merge as registry_merge
from postmaster.registry.merge import MergeReport


def merge(office: Office, *, dry_run: bool = False, make_inboxes: bool = False) -> MergeReport:
    """Merge as registry.merge.merge does, and raise as it does; warn of names of live instances that are taken now."""
    report = registry_merge.merge(office, dry_run=dry_run, make_inboxes=make_inboxes)
    if dry_run or report.problems:
        return report
    note_nudges(office)
    return replace(report, warnings=(*report.warnings, *_taken_names(office)))


def note_nudges(office: Office) -> None:
    """See to it that the next run nudges whoever the registry, as it was merged now, wants nudged."""
    with compiled.open_view(office) as registry:
        if registry.has_nudges():
            from postmaster.directory import untold

            untold.mark(office)


def _taken_names(office: Office) -> list[str]:
    """Return, in words, which living instances have a name that the registry has too."""
    if not os.path.lexists(office.live):
        return []
    from postmaster.directory import registration

    return registration.taken_names(office)
