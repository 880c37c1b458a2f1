"""Queries on a connection: several, one after the other, answered in their order (RFC 7766).

A query that cannot be read is answered by FORMERR where it has a whole header, and the connection goes on; a length
that no query has, and a response, end it.
"""

from __future__ import annotations

from broker.core.errors import Malformed, Reason, Refusal
from broker.net.interfaces.peer import Peer
from broker.wires.dns.codec.framing import framed
from broker.wires.dns.codec.query import decode
from broker.wires.dns.codec.response import MAX_STREAMED
from broker.wires.dns.sessions.responder import Responder


class StreamSession:
    """One connection. ``queries`` is the number of queries so far."""

    def __init__(self, responder: Responder, peer: Peer) -> None:
        self._responder = responder
        self._peer = peer
        self.queries = 0

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
