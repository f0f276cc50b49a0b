"""Postmaster: a deterministic post office for agents.

For programs that embed it: `from postmaster import Office` (docs/api.md). It is loaded when it is asked for, so that a
command does not pay for it.
"""

TYPE_CHECKING = False  # as in `typing`, which would take longer to load than an idle run
if TYPE_CHECKING:
    from postmaster.api import (
        Accept,
        Agent,
        BadData,
        CannotCreate,
        ConfigurationFault,
        DiskFault,
        LogLine,
        Mail,
        Merged,
        Message,
        Missing,
        Office,
        PostmasterError,
        Refusal,
        Routed,
        Sent,
        UsageProblem,
    )

__version__ = "0.1.0"
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


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'postmaster' has no attribute {name!r}")
    from postmaster import api

    return getattr(api, name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
