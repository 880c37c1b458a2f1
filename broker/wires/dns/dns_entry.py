"""DNS as a wire of the broker."""

from __future__ import annotations

from broker.wires.dns.dns_settings import SECTION, Dns
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters


def _open(config: Dns, context: WireContext) -> OpenWire:
    from broker.wires.dns.dns_wire import open_dns

    return open_dns(config, context)


COUNTERS = (
    *connection_counters("dns"),
    Counter("dns_connections.open", "Open connections", "connections", gauge=True),
    Counter("dns_queries", "Messages by UDP and by TCP that were taken for queries", "queries"),
    Counter("dns_responses", "Responses by kind; those with TC count as truncated, too", "responses"),
    Counter("dns_limited", "Queries over the rate limit: dropped, or slipped (answered by TC alone)", "queries"),
    Counter(
        "dns_ignored",
        "Datagrams without an answer: oversized; unanswerable, a response or no message; from a port that answers all",
        "datagrams",
    ),
    Counter("dns_datagrams", "Datagrams, by outcome", "datagrams"),
    Counter("dns_unsent", "Datagrams that the system did not send, by error", "datagrams"),
    Counter("dns_names.known", "Names of services, compared without case", "names", gauge=True),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Domain Name System: services by name, for any program."""
