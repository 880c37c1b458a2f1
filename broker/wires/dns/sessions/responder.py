"""Answers to queries: by UDP, whose responses are limited, and on connections.

Rules of UDP:
- A response is never answered, nor a datagram from a port whose service answers everything: two programs would answer
  each other without end.
- Responses are limited (`ResponseLimit`), those to unreadable queries as well. A query whose response is dropped is
  not even read.
- A response that exceeds the size that the client accepts is truncated, with TC.
- A datagram's source can be forged, and a response may be twenty times as long as its query: the broker must not become
  an amplifier. So responses are limited for each address and for each network, since a sender that forges one address
  can forge its neighbours. Most queries over the limit are dropped, and each `SLIP`-th is answered by a short
  response with TC: a real client asks again by TCP, where a source cannot be forged.

Rules of connections:
- A connection has several queries, one after the other, answered in their order (RFC 7766).
- A query that cannot be read is answered by FORMERR where it has a whole header, and the connection goes on; a length
  that no query has, and a response, end it.
"""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, Protocol

import attrs
from twisted.internet.interfaces import IReactorTime

from broker.access.identity import address_of, is_local, network_of
from broker.core.errors import Malformed, Reason, Refusal
from broker.core.rates import Rates
from broker.net.peer_interfaces import Peer
from broker.wires.dns.codec.dns_query import MAX_QUERY, Query, answerable, decode, framed, is_plain
from broker.wires.dns.codec.dns_response import (
    BADVERS,
    FORMERR,
    MAX_STREAMED,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    REFUSED,
    Encoded,
    Response,
    encode,
    failed,
    limit_of,
    truncated,
)
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.zone import Basis, Zone

# Responses by UDP that are kept, by the bytes of their queries.
#
# Rules:
# - A response is kept with its basis (`broker.wires.dns.zone.Basis`), and is sent again only if the zone would make the
#   same bytes: nothing is invalidated when something changes, and no answer is ever older than the registry.
# - A query of another case, with other flags or another EDNS payload is another query.
# - A name with n places has up to n responses, which begin with different ones. The place that comes first is drawn for
#   each query, as for a new response.
# - Responses without services, and negative ones, are not kept: names that do not exist are without number.
# - At a limit all are discarded. A flood of different queries then costs what it would without them.

KEPT_BYTES = 16 * 1024 * 1024
"""Limit of what is kept, in bytes: 16,000 responses with 24 places each, and some ten times as many short ones."""

ENTRY_BYTES = 700
"""Bytes of an entry besides its query, its response and its references to services: measured, rounded up."""

REFERENCE_BYTES = 8
"""Bytes of a reference to a service."""


@attrs.frozen(eq=False)
class KeptAnswer:
    """A response without its id, and the kind under which it is counted."""

    data: bytes
    kind: str
    is_truncated: bool
    basis: Basis


class KeptAnswers:
    """The responses that are kept from ``zone``. ``begin(n)`` returns which of n places comes first."""

    def __init__(self, zone: Zone, begin: Callable[[int], int]) -> None:
        self._zone = zone
        self._begin = begin
        self._kept: dict[bytes, tuple[Basis, dict[int, KeptAnswer]]] = {}
        """By the query without its id: what all responses have in common, and those by the place that comes first."""
        self._bytes = 0

    def find(self, query: bytes, dns: Dns, serial: Callable[[], int]) -> KeptAnswer | None:
        """Return the response to a query, if one is kept that would be made again."""
        entry = self._kept.get(query)
        if entry is None:
            return None
        common, answers = entry
        zone = self._zone
        if not zone.holds(common, dns):
            self._discard(query)
            return None
        answer = answers.get(self._begin(common.places))
        if answer is None:
            return None
        basis = answer.basis
        if not zone.weighs(basis) or (basis.serial is not None and basis.serial != serial()):
            return None
        return answer

    def add(self, query: bytes, answer: KeptAnswer) -> None:
        """Keep a response, in the place of one that was made of other loads."""
        if self._bytes >= KEPT_BYTES:
            self._kept.clear()
            self._bytes = 0
        basis = answer.basis
        entry = self._kept.get(query)
        if entry is not None and not self._zone.holds(entry[0], basis.dns):
            self._discard(query)
            entry = None
        if entry is None:
            entry = self._kept[query] = (basis, {})
        answers = entry[1]
        before = answers.get(basis.first)
        self._bytes += _size(answer) - (0 if before is None else _size(before))
        answers[basis.first] = answer

    def _discard(self, query: bytes) -> None:
        self._bytes -= sum(map(_size, self._kept.pop(query)[1].values()))


