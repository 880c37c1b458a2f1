"""Stream listener: an endpoint, its TLS certificates, and the factory of its connections.

`broker.net.endpoints` opens the port, `broker.net.tls` adds TLS, and `broker.net.listener_retry` retries a failed open.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort

from broker import pem
from broker.config.endpoint import Endpoint
from broker.core.place_table import PlaceTable
from broker.net.endpoints import CannotListen, bound, listen
from broker.net.line_protocol import LineFactory
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Scheduler
from broker.net.tls import Certificates, TlsFactory


class Carrier(Protocol):
    """A connection factory with the operations of a listener."""

    @property
    def table(self) -> PlaceTable:
        """The places of the connections."""

    def limit(self, limits: Any) -> None:
        """Apply new limits."""

    def close(self) -> Deferred[None]:
        """Close all connections in order. Fires when they are closed."""


@attrs.define
class StreamListener:
    """A stream listener. ``port`` is None until it is open, and ``certificates`` until they were read first: a reload
    reads them again. Without TLS it stays None.

    ``protocol`` is its protocol in a service descriptor; ``lines`` has its connections.
    """

    reactor: Any
    endpoint: Endpoint
    carrier: Carrier
    lines: LineFactory
    turns: Scheduler
    complaints: Complaints
    protocol: str = "tcp"
    port: IListeningPort | None = None
    certificates: Certificates | None = None

    def open(self) -> str:
        """Open the port. Returns the bound address. Raises `CannotListen` with nothing open."""
        try:
            files = pem.Files.of(self.endpoint)
            if files is not None and self.certificates is None:
                self.certificates = Certificates(files)
        except ValueError as error:
            raise CannotListen(str(error)) from None
        factory: Any = self.carrier
        if self.certificates is not None:
            factory = TlsFactory(factory, self.certificates, self.turns, self.complaints)
        self.port = listen(self.reactor, self.endpoint, factory)
        return bound(self.port)

    def stop_listening(self) -> Deferred[Any]:
        """Stop accepting. Fires when the port is closed."""
        port, self.port = self.port, None
        return succeed(None) if port is None else maybeDeferred(port.stopListening)
