"""Serving the mail page for a test: the installed command on a free port, and a plain HTTP client."""

import contextlib
import http.client
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import IO

from support import POSTMASTER, Box


@dataclass
class Answer:
    """What came back. Header names are in lower case."""

    status: int
    headers: dict[str, str]
    text: str


@dataclass
class Served:
    """A page that is served: where, and by which process."""

    process: subprocess.Popen[str]
    address: str
    port: int
    said: IO[str]

    @property
    def base(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, headers: Mapping[str, str] | None = None, method: str = "GET") -> Answer:
        """Ask for `path` as it is written; nothing is followed."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            given = dict(headers or {})
            connection.putrequest(method, path, skip_host="Host" in given)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            came = connection.getresponse()
            text = "" if "event-stream" in came.headers.get("content-type", "") else came.read().decode()
            return Answer(came.status, {name.lower(): value for name, value in came.getheaders()}, text)
        finally:
            connection.close()

    def errors(self) -> str:
        """Return what it has written on stderr."""
        self.said.seek(0)
        return self.said.read()


@contextlib.contextmanager
def served(box: Box, *options: str) -> Iterator[Served]:
    """Serve the page of an office while the block runs."""
    environment = os.environ | {"XDG_STATE_HOME": str(box.world / "state")}
    with tempfile.TemporaryFile("w+") as said:
        process = subprocess.Popen(
            [*POSTMASTER, "--root", str(box.root), "screen", "--port", "0", *options],
            stdout=subprocess.PIPE,
            stderr=said,
            env=environment,
            text=True,
        )
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            found = re.search(r"(http://\S+:(\d+)/\S*)", line)
            said.seek(0)
            assert found, (line, said.read())
            yield Served(process, found[1], int(found[2]), said)
        finally:
            process.kill() if process.poll() is None else None
            process.wait(10)
            process.stdout.close()
