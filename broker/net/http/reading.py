"""The transport as Twisted's HTTP sees it: reads have two switches."""

from __future__ import annotations

from typing import Any

from twisted.internet.interfaces import IPushProducer
from zope.interface import implementer


@implementer(IPushProducer)
class Reading:
    """Transport facade for Twisted's HTTP: both Twisted and the scheduler may pause the reads."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport
        self._paused = self._waits = False
        self._lingers = False

    @property
    def disconnecting(self) -> bool:
        """True from the beginning of a close: Twisted's parser parses no further input then."""
        return self._lingers or bool(self._transport.disconnecting)

    def linger(self) -> None:
        """End the output when all of it is sent, and keep reading: a lingering close."""
        self._lingers = True
        self._transport.loseWriteConnection()

    def pauseProducing(self) -> None:
        """Pause on behalf of Twisted's HTTP."""
        self._paused = True
        self._transport.pauseProducing()

    def resumeProducing(self) -> None:
        """Resume on behalf of Twisted's HTTP."""
        self._paused = False
        if not self._waits:
            self._transport.resumeProducing()

    def stopProducing(self) -> None:
        """No-op: `connectionLost` follows."""

    def wait(self) -> None:
        """Pause on behalf of the scheduler."""
        self._waits = True
        self._transport.pauseProducing()

    def go_on(self) -> None:
        """Resume on behalf of the scheduler."""
        self._waits = False
        if not self._paused:
            self._transport.resumeProducing()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)
