"""The post office for programs that embed it (docs/api.md): `from postmaster import Office`.

A façade: it does what the commands do, by calling what they call, and decides nothing. Inside the package
`office.Office` is where things are on the disk; `api.Office` is a whole office, in use. Nothing in the package imports
this one.
"""

from postmaster.api.forms import Agent, LogLine, Mail, Merged, Message, Routed, Sent
from postmaster.api.office import Office
from postmaster.errors import (
    BadData,
    CannotCreate,
    ConfigurationFault,
    DiskFault,
    Missing,
    PostmasterError,
    UsageProblem,
)
from postmaster.parties import Accept
from postmaster.submission import Refusal

__all__ = [
    "Accept",
    "Agent",
    "BadData",
    "CannotCreate",
    "ConfigurationFault",
    "DiskFault",
    "LogLine",
    "Mail",
    "Merged",
    "Message",
    "Missing",
    "Office",
    "PostmasterError",
    "Refusal",
    "Routed",
    "Sent",
    "UsageProblem",
]
