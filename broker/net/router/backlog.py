"""High-water marks of a ROUTER: limits on the messages queued for peers that do not read.

Rules:
- The queue of one peer is bounded in messages and bytes; beyond, messages are refused (`Sent.FULL`). Answers have an
  extra allowance of messages. A single message may be queued at any length.
- The queues of blocked peers count as output in the memory budget (`broker.core.memory_budget`). While it is full,
  messages for blocked peers are refused.
- A piece that several queues share counts for each of them by its part.
"""

from __future__ import annotations

from collections.abc import Callable
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import attrs

from broker.core.memory_budget import MemoryBudget, Share
from broker.net.connection_states import BLOCKED
from broker.net.epoll_streams import unsent

if TYPE_CHECKING:
    from broker.net.router.router_peer import RouterPeer

HIGH_WATER = 1_000
"""Messages queued for one peer; libzmq's own default."""

ANSWERS = 100
"""Extra allowance for answers: real peers await an answer before the next request, so that each has one."""

LARGE = 64 * 1024
"""Bytes beyond which a message is written at once if possible, instead of at the end of the turn."""

BACKLOG = 32 * 1024 * 1024
"""Bytes queued for one peer: two of the longest messages, and less than the budget of its address."""

REWEIGH = 16
"""Messages queued for a blocked peer between two exact weighings. In between, the part of each message in a common
piece is that at the time of its fan-out, and other receivers may have read theirs since."""


@attrs.frozen
class BacklogLimits:
    """The limits of one ROUTER for one peer: ``messages``, and ``size`` in bytes."""

    messages: int = HIGH_WATER
    size: int = BACKLOG


class Backlog:
    """Accounting of queued bytes for blocked peers, in ``memory``. ``flush_one`` writes the output of a peer."""

    def __init__(self, limits: BacklogLimits, memory: MemoryBudget, flush_one: Callable[[RouterPeer], None]) -> None:
        self.limits = limits
        self._memory = memory
        self._flush_one = flush_one

    def forget(self, peer: RouterPeer) -> None:
        """Remove a lost connection."""
        self._set(peer, 0)

    def weigh(self, peer: RouterPeer) -> None:
        """Account for the bytes queued for a peer: all of them while it is blocked, otherwise none. This may disconnect
        it."""
        peer.unweighed = 0
        self._set(peer, sum(map(_part, peer.out)) + unsent(peer.transport) if peer.output is BLOCKED else 0)

    def relieved(self, peer: RouterPeer) -> bool:
        """Return True if a peer has read half of its allowance."""
        few = len(peer.out) - peer.bodies <= self.limits.messages // 2
        return few and peer.weight <= self.limits.size // 2

    def has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        """Return True if a message of that size may be queued for a blocked peer, or one with a long queue.

        ``extra`` is the allowance for answers; a refused answer causes no `Conversation.room`.
        """
        if peer.output is not BLOCKED:
            # A long queue of a reading peer only waits for the end of the turn: it is written before a refusal.
            self._flush_one(peer)
            if peer.output is not BLOCKED:
                return True
        if peer.unweighed >= max(REWEIGH, len(peer.out) // 4):
            self.weigh(peer)
        waits = peer.weight + size
        many = len(peer.out) - peer.bodies >= self.limits.messages + extra
        if (peer.out and (many or waits > self.limits.size)) or not self._memory.admit(peer.host, size):
            if not extra:
                peer.full = True
            return False
        if peer.life.closing:
            return False  # it was evicted itself
        peer.unweighed += 1
        self._set(peer, waits)
        return True

    def _set(self, peer: RouterPeer, weight: int) -> None:
        if peer.weight != weight:
            peer.weight = weight
            self._memory.hold(peer, Share.OUTPUT, weight)


def _part(piece: Any) -> int:
    """Return the bytes that a queued piece keeps in memory, divided by the number of its references in queues, caches
    and views."""
    # Besides these there are the references of this call itself: those of ``map`` and of two arguments.
    if isinstance(piece, memoryview):
        whole: Any = piece.obj
        return len(whole) // max(1, getrefcount(whole) - 2)
    return len(piece) // max(1, getrefcount(piece) - 3)
