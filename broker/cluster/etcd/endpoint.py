"""One endpoint of etcd: its connections, and requests over them with bounds on time and memory."""

from __future__ import annotations

from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any
from urllib.parse import urlsplit

from twisted.internet.defer import Deferred
from twisted.web.client import Agent, HTTPConnectionPool
from twisted.web.http_headers import Headers

from broker.cluster.etcd.codec import Request, authenticate_request, problem, token
from broker.cluster.etcd.connections import Address, Connector, OpenConnections
from broker.cluster.etcd.credentials import Tls, Token
from broker.cluster.etcd.failures import PRECONDITION, NeedsToken, explained, refusal
from broker.cluster.etcd.interface import Denied, Unavailable
from broker.http_client.bodies import Body, collect, late

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
        """Close all connections, those of running requests too. Returns when all are closed."""
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
        return response

    def _client(self, connector: Connector, pool: HTTPConnectionPool) -> Any:
        # Imported here: treq imports the reactor, which the command line chooses.
        from treq.client import HTTPClient

        agent = Agent.usingEndpointFactory(self._reactor, connector, pool)
        # Cookies are for browsers: none is kept.
        return HTTPClient(agent, CookieJar(policy=DefaultCookiePolicy(allowed_domains=())))  # type: ignore[arg-type]

    def _explained(self, error: Exception, seconds: float, connector: Connector) -> Exception:
        if isinstance(error, NeedsToken):
            return Denied(f"etcd at {self.url} requires a user and a password, or refuses a fresh token: {error}")
        if connector.exceeded:
            connector.exceeded = False
            return Unavailable(f"{self.url} sends more than an answer of etcd has", unknown=True)
        return explained(self.url, error, seconds, self._address.tls, self._answered)
