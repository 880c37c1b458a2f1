"""The Elko Broker and the Elko Director as entries of the daemon's list of wires; see `broker.wires.interface`."""

from __future__ import annotations

from broker.wires.elko.elko_settings import BROKER as BROKER_SECTION
from broker.wires.elko.elko_settings import DIRECTOR as DIRECTOR_SECTION
from broker.wires.elko.elko_settings import Director, Elko
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters


def _open_broker(config: Elko, context: WireContext) -> OpenWire:
    from broker.wires.elko.broker_wire import OpenElko

    return OpenElko(config, context)


def _open_director(config: Director, context: WireContext) -> OpenWire:
    from broker.wires.elko.director_wire import OpenDirector

    return OpenDirector(config, context)


def _line_counters(wire: str) -> tuple[Counter, ...]:
    return (
        *connection_counters(wire),
        Counter(f"{wire}_dropped", "Answers dropped because the peer does not read: pong", "messages"),
        Counter(f"{wire}_debug", "Debug messages not logged: over the rate limit", "lines"),
        Counter(f"{wire}_http", "Sessions over HTTP that expired", "sessions"),
        Counter(f"{wire}_rtcp", "RTCP sessions whose peer did not reconnect in time", "sessions"),
    )


BROKER_COUNTERS = (
    *_line_counters("elko"),
    Counter("elko_connections.open", "Connections of all listeners", "connections", gauge=True),
)

DIRECTOR_COUNTERS = (
    *_line_counters("director"),
    Counter("director.granted", "Reservations granted", "reservations"),
    Counter("director.denied", "Reservations denied", "reservations"),
    Counter("director.used", "Reservations used", "reservations"),
    Counter("director.expired", "Reservations expired unused", "reservations"),
    Counter("director.lost", "Reservations lost with their Context Server", "reservations"),
    Counter("director.replaced", "Reservations replaced by another of the same user", "reservations"),
    Counter("director.forwarded", "Requests sent to the director of another broker, which decides", "requests"),
    Counter("director.unanswered", "The same that were decided here, without an answer", "requests"),
    Counter("director.invalid", "Unreadable messages of other directors", "messages"),
    Counter("director", "Present number of objects of each kind", gauge=True),
)

# The Elko Broker has no switch: without listeners, its commands still serve the console.
BROKER = Wire(BROKER_SECTION, lambda config: True, _open_broker, BROKER_COUNTERS)
"""The Elko Broker: services are offered and found."""

DIRECTOR = Wire(DIRECTOR_SECTION, lambda config: config.enabled, _open_director, DIRECTOR_COUNTERS)
"""The Elko Director: users are placed into contexts."""
