"""High-water marks of a ROUTER: limits on the messages queued for peers that do not read.

Rules:
- The queue of one peer is bounded in messages and bytes; beyond, messages are refused (`Sent.FULL`). Answers have an
  extra allowance of messages. A single message may be queued at any length.
- The queues of blocked peers count as output in the memory budget (`broker.core.memory_budget`). While it is full,
  messages for blocked peers are refused.
- A piece of at least `APART` bytes that several queues share counts once, in full: for the first of them, and for the
  next one when that has written or dropped it. So the sum is that of the memory. A part for each queue would be too
  little as soon as one of them has read or left.
- A shorter piece counts for each queue by its part, which the number of references to it gives. When a peer reads or
  leaves, the parts of others grow: then another blocked peer is weighed again, in turn.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from sys import getrefcount
from typing import TYPE_CHECKING

import attrs

from broker.core.memory_budget import MemoryBudget, Share
from broker.net.connection_states import BLOCKED
from broker.net.epoll_streams import unsent
from broker.net.peer_interfaces import Part

if TYPE_CHECKING:
    from broker.net.router.fan_out import FlushOrder
    from broker.net.router.router_peer import RouterPeer

HIGH_WATER = 1_000
"""Messages queued for one peer; libzmq's own default."""

ANSWERS = 100
"""Extra allowance for answers: real peers await an answer before the next request, so that each has one."""

LARGE = 64 * 1024
"""Bytes beyond which a message is written at once if possible, instead of at the end of the turn."""

BACKLOG = 32 * 1024 * 1024
"""Bytes queued for one peer: two of the longest messages, and less than the budget of its address."""

APART = 4_096
"""Bytes from which a last frame is queued as a piece of its own, without a copy."""

PLACE = 160
"""Bytes of the account of one such piece in one queue."""

REWEIGH = 16
"""Messages queued for a blocked peer between two exact weighings. In between, the part of each short message is that at
the time of its fan-out, and other receivers may have read theirs since."""


@attrs.frozen
class BacklogLimits:
    """The limits of one ROUTER for one peer: ``messages``, and ``size`` in bytes."""

    messages: int = HIGH_WATER
    size: int = BACKLOG


class _Piece:
    """A piece in the queues of ``holders``, of which the first one pays for it."""

    __slots__ = ("holders", "whole")

    def __init__(self, whole: bytes, holder: RouterPeer) -> None:
        self.whole = whole
        """The object: a reference keeps its address from being used again."""
        self.holders: dict[RouterPeer, None] = {holder: None}


Pieces = dict[int, _Piece]
"""Pieces by the addresses of their objects."""


