"""Transport of a client: the sockets below the control flow and the data flows.

`broker.client.dealer.ZeroMQ` is the real one. `broker.client.testing.FakeBroker` is one in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol


class FrameSocket(Protocol):
    """A connection that carries messages of frames. Its callbacks are called in the reactor, never from `send`."""

    def send(self, frames: Sequence[bytes]) -> bool:
        """Send a message. Returns False if there is no room; the callback ``room`` is then called later."""

    def pause(self) -> None:
        """Stop receiving until `resume`."""

    def resume(self) -> None:
        """Receive again."""

    def close(self, linger: int = 0) -> None:
        """Close the socket and stop all callbacks. Sent messages may still go out for ``linger`` milliseconds."""


class Transport(Protocol):
    """Factory of sockets, which belongs to one client."""

    def connect(
        self,
        reactor: Any,
        endpoint: str,
        receive: Callable[[list[bytes]], object],
        room: Callable[[], object],
        failed: Callable[[str], object],
    ) -> FrameSocket:
        """Connect to an endpoint. Raises ValueError for an invalid one.

        ``receive`` is called with the frames of each message, ``room`` when there is room again after a
        `FrameSocket.send` that found none, and ``failed`` with a text for people when the socket has become unusable.
        """

    def close(self) -> None:
        """Release what the transport holds, after all sockets are closed."""
