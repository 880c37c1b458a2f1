"""Service manager notifications: the protocol of sd_notify(3).

Rules:
- Each message is one datagram of lines ``NAME=VALUE`` to the Unix socket in ``NOTIFY_SOCKET``; without that variable
  nothing is sent.
- The watchdog messages come from the reactor, at half the interval of ``WATCHDOG_USEC`` (sd_watchdog_enabled(3)): a
  stalled reactor sends none.
- A failure to notify is logged once, and has no other effect.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Mapping

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import LoopingCall
from twisted.logger import Logger


class SystemdNotifier:
    """Notifier for the service manager that ``environ`` names; no-op if it names none."""

    log = Logger()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._beat: LoopingCall | None = None
        self._complained = False

    def start(self, clock: IReactorTime) -> None:
        """Report readiness, and send watchdog messages on ``clock`` until `stop`, if a watchdog is configured."""
        self.ready()
        interval = self.watchdog_interval()
        if interval is not None and self._beat is None:
            self._beat = LoopingCall(self.watchdog)
            self._beat.clock = clock
            # LoopingCall ends at an exception; `_send` handles the expected ones.
            self._beat.start(interval, now=True)

    def stop(self) -> None:
        """Stop the watchdog messages. Need not be called before the process exits: the watchdog covers the shutdown."""
        if self._beat is not None:
            self._beat.stop()
            self._beat = None

    def ready(self) -> None:
        """Report a completed start or reload."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Report the start of a reload; `ready` must follow."""
        # systemd compares this with its own CLOCK_MONOTONIC, so that the reactor's clock does not fit.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")

    def stopping(self) -> None:
        """Report the start of the shutdown."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """Set the status line of ``systemctl status``. Line breaks become spaces."""
        self._send(f"STATUS={' '.join(text.splitlines())}")

    def waiting(self, text: str, seconds: float) -> None:
        """Report that the start takes longer: set the status line, and ask for ``seconds`` from now on."""
        self._send(f"EXTEND_TIMEOUT_USEC={int(seconds * 1_000_000)}\nSTATUS={' '.join(text.splitlines())}")

    def watchdog(self) -> None:
        """Send one watchdog message."""
        self._send("WATCHDOG=1")

    def watchdog_interval(self) -> float | None:
        """Return the seconds between two watchdog messages; None without a watchdog."""
        limit = self._environ.get("WATCHDOG_USEC", "")
        if not limit.isdecimal() or int(limit) == 0:
            return None
        # Child processes inherit the variable, but only the process in WATCHDOG_PID is watched.
        if self._environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
            return None
        return int(limit) / 1_000_000 / 2

    def _send(self, message: str) -> None:
        path = self._environ.get("NOTIFY_SOCKET")
        if not path:
            return
        address = os.fsencode(path)
        if address.startswith(b"@"):
            address = b"\0" + address[1:]
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagrams:
                # Non-blocking: the reactor must not wait for a service manager that does not read.
                datagrams.setblocking(False)
                datagrams.sendto(message.encode("utf-8", "replace"), address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.log.warn("cannot notify the service manager at {path}: {why}", path=path, why=str(error))
