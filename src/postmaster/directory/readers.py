"""Whose mailbox a command means: an agent's, a live instance's, or, to be read only, an archived one's."""

from dataclasses import dataclass

from postmaster import address, reading
from postmaster.directory import claims, open_view, store
from postmaster.directory.claims import Claim
from postmaster.directory.registration import archived_hint
from postmaster.errors import BadData
from postmaster.office import Office
from postmaster.parties import Agent


@dataclass(frozen=True, slots=True)
class Reader:
    """Whose mailbox it is. `archived` is the claim of an instance that is no longer alive."""

    agent: Agent
    archived: Claim | None = None

    def require_live(self) -> None:
        """Raise BadData for an archived instance: its mailbox is history."""
        if self.archived is not None:
            raise BadData(
                f"{self.agent.id} was archived at {self.archived.archived}: its mailbox can be read, and nothing is "
                "moved or answered there"
            )


def find_reader(office: Office, text: str) -> Reader:
    """Return whose mailbox `text` (an id, address, alias or live name) names; an archived instance's by its id.

    Raises:
        BadData: nobody's; says whose may have been meant.
    """
    office.require()
    with open_view(office, write=False) as view:
        try:
            found = reading.find_agent(view, text)
            return Reader(found, store.archived(office, found.id) if found.terminated else None)
        except BadData as fault:
            plain = text.removeprefix(address.AGENT)
            claim = store.archived(office, plain) if claims.name_of(plain) is not None else None
            if claim is None:
                hint = archived_hint(office, text)
                raise BadData(
                    f"{fault}{hint} (`postmaster inbox ID` shows its mail)" if hint else str(fault)
                ) from fault
            return Reader(claims.as_agent(claim, view.agent(claim.class_id), office.default_inbox(claim.id)), claim)
