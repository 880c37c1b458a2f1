"""A bound on the bytes that a server sends: Twisted bounds a line of headers, but not their number."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IProtocol, IProtocolFactory, IStreamClientEndpoint
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory
from zope.interface import implementer


class Budget:
    """The bytes that may still arrive. ``left`` is None without a bound, for a stream whose reader has its own."""

    def __init__(self) -> None:
        self.left: int | None = 0
        self.exceeded = False

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
        if self.factory.budget.spend(len(data)):
            super().dataReceived(data)  # type: ignore[no-untyped-call]
        else:
            self.transport.abortConnection()  # type: ignore[union-attr]


class _Factory(WrappingFactory[_Counted]):
    protocol = _Counted

    def __init__(self, factory: IProtocolFactory, budget: Budget) -> None:
        super().__init__(factory)  # type: ignore[no-untyped-call]
        self.budget = budget


@implementer(IStreamClientEndpoint)
class Counted:
    """An endpoint whose connections spend a budget."""

    def __init__(self, endpoint: IStreamClientEndpoint, budget: Budget) -> None:
        self._endpoint, self._budget = endpoint, budget

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """Connect, and return the protocol of the factory."""
        connected: Deferred[Any] = self._endpoint.connect(_Factory(protocolFactory, self._budget))
        return connected.addCallback(lambda wrapper: wrapper.wrappedProtocol)