def _size(answer: KeptAnswer) -> int:
    services = sum(len(services) for _, services, _ in answer.basis.found)
    return ENTRY_BYTES + 2 * len(answer.data) + REFERENCE_BYTES * (services + len(answer.basis.loads))


WIRE = "dns"
"""The name of the wire in counters and log lines."""

_ID = 2
"""Bytes of the id, with which a message begins."""

_CODES = {
    NOERROR: "noerror",
    FORMERR: "formerr",
    NXDOMAIN: "nxdomain",
    NOTIMP: "notimp",
    REFUSED: "refused",
    BADVERS: "badvers",
}


class Responder:
    """Answers queries from a zone. ``begin(n)`` returns which of n places comes first."""

    def __init__(self, zone: Zone, dns: Dns, clock: IReactorTime, begin: Callable[[int], int]) -> None:
        self.zone = zone
        self.dns = dns
        self.draining = False
        """True while each query is answered by REFUSED."""
        self._clock = clock
        self._begin = begin
        self._counts: Counter[str] = Counter()
        self._kept = KeptAnswers(zone, begin)

    def kept(self, message: bytes) -> bytes | None:
        """Return the response to a datagram, if it is kept."""
        if self.draining:
            return None
        found = self._kept.find(message[_ID:], self.dns, self._serial)
        if found is None:
            return None
        self._counts[found.kind] += 1
        if found.is_truncated:
            self._counts["truncated"] += 1
        return message[:_ID] + found.data

    def respond(self, query: Query, limit: int, message: bytes | None = None) -> bytes:
        """Return a response of at most ``limit`` bytes; it is kept for the same ``message``, if that is given."""
        response, basis = self._response(query)
        encoded: Encoded = encode(query, response, limit)
        kind = _CODES[response.code]
        if kind == "noerror" and not response.answers:
            kind = "nodata"
        self._counts[kind] += 1
        if encoded.truncated:
            self._counts["truncated"] += 1
        if message is not None and basis is not None and is_plain(message, query):
            self._kept.add(message[_ID:], KeptAnswer(encoded.data[_ID:], kind, encoded.truncated, basis))
        return encoded.data

    def unreadable(self, data: bytes) -> bytes | None:
        """Return the response to a message that could not be read, or None where it must not be answered."""
        answer = failed(data)
        if answer is not None:
            self._counts["formerr"] += 1
        return answer

    def counts(self) -> Mapping[str, int]:
        """Return the responses by their kind."""
        return {f"dns_responses.{kind}": count for kind, count in self._counts.items()}

    def _response(self, query: Query) -> tuple[Response, Basis | None]:
        if self.draining:
            return Response(REFUSED), None
        if query.question is None:
            return Response(NOTIMP), None
        if query.edns is not None and query.edns.version:
            return Response(BADVERS), None
        return self.zone.answer(self.dns, query.question, self._serial(), self._begin)

    def _serial(self) -> int:
        # The zone is never transferred, so its number need only not fall: the time does for the next eighty years.
        return int(self._clock.seconds()) & 0xFFFF_FFFF


SLIP = 2
"""Queries over the limit for each that is answered by TC. A client that asks three times, as resolvers do, then gets
at least one; and what a victim is sent is at most half of what the attacker sends."""

NETWORK_SHARE = 4
"""Times the rate of one address that its network (/24, for IPv6 /56) gets: less than the number of its addresses, so
that varying the forged address gains little, and more than one, since a farm is often one network."""

IPV4_NETWORK, IPV6_NETWORK = 3, 7
"""Bytes of an address that are its network: for IPv6, 56 bits are what a site is usually given."""


class LimitVerdict(enum.Enum):
    """Decision about one response."""

    SEND = "send"
    SLIP = "slipped"
    DROP = "dropped"


