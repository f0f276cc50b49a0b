"""A real SSH server on loopback, for one test: its own keys and port, and a client that knows of no other."""

import contextlib
import os
import pwd
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SSHD = "/usr/sbin/sshd"
CAN_RUN = os.geteuid() == 0 and Path(_SSHD).exists() and bool(shutil.which("ssh") and shutil.which("unshare"))


@dataclass(frozen=True)
class Server:
    """Where it listens, and what to run a command with so that `ssh` finds the keys (in a mount namespace)."""

    port: int
    prefix: tuple[str, ...]

    def url(self, path: Path) -> str:
        """Return how git writes a repository that is reached through this server."""
        return f"ssh://root@127.0.0.1:{self.port}{path}"


@contextlib.contextmanager
def server(place: Path) -> Iterator[Server]:
    """Run sshd(8); `place` is a directory of its own. The account's own ~/.ssh is neither read nor changed."""
    client = place / "client"
    client.mkdir(parents=True, mode=0o700)
    for key in (place / "host", client / "id_ed25519"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shutil.copy(client / "id_ed25519.pub", place / "authorized")
    (client / "known_hosts").write_text(f"[127.0.0.1]:{port} {(place / 'host.pub').read_text()}")
    (place / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {place}/host\nAuthorizedKeysFile {place}/authorized\nUsePAM no\n"
        "StrictModes no\nPermitRootLogin yes\nPidFile none\nMaxStartups 100\n"
    )
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd's own, for its privilege separation
    home = Path(pwd.getpwuid(os.getuid()).pw_dir) / ".ssh"
    home.mkdir(mode=0o700, exist_ok=True)
    script = f'mount --bind "{client}" "{home}" && exec "$@"'
    with subprocess.Popen([_SSHD, "-D", "-e", "-f", str(place / "config")], stderr=subprocess.DEVNULL) as run:
        try:
            for _ in range(100):
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.1)
            yield Server(port, ("unshare", "-m", "sh", "-c", script, "sh"))
        finally:
            run.terminate()
