"""Signatures between offices: whole commands over real git repositories and the real ssh-keygen."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support import Box
from test_carry import carry, git, got, hub, inject, line, mail, office, read_with_jq, refs, turn

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("git", "jq", "ssh-keygen"))), reason="needs git, jq and ssh-keygen (openssh-client)"
)


def key(world: Path, name: str, secret: str = "") -> Path:
    """Make a key pair."""
    made = world / f"{name}.key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", secret, "-f", str(made)], check=True, timeout=30)
    return made


def allow(file: Path, **keys: Path) -> Path:
    """Write the file of allowed signers: office=key."""
    rows = [
        f"{name}.internal {' '.join(made.with_suffix('.key.pub').read_text().split()[:2])}\n"
        for name, made in keys.items()
    ]
    file.write_text("".join(rows))
    return file


def to_hub(there: Path, *domains: str, **more: Path | str) -> str:
    extra = "".join(f", {name}: '{value}'" for name, value in more.items())
    return f"remotes:\n  hub: {{url: '{there}', domains: [{', '.join(domains)}]{extra}}}\n"


def reasons(box: Box) -> list[tuple[str, str]]:
    return [(one["reason"], one["from"]) for one in box.log() if one["action"] == "dead-letter"]


def test_signed_mail_arrives_and_other_mail_does_not(tmp_path: Path) -> None:
    """Between two offices that sign and verify: theirs arrives, a forgery of the hub's keeper is a dead letter."""
    there = hub(tmp_path)
    keys = {name: key(tmp_path, name) for name in "abc"}
    signers = allow(tmp_path / "signers", **{name: keys[name] for name in "ab"})
    a = office(tmp_path, "a", 1, to_hub(there, "b.internal", "c.internal", sign=keys["a"], verify=signers))
    b = office(tmp_path, "b", 1, to_hub(there, "a.internal", "c.internal", sign=keys["b"], verify=signers))
    c = office(tmp_path, "c", 1, to_hub(there, "a.internal", "b.internal", sign=keys["c"]))
    for n in range(3):
        a.drop(f"{n}.md", mail("a0@b.internal", "a0@a.internal", body=bytes([n, 255])))
    b.drop("x.md", mail("a0@a.internal", "a0@b.internal", body="back"))
    c.drop("y.md", mail("a0@b.internal", "a0@c.internal", body="nobody here knows the key of c"))
    inject(there, "a0@b.internal", line("a0@b.internal", "a0@a.internal", "the hub's own"))
    turn(a, c, b, a)
    assert got(b, "b.a0") == [bytes([n, 255]) for n in range(3)] and got(a, "a.a0") == [b"back"]
    assert sorted(reasons(b)) == [("signature-mismatch", "a0@a.internal"), ("signature-mismatch", "a0@c.internal")]
    details = {one["from"]: one["detail"] for one in b.log() if one["action"] == "dead-letter"}
    assert "brought it without a signature" in details["a0@a.internal"]
    assert "with a signature that does not hold" in details["a0@c.internal"]
    assert a.run("verify").returncode == 0 and b.run("verify").returncode == 0
    turn(a, b, c)
    assert len(got(b, "b.a0")) == 3 and len(reasons(b)) == 2


def test_a_signature_is_of_one_letter_and_one_domain(tmp_path: Path) -> None:
    """Neither another letter's signature, nor another office's, nor one made for another purpose lets a letter in."""
    from postmaster.carrier.lines import Signature, decode

    there = hub(tmp_path)
    keys = {name: key(tmp_path, name) for name in "ac"}
    signers = allow(tmp_path / "signers", **keys)
    b = office(tmp_path, "b", 1, to_hub(there, "a.internal", "c.internal", verify=signers))

    def signed(letter: bytes, by: str, of: bytes | None = None, namespace: str = "postmaster-mail") -> bytes:
        words = ["ssh-keygen", "-Y", "sign", "-q", "-f", str(keys[by]), "-n", namespace]
        made = subprocess.run(words, input=of or letter, capture_output=True, check=True, timeout=30).stdout
        return letter + Signature(decode(letter).id, made.decode()).line()  # type: ignore[union-attr]

    one, two, three, four, five = (line("a0@b.internal", "a0@a.internal", f"{n}") for n in range(5))
    inject(there, "a0@b.internal", signed(one, "a"))
    inject(there, "a0@b.internal", signed(two, "a", of=one))
    inject(there, "a0@b.internal", signed(three, "c"))
    inject(there, "a0@b.internal", signed(four, "a", namespace="file"))
    both = signed(five, "c") + signed(five, "a")[len(five) :]
    inject(there, "a0@b.internal", both)
    turn(b)
    assert got(b, "b.a0") == [b"0", b"4"]
    assert reasons(b) == [("signature-mismatch", "a0@a.internal")] * 3
    # A retry does not make it better; without `verify` it does.
    b.run("dead-letter", "retry", "--all", "--now")
    assert len(got(b, "b.a0")) == 2 and len(b.dead()) == 3
    settings = b.root / "post-office.yml"
    settings.write_text(settings.read_text().replace("verify", "x-verify"))
    b.run("dead-letter", "retry", "--all", "--now")
    assert len(got(b, "b.a0")) == 5


