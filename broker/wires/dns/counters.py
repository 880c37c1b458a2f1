"""The counters of DNS, with their meanings and units."""

from __future__ import annotations

from broker.wires.interface import Counter

COUNTERS = (
    Counter("dns_queries.udp", "Datagrams that were read as queries", "queries"),
    Counter("dns_queries.tcp", "Messages on connections", "queries"),
    Counter("dns_responses", "Responses by kind: noerror, nodata, nxdomain, refused, formerr, notimp, badvers; those"
            " with TC count as truncated, too", "responses"),
    Counter("dns_limited", "Queries over the rate limit: dropped, or slipped (answered by TC)", "queries"),
    Counter("dns_ignored", "Datagrams without an answer: a response or no message (unanswerable), too long (oversized),"
            " from a port that answers everything (port)", "datagrams"),
    Counter("dns_datagrams", "Datagrams of the socket: received, oversized, failed, sent, unsent, dropped by the"
            " kernel", "datagrams"),
    Counter("dns_unsent", "Datagrams that the kernel did not take, by its error", "datagrams"),
    Counter("dns_refused", "Messages and connections that were refused, by reason", "messages"),
    Counter("dns_accept", "Pauses in accepting connections", "pauses"),
    Counter("dns_connections.open", "Open connections", "connections", gauge=True),
    Counter("dns_connections.evicted", "Idle connections that were closed to make room", "connections"),
    Counter("dns_names.known", "Names of services, without case", "names", gauge=True),
)  # fmt: skip
"""All families."""
