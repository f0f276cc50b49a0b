"""Which lines of the delivery log are asked for."""

from collections.abc import Callable, Mapping

from postmaster import address
from postmaster.delivery_log import Record
from postmaster.directory import open_view
from postmaster.errors import ConfigurationFault
from postmaster.office import Office

Wanted = Callable[[Record], bool]


def wanted(
    office: Office, fields: Mapping[str, str | None], *, id_prefix: str | None = None, agent: str | None = None
) -> Wanted:
    """Return the test for a line: it has all `fields` that are given, and is about that message and that agent.

    Args:
        agent: an id, an address or an alias. A line without `agent` is about it if it is `to` one of its addresses.
    """
    asked = {key: value for key, value in fields.items() if value is not None}
    who = None if agent is None else _names_of(office, agent)

    def test(record: Record) -> bool:
        if any(record.get(key) != value for key, value in asked.items()):
            return False
        if id_prefix is not None and not record.get("id", "").startswith(id_prefix.lower()):
            return False
        if who is None:
            return True
        if "agent" in record:
            return bool(record["agent"] == who[0])
        return address.fold(record.get("to", "")) in who[1]

    return test


def _names_of(office: Office, agent: str) -> tuple[str, frozenset[str]]:
    """Return an agent's id, and its addresses folded; as typed for one that the registry does not know."""
    try:
        with open_view(office, write=False) as registry:
            found = registry.agent(agent.removeprefix(address.AGENT)) or registry.find(agent)
    except ConfigurationFault:
        found = None
    if found is None:
        return agent.removeprefix(address.AGENT), frozenset({address.fold(agent)})
    return found.id, frozenset(address.fold(name) for name in found.names)
