"""The directory: who is alive. The registry says which agents may exist; live instances claim names and roles.

Light: a run in an office without live instances asks one stat, and loads nothing of this package but this.
"""

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Union

from postmaster import address, reports
from postmaster.decide import check_accepts
from postmaster.office import Office
from postmaster.parties import RegistryView
from postmaster.registry import compiled
from postmaster.registry.compiled import CompiledRegistry
from postmaster.reports import Report

if TYPE_CHECKING:
    from postmaster.delivery_log import Record
    from postmaster.directory.returning import Returns
    from postmaster.directory.view import DirectoryView
    from postmaster.history import History
    from postmaster.letter import Item
    from postmaster.settings import Settings


def open_view(office: Office, *, write: bool = True) -> Union[CompiledRegistry, "DirectoryView"]:
    """Open the registry, with the live instances if there are or may be any; to be used with `with`.

    Args:
        write: whether a register or archive that was cut off may be brought to its end, and the compiled
            lookup be kept.

    Raises:
        ConfigurationFault: agent-registry.yml is missing, cannot be read or is invalid.
        DiskFault: what was cut off cannot be brought to its end.
    """
    registry = compiled.open_view(office, write=write)
    try:
        os.stat(office.live)  # it goes with the last live instance
    except OSError:
        if not registry.has_per_flow():
            return registry
    try:
        from postmaster.directory.view import DirectoryView

        return DirectoryView(office, registry, write=write)
    except BaseException:
        registry.close()
        raise


class Reports:
    """The office's own mail, as the router asks for it (posting.Reporter): bounces, and returned mail."""

    def __init__(self, office: Office) -> None:
        self._office = office
        self._returns: Returns | None = None

    def on_refusal(
        self, item: "Item", refused: Sequence["Record"], registry: RegistryView, settings: "Settings", now_ns: int
    ) -> Report | None:
        """Return the report of a refused letter; None if its sender accepts none, or it is itself the office's.

        `from` is a claim: whoever has that address is asked, and gets the report.
        """
        claimed = item.record.get("from")
        if claimed is None or reports.is_reserved(claimed, item.record.get("type", "")):
            return None
        if any(one["reason"] == "sender-not-authentic" for one in refused):
            return None  # it is not that sender's letter
        sender = registry.find(claimed)
        if sender is None or not any(address.matches_type(one.type, reports.BOUNCE) for one in sender.accepts):
            return None
        own = reports.office_address(sender.address)
        reason, _ = check_accepts(sender, reports.BOUNCE, own, registry)
        if reason is not None:
            return None
        from postmaster.directory.bounces import bounce

        return bounce(item, refused, own, settings, now_ns)

    def overdue(
        self, registry: RegistryView, history: "History", settings: "Settings", now_ns: int, problems: list[str]
    ) -> Iterator[Report]:
        """Yield a report for each message that an archived instance left unread, and that was not returned yet."""
        from postmaster.directory.returning import Returns

        self._returns = Returns(self._office, registry, history, settings, now_ns, problems, [])
        return self._returns.due()

    def close(self) -> None:
        """Note which mailboxes have nothing left to be returned.

        Raises:
            DiskFault: that cannot be noted; the next run looks again.
        """
        if self._returns is not None:
            from postmaster.directory.returning import forget

            forget(self._office, self._returns.done)


class Opening:
    """Opens the view for a pass of the router (`open_view`), and notes whether anybody in it is to be nudged."""

    def __init__(self) -> None:
        self.has_nudges = False

    def __call__(self, office: Office, *, write: bool = True) -> Union[CompiledRegistry, "DirectoryView"]:
        view = open_view(office, write=write)
        self.has_nudges = view.has_nudges()
        return view
