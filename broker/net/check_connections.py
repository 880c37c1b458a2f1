"""Health checks over TCP and HTTP.

Rules:
- A TCP check succeeds when the connection is established; it is closed at once.
- An HTTP check sends one GET request, over a connection of its own, and succeeds with a status in the range of its
  rule. The head of the response is enough: the body is not read, redirects are not followed, and no more than
  `MAX_INPUT` bytes are read.
- Names are looked up in threads of the reactor, at most `LOOKUPS` at a time; a check that finds none free is put off.
- `HOST_RATE` bounds the checks of one address: a peer that offers a thousand services at a foreign address does not
  turn the broker into a flood. A check beyond is put off.
- A check that is put off, or that is not permitted (`broker.net.outgoing_addresses`), proves nothing about the service.
- The caller bounds the number of open checks, and ends each at its timeout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint, TCP6ClientEndpoint
from twisted.internet.error import (
    ConnectBindError,
    ConnectError,
    ConnectionClosed,
    ConnectionRefusedError,
    TimeoutError,
)
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IResolutionReceiver, IStreamClientEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.logger import Logger
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.web._newclient import RequestNotSent
from twisted.web.client import Agent, RequestTransmissionFailed, ResponseFailed
from twisted.web.http_headers import Headers
from twisted.web.iweb import IAgentEndpointFactory
from zope.interface import implementer

from broker.access.identity import is_address, joined
from broker.core.checks.check_rules import CheckKind, Outcome, Question
from broker.core.errors import Reason, Refusal
from broker.core.rates import Rates
from broker.net.outgoing_addresses import Address, Outgoing, split

# Bound on the input of one connection.

MAX_INPUT = 64 * 1024
"""Bytes that one check reads: the head of an HTTP response has a few hundred, and its body is not read. A server that
sends more is aborted."""


class _Bounded(ProtocolWrapper):
    """A connection that is aborted when it has received more than `MAX_INPUT` bytes."""

    def __init__(self, factory: Any, wrapped: IProtocol) -> None:
        super().__init__(factory, wrapped)
        self._left = MAX_INPUT

    def dataReceived(self, data: bytes) -> None:
        """Deliver bytes within the bound."""
        self._left -= len(data)
        if self._left < 0:
            transport: Any = self.transport
            transport.abortConnection()
        else:
            super().dataReceived(data)  # type: ignore[no-untyped-call]


def bounded(factory: IProtocolFactory) -> Any:
    """Return a factory for the same protocols, with bounded input."""
    wrapping: Any = WrappingFactory(factory)
    wrapping.protocol = _Bounded
    wrapping.noisy = False
    return wrapping


LOOKUPS = 4
"""Lookups of names at a time. A lookup occupies a thread of the reactor, which has ten, for as long as name servers do
not answer."""

HOST_RATE, HOST_BURST = 10, 50
"""Checks of one address, in a second and at once: a machine with fifty services, checked every five seconds."""

MAX_REASON = 200
"""Characters of the reason of a failure."""

USER_AGENT = b"elkobroker-check"
"""The value of the header ``User-Agent``."""


class ConnectionChecks:
    """TCP and HTTP checks of the services whose addresses ``outgoing`` permits."""

    log = Logger()

    def __init__(self, reactor: Any, outgoing: Outgoing) -> None:
        self._reactor = reactor
        self._outgoing = outgoing
        self._rates: Rates[Address] = Rates(reactor.seconds)
        self._lookups = 0

    def ask(self, question: Question, answered: Callable[[Outcome], None]) -> Callable[[], None]:
        """Make one check; see `broker.core.checks.check_rules.Asker`."""
        ended = False

        def done(outcome: Outcome) -> None:
            # In the next turn: an outcome must not arrive within `ask`.
            if not ended:
                self._reactor.callLater(0, deliver, outcome)

        def deliver(outcome: Outcome) -> None:
            if not ended:
                answered(outcome)

        def end() -> None:
            nonlocal ended
            ended = True
            work.cancel()

        work = Deferred.fromCoroutine(self._outcome(question)).addCallback(done)
        return end

    async def _outcome(self, question: Question) -> Outcome:
        try:
            return await self._check(question)
        except Refusal as refusal:
            return Outcome(None, f"not checked: {refusal.text}")
        except ResponseFailed:
            return Outcome(False, "the response is not valid HTTP, ends early or is too long")
        except ConnectBindError as error:
            # The fault of this machine, such as a lack of descriptors.
            return Outcome(None, f"not checked: {error}".rstrip(".")[:MAX_REASON])
        except ConnectError as error:
            closed_port = isinstance(error, ConnectionRefusedError)
            # Twisted's text puts its own name of the cause before that of the system.
            cause = error.args[-1] if error.args and error.args[-1] else error
            return Outcome(False, f"no connection: {cause}".rstrip(".")[:MAX_REASON], closed_port)
        except (ConnectionClosed, RequestNotSent, RequestTransmissionFailed, TimeoutError) as error:
            return Outcome(False, f"no answer: {error or type(error).__name__}".rstrip(".")[:MAX_REASON])
        except CancelledError:
            return Outcome(None, "ended")
        except Exception:
            self.log.failure("a check made the broker fail")
            return Outcome(None, "not checked, because of a fault of the broker")

    async def _check(self, question: Question) -> Outcome:
        host, port = split(question.hostport)
        address = self._outgoing.permitted(await self._resolve(host, port), port, question.local)
        if not self._rates.take(address, HOST_RATE, HOST_BURST):
            raise Refusal(Reason.LIMIT, f"put off, since {address} is checked very often already")
        kind = TCP4ClientEndpoint if address.version == 4 else TCP6ClientEndpoint
        # Later than the timeout of the caller, who ends the check: only a last resort.
        endpoint = kind(self._reactor, str(address), port, timeout=question.rule.timeout + 1)
        if question.rule.kind is CheckKind.HTTP:
            return await self._get(question, host, port, endpoint)
        connected: Any = await endpoint.connect(Factory.forProtocol(_Connected))
        connected.transport.abortConnection()
        return Outcome(True, "a connection was accepted")

    async def _resolve(self, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host."""
        if is_address(host):
            return [host]
        if self._lookups >= LOOKUPS:
            raise Refusal(Reason.LIMIT, "put off, since too many names are being looked up")
        self._lookups += 1
        receiver = _Receiver(self._looked_up)
        self._reactor.nameResolver.resolveHostName(receiver, host, port)
        return await receiver.found

    def _looked_up(self) -> None:
        self._lookups -= 1

    async def _get(self, question: Question, host: str, port: int, endpoint: IStreamClientEndpoint) -> Outcome:
        agent = Agent.usingEndpointFactory(self._reactor, _SameEndpoint(endpoint))
        url = f"http://{joined(host, port)}{question.rule.path}".encode("ascii")
        headers = Headers({b"User-Agent": [USER_AGENT], b"Connection": [b"close"]})
        response: Any = await agent.request(b"GET", url, headers)
        response.deliverBody(_NoBody())
        least, most = question.rule.statuses
        return Outcome(least <= response.code <= most, f"status {response.code}")


