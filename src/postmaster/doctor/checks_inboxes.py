"""Checks of the inboxes: that they are there, that the router can write to them and their readers read. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from postmaster.doctor.facts import Facts, Inbox
from postmaster.doctor.findings import Check, Finding, opened, postmaster, shell


def inbox_missing(facts: Facts) -> Iterator[Finding]:
    """An inbox is not there, and no disk is known that it may be on."""
    for one in facts.inboxes:
        if one.known_mount is None and not one.node.is_there:
            anew = () if one.inside else ("--make-inboxes",)
            what = f"the inbox of {one.agent} is missing" + ("" if one.inside else ": its mail waits in the outbox")
            fix = "make it" if one.inside else "mount its disk; or, if there is none, make it"
            yield Finding(one.node.shown, what, fix, (postmaster(facts, "registry", "merge", *anew),))


def inbox_unmounted(facts: Facts) -> Iterator[Finding]:
    """An inbox is on a disk that is not mounted."""
    for one in facts.inboxes:
        if one.known_mount is not None:
            what = (
                f"the inbox of {one.agent} is on {one.known_mount}, which is not mounted: its mail waits in the outbox"
            )
            yield Finding(one.node.shown, what, "mount it", (shell("mount", one.known_mount),))
        elif not one.inside and one.node.is_directory and not one.folders["unread"].is_there:
            what = f"the inbox of {one.agent} has no unread/: its disk may not be mounted; its mail waits in the outbox"
            command = postmaster(facts, "registry", "merge", "--make-inboxes")
            yield Finding(one.node.shown, what, "mount its disk; or, if there is none, make the inbox", (command,))


def inbox_obstructed(facts: Facts) -> Iterator[Finding]:
    """Something else is in the place of a mailbox or of its folder."""
    for one in facts.inboxes:
        for node in (one.node, *one.folders.values()):
            if node.is_there and node.kind not in ("directory", "closed"):
                kind = "a symbolic link, which is not followed" if node.kind == "link" else "no directory"
                what = f"is {kind}: mail for {one.agent} waits, or cannot be acknowledged"
                commands = (shell("mv", "-n", node.path, f"{node.path}.away"), postmaster(facts, "registry", "merge"))
                yield Finding(
                    node.shown, what, "put a directory in its place, with the mail that belongs there", commands
                )


def inbox_closed(facts: Facts) -> Iterator[Finding]:
    """The router cannot write to an inbox."""
    for one in facts.inboxes:
        nodes = [one.node, *one.folders.values()]
        for node in nodes:
            if node.kind == "closed" or (node.is_directory and not node.may_write):
                what = f"{facts.router!r} may not write here: mail for {one.agent} waits"
                yield Finding(node.shown, what, *opened(facts, node))
                break


def inbox_unreadable(facts: Facts) -> Iterator[Finding]:
    """The account of an agent cannot come to its mail."""
    for one in facts.inboxes:
        for node in one.closed_to_user[:1]:
            what = f"{one.user!r} may not enter or write here, and reads the inbox of {one.agent}"
            yield Finding(node.shown, what, _who(one), tuple(_give(facts, one, node.path)))


def _who(one: Inbox) -> str:
    return f"give the inbox to the group of {one.user!r} (docs/multi-user.md)"


def _give(facts: Facts, one: Inbox, closed: str) -> Iterator[str]:
    """Yield the commands of docs/multi-user.md that give a mailbox to its reader, or let it come to it."""
    path = one.node.path
    if not (closed + "/").startswith(path + "/"):
        if "setfacl" in facts.helpers:
            yield shell("setfacl", "-m", f"u:{one.user}:x", closed)
        else:
            yield shell("chgrp", one.group or str(one.user), closed)
            yield shell("chmod", "g+x", closed)
        return
    yield shell("chgrp", "-R", one.group or str(one.user), path)
    yield shell("chmod", "2750", path, one.folders["tmp"].path)
    yield shell("chmod", "2770", one.folders["unread"].path, one.folders["read"].path)


def mail_unreadable(facts: Facts) -> Iterator[Finding]:
    """Messages were delivered under a umask, or a group, that keeps their reader from them."""
    for one in facts.inboxes:
        if one.mail_closed and not one.closed_to_user:
            node = one.mail_closed[0]
            what = f"{one.user!r} may not read it: the `umask` or the group of the router keeps its mail closed"
            paths = [node.path for node in one.mail_closed]
            commands = [shell("chmod", "g+r", *paths)]
            if one.group is not None:
                commands.insert(0, shell("chgrp", one.group, *paths))
            fix = f"open it, and let {facts.owner!r} route with `umask 027`, in a mailbox with the set-group-id bit"
            yield Finding(node.shown, what, fix, tuple(commands))


def inbox_of_nobody(facts: Facts) -> Iterator[Finding]:
    """Unread mail of an agent that the registry does not name."""
    for node, unread in facts.nobody:
        count = "1 message" if unread == 1 else f"{unread} messages"
        what = f"holds {count} that nobody reads: no agent of the registry has this inbox"
        fix = "declare the agent again and merge, or move the mailbox away"
        yield Finding(
            node.shown, what, fix, (shell("mv", "-n", node.path, f"{facts.root}/{node.shown.replace('/', '-')}.old"),)
        )


def mail_in_maildir(facts: Facts) -> Iterator[Finding]:
    """Mail where other programs that know Maildir put it."""
    for node in facts.foreign_mail:
        what = "nobody reads what is in new/ or cur/: an inbox has unread/ and read/"
        name = os.path.basename(node.path).partition(":")[0].removesuffix(".md") + ".md"
        command = shell("mv", "-n", node.path, os.path.join(facts.places["outbox"].path, name))
        yield Finding(node.shown, what, "hand it in, or move it away", (command,))


def temporaries_left(facts: Facts) -> Iterator[Finding]:
    """Temporaries of routers that were killed."""
    for one in facts.inboxes:
        if one.temporaries and not any(node.shown.endswith("journal") for node, _ in facts.unfinished):
            paths = [node.path for node in one.temporaries]
            what = f"{len(paths)} files of runs that were killed; the next delivery to {one.agent} clears them"
            yield Finding(one.folders["tmp"].shown, what, "remove them", (shell("rm", *paths),))


CHECKS: Final = (
    Check("inbox-missing", "an inbox is not there", inbox_missing),
    Check("inbox-unmounted", "an inbox is on a disk that is not mounted", inbox_unmounted),
    Check("inbox-obstructed", "a link, or a file, is in the place of an inbox or its folder", inbox_obstructed),
    Check("inbox-closed", "the router cannot write to an inbox", inbox_closed),
    Check("inbox-unreadable", "the account of an agent cannot come to its inbox", inbox_unreadable),
    Check("mail-unreadable", "the umask of who routes keeps mail closed to its reader", mail_unreadable),
    Check("inbox-of-nobody", "there is unread mail in an inbox that no agent has", inbox_of_nobody),
    Check("mail-in-maildir", "mail in `new/` or `cur/` of an inbox", mail_in_maildir),
    Check("temporaries-left", "runs that were killed have left files in an inbox", temporaries_left),
)
