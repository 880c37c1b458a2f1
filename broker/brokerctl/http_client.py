"""The client of the HTTP API: requests to one broker, one at a time, with bounds on time and memory."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import treq.client
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from OpenSSL import SSL, crypto
from service_identity import VerificationError
from twisted.internet import defer, error, ssl
from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint
from twisted.internet.error import VerifyError
from twisted.internet.interfaces import (
    IAddress,
    IHostnameResolver,
    IHostResolution,
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IResolutionReceiver,
    IStreamClientEndpoint,
)
from twisted.internet.protocol import Protocol, connectionDone
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from twisted.python.failure import Failure as TwistedFailure
from twisted.web.client import URI, Agent, HTTPConnectionPool, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from broker import pem
from broker.brokerctl.answers import Answer, Exit, Failure, usage
from broker.brokerctl.contexts import Context
from broker.brokerctl.plain_client import MAX_BODY, MAX_HEAD, TIMEOUT, ApiClient, Query, parameters
from broker.http_bodies import Body, TooLong, collect, late

# A bound on the bytes that a server sends: Twisted bounds a line of headers, but not their number.


class Budget:
    """The bytes that may still arrive. ``left`` is None without a bound, for a stream whose reader has its own."""

    def __init__(self) -> None:
        self.left: int | None = 0
        self.exceeded = False
        self.certificate: Any = None
        """The server's certificate, of pyOpenSSL; None without TLS."""

    def allow(self, count: int | None) -> None:
        """Set the number of bytes that may follow; None is no limit."""
        self.left = count
        self.exceeded = False

    def spend(self, count: int) -> bool:
        """Count received bytes. Returns False once there are too many."""
        if self.left is not None:
            self.left -= count
            self.exceeded = self.exceeded or self.left < 0
        return not self.exceeded


class _Counted(ProtocolWrapper):
    """A protocol whose input is counted; beyond the bound the connection is aborted."""

    def dataReceived(self, data: bytes) -> None:
        budget = self.factory.budget
        transport: Any = self.transport
        if budget.certificate is None and hasattr(transport, "getPeerCertificate"):
            budget.certificate = transport.getPeerCertificate()
        if budget.spend(len(data)):
            super().dataReceived(data)  # type: ignore[no-untyped-call]
        else:
            transport.abortConnection()


class _Factory(WrappingFactory[_Counted]):
    protocol = _Counted

    def __init__(self, factory: IProtocolFactory, budget: Budget) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.budget = budget


