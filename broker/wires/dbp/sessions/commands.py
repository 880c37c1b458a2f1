"""Conversations over the ROUTER and by UDP: execution of the peers' commands, and the answers.

Rules of the ROUTER (of the document, and where it is silent, of the real nodes):
- Requests are answered to all peers, at any time. A registration is approved or denied; an update acknowledged or
  denied; a heartbeat acknowledged only to a REQ socket, which must get a reply; a ping answered, for Hermes' clients.
  A DISCONNECT is never answered.
- A reply has its time in the form of the message that it answers.
- A connection is identified by its number. State exists only for connections that registered, are bound to a service or
  violated the protocol, and only until they end. So the table needs no limit of its own besides the transport's.
- Valid but unexpected: commands that only a broker sends; a second registration on one connection; a heartbeat or an
  acknowledgement without a known service. The answer is one DISCONNECT, and the connection is closed.
- Invalid: frames that are no message. They are dropped without an answer, and the connection is closed.
- An update of a service that is not registered is denied: that is the purpose of DENIED.
- Any message of a service over its connection is a sign of life.

See docs/protocols/dbp.md, "Messages" and "Disconnect and silence".

Rules of UDP:
- A heartbeat of a registered service, from the address that registered it, is a sign of life. So is an acknowledgement
  from the source of its last datagram. Neither is answered; the broker sends heartbeats of its own.
- A heartbeat of a service that is not registered is answered by a DISCONNECT, so that the service registers again after
  a restart of the broker. These answers are rate-limited by source and by address, since sources are easily forged.
- A heartbeat or a DISCONNECT from another address than the service's is counted, and not answered.
- A heartbeat or a DISCONNECT of a service that another broker of the cluster has is forwarded (`other_brokers`).
- No other datagram is answered. The beacons and heartbeats of brokers, this one included, are no violations.
- Unregistered sources cause no state, except in the bounded tables of the rate limits.

See docs/protocols/dbp.md, "By UDP".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.hostports import remarks_for
from broker.core.interfaces import ILeases
from broker.net.peer_interfaces import Part, RefusalLog, Router, Sent
from broker.wall_clock import wall
from broker.wires.dbp.codec import dbp_datagrams, dbp_messages
from broker.wires.dbp.codec.dbp_messages import Ack, Beat, Bye, Form
from broker.wires.dbp.codec.listings import ERROR, LVC, listing
from broker.wires.dbp.sessions.catalogue import WIRE, Catalogue
from broker.wires.dbp.sessions.listing import Listing, TopicValues
from broker.wires.dbp.sessions.outbound import DbpOutbound, is_broker
from broker.wires.dbp.sessions.service_state import RouterConnection, ServiceEntry, Source, hostport

SERVICE_QUESTION = "mmi.service"
"""The only question of 8/MMI that the broker supports: it tests if a service of a name exists."""

NOT_PERMITTED: dict[str, str | float] = {ERROR: "not permitted to peers without a user"}
"""The answer to a request about services that the users file grants to no peer without a user."""


class CommandHandler:
    """All conversations over the ROUTER: a `broker.net.peer_interfaces.Conversation`."""

    def __init__(
        self,
        router: Router,
        catalogue: Catalogue,
        listing: Listing,
        values: TopicValues,
        outbound: DbpOutbound,
        leases: ILeases,
        clock: IReactorTime,
        refusal_log: RefusalLog,
    ) -> None:
        self._router = router
        self._catalogue = catalogue
        self._listing = listing
        self._values = values
        self._outbound = outbound
        self._leases = leases
        self._clock = clock
        self._refusal_log = refusal_log
        self.requests = 0
        self._connections: dict[int, RouterConnection] = {}
        """Connections with state, by number."""
        self._commands: dict[type, Callable[[RouterConnection, Any], None]] = {
            dbp_messages.Beat: self._beat,
            dbp_messages.Update: self._update,
            dbp_messages.Registration: self._register,
            dbp_messages.Question: self._question,
            dbp_messages.Bye: self._bye,
            dbp_messages.Ack: self._ack,
            dbp_messages.Ping: self._ping,
            dbp_messages.Unexpected: self._unexpected,
        }

    def __len__(self) -> int:
        return len(self._connections)

    def connections(self) -> Mapping[int, RouterConnection]:
        """Return the connections with state, by number."""
        return self._connections

    def counts(self) -> dict[str, int]:
        """Return the counters of the conversations, by name."""
        return {"dbp_requests.answered": self.requests}

    # calls of the ROUTER

    def receive(self, identity: bytes, frames: list[Part], number: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""
        if frames == [b""]:
            return  # the empty message of ZMQ_PROBE_ROUTER
        connection = self._connections.get(number)
        try:
            message = dbp_messages.parse(frames)
        except Malformed as malformed:
            self._malformed(connection or self._new_connection(identity, number), malformed)
            return
        if connection is not None:
            self._alive(connection, message.form)
        # Requests need no state, so that no `RouterConnection` is made for them.
        if type(message) is dbp_messages.Request:
            names, reading = message.names, self._listing.reading
            if names and names[0].startswith(LVC):
                body = self._values.named(names)
            elif reading.nothing or not all(map(reading.shows, names)):
                body = listing((), NOT_PERMITTED)
            else:
                body = self._listing.named(names) if names else self._listing.all()
            sent = self._router.reply(identity, dbp_messages.reply(message.form, wall(self._clock), body))
            self.requests += 1
            if sent is not Sent.SENT:
                self._refusal_log.count("dbp_dropped", sent.value)
            elif connection is not None:
                connection.last_sent = self._leases.now
            return
        if connection is None:
            connection = self._new_connection(identity, number)
            connection.form = message.form
        self._commands[type(message)](connection, message)

    def closed(self, number: int) -> None:
        """Discard the state of a closed connection. Its service stays registered, without a connection."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.release()

    def needs(self, number: int) -> bool:
        """Return True while messages to a service use the connection."""
        connection = self._connections.get(number)
        return connection is not None and connection.entry is not None and connection.entry.connection is connection

    def room(self, identity: bytes) -> None:
        """Do nothing: a dropped heartbeat is due again by itself, and a dropped answer is lost."""

    def _alive(self, connection: RouterConnection, form: Form) -> None:
        """Record a message of a connection, with a time in that form, as a sign of life of its service."""
        connection.form = form
        if connection.entry is not None:
            connection.entry.form = form
            self._catalogue.live(connection.entry)

    # requests

    def _question(self, connection: RouterConnection, message: dbp_messages.Question) -> None:
        code = "501"  # not implemented, in 8/MMI
        if not self._listing.reading.shows(message.name):
            code = "403"
        elif message.question == SERVICE_QUESTION:
            code = "200" if self._listing.has(message.name) else "404"
        body = listing((), {message.question: code})
        self._outbound.answer(connection, dbp_messages.reply(message.form, wall(self._clock), body))

    def _ping(self, connection: RouterConnection, message: dbp_messages.Ping) -> None:
        self._outbound.answer(connection, dbp_messages.pong(message.form, wall(self._clock), self._outbound.name))

    # services

    def _register(self, connection: RouterConnection, message: dbp_messages.Registration) -> None:
        if connection.registered:
            self._part(connection, "registered twice on one connection")
            return
        try:
            entry = self._catalogue.register(message.name, message.info, connection.address, message.form, connection)
        except Refusal as refusal:
            self._complain(connection, refusal)
            self._deny(connection, refusal.text, message.hermes)
            return
        connection.registered = True
        self._keep(connection)
        # A service without a port has chosen that: it is to be monitored, not connected to.
        places = [hostport(entry.details, entry.address)] if entry.details.port else []
        remarks = remarks_for(places, entry.address)
        agreed = dbp_messages.agreement(round(entry.interval * 1000), entry.liveness, remarks)
        approved = dbp_messages.approved(message.form, wall(self._clock), connection.hermes, agreed)
        self._outbound.answer(connection, approved)

    def _update(self, connection: RouterConnection, message: dbp_messages.Update) -> None:
        entry = self._named(connection, message.name)
        try:
            if entry is None:
                what = f"the service {message.name}" if message.name else "the service of this connection"
                raise Refusal(Reason.NOT_REGISTERED, f"{what} is not registered")
            if not self._trusts(connection, entry):
                raise Refusal(Reason.WRONG_ADDRESS, f"the service {entry.name} was registered from another address")
            self._catalogue.update(entry, message.info)
        except Refusal as refusal:
            self._complain(connection, refusal)
            self._deny(connection, refusal.text, connection.hermes)
            return
        entry.form = message.form
        self._adopt(connection, entry)
        self._outbound.answer(connection, dbp_messages.ack(message.form, wall(self._clock), connection.hermes))

    def _beat(self, connection: RouterConnection, message: dbp_messages.Beat) -> None:
        entry = self._named(connection, message.name)
        if entry is None:
            self._beat_elsewhere(connection, message)
        elif not self._trusts(connection, entry):
            self._part(connection, f"a heartbeat of {entry.name}, which was registered from another address")
        else:
            self._adopt(connection, entry, beaten=True)
            self._catalogue.beat(entry, None, message.form, message.sent)
            if connection.req:
                self._outbound.answer(connection, dbp_messages.ack(message.form, wall(self._clock), connection.hermes))
            elif entry.connection is connection:
                connection.beaten = True

    def _beat_elsewhere(self, connection: RouterConnection, message: dbp_messages.Beat) -> None:
        """Process a heartbeat of a service that is not registered here: it may be at another broker."""
        elsewhere, source = self._catalogue.elsewhere, (connection.address, 0)
        try:
            if elsewhere is not None and elsewhere.beat(message.name, source, message.form, message.sent):
                if connection.req:
                    ack = dbp_messages.ack(message.form, wall(self._clock), connection.hermes)
                    self._outbound.answer(connection, ack)
                return
        except Refusal as refusal:
            self._part(connection, refusal.text)
            return
        self._part(connection, "a heartbeat of a service that is not registered")

    def _ack(self, connection: RouterConnection, message: dbp_messages.Ack) -> None:
        if connection.entry is None:
            self._part(connection, "an acknowledgement over a connection without a service")

    def _bye(self, connection: RouterConnection, message: dbp_messages.Bye) -> None:
        named = None if message.name is None else self._catalogue.get(message.name)
        if named is None and connection.entry is None and self._catalogue.elsewhere is not None:
            try:
                self._catalogue.elsewhere.bye(message.name, (connection.address, 0))
            except Refusal as refusal:
                self._complain(connection, refusal)
        for entry in (connection.entry, named):
            if entry is None:
                continue
            if self._trusts(connection, entry):
                self._catalogue.disconnect(entry)
            else:
                text = f"a DISCONNECT of {entry.name}, which was registered from another address"
                self._complain(connection, Refusal(Reason.WRONG_ADDRESS, text))
        self._end(connection)

    def _unexpected(self, connection: RouterConnection, message: dbp_messages.Unexpected) -> None:
        self._part(connection, f"{message.command.decode()}, which only a broker sends")

    def _named(self, connection: RouterConnection, name: str | None) -> ServiceEntry | None:
        """Return the service to which a message refers: by name, else that of the connection."""
        return connection.entry if name is None else self._catalogue.get(name)

    def _trusts(self, connection: RouterConnection, entry: ServiceEntry) -> bool:
        return connection.entry is entry or self._catalogue.trusts(entry, connection.address)

    def _adopt(self, connection: RouterConnection, entry: ServiceEntry, beaten: bool = False) -> None:
        """Bind a service to this connection if it has none, or has ``beaten`` over this one."""
        # Hermes uses a new REQ socket for each message, through which no later message could be sent.
        if not connection.req:
            self._catalogue.bind(entry, connection, beaten)
            if connection.entry is entry:
                self._keep(connection)

    # protocol violations

    def _malformed(self, connection: RouterConnection, malformed: Malformed) -> None:
        self._complain(connection, malformed)
        if isinstance(malformed, dbp_messages.Denied):
            self._alive(connection, malformed.form)
            hermes = connection.hermes if malformed.hermes is None else malformed.hermes
            self._deny(connection, malformed.text, hermes)
        elif isinstance(malformed, dbp_messages.BadRequest):
            self._alive(connection, malformed.form)
            body = listing((), malformed.error)
            self._outbound.answer(connection, dbp_messages.reply(malformed.form, wall(self._clock), body))
        else:
            self._end(connection)

    def _deny(self, connection: RouterConnection, reason: str, hermes: bool) -> None:
        self._outbound.answer(connection, dbp_messages.denied(connection.form, wall(self._clock), reason, hermes))

    def _part(self, connection: RouterConnection, why: str) -> None:
        """Answer a valid but unexpected message by a DISCONNECT. The service stays registered until it expires."""
        if connection.entry is not None:
            connection.entry.parted = True
        self._complain(connection, Refusal(Reason.UNEXPECTED, why))
        self._outbound.answer(
            connection, dbp_messages.disconnect(connection.form, wall(self._clock), connection.hermes)
        )
        self._end(connection)

    def _end(self, connection: RouterConnection) -> None:
        """Unbind a connection, and close it after its output."""
        connection.release()
        self._outbound.end(connection)

    def _complain(self, connection: RouterConnection, refusal: Refusal) -> None:
        self._refusal_log.add(WIRE, connection.address, refusal)

    # connections

    def _new_connection(self, identity: bytes, number: int) -> RouterConnection:
        """Return the state of a connection. It is discarded after this message unless `_keep` stores it."""
        return RouterConnection(identity, number, self._router.sender())

    def _keep(self, connection: RouterConnection) -> None:
        """Store the state of a connection until it is closed."""
        self._connections[connection.number] = connection


