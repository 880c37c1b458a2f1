"""What is said over the ROUTER, and what is answered.

Rules (the document's, and where it is silent those that real nodes need):
- Requests are answered to everybody, at any time. A registration is approved or denied; an update acknowledged or
  denied; a heartbeat acknowledged only to a REQ socket, which must get a reply; a ping answered for Hermes' clients.
  A DISCONNECT is never answered.
- A reply has its time in the form of the message that it answers.
- A *connection* is an identity and a descriptor: an identity that a peer chose comes again with its next connection,
  which is another one. Of connections that neither registered nor misbehaved nothing is kept.
- Valid but unexpected: what only a broker says; a second registration on one connection; a heartbeat or an
  acknowledgement where no service is known. The answer is one DISCONNECT, and the connection is *deaf*: nothing that
  comes through it is read, nothing is sent to it, until it is gone.
- Invalid: frames that are no message. They are dropped without an answer, and the connection is deaf.
- An update of a service that is not registered is denied: that is what DENIED is for.
- Whatever a service says over its connection is a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.interfaces import ILeases
from broker.session.dbp.catalogue import WIRE, Catalogue
from broker.session.dbp.entry import Connection, Entry
from broker.session.dbp.listing import Listing
from broker.session.dbp.voice import Voice
from broker.session.router import Complaints, Part, Router, Sent
from broker.wire.dbp import messages, replies
from broker.wire.dbp.listings import listing
from broker.wire.dbp.times import Form

MAX_CONNECTIONS = 20_000
"""Connections of which something is kept: two for each service there may be, by default. The oldest is forgotten that
is none of a service. (A service that is forgotten is known again by its name.)"""

LOOKED_AT = 100
"""Connections among which such a one is looked for: some 20 µs."""

SERVICE_QUESTION = "mmi.service"
"""The one question of 8/MMI that the broker knows: whether there is a service of a name."""


class Commands:
    """All conversations over the ROUTER. The transport calls `receive`, and `closed` for each connection that ended."""

    def __init__(
        self,
        router: Router,
        catalogue: Catalogue,
        listing: Listing,
        voice: Voice,
        leases: ILeases,
        clock: IReactorTime,
        complaints: Complaints,
    ) -> None:
        self._router = router
        self._catalogue = catalogue
        self._listing = listing
        self._voice = voice
        self._leases = leases
        self._clock = clock
        self._complaints = complaints
        self.requests = 0
        self.ignored = 0
        self._known: dict[bytes, Connection] = {}
        self._by_descriptor: dict[int, Connection] = {}
        self._untold: dict[int, int] = {}
        """How many connections that are known to be over each descriptor had: their ends are still to be told of."""
        self._commands: dict[type, Callable[[Connection, Any], None]] = {
            messages.Beat: self._beat,
            messages.Update: self._update,
            messages.Registration: self._register,
            messages.Question: self._question,
            messages.Bye: self._bye,
            messages.Ack: self._ack,
            messages.Ping: self._ping,
            messages.Unexpected: self._unexpected,
        }

    def __len__(self) -> int:
        return len(self._known)

    def counts(self) -> dict[str, int]:
        """What is counted here, by name."""
        return {"dbp_requests.answered": self.requests, "dbp_messages.ignored": self.ignored}

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], descriptor: int) -> None:
        """Take one message: the frames after the identity. ``descriptor`` is that of its connection."""
        connection = self._known.get(identity)
        if connection is not None:
            if connection.descriptor != descriptor:
                self._forget(connection)
                connection = None
            elif connection.deaf:
                self.ignored += 1
                return
        try:
            message = messages.parse(frames)
        except Malformed as malformed:
            self._malformed(connection or self._meet(identity, descriptor), malformed)
            return
        if connection is not None:
            self._hear(connection, message.form)
        if type(message) is messages.Request:
            names = message.names
            body = self._listing.named(names) if names else self._listing.all()
            sent = self._router.send(identity, replies.reply(message.form, self._clock.seconds(), body))
            self.requests += 1
            if sent is not Sent.SENT:
                self._complaints.count("dbp_dropped", sent.value)
            elif connection is not None:
                connection.told = self._leases.now
            return
        if connection is None:
            connection = self._meet(identity, descriptor)
            connection.form = message.form
        self._commands[type(message)](connection, message)

    def closed(self, descriptor: int) -> None:
        """A connection ended. Messages of the next one with this descriptor may have come before."""
        untold = self._untold.pop(descriptor, 0)
        if untold > 1:
            self._untold[descriptor] = untold - 1
        connection = self._by_descriptor.get(descriptor)
        if connection is not None and not untold:
            self._lose(connection)

    def _hear(self, connection: Connection, form: Form) -> None:
        """A connection has said something, with a time in that form."""
        connection.form = form
        if connection.entry is not None:
            connection.entry.form = form
            self._catalogue.live(connection.entry)

    # requests

    def _question(self, connection: Connection, message: messages.Question) -> None:
        code = "501"
        if message.question == SERVICE_QUESTION:
            code = "200" if self._listing.has(message.name) else "404"
        body = listing((), {message.question: code})
        self._voice.answer(connection, replies.reply(message.form, self._clock.seconds(), body))

    def _ping(self, connection: Connection, message: messages.Ping) -> None:
        self._voice.answer(connection, replies.pong(message.form, self._clock.seconds(), self._voice.name))

    # services

    def _register(self, connection: Connection, message: messages.Registration) -> None:
        if connection.registered:
            self._part(connection, "registered twice on one connection")
            return
        try:
            if not connection.address:
                raise Refusal(Reason.WRONG_ADDRESS, "the address of this connection is unknown: it needs ZMTP 3.0")
            entry = self._catalogue.register(message.name, message.info, connection.address, message.form, connection)
        except Refusal as refusal:
            self._complain(connection, refusal)
            self._deny(connection, refusal.text, message.hermes)
            return
        connection.registered = True
        self._keep(connection)
        agreed = replies.agreement(round(entry.interval * 1000), entry.liveness)
        approved = replies.approved(message.form, self._clock.seconds(), connection.hermes, agreed)
        self._voice.answer(connection, approved)

    def _update(self, connection: Connection, message: messages.Update) -> None:
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
        self._voice.answer(connection, replies.ack(message.form, self._clock.seconds(), connection.hermes))

    def _beat(self, connection: Connection, message: messages.Beat) -> None:
        self._leases.look()
        entry = self._named(connection, message.name)
        if entry is None:
            self._part(connection, "a heartbeat of a service that is not registered")
        elif not self._trusts(connection, entry):
            self._part(connection, f"a heartbeat of {entry.name}, which was registered from another address")
        else:
            self._adopt(connection, entry)
            self._catalogue.beat(entry, None, message.form, message.sent)
            if connection.req:
                self._voice.answer(connection, replies.ack(message.form, self._clock.seconds(), connection.hermes))
            elif entry.connection is connection:
                entry.beaten = True

    def _ack(self, connection: Connection, message: messages.Ack) -> None:
        if connection.entry is None:
            self._part(connection, "an acknowledgement of somebody who is not registered")

    def _bye(self, connection: Connection, message: messages.Bye) -> None:
        named = None if message.name is None else self._catalogue.get(message.name)
        for entry in (connection.entry, named):
            if entry is None:
                continue
            if self._trusts(connection, entry):
                self._catalogue.disconnect(entry)
            else:
                text = f"a DISCONNECT of {entry.name}, which was registered from another address"
                self._complain(connection, Refusal(Reason.WRONG_ADDRESS, text))
        self._deafen(connection)

    def _unexpected(self, connection: Connection, message: messages.Unexpected) -> None:
        self._part(connection, f"{message.command.decode()}, which only a broker says")

    def _named(self, connection: Connection, name: str | None) -> Entry | None:
        """The service that a message is about: of that name, or that of the connection."""
        return connection.entry if name is None else self._catalogue.get(name)

    def _trusts(self, connection: Connection, entry: Entry) -> bool:
        return connection.entry is entry or self._catalogue.trusts(entry, connection.address)

    def _adopt(self, connection: Connection, entry: Entry) -> None:
        """A service that lost its connection goes on with this one."""
        if not connection.req:
            self._catalogue.bind(entry, connection)
            if connection.entry is entry:
                self._keep(connection)

    # what is wrong

    def _malformed(self, connection: Connection, malformed: Malformed) -> None:
        self._complain(connection, malformed)
        if isinstance(malformed, messages.Denied):
            self._hear(connection, malformed.form)
            self._deny(connection, malformed.text, malformed.hermes)
        elif isinstance(malformed, messages.BadRequest):
            self._hear(connection, malformed.form)
            body = listing((), malformed.error)
            self._voice.answer(connection, replies.reply(malformed.form, self._clock.seconds(), body))
        else:
            self._deafen(connection)

    def _deny(self, connection: Connection, reason: str, hermes: bool) -> None:
        self._voice.answer(connection, replies.denied(connection.form, self._clock.seconds(), reason, hermes))

    def _part(self, connection: Connection, why: str) -> None:
        """Answer what is valid but unexpected. A service stays registered as long as it lives."""
        if connection.entry is not None:
            connection.entry.parted = True
        self._complain(connection, Refusal(Reason.UNEXPECTED, why))
        self._voice.answer(connection, replies.disconnect(connection.form, self._clock.seconds(), connection.hermes))
        self._deafen(connection)

    def _deafen(self, connection: Connection) -> None:
        connection.release()
        connection.deaf = True
        self._keep(connection)

    def _complain(self, connection: Connection, refusal: Refusal) -> None:
        self._complaints.add(WIRE, connection.address, refusal)

    # connections

    def _meet(self, identity: bytes, descriptor: int) -> Connection:
        return Connection(identity, descriptor, self._router.sender())

    def _keep(self, connection: Connection) -> None:
        """Remember a connection until it is closed."""
        if self._known.get(connection.identity) is connection:
            return
        if len(self._known) >= MAX_CONNECTIONS:
            self._lose(self._dispensable())
        before = self._by_descriptor.get(connection.descriptor)
        if before is not None:
            self._forget(before)
        self._known[connection.identity] = connection
        self._by_descriptor[connection.descriptor] = connection

    def _dispensable(self) -> Connection:
        """The oldest connection through which no service speaks, or the oldest. Those before it are looked at last."""
        for _ in range(LOOKED_AT):
            oldest = next(iter(self._known.values()))
            if oldest.entry is None:
                return oldest
            self._known[oldest.identity] = self._known.pop(oldest.identity)
        return next(iter(self._known.values()))

    def _forget(self, connection: Connection) -> None:
        """A connection is known to be over before its end was told of, as it will be."""
        self._untold[connection.descriptor] = self._untold.get(connection.descriptor, 0) + 1
        self._lose(connection)

    def _lose(self, connection: Connection) -> None:
        """Keep nothing of a connection any more."""
        connection.release()
        self._known.pop(connection.identity, None)
        if self._by_descriptor.get(connection.descriptor) is connection:
            del self._by_descriptor[connection.descriptor]
        self._router.forget(connection.identity)
