"""A bound on the bytes that a server sends: Twisted bounds a line of headers, but not their number."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import (
    IOpenSSLClientConnectionCreator,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
)
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from twisted.protocols.tls import TLSMemoryBIOFactory
from zope.interface import implementer


class Budget:
    """The bytes that may still arrive. ``left`` is None without a bound, for a stream whose reader has its own."""

    def __init__(self) -> None:
        self.left: int | None = 0
        self.exceeded = False
        self.certificate: Any = None
        """The server's certificate, of pyOpenSSL; None without TLS."""

    def allow(self, count: int | None) -> None:
        """Begin to count from here."""
        self.left = count
        self.exceeded = False

    def spend(self, count: int) -> bool:
        """Count received bytes. Returns False once there are too many."""
        if self.left is not None:
            self.left -= count
            self.exceeded = self.exceeded or self.left < 0
        return not self.exceeded


class _Counted(ProtocolWrapper):
    """A protocol whose input is counted; the connection is aborted at its bound."""

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
