"""One ROUTER that carries both flows."""

from __future__ import annotations

from broker.net.interfaces.router import Conversation, Part
from broker.wires.mtl.codec.frames import is_data


class SharedSocket:
    """The conversation of that ROUTER, made of those of both flows."""

    def __init__(self, control: Conversation, data: Conversation) -> None:
        self._control = control
        self._data = data

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take one message, which its frames show to be of one flow or the other."""
        flow = self._data if is_data(frames) else self._control
        flow.receive(identity, frames, connection)

    def closed(self, connection: int) -> None:
        """A connection ended, and both flows on it."""
        self._data.closed(connection)
        self._control.closed(connection)

    def room(self, identity: bytes) -> None:
        """A peer has room again. It was refused a Content or a Ping: answers of the control flow are not refused so."""
        self._data.room(identity)
