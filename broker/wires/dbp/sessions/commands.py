"""The conversations over the ROUTER: the commands of peers, and the answers.

Rules (the document's, and where it is silent those that real nodes need):
- Requests are answered to all peers, at any time. A registration is approved or denied; an update acknowledged or
  denied; a heartbeat acknowledged only to a REQ socket, which must get a reply; a ping answered for Hermes' clients.
  A DISCONNECT is never answered.
- A reply has its time in the form of the message that it answers.
- A connection is known by its number. State is kept only of connections that registered, speak for a service or
  misbehaved, and only until they end. So the table needs no bound of its own: it has the transport's.
- Valid but unexpected: commands that only a broker sends; a second registration on one connection; a heartbeat or an
  acknowledgement where no service is known. The answer is one DISCONNECT, and the connection is *deaf*: nothing that
  comes through it is read, nothing is sent to it, until it ends.
- Invalid: frames that are no message. They are dropped without an answer, and the connection is deaf.
- An update of a service that is not registered is denied: that is what DENIED is for.
- Any message of a service over its connection is a sign of life.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from twisted.internet.interfaces import IReactorTime

from broker.core.errors import Malformed, Reason, Refusal
from broker.core.interfaces import ILeases
from broker.net.interfaces.router import Complaints, Part, Router, Sent
from broker.wires.dbp.codec import messages, replies
from broker.wires.dbp.codec.listings import listing
from broker.wires.dbp.codec.times import Form
from broker.wires.dbp.sessions.catalogue import WIRE, Catalogue
from broker.wires.dbp.sessions.listing import Listing
from broker.wires.dbp.sessions.outbound import Voice
from broker.wires.dbp.sessions.service_state import Connection, Entry

SERVICE_QUESTION = "mmi.service"
"""The one question of 8/MMI that the broker knows: whether there is a service of a name."""


class Commands:
    """All conversations over the ROUTER: a `broker.net.interfaces.router.Conversation`."""

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
        self._connections: dict[int, Connection] = {}
        """By number, those of which state is kept."""
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
        return len(self._connections)

    def connections(self) -> Mapping[int, Connection]:
        """The connections with state, by number."""
        return self._connections

    def counts(self) -> dict[str, int]:
        """The counters of the conversations, by name."""
        return {"dbp_requests.answered": self.requests, "dbp_messages.ignored": self.ignored}

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], number: int) -> None:
        """Take one message: the frames after the identity, and the number of its connection."""
        connection = self._connections.get(number)
        if connection is not None and connection.deaf:
            self.ignored += 1
            return
        try:
            message = messages.parse(frames)
        except Malformed as malformed:
            self._malformed(connection or self._meet(identity, number), malformed)
            return
        if connection is not None:
            self._hear(connection, message.form)
        if type(message) is messages.Request:
            names = message.names
            body = self._listing.named(names) if names else self._listing.all()
            sent = self._router.reply(identity, replies.reply(message.form, self._clock.seconds(), body))
            self.requests += 1
            if sent is not Sent.SENT:
                self._complaints.count("dbp_dropped", sent.value)
            elif connection is not None:
                connection.told = self._leases.now
            return
        if connection is None:
            connection = self._meet(identity, number)
            connection.form = message.form
        self._commands[type(message)](connection, message)

    def closed(self, number: int) -> None:
        """A connection ended: its state goes. Its service stays registered, without a connection."""
        connection = self._connections.pop(number, None)
        if connection is not None:
            connection.release()

    def room(self, identity: bytes) -> None:
        """Do nothing: a heartbeat that was refused is due again, and an answer that was refused is lost."""

    def _hear(self, connection: Connection, form: Form) -> None:
        """Note a message of a connection, with a time in that form, as a sign of life."""
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
            self._part(connection, "an acknowledgement over a connection without a service")

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
        """Bind a service that lost its connection to this one."""
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

    def _meet(self, identity: bytes, number: int) -> Connection:
        return Connection(identity, number, self._router.sender())

    def _keep(self, connection: Connection) -> None:
        """Keep the state of a connection until it is closed."""
        self._connections[connection.number] = connection
