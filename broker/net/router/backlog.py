"""High-water marks of a ROUTER: limits on the messages queued for peers that do not read.

Rules:
- The queue of one peer is bounded in messages and bytes; beyond, messages are refused (`Sent.FULL`). Answers have an
  extra allowance of messages. A single message may be queued at any length.
- The queues of all blocked peers have a common limit in bytes; beyond it, each blocked peer is limited to an equal
  share.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from broker.net.connection_states import BLOCKED
from broker.net.router.peer import RouterPeer

HIGH_WATER = 1_000
"""Messages queued for one peer; libzmq's own default."""

ANSWERS = 100
"""Extra allowance for answers: real peers await an answer before the next request, so that each has one."""

LARGE = 64 * 1024
"""Bytes beyond which a message is written at once if possible, instead of at the end of the turn."""

BACKLOG = 64 * 1024 * 1024
"""Bytes queued for one peer: a thousand messages of just under `LARGE`."""

WAITING = 256 * 1024 * 1024
"""Bytes queued for all blocked peers. Shared bytes count for each."""


@attrs.frozen
class BacklogLimits:
    """The limits of one ROUTER: ``messages`` and ``size`` (bytes) for one peer, and ``all_sizes`` (bytes) for all."""

    messages: int = HIGH_WATER
    size: int = BACKLOG
    all_sizes: int = WAITING


class Backlog:
    """Accounting of queued bytes for blocked peers. ``flush_one`` writes the output of a peer."""

    def __init__(self, limits: BacklogLimits, flush_one: Callable[[RouterPeer], None]) -> None:
        self.limits = limits
        self._flush_one = flush_one
        self._slow: set[RouterPeer] = set()
        """Peers that do not read."""
        self._waiting = 0
        """Bytes queued for these."""

    def blocked(self, peer: RouterPeer) -> None:
        """Register a peer that stopped reading."""
        self._slow.add(peer)
        self.weigh(peer)

    def unblocked(self, peer: RouterPeer) -> None:
        """Deregister a peer that reads again. Its bytes count until `weigh` finds them written."""
        self._slow.discard(peer)

    def forget(self, peer: RouterPeer) -> None:
        """Remove a lost connection."""
        self._slow.discard(peer)
        self._set(peer, 0)

    def weigh(self, peer: RouterPeer) -> None:
        """Account for the bytes queued for a peer: all of them while it is blocked, otherwise none."""
        self._set(peer, sum(map(len, peer.out)) if peer.output is BLOCKED else 0)

    def relieved(self, peer: RouterPeer) -> bool:
        """Return True if a peer has read half of its allowance."""
        few = len(peer.out) - peer.bodies <= self.limits.messages // 2
        return few and peer.weight <= self._share() // 2

    def has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        """Return True if a message of that size may be queued for a blocked peer, or one with a long queue.

        ``extra`` is the allowance for answers; a refused answer causes no `Conversation.room`.
        """
        if peer.output is not BLOCKED:
            # A long queue of a reading peer only waits for the end of the turn: it is written before a refusal.
            self._flush_one(peer)
            if peer.output is not BLOCKED:
                return True
        waits = peer.weight + size
        one = not peer.out and self._waiting + size <= self.limits.all_sizes
        many = len(peer.out) - peer.bodies >= self.limits.messages + extra
        if not one and (many or waits > self._share(size)):
            if not extra:
                peer.full = True
            return False
        self._set(peer, waits)
        return True

    def fits_a_share(self, size: int) -> bool:
        """Return True if ``size`` more bytes fit into the common limit, or into the share of one more blocked peer."""
        return self._waiting + size <= self.limits.all_sizes or size <= self.limits.all_sizes // (len(self._slow) + 1)

    def _share(self, size: int = 0) -> int:
        """Return the bytes allowed for a blocked peer when ``size`` more are to be queued."""
        limits = self.limits
        if self._waiting + size <= limits.all_sizes:
            return limits.size
        return min(limits.size, limits.all_sizes // max(len(self._slow), 1))

    def _set(self, peer: RouterPeer, weight: int) -> None:
        self._waiting += weight - peer.weight
        peer.weight = weight
