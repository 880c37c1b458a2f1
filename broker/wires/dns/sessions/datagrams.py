"""Queries by UDP.

Rules:
- A response is never answered, nor a datagram from a port whose service answers everything: two programs would answer
  each other for ever.
- Responses are limited (`response_limit`), those to unreadable queries as well. A query whose response is dropped is
  not even read.
- A response that does not fit into what the client takes says so by TC.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, Protocol

from broker.core.errors import Malformed, Refusal
from broker.wires.dns.codec.query import MAX_QUERY, answerable, decode
from broker.wires.dns.codec.response import limit_of, truncated
from broker.wires.dns.sessions.responder import WIRE, Responder
from broker.wires.dns.sessions.response_limit import LimitVerdict, ResponseLimit

ANSWERING_PORTS = frozenset({0, 7, 13, 17, 19, 37})
"""Ports of services that answer whatever they get (echo, daytime, quote, chargen, time), and the port that is none."""


class Complaints(Protocol):
    """The counters and the log of refused input."""

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """Count and log that a peer was refused something."""


class UdpSocket(Protocol):
    """The UDP socket."""

    def send(self, data: bytes, to: Any) -> bool:
        """Send a datagram."""


class Datagrams:
    """Answers the datagrams of all clients."""

    def __init__(self, responder: Responder, limit: ResponseLimit, socket: UdpSocket, complaints: Complaints) -> None:
        self._responder = responder
        self._limit = limit
        self._socket = socket
        self._complaints = complaints
        self._queries = 0
        self._ignored: Counter[str] = Counter()

    def receive(self, data: bytes, source: Any) -> None:
        """Take one datagram."""
        host, port = source[:2]
        if port in ANSWERING_PORTS:
            self._ignored["port"] += 1
            return
        if len(data) > MAX_QUERY:
            self._ignored["oversized"] += 1
            return
        self._queries += 1
        # A dropped datagram is not decoded: in a flood most are, which leaves time for the rest of the broker.
        verdict = self._limit.verdict(host) if answerable(data) else LimitVerdict.SEND
        if verdict is LimitVerdict.DROP:
            return
        try:
            query = decode(data)
        except Malformed as malformed:
            self._complaints.add(WIRE, host, malformed)
            if not answerable(data):
                self._ignored["unanswerable"] += 1
            elif verdict is LimitVerdict.SEND and (answer := self._responder.unreadable(data)) is not None:
                self._socket.send(answer, source)
            return
        if verdict is LimitVerdict.SEND:
            self._socket.send(self._responder.respond(query, limit_of(query.edns)), source)
        elif verdict is LimitVerdict.SLIP:
            self._socket.send(truncated(query), source)

    def counts(self) -> Mapping[str, int]:
        """Return the queries, and what was ignored, by reason."""
        counts = {f"dns_ignored.{reason}": count for reason, count in self._ignored.items()}
        counts["dns_queries.udp"] = self._queries
        return counts