class _Connected(Protocol):
    """The protocol of a TCP check: it reads nothing."""


class _NoBody(Protocol):
    """A receiver of a response's body that ends the connection."""

    def connectionMade(self) -> None:
        assert self.transport is not None
        self.transport.loseConnection()


@implementer(IResolutionReceiver)
class _Receiver:
    """The addresses of one lookup. ``done`` is called at its end, which a cancelled check does not bring forward."""

    def __init__(self, done: Callable[[], None]) -> None:
        self._done = done
        self._addresses: list[str] = []
        self.found: Deferred[Sequence[str]] = Deferred()

    def resolutionBegan(self, resolution: Any) -> None:
        """Take note of the lookup: nothing to do."""

    def addressResolved(self, address: Any) -> None:
        """Take one address."""
        if isinstance(address, IPv4Address | IPv6Address):
            self._addresses.append(address.host)

    def resolutionComplete(self) -> None:
        """Return all addresses."""
        self._done()
        if not self.found.called:
            self.found.callback(self._addresses)


@implementer(IAgentEndpointFactory)
class _SameEndpoint:
    """An agent's source of endpoints: always the one whose address was checked."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def endpointForURI(self, uri: object) -> Any:
        """Return the endpoint."""
        return _BoundedEndpoint(self._endpoint)


@implementer(IStreamClientEndpoint)
class _BoundedEndpoint:
    """An endpoint whose connections have bounded input."""

    def __init__(self, endpoint: IStreamClientEndpoint) -> None:
        self._endpoint = endpoint

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        """Connect. Fires with the inner protocol."""
        connected: Deferred[Any] = self._endpoint.connect(bounded(protocolFactory))
        return connected.addCallback(lambda wrapper: wrapper.wrappedProtocol)
