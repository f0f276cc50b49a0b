"""Checks of letters that lie where nobody takes them, of clocks, disks and the log. Pure."""

import os
from collections.abc import Iterator
from typing import Final

from postmaster import disk_space, names
from postmaster.doctor.facts import Facts
from postmaster.doctor.findings import Check, Finding, opened, readable, shell

_HOUR_NS: Final = 3600 * 10**9
_AHEAD_NS: Final = 300 * 10**9  # clocks of two machines, or of a disk on the network, differ by less
_FREE_PERCENT: Final = 5.0
LARGE_LOG: Final = 256 * 1024 * 1024  # bytes: some 600,000 lines
# What lacks a working rename, flock or fsync, or forgets all at the next start (mount(8)).
_UNFIT: Final = frozenset(
    (
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ncpfs", "coda", "vboxsf", "prl_fs", "drvfs", "ramfs"),
        *("vfat", "msdos", "exfat", "ntfs", "ntfs3", "fuseblk", "fuse.sshfs", "fuse.s3fs", "fuse.rclone"),
        *("fuse.gcsfuse", "fuse.glusterfs", "fuse.gvfsd-fuse", "fuse.vmhgfs-fuse"),
    )
)


def letter_closed(facts: Facts) -> Iterator[Finding]:
    """Letters that the router cannot read."""
    for node in facts.closed_letters:
        what = f"{facts.router!r} cannot read it: it is deferred (`io-error`), again and again"
        yield Finding(node.shown, what, *readable(facts, node))


def letter_misplaced(facts: Facts) -> Iterator[Finding]:
    """Letters beside the outbox."""
    for node in facts.strays:
        what = "no letter is looked for here: it is neither routed nor read"
        target = os.path.join(facts.places["outbox"].path, os.path.basename(node.path))
        yield Finding(node.shown, what, "hand it in, or move it away", (shell("mv", "-n", node.path, target),))


def letter_in_folder(facts: Facts) -> Iterator[Finding]:
    """A directory in the outbox."""
    for node in facts.outbox:
        if node.is_directory and not facts.drop_folders:
            what = "a directory in the outbox: the next run moves it to dead-letter/ whole"
            fix = "hand in the letters by themselves; or, for a folder for each agent, set `drop_folders: true`"
            command = f"find {shell(node.path)} -type f -exec mv -n -t {shell(facts.places['outbox'].path)} {{}} +"
            yield Finding(node.shown, what, fix, (command, shell("rmdir", node.path)))


def letter_link(facts: Facts) -> Iterator[Finding]:
    """A link in the outbox."""
    for node in facts.outbox:
        if node.kind in ("link", "other"):
            what = "is no regular file, and never followed: the next run moves the name to dead-letter/"
            yield Finding(node.shown, what, "put the letter itself there", (shell("rm", node.path),))


def letter_without_suffix(facts: Facts) -> Iterator[Finding]:
    """Something that may be no letter."""
    for node in facts.outbox:
        name = os.path.basename(node.path)
        if node.kind == "file" and names.is_mail(name) and not name.endswith(".md"):
            what = (
                "is taken for a letter, though its name does not end in .md; a file that is none goes to dead-letter/"
            )
            fix = "rename it if it is a letter, else take it out"
            yield Finding(node.shown, what, fix, (shell("mv", "-n", node.path, f"{node.path}.md"),))


def letter_unfinished(facts: Facts) -> Iterator[Finding]:
    """A letter that its name keeps from being sent."""
    for node in facts.outbox:
        name = os.path.basename(node.path)
        if node.kind == "file" and not names.is_mail(name) and name != names.TAKEN:
            if facts.now_ns - node.mtime_ns < _HOUR_NS:
                continue
            ready = name.lstrip(".")
            for suffix in names.UNFINISHED:
                ready = ready.removesuffix(suffix)
            ready = (ready or "letter").removesuffix(".md") + ".md"
            what = "is never sent: its name says that it is not finished, and it has not changed for an hour"
            command = shell("mv", "-n", node.path, os.path.join(facts.places["outbox"].path, ready))
            yield Finding(node.shown, what, "rename it to have it sent, or remove it", (command,))


def clock_of_files(facts: Facts) -> Iterator[Finding]:
    """Mail from the future."""
    for node in facts.future:
        ahead = (node.mtime_ns - facts.now_ns) // (60 * 10**9)
        what = f"its time is {ahead} minutes ahead: a clock was wrong, and letters are numbered in a wrong order"
        yield Finding(
            node.shown, what, "set the clocks (`timedatectl set-ntp true`), then the time", (shell("touch", node.path),)
        )


