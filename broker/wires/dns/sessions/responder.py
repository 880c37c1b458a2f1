"""The way from the bytes of a query to those of its response, the same for datagrams and connections."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping

from twisted.internet.interfaces import IReactorTime

from broker.wires.dns.codec.query import Query
from broker.wires.dns.codec.response import (
    BADVERS,
    FORMERR,
    NOERROR,
    NOTIMP,
    NXDOMAIN,
    REFUSED,
    Encoded,
    Response,
    encode,
    failed,
)
from broker.wires.dns.dns_settings import Dns
from broker.wires.dns.zone.zone import Zone

WIRE = "dns"
"""The name of the wire in counters and log lines."""

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

    def respond(self, query: Query, limit: int) -> bytes:
        """Return a response of at most ``limit`` bytes."""
        response = self._response(query)
        encoded: Encoded = encode(query, response, limit)
        kind = _CODES[response.code]
        self._counts["nodata" if kind == "noerror" and not response.answers else kind] += 1
        if encoded.truncated:
            self._counts["truncated"] += 1
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

    def _response(self, query: Query) -> Response:
        if self.draining:
            return Response(REFUSED)
        if query.question is None:
            return Response(NOTIMP)
        if query.edns is not None and query.edns.version:
            return Response(BADVERS)
        # The zone is never transferred, so its number need only not fall: the time does for the next eighty years.
        serial = int(self._clock.seconds()) & 0xFFFF_FFFF
        return self.zone.answer(self.dns, query.question, serial, self._begin)
