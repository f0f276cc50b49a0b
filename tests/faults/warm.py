"""A warm interpreter: it has loaded the package once, and forks a child for every run of the command.

So a run costs milliseconds, its system calls are the same every time, and they are the program's own: none of the
interpreter's start is among them. The forked child stops itself until strace(1) has attached, if it is to be traced.

This file is the client (`Warm`) and, run as a program, the server. `Cold` is the usual way, to compare.
"""

import contextlib
import ctypes
import importlib
import json
import os
import pkgutil
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

_PATIENCE: Final = 60.0  # seconds


@dataclass(frozen=True)
class Done:
    """How a run ended. `code` is negative for a signal, as in subprocess. `trace` is what strace wrote."""

    code: int
    out: str
    err: str
    trace: str = ""

    @property
    def killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.code == -signal.SIGKILL


class Warm:
    """The client's end of a warm interpreter. Close it after use."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = scratch
        self._server = subprocess.Popen(
            [sys.executable, str(Path(__file__).resolve())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(),
            cwd=scratch,
        )

    def close(self) -> None:
        """End the server."""
        assert self._server.stdin is not None and self._server.stdout is not None
        self._server.stdin.close()
        self._server.wait(_PATIENCE)
        self._server.stdout.close()

    def run(self, *arguments: str, patch: str | None = None, strace: tuple[str, ...] = ()) -> Done:
        """Run the command once.

        Args:
            patch: a function of wrong.py, called in the child before the command.
            strace: options for strace, which traces the command from its first system call on.
        """
        out, err, trace = (self._scratch / name for name in ("out", "err", "trace"))
        self._send({"arguments": arguments, "patch": patch, "stopped": bool(strace), "out": str(out), "err": str(err)})
        number = self._receive()["pid"]
        tracer = self._attach(number, trace, strace) if strace else None
        status = self._receive()["status"]
        if tracer is not None:
            tracer.wait(_PATIENCE)
        text = trace.read_text(errors="backslashreplace") if strace else ""
        return Done(
            os.waitstatus_to_exitcode(status),
            out.read_text(errors="backslashreplace"),
            err.read_text(errors="backslashreplace"),
            text,
        )

    def _send(self, request: dict[str, Any]) -> None:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        assert line, "the warm interpreter has ended; what it said is on stderr"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _attach(self, number: int, trace: Path, options: tuple[str, ...]) -> "subprocess.Popen[bytes]":
        _await(number, "State", lambda value: value.startswith("T"))
        tracer = subprocess.Popen(
            ["strace", "-qq", "-s", "300", "-o", str(trace), *options, "-p", str(number)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        try:
            _await(number, "TracerPid", lambda value: value != "0", tracer)
        finally:
            os.kill(number, signal.SIGCONT)
        assert tracer.stderr is not None
        tracer.stderr.close()
        return tracer


class Cold:
    """The same, with an interpreter of its own for every run: slower, and what it imports late is traced too."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        self._scratch = scratch

    def run(self, *arguments: str, patch: str | None = None, strace: tuple[str, ...] = ()) -> Done:
        """Run the command once. There is no `patch` here."""
        assert patch is None
        trace = self._scratch / "trace"
        tracer = ["strace", "-qq", "-s", "300", "-o", str(trace), *strace] if strace else []
        done = subprocess.run(
            [*tracer, sys.executable, "-m", "postmaster", *arguments],
            capture_output=True,
            text=True,
            errors="backslashreplace",
            env=environment(),
            cwd=self._scratch,
            timeout=_PATIENCE,
            check=False,
        )
        text = trace.read_text(errors="backslashreplace") if strace else ""
        return Done(done.returncode, done.stdout, done.stderr, text)


def environment() -> dict[str, str]:
    """Return an environment in which the interpreter looks for no translations and writes nothing of its own."""
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0", "LC_ALL": "C.UTF-8"}


class CannotTrace(Exception):
    """strace does not work here; says why."""


def _await(number: int, key: str, wanted: Any, tracer: "subprocess.Popen[bytes] | None" = None) -> None:
    """Wait until a field of /proc/PID/status is as wanted."""
    end = time.monotonic() + _PATIENCE
    while time.monotonic() < end:
        text = Path(f"/proc/{number}/status").read_text()
        if wanted(text.partition(f"\n{key}:")[2].partition("\n")[0].strip()):
            return
        if tracer is not None and tracer.poll() is not None:
            assert tracer.stderr is not None
            raise CannotTrace(tracer.stderr.read().decode(errors="replace").strip())
        time.sleep(0.0005)
    raise TimeoutError(f"{key} of {number}")


# -- the server ----------------------------------------------------------------------------------------------------


def _load_everything() -> None:
    """Import every module, and run every command once, so that a child imports and compiles nothing more."""
    import postmaster
    from postmaster.cli import app

    for module in pkgutil.walk_packages(postmaster.__path__, "postmaster."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    root = tempfile.mkdtemp(prefix="postmaster-warm-")
    declaration = "agents: [{id: w.a, address: a@w.internal, accepts: [{type: t, accepts_from: ['*']}]}]\n"
    letter = "---\nto: b@w.internal\nfrom: a@w.internal\ntype: t\nsubject: s\ncorrelation_id: c\n---\n"
    try:
        with contextlib.redirect_stdout(None), contextlib.redirect_stderr(None):
            app.run(["--root", root, "init"])
            Path(root, "registry.d", "w.yml").write_text(declaration)
            Path(root, "outbox", "dead.md").write_text(letter)
            app.run(["--root", root, "registry", "merge"])
            who = ("--to", "a@w.internal", "--from", "a@w.internal", "--type", "t")
            app.run(["--root", root, "send", *who, "--subject", "s", "--body", "b"])
            app.run(["--root", root, "route", "-v"])
            for name in os.listdir(f"{root}/inboxes/w.a/unread"):
                app.run(["--root", root, "ack", "w.a", name])
            app.run(["--root", root, "dead-letter", "retry", "--all"])
    finally:
        shutil.rmtree(root)


def _child(request: dict[str, Any], patches: ModuleType) -> int:
    """Become the command; return its exit code."""
    for stream, descriptor in (("out", 1), ("err", 2)):
        opened = os.open(request[stream], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, descriptor)
        os.close(opened)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    sys.stdout, sys.stderr = os.fdopen(1, "w", closefd=False), os.fdopen(2, "w", closefd=False)
    sys.argv = ["postmaster", *request["arguments"]]
    if request["patch"]:
        getattr(patches, request["patch"])()
    from postmaster.cli import main

    if request["stopped"]:
        with contextlib.suppress(AttributeError, OSError):  # any process may trace this one (Yama, prctl(2))
            ctypes.CDLL(None).prctl(0x59616D61, ctypes.c_ulong(-1), 0, 0, 0)
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        main()
    except SystemExit as leave:
        return leave.code if isinstance(leave.code, int) else 1
    return 0


def _serve() -> None:
    _load_everything()
    patches = importlib.import_module("wrong")
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        request = json.loads(line)
        number = os.fork()
        if number == 0:
            code = 1
            try:
                code = _child(request, patches)
                sys.stdout.flush()
            except BaseException:
                sys.excepthook(*sys.exc_info())
            with contextlib.suppress(BaseException):
                sys.stderr.flush()
            os._exit(code)
        answers.write(json.dumps({"pid": number}) + "\n")
        answers.flush()
        status = os.waitpid(number, 0)[1]
        answers.write(json.dumps({"status": status}) + "\n")
        answers.flush()


if __name__ == "__main__":
    _serve()
