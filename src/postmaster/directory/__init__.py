"""The directory: who is alive. The registry says which agents may exist; live instances claim names and roles.

Light: a run in an office without live instances asks one stat, and loads nothing of this package but this.
"""

import os
from typing import TYPE_CHECKING, Union

from postmaster.office import Office
from postmaster.registry import compiled
from postmaster.registry.compiled import CompiledRegistry

if TYPE_CHECKING:
    from postmaster.directory.view import DirectoryView


def taken_names(office: Office) -> list[str]:
    """Return, in words, which living instances have a name that the registry has too."""
    if not os.path.lexists(office.live):
        return []
    from postmaster.directory import registration

    return registration.taken_names(office)


def note_nudges(office: Office) -> None:
    """See to it that the next run nudges whoever the registry, as it was merged now, wants nudged."""
    with compiled.open_view(office) as registry:
        if registry.has_nudges():
            from postmaster.directory import untold

            untold.mark(office)


def open_view(office: Office, *, write: bool = True) -> Union[CompiledRegistry, "DirectoryView"]:
    """Open the registry, with the live instances if there are any; to be used with `with`.

    Args:
        write: whether a register or archive that was cut off may be brought to its end, and the compiled
            lookup be kept.

    Raises:
        ConfigurationFault: agent-registry.yml is missing, cannot be read or is invalid.
        DiskFault: what was cut off cannot be brought to its end.
    """
    registry = compiled.open_view(office, write=write)
    try:
        os.stat(office.live)  # it goes with the last live instance
    except OSError:
        return registry
    try:
        from postmaster.directory.view import DirectoryView

        return DirectoryView(office, registry, write=write)
    except BaseException:
        registry.close()
        raise


class Opening:
    """Opens the view for a pass of the router (`open_view`), and notes whether anybody in it is to be nudged."""

    def __init__(self) -> None:
        self.has_nudges = False

    def __call__(self, office: Office, *, write: bool = True) -> Union[CompiledRegistry, "DirectoryView"]:
        view = open_view(office, write=write)
        self.has_nudges = view.has_nudges()
        return view
