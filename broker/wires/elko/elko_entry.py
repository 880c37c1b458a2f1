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
        Counter(f"{wire}_dropped", "Dropped answers to PINGs: pong", "messages"),
        Counter(f"{wire}_debug", "Debug lines of peers beyond the rate that is logged", "lines"),
        Counter(f"{wire}_http", "Sessions over HTTP whose peers sent no request: expired", "sessions"),
        Counter(f"{wire}_rtcp", "Sessions over RTCP whose peers were away for too long: gone", "sessions"),
    )


BROKER_COUNTERS = (
    *_line_counters("elko"),
    Counter("elko_connections.open", "Open connections, and sessions over HTTP and RTCP", "connections", gauge=True),
)

DIRECTOR_COUNTERS = (
    *_line_counters("director"),
    Counter("director.granted", "Reservations granted", "reservations"),
    Counter("director.denied", "Reservations denied", "reservations"),
    Counter("director.used", "Reservations whose user came", "reservations"),
    Counter("director.expired", "Reservations whose user did not come in time", "reservations"),
    Counter("director.lost", "Reservations whose Context Server was gone", "reservations"),
    Counter("director.replaced", "Reservations whose user asked again", "reservations"),
    Counter("director.forwarded", "Requests sent to the director of another broker, which decides", "requests"),
    Counter("director.unanswered", "Forwarded requests that were decided here, without an answer", "requests"),
    Counter("director.invalid", "Unreadable messages of other directors", "messages"),
    Counter(
        "director",
        "Objects: links (connections of Context Servers), providers (these servers), failing (their checks fail), "
        "contexts and users (their contents), reservations (not used yet), placements (contexts that are to be "
        "opened), hidden_contexts (open at another server, too), waiting (requests that wait for servers after a "
        "restart), active (1 if this director decides), directors (others with an open link)",
        gauge=True,
    ),
)

# The Elko Broker has no switch: without listeners, its commands still serve the console.
BROKER = Wire(BROKER_SECTION, lambda config: True, _open_broker, BROKER_COUNTERS)
"""The Elko Broker: services are offered and found."""

DIRECTOR = Wire(DIRECTOR_SECTION, lambda config: config.enabled, _open_director, DIRECTOR_COUNTERS)
"""The Elko Director: users are placed into contexts."""
