"""Fan-out: one message to many peers of a ROUTER.

Invariants: a message is encoded once for any number of receivers, and their queues share the bytes object. With CURVE
it is sealed for each receiver.

`send_all` and `send_each` repeat the same loop. A common one would cost a call for each receiver, about a tenth of the
cost of a delivery. `broker.net.router.backlog` has the limits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from struct import Struct
from typing import Any, TypeVar

from twisted.internet.interfaces import IReactorTime

from broker.core.memory_budget import MemoryBudget
from broker.net.connection_states import BLOCKED
from broker.net.peer_interfaces import NUMBER, N, Part, R, Sent
from broker.net.router.backlog import APART, LARGE, Backlog
from broker.net.router.router_peer import Identities, RouterPeer
from broker.net.scheduler import TURN, Scheduler
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.frames import begin, message, pieces

# Flush order of a ROUTER's connections.
#
# Rules:
# - Output is gathered for a turn of the reactor, and written at its end: one write for each connection, for any number
#   of messages.
# - The messages before the first answer of each connection are written first. The rest of the connections with answers
#   follows, in the order of their first answers.
# - A connection is written before its next input is handled, so that a message is not later than the answer to the
#   request that caused it.
# - A flush ends with the quantum of a turn, and continues in the next one.
# - Room that peers have after a write within a send is reported behind it, at the next flush: sessions may send to any
#   peer then, whose message would else pass that of the send. For the same reason, sessions that the memory budget
#   evicts within a send end at the next flush.

T = TypeVar("T")

BETWEEN = 16
"""Connections written between two clock reads: some 50 µs."""


class FlushOrder:
    """The connections with output for the end of the turn. The scheduler treats it as one `Gathering`.

    ``roomy`` is called for each connection that has room again.

    The attributes are public since the ROUTER adds to them inline, for each message.
    """

    def __init__(self, turns: Scheduler, clock: IReactorTime, roomy: Callable[[RouterPeer], object]) -> None:
        self._memory = turns.memory
        self._turns = turns
        self._clock = clock
        self._roomy = roomy
        self._relieved: deque[RouterPeer] = deque()
        """Connections whose room is still to be reported."""
        self._sending = False
        self.fanned: deque[RouterPeer] = deque()
        """Connections with pending output."""
        self.answered: deque[RouterPeer] = deque()
        """Those with answers, which are written last."""
        self.scheduled = False
        self.at_end: Callable[[Callable[[], object]], bool] = lambda call: False
        """Schedules a call at the end of a round of reads, or returns False; see `Streams.at_end`."""

    def soon(self) -> None:
        """Schedule a flush: at the end of the round of reads if the reactor has rounds, otherwise in the next turn."""
        self.scheduled = True
        if not self.at_end(self.flush):
            self._turns.flush_later(self)

    def flush(self) -> None:
        """Write the output of this turn of the reactor, within the quantum of a turn."""
        self.scheduled = False
        if self._turns.first:
            self._turns.flush_first()
        end = self._clock.seconds() + TURN
        fanned, answered = self.fanned, self.answered
        if self._memory.postponed:
            self._memory.settle()
        for _ in range(len(self._relieved)):
            self._roomy(self._relieved.popleft())
        count = BETWEEN
        try:
            while fanned or answered:
                if fanned:
                    self._flush_next()
                else:
                    answered.popleft().flush()
                count -= 1
                if not count:
                    count = BETWEEN
                    if self._clock.seconds() >= end:
                        return
        finally:
            # The quantum ended, or an exception occurred: the other connections are flushed in the next turn.
            if (fanned or answered or self._relieved) and not self.scheduled:
                self.soon()

    def flush_one(self, peer: RouterPeer) -> None:
        """Write the output of one peer now, and before it the messages that must not be later than an answer to it."""
        while peer.replied and (self.fanned or self.answered):
            self._flush_next()
        peer.flush()

    def make_room(self, peer: RouterPeer) -> None:
        """Write the output of one peer, as `flush_one` does, within a send."""
        self.within(self.flush_one, peer)

    def within(self, part: Callable[..., T], *arguments: Any) -> T:
        """Call a part of a send, which may evict. Returns its result."""
        memory = self._memory
        before, self._sending = self._sending, True
        postponing, memory.postponing = memory.postponing, True
        try:
            return part(*arguments)
        finally:
            self._sending, memory.postponing = before, postponing
            if memory.postponed and not self.scheduled:
                self.soon()

    def relieved(self, peer: RouterPeer) -> None:
        """Report that a peer has room again: now, or behind the present send."""
        if not self._sending:
            self._roomy(peer)
            return
        self._relieved.append(peer)
        if not self.scheduled:
            self.soon()

    def abort(self) -> None:
        """See `broker.net.scheduler.Gathering`: a defect met in a flush costs no connection."""

    def _flush_next(self) -> None:
        if not self.fanned:
            self.answered.popleft().flush()
            return
        peer = self.fanned.popleft()
        if not peer.replied:
            peer.flush()
        elif peer.ahead:
            # Its answers keep their order relative to those of other connections.
            peer.flush_ahead()


SEALED = 4 * 1024 * 1024
"""Bytes sealed before they are written: one message of 16 MiB for a hundred peers would take 1.6 GB at once."""

_pack = Struct(">Q").pack


class FanOut:
    """Fan-out to ``peers``. ``sealing`` is that of CURVE, or None."""

    def __init__(
        self,
        peers: Identities[RouterPeer],
        order: FlushOrder,
        backlog: Backlog,
        memory: MemoryBudget,
        sealing: Sealing | None,
    ) -> None:
        self._peers = peers
        self._order = order
        self._backlog = backlog
        self._memory = memory
        self._sealing = sealing
        self._around: tuple[bytes, bytes, int, bytes, bytes, int] = (b"", b"", -1, b"", b"", 0)
        """The last numbered message: the arguments ``before`` and ``after``, the length of its body, the octets up
        to the number, those from there to the body, and the number of all octets."""

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `broker.net.peer_interfaces.Router`."""
        if self._sealing is not None:
            size = sum(map(len, frames))
            failed: list[tuple[R, Sent]] = []
            for part in _parts(receivers, size):
                ready = self._ready_for(part, size, failed)
                sealed = self._sealing.seal_all([peer.encoder for _, peer in ready], frames)
                self._queue_sealed(ready, sealed, now)
            return failed
        body = b""
        if len(frames[-1]) < APART:
            data = message(frames)
        else:
            data, body = pieces(frames)
        size, number = len(data) + len(body), len(receivers)
        failed = []
        fanned, backlog = self._order.fanned, self._backlog
        # A large message is written before the next one is queued.
        brink = self._backlog.limits.messages if size < LARGE else 1
        find = self._peers.get
        for receiver in receivers:
            peer = find(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
                continue
            out = peer.out
            if not out:
                fanned.append(peer)
            elif len(out) >= brink or peer.output is BLOCKED:
                # A full peer stays full until it has read half: so a slow peer costs each fan-out one check only.
                if peer.full or not backlog.has_room(peer, backlog.cost(data, number) + backlog.cost(body, number), 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:  # `has_room` wrote the queue
                    fanned.append(peer)
                backlog.queued(peer, data, body)
            out.append(data)
            if body:
                out.append(body)
                peer.bodies.append(id(body))
            receiver.sent = now
        if fanned and not self._order.scheduled:
            self._order.soon()
        return failed

    def send_each(
        self, receivers: Collection[N], before: bytes, after: bytes, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """See `broker.net.peer_interfaces.NumberingRouter`."""
        length = len(body)
        if self._sealing is not None:
            frame, at = before + bytes(NUMBER) + after, len(before)
            size = len(frame) + length
            failed: list[tuple[N, Sent]] = []
            # The number of a refused message is used up, so that the receiver can detect the gap.
            for receiver in receivers:
                receiver.sequence += 1
            for part in _parts(receivers, size):
                ready = self._ready_for(part, size, failed)
                encoders, numbers = [peer.encoder for _, peer in ready], [each.sequence for each, _ in ready]
                self._queue_sealed(ready, self._sealing.seal_each(encoders, frame, at, numbers, body), now)
            return failed
        # With one receiver, the octets around number and body are a sixth of the cost of a delivery. The messages of a
        # stream seldom differ in them, and come with the very same objects.
        first, rest, known, head, tail, size = self._around
        if length != known or after is not rest or before is not first:
            head = begin(len(before) + NUMBER + len(after), True) + before
            tail = after + begin(length, False)
            size = len(head) + NUMBER + len(tail) + length
            self._around = before, after, length, head, tail, size
        apart = length >= APART
        if not apart:
            tail += body
        failed = []
        fanned, backlog = self._order.fanned, self._backlog
        brink = self._backlog.limits.messages if size < LARGE else 1
        find = self._peers.get
        for receiver in receivers:
            receiver.sequence = sequence = receiver.sequence + 1
            peer = find(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
                continue
            out = peer.out
            if not out:
                fanned.append(peer)
            elif len(out) >= brink or peer.output is BLOCKED:
                # A full peer stays full until it has read half: so a slow peer costs each fan-out one check only.
                cost = size - length + backlog.cost(body) if apart else size
                if peer.full or not backlog.has_room(peer, cost, 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:
                    fanned.append(peer)
                if apart:
                    backlog.queued(peer, body)
            out.append(head + _pack(sequence) + tail)
            if apart:
                out.append(body)
                peer.bodies.append(id(body))
            receiver.sent = now
        if fanned and not self._order.scheduled:
            self._order.soon()
        return failed

    def _ready_for(
        self, receivers: Collection[R], size: int, failed: list[tuple[R, Sent]]
    ) -> list[tuple[R, RouterPeer]]:
        """Return the receivers that can take a sealed message of that size, with their peers; add the others to
        ``failed``.

        Sealed messages are not shared, so that large ones are refused to any peer while too many bytes are queued.
        """
        ready: list[tuple[R, RouterPeer]] = []
        large = size >= LARGE
        brink = 1 if large else self._backlog.limits.messages
        for receiver in receivers:
            peer = self._peers.get(receiver.identity)
            if peer is None:
                failed.append((receiver, Sent.GONE))
            elif (peer.output is BLOCKED or len(peer.out) >= brink) and not self._backlog.has_room(peer, size, 0):
                failed.append((receiver, Sent.FULL))
            elif large and peer.output is not BLOCKED and not self._memory.fits(peer.host, size):
                # For a blocked peer, the message counts already.
                failed.append((receiver, Sent.FULL))
                peer.full = True
                self._order.fanned.append(peer)  # its flush calls `Conversation.room` once there is room
            else:
                ready.append((receiver, peer))
        return ready

    def _queue_sealed(self, ready: Sequence[tuple[R, RouterPeer]], sealed: list[bytes], now: float) -> None:
        """Queue sealed messages for the end of the turn; write large ones at once, and account for the rest.

        ``sealed`` is empty afterwards: another reference would make a message look like a shared one.
        """
        fanned = self._order.fanned
        large = bool(sealed) and len(sealed[0]) >= LARGE
        sealed.reverse()
        for receiver, peer in ready:
            if not peer.out:
                fanned.append(peer)
            message = sealed.pop()
            peer.out.append(message)
            if peer.output is BLOCKED:
                self._backlog.queued(peer, message)
            receiver.sent = now
        if large:
            for _, peer in ready:
                self._order.make_room(peer)
        if fanned and not self._order.scheduled:
            self._order.soon()


def _parts(receivers: Collection[R], size: int) -> Iterable[Collection[R]]:
    """Split the receivers so that the sealed messages of each part take at most `SEALED` bytes."""
    count = max(1, SEALED // max(1, size))
    if len(receivers) <= count:
        return (receivers,)
    all_of_them = list(receivers)
    return (all_of_them[first : first + count] for first in range(0, len(all_of_them), count))
