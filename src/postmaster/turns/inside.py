"""What a command knows inside a turn: who it is and where its mail waits, from the environment. Light."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from typing import Final

from postmaster.address import fold
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
        agent_id: of the instance whose turn it is.
        address: of the instance.
        thread: the default thread (a `correlation_id`); None if there is none.
        stage: the directory in which its letters wait for the end of the turn.
        messages: the file names of the messages that it was given.
    """

    agent_id: str
    address: str
    thread: str | None
    stage: str
    messages: tuple[str, ...]

    def is_called(self, name: str) -> bool:
        """Tell whether `name` is the id or the address of the instance."""
        return fold(name) in (fold(self.agent_id), fold(self.address))

    def require_unfinished(self, agent_id: str, names: Collection[str]) -> None:
        """Raise UsageProblem if one of an agent's messages (file names) is being dealt with in this very turn."""
        if self.is_called(agent_id) and not set(self.messages).isdisjoint(names):
            raise UsageProblem("a turn that succeeds acknowledges its messages itself, and one that fails must not")

    def the_message(self) -> str:
        """Return the file name of the one message that the turn was given.

        Raises:
            UsageProblem: it was given several.
        """
        if len(self.messages) != 1:
            raise UsageProblem(f"this turn has {len(self.messages)} messages: say which one is answered")
        return self.messages[0]


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
    agent_id = os.environ.get(AGENT_ID) or address
    messages = tuple(map(os.path.basename, os.environ.get(MESSAGES, "").splitlines()))
    return Inside(agent_id, address, os.environ.get(THREAD) or None, stage, messages)


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
