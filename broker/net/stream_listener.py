"""A listener of streams: its endpoint, its TLS certificates, and the factory of its connections."""

from __future__ import annotations

from typing import Any, Protocol, cast

import attrs
from twisted.internet.defer import Deferred, maybeDeferred, succeed
from twisted.internet.interfaces import IListeningPort

from broker.config.endpoint import Endpoint
from broker.net.admission import Accepting
from broker.net.endpoints import CannotListen, bound, listen
from broker.net.line_protocol import LineFactory
from broker.net.rate_limits import Complaints
from broker.net.scheduler import Turns
from broker.net.tls import Certificates, TlsFactory


class Carrier(Protocol):
    """A factory of connections, and what the daemon asks of it."""

    port: Accepting | None

    def limit(self, limits: Any) -> None:
        """Other limits from now on."""

    def close(self) -> Deferred[None]:
        """Close all connections in good order. Fires when they are closed."""


@attrs.define
class StreamListener:
    """A listener of streams. ``port`` is None until it is open, ``certificates`` also where it has no TLS.

    ``protocol`` is what a service descriptor says of it; ``lines`` has its connections.
    """

    reactor: Any
    endpoint: Endpoint
    carrier: Carrier
    lines: LineFactory
    turns: Turns
    complaints: Complaints
    protocol: str = "tcp"
    port: IListeningPort | None = None
    certificates: Certificates | None = None

    def open(self) -> str:
        """Listen. Returns the bound address. Raises `CannotListen` with nothing open."""
        try:
            # Read for each attempt: the files may have changed since the last one.
            certificates = _certificates(self.endpoint)
        except (OSError, ValueError) as error:
            raise CannotListen(str(error)) from None
        factory: Any = self.carrier
        if certificates is not None:
            factory = TlsFactory(factory, certificates, self.turns, self.complaints)
        self.port = listen(self.reactor, self.endpoint, factory)
        self.carrier.port = cast(Accepting, self.port)
        self.certificates = certificates
        return bound(self.port)

    def stop_listening(self) -> Deferred[Any]:
        """Accept no more connections. Fires when that is so."""
        port, self.port = self.port, None
        return succeed(None) if port is None else maybeDeferred(port.stopListening)


def _certificates(endpoint: Endpoint) -> Certificates | None:
    if endpoint.kind != "tls":
        return None
    options = endpoint.kwargs
    return Certificates(options["certificate"], options["key"], options.get("ca"))
