"""What a warm run may be told to do differently (warm.Warm.run, `patch`). Nothing here is part of the program."""

from typing import Any

from postmaster import commit, history


def index_every_line() -> None:
    """Write the history index after every record, so that small runs write it too."""
    history._KEEP_IN_MEMORY = 1  # type: ignore[misc]


def clear_before_publishing() -> None:
    """Clear the outbox before anything is published: the wrong order, which the sweep must find."""
    right = commit.carry_out

    def carry_out(office: Any, batch: Any, *, again: bool) -> Any:
        commit._clear_outbox(office, batch, again=again)
        return right(office, batch, again=again)

    commit.carry_out = carry_out
