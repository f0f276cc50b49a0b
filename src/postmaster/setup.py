"""Making an office."""

import os

from postmaster import durable, maildir
from postmaster.errors import CannotCreate
from postmaster.office import Office
from postmaster.settings import TEMPLATE


def make_office(office: Office) -> list[str]:
    """Make the directories and the commented settings that are missing; return the paths made.

    The schemas for editors are written again if they are not those of this version.

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
            office.schemas,
        ):
            if not os.path.isdir(path):
                durable.make_directories(path)
                made.append(path)
        if not os.path.lexists(office.settings_file):
            maildir.clear_temporaries(office.root)  # of an `init` that was killed
            durable.replace(office.settings_file, TEMPLATE.encode())
            made.append(office.settings_file)
        made += _write_schemas(office)
    except OSError as fault:
        raise CannotCreate(f"{fault.filename}: {fault.strerror}") from fault
    return made


def _write_schemas(office: Office) -> list[str]:
    """Write the schemas that are not there as this version has them; return their paths."""
    from postmaster import schemas  # late: no other command needs them

    written: list[str] = []
    for name in schemas.NAMES:
        path = os.path.join(office.schemas, schemas.file_name(name))
        data = schemas.text(name).encode()
        if _has(path, data):
            continue
        if not written:
            maildir.clear_temporaries(office.schemas)
        durable.replace(path, data)
        written.append(path)
    return written


def _has(path: str, data: bytes) -> bool:
    """Tell whether a regular file holds exactly these bytes."""
    try:
        with open(durable.open_regular(path), "rb") as stream:
            return stream.read(len(data) + 1) == data
    except OSError:
        return False