class DatagramHandler:
    """All conversations by UDP. The transport calls `receive`."""

    def __init__(self, catalogue: Catalogue, outbound: DbpOutbound, refusal_log: RefusalLog) -> None:
        self._catalogue = catalogue
        self._outbound = outbound
        self._refusal_log = refusal_log
        self.beats = 0

    def counts(self) -> dict[str, int]:
        """Return the counters of the datagrams, by name."""
        return {"dbp_heartbeats.udp": self.beats}

    def receive(self, data: bytes, source: Source) -> None:
        """Process one datagram."""
        try:
            message = dbp_datagrams.read(data)
        except dbp_datagrams.Ignored as ignored:
            if ignored.beacon:
                self._refusal_log.count("dbp_datagrams", "beacon")
            else:
                self._refusal_log.add(WIRE, source[0], ignored)
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
            self._refusal_log.add(WIRE, source[0], refusal)
            return True

    def _unregistered(self, message: Beat, source: Source) -> None:
        """Process a heartbeat of a service that is not registered."""
        # The broker receives its own broadcast heartbeats, and those of others.
        if is_broker(message.name):
            self._refusal_log.count("dbp_datagrams", "of-broker")
            return
        text = f"a heartbeat of {message.name or 'a service without a name'}, which is not registered"
        self._refusal_log.add(WIRE, source[0], Refusal(Reason.NOT_REGISTERED, text))
        self._outbound.turn_away(source)

    def _refuse(self, text: str, source: Source) -> None:
        self._refusal_log.add(WIRE, source[0], Refusal(Reason.WRONG_ADDRESS, text))
