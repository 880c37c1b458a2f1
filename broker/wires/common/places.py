"""Rows of `broker.wires.interface.OpenWire.places`: the open listeners as operators see them."""

from __future__ import annotations

from broker.net.admission import ConnectionFactory
from broker.net.endpoints import bound
from broker.net.stream_listener import StreamListener


def occupied(factory: ConnectionFactory) -> dict[str, object]:
    """Return the number of a listener's connections, and ``full``: while true, further ones wait in the kernel."""
    connections = len(factory.connections)
    return {"connections": connections, "full": connections >= factory.limits.connections}


def place(wire: str, name: str, listener: StreamListener) -> list[dict[str, object]]:
    """Return the row of a stream listener, or no row if it is closed."""
    if listener.port is None:
        return []
    return [{"wire": wire, "name": name, "address": bound(listener.port), **occupied(listener.lines)}]
