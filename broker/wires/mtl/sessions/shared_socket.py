"""A ROUTER that carries both flows."""

from __future__ import annotations

from broker.net.interfaces.router import Conversation, Part
from broker.wires.mtl.codec.data_messages import is_data


class SharedSocket:
    """Conversation of the ROUTER: passes each message to the conversation of its flow."""

    def __init__(self, control: Conversation, data: Conversation) -> None:
        self._control = control
        self._data = data

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message. The number of frames, and the first one, tell the flow (`is_data`)."""
        flow = self._data if is_data(frames) else self._control
        flow.receive(identity, frames, connection)

    def closed(self, connection: int) -> None:
        """End both flows of a connection that closed."""
        self._data.closed(connection)
        self._control.closed(connection)

    def needs(self, connection: int) -> bool:
        """Return True while either flow needs the connection."""
        return self._data.needs(connection) or self._control.needs(connection)

    def room(self, identity: bytes) -> None:
        """Report room to the data flow: only Contents and Pings are refused for lack of room."""
        self._data.room(identity)
