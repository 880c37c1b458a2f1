"""The real ``twistd elkobroker`` as a subprocess, and plain sockets to speak to it."""

from __future__ import annotations

import fcntl
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.integration.forked_daemons import ForkedProcess, start
from tests.patience import PATIENCE

ROOT = Path(__file__).parents[2]

BLOCKED = " blocks the reactor's thread:"
"""A part of the line of the log about a defect: `broker.core.worker.log_defect`."""

READ_AT_START = frozenset({"PYTHONPATH", "LD_PRELOAD"})
"""Variables that a forked process would ignore."""


def twistd() -> str:
    """The twistd of this very Python."""
    return str(Path(sys.executable).with_name("twistd"))


def environment(**extra: str) -> dict[str, str]:
    """The environment of a daemon that nothing of the tester's own machine leaks into."""
    kept = {k: v for k, v in os.environ.items() if k not in ("NOTIFY_SOCKET", "STATE_DIRECTORY", "WATCHDOG_USEC")}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1", **extra}


def installed_environment(**extra: str) -> dict[str, str]:
    """The environment of an installed program, which does not find the modules of the checkout."""
    kept = environment(**extra)
    del kept["PYTHONPATH"]
    return kept


def _has(options: Sequence[str], section: str) -> bool:
    """Return True if a configuration file has the header of a section, or the lines at its beginning."""
    files = [Path(file) for option, file in pairwise(options) if option == "--config"]
    return any(file.exists() and section in file.read_text() for file in files)


