"""Fan-out: one message to many peers of a ROUTER.

A message is encoded once, however many peers receive it, and the same bytes object waits for all of them. With CURVE it
is sealed for each.

`send_all` and `send_each` have a loop of the same shape. A common one would cost a call for each receiver, some tenth
of what a delivery costs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from struct import Struct

from broker.net.connection_states import BLOCKED
from broker.net.interfaces.router import NUMBER, N, Part, R, Sent
from broker.net.router.backlog import LARGE, Backlog
from broker.net.router.flush_order import FlushOrder
from broker.net.router.identities import Identities
from broker.net.router.peer import APART, RouterPeer
from broker.net.zmtp.curve_frames import Sealing
from broker.net.zmtp.frames import HEADER, LONG_HEADER, SHORT, message, pieces

SEALED = 4 * 1024 * 1024
"""Bytes that are sealed before they are written: one message of 16 MiB for a hundred peers would be 1.6 GB."""

_pack = Struct(">Q").pack


class FanOut:
    """Fan-out to ``peers``. ``sealing`` is that of CURVE, or None."""

    def __init__(
        self, peers: Identities[RouterPeer], order: FlushOrder, backlog: Backlog, sealing: Sealing | None
    ) -> None:
        self._peers = peers
        self._order = order
        self._backlog = backlog
        self._sealing = sealing

    def send_all(self, receivers: Collection[R], frames: Sequence[Part], now: float) -> list[tuple[R, Sent]]:
        """See `broker.net.interfaces.router.Router`."""
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
        size = len(data) + len(body)
        failed = []
        fanned = self._order.fanned
        # A large message is written before the next one comes.
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
                # A peer that was full stays so until it has read half: a slow one costs the others one look each.
                if peer.full or not self._backlog.has_room(peer, size, 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:  # it was written
                    fanned.append(peer)
            out.append(data)
            if body:
                out.append(body)
                peer.bodies += 1
            receiver.sent = now
        if fanned and not self._order.scheduled:
            self._order.soon()
        return failed

    def send_each(
        self, receivers: Collection[N], frame: bytes, at: int, body: Part, now: float
    ) -> list[tuple[N, Sent]]:
        """See `broker.net.interfaces.router.NumberingRouter`."""
        if self._sealing is not None:
            size = len(frame) + len(body)
            failed: list[tuple[N, Sent]] = []
            for receiver in receivers:
                receiver.sequence += 1
            for part in _parts(receivers, size):
                ready = self._ready_for(part, size, failed)
                encoders, numbers = [peer.encoder for _, peer in ready], [each.sequence for each, _ in ready]
                self._queue_sealed(ready, self._sealing.seal_each(encoders, frame, at, numbers, body), now)
            return failed
        head, _ = pieces((frame, body))
        at += HEADER if len(frame) < SHORT else LONG_HEADER
        head, tail = head[:at], head[at + NUMBER :]
        apart = len(body) >= APART
        if not apart:
            tail += body
        size = len(head) + NUMBER + len(tail) + (len(body) if apart else 0)
        failed = []
        fanned = self._order.fanned
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
                # A peer that was full stays so until it has read half: a slow one costs the others one look each.
                if peer.full or not self._backlog.has_room(peer, size, 0):
                    failed.append((receiver, Sent.FULL))
                    continue
                if not out:
                    fanned.append(peer)
            out.append(head + _pack(sequence) + tail)
            if apart:
                out.append(body)
                peer.bodies += 1
            receiver.sent = now
        if fanned and not self._order.scheduled:
            self._order.soon()
        return failed

    def _ready_for(
        self, receivers: Collection[R], size: int, failed: list[tuple[R, Sent]]
    ) -> list[tuple[R, RouterPeer]]:
        """The receivers that a message of that size can be sealed for, with their connections; ``failed`` gets others.

        Sealed messages are not shared, so that large ones are refused to any peer while too many bytes wait.
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
            elif large and not self._backlog.fits_a_share(size):
                failed.append((receiver, Sent.FULL))
                peer.full = True
                self._order.fanned.append(peer)  # which tells it that there is room, when there is
            else:
                ready.append((receiver, peer))
        return ready

    def _queue_sealed(self, ready: Sequence[tuple[R, RouterPeer]], sealed: Sequence[bytes], now: float) -> None:
        """Let sealed messages wait for the end of the turn; large ones are written at once, and the rest is weighed."""
        fanned = self._order.fanned
        for (receiver, peer), data in zip(ready, sealed, strict=True):
            if not peer.out:
                fanned.append(peer)
            peer.out.append(data)
            receiver.sent = now
        if sealed and len(sealed[0]) >= LARGE:
            for _, peer in ready:
                self._order.flush_one(peer)
        if fanned and not self._order.scheduled:
            self._order.soon()


def _parts(receivers: Collection[R], size: int) -> Iterable[Collection[R]]:
    """The receivers of a message, as many at a time as may have a sealed one of that size each, of `SEALED` bytes."""
    count = max(1, SEALED // max(1, size))
    if len(receivers) <= count:
        return (receivers,)
    all_of_them = list(receivers)
    return (all_of_them[first : first + count] for first in range(0, len(all_of_them), count))
