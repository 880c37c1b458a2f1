"""The data flow: data leases, Summon and Dismiss, Contents and their answers, heartbeats.

Rules:
- A client begins with a Lease, and may have one for reading and one for writing. Whoever has none hears 403 to whatever
  is answered at all; to a Ping too, with the sequence 0 and without a Pong, so that the client of a broker that was
  started again notices. A second lease for the same side is refused, and lost.
- A Summon is answered before any Content of the resource. A Dismiss is answered after the profile has heard of it, and
  then there is no Content of the resource any more.
- A Content names its resource, but where there is only one that it could be for. What is wrong with one that is well
  formed is told by a Reject where Contents are confirmed, and else by a Response with its sequence. Where they are
  confirmed, their sequences rise.
- Confirms and Rejects of what was never sent, or where none were agreed, are ignored without a word. So are Responses,
  which no client sends. What is ill-formed is dropped. All of these are counted.
- Any frame is a sign of life. A client that says nothing is sent a Ping after one heartbeat, as is one that was sent
  nothing; after some heartbeats without a frame it is over.
- A connection that closed ends its clients' flows. The news of it may be about an earlier connection with the same
  descriptor, so the client is asked, and has a second to answer. But one that chose its identity may be back under the
  same identity, and even the same descriptor: what was on the way to it is lost for all that, so it is over at once. So
  is a client that speaks through another connection than before.
- Flows that are over are not told: the client hears 403 to what it says next.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable
from typing import Any

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILeases
from broker.session.mtl.flows import WIRE, Client, ReaderFlow, Voice, WriterFlow
from broker.session.mtl.grants import Confirm, Grant, Side
from broker.session.mtl.leases import DataLeases
from broker.session.mtl.profile import Reader, Writer
from broker.session.mtl.settings import Settings
from broker.session.router import Complaints, NumberingRouter, Part
from broker.wire.mtl import data as wire
from broker.wire.mtl.faults import IllFormed
from broker.wire.mtl.frames import is_data

PINGS_TOGETHER = 64
"""Moments of a heartbeat at which Pings go out: those of thousands of silent flows wake libzmq's thread some times a
second, and none is later by more than a sixty-fourth of the heartbeat."""

GRACE = 1.0
"""Seconds in which a client must say something after the news that its connection closed: many round trips."""

ASK_AGAIN = 0.1
"""Seconds after which it is asked again: by then libzmq may have noticed, too, that nobody is there."""

MAX_IDENTITY = 255
"""Bytes: what ZeroMQ's document allows. libzmq takes longer ones from peers."""

MAX_SUMMONED = 1_000
"""Resources that one reader may have summoned: as many as a lease may name."""

MAX_NAMES = 1_000
"""Resources that are remembered as allowed to a writer with a lease for all. When there are more, all are asked for
again."""

Receive = Callable[[bytes, list[Part], int], object]
"""What a transport gives messages to: identity, frames, and the descriptor of the connection."""


def shared(control: Receive, data: Receive) -> Receive:
    """What one socket that carries both flows gives its messages to."""

    def receive(identity: bytes, frames: list[Part], connection: int) -> None:
        (data if is_data(frames) else control)(identity, frames, connection)

    return receive