@implementer(IStreamClientEndpoint)
class Counted:
    """An endpoint whose connections spend a budget, over TLS if there are settings for it.

    Twisted's own endpoint of TLS takes the global reactor for its clock, which does not run here.
    """

    def __init__(
        self,
        reactor: Any,
        endpoint: IStreamClientEndpoint,
        budget: Budget,
        tls: IOpenSSLClientConnectionCreator | None,
    ) -> None:
        self._reactor, self._endpoint, self._budget, self._tls = reactor, endpoint, budget, tls

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect, and return the protocol of the factory."""
        counted = _Factory(protocolFactory, self._budget)
        if self._tls is None:
            return self._endpoint.connect(counted).addCallback(_inner)
        over_tls = TLSMemoryBIOFactory(self._tls, True, counted, self._reactor)
        return self._endpoint.connect(over_tls).addCallback(_inner).addCallback(_inner)


def _inner(wrapper: Any) -> Any:
    return wrapper.wrappedProtocol


# TLS of the client: trusted authorities, and its own certificate.

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


def connection_creator(context: Context, host: str) -> IOpenSSLClientConnectionCreator:
    """Return the settings for a connection to a host, whose certificate must have its name. Raises `Failure`."""
    trusted = None
    if context.ca is not None:
        trusted = ssl.trustRootFromCertificates([_loaded(context.ca, each) for each in _certificates(context.ca)])
    own, extra = None, {}
    if context.cert is not None:
        leaf, *chain = _certificates(context.cert)
        own = _private(context, leaf)
        extra = {"extraCertChain": [_loaded(context.cert, each).original for each in chain]}
    try:
        return ssl.optionsForClientTLS(host, trusted, own, extraCertificateOptions=extra)
    except ValueError:
        raise usage(f"{host} is no name of a host") from None


def _private(context: Context, leaf: bytes) -> ssl.PrivateCertificate:
    assert context.cert is not None
    file = context.key or context.cert
    data = _read(file)
    _loaded(context.cert, leaf)
    try:
        key = pem.private_key(file, data)
    except ValueError as error:
        raise usage(str(error)) from None
    plain = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    try:
        found: ssl.PrivateCertificate = ssl.PrivateCertificate.loadPEM(leaf + b"\n" + plain)
        return found
    except VerifyError:
        raise usage(f"the private key in {file} does not belong to the certificate in {context.cert}") from None


def _certificates(path: str) -> list[bytes]:
    found = _CERTIFICATE.findall(_read(path))
    if not found:
        raise usage(f"{path} has no certificate in PEM")
    return found


def _loaded(path: str, certificate: bytes) -> Any:
    try:
        return ssl.Certificate.loadPEM(certificate)
    except (crypto.Error, ValueError):
        raise usage(f"{path} has a certificate that cannot be read") from None


def _read(path: str) -> bytes:
    try:
        return pem.read(path)
    except ValueError as error:
        raise usage(str(error)) from None


# Requests and streams.

NO_TLS = frozenset(("wrong version number", "http request", "packet length too long", "unknown protocol"))
"""Errors of OpenSSL, as of versions 1.1 to 3.5, after an answer that is no TLS."""


@implementer(IAgentEndpointFactory)
class Client(ApiClient):
    """A client with TLS, streams, and many requests at once."""

    def __init__(self, reactor: Any, context: Context, timeout: float = TIMEOUT, authorization: str = "") -> None:
        super().__init__(context, timeout, authorization)
        self.reactor = reactor
        # The endpoint and the field Host have the address. treq reads URLs by hyperlink, which takes an address of IPv6
        # for a name.
        self._url = f"{self._parts.scheme}://broker.invalid{self._parts.path}"
        self._budget = Budget()
        # Made at once, so that a bad file is reported before anything is sent.
        self._tls = connection_creator(context, self._host) if context.secure else None
        self._pool = HTTPConnectionPool(reactor)
        agent = Agent.usingEndpointFactory(reactor, self, self._pool)
        self._http = treq.client.HTTPClient(agent)

    def endpointForURI(self, uri: URI) -> IStreamClientEndpoint:
        """Return the endpoint of a connection; part of the interface of `Agent`."""
        plain = HostnameEndpoint(self.reactor, self._host, self._port, timeout=self.timeout)
        return Counted(self.reactor, plain, self._budget, self._tls)

    @property
    def certificate_ends(self) -> float | None:
        """See `ApiClient`."""
        certificate = self._budget.certificate
        return None if certificate is None else float(certificate.to_cryptography().not_valid_after_utc.timestamp())

    async def _request(
        self, method: str, path: str, query: Query | None, body: object, limit: float, headers: Mapping[str, str]
    ) -> Answer:
        self._budget.allow(MAX_HEAD + MAX_BODY)

        async def whole() -> Answer:
            response = await self._send(method, path, query, body, headers)
            return self._answer(response, await collect(response, MAX_BODY), path)

        try:
            return await Deferred.fromCoroutine(whole()).addTimeout(limit, self.reactor, late)
        except Exception as problem:
            raise self._explained(problem, limit) from None

    async def stream(self, path: str, query: Query | None, last: str, receive: Callable[[bytes], object]) -> None:
        """Receive a stream of server-sent events until it ends. ``receive`` may raise `Failure`, which ends it.

        ``last`` is the id of the last event received, or "". A stream that is silent for `SILENCE` seconds ends too.
        """
        self._budget.allow(MAX_HEAD + MAX_BODY)
        headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
        if last:
            headers["Last-Event-ID"] = last
        try:
            response = await Deferred.fromCoroutine(self._send("GET", path, query, None, headers)).addTimeout(
                self.timeout, self.reactor, late
            )
            if response.code != 200 or not _content_type(response).startswith("text/event-stream"):
                collected = Deferred.fromCoroutine(collect(response, MAX_BODY))
                body = await collected.addTimeout(self.timeout, self.reactor, late)
                answer = self._answer(response, body, path)
                if response.code == 200:
                    raise Failure(f"{self.where} answers with no stream of events", Exit.UNINTELLIGIBLE)
                raise answer.failure()
            self._budget.allow(None)
            piped = _Piped(self.reactor, receive)
            response.deliverBody(piped)
            await piped.done
        except Exception as problem:
            raise self._explained(problem, self.timeout) from None

    async def close(self) -> None:
        """Close the kept connections."""
        await self._pool.closeCachedConnections()

    async def _send(self, method: str, path: str, query: Query | None, body: object, extra: Mapping[str, str]) -> Any:
        headers = Headers({"Accept": ["application/json"], "User-Agent": ["brokerctl"], "Host": [self._parts.netloc]})
        for name, value in {**self._authorization, **extra}.items():
            headers.setRawHeaders(name, [value])
        options: dict[str, Any] = {}
        if body is not None:
            headers.setRawHeaders("Content-Type", ["application/json"])
            options["data"] = Body(msgspec.json.encode(body))
        return await self._http.request(
            method,
            self._url + path,
            params=parameters(query),
            headers=headers,
            allow_redirects=False,
            unbuffered=True,
            reactor=self.reactor,
            **options,
        )

    def _answer(self, response: Any, body: bytes, path: str) -> Answer:
        headers = {name: response.headers.getRawHeaders(name, [""])[0] for name in ("location", "date")}
        return Answer(response.code, _content_type(response), body, self.where, path, headers)

    def _explained(self, problem: Exception, limit: float) -> Exception:
        """Return the failure for a person; other exceptions are defects, or cancellations, and returned as they are."""
        if isinstance(problem, Failure):
            return problem
        if self._budget.exceeded:
            return self._too_much()
        if isinstance(problem, defer.TimeoutError | error.TimeoutError):
            return self._too_late(limit)
        reasons = [each.value for each in getattr(problem, "reasons", ())] or [problem]
        for reason in reasons:
            if isinstance(reason, Failure):
                return reason
            if isinstance(reason, TooLong):
                return Failure(f"the server answers with {reason}", Exit.UNINTELLIGIBLE)
            if isinstance(reason, defer.CancelledError):
                return reason
            if isinstance(reason, VerificationError):
                return Failure(f"the certificate of {self.where} is for another name", Exit.UNREACHABLE)
            if isinstance(reason, SSL.Error):
                text = _tls_reason(reason)
                if text in NO_TLS:
                    return Failure(f"{self.where}: the port speaks no TLS; use http://", Exit.UNREACHABLE)
                return Failure(f"TLS with {self.where} fails: {text}", Exit.UNREACHABLE)
        if isinstance(problem, error.DNSLookupError | ValueError):
            # A name that cannot be one is refused by the endpoint itself.
            return self._unknown_host()
        if isinstance(problem, error.ConnectError):
            return self._unreachable(problem.args[-1] if problem.args else problem)
        if isinstance(problem, ResponseFailed):
            if any(isinstance(reason, error.ConnectionDone | error.ConnectionLost) for reason in reasons):
                return self._cut_off()
            return self._no_http()
        if isinstance(problem, error.ConnectionClosed):
            return self._cut_off()
        return problem


SILENCE = 60.0
"""Seconds without a byte after which a stream counts as dead: the broker sends a comment more often."""


class _Piped(Protocol):
    """A body that is passed on as it comes. ``done`` fires at its end."""

    def __init__(self, reactor: Any, receive: Callable[[bytes], object]) -> None:
        self.done: Deferred[None] = Deferred(lambda _: self._abort())
        self._receive = receive
        self._silence = reactor.callLater(SILENCE, self._abort)

    def dataReceived(self, data: bytes) -> None:
        if self.done.called:
            return
        self._silence.reset(SILENCE)
        try:
            self._receive(data)
        except Exception as problem:
            self.done.errback(problem)
            self._abort()

    def connectionLost(self, reason: TwistedFailure = connectionDone) -> None:
        if self._silence.active():
            self._silence.cancel()
        if not self.done.called:
            self.done.callback(None)

    def _abort(self) -> None:
        if self._silence.active():
            self._silence.cancel()
        if self.transport is not None:
            self.transport.stopProducing()  # type: ignore[attr-defined]


def _content_type(response: Any) -> str:
    return str(response.headers.getRawHeaders("content-type", [""])[0])


def _tls_reason(reason: SSL.Error) -> str:
    """Return the last sentence of OpenSSL's queue of errors."""
    queue = reason.args[0] if reason.args and isinstance(reason.args[0], list) else []
    texts = [str(each[-1]) for each in queue if each and each[-1]]
    return texts[-1] if texts else "the server speaks no TLS, or refuses the client's certificate"


# Resolution of host names.


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
    """Implementation of Twisted's resolver by getaddrinfo, in daemon threads.

    The thread pool of Twisted is joined at exit, so that a name server which does not answer would delay Ctrl-C.
    """

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
        """Resolve a name to TCP addresses; an unknown name has none."""
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
