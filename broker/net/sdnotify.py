"""Telling the service manager how the daemon is: the notification protocol of sd_notify(3).

Rules:
- Each message is one datagram of lines ``NAME=VALUE`` to the unix socket that ``NOTIFY_SOCKET`` names; without that
  variable nothing is sent.
- The watchdog is fed from the reactor, at half the interval of ``WATCHDOG_USEC`` (sd_watchdog_enabled(3)): a stalled
  reactor does not feed it.
- The service manager is a listener, not a master: that it cannot be told is logged once, and changes nothing.
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
    """Speaks to the service manager that ``environ`` names, if it names one."""

    log = Logger()

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._beat: LoopingCall | None = None
        self._complained = False

    def start(self, clock: IReactorTime) -> None:
        """The daemon serves from now on; feed the watchdog on ``clock``, if there is one, until `stop`."""
        self.ready()
        interval = self.watchdog_interval()
        if interval is not None and self._beat is None:
            self._beat = LoopingCall(self.watchdog)
            self._beat.clock = clock
            # A failing call would end the loop, but sending catches what can go wrong.
            self._beat.start(interval, now=True)

    def stop(self) -> None:
        """Feed the watchdog no more. Not needed in a process that ends: it is watched until then."""
        if self._beat is not None:
            self._beat.stop()
            self._beat = None

    def ready(self) -> None:
        """Started, or reloaded."""
        self._send("READY=1")

    def reloading(self) -> None:
        """Reading the configuration again; `ready` must follow."""
        # systemd compares it with its own CLOCK_MONOTONIC, so that it is no time of the reactor's clock.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1_000}")

    def stopping(self) -> None:
        """Beginning to stop."""
        self._send("STOPPING=1")

    def status(self, text: str) -> None:
        """One line for people, in ``systemctl status``; further lines of it are joined to the first."""
        self._send(f"STATUS={' '.join(text.splitlines())}")

    def watchdog(self) -> None:
        """One sign of life."""
        self._send("WATCHDOG=1")

    def watchdog_interval(self) -> float | None:
        """Seconds between two signs of life; None if nobody waits for them."""
        limit = self._environ.get("WATCHDOG_USEC", "")
        if not limit.isdecimal() or int(limit) == 0:
            return None
        # A child of the process that is watched has the variable too.
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
                # The reactor must not wait for a service manager that does not read.
                datagrams.setblocking(False)
                datagrams.sendto(message.encode("utf-8", "replace"), address)
        except OSError as error:
            if not self._complained:
                self._complained = True
                self.log.warn("the service manager cannot be told at {path}: {why}", path=path, why=str(error))
