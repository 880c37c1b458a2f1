"""Resolution of host names in daemon threads.

The thread pool of Twisted is joined at exit, so that a name server which does not answer would delay Ctrl-C.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.interfaces import IAddress, IHostnameResolver, IHostResolution, IResolutionReceiver
from zope.interface import implementer


@implementer(IHostResolution)
class Resolution:
    """One resolution, for one name."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.cancelled = False

    def cancel(self) -> None:
        """Discard the result."""
        self.cancelled = True


@implementer(IHostnameResolver)
class DaemonResolver:
    """Implementation of Twisted's resolver by getaddrinfo."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Sequence[type[IAddress]] | None = None,
        transportSemantics: str = "TCP",
    ) -> IHostResolution:
        """Resolve a name to addresses of TCP; no address is reported for an unknown name."""
        resolution = Resolution(hostName)
        resolutionReceiver.resolutionBegan(resolution)

        def look_up() -> None:
            try:
                found = socket.getaddrinfo(hostName, portNumber, 0, socket.SOCK_STREAM)
            except (OSError, UnicodeError):
                found = []
            self._reactor.callFromThread(report, found)

        def report(found: Sequence[Any]) -> None:
            if resolution.cancelled:
                return
            for family, _, _, _, address in found:
                if family == socket.AF_INET:
                    resolutionReceiver.addressResolved(IPv4Address("TCP", *address))
                elif family == socket.AF_INET6:
                    resolutionReceiver.addressResolved(IPv6Address("TCP", *address))
            resolutionReceiver.resolutionComplete()

        threading.Thread(target=look_up, daemon=True).start()
        return resolution
