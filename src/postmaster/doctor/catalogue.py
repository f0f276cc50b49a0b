"""Every check there is, in the order in which findings are told. Pure."""

from typing import Any, Final

from postmaster.doctor import (
    checks_inboxes,
    checks_mail,
    checks_office,
    checks_programs,
    checks_registry,
    checks_runs,
)
from postmaster.doctor.facts import Facts
from postmaster.doctor.findings import Check

CHECKS: Final[tuple[Check, ...]] = (
    *checks_office.CHECKS,
    *checks_registry.CHECKS,
    *checks_inboxes.CHECKS,
    *checks_runs.CHECKS,
    *checks_mail.CHECKS,
    *checks_programs.CHECKS,
)


def examine(facts: Facts) -> list[dict[str, Any]]:
    """Return every finding, as plain data."""
    return [check.to_json(finding) for check in CHECKS for finding in check.find(facts)]