class ResponseLimit:
    """The limit, over two tables of token buckets: one of addresses and one of networks."""

    def __init__(self, addresses: Rates[str], networks: Rates[str], dns: Dns) -> None:
        self.dns = dns
        self._addresses = addresses
        self._networks = networks
        self._over = 0
        self._slipped = self._dropped = 0

    def verdict(self, host: str) -> LimitVerdict:
        """Return True if the next response to an address may be sent; it is taken to be."""
        rate, burst = self.dns.response_rate, self.dns.response_burst
        if not rate or (not self.dns.limit_loopback and is_local(host)):
            return LimitVerdict.SEND
        within = self._addresses.take(network_of(host), rate, burst) and self._networks.take(
            network(host), rate * NETWORK_SHARE, burst * NETWORK_SHARE
        )
        if within:
            return LimitVerdict.SEND
        self._over += 1
        if self._over % SLIP:
            self._dropped += 1
            return LimitVerdict.DROP
        self._slipped += 1
        return LimitVerdict.SLIP

    def counts(self) -> Mapping[str, int]:
        """Return the queries over the limit, by outcome."""
        return {"dns_limited.dropped": self._dropped, "dns_limited.slipped": self._slipped}


def network(host: str) -> str:
    """Return the network of an address, in text that no address has."""
    ip = address_of(host)
    size = IPV4_NETWORK if ip.version == 4 else IPV6_NETWORK
    return ip.packed[:size].hex() + ":*"


ANSWERING_PORTS = frozenset({0, 7, 13, 17, 19, 37})
"""Ports of services that answer whatever they get (echo, daytime, quote, chargen, time), and the port that is none."""


class RefusalLog(Protocol):
    """The counters and the log of refused input."""

    def add(self, wire: str, address: str, refusal: Refusal) -> None:
        """Count and log that a peer was refused something."""


class UdpSocket(Protocol):
    """The UDP socket."""

    def send(self, data: bytes, to: Any) -> bool:
        """Send a datagram."""


class Datagrams:
    """Answers the datagrams of all clients."""

    def __init__(self, responder: Responder, limit: ResponseLimit, socket: UdpSocket, refusal_log: RefusalLog) -> None:
        self._responder = responder
        self._limit = limit
        self._socket = socket
        self._refusal_log = refusal_log
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
        if verdict is LimitVerdict.SEND and (answer := self._responder.kept(data)) is not None:
            self._socket.send(answer, source)
            return
        try:
            query = decode(data)
        except Malformed as malformed:
            self._refusal_log.add(WIRE, host, malformed)
            if not answerable(data):
                self._ignored["unanswerable"] += 1
            elif verdict is LimitVerdict.SEND and (answer := self._responder.unreadable(data)) is not None:
                self._socket.send(answer, source)
            return
        if verdict is LimitVerdict.SEND:
            self._socket.send(self._responder.respond(query, limit_of(query.edns), data), source)
        elif verdict is LimitVerdict.SLIP:
            self._socket.send(truncated(query), source)

    def counts(self) -> Mapping[str, int]:
        """Return the queries, and ignored datagrams by reason."""
        counts = {f"dns_ignored.{reason}": count for reason, count in self._ignored.items()}
        counts["dns_queries.udp"] = self._queries
        return counts


class StreamSession:
    """One connection. ``queries`` is the number of queries so far."""

    def __init__(self, responder: Responder, peer: Peer) -> None:
        self._responder = responder
        self._peer = peer
        self.queries = 0

    def begin(self) -> None:
        """Nothing is sent before a query."""

    def receive(self, message: bytes) -> None:
        """Take one message."""
        self.queries += 1
        try:
            query = decode(message)
        except Malformed as malformed:
            answer = self._responder.unreadable(message)
            if answer is not None:
                self._peer.write(framed(answer))
            self.refuse(malformed)
            return
        self._peer.write(framed(self._responder.respond(query, MAX_STREAMED)))

    def malformed(self, malformed: Malformed) -> None:
        """Take a length that no query has."""
        self.refuse(malformed)

    def refuse(self, refusal: Refusal) -> None:
        """Count a refusal, and close the connection. An unreadable query, which has its FORMERR, closes it if it is one
        too many."""
        if not self._peer.refused(refusal) or refusal.reason is not Reason.SYNTAX:
            self._peer.close()

    def input_ended(self) -> bool:
        """Return False: all queries were answered when they came."""
        return False

    @property
    def needed(self) -> bool:
        """False: no query waits."""
        return False

    def lost(self) -> None:
        """Nothing is kept for the peer."""
