"""Clients of the data flow: the state of each, and all messages that they are sent.

A client is one DEALER on one connection. It has a reader flow, a writer flow, or both; they end together.

Invariants:
- Messages reach a client in the order of the calls. The transport accepts a Content at once or refuses it; none is
  queued here. So no Content follows the answer to a Dismiss.
- An *answer* (Response, Confirm, Reject, Pong) may wait in the transport where a Content is refused. A client that has
  no room for an answer does not read at all: it is ended, since it would wait forever for the lost answer.
- A Content has the next sequence of the reader, from 1 on. A refused Content has used its number, so that the client
  sees a gap.
- After a refusal, the transport reports when the client has room again (`DataOutbound.room`), and the profile of its
  reader is called. No attempt is made before: the transport itself writes before it refuses a message.
- A client is ended when its reader missed too many Contents (a long time without loss resets the count), or when it
  accepted no message for too long while it had no room.
- Clients are ended in the next tick of the leases, never during a delivery: profiles must not be called back while they
  send.
- A message without a connection is dropped: the transport reports the end of that connection separately.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from twisted.logger import Logger

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ILease
from broker.net.peer_interfaces import NumberingRouter, Part, Sent
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.sessions.access_policy import ConfirmMode
from broker.wires.mtl.sessions.data_leases import FlowContext
from broker.wires.mtl.sessions.profile_interface import Grant, LeasedCall

WIRE = "mtl"
"""The name of the wire in counters and logs."""

MAX_DROPS = 10_000
"""Missed Contents after which a reader is ended: it reads far too slowly."""

STUCK = 60.0
"""Seconds without room after which a reader is ended."""

_TYPE = wire.content_header(0, b"")[:1]
"""Header of a Content up to its sequence, which the transport inserts: the rest is made once for all readers."""


class ClientTable(Protocol):
    """Table of clients, which checks them at their deadlines."""

    def check(self, client: DataClient, now: float) -> float | None:
        """Ping or end a client; see `broker.wires.mtl.sessions.data_flow.DataFlow`, as for the methods below."""

    def pace(self) -> float: ...

    def patience(self) -> float: ...

    def confirm(self, client: DataClient) -> None: ...

    def discard(self, client: DataClient) -> None: ...


class DataClient:
    """One DEALER while it has a flow. ``connection`` is the number of its connection."""

    __slots__ = (
        "address", "connection", "heard", "identity", "keeper", "lease", "over", "reader", "sent", "writer",
    )  # fmt: skip

    def __init__(self, keeper: ClientTable, identity: bytes, connection: int, address: str, now: float) -> None:
        self.keeper = keeper
        self.identity = identity
        self.connection = connection
        self.address = address
        self.lease: ILease
        self.reader: ReaderFlow | None = None
        self.writer: WriterFlow | None = None
        self.heard = now
        self.sent = now
        """Time of the last message to it other than a Content. Both times are those of the leases."""
        self.over = False

    def flows(self) -> list[ReaderFlow | WriterFlow]:
        """Return its flows."""
        return [flow for flow in (self.reader, self.writer) if flow is not None]

    def check(self, now: float) -> float | None:
        """Run the check of the table."""
        return self.keeper.check(self, now)

    @property
    def pace(self) -> float:
        """The heartbeat; see `broker.core.silent_peers.Silent`, as for those below."""
        return self.keeper.pace()

    @property
    def patience(self) -> float:
        """Seconds of silence after which it is dead."""
        return self.keeper.patience()

    @property
    def providers(self) -> list[int]:
        """The ids of its flows that are providers."""
        ids = (flow.grant.profile.provider(flow) for flow in self.flows())
        return [id for id in ids if id is not None]

    def confirm(self) -> None:
        """Process a check that succeeded."""
        self.keeper.confirm(self)

    def discard(self) -> None:
        """End it, since nothing listens at its services."""
        self.keeper.discard(self)

    def __str__(self) -> str:
        users = {flow.grant.principal.user for flow in self.flows()}
        return " and ".join(sorted(filter(None, users))) or "a peer without a name"


class ReaderFlow:
    """A flow to a client. See `broker.wires.mtl.sessions.profile_interface.ProfileReader`."""

    __slots__ = (
        "_outbound",
        "address",
        "client",
        "dropped",
        "dropped_at",
        "grant",
        "identity",
        "place",
        "preparing",
        "sent",
        "sequence",
        "starved",
        "summoned",
        "token",
    )

    def __init__(self, client: DataClient, grant: Grant, token: str, outbound: DataOutbound) -> None:
        self._outbound = outbound
        self.client = client
        self.grant = grant
        self.token = token
        self.identity = client.identity
        self.address = client.address
        self.sent = client.sent
        self.sequence = 0
        self.place: Any = None
        self.summoned: dict[str, wire.Summon | None] = {}
        """Summoned resources, each with its Summon while that waits for the resource to be prepared."""
        self.preparing = 0
        """Preparations that have not ended, also those of Summons that were dismissed meanwhile."""
        self.dropped = 0
        """The number of Contents that it missed lately, the last of them at ``dropped_at``."""
        self.dropped_at = 0.0
        self.starved = False
        """True if a Content was refused since the profile was last called for room."""

    def send(self, tail: bytes, body: Part) -> Sent:
        """Send one Content. The profile decides about a refused one."""
        self.sequence = sequence = self.sequence + 1
        if self.client.over:
            return Sent.GONE
        outbound = self._outbound
        sent = outbound.router.send(self.identity, (wire.content_header(sequence, tail), body))
        if sent is Sent.SENT:
            self.sent = outbound.leases.now
            outbound.delivered += 1
        elif sent is Sent.FULL:
            outbound.starve(self)
        return sent


class WriterFlow:
    """A flow from a client. See `broker.wires.mtl.sessions.profile_interface.ProfileWriter`."""

    __slots__ = ("_outbound", "address", "client", "confirmed", "grant", "identity", "last", "names", "place", "token")

    def __init__(self, client: DataClient, grant: Grant, token: str, outbound: DataOutbound) -> None:
        self._outbound = outbound
        self.client = client
        self.grant = grant
        self.token = token
        self.identity = client.identity
        self.address = client.address
        self.place: Any = None
        self.confirmed = grant.confirm is ConfirmMode.FULL
        self.last = -1
        """Highest sequence received. Used where Contents are confirmed."""
        self.names: dict[str, str] = {}
        """Resources that its Contents may be for, by the name that they give."""

    def confirm(self, sequence: int, multiple: bool = False) -> None:
        """Confirm a Content, or all up to it."""
        if self.confirmed:
            self._outbound.answer(self.client, wire.confirm(sequence, multiple))

    def misdirect(self, sequence: int) -> None:
        """Refuse a Content whose resource belongs to another broker."""
        self._outbound.answer(self.client, wire.response(sequence, wire.MISDIRECTED))

    def reject(self, sequence: int, *, recycle: bool) -> None:
        """Refuse a Content."""
        if self.confirmed:
            self._outbound.answer(self.client, wire.reject(sequence, recycle=recycle))
        elif not recycle:
            self._outbound.answer(self.client, wire.response(sequence, wire.BAD_REQUEST))


class DataOutbound:
    """Sender of all messages to clients. ``end`` ends a client for a reason, which names a counter."""

    log = Logger()

    def __init__(
        self,
        router: NumberingRouter,
        context: FlowContext,
        end: Callable[[DataClient, str], None],
    ) -> None:
        self.router = router
        self.leases = context.leases
        self._refusal_log = context.refusal_log
        self._end = end
        self.delivered = 0
        """Number of Contents sent, counted for each reader."""
        self._full: dict[bytes, _FullClient] = {}
        """Clients without room, by identity."""
        self._doomed: dict[DataClient, str] = {}
        """Clients to be ended in the next tick, and the reasons."""

    # Contents

    def fan_out(self, readers: Collection[ReaderFlow], tail: bytes, body: Part) -> None:
        """Send the same Content to many readers. It is dropped for those without room."""
        failed = self.router.send_each(readers, _TYPE, tail, body, self.leases.now)
        self.delivered += len(readers) - len(failed)
        for reader, why in failed:
            self._missed(reader, why)

    def _missed(self, reader: ReaderFlow, why: Sent) -> None:
        self._refusal_log.count("mtl_dropped", why.value)
        if why is not Sent.FULL:
            return
        now = self.leases.now
        if now - reader.dropped_at > STUCK:
            reader.dropped = 0
        reader.dropped_at = now
        reader.dropped += 1
        if reader.dropped >= MAX_DROPS:
            self.doom(reader.client, "slow")
        self.starve(reader)

    # answers and Pings

    def answer(self, client: DataClient, frames: Sequence[Part]) -> None:
        """Send an answer, which may wait in the transport."""
        if client.over:
            return
        sent = self.router.reply(client.identity, frames)
        if sent is Sent.SENT:
            client.sent = self.leases.now
        elif sent is Sent.FULL:
            self._refusal_log.count("mtl_dropped", "answer")
            self.doom(client, "unread")

    def ping(self, client: DataClient) -> None:
        """Send a Ping."""
        sent = self.router.send(client.identity, wire.PING)
        if sent is Sent.SENT:
            client.sent = now = self.leases.now
            # The transport accepted a message, so the client reads again, if slowly.
            full = self._full.get(client.identity)
            if full is not None:
                full.since = now
        elif sent is Sent.FULL:
            self._no_room(client)

    # clients without room

    def starve(self, reader: ReaderFlow) -> None:
        """Note that a Content for that reader was refused."""
        reader.starved = True
        self._no_room(reader.client)

    def room(self, identity: bytes) -> None:
        """Resume a client that has room again. No-op for any other identity."""
        full = self._full.pop(identity, None)
        if full is None:
            return
        self.leases.look()  # the transport calls this outside of a quantum, so the time has to be set
        full.lease.cancel()
        reader = full.client.reader
        if reader is not None and reader.starved:
            reader.starved = False
            try:
                reader.grant.profile.room(reader)
            except Exception:
                self.log.failure("the profile {name} failed", name=reader.grant.profile.name)

    def _no_room(self, client: DataClient) -> None:
        if client.identity in self._full or client.over:
            return
        now = self.leases.moment()
        full = self._full[client.identity] = _FullClient(self._stuck, client, now)
        full.lease = self.leases.hold(full, now + STUCK)
        refusal = Refusal(Reason.NOT_READING, "reads too slowly: Contents for it are dropped, and answers wait")
        refusal.summary = f"{client}: {refusal.text}"
        self._refusal_log.add(WIRE, client.address, refusal)

    def _stuck(self, full: _FullClient, now: float) -> float | None:
        """End a client that accepted nothing for too long. Returns the time of the next check."""
        reader = full.client.reader
        if reader is not None:
            full.since = max(full.since, reader.sent)
        due = full.since + STUCK
        if now < due:
            return due
        self.doom(full.client, "stuck")
        return None

    # the end of clients

    def doom(self, client: DataClient, why: str) -> None:
        """End a client in the next tick. The first reason counts."""
        if client.over:
            return
        if not self._doomed:
            self.leases.hold(LeasedCall(self._end_doomed), self.leases.now)
        self._doomed.setdefault(client, why)

    def forget(self, client: DataClient) -> None:
        """Release the state of a client that has ended."""
        full = self._full.pop(client.identity, None)
        if full is not None:
            full.lease.cancel()

    def _end_doomed(self, now: float) -> None:
        doomed, self._doomed = self._doomed, {}
        for client, why in doomed.items():
            if not client.over:
                self._end(client, why)


class _FullClient:
    """A client without room. ``since`` is the last time at which it is known to have accepted a message or had room."""

    __slots__ = ("_stuck", "client", "lease", "since")

    def __init__(self, stuck: Callable[[_FullClient, float], float | None], client: DataClient, now: float) -> None:
        self._stuck = stuck
        self.client = client
        self.since = now
        self.lease: ILease

    def check(self, now: float) -> float | None:
        """Check if it accepted anything meanwhile."""
        return self._stuck(self, now)