class Data:
    """All data flows. The transport calls `receive`, the monitor `closed`, profiles `fan_out` and `end`."""

    log = Logger()

    def __init__(
        self,
        router: NumberingRouter,
        leases: ILeases,
        data_leases: DataLeases,
        complaints: Complaints,
        settings: Settings,
    ) -> None:
        self._router = router
        self._leases = leases
        self._data_leases = data_leases
        self._complaints = complaints
        self._voice = Voice(router, leases, complaints, settings, self._end)
        self.use(settings)
        self.received = 0
        self._clients: dict[bytes, Client] = {}
        self._connections: dict[int, Client] = {}
        self._tokens: dict[str, Client] = {}
        self._untold: dict[int, int] = {}
        """How many connections that are known to be over each descriptor had: their ends are still to be told of."""
        self._tails = wire.Tails()
        self._tails_of_strangers = wire.Tails()
        """Apart, so that whoever may write nothing costs the writers nothing."""
        self._commands: dict[type, Callable[[Client, Any], None]] = {
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
        data_leases.ended = self._revoked

    def __len__(self) -> int:
        return len(self._clients)

    # from the transport

    def receive(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take one message: the frames after the identity. ``connection`` is the descriptor that it came through."""
        client = self._clients.get(identity)
        if client is None or client.connection != connection:
            self._meet(client, identity, frames, connection)
            return
        client.heard = self._leases.now
        if client.answers:
            self._voice.flush(client)
            if client.over:  # which its profile did
                self._meet(None, identity, frames, connection)
                return
        try:
            command = wire.parse(frames, self._tails)
        except IllFormed as fault:
            self._ill_formed(client.address, fault)
            return
        self._commands[type(command)](client, command)

    def closed(self, connection: int) -> None:
        """A connection ended. Messages of the next one with this descriptor may have come before."""
        untold = self._untold.pop(connection, 0)
        if untold > 1:
            self._untold[connection] = untold - 1
        client = self._connections.get(connection)
        if client is None or untold:
            return
        if _is_chosen(client.identity):
            self._end(client, "closed")
            return
        client.heard = client.news = min(client.heard, self._leases.now + GRACE - self._patience)
        client.lease.cancel()
        over = client.heard + self._patience + self._leases.slack
        client.lease = self._leases.hold(client, min(over, self._leases.now + ASK_AGAIN))
        self._voice.ping(client)

    # from profiles

    def fan_out(self, readers: Collection[Any], tail: bytes, body: Part) -> None:
        """See `broker.session.mtl.profile.Flows`."""
        self._voice.fan_out(readers, tail, body)

    def end(self, flow: Reader | Writer, why: str) -> None:
        """End the flow of a client, and its other one."""
        assert isinstance(flow, ReaderFlow | WriterFlow)
        if not flow.client.over:
            self._end(flow.client, why)

    # from the leases

    def check(self, client: Client, now: float) -> float | None:
        """Do what is due for a client; returns when to be asked again, None when it is over."""
        over = client.heard + self._patience + self._leases.slack
        if now >= over:
            self._end(client, "dead")
            return None
        if client.heard == client.news:
            self._voice.ping(client)
            return min(over, now + ASK_AGAIN)
        reader = client.reader
        said = client.sent if reader is None else max(client.sent, reader.sent)
        beat = min(client.heard, said) + self._heartbeat
        if now >= beat:
            self._voice.ping(client)
            beat = now + self._heartbeat
        return min(over, self._together(beat))

    # from the operator

    def use(self, settings: Settings) -> None:
        """Take what was set."""
        self._voice.settings = settings
        self._heartbeat = settings.heartbeat
        self._patience = settings.heartbeat * settings.dead_after

    def counts(self) -> dict[str, int]:
        """What is too frequent to be counted elsewhere."""
        return {"mtl_contents.received": self.received, "mtl_contents.delivered": self._voice.delivered}

    def clients(self) -> Iterable[Client]:
        """All that have flows, the oldest first."""
        return self._clients.values()

    # who comes and goes

    def _meet(self, client: Client | None, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take a message of somebody who has no flow, or has none any more."""
        if client is not None:
            self._supersede(client)
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
            self._complaints.count("mtl_ignored", type(command).__name__.lower())

    def _supersede(self, client: Client) -> None:
        """It, or its descriptor, has another connection now.

        The end of the former is still to be told of, unless that was the last that was heard of it.
        """
        if client.heard != client.news:
            self._untold[client.connection] = self._untold.get(client.connection, 0) + 1
        self._end(client, "closed")

    def _lease_again(self, client: Client, command: wire.Lease) -> None:
        self._lease(client, client.identity, client.connection, command)

    def _lease(self, client: Client | None, identity: bytes, connection: int, command: wire.Lease) -> None:
        token = command.lease
        if client is not None and self._tokens.get(token) is client:
            self._voice.answer(client, wire.response(command.sequence, wire.OK))
            return
        grant = None
        if len(identity) <= MAX_IDENTITY:
            grant = self._data_leases.take(token, identity, self._router.key())
        why = "" if grant is not None else "a data lease that is none, or that of somebody else"
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
        self._voice.answer(client, wire.response(command.sequence, wire.OK))

    def _admit(self, identity: bytes, connection: int) -> Client:
        before = self._connections.get(connection)
        if before is not None:
            self._supersede(before)
        now = self._leases.now
        client = Client(self, identity, connection, self._router.sender().address, now)
        client.lease = self._leases.hold(client, self._together(now + self._heartbeat))
        self._clients[identity] = client
        if connection >= 0:
            self._connections[connection] = client
        return client

    def _begin(self, client: Client, grant: Grant, token: str) -> None:
        flow: ReaderFlow | WriterFlow
        if grant.side is Side.READER:
            flow = client.reader = ReaderFlow(client, grant, token, self._voice)
        else:
            flow = client.writer = WriterFlow(client, grant, token, self._voice)
            flow.names.update(_names(grant))
        self._tokens[token] = client
        self._complaints.count("mtl_flows", grant.side.value)
        grant.profile.joined(flow)

    def _end(self, client: Client, why: str) -> None:
        client.over = True
        del self._clients[client.identity]
        if self._connections.get(client.connection) is client:
            del self._connections[client.connection]
        client.lease.cancel()
        self._voice.forget(client)
        self._router.forget(client.identity)
        flows = client.flows()
        for flow in flows:
            del self._tokens[flow.token]
            self._data_leases.release(flow.token)
            self._complaints.count("mtl_flows", why)
        for flow in flows:
            try:
                flow.grant.profile.left(flow)
            except Exception:
                self.log.failure("the profile {name} failed at the end of a flow", name=flow.grant.profile.name)
        self.log.debug("the data flows of {client} ended: {why}", client=client, why=why)

    def _revoked(self, token: str) -> None:
        """A lease in use was taken back."""
        client = self._tokens.get(token)
        if client is not None:
            self._end(client, "revoked")

    # Contents

    def _content(self, client: Client, content: wire.Content) -> None:
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
                resource = _allow(writer, content.resource)
            except Refusal as refusal:
                self._refuse_content(writer, content.sequence, refusal)
                return
        self.received += 1
        writer.grant.profile.content(writer, resource, content)

    def _refuse_content(self, writer: WriterFlow, sequence: int, refusal: Refusal) -> None:
        self._complain(writer.client, refusal)
        writer.reject(sequence, recycle=False)

    def _confirm(self, client: Client, command: wire.Confirm) -> None:
        reader = _confirmed(client, command.sequence)
        if reader is None:
            self._complaints.count("mtl_ignored", "confirm")
        else:
            reader.grant.profile.confirmed(reader, command.sequence, command.multiple)

    def _reject(self, client: Client, command: wire.Reject) -> None:
        reader = _confirmed(client, command.sequence)
        if reader is None:
            self._complaints.count("mtl_ignored", "reject")
        else:
            reader.grant.profile.rejected(reader, command.sequence, command.multiple, command.recycle)

    # the other commands

    def _summon(self, client: Client, command: wire.Summon) -> None:
        name = command.resource
        try:
            reader = _reader(client, name)
            if name in reader.summoned:
                raise Refusal(Reason.PARAMETER, "a Summon of what is summoned already")
            if len(reader.summoned) >= MAX_SUMMONED:
                raise Refusal(Reason.LIMIT, f"may have summoned {MAX_SUMMONED} resources, and no more")
            if not reader.grant.resources:
                reader.grant.profile.check(reader.grant.principal, Side.READER, name)
        except Refusal as refusal:
            self._refuse(client, command.sequence, refusal, wire.BAD_REQUEST)
            return
        reader.summoned[name] = None
        self._voice.answer(client, wire.response(command.sequence, wire.OK))
        reader.grant.profile.summon(reader, name)

    def _dismiss(self, client: Client, command: wire.Dismiss) -> None:
        name = command.resource
        try:
            reader = _reader(client, name)
            if name not in reader.summoned:
                raise Refusal(Reason.PARAMETER, "a Dismiss of what is not summoned")
        except Refusal as refusal:
            self._refuse(client, command.sequence, refusal, wire.BAD_REQUEST)
            return
        del reader.summoned[name]
        reader.grant.profile.dismiss(reader, name)
        self._voice.answer(client, wire.response(command.sequence, wire.OK))

    def _ping(self, client: Client, command: wire.Ping) -> None:
        self._leases.look()
        self._voice.answer(client, wire.PONG)

    def _pong(self, client: Client, command: wire.Pong) -> None:
        self._leases.look()

    def _response(self, client: Client, command: wire.Response) -> None:
        self._complaints.count("mtl_ignored", "response")

    # what is wrong

    def _ill_formed(self, address: str, fault: IllFormed) -> None:
        self._complaints.count("mtl_ill_formed", fault.fault.value)
        self._complaints.add(WIRE, address, fault)

    def _turn_away(self, identity: bytes, sequence: int, why: str) -> None:
        """Refuse somebody of whom nothing is kept, and for whom no answer waits."""
        self._complaints.add(WIRE, self._router.sender().address, Refusal(Reason.FORBIDDEN, why))
        self._router.send(identity, wire.response(sequence, wire.FORBIDDEN))

    def _refuse(self, client: Client, sequence: int, refusal: Refusal, code: bytes) -> None:
        self._complain(client, refusal)
        self._voice.answer(client, wire.response(sequence, code))

    def _complain(self, client: Client, refusal: Refusal) -> None:
        refusal.summary = f"{client}: {refusal.summary}"
        self._complaints.add(WIRE, client.address, refusal)

    def _together(self, due: float) -> float:
        """That time or a little later: many Pings are due at the same moments."""
        grain = self._heartbeat / PINGS_TOGETHER
        return math.ceil(due / grain) * grain


def _is_chosen(identity: bytes) -> bool:
    """Whether the client chose its identity. Those that a ROUTER gives begin with a zero byte."""
    return identity[:1] != b"\0"


def _has(client: Client, side: Side) -> bool:
    return (client.reader if side is Side.READER else client.writer) is not None


def _names(grant: Grant) -> dict[str, str]:
    """The resources of a lease for writing, by what its Contents may say."""
    names = {name: name for name in grant.resources}
    sole = grant.resources if grant.resources else (grant.profile.sole,)
    if len(sole) == 1 and sole[0] is not None:
        names[""] = sole[0]
    return names


def _allow(writer: WriterFlow, name: str) -> str:
    """A resource that is none of `WriterFlow.names`. Raises `Refusal` if it may not be."""
    grant = writer.grant
    if not name:
        raise Refusal(Reason.PARAMETER, "a Content that does not say for which resource")
    if grant.resources:
        raise Refusal(Reason.PARAMETER, "a Content for a resource that the data lease is not for")
    grant.profile.check(grant.principal, Side.WRITER, name)
    if len(writer.names) >= MAX_NAMES:
        writer.names.clear()
        writer.names.update(_names(grant))
    writer.names[name] = name
    return name


def _reader(client: Client, name: str) -> ReaderFlow:
    """The flow of a Summon or Dismiss. Raises `Refusal` if it has none, or not for that resource."""
    reader = client.reader
    if reader is None:
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss without a data lease for reading")
    if not name or not reader.grant.covers(name):
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss of a resource that the data lease is not for")
    return reader


def _confirmed(client: Client, sequence: int) -> ReaderFlow | None:
    """The flow in which a Content with that sequence is to be confirmed, if there is one."""
    reader = client.reader
    if reader is None or reader.grant.confirm is not Confirm.FULL or not 0 < sequence <= reader.sequence:
        return None
    return reader
