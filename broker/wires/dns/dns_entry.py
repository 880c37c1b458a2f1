"""DNS as a wire of the broker."""

from __future__ import annotations

from broker.wires.dns.dns_settings import SECTION, Dns
from broker.wires.interface import OpenWire, Wire, WireContext
from broker.wires.tables import Counter, connection_counters, datagram_counters


def _open(config: Dns, context: WireContext) -> OpenWire:
    from broker.wires.dns.dns_wire import open_dns

    return open_dns(config, context)


COUNTERS = (
    *connection_counters("dns"),
    Counter("dns_connections.open", "Open connections", "connections", gauge=True),
    Counter("dns_queries", "Queries: udp, tcp", "queries"),
    Counter(
        "dns_responses",
        "Responses: noerror, nodata, nxdomain, refused, formerr, notimp, badvers; truncated counts those among them "
        "with TC",
        "responses",
    ),
    Counter("dns_limited", "Queries by UDP over the rate: dropped, or slipped (answered by TC alone)", "queries"),
    Counter(
        "dns_ignored",
        "Datagrams without an answer: unanswerable (responses, incomplete headers), oversized (4,096 bytes), port "
        "(from ports of services that answer everything)",
        "datagrams",
    ),
    *datagram_counters("dns"),
    Counter("dns_names.known", "Names of services, without case", "names", gauge=True),
)

WIRE = Wire(SECTION, lambda config: config.enabled, _open, COUNTERS)
"""The Domain Name System: services by name, for any program."""
