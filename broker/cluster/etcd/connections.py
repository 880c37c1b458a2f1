"""Connections to an endpoint of etcd: opened over TCP or TLS, counted, and closed together."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

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
from twisted.web.client import URI, Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from broker.cluster.etcd.codec import Request, authenticate_request, problem, token
from broker.cluster.etcd.etcd_credentials import Tls, Token
from broker.cluster.etcd.etcd_interface import Denied, Unavailable
from broker.cluster.etcd.failures import PRECONDITION, NeedsToken, explained, refusal
from broker.http_bodies import Body, Uncompressed, collect, late

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


# One endpoint of etcd: its connections, and requests over them with bounds on time and memory.

PORT = 2379
"""Port of an endpoint without one: etcd's own default."""

TIMEOUT = 3.0
"""Seconds for one request at one endpoint with its complete answer: a change of etcd's leader takes 1 to 2 s. A request
that takes longer, such as a write at a member that has just lost its quorum, succeeds sooner at the next endpoint."""

MAX_HEAD = 64 * 1024
"""Bytes of an answer before its body; etcd's are some hundred. Twisted bounds a line of headers, not their number."""

MAX_BODY = 64 * 1024 * 1024
"""Bytes of the body of an answer: forty of the largest values of etcd, or 100,000 providers of a usual size."""

MAX_ERROR = 64 * 1024
"""Bytes of the body of an error: etcd's are some hundred."""

CACHED = 60
"""Seconds for which an unused connection is kept; renewals of the lease use one every few seconds."""


class Endpoint:
    """One endpoint, such as ``http://etcd1:2379``. ``kept`` is the number of connections that are kept for later calls.

    ``limit`` bounds the body of an answer in bytes. An endpoint ``https`` requires ``tls``.
    """

    def __init__(
        self, reactor: Any, url: str, tls: Tls | None, user: str, password: str, kept: int, limit: int = MAX_BODY
    ) -> None:
        parts = urlsplit(url)
        self.url = url
        self._reactor = reactor
        self._address = Address(parts.hostname or "", parts.port or PORT, tls if parts.scheme == "https" else None)
        # The field Host has the authority. treq reads URLs by hyperlink, which takes an address of IPv6 for a name.
        self._authority = parts.netloc
        self._user = user
        self._token = Token(lambda: self._authenticate(user, password))
        self._limit = limit
        self._open = OpenConnections()
        self._answered = False
        """True after the first answer: from then on a closed connection is no sign of a wrong scheme."""
        self.date = ""
        """The time of the last answer, by its header Date; empty without one."""
        self._pool = HTTPConnectionPool(reactor, persistent=True)
        self._pool.maxPersistentPerHost = kept
        self._pool.cachedConnectionTimeout = CACHED
        # A request that is repeated by itself would hide that the first one may have happened.
        self._pool.retryAutomatically = False
        self._connector = Connector(reactor, self._address, self._open, MAX_HEAD + limit)
        self._http = self._client(self._connector, self._pool)

    async def call(self, request: Request, seconds: float = TIMEOUT) -> bytes:
        """Return the body of the answer of status 200. Raises an `EtcdError` after at most ``seconds``."""

        async def whole() -> bytes:
            response = await self._authorized(self._http, request)
            return await collect(response, self._limit)

        try:
            return await Deferred.fromCoroutine(whole()).addTimeout(seconds, self._reactor, late)
        except Exception as error:
            raise self._explained(error, seconds, self._connector) from None

    async def stream(self, request: Request, seconds: float = TIMEOUT) -> Any:
        """Return a response of status 200 without a bound of its body, over a connection of its own. Raises an
        `EtcdError` unless it begins within ``seconds``."""
        connector = Connector(self._reactor, self._address, self._open, MAX_HEAD + MAX_ERROR)
        client = self._client(connector, HTTPConnectionPool(self._reactor, persistent=False))
        try:
            begun = Deferred.fromCoroutine(self._authorized(client, request))
            response = await begun.addTimeout(seconds, self._reactor, late)
        except Exception as error:
            raise self._explained(error, seconds, connector) from None
        connector.limit = None
        return response

    def forget_token(self) -> bool:
        """Ask for a new token at the next request. False without a user."""
        self._token.forget()
        return bool(self._user)

    async def close(self) -> None:
        """Close all connections, including those of running requests. Returns when all are closed."""
        await self._pool.closeCachedConnections()
        await self._open.close()

    async def _authorized(self, client: Any, request: Request) -> Any:
        """Return the response of status 200. With a user, a refused token is replaced, and the request sent again."""
        again = bool(self._user)
        while True:
            token = await self._token.get() if self._user else ""
            response = await self._send(client, request, token)
            if response.code == 200:
                return response
            error = refusal(self.url, response.code, problem(await collect(response, MAX_ERROR)))
            if not isinstance(error, NeedsToken) or not again:
                raise error
            self._token.refused(token)
            again = False

    async def _authenticate(self, user: str, password: str) -> str:
        response = await self._send(self._http, authenticate_request(user, password), "")
        body = await collect(response, MAX_ERROR)
        if response.code == 200:
            return token(body)
        found = problem(body)
        if found.code == PRECONDITION and "authentication is not enabled" in found.text:
            return ""
        raise refusal(self.url, response.code, found)

    async def _send(self, client: Any, request: Request, token: str) -> Any:
        headers = Headers(
            {
                "Host": [self._authority],
                "Content-Type": ["application/json"],
                "User-Agent": ["elkobroker"],
            }
        )
        if request.quorum:
            # A member without a quorum refuses at once, and ends its watches.
            headers.setRawHeaders("Grpc-Metadata-hasleader", ["true"])
        if token:
            headers.setRawHeaders("Authorization", [token])
        response = await client.request(
            "POST",
            f"http://etcd.invalid/v3/{request.path}",
            headers=headers,
            data=Body(request.body),
            allow_redirects=False,
            unbuffered=True,
            reactor=self._reactor,
        )
        self._answered = True
        self.date = (response.headers.getRawHeaders("Date") or [""])[-1]
        return response

    def _client(self, connector: Connector, pool: HTTPConnectionPool) -> Any:
        # Imported here: treq imports the reactor, which the command line chooses.
        from treq.client import HTTPClient

        agent = Agent.usingEndpointFactory(self._reactor, connector, pool)
        # Cookies are for browsers: none is kept.
        return HTTPClient(Uncompressed(agent), CookieJar(policy=DefaultCookiePolicy(allowed_domains=())))  # type: ignore[arg-type]

    def _explained(self, error: Exception, seconds: float, connector: Connector) -> Exception:
        if isinstance(error, NeedsToken):
            return Denied(f"etcd at {self.url} requires a user and a password, or refuses a fresh token: {error}")
        if connector.exceeded:
            connector.exceeded = False
            return Unavailable(f"{self.url} sends more than an answer of etcd has", unknown=True)
        return explained(self.url, error, seconds, self._address.tls, self._answered)