def test_what_is_pushed_here_is_held_against_its_signers(tmp_path: Path) -> None:
    """Whoever may push into this office's own repository is believed no more than a hub."""
    known = key(tmp_path, "b")
    a = office(tmp_path, "a", 1, to_hub(hub(tmp_path), "b.internal", verify=allow(tmp_path / "signers", b=known)))
    carry(a)
    inject(a.root / "carrier" / "mail.git", "a0@a.internal", line("a0@a.internal", "a0@b.internal"))
    turn(a)
    assert got(a, "a.a0") == [] and reasons(a) == [("signature-mismatch", "a0@b.internal")]


def test_mail_that_cannot_be_signed_stays(tmp_path: Path) -> None:
    """A key with a passphrase asks nobody and signs nothing: exit code 75, and no letter leaves until it can."""
    there = hub(tmp_path)
    locked, free = key(tmp_path, "locked", "secret"), key(tmp_path, "free")
    a = office(tmp_path, "a", 1, to_hub(there, "b.internal", sign=locked))
    a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
    a.route()
    before = refs(there)
    answer = carry(a, code=75)
    assert answer["sent"] == 0 and "its mail stays here: ssh-keygen cannot sign" in str(answer["problems"])
    assert refs(there) == before
    settings = a.root / "post-office.yml"
    settings.write_text(settings.read_text().replace(str(locked), str(free)))
    assert carry(a)["sent"] == 1
    found = read_with_jq(there, "a0@b.internal")
    assert sorted(next(iter(one)) for one in found) == ["id", "signed"]
    check_by_hand(there, tmp_path, allow(tmp_path / "signers", a=free))


def check_by_hand(there: Path, tmp_path: Path, signers: Path) -> None:
    """Check a signature with git, jq and ssh-keygen alone, as docs/carrier.md says."""
    script = (
        "git -C $1 archive refs/postmaster/inbox/a0@b.internal | tar -xO > all; "
        "jq -r 'select(.signed) | .signature' all > sig; "
        "grep '^{\"id\":' all | ssh-keygen -Y verify -f $2 -I a.internal -n postmaster-mail -s sig"
    )
    subprocess.run(["sh", "-ec", script, "sh", str(there), str(signers)], cwd=tmp_path, check=True, timeout=30)


@pytest.mark.parametrize(
    ("more", "code", "said"),
    [
        ({"verify": "nowhere/signers"}, 78, "`verify`: {root}/nowhere/signers cannot be read: No such file"),
        ({"sign": "/dev/null"}, 78, "`sign`: /dev/null is not a regular file"),
        ({"sign": "a\tb"}, 78, "`sign` must be the path of a file"),
    ],
)
def test_keys_that_are_not_there(tmp_path: Path, more: dict[str, str], code: int, said: str) -> None:
    """A file that is missing is a fault of the settings, and no letter's."""
    a = office(tmp_path, "a", 1, to_hub(hub(tmp_path), "b.internal", **more))
    done = a.run("carry")
    assert done.returncode == code and said.format(root=a.root) in done.stderr, done.stderr


def test_without_ssh_keygen(tmp_path: Path) -> None:
    """It is said what is missing; the letter stays."""
    there = hub(tmp_path)
    a = office(tmp_path, "a", 1, to_hub(there, "b.internal", sign=key(tmp_path, "a")))
    a.drop("x.md", mail("a0@b.internal", "a0@a.internal"))
    a.route()
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "git").symlink_to(str(shutil.which("git")))
    done = a.run("carry", env={"PATH": str(tools)})
    assert done.returncode == 69 and "apt install openssh-client" in done.stderr, done.stderr
    assert carry(a)["sent"] == 1 and git(there, "for-each-ref", "refs/postmaster/inbox")
