"""HTTP as a wire of the broker."""

from __future__ import annotations

from broker.wires.http.http_settings import SECTION, Http
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters


def _open(config: Http, context: WireContext) -> OpenWire:
    from broker.wires.http.http_wire import open_http

    return open_http(config, context)


COUNTERS = (
    *connection_counters("http"),
    Counter("http_requests", "Complete requests", "requests"),
    Counter("http_connections.open", "Open connections", "connections", gauge=True),
    Counter("http_waiting.now", "Answers that wait: finds, event streams, WebSockets", "answers", gauge=True),
    Counter("http_waiting", "Answers refused since too many waited", "answers"),
    Counter("http_instances.now", "Registered instances", "instances", gauge=True),
    Counter(
        "http_services",
        "Registrations: registered, renewed, replaced, withdrawn, expired; moved (another broker of the cluster has "
        "the instance, or another owner registered it by the owner token); revoked (the owner lost the credential or "
        "the right)",
        "events",
    ),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""HTTP: health, metrics and the API of operators, and registration for any program."""
