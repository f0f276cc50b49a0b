"""SSH signatures of letters: the one place that runs ssh-keygen (ssh-keygen(1), `-Y sign` and `-Y verify`).

Signed is the letter's line as it stands in the mailbox, newline included; the principal is the domain of the sender;
the namespace is fixed, so that a signature made for anything else counts for nothing here.
"""

import os
import stat
import subprocess
from collections.abc import Collection, Iterable
from typing import Final

from postmaster import remotes
from postmaster.carrier import lines
from postmaster.carrier.lines import Letter, Signature
from postmaster.errors import ConfigurationFault, DiskFault, Missing
from postmaster.office import Office, absolute
from postmaster.remotes import BADLY_SIGNED, UNSIGNED, Remote

NAMESPACE: Final = "postmaster-mail"
_SECONDS: Final = 30.0
_MOST: Final = 5  # signatures of one letter that are looked at: whoever adds more wants to keep this office busy


class Keys:
    """What the letters of each remote are signed with, and held against.

    Raises:
        ConfigurationFault: a file that `sign` or `verify` names cannot be read.
    """

    def __init__(self, office: Office, known: Iterable[Remote]) -> None:
        self._sign: dict[str, str] = {}
        self._verify: dict[str, str] = {}
        for remote in known:
            for found, key, path in ((self._sign, "sign", remote.sign), (self._verify, "verify", remote.verify)):
                if path:
                    found[remote.name] = absolute(path, office.root)
                    _require(found[remote.name], f"{office.settings_file}: remote {remote.name}: `{key}`")

    def sign(self, remote: Remote, added: Collection[bytes]) -> set[bytes]:
        """Return a line with a signature for each letter among lines, if mail to this remote is signed.

        Raises:
            Unsigned: it cannot be signed; the text says why.
            Missing, DiskFault: there is no ssh-keygen, or it was stopped.
        """
        key = self._sign.get(remote.name)
        made: set[bytes] = set()
        for line in added if key is not None else ():
            letter = lines.decode(line)
            if isinstance(letter, Letter):
                done = _run(["-Y", "sign", "-q", "-f", str(key), "-n", NAMESPACE], line)
                try:
                    if done.returncode:
                        raise ValueError(done.stderr.decode("utf-8", "backslashreplace"))
                    made.add(Signature(letter.id, done.stdout.decode("ascii")).line())
                except ValueError as fault:
                    raise Unsigned(f"ssh-keygen cannot sign with {key}: {' '.join(str(fault).split())}") from fault
        return made

    def doubt(self, remote: Remote, letter: Letter, signatures: Iterable[str]) -> str:
        """Return why a letter that a remote has brought is not believed; empty if it is, or nobody asked.

        Raises:
            Missing, DiskFault: there is no ssh-keygen, or it was stopped.
        """
        allowed = self._verify.get(remote.name)
        domain = remotes.domain_of(letter.sender)
        if allowed is None or domain not in remote.domains:  # the latter is refused whoever has signed it
            return ""
        found = sorted(signatures)[:_MOST]
        return "" if any(_holds(allowed, domain, letter, one) for one in found) else BADLY_SIGNED if found else UNSIGNED


class Unsigned(Exception):
    """A letter could not be signed; it stays here."""


def _holds(allowed: str, domain: str, letter: Letter, signature: str) -> bool:
    """Tell whether a signature is that of a key which `allowed` (a file of allowed signers) gives to `domain`."""
    reading, writing = os.pipe()  # ssh-keygen wants a file for it; this one leaves nothing behind
    try:
        with open(writing, "wb") as stream:
            stream.write(signature.encode("ascii"))  # less than a pipe holds
        words = ["-Y", "verify", "-q", "-f", allowed, "-I", domain, "-n", NAMESPACE, "-s", f"/dev/fd/{reading}"]
        return _run(words, letter.line(), reading).returncode == 0
    finally:
        os.close(reading)


def _run(words: list[str], data: bytes, *descriptors: int) -> subprocess.CompletedProcess[bytes]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "SSH_AUTH_SOCK") if name in os.environ}
    try:
        done = subprocess.run(  # noqa: S603
            ["ssh-keygen", *words],  # noqa: S607
            input=data,
            capture_output=True,
            env=kept | {"LC_ALL": "C", "SSH_ASKPASS": "/bin/false", "SSH_ASKPASS_REQUIRE": "force"},
            cwd="/",
            timeout=_SECONDS,
            pass_fds=descriptors,
            start_new_session=True,  # no terminal: nobody is asked for a passphrase
            check=False,
        )
    except FileNotFoundError as fault:
        raise Missing(
            "ssh-keygen is not installed; `sign` and `verify` need it (apt install openssh-client)"
        ) from fault
    except subprocess.TimeoutExpired as fault:
        raise DiskFault(f"ssh-keygen: no end after {_SECONDS:g} seconds; the next run tries again") from fault
    if done.returncode < 0:  # says nothing of the signature
        raise DiskFault(f"ssh-keygen: stopped by signal {-done.returncode}; the next run tries again")
    return done


def _require(path: str, what: str) -> None:
    """Make sure that a file is there: else all mail would look badly signed."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as stream:
            if stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                return
        why = "is not a regular file"
    except OSError as fault:
        why = f"cannot be read: {fault.strerror}"
    raise ConfigurationFault(f"{what}: {path} {why}")
