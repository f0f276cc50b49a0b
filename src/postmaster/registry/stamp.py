"""Whether the compiled lookup is that of today's agent-registry.yml. Imports nothing heavy: idle runs ask."""

import os
import stat
from typing import Final

from postmaster.office import Office

PREFIX: Final = "registry-"
SUFFIX: Final = ".sqlite"


def stamp_name(status: os.stat_result) -> str:
    """Return the file name of the lookup that was compiled from a registry with this stat(2) result."""
    return f"{PREFIX}{status.st_size}-{status.st_mtime_ns}-{status.st_ctime_ns}-{status.st_ino}{SUFFIX}"


def is_current(office: Office) -> bool:
    """Tell whether agent-registry.yml is a regular file and its compiled lookup is there."""
    try:
        status = os.stat(office.registry)
    except OSError:
        return False
    return stat.S_ISREG(status.st_mode) and os.path.isfile(os.path.join(office.private, stamp_name(status)))
