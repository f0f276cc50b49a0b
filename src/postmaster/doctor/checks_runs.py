"""Checks of what starts the runs: crontabs, timers, the account they run as, and what holds them up. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from postmaster import names
from postmaster.doctor.facts import Facts
from postmaster.doctor.findings import Check, Finding, postmaster, shell
from postmaster.run_lines import Starter

_LATE_NS: Final = 30 * 60 * 10**9


def not_run(facts: Facts) -> Iterator[Finding]:
    """Mail waits, and no run comes."""
    times = [one.mtime_ns for one in facts.outbox if names.is_mail(os.path.basename(one.path))]
    if times and facts.now_ns - min(times) > _LATE_NS and facts.now_ns - facts.last_run_ns > _LATE_NS:
        last = (
            f"no run for {(facts.now_ns - facts.last_run_ns) // (60 * 10**9)} minutes"
            if facts.last_run_ns
            else "no run yet"
        )
        waiting = "1 letter waits" if len(times) == 1 else f"{len(times)} letters wait"
        yield Finding(
            "outbox", f"{last} while {waiting}", "route, and see what it says", (postmaster(facts, "route", "-v"),)
        )


def not_started(facts: Facts) -> Iterator[Finding]:
    """Nothing starts runs here."""
    if not facts.is_office or _known(facts) or _others(facts):
        return
    what = "nothing that is known starts runs: no crontab line, no timer of systemd, no `watch`"
    yield Finding(
        f"crontab of {facts.starters.account}", what, "install the line", (postmaster(facts, "cron", "--install"),)
    )


def _known(facts: Facts) -> bool:
    """Tell whether something starts runs here, or may do so."""
    starters = facts.starters
    return bool(starters.of(facts.real_root) or starters.crontab_fault is not None or starters.unclear)


def cron_other_office(facts: Facts) -> Iterator[Finding]:
    """The crontab is about another office."""
    if facts.is_office and not _known(facts) and (others := _others(facts)):
        what = f"routes {', '.join(sorted({one.root for one in others}))}, and not {facts.root}"
        fix = "install the line of this office, or use the other"
        yield Finding(f"crontab of {facts.account}", what, fix, (postmaster(facts, "cron", "--install"),))


def _others(facts: Facts) -> list[Starter]:
    found = [one for one in facts.starters.found if one.source == "crontab" and one.root]
    return [one for one in found if one.root != facts.real_root and one.routes]


def cron_command_missing(facts: Facts) -> Iterator[Finding]:
    """The program of a crontab line is gone: a virtual environment that was moved, for example."""
    for one in _lines(facts):
        program = one.program
        if not program or ("/" not in program and not one.path):
            continue  # nobody can tell
        if "/" in program:
            is_there = os.path.isabs(program) and _runs(facts, program)
        else:
            is_there = any(_runs(facts, os.path.join(place, program)) for place in one.path.split(":"))
        if not is_there:
            what = f"starts {program}, which cron does not find"
            if one.marked:
                yield Finding(_place(one), what, "install the line anew", (postmaster(facts, "cron", "--install"),))
            else:
                yield Finding(_place(one), what, "correct the line", look=(_edit(one),))


def _edit(one: Starter) -> str:
    return "crontab -e" if one.source == "crontab" else shell("editor", one.source)


def _runs(facts: Facts, path: str) -> bool:
    return facts.runnable.get(path, False)


def cron_wrong_account(facts: Facts) -> Iterator[Finding]:
    """Runs as another account than the owner of the office."""
    for one in facts.starters.of(facts.real_root):
        if one.account != facts.owner and not one.source.startswith("process "):
            what = f"runs as {one.account!r}, and the office belongs to {facts.owner!r}: mail and log get a wrong owner"
            here = postmaster(facts, "cron", "--remove")
            there = shell("runuser", "-u", facts.owner, "--", "postmaster", "--root", facts.root, "cron", "--install")
            fix = f"let it run as {facts.owner!r}"
            if one.marked:
                yield Finding(_place(one), what, fix, (here, there))
            else:
                yield Finding(
                    _place(one), what, f"{fix}: take it out here, and install the line there", (), (_edit(one), there)
                )


def no_cron_daemon(facts: Facts) -> Iterator[Finding]:
    """A crontab line, and nobody who reads it."""
    if _lines(facts) and facts.starters.cron_runs is False:
        what = "names this office, and no cron daemon runs"
        yield Finding(_place(_lines(facts)[0]), what, "start it, now and with the machine", ("service cron start",))


def started_twice(facts: Facts) -> Iterator[Finding]:
    """Two things route one office."""
    found = [one for one in facts.starters.of(facts.real_root) if "watch" not in one.steps]
    paths = [one for one in found if one.source.endswith(".path")]  # goes with its timer
    if len(found) - len(paths) > 1:
        what = "each routes this office: " + ", ".join(_place(one) for one in found)
        mine = [one for one in found if one.marked]
        if mine and len(mine) < len(found):
            yield Finding(_place(found[0]), what, "keep one", (postmaster(facts, "cron", "--remove"),))
        else:
            yield Finding(_place(found[0]), what, "keep one", look=(_edit(found[0]),))


def unit_program_missing(facts: Facts) -> Iterator[Finding]:
    """A unit is enabled, and its program is gone."""
    for one in _hindered(facts, "program"):
        what = f"is enabled, and starts {one.text}, whose program is not there: it routes nothing"
        yield Finding(
            one.source, what, "correct the path in `ExecStart`", look=(shell(*_systemctl(one), "cat", _unit(one)),)
        )


def unit_not_lingering(facts: Facts) -> Iterator[Finding]:
    """A unit of an account that runs only while the account is logged in."""
    for one in _hindered(facts, "lingering"):
        what = f"runs only while {one.account!r} is logged in: the account does not linger"
        yield Finding(one.source, what, "let it linger", (shell("loginctl", "enable-linger", one.account),))


def no_systemd(facts: Facts) -> Iterator[Finding]:
    """A unit is enabled, and systemd does not run: a container, for example."""
    for one in _hindered(facts, "systemd"):
        what = "is enabled, and systemd does not run here: it routes nothing"
        yield Finding(one.source, what, "let cron start the runs", (_install(facts),))


def _hindered(facts: Facts, trouble: str) -> list[Starter]:
    return [one for one in facts.starters.hindered(facts.real_root) if one.trouble == trouble]


def _systemctl(one: Starter) -> list[str]:
    return ["systemctl", "--user"] if os.path.dirname(one.source).endswith("/user") else ["systemctl"]


def _unit(one: Starter) -> str:
    return os.path.basename(one.source)


def watch_stopped(facts: Facts) -> Iterator[Finding]:
    """A `watch` that is stopped routes nothing."""
    for one in _hindered(facts, "stopped"):
        number = one.source.removeprefix("process ")
        what = "is a `watch` of this office, and is stopped: it routes nothing"
        yield Finding(one.source, what, "let it go on, or end it", (shell("kill", "-CONT", number),))


def turns_not_taken(facts: Facts) -> Iterator[Finding]:
    """Agents that are programs, and nobody who starts them."""
    started = [one for one in facts.starters.found if one.root == facts.real_root]
    if facts.takes_turns and started and not any({"cycle", "wake"} & set(one.steps) for one in started):
        agents = ", ".join(facts.takes_turns[:3])
        what = f"delivers mail for {agents}, whose declaration says `run`, and takes no turns: their mail stays unread"
        yield Finding(_place(started[0]), what, "let it `cycle`", (_install(facts, "--cycle"),))


def mail_not_carried(facts: Facts) -> Iterator[Finding]:
    """Remotes, and nobody who exchanges mail with them."""
    started = [one for one in facts.starters.found if one.root == facts.real_root]
    if facts.remotes and started and not any("carry" in one.steps for one in started):
        what = "routes, and exchanges no mail with the remotes of post-office.yml"
        yield Finding(_place(started[0]), what, "let it `carry`", (_install(facts, "--carry"),))


def _install(facts: Facts, *more: str) -> str:
    """Return the command that installs the line with what this office needs."""
    wanted = {"--cycle": bool(facts.takes_turns), "--carry": bool(facts.remotes)}
    return postmaster(
        facts, "cron", "--install", *(name for name, is_wanted in wanted.items() if is_wanted or name in more)
    )


def lock_stopped(facts: Facts) -> Iterator[Finding]:
    """A process that holds a lock, and does not run."""
    for path, holder in facts.holders:
        if holder.stopped:
            what = f"is held by process {holder.pid} ({holder.name}), which is stopped: nobody else may route"
            yield Finding(path, what, "let it go on, or end it", (shell("kill", "-CONT", str(holder.pid)),))


def unfinished(facts: Facts) -> Iterator[Finding]:
    """What a run that was killed has left."""
    for node, command in facts.unfinished:
        what = "was left by somebody who was cut off, and nobody is at work"
        yield Finding(node.shown, what, "bring it to its end", (postmaster(facts, *command.split()),))


def _lines(facts: Facts) -> list[Starter]:
    return [one for one in facts.starters.of(facts.real_root) if one.is_cron]


def _place(one: Starter) -> str:
    return f"crontab of {one.account}" if one.source == "crontab" else one.source


CHECKS: Final = (
    Check("not-run", "no run for a long time while mail waits", not_run),
    Check("not-started", "nothing starts runs", not_started),
    Check("cron-other-office", "the crontab names another office", cron_other_office),
    Check("cron-command-missing", "the crontab line starts a program that is gone", cron_command_missing),
    Check("cron-wrong-account", "runs as another account than the owner of the office", cron_wrong_account),
    Check("no-cron-daemon", "a crontab line, and no cron daemon that runs", no_cron_daemon),
    Check("started-twice", "two crontab lines, or a crontab line and a timer, for one office", started_twice),
    Check("unit-program-missing", "a unit of systemd starts a program that is gone", unit_program_missing),
    Check("unit-not-lingering", "a unit of an account that does not linger", unit_not_lingering),
    Check("no-systemd", "a unit that is enabled, and systemd does not run", no_systemd),
    Check("watch-stopped", "a `watch` is stopped", watch_stopped),
    Check("turns-not-taken", "agents with `run`, and no `cycle` or `wake`", turns_not_taken),
    Check("mail-not-carried", "remotes, and no `carry`", mail_not_carried),
    Check("lock-stopped", "a lock is held by a process that is stopped", lock_stopped),
    Check("unfinished", "a run, a register or an exchange was cut off", unfinished),
)
