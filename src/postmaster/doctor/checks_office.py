"""Checks of the office itself: which one it is, whose, and who may write where. Pure."""

from collections.abc import Iterator
from typing import Final

from postmaster.doctor.facts import Facts
from postmaster.doctor.findings import Check, Finding, opened, postmaster, shell

_DIRECTORIES: Final = ("outbox", "inboxes", "dead-letter", "logs", "registry.d")
_WRITTEN: Final = ("root", "inboxes", "dead-letter", "logs", ".postmaster")
_OTHERS_WRITE: Final = 0o002
_STICKY: Final = 0o1000


def no_office(facts: Facts) -> Iterator[Finding]:
    """The root has no outbox."""
    if not facts.is_office:
        root = facts.places["root"]
        what = "is not an office: it has no outbox/" if root.is_directory else "is no directory"
        fix = "name the office with --root or $POSTMASTER_ROOT, or make it"
        yield Finding(facts.root, what, fix, (postmaster(facts, "init"),))


def part_missing(facts: Facts) -> Iterator[Finding]:
    """A directory of the office is gone, or something else is in its place."""
    for name in _DIRECTORIES:
        node = facts.places[name]
        if facts.is_office and not node.is_there:
            yield Finding(node.shown, "is missing", "make it again", (postmaster(facts, "init"),))
        elif node.is_there and not node.is_directory and node.kind != "closed":
            fix = "move away what is there, then make it"
            yield Finding(node.shown, "is no directory", fix, (shell("mv", node.path, node.path + ".away"),))


def two_offices(facts: Facts) -> Iterator[Finding]:
    """Commands that are started otherwise meet another office."""
    for where, root in facts.other_offices:
        what = f"names another office, {root}: what is sent there is not found here ({facts.root})"
        yield Finding(
            where, what, "let everybody name the same one", (f"export {shell(f'POSTMASTER_ROOT={facts.root}')}",)
        )


def wrong_account(facts: Facts) -> Iterator[Finding]:
    """Somebody else than the owner of the office asks."""
    root = facts.places["root"]
    if facts.is_office and facts.uid not in (0, root.uid):
        what = (
            f"belongs to {facts.owner!r}, and this is {facts.account!r}: what only the owner may looks like a mistake"
        )
        command = shell("runuser", "-u", facts.owner, "--", "postmaster", "--root", facts.root, "doctor")
        yield Finding(facts.root, what, f"ask as {facts.owner!r}", look=(command,))


def office_open(facts: Facts) -> Iterator[Finding]:
    """Every account may write where only the office should."""
    for name, node in facts.places.items():
        if name != "outbox" and node.is_there and node.kind != "link" and node.mode & _OTHERS_WRITE:
            what = "every account may write here: whoever can may change registry, mail or log"
            yield Finding(node.shown, what, "close it to others", (shell("chmod", "o-w", node.path),))


def outbox_open(facts: Facts) -> Iterator[Finding]:
    """Everybody may remove the letters of others."""
    node = facts.places["outbox"]
    if node.is_directory and node.mode & _OTHERS_WRITE and not node.mode & _STICKY:
        what = "every account may write here, and remove or rename the letters of others"
        yield Finding(node.shown, what, "set the sticky bit", (shell("chmod", "+t", node.path),))


def outbox_closed(facts: Facts) -> Iterator[Finding]:
    """No letter can be put into the outbox, or taken out of it."""
    node = facts.places["outbox"]
    if node.is_directory and not node.may_write:
        what = f"{facts.router!r} may not write here: no letter can be sent, and none taken out"
        yield Finding(node.shown, what, *opened(facts, node))


def part_closed(facts: Facts) -> Iterator[Finding]:
    """The router cannot write where it has to."""
    for name in _WRITTEN:
        node = facts.places[name]
        if node.is_directory and not node.may_write:
            what = f"{facts.router!r} may not write here: a run ends with 73 or 74"
            yield Finding(node.shown, what, *opened(facts, node))


def private_closed(facts: Facts) -> Iterator[Finding]:
    """A run as another account has left files that the router cannot open."""
    if nodes := facts.closed_private:
        others = f" (and {len(nodes) - 1} more there)" if len(nodes) > 1 else ""
        what = f"{facts.router!r} cannot open it{others}: every run ends with 75 or 74"
        yield Finding(nodes[0].shown, what, *opened(facts, *nodes))


def settings_faulty(facts: Facts) -> Iterator[Finding]:
    """post-office.yml cannot be used."""
    for fault in facts.settings_faults:
        where, what = _split(fault)
        look = (shell("editor", facts.places["post-office.yml"].path),)
        yield Finding(where, what, "mend that line (docs/settings.md)", look=look)


def _split(text: str) -> tuple[str, str]:
    where, found, what = text.partition(": ")
    return (where, what) if found else ("post-office.yml", text)


CHECKS: Final = (
    Check("no-office", "the root is no office", no_office),
    Check("part-missing", "a directory of the office is gone, or is none", part_missing),
    Check("two-offices", "`$POSTMASTER_ROOT`, the current directory or the default is another office", two_offices),
    Check("wrong-account", "the office belongs to another account than the one that asks", wrong_account),
    Check("office-open", "every account may write to the registry, the log, the settings or the office", office_open),
    Check("outbox-open", "every account may remove the letters of others", outbox_open),
    Check("outbox-closed", "the outbox cannot be written to", outbox_closed),
    Check(
        "part-closed", "the router cannot write to `inboxes/`, `dead-letter/`, `logs/` or `.postmaster/`", part_closed
    ),
    Check("private-closed", "a file in `.postmaster/` that the router cannot open", private_closed),
    Check("settings-faulty", "post-office.yml has an unknown key or a value that cannot be used", settings_faulty),
)
