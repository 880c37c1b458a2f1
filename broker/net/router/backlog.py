"""Messages that wait for the peers of a ROUTER which do not read, and the bounds on them.

Rules:
- A number of messages, and of bytes, may wait for one peer; more are refused (`Sent.FULL`). Answers may go beyond the
  number. One message may wait, however long it is.
- All messages that wait for peers which do not read have a number of bytes together; beyond, each of these peers may
  have its share only.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from broker.net.connection_states import BLOCKED
from broker.net.router.peer import RouterPeer

HIGH_WATER = 1_000
"""Messages that may wait for one peer; libzmq's own default."""

ANSWERS = 100
"""Answers that may wait beyond that: real peers wait for an answer before they ask again, and have one."""

LARGE = 64 * 1024
"""Bytes from which a message is written at once where it can be, instead of at the end of the turn."""

BACKLOG = 64 * 1024 * 1024
"""Bytes that may wait for one peer: a thousand messages of just under `LARGE`."""

WAITING = 256 * 1024 * 1024
"""Bytes that may wait for all peers which do not read. Shared bytes count for each."""


@attrs.frozen
class BacklogLimits:
    """The bounds of one ROUTER: ``messages`` and ``size`` (bytes) for one peer, and ``all_sizes`` (bytes) for all."""

    messages: int = HIGH_WATER
    size: int = BACKLOG
    all_sizes: int = WAITING


class Backlog:
    """The bytes that wait for peers which do not read. ``flush_one`` writes the output of a peer."""

    def __init__(self, limits: BacklogLimits, flush_one: Callable[[RouterPeer], None]) -> None:
        self.limits = limits
        self._flush_one = flush_one
        self._slow: set[RouterPeer] = set()
        """Connections whose peers do not read."""
        self._waiting = 0
        """Bytes that wait for these."""

    def blocked(self, peer: RouterPeer) -> None:
        """The peer stopped reading."""
        self._slow.add(peer)
        self.weigh(peer)

    def unblocked(self, peer: RouterPeer) -> None:
        """The peer reads again. Its bytes count until `weigh` finds them written."""
        self._slow.discard(peer)

    def forget(self, peer: RouterPeer) -> None:
        """The connection is gone."""
        self._slow.discard(peer)
        self._set(peer, 0)

    def weigh(self, peer: RouterPeer) -> None:
        """Count the bytes that wait for a peer: all of them while it does not read, or else none."""
        self._set(peer, sum(map(len, peer.out)) if peer.output is BLOCKED else 0)

    def relieved(self, peer: RouterPeer) -> bool:
        """Return True if a peer has read half of what may wait for it."""
        few = len(peer.out) - peer.bodies <= self.limits.messages // 2
        return few and peer.weight <= self._share() // 2

    def has_room(self, peer: RouterPeer, size: int, extra: int) -> bool:
        """Return True if a message of that size may wait for a peer which does not read, or for which many wait.

        An answer may be one of ``extra`` more; the peer gets no `Conversation.room` for it.
        """
        if peer.output is not BLOCKED:
            # Many messages wait for the end of the turn: write them before any is refused.
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
        """Return True if ``size`` more bytes may wait, or are no more than the share of one more slow peer."""
        return self._waiting + size <= self.limits.all_sizes or size <= self.limits.all_sizes // (len(self._slow) + 1)

    def _share(self, size: int = 0) -> int:
        """Bytes that may wait for a peer which does not read, where ``size`` more are to wait."""
        limits = self.limits
        if self._waiting + size <= limits.all_sizes:
            return limits.size
        return min(limits.size, limits.all_sizes // max(len(self._slow), 1))

    def _set(self, peer: RouterPeer, weight: int) -> None:
        self._waiting += weight - peer.weight
        peer.weight = weight