class Backlog:
    """Accounting of queued bytes for blocked peers, in ``memory``. ``order`` writes the output of a peer."""

    def __init__(self, limits: BacklogLimits, memory: MemoryBudget, order: FlushOrder) -> None:
        self.limits = limits
        self._memory = memory
        self._order = order
        self._pieces: Pieces = {}
        self._ended = self._ended_before = 0
        """Pieces that no queue has any more, now and at the last call of `has_room`."""
        self._blocked: OrderedDict[RouterPeer, None] = OrderedDict()
        """Peers with counted output, in the order in which they are weighed again."""

    def forget(self, peer: RouterPeer) -> None:
        """Remove a lost connection."""
        self._release(peer)

    def weigh(self, peer: RouterPeer) -> None:
        """Account for the bytes queued for a peer: all of them while it is blocked, otherwise none. This may disconnect
        it."""
        peer.unweighed = 0
        if peer.output is BLOCKED:
            self._weigh(peer)
        else:
            self._release(peer)

    def relieved(self, peer: RouterPeer) -> bool:
        """Return True if at most half of a peer's allowance is still queued."""
        few = peer.queued <= self.limits.messages // 2
        return few and peer.weight <= self.limits.size // 2

    def cost(self, piece: Part, receivers: int = 1) -> int:
        """Return the bytes that count for one more queue with that piece, if that many receive it."""
        if len(piece) < APART:
            return len(piece) // receivers
        whole = _whole(piece)
        return PLACE if id(whole) in self._pieces else PLACE + len(whole)

    def has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        """Return True if a message of that `cost` may be queued for a blocked peer, or one with a long queue. The cost
        counts from then on, and `queued` must follow.

        ``extra`` is the allowance for answers; a refused answer causes no `Conversation.room`.
        """
        return self._order.within(self._has_room, peer, size, extra)

    def _has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        self._ended_before = self._ended
        if peer.output is not BLOCKED:
            # A long queue of a reading peer only waits for the end of the turn: it is written before a refusal.
            self._order.flush_one(peer)
            if peer.output is not BLOCKED:
                return True
        if peer.unweighed >= max(REWEIGH, len(peer.out) // 4):
            self.weigh(peer)
        waits = peer.weight + size
        many = peer.queued >= self.limits.messages + extra
        if (peer.out and (many or waits > self.limits.size)) or not self._memory.admit(peer.host, size):
            if not extra:
                peer.full = True
            return False
        if peer.life.closing:
            return False  # it was evicted itself
        peer.unweighed += 1
        # Its own weight may have changed: another peer was evicted, and it pays for what both had.
        self._set(peer, peer.weight + size)
        return not peer.life.closing

    def queued(self, peer: RouterPeer, *pieces: Part) -> None:
        """Register the pieces of a message for which `has_room` returned True."""
        if peer.output is not BLOCKED or peer.life.closing:
            return
        ended = self._ended != self._ended_before
        for piece in pieces:
            if len(piece) < APART:
                continue
            whole = _whole(piece)
            if len(self._join(peer, whole).holders) == 1 and ended:
                # It may have cost nothing, being in a queue that was evicted since. The next weighing is exact.
                self._order.within(self._set, peer, peer.weight + len(whole))

    # inside

    def _join(self, peer: RouterPeer, whole: bytes) -> _Piece:
        key = id(whole)
        piece = self._pieces.get(key)
        if piece is None:
            piece = self._pieces[key] = _Piece(whole, peer)
        else:
            piece.holders[peer] = None
        peer.pieces[key] = piece
        return piece

    def _weigh(self, peer: RouterPeer) -> None:
        """Count the queue of a blocked peer."""
        before, kept = peer.pieces, Pieces()
        peer.pieces = kept
        weight = unsent(peer.transport)
        for piece in peer.out:
            if len(piece) < APART:
                # Besides the queues and caches, the references are those of the loop and of the call.
                weight += len(piece) // max(1, getrefcount(piece) - 2)
                continue
            whole = _whole(piece)
            key = id(whole)
            if key in kept:
                continue
            shared = before.pop(key, None)
            if shared is None:
                shared = self._join(peer, whole)
            else:
                kept[key] = shared
            weight += PLACE
            if next(iter(shared.holders)) is peer:
                weight += len(whole)
        heirs = self._pass_on(peer, before)
        self._set(peer, weight)
        self._count(heirs)

    def _release(self, peer: RouterPeer) -> None:
        """Count nothing of a peer."""
        if not peer.weight and not peer.pieces:
            return
        before, peer.pieces = peer.pieces, {}
        heirs = self._pass_on(peer, before)
        self._set(peer, 0)
        self._count(heirs)
        if self._blocked:
            other, _ = self._blocked.popitem(last=False)
            self._blocked[other] = None
            self.weigh(other)

    def _pass_on(self, peer: RouterPeer, pieces: Pieces) -> Iterable[RouterPeer]:
        """Remove a peer from the holders of pieces that it has in its queue no more. Returns the peers that pay for
        them now, with their new weights; `_count` must follow."""
        heirs: dict[RouterPeer, None] = {}
        for key, piece in pieces.items():
            holders = piece.holders
            paid = next(iter(holders)) is peer
            del holders[peer]
            if not holders:
                del self._pieces[key]
                self._ended += 1
            elif paid:
                heir = next(iter(holders))
                heir.weight += len(piece.whole)
                heirs[heir] = None
        return heirs

    def _count(self, heirs: Iterable[RouterPeer]) -> None:
        # Each call may evict any peer, so that all weights are right before the first one.
        for heir in heirs:
            if heir.weight:
                self._memory.hold(heir, Share.OUTPUT, heir.weight)

    def _set(self, peer: RouterPeer, weight: int) -> None:
        if peer.weight != weight:
            peer.weight = weight
            if weight:
                self._blocked[peer] = None
            else:
                self._blocked.pop(peer, None)
            self._memory.hold(peer, Share.OUTPUT, weight)


def _whole(piece: Part) -> bytes:
    """Return the object that a queued piece keeps in memory."""
    if isinstance(piece, memoryview):
        whole: bytes = piece.obj
        return whole
    return piece
