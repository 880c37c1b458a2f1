"""Data flow: data leases, Summon and Dismiss, Contents and their answers, heartbeats.

States of a connection, and the effects of its commands. "403" is a Response with that code; ignored ones are counted.

    command           without flow       with reader             with writer            with both
    Lease (reader)    reader, or 403     403                     both, or 403           403
    Lease (writer)    writer, or 403     both, or 403            403                    403
    Summon, Dismiss   403                200, or 400             400                    200, or 400
    Content           403                403                     to the profile         to the profile
    Ping              403, sequence 0    Pong                    Pong                   Pong
    Confirm, Reject   ignored            to the profile (1)      ignored                to the profile (1)
    Pong              ignored            sign of life            sign of life           sign of life
    Response          ignored            ignored                 ignored                ignored

    (1) where the Contents of the reader are confirmed, and that sequence was sent; else ignored

Every flow of a connection ends together with the others: when the connection closes, after some heartbeats without a
frame, when the lease is revoked, or when the client does not read. The state is then "without flow". The end is not
announced (RFC 11 has no command for it): the next command of the client is answered with 403. The exception is a
resource that moves to another broker: then the client is sent a Response 403 with the sequence 0 at once.

Rules:
- A Ping without flow is answered with 403 rather than a Pong, so that the client of a restarted broker notices.
- A second Lease for the same side is refused, and its lease is lost. A repeated Lease, of the lease in use, is answered
  by 200: it changes nothing.
- A Summon of a resource that the profile has to prepare is answered when it is ready: by 421 if it belongs to another
  broker, by 503 if it cannot be used now. Commands behind it do not wait. A Dismiss of that resource ends the wait: it
  is answered behind its Summon, both by 200.
- A Summon is answered before any Content of the resource. A Dismiss is answered after the profile has processed it; no
  Content of the resource follows.
- A Content names its resource; the name may be empty if there is only one. An invalid Content is answered by a Reject
  if Contents are confirmed, and else by a Response with its sequence. If they are confirmed, sequences rise.
- Confirms and Rejects of unknown sequences are ignored, as is a Response, which only servers send. Ill-formed commands
  are dropped. All of them are counted.
- Any frame is a sign of life. A client is sent a Ping after one heartbeat in which it sent nothing, or was sent
  nothing.
- Flows belong to the number of a connection, which is never reused: a later connection with the same identity has to
  begin with a Lease.

The file is longer than others: its methods are the cells of the table above.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from functools import partial
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from broker.core.errors import Reason, Refusal
from broker.net.peer_interfaces import NumberingRouter, Part, Sent
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.field_table import IllFormed
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from broker.wires.mtl.sessions.data_clients import WIRE, DataClient, DataOutbound, ReaderFlow, WriterFlow
from broker.wires.mtl.sessions.data_leases import DEAD_AFTER, FlowContext
from broker.wires.mtl.sessions.profile_interface import Grant, ProfileReader, ProfileWriter, payer_of

PINGS_TOGETHER = 64
"""Slots of a heartbeat in which Pings are sent: thousands of silent flows then wake the broker a few times a second. A
Ping is late by a sixty-fourth of the heartbeat at most."""

MAX_SUMMONED = 1_000
"""Resources that one reader may have summoned, or that are being prepared for it: as many as a lease may name."""

MAX_NAMES = 1_000
"""Resources in the cache of those that a writer with a lease for all may use. Beyond it, the cache starts empty."""


class DataFlow:
    """All data flows. It is the `Conversation` of their ROUTER, and the `Flows` of profiles."""

    log = Logger()

    def __init__(self, router: NumberingRouter, context: FlowContext) -> None:
        self._router = router
        self._leases = context.leases
        self._data_leases = context.data_leases
        self._silence = context.silence
        self._silence.follow(self.clients)
        self._refusal_log = context.refusal_log
        self._outbound = DataOutbound(router, context, self._end)
        self.fan_out = self._outbound.fan_out
        """See `broker.wires.mtl.sessions.profile_interface.DataFlows`."""
        self._clients: dict[int, DataClient] = {}
        """By the numbers of their connections."""
        self._heartbeat = 0.0
        self.use(context.config)
        self.received = 0
        self._tokens: dict[str, DataClient] = {}
        self._tails = wire.Tails()
        self._tails_of_strangers = wire.Tails()
        """A cache of its own: peers without a lease cannot evict the entries of writers."""
        self._commands: dict[type, Callable[[DataClient, Any], None]] = {
            wire.Content: self._content,
            wire.Confirm: self._confirm,
            wire.Reject: self._reject,
            wire.Summon: self._summon,
            wire.Dismiss: self._dismiss,
            wire.Lease: self._lease_again,
            wire.Ping: self._ping,
            wire.Pong: self._pong,
            wire.Response: self._response,
        }
        context.data_leases.ended = self._revoked

    def __len__(self) -> int:
        return len(self._clients)

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process one message: the frames after the identity, and the number of its connection."""
        client = self._clients.get(connection)
        if client is None:
            self._meet(identity, frames, connection)
            return
        client.heard = self._leases.now
        if self._silence.suspects:
            self._silence.heard(client)
        try:
            command = wire.parse(frames, self._tails)
        except IllFormed as fault:
            self._ill_formed(client.address, fault)
            return
        self._commands[type(command)](client, command)

    def closed(self, connection: int) -> None:
        """End the flows of a connection that closed."""
        client = self._clients.get(connection)
        if client is not None:
            self._end(client, "closed")

    def needs(self, connection: int) -> bool:
        """Return True while the connection has a flow."""
        return connection in self._clients

    def room(self, identity: bytes) -> None:
        """Resume sending to a peer that has room again after a refusal."""
        self._outbound.room(identity)

    # from profiles

    def end(self, flow: ProfileReader | ProfileWriter, why: str, announce: bool = False) -> None:
        """End both flows of a client."""
        assert isinstance(flow, ReaderFlow | WriterFlow)
        if not flow.client.over:
            if announce:
                self._outbound.answer(flow.client, wire.response(0, wire.FORBIDDEN))
            self._end(flow.client, why)

    # from the leases

    def check(self, client: DataClient, now: float) -> float | None:
        """Ping or end a client. Returns the time of the next check, None if it has ended."""
        # The slack covers stamps that are as old as the last tick, in a busy broker.
        again = self._silence.review(client, now, self._leases.slack)
        if again is None:
            self._end(client, "dead")
            return None
        reader = client.reader
        # Contents are counted by the reader alone, which saves a write for each on the fast path.
        said = client.sent if reader is None else max(client.sent, reader.sent)
        beat = min(client.heard, said) + self._heartbeat
        if now >= beat:
            self._outbound.ping(client)
            beat = now + self._heartbeat
        return min(again, self._together(beat))

    def pace(self) -> float:
        """Return the seconds of silence after which a client is sent a Ping, which it answers."""
        return self._heartbeat

    def patience(self) -> float:
        """Return the seconds of silence after which a client is dead."""
        return self._patience

    def confirm(self, client: DataClient) -> None:
        """Process a check of a doubtful client's services that succeeded."""
        client.heard = self._leases.moment()

    def discard(self, client: DataClient) -> None:
        """End a doubtful client at whose services nothing listens."""
        self._end(client, "dead")

    # from the operator

    def use(self, config: Mtl) -> None:
        """Apply another section. The silence of present clients begins again with a shorter heartbeat."""
        shorter = config.heartbeat < self._heartbeat
        self._heartbeat = config.heartbeat
        self._patience = config.heartbeat * DEAD_AFTER
        if shorter:
            # They were sent no Ping yet, and may have been silent for longer than the new patience.
            now = self._leases.moment()
            for client in self._clients.values():
                client.heard = now
                client.lease.cancel()
                client.lease = self._leases.hold(client, self._together(now + self._heartbeat))

    def counts(self) -> dict[str, int]:
        """Return the counters of the data flow."""
        return {"mtl_contents.received": self.received, "mtl_contents.delivered": self._outbound.delivered}

    def clients(self) -> Iterable[DataClient]:
        """Return all clients, the oldest first."""
        return self._clients.values()

    # begin and end of flows

    def _meet(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Process a message of a connection without flow."""
        try:
            command = wire.parse(frames, self._tails_of_strangers)
        except IllFormed as fault:
            self._ill_formed(self._router.sender().address, fault)
            return
        if type(command) is wire.Lease:
            self._lease(None, identity, connection, command)
        elif isinstance(command, wire.Summon | wire.Dismiss | wire.Content):
            self._turn_away(identity, command.sequence, "has no data lease")
        elif type(command) is wire.Ping:
            self._turn_away(identity, 0, "has no data lease")
        else:
            self._refusal_log.count("mtl_ignored", type(command).__name__.lower())

    def _lease_again(self, client: DataClient, command: wire.Lease) -> None:
        self._lease(client, client.identity, client.connection, command)

    def _lease(self, client: DataClient | None, identity: bytes, connection: int, command: wire.Lease) -> None:
        token = command.lease
        if client is not None and self._tokens.get(token) is client:
            self._outbound.answer(client, wire.response(command.sequence, wire.OK))
            return
        grant = self._data_leases.take(token, identity, self._router.key())
        why = "" if grant is not None else "an unknown data lease, or one of another client"
        if grant is not None and client is not None and _has(client, grant.side):
            self._data_leases.release(token)
            why = f"a second data lease for a {grant.side.value}"
        if grant is None or why:
            if client is None:
                self._turn_away(identity, command.sequence, why)
            else:
                self._refuse(client, command.sequence, Refusal(Reason.FORBIDDEN, why), wire.FORBIDDEN)
            return
        if client is None:
            client = self._admit(identity, connection)
        self._begin(client, grant, token)
        self._outbound.answer(client, wire.response(command.sequence, wire.OK))

    def _admit(self, identity: bytes, connection: int) -> DataClient:
        now = self._leases.now
        client = DataClient(self, identity, connection, self._router.sender().address, now)
        client.lease = self._leases.hold(client, self._together(now + self._heartbeat))
        self._clients[connection] = client
        return client

    def _begin(self, client: DataClient, grant: Grant, token: str) -> None:
        flow: ReaderFlow | WriterFlow
        if grant.side is Side.READER:
            flow = client.reader = ReaderFlow(client, grant, token, self._outbound)
        else:
            flow = client.writer = WriterFlow(client, grant, token, self._outbound)
            flow.names.update(_names(grant))
        self._tokens[token] = client
        self._refusal_log.count("mtl_flows", grant.side.value)
        grant.profile.joined(flow)

    def _end(self, client: DataClient, why: str) -> None:
        # The transport reports the end of a connection outside of a quantum: the time has to be set for profiles.
        self._leases.look()
        client.over = True
        del self._clients[client.connection]
        self._silence.ended(client)
        client.lease.cancel()
        self._outbound.forget(client)
        flows = client.flows()
        # All tables first: a profile that fails, or sends to other clients, must not find half an end.
        for flow in flows:
            del self._tokens[flow.token]
            self._data_leases.release(flow.token)
            self._refusal_log.count("mtl_flows", why)
        for flow in flows:
            try:
                flow.grant.profile.left(flow)
            except Exception:
                self.log.failure("the profile {name} failed at the end of a flow", name=flow.grant.profile.name)
        self.log.debug("the data flows of {client} ended: {why}", client=client, why=why)
        # They refer to the client and to the flow: without the cycles, no garbage collection is needed.
        for flow in flows:
            flow.place = None
        client.reader = client.writer = None

    def _revoked(self, tokens: Collection[str]) -> None:
        """End the flows of leases that were revoked together."""
        clients = dict.fromkeys(self._tokens[token] for token in tokens if token in self._tokens)
        # Before the first end: a message that one of them gives back must not go to the next one, and through all of
        # them, since each delivery counts.
        for client in clients:
            client.over = True
        for client in clients:
            try:
                self._end(client, "revoked")
            except Exception:
                self.log.failure("the end of a revoked data flow failed")

    # Contents

    def _content(self, client: DataClient, content: wire.Content) -> None:
        writer = client.writer
        if writer is None:
            refusal = Refusal(Reason.FORBIDDEN, "a Content without a data lease for writing")
            self._refuse(client, content.sequence, refusal, wire.FORBIDDEN)
            return
        resource = writer.names.get(content.resource)
        if writer.confirmed:
            sequence = content.sequence
            if sequence <= writer.last:
                refusal = Refusal(Reason.PARAMETER, "the sequence of a Content is not above those before")
                self._refuse_content(writer, sequence, refusal)
                return
            writer.last = sequence
        if resource is None:
            try:
                resource = _allow(writer, content.resource, MAX_NAMES)
            except Refusal as refusal:
                self._refuse_content(writer, content.sequence, refusal)
                return
        self.received += 1
        writer.grant.profile.content(writer, resource, content)

    def _refuse_content(self, writer: WriterFlow, sequence: int, refusal: Refusal) -> None:
        self._complain(writer.client, refusal)
        writer.reject(sequence, recycle=False)

    def _confirm(self, client: DataClient, command: wire.Confirm) -> None:
        reader = _confirmed(client, command.sequence)
        if reader is None:
            self._refusal_log.count("mtl_ignored", "confirm")
        else:
            reader.grant.profile.confirmed(reader, command.sequence, command.multiple)

    def _reject(self, client: DataClient, command: wire.Reject) -> None:
        reader = _confirmed(client, command.sequence)
        if reader is None:
            self._refusal_log.count("mtl_ignored", "reject")
        else:
            reader.grant.profile.rejected(reader, command.sequence, command.multiple, command.recycle)

    # the other commands

    def _summon(self, client: DataClient, command: wire.Summon) -> None:
        name = command.resource
        try:
            reader = _reader(client, name)
            # The fan-out keeps one entry for each reader: a second Summon would double its Contents, or do nothing.
            if name in reader.summoned:
                raise Refusal(Reason.PARAMETER, "a Summon of a resource that is summoned already")
            if max(len(reader.summoned), reader.preparing) >= MAX_SUMMONED:
                raise Refusal(Reason.LIMIT, f"may have summoned {MAX_SUMMONED} resources, and no more")
            if not reader.grant.resources:
                reader.grant.profile.check(reader.grant.principal, Side.READER, name)
        except Refusal as refusal:
            self._refuse(client, command.sequence, refusal, wire.BAD_REQUEST)
            return
        reader.summoned[name] = command
        waits = None if reader.grant.resources else self._preparation(reader, name)
        if waits is None:
            self._summoned(client, reader, command)
        else:
            reader.preparing += 1
            waits.addBoth(partial(_prepared, reader)).addCallbacks(
                lambda _: self._summoned(client, reader, command), partial(self._not_summoned, client, reader, command)
            ).addErrback(lambda failure: self.log.failure("a Summon made the broker fail", failure))

    def _preparation(self, reader: ReaderFlow, name: str) -> Deferred[None] | None:
        """Return the preparation of a resource that the lease does not name; named ones were prepared for the lease."""
        return reader.grant.profile.prepare(reader.grant.principal, Side.READER, (name,), payer_of(reader))

    def _summoned(self, client: DataClient, reader: ReaderFlow, command: wire.Summon) -> None:
        name = command.resource
        if client.over or reader.summoned.get(name) is not command:
            return  # the flow has ended, or the resource was dismissed, and perhaps summoned again
        reader.summoned[name] = None
        # Before the profile: it may send Contents at once, and the answer must precede them.
        self._outbound.answer(client, wire.response(command.sequence, wire.OK))
        reader.grant.profile.summon(reader, name, command.body)

    def _not_summoned(self, client: DataClient, reader: ReaderFlow, command: wire.Summon, failure: Failure) -> None:
        if client.over or reader.summoned.get(command.resource) is not command:
            return  # as in `_summoned`
        del reader.summoned[command.resource]
        refusal = failure.value
        if not isinstance(refusal, Refusal):
            failure.raiseException()
        code = wire.MISDIRECTED if refusal.reason is Reason.ELSEWHERE else wire.UNAVAILABLE
        self._refuse(client, command.sequence, refusal, code)

    def _dismiss(self, client: DataClient, command: wire.Dismiss) -> None:
        name = command.resource
        try:
            reader = _reader(client, name)
            if name not in reader.summoned:
                raise Refusal(Reason.PARAMETER, "a Dismiss of a resource that is not summoned")
        except Refusal as refusal:
            self._refuse(client, command.sequence, refusal, wire.BAD_REQUEST)
            return
        waiting = reader.summoned.pop(name)
        if waiting is None:
            reader.grant.profile.dismiss(reader, name)
        else:
            self._outbound.answer(client, wire.response(waiting.sequence, wire.OK))
        self._outbound.answer(client, wire.response(command.sequence, wire.OK))

    def _ping(self, client: DataClient, command: wire.Ping) -> None:
        self._outbound.answer(client, wire.PONG)
        self._beat(client)

    def _pong(self, client: DataClient, command: wire.Pong) -> None:
        self._beat(client)

    def _beat(self, client: DataClient) -> None:
        for flow in client.flows():
            flow.grant.profile.heartbeat(flow)

    def _response(self, client: DataClient, command: wire.Response) -> None:
        self._refusal_log.count("mtl_ignored", "response")

    # refusals

    def _ill_formed(self, address: str, fault: IllFormed) -> None:
        self._refusal_log.count("mtl_ill_formed", fault.fault.value)
        self._refusal_log.add(WIRE, address, fault)

    def _turn_away(self, identity: bytes, sequence: int, why: str) -> None:
        """Refuse a command on a connection without flow. Nothing is stored about it."""
        self._refusal_log.add(WIRE, self._router.sender().address, Refusal(Reason.FORBIDDEN, why))
        if self._router.reply(identity, wire.response(sequence, wire.FORBIDDEN)) is Sent.FULL:
            self._refusal_log.count("mtl_dropped", "answer")

    def _refuse(self, client: DataClient, sequence: int, refusal: Refusal, code: bytes) -> None:
        self._complain(client, refusal)
        self._outbound.answer(client, wire.response(sequence, code))

    def _complain(self, client: DataClient, refusal: Refusal) -> None:
        refusal.summary = f"{client}: {refusal.summary}"
        self._refusal_log.add(WIRE, client.address, refusal)

    def _together(self, due: float) -> float:
        """Return that time rounded up to a slot: many Pings are then due at the same time."""
        grain = self._heartbeat / PINGS_TOGETHER
        return math.ceil(due / grain) * grain


def _has(client: DataClient, side: Side) -> bool:
    return (client.reader if side is Side.READER else client.writer) is not None


def _prepared(reader: ReaderFlow, result: Any) -> Any:
    """Process the end of a preparation, and return its result."""
    reader.preparing -= 1
    return result


def _names(grant: Grant) -> dict[str, str]:
    """Return the resources of a lease for writing, by the names that Contents may give."""
    names = {name: name for name in grant.resources}
    sole = grant.resources if grant.resources else (grant.profile.sole,)
    if len(sole) == 1 and sole[0] is not None:
        names[""] = sole[0]
    return names


def _allow(writer: WriterFlow, name: str, most: int) -> str:
    """Check a resource that is not in `WriterFlow.names`, which keeps ``most``. Raises `Refusal` if it is forbidden."""
    grant = writer.grant
    if not name:
        raise Refusal(Reason.PARAMETER, "a Content without a resource, for a lease of several")
    if grant.resources:
        raise Refusal(Reason.PARAMETER, "a Content for a resource that the data lease is not for")
    grant.profile.check(grant.principal, Side.WRITER, name)
    if len(writer.names) >= most:
        writer.names.clear()
        writer.names.update(_names(grant))
    writer.names[name] = name
    return name


def _reader(client: DataClient, name: str) -> ReaderFlow:
    """Return the flow of a Summon or Dismiss. Raises `Refusal` without one, or if it does not cover the resource."""
    reader = client.reader
    if reader is None:
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss without a data lease for reading")
    if not name or not reader.grant.covers(name):
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss of a resource that the data lease is not for")
    return reader


def _confirmed(client: DataClient, sequence: int) -> ReaderFlow | None:
    """Return the flow that a Confirm or Reject of that sequence is for, None if nothing was sent by that number."""
    reader = client.reader
    if reader is None or reader.grant.confirm is not ConfirmMode.FULL or not 0 < sequence <= reader.sequence:
        return None
    return reader