class Daemon:
    """A running daemon in its own directory; ``log`` is what it printed so far.

    ``descriptors`` limits its file descriptors. With ``full`` it cannot write to any file, as on a full disk;
    ``runner`` is a command that runs it, in a namespace of its own for example. Without these, and without variables
    that the interpreter reads at its start, the daemon is forked. ``twistd_options`` are those of twistd itself.
    """

    forked = True
    """False in tests of the start itself, which run the program (`StartedDaemon`)."""

    def __init__(
        self,
        directory: Path,
        *options: str,
        port: int = 0,
        console: str = "0",
        env: dict[str, str] | None = None,
        descriptors: int | None = None,
        full: bool = False,
        runner: Sequence[str] = (),
        twistd_options: Sequence[str] = (),
    ) -> None:
        self.directory = directory
        self.log: list[str] = []
        self._lines: queue.Queue[str | None] = queue.Queue()
        if "--config" not in options:
            options = ("--port", str(port), *options)
            if "--mc0-port" not in options:
                options = ("--mc0-port", "0", *options)
            if "--dbp-port" not in options:
                options = ("--dbp-port", "0", *options)
        if "--http-port" not in options and not _has(options, "[http]"):
            options = ("--http-port", "0", *options)
        if "--mtl-port" not in options and not _has(options, "[mtl]"):
            options = ("--mtl-port", "0", *options)
        if not _has(options, "[console]\nendpoint"):
            options = ("--console-port", console, *options)
        arguments = ["-n", "--pidfile=", *twistd_options, "elkobroker", *options]
        if "STATE_DIRECTORY" not in (env or {}) and "--state" not in options:
            arguments += ["--state", str(directory / "state")]
        self.process: subprocess.Popen[str] | ForkedProcess
        special = not READ_AT_START.isdisjoint(env or {}) or descriptors is not None or full or bool(runner)
        if self.forked and not special:
            self.process = start(arguments, directory, environment(**(env or {})))
        else:
            self.process = self._executed(arguments, env, descriptors, full, runner)
        self._reading = threading.Event()
        self._reading.set()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _executed(
        self,
        arguments: Sequence[str],
        env: dict[str, str] | None,
        descriptors: int | None,
        full: bool,
        runner: Sequence[str],
    ) -> subprocess.Popen[str]:
        command = [twistd(), *arguments]
        if descriptors is not None:
            command = ["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh", *command]
        if full:
            command = ["sh", "-c", 'ulimit -S -f 0; exec "$@"', "sh", *command]
        return subprocess.Popen(
            [*runner, *command],
            cwd=self.directory,
            env=environment(**(env or {})),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )

    def __enter__(self) -> Daemon:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._reading.set()
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        assert self.process.stdout is not None
        self.process.stdout.close()
        if error is None:
            self._never_blocked()

    def _never_blocked(self) -> None:
        """Fail if something blocked the thread of its reactor: see `tests.blocking_guard`."""
        while not self._lines.empty():
            self.log.append(self._lines.get() or "")
        blocked = [number for number, line in enumerate(self.log) if BLOCKED in line]
        assert not blocked, "".join(self.log[blocked[0] : blocked[0] + 1])

    def wait_for(self, pattern: str) -> re.Match[str]:
        """The first log line, from the beginning, that matches; waits for it."""
        for known in self.log:
            if match := re.search(pattern, known):
                return match
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                raise AssertionError(f"no line matches {pattern!r} in:\n{''.join(self.log)}") from None
            if line is None:
                self._lines.put(None)
                raise AssertionError(f"ended without a line that matches {pattern!r}:\n{''.join(self.log)}")
            self.log.append(line)
            if match := re.search(pattern, line):
                return match

    def pause_output(self) -> None:
        """Read no more of its output, as a paused terminal does: a pipe of one page, which is soon full."""
        assert self.process.stdout is not None
        fcntl.fcntl(self.process.stdout, fcntl.F_SETPIPE_SZ, 4_096)
        self._reading.clear()

    def resume_output(self) -> None:
        """Read its output again."""
        self._reading.set()

    def port(self, listener: str = "main") -> int:
        """The TCP port of a listener, once it is open."""
        return int(self.wait_for(rf"elko listener '{listener}' on \S+:(\d+) ").group(1))

    def console_port(self) -> int:
        """The TCP port of the console."""
        return int(self.wait_for(r"console on \S+:(\d+)").group(1))

    def http_port(self) -> int:
        """The TCP port of HTTP."""
        return int(self.wait_for(r"http on \S+:(\d+) \(").group(1))

    def mc0_port(self) -> int:
        """The TCP port of mc0."""
        return int(self.wait_for(r"mc0 on tcp://127\.0\.0\.1:(\d+) \(").group(1))

    def dbp_port(self) -> int:
        """The TCP port of DBP; that of its heartbeats has the same number, unless the configuration says otherwise."""
        return int(self.wait_for(r"dbp on tcp://127\.0\.0\.1:(\d+) \(").group(1))

    def connect(self, role: str | None = "client", **auth: Any) -> Peer:
        """A connected peer; authenticated unless ``role`` is None."""
        peer = Peer(socket.create_connection(("127.0.0.1", self.port()), PATIENCE))
        if role is not None:
            peer.send(to=role, op="auth", **auth)
        return peer

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)

    def ended(self) -> int:
        """Its exit status, negative for a signal; waits for the end."""
        return self.process.wait(PATIENCE)

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
            self._reading.wait()
        self._lines.put(None)


class StartedDaemon(Daemon):
    """A daemon that is the program itself, from its first instruction on."""

    forked = False


class Peer:
    """One plain connection."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.sock.close()

    def send(self, /, **message: Any) -> None:
        """Send one message as real peers do: strict JSON and an empty line."""
        self.send_at_once(message)

    def send_at_once(self, *messages: dict[str, Any]) -> None:
        """Send messages in one packet: the broker has all of them before it answers the first one."""
        self.sock.sendall(b"".join(json.dumps(each).encode() + b"\n\n" for each in messages))

    def receive(self) -> Any:
        """The next message; EOFError at the end of input."""
        while b"\n\n" not in self._buffer:
            data = self.sock.recv(65536)
            if not data:
                raise EOFError(self._buffer)
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\n\n")
        return json.loads(message)

    def ask(self, /, **message: Any) -> Any:
        """Send a message and return the next one received."""
        self.send(**message)
        return self.receive()

    def done(self) -> None:
        """Return when the broker has handled all that was sent so far."""
        answer = self.ask(to="error", op="ping", tag="done")
        while answer.get("op") == "ping":  # a check of the broker, as on a slow machine
            answer = self.receive()
        assert answer["tag"] == "done", answer

    def closed(self) -> None:
        """Assert that the broker closes this connection, in good order and with nothing more to say."""
        assert self._buffer == b""
        assert self.sock.recv(65536) == b""
