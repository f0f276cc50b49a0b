"""What an office makes of mail from elsewhere: owners, subaddresses, and what `verify` sees of it."""

import os
import shutil
from pathlib import Path

import pytest
from support import Box, write_atomically
from test_carry import carry, got, hub, inject, line, mail, office, to_hub, two

pytestmark = pytest.mark.skipif(not (shutil.which("git") and shutil.which("jq")), reason="needs git and jq")
__all__ = ["two"]


def test_require_owner_and_mail_from_elsewhere(two: tuple[Box, Box, Path]) -> None:
    """What the carrier has brought is taken, of senders elsewhere; what has only its name is not."""
    a, _, there = two
    settings = a.root / "post-office.yml"
    settings.write_text(settings.read_text() + "require_owner: true\n")
    inject(there, "a0@a.internal", line("a0@a.internal", "a0@b.internal"))
    carry(a)
    a.route()
    assert got(a, "a.a0") == [b"forged"]
    for n, owner in enumerate((61001, 0)):
        name = a.root / "outbox" / f"carried-hub-{n}{'a' * 31}.md"
        write_atomically(str(name), mail("a0@a.internal", "a0@b.internal" if owner else "a1@a.internal", f"{n}"))
        if os.geteuid() == 0:
            os.chown(name, owner, -1)
        elif owner:
            name.unlink()
    a.route()
    assert got(a, "a.a0") == [b"forged"]
    assert {one["reason"] for one in a.log() if "reason" in one} <= {"sender-not-authentic", "origin-mismatch"}


def test_a_subaddress_elsewhere_is_its_owners(tmp_path: Path) -> None:
    """Who admits an address admits `address+detail`; another address is another (RFC 5233)."""
    there = hub(tmp_path)
    a = office(tmp_path, "a", 1, to_hub(there, "a"))
    accepts = "{type: t, accepts_from: ['coord@b.internal']}"
    a.declare("a", f"plugin: a\nagents: [{{id: a.a0, address: a0@a.internal, accepts: [{accepts}]}}]")
    a.merge()
    for sender in ("coord+jzs5h67ivvst", "coord+x", "coor+d", "coord+", "x+coord", "coord"):
        inject(there, "a0@a.internal", line("a0@a.internal", f"{sender}@b.internal", sender))
    carry(a)
    a.route()
    assert got(a, "a.a0") == [b"coord", b"coord+jzs5h67ivvst", b"coord+x"]


def test_verify_looks_at_what_waits(two: tuple[Box, Box, Path]) -> None:
    """A letter in the carrier's queue is held against the log, before and after it was taken."""
    a, _, _ = two
    for n in range(2):
        a.drop(f"{n}.md", mail("a0@b.internal", "a0@a.internal", body=f"{n}"))
    a.route()
    assert a.run("verify").returncode == 0
    queue = a.root / "carrier" / "outgoing" / "hub" / "a0@b.internal"
    one, other = sorted((queue / "unread").iterdir())
    kept = one.read_bytes()
    one.write_bytes(kept + b"more")
    changed = a.run("verify")
    assert changed.returncode != 0 and "MD5 of its body" in changed.stdout, changed
    one.write_bytes(kept)
    carry(a)
    assert a.run("verify").returncode == 0
    (queue / "read" / other.name).unlink()
    found = a.run("verify", "--json")
    assert found.returncode != 0 and '"gone"' in found.stdout and other.name in found.stdout


def test_what_a_killed_pass_has_half_written_goes(two: tuple[Box, Box, Path]) -> None:
    """The next pass removes the temporaries of notes, whoever is alive under that number."""
    a, _, _ = two
    carry(a)
    litter = a.root / "carrier" / f"postmaster-{os.getpid()}-cursor"
    litter.write_text("[")
    carry(a)
    assert not litter.exists()