def clock_of_log(facts: Facts) -> Iterator[Finding]:
    """The log is ahead of the clock."""
    if facts.last_logged_ns > facts.now_ns + _AHEAD_NS:
        ahead = (facts.last_logged_ns - facts.now_ns) // (60 * 10**9)
        what = f"its last line is {ahead} minutes ahead: the clock of this machine was, or is, wrong"
        yield Finding(facts.places["log"].shown, what, "set the clock", ("timedatectl set-ntp true",))


def clock_of_run(facts: Facts) -> Iterator[Finding]:
    """The last run is ahead of the clock."""
    if facts.last_run_ns > facts.now_ns + _AHEAD_NS:
        ahead = (facts.last_run_ns - facts.now_ns) // (60 * 10**9)
        what = f"the last run is {ahead} minutes ahead: `status` cannot tell that runs fail to come"
        path = os.path.join(facts.root, ".postmaster", "lock")
        yield Finding(".postmaster/lock", what, "set the clock, then the time", (shell("touch", path),))


def log_closed(facts: Facts) -> Iterator[Finding]:
    """Nothing is routed without a log."""
    node = facts.places["log"]
    if node.is_there and (node.kind != "file" or not node.may_write):
        what = "cannot be written: nothing is routed without a log"
        if node.kind == "file":
            yield Finding(node.shown, what, *opened(facts, node))
        else:
            yield Finding(node.shown, what, "move it away", (shell("mv", "-n", node.path, node.path + ".away"),))


def log_large(facts: Facts) -> Iterator[Finding]:
    """A log that was never rotated."""
    node = facts.places["log"]
    if node.size > LARGE_LOG and not facts.log_parts:
        what = f"has {node.size // 2**20} MiB and was never rotated"
        stem = node.path.removesuffix(".jsonl")
        fix = "rotate it, and set logrotate up (docs/operations.md); never `copytruncate`"
        yield Finding(node.shown, what, fix, (f"mv -n {shell(node.path)} {shell(stem)}-$(date +%Y%m%d-%s).jsonl",))


def disk_full(facts: Facts) -> Iterator[Finding]:
    """Little is left of a disk."""
    for disk in facts.disks:
        percent = disk_space.least_percent(disk)
        if percent < _FREE_PERCENT:
            inodes = f", {disk['inodes_free']} inodes" if disk["inodes_free"] is not None else ""
            what = f"{percent:.1f}% of its file system is left ({disk['bytes_free'] // 2**20} MiB{inodes})"
            yield Finding(disk["path"], what, "make room", look=(shell("du", "-xh", "--max-depth=2", disk["path"]),))


def file_system(facts: Facts) -> Iterator[Finding]:
    """A file system on which the promises do not hold."""
    for mount in facts.mounts:
        forgets = mount.type in ("ramfs", "tmpfs")
        if mount.type in _UNFIT or (mount.type == "tmpfs" and not mount.temporary):
            what = (
                "which is gone at the next start"
                if forgets
                else "where rename, lock or sync do not hold what they promise"
            )
            fix = "move it to a local disk (docs/operations.md); offices on several machines: docs/carrier.md"
            yield Finding(mount.node.shown, f"is on {mount.type}, {what}", fix)


CHECKS: Final = (
    Check("letter-closed", "a letter that the router cannot read", letter_closed),
    Check("letter-misplaced", "a letter lies where none is looked for", letter_misplaced),
    Check("letter-in-folder", "letters in a directory of the outbox", letter_in_folder),
    Check("letter-link", "a link, or another thing, in place of a letter", letter_link),
    Check("letter-without-suffix", "a file in the outbox whose name does not end in `.md`", letter_without_suffix),
    Check("letter-unfinished", "a letter whose name keeps it from being sent", letter_unfinished),
    Check("clock-of-files", "mail from the future", clock_of_files),
    Check("clock-of-log", "the log's last line is in the future", clock_of_log),
    Check("clock-of-run", "the last run is in the future", clock_of_run),
    Check("log-closed", "the log cannot be written", log_closed),
    Check("log-large", "the log is huge, and was never rotated", log_large),
    Check("disk-full", "little is left of the bytes or inodes of a disk", disk_full),
    Check("file-system", "the office, or an inbox, is on a network or volatile file system", file_system),
)
