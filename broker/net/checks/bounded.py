"""Bound on the input of one connection."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IProtocol, IProtocolFactory
from twisted.protocols.policies import ProtocolWrapper, WrappingFactory

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
