"""One pass of the carrier: what is new here into the inbox refs, then each remote: fetch, judge, hand in, merge, push.

Order, and what a kill leaves: a letter is in the outbox before the ref says that it was handed in, and in the ref
before it leaves the queue. `carrier/unfinished` stands while a pass is at work; the next one then looks whether a line
or a letter is there before it makes it again (docs/carrier.md).
"""

import time
from collections.abc import Callable, Sequence

from postmaster import remotes
from postmaster.carrier import exchanging, files, taking_up
from postmaster.carrier.desk import Carried, Desk
from postmaster.errors import BadData, ConfigurationFault, DiskFault
from postmaster.office import Office
from postmaster.registry.compiled import OpenView
from postmaster.settings import load_settings


def carry(
    office: Office,
    only: Sequence[str] = (),
    *,
    accept: Sequence[str] = (),
    open_view: OpenView,
    clock: Callable[[], int] = time.time_ns,
) -> Carried:
    """Exchange mail with the remotes, one pass.

    Args:
        only: the remotes to exchange with, whether or not it is time to try them again; empty: all.
        accept: the remotes that are taken as they are now, though they looked wrong.

    Raises:
        ConfigurationFault: no office, registry or remotes, or settings that cannot be used.
        BadData: there is no remote of that name.
        DiskFault, CannotCreate: the pass could not go on; the next one does.
    """
    office.require()
    settings = load_settings(office)
    if not settings.remotes:
        raise ConfigurationFault(
            f"{office.settings_file}: names no `remotes`; add e.g. "
            "`remotes: {laptop: {url: /srv/mail.git, domains: [laptop.internal]}}`"
        )
    names = [remote.name for remote in settings.remotes]
    for name in (*only, *accept):
        if name not in names:
            raise BadData(f"there is no remote {name}; post-office.yml names {', '.join(names)}")
    with open_view(office, write=False) as registry:
        local = {remotes.domain_of(one) for a in registry.all_agents() for one in a.names}
    for remote in settings.remotes:
        if both := local.intersection(remote.domains):
            raise ConfigurationFault(
                f"{office.settings_file}: remote {remote.name}: the domain {min(both)} is this office's own; nobody "
                "else may bring mail from it: take it out of `domains`"
            )
    with files.alone(office) as free:
        if not free:
            return Carried(busy=True)
        try:
            return _run(Desk(office, settings, local, clock), only, accept)
        except OSError as fault:
            raise DiskFault(f"{fault.filename or office.carrier}: {fault.strerror or fault}") from fault


def _run(desk: Desk, only: Sequence[str], accept: Sequence[str]) -> Carried:
    for name in accept:
        exchanging.forget(desk, name)
    taking_up.follow_renames(desk)
    taking_up.take_in_pushed(desk)
    taking_up.take_up(desk)
    for remote in desk.settings.remotes:
        if not only or remote.name in only:
            exchanging.exchange(desk, remote, asked=remote.name in (*only, *accept))
    desk.close()
    return desk.done
