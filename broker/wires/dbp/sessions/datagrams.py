"""Conversations by UDP: processing of datagrams, and the answers.

Rules:
- A heartbeat of a registered service, from the address that registered it, is a sign of life. So is an acknowledgement
  from the source of its last datagram. Neither is answered; the broker sends heartbeats of its own.
- A heartbeat of a service that is not registered is answered by a DISCONNECT, so that the service registers again after
  a restart of the broker. These answers are rate-limited by source and by address, since sources are easily forged.
- A heartbeat or a DISCONNECT from another address than the service's is counted, and not answered.
- A heartbeat or a DISCONNECT of a service that another broker of the cluster has is forwarded (`elsewhere`).
- No other datagram is answered. The beacons and heartbeats of brokers, this one included, are no violations.
- Unregistered sources cause no state, except in the bounded tables of the rate limits.

See docs/protocols/dbp.md, "By UDP". `broker.wires.dbp.sessions.commands` is the counterpart for ZeroMQ.
"""

from __future__ import annotations

from broker.core.errors import Reason, Refusal
from broker.net.interfaces.router import Complaints
from broker.wires.dbp.codec import datagrams
from broker.wires.dbp.codec.messages import Ack, Beat, Bye
from broker.wires.dbp.sessions.catalogue import WIRE, Catalogue
from broker.wires.dbp.sessions.outbound import DbpOutbound, is_broker
from broker.wires.dbp.sessions.service_state import Source


class DatagramHandler:
    """All conversations by UDP. The transport calls `receive`."""

    def __init__(self, catalogue: Catalogue, outbound: DbpOutbound, complaints: Complaints) -> None:
        self._catalogue = catalogue
        self._outbound = outbound
        self._complaints = complaints
        self.beats = 0

    def counts(self) -> dict[str, int]:
        """Return the counters of the datagrams, by name."""
        return {"dbp_heartbeats.udp": self.beats}

    def receive(self, data: bytes, source: Source) -> None:
        """Process one datagram."""
        try:
            message = datagrams.read(data)
        except datagrams.Ignored as ignored:
            if ignored.beacon:
                self._complaints.count("dbp_datagrams", "beacon")
            else:
                self._complaints.add(WIRE, source[0], ignored)
            return
        if type(message) is Beat:
            self._beat(message, source)
        elif type(message) is Bye:
            self._bye(message, source)
        elif type(message) is Ack:
            for entry in self._catalogue.at(source):
                self._catalogue.live(entry)

    def _beat(self, message: Beat, source: Source) -> None:
        if message.name is None:
            entries = self._catalogue.at(source)
        else:
            entry = self._catalogue.get(message.name)
            entries = [] if entry is None else [entry]
        if not entries and not self._forwarded(message, source):
            self._unregistered(message, source)
        for entry in entries:
            if self._catalogue.trusts(entry, source[0]):
                self._catalogue.beat(entry, source, message.form, message.sent)
                self.beats += 1
            else:
                self._refuse(f"a heartbeat of {entry.name}, which was registered from another address", source)

    def _bye(self, message: Bye, source: Source) -> None:
        named = None if message.name is None else self._catalogue.get(message.name)
        entries = self._catalogue.at(source) if message.name is None else [] if named is None else [named]
        if not entries and self._forwarded(message, source):
            self._outbound.hush(source)
        for entry in entries:
            if self._catalogue.trusts(entry, source[0]):
                self._catalogue.disconnect(entry)
                self._outbound.hush(source)
            else:
                self._refuse(f"a DISCONNECT of {entry.name}, which was registered from another address", source)

    def _forwarded(self, message: Beat | Bye, source: Source) -> bool:
        """Forward a message to the broker that has the service. Returns False if there is none."""
        elsewhere = self._catalogue.elsewhere
        if elsewhere is None:
            return False
        try:
            if type(message) is Beat:
                return elsewhere.beat(message.name, source, message.form, message.sent)
            return elsewhere.bye(message.name, source)
        except Refusal as refusal:
            self._complaints.add(WIRE, source[0], refusal)
            return True

    def _unregistered(self, message: Beat, source: Source) -> None:
        """Process a heartbeat of a service that is not registered."""
        # The broker receives its own broadcast heartbeats, and those of others.
        if is_broker(message.name):
            self._complaints.count("dbp_datagrams", "of-broker")
            return
        text = f"a heartbeat of {message.name or 'a service without a name'}, which is not registered"
        self._complaints.add(WIRE, source[0], Refusal(Reason.NOT_REGISTERED, text))
        self._outbound.turn_away(source)

    def _refuse(self, text: str, source: Source) -> None:
        self._complaints.add(WIRE, source[0], Refusal(Reason.WRONG_ADDRESS, text))
