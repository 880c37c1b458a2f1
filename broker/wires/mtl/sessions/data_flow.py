"""The data flow: data leases, Summon and Dismiss, Contents and their answers, heartbeats.

Rules:
- A client begins with a Lease, and may have one for reading and one for writing. A peer without one is answered 403 to
  every command that is answered at all; to a Ping too, with the sequence 0 and without a Pong, so that the client of a
  broker that was started again notices. A second lease for the same side is refused, and lost.
- A Summon is answered before any Content of the resource. A Dismiss is answered after the profile has heard of it, and
  then there is no Content of the resource any more.
- A Content names its resource, but where there is only one that it could be for. What is wrong with one that is well
  formed is told by a Reject where Contents are confirmed, and else by a Response with its sequence. Where they are
  confirmed, their sequences rise.
- Confirms and Rejects of what was never sent, or where none were agreed, are ignored without a word. So are Responses,
  which no client sends. What is ill-formed is dropped. All of these are counted.
- Any frame is a sign of life. A client that says nothing is sent a Ping after one heartbeat, as is one that was sent
  nothing; after some heartbeats without a frame it is over.
- A client belongs to one connection, and its flows end when that closes. The number of a connection never comes again,
  so a later connection with the same identity has to begin with a Lease.
- The end of a flow is not announced: the client is answered 403 to its next command.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.net.interfaces.router import NumberingRouter, Part, Sent
from broker.wires.mtl.codec import data as wire
from broker.wires.mtl.codec.faults import IllFormed
from broker.wires.mtl.sessions.data_clients import WIRE, DataClient, DataOutbound, ReaderFlow, WriterFlow
from broker.wires.mtl.sessions.flow_context import FlowContext
from broker.wires.mtl.sessions.principals import ConfirmMode, Side
from broker.wires.mtl.sessions.profile_interface import Grant, ProfileReader, ProfileWriter
from broker.wires.mtl.sessions.settings import MtlSettings

PINGS_TOGETHER = 64
"""Moments of a heartbeat at which clients are checked and Pings go out, so that thousands of silent flows wake the
broker a few times a second. No Ping is later by more than a sixty-fourth of the heartbeat."""


class DataFlow:
    """All data flows. It is the `Conversation` of their ROUTER, and the `Flows` of profiles."""

    log = Logger()

    def __init__(self, router: NumberingRouter, context: FlowContext) -> None:
        self._router = router
        self._leases = context.leases
        self._data_leases = context.data_leases
        self._complaints = context.complaints
        self._outbound = DataOutbound(router, context, self._end)
        self.fan_out = self._outbound.fan_out
        """See `broker.wires.mtl.sessions.profile_interface.DataFlows`."""
        self.use(context.settings)
        self.received = 0
        self._clients: dict[int, DataClient] = {}
        """By the numbers of their connections."""
        self._tokens: dict[str, DataClient] = {}
        self._tails = wire.Tails()
        self._tails_of_strangers = wire.Tails()
        """Apart, so that peers without a lease cost the writers nothing."""
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
        """Take one message: the frames after the identity, and the number of its connection."""
        client = self._clients.get(connection)
        if client is None:
            self._meet(identity, frames, connection)
            return
        client.heard = self._leases.now
        try:
            command = wire.parse(frames, self._tails)
        except IllFormed as fault:
            self._ill_formed(client.address, fault)
            return
        self._commands[type(command)](client, command)

    def closed(self, connection: int) -> None:
        """A connection ended, and its flows with it."""
        client = self._clients.get(connection)
        if client is not None:
            self._end(client, "closed")

    def room(self, identity: bytes) -> None:
        """A peer for which a message was refused has room again."""
        self._outbound.room(identity)

    # from profiles

    def end(self, flow: ProfileReader | ProfileWriter, why: str) -> None:
        """End the flow of a client, and its other one."""
        assert isinstance(flow, ReaderFlow | WriterFlow)
        if not flow.client.over:
            self._end(flow.client, why)

    # from the leases

    def check(self, client: DataClient, now: float) -> float | None:
        """Do what is due for a client. Returns the time of the next check, None when it is over."""
        over = client.heard + self._patience + self._leases.slack
        if now >= over:
            self._end(client, "dead")
            return None
        reader = client.reader
        said = client.sent if reader is None else max(client.sent, reader.sent)
        beat = min(client.heard, said) + self._heartbeat
        if now >= beat:
            self._outbound.ping(client)
            beat = now + self._heartbeat
        return min(over, self._together(beat))

    # from the operator

    def use(self, settings: MtlSettings) -> None:
        """Take other settings."""
        self._outbound.settings = settings
        self._max_summoned = settings.max_summoned
        self._max_names = settings.max_names
        self._heartbeat = settings.heartbeat
        self._patience = settings.heartbeat * settings.dead_after

    def counts(self) -> dict[str, int]:
        """The counters that are kept here, by name."""
        return {"mtl_contents.received": self.received, "mtl_contents.delivered": self._outbound.delivered}

    def clients(self) -> Iterable[DataClient]:
        """All clients, the oldest first."""
        return self._clients.values()

    # clients that begin and end

    def _meet(self, identity: bytes, frames: list[Part], connection: int) -> None:
        """Take a message of a peer that has no flow, or has none any more."""
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

    def _lease_again(self, client: DataClient, command: wire.Lease) -> None:
        self._lease(client, client.identity, client.connection, command)

    def _lease(self, client: DataClient | None, identity: bytes, connection: int, command: wire.Lease) -> None:
        token = command.lease
        if client is not None and self._tokens.get(token) is client:
            self._outbound.answer(client, wire.response(command.sequence, wire.OK))
            return
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
        self._complaints.count("mtl_flows", grant.side.value)
        grant.profile.joined(flow)

    def _end(self, client: DataClient, why: str) -> None:
        self._leases.look()  # what profiles do now may be the end of a connection, outside of a quantum
        client.over = True
        del self._clients[client.connection]
        client.lease.cancel()
        self._outbound.forget(client)
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
                resource = _allow(writer, content.resource, self._max_names)
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
            self._complaints.count("mtl_ignored", "confirm")
        else:
            reader.grant.profile.confirmed(reader, command.sequence, command.multiple)

    def _reject(self, client: DataClient, command: wire.Reject) -> None:
        reader = _confirmed(client, command.sequence)
        if reader is None:
            self._complaints.count("mtl_ignored", "reject")
        else:
            reader.grant.profile.rejected(reader, command.sequence, command.multiple, command.recycle)

    # the other commands

    def _summon(self, client: DataClient, command: wire.Summon) -> None:
        name = command.resource
        try:
            reader = _reader(client, name)
            if name in reader.summoned:
                raise Refusal(Reason.PARAMETER, "a Summon of what is summoned already")
            most = self._max_summoned
            if len(reader.summoned) >= most:
                raise Refusal(Reason.LIMIT, f"may have summoned {most} resources, and no more")
            if not reader.grant.resources:
                reader.grant.profile.check(reader.grant.principal, Side.READER, name)
        except Refusal as refusal:
            self._refuse(client, command.sequence, refusal, wire.BAD_REQUEST)
            return
        reader.summoned[name] = None
        self._outbound.answer(client, wire.response(command.sequence, wire.OK))
        reader.grant.profile.summon(reader, name, command.body)

    def _dismiss(self, client: DataClient, command: wire.Dismiss) -> None:
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
        self._complaints.count("mtl_ignored", "response")

    # what is wrong

    def _ill_formed(self, address: str, fault: IllFormed) -> None:
        self._complaints.count("mtl_ill_formed", fault.fault.value)
        self._complaints.add(WIRE, address, fault)

    def _turn_away(self, identity: bytes, sequence: int, why: str) -> None:
        """Refuse a command of a peer of which nothing is kept."""
        self._complaints.add(WIRE, self._router.sender().address, Refusal(Reason.FORBIDDEN, why))
        if self._router.reply(identity, wire.response(sequence, wire.FORBIDDEN)) is Sent.FULL:
            self._complaints.count("mtl_dropped", "answer")

    def _refuse(self, client: DataClient, sequence: int, refusal: Refusal, code: bytes) -> None:
        self._complain(client, refusal)
        self._outbound.answer(client, wire.response(sequence, code))

    def _complain(self, client: DataClient, refusal: Refusal) -> None:
        refusal.summary = f"{client}: {refusal.summary}"
        self._complaints.add(WIRE, client.address, refusal)

    def _together(self, due: float) -> float:
        """That time or a little later: many Pings are due at the same moments."""
        grain = self._heartbeat / PINGS_TOGETHER
        return math.ceil(due / grain) * grain


def _has(client: DataClient, side: Side) -> bool:
    return (client.reader if side is Side.READER else client.writer) is not None


def _names(grant: Grant) -> dict[str, str]:
    """The resources of a lease for writing, by what its Contents may say."""
    names = {name: name for name in grant.resources}
    sole = grant.resources if grant.resources else (grant.profile.sole,)
    if len(sole) == 1 and sole[0] is not None:
        names[""] = sole[0]
    return names


def _allow(writer: WriterFlow, name: str, most: int) -> str:
    """Check a resource that is not in `WriterFlow.names`, which keeps ``most``. Raises `Refusal` if it is forbidden."""
    grant = writer.grant
    if not name:
        raise Refusal(Reason.PARAMETER, "a Content that does not say for which resource")
    if grant.resources:
        raise Refusal(Reason.PARAMETER, "a Content for a resource that the data lease is not for")
    grant.profile.check(grant.principal, Side.WRITER, name)
    if len(writer.names) >= most:
        writer.names.clear()
        writer.names.update(_names(grant))
    writer.names[name] = name
    return name


def _reader(client: DataClient, name: str) -> ReaderFlow:
    """The flow of a Summon or Dismiss. Raises `Refusal` if it has none, or not for that resource."""
    reader = client.reader
    if reader is None:
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss without a data lease for reading")
    if not name or not reader.grant.covers(name):
        raise Refusal(Reason.PARAMETER, "a Summon or Dismiss of a resource that the data lease is not for")
    return reader


def _confirmed(client: DataClient, sequence: int) -> ReaderFlow | None:
    """The flow in which a Content with that sequence is to be confirmed, if there is one."""
    reader = client.reader
    if reader is None or reader.grant.confirm is not ConfirmMode.FULL or not 0 < sequence <= reader.sequence:
        return None
    return reader
