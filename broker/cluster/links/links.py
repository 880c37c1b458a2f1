"""The links of this broker to all other members: channels and their messages.

Rules:
- Messages of one sender arrive in order, on all channels: each pair of members has one connection (`mesh`).
- Each side sends a PING every second.
- A message of a lossy channel that finds the queue of a link full is dropped and counted. On any other channel the link
  ends in the next turn of the reactor, so that no receiver is called within a `send`.
- Nothing is forwarded.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from zope.interface import implementer

from broker.cluster.links import link_messages
from broker.cluster.links.link_messages import MAX_CHANNEL, PING, PING_EVERY, PONG, LinkSettings, Neighbour
from broker.cluster.links.link_wire import LinkPeer
from broker.cluster.links.mesh import LinkContext, Mesh
from broker.core.cluster.cluster_interfaces import ILinks, INeighbours, LinkReceiver
from broker.core.errors import Reason, Refusal
from broker.net.admission import ConnectionFactory
from broker.net.peer_interfaces import Sent
from broker.net.zmtp.frames import FRAME_COST
from broker.wires.tables import Column, Row, View

__all__ = ["LinkContext", "Links"]

_STAMP = struct.Struct(">d")


@attrs.frozen(eq=False)
class _Channel:
    name: bytes
    receiver: LinkReceiver
    lossy: bool


@implementer(ILinks)
class Links:
    """Implementation of `ILinks` over ZMTP.

    Raises OSError if the implementation of CURVE's encryption that the environment selects is not available.
    """

    log = Logger()

    def __init__(self, settings: LinkSettings, context: LinkContext) -> None:
        self._clock = context.clock
        self._wire = settings.wire
        self._mesh = Mesh(settings, context, self)
        self.public_key = self._mesh.public_key
        """The key to publish, in Z85; empty without CURVE."""
        self._up = self._mesh.open
        self._frames = self._mesh.frames
        self._channels: dict[str, _Channel] = {}
        self._incoming: dict[bytes, _Channel] = {}
        self._pinger: IDelayedCall | None = None
        self._sent = self._received = self._dropped = self._too_large = self._unknown = self._opened = self._ended = 0

    # life

    def bind(self) -> str:
        """Listen at the endpoint. Returns the address, ``host:port``. Raises `CannotListen`.

        Connections are refused for now, until `start`.
        """
        return self._mesh.bind()

    def start(self, members: INeighbours) -> None:
        """Open links to all members, present and later ones, until `stop`."""
        self._mesh.start(members)
        self._pinger = self._clock.callLater(PING_EVERY, self._ping)

    def unbind(self) -> None:
        """Stop listening; links remain. No-op if it does not listen."""
        self._mesh.listener.unbind()

    def stop(self) -> Deferred[Any]:
        """Stop listening, and close all links in order. Fires when all connections are closed."""
        if self._pinger is not None:
            self._pinger.cancel()
            self._pinger = None
        return self._mesh.stop()

    def place(self) -> Mapping[str, object] | None:
        """Return the row of the listener for `broker.wires.interface.OpenWire.listener_rows`; None if it is closed."""
        return self._mesh.listener.place(self._wire) if self._mesh.listener.address else None

    def connection_factories(self) -> Sequence[ConnectionFactory]:
        """Return the connections, for traces and for operators who close some."""
        return (self._mesh.router, self._mesh.attempts)

    # `ILinks`

    def serve(self, channel: str, receiver: LinkReceiver, lossy: bool = False) -> None:
        name = channel.encode()
        if not 0 < len(name) <= MAX_CHANNEL:
            raise ValueError(f"the name of a channel has 1 to {MAX_CHANNEL} bytes")
        assert channel not in self._channels, f"the channel {channel} has a receiver"
        self._channels[channel] = self._incoming[name] = _Channel(name, receiver, lossy)

    def send(self, broker: str, channel: str, frames: Sequence[bytes]) -> bool:
        neighbour = self._up.get(broker)
        return neighbour is not None and self._send(neighbour, self._channels[channel], frames)

    def broadcast(self, channel: str, frames: Sequence[bytes]) -> None:
        entry = self._channels[channel]
        for neighbour in list(self._up.values()):
            self._send(neighbour, entry, frames)

    def brokers(self) -> Sequence[str]:
        return sorted(self._up)

    def alive(self) -> Collection[str]:
        """See `Mesh.alive`."""
        return self._mesh.alive()

    def end(self, name: str, why: str) -> None:
        """End the link to a broker, which opens again if both sides agree."""
        self._mesh.end(self._mesh.neighbours[name], Refusal(Reason.REPLACED, why))

    # for operators

    def neighbours(self) -> Sequence[Neighbour]:
        """Return the links to all other members, in the order of their names."""
        return [self._mesh.neighbours[name] for name in sorted(self._mesh.neighbours)]

    def now(self) -> float:
        """Return the time of the clock on which `Neighbour.since` is measured."""
        return float(self._clock.seconds())

    def counts(self) -> Mapping[str, int]:
        """Return counters and gauges by name."""
        return {
            f"{self._wire}.up": len(self._up),
            f"{self._wire}.opened": self._opened,
            f"{self._wire}.ended": self._ended,
            f"{self._wire}.sent": self._sent,
            f"{self._wire}.received": self._received,
            f"{self._wire}.dropped": self._dropped,
            f"{self._wire}.too_large": self._too_large,
            f"{self._wire}.unknown": self._unknown,
        }

    # from the mesh

    def up(self, neighbour: Neighbour) -> None:
        """See `broker.cluster.links.mesh.MeshUser`."""
        self._opened += 1
        self._notify("up", neighbour)

    def down(self, neighbour: Neighbour) -> None:
        """See `broker.cluster.links.mesh.MeshUser`."""
        self._ended += 1
        self._notify("down", neighbour)

    def received(self, neighbour: Neighbour, peer: LinkPeer, frames: list[bytes]) -> None:
        """See `broker.cluster.links.mesh.MeshUser`."""
        if frames[0]:
            self._deliver(neighbour, frames)
        else:
            self._take_control(peer, neighbour, frames)

    def _deliver(self, neighbour: Neighbour, frames: list[bytes]) -> None:
        channel = self._incoming.get(frames[0])
        if channel is None:
            self._unknown += 1  # of a newer broker
            return
        neighbour.received += 1
        self._received += 1
        channel.receiver.receive(neighbour.name, frames[1:])

    def _take_control(self, peer: LinkPeer, neighbour: Neighbour, frames: list[bytes]) -> None:
        word = frames[1] if len(frames) > 1 else b""
        if word == PING:
            peer.factory.reply(peer.identity, link_messages.stamped(PONG, link_messages.read_stamp(frames)))
        elif word == PONG and neighbour.asked and link_messages.read_stamp(frames) == neighbour.asked:
            neighbour.rtt = max(0.0, self._clock.seconds() - _STAMP.unpack(neighbour.asked)[0])
            neighbour.asked = b""

    def _notify(self, what: str, neighbour: Neighbour) -> None:
        """Call ``up`` or ``down`` of all receivers."""
        for channel in tuple(self._channels.values()):
            try:
                getattr(channel.receiver, what)(neighbour.name)
            except Exception:
                self.log.failure("a receiver of the channel {name} failed", name=channel.name.decode())

    # sending

    def _send(self, neighbour: Neighbour, channel: _Channel, frames: Sequence[bytes]) -> bool:
        peer = neighbour.peer
        if peer is None or neighbour.ending:
            return False
        if not self._fits(frames):
            self._too_large += 1
            neighbour.dropped += 1
            return False
        sent = peer.factory.send(peer.identity, [channel.name, *frames])
        if sent is Sent.SENT:
            neighbour.sent += 1
            self._sent += 1
            return True
        neighbour.dropped += 1
        self._dropped += 1
        if not channel.lossy and sent is Sent.FULL:
            neighbour.ending = True
            self._clock.callLater(0, self._overflown, neighbour, peer)
        return False

    def _fits(self, frames: Sequence[bytes]) -> bool:
        """Return True if the neighbour, which has the same limits, accepts a message of these frames."""
        limits = self._frames
        size = MAX_CHANNEL + FRAME_COST
        for frame in frames:
            if len(frame) > limits.frame:
                return False
            size += len(frame) + FRAME_COST
        return size <= limits.message and len(frames) < limits.frames

    def _ping(self) -> None:
        self._pinger = self._clock.callLater(PING_EVERY, self._ping)
        stamp = _STAMP.pack(self._clock.seconds())
        for neighbour in list(self._up.values()):
            peer = neighbour.peer
            if peer is None or neighbour.ending:
                continue
            # Without room the queued messages are the sign of life.
            if peer.factory.reply(peer.identity, link_messages.stamped(PING, stamp)) is Sent.SENT:
                neighbour.asked = stamp

    def _overflown(self, neighbour: Neighbour, peer: LinkPeer) -> None:
        if neighbour.peer is peer:
            self._mesh.end(neighbour, Refusal(Reason.NOT_READING, f"the queue of the link to {neighbour.name} is full"))


# The table of the links for operators.

COLUMNS = (
    Column("peer", "Name of the other broker"),
    Column("state", "up; waiting or connecting where this broker connects, else expected; impossible without a key"),
    Column("since", "Time in that state", "seconds"),
    Column("address", "Endpoint of the other broker's links"),
    Column("rtt", "Last measured round trip", "milliseconds"),
    Column("sent", "Messages sent", "messages"),
    Column("received", "Messages received", "messages"),
    Column("dropped", "Messages dropped, because the queue was full or they were too large", "messages"),
    Column("queued", "Messages that wait for the other broker to read", "messages"),
    Column("reason", "Reason for the end of the last link or attempt"),
)


def links_view(links: Links) -> View[Neighbour]:
    """Return the table of the links to all other members."""
    return View(
        "cluster links",
        "Shows the links to the other brokers, by name. A pattern selects names.",
        COLUMNS,
        links.neighbours,
        lambda neighbour: _row(neighbour, links.now()),
        lambda neighbour: (neighbour.name,),
        order="peer",
        sums=("queued",),
    )


def _row(neighbour: Neighbour, now: float) -> Row:
    row: dict[str, object] = {
        "peer": neighbour.name,
        "state": neighbour.state.value,
        "since": round(max(0.0, now - neighbour.since), 1),
        "address": neighbour.member.link,
        "sent": neighbour.sent,
        "received": neighbour.received,
        "dropped": neighbour.dropped,
        "queued": neighbour.queued,
    }
    if neighbour.rtt is not None:
        row["rtt"] = round(neighbour.rtt * 1_000, 2)
    if neighbour.reason:
        row["reason"] = neighbour.reason
    return row
