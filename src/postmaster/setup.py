"""Making an office."""

import os

from postmaster import durable, maildir
from postmaster.errors import CannotCreate
from postmaster.office import Office
from postmaster.settings import TEMPLATE


def make_office(office: Office) -> list[str]:
    """Make the directories and the commented settings that are missing; return the paths made.

    Raises:
        CannotCreate: the system refused.
    """
    made = []
    try:
        for path in (
            office.root,
            office.declarations,
            office.outbox,
            office.inboxes,
            office.dead_letter,
            office.logs,
            office.private,
        ):
            if not os.path.isdir(path):
                durable.make_directories(path)
                made.append(path)
        if not os.path.lexists(office.settings_file):
            maildir.clear_temporaries(office.root)  # of an `init` that was killed
            durable.replace(office.settings_file, TEMPLATE.encode())
            made.append(office.settings_file)
    except OSError as fault:
        raise CannotCreate(f"{fault.filename}: {fault.strerror}") from fault
    return made
