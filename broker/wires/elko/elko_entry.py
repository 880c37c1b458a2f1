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
    Counter("director.orders_sent", "Messages to Context Servers at other brokers of the cluster", "messages"),
    Counter("director.orders_lost", "The same that could not be sent: no link to that broker", "messages"),
    Counter("director.reports_refused", "Reports of other directors that were impossible, or over a limit", "reports"),
    Counter("director.reports_invalid", "The same that could not be read or written", "reports"),
    Counter("director", "Present number of objects of each kind", gauge=True),
)

# The Elko Broker has no switch: without listeners, its commands still serve the console.
BROKER = Wire(BROKER_SECTION, lambda config: True, _open_broker, BROKER_COUNTERS)
"""The Elko Broker: services are offered and found."""

DIRECTOR = Wire(DIRECTOR_SECTION, lambda config: config.enabled, _open_director, DIRECTOR_COUNTERS)
"""The Elko Director: users are placed into contexts."""
