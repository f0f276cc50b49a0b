"""What a command knows inside a turn: who it is and where its mail waits, from the environment. Light."""

import os
from dataclasses import dataclass
from typing import Final

from postmaster.errors import BadData, UsageProblem
from postmaster.office import ENVIRONMENT, Office

AGENT: Final = "POSTMASTER_AGENT"
AGENT_ID: Final = "POSTMASTER_AGENT_ID"
TURN: Final = "POSTMASTER_TURN"
ATTEMPT: Final = "POSTMASTER_ATTEMPT"
MESSAGES: Final = "POSTMASTER_MESSAGES"
THREAD: Final = "POSTMASTER_THREAD"
STAGE: Final = "POSTMASTER_STAGE"
VARIABLES: Final = (AGENT, AGENT_ID, TURN, ATTEMPT, MESSAGES, THREAD, STAGE)


@dataclass(frozen=True, slots=True)
class Inside:
    """The turn that a command runs in.

    Attributes:
        address: of the instance whose turn it is.
        thread: the default thread (a `correlation_id`); None if there is none.
        stage: the directory in which its letters wait for the end of the turn.
    """

    address: str
    thread: str | None
    stage: str


def current(office: Office, *, immediately: bool = False) -> Inside | None:
    """Return the turn of this office that we run in, or None.

    Args:
        immediately: nothing is to be staged.

    Raises:
        BadData: there was one, and it is over.
    """
    address, stage = os.environ.get(AGENT), os.environ.get(STAGE)
    if not address or not stage or os.path.normpath(os.environ.get(ENVIRONMENT, "")) != office.root:
        return None
    if not immediately and not (stage.startswith(office.turns + os.sep) and os.path.isdir(stage)):
        raise BadData(f"the turn {os.environ.get(TURN, '')} is over: it can send no more; use --immediately")
    return Inside(address, os.environ.get(THREAD) or None, stage)


def thread_of(inside: Inside) -> str:
    """Return the default thread.

    Raises:
        UsageProblem: there is none.
    """
    if inside.thread is None:
        raise UsageProblem(
            "this turn has no default thread (`default_thread: none`): say which thread with --thread; "
            "the `thread:` line of a message names its own"
        )
    return inside.thread
