"""Connections to an endpoint of etcd: opened over TCP or TLS, counted, and closed together."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure
from twisted.web.client import URI
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from broker.cluster.etcd.credentials import Tls

CONNECT = 2.0
"""Seconds for a connection with the resolution of its name: on a local network it takes milliseconds."""


@attrs.frozen
class Address:
    """Address of an endpoint, and its settings of TLS, None without."""

    host: str
    port: int
    tls: Tls | None


class OpenConnections:
    """The open connections of an endpoint."""

    def __init__(self) -> None:
        self._open: set[_Connection] = set()
        self._emptied: list[Deferred[None]] = []

    def add(self, connection: _Connection) -> None:
        """Add an open connection."""
        self._open.add(connection)

    def remove(self, connection: _Connection) -> None:
        """Remove a closed connection."""
        self._open.discard(connection)
        while not self._open and self._emptied:
            self._emptied.pop().callback(None)

    async def close(self) -> None:
        """Abort all connections. Returns when all are closed."""
        if self._open:
            done: Deferred[None] = Deferred()
            self._emptied.append(done)
            for each in list(self._open):
                each.abort()
            await done


@implementer(IAgentEndpointFactory, IStreamClientEndpoint)
class Connector:
    """Opens connections to an address for an `Agent`.

    ``limit`` bounds the bytes of one answer together with its head, None for a stream whose reader has its own bound:
    Twisted bounds a line of headers, but not their number. ``exceeded`` is True after a connection was aborted for it.
    """

    def __init__(self, reactor: Any, address: Address, opened: OpenConnections, limit: int | None) -> None:
        self._reactor = reactor
        self._address = address
        self.opened = opened
        self.limit = limit
        self.exceeded = False

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return the endpoint of a connection: this one."""
        return self

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect, and return the protocol of the factory."""
        address = self._address
        # Twisted logs the start and the stop of each factory otherwise, two lines for a connection.
        quiet: Any = protocolFactory
        quiet.noisy = False
        counted = _Factory(protocolFactory, self)
        plain = HostnameEndpoint(self._reactor, address.host, address.port, timeout=CONNECT)
        if address.tls is None:
            return plain.connect(counted).addCallback(_inner)

        def connect(creator: IOpenSSLClientConnectionCreator) -> Deferred[IProtocol]:
            # Twisted's own endpoint of TLS takes its clock from the global reactor.
            over_tls = TLSMemoryBIOFactory(creator, True, counted, self._reactor)
            over_tls.noisy = False
            return plain.connect(over_tls)

        return address.tls.creator(address.host).addCallback(connect).addCallback(_inner).addCallback(_inner)


def _inner(wrapper: Any) -> Any:
    return wrapper.wrappedProtocol


class _Connection(ProtocolWrapper):
    """A connection that is aborted if an answer has too many bytes. The count begins again with each write."""

    factory: _Factory
    _received = 0

    def connectionMade(self) -> None:
        self.factory.connector.opened.add(self)
        super().connectionMade()  # type: ignore[no-untyped-call]

    def write(self, data: bytes) -> None:
        self._received = 0
        super().write(data)  # type: ignore[no-untyped-call]

    def writeSequence(self, data: Any) -> None:
        self._received = 0
        super().writeSequence(data)  # type: ignore[no-untyped-call]

    def dataReceived(self, data: bytes) -> None:
        connector = self.factory.connector
        self._received += len(data)
        if connector.limit is not None and self._received > connector.limit:
            connector.exceeded = True
            self.abort()
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.factory.connector.opened.remove(self)
        super().connectionLost(reason)  # type: ignore[no-untyped-call]

    def abort(self) -> None:
        """Close at once."""
        transport: Any = self.transport
        transport.abortConnection()


class _Factory(WrappingFactory[_Connection]):
    """Wraps the connections of a `Connector`."""

    protocol = _Connection
    noisy = False

    def __init__(self, factory: IProtocolFactory, connector: Connector) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.connector = connector
