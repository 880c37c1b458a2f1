"""The common part of the outlets of streams: begin, backpressure and end, whatever the framing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.logger import Logger

from broker.rest.messages import Stream


class StreamOutlet:
    """The writing end of a stream on ``channel``, with the limits of ``factory``.

    ``over`` is called when the outlet closes the stream, not when the connection is lost.
    """

    log = Logger()

    def __init__(self, channel: Any, factory: Any, stream: Stream, over: Callable[[], None]) -> None:
        self._channel = channel
        self._factory = factory
        self._stream = stream
        self._over = over
        self._ended: Callable[[], None] | None = None
        self._closed = False
        self._held = 0
        """Bytes written since the peer began to lag behind."""

    def start(self) -> bool:
        """Begin the stream. Returns False if it failed, or ended already."""
        try:
            # A subclass is a whole `broker.rest.messages.Outlet`.
            ended = self._stream.begin(self)  # type: ignore[arg-type]
        except Exception:
            self._failed()
            return False
        if self._closed:
            ended()
            return False
        self._ended = ended
        return True

    @property
    def behind(self) -> bool:
        """See `broker.rest.messages.Outlet`."""
        behind: bool = self._channel.behind
        return behind

    def room(self) -> None:
        """Output is no longer pending."""
        self._held = 0
        if not self._closed:
            try:
                self._stream.room()
            except Exception:
                self._failed()

    def lost(self) -> None:
        """The connection is lost, or the stream ends."""
        self._closed = True
        ended, self._ended = self._ended, None
        if ended is not None:
            ended()

    def _fits(self, size: int) -> bool:
        """Account for ``size`` bytes of output. Returns False for a peer over its limit, whose connection ends."""
        if self._channel.behind:
            self._held += size
            if self._held > self._factory.limits.write_buffer:
                self._channel.not_reading()
                return False
            self._channel.hold_output()
        return True

    def _failed(self) -> None:
        self.log.failure("a stream of HTTP failed")
        self._channel.abort()
