"""Daemons that are forked from a process which has imported all they need: a start takes 0.05 s of CPU time, not 1.5 s.

Most of the time of a start is imports, and the tests start hundreds of daemons. So one process for each test process,
the *template*, imports Twisted and the broker once. For each start it forks: the child has the arguments, the
directory, the environment and the output of the start, and runs twistd's own ``run``. The reactor is made in the child,
since a fork shares the epoll set.

Tests of the start itself run the program instead (`tests.integration.daemon.StartedDaemon`).
"""

from __future__ import annotations

import atexit
import gc
import io
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from typing import IO, Any

from twisted.application.service import IServiceMaker
from twisted.plugin import getPlugins

from broker import wires
from broker.app.process_start import ALLOCATOR
from tests import blocking_guard

ROOT = Path(__file__).parents[2]

LONGEST = 1 << 20
"""Bytes of one start: its arguments and its environment."""


class ForkedProcess:
    """A forked daemon, with the part of the interface of `subprocess.Popen` that tests use."""

    def __init__(self, pid: int, stdout: IO[str], ends: socket.socket) -> None:
        self.pid = pid
        self.stdout: IO[str] | None = stdout
        self.returncode: int | None = None
        self._ends = ends

    def poll(self) -> int | None:
        """Return the exit status, negative for a signal; None while it runs."""
        if self.returncode is None and select.select([self._ends], [], [], 0)[0]:
            self._end()
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal, at the end. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            if not select.select([self._ends], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("twistd", timeout or 0.0)
            self._end()
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # its end has not been reported yet
                os.kill(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def _end(self) -> None:
        said = self._ends.recv(16)
        self._ends.close()
        # Without a status, the template was killed.
        self.returncode = int(said) if said else -signal.SIGKILL


class Template:
    """The template of this test process. It ends with it."""

    def __init__(self) -> None:
        self._starts, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.integration.forked_daemons", str(theirs.fileno())],
                cwd=ROOT,
                env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", ALLOCATOR: "malloc"},
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )
        atexit.register(self.stop)

    def start(self, arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> ForkedProcess:
        """Start twistd with these arguments."""
        ends, child_ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        reading, writing = os.pipe()
        text = json.dumps({"arguments": arguments, "cwd": str(cwd), "env": dict(env)}).encode()
        with child_ends:
            try:
                socket.send_fds(self._starts, [text], [writing, child_ends.fileno()])
            finally:
                os.close(writing)
        pid = int(ends.recv(16))
        return ForkedProcess(pid, open(reading, errors="replace"), ends)

    def stop(self) -> None:
        """End the template."""
        self._starts.close()
        self._process.wait()


_template: dict[int, Template] = {}


def start(arguments: Sequence[str], cwd: Path, env: Mapping[str, str]) -> ForkedProcess:
    """Start twistd with these arguments. The first call makes the template."""
    # By process: one that was forked from a test process must not use its template.
    template = _template.get(os.getpid())
    if template is None:
        template = _template[os.getpid()] = Template()
    return template.start(arguments, cwd, env)


# in the template


def serve(starts: socket.socket) -> dict[str, Any] | None:
    """Fork for each start, and report the ends. Returns the start in a child; None at the end of the test process."""
    wake, waking = socket.socketpair()
    waking.setblocking(False)
    signal.set_wakeup_fd(waking.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    ends: dict[int, int] = {}
    while True:
        ready, _, _ = select.select([starts, wake], [], [])
        if wake in ready:
            wake.recv(64)
            while ends:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                end = ends.pop(pid)
                _say(end, os.waitstatus_to_exitcode(status))
                os.close(end)
        if starts in ready:
            text, fds, _, _ = socket.recv_fds(starts, LONGEST, 2)
            if not text:
                return None
            output, end = fds
            pid = os.fork()
            if not pid:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                for sock in (starts, wake, waking):
                    sock.close()
                for each in (end, *ends.values()):
                    os.close(each)
                _write_to(output)
                return dict(json.loads(text))
            os.close(output)
            ends[pid] = end
            _say(end, pid)


def _say(end: int, number: int) -> None:
    with socket.socket(fileno=os.dup(end)) as sock, suppress(OSError):  # the test process has ended
        sock.send(b"%d" % number)


def _write_to(output: int) -> None:
    """Make that the output, unbuffered as with ``PYTHONUNBUFFERED``."""
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.close(output)
    # Not the former objects: they remember whether the template's own output can seek.
    sys.stdout = io.TextIOWrapper(io.FileIO(1, "w", closefd=False), write_through=True)
    sys.stderr = io.TextIOWrapper(io.FileIO(2, "w", closefd=False), errors="backslashreplace", write_through=True)


def main() -> None:
    """Run a template, and the daemons that it forks."""
    twistd = import_module("twisted.scripts.twistd")
    for name in ("twisted.internet.epollreactor", "broker.app.daemon"):
        import_module(name)
    for module in walk_packages(wires.__path__, "broker.wires."):
        import_module(module.name)
    list(getPlugins(IServiceMaker))
    assert "twisted.internet.reactor" not in sys.modules
    # The types of all keys, which are read once.
    import_module("broker.tap").Options().parseOptions(["--port", "0"])
    gc.collect()
    gc.freeze()  # a collection in the child would copy every page
    given = serve(socket.socket(fileno=int(sys.argv[1])))
    if given is not None:
        os.environ.clear()
        os.environ.update(given["env"])
        time.tzset()
        os.chdir(given["cwd"])
        sys.argv = ["twistd", *given["arguments"]]
        blocking_guard.install()
        twistd.run()


if __name__ == "__main__":
    main()
