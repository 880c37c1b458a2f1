"""How many bytes of large messages wait for each peer of a ZeroMQ socket.

libzmq bounds what waits for a peer by the number of messages. That bounds memory too while messages are small; a
thousand large ones would be gigabytes. libzmq tells when it is done with a frame that it shares, so the large ones, and
only these, are counted in bytes. To be told costs more than to send: of a row of large ones to the same peer the last
is followed for all, since they go out in order.
"""

from __future__ import annotations

from collections import OrderedDict, deque

import zmq

LARGE = 64 * 1024
"""Bytes from which a message is large: to follow one costs some 20 µs, about what the network takes for so many."""

MAX_BACKLOG = 64 * 1024 * 1024
"""Bytes of large messages that may wait for one peer: as much as the thousand small ones that may wait beside them.
One message of any size that is allowed at all may always wait."""


FOLLOW_EVERY = 1024 * 1024
"""Bytes of large messages to one peer of which one is followed. So many more than `MAX_BACKLOG` may wait for it."""

MAX_UNFOLLOWED = 1_000
"""Peers of whom it is remembered how much of a row they were sent: those that were sent something lately. Whoever is
forgotten begins a new row."""


class Backlogs:
    """What waits, by identity, in the order in which it was sent."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}
        self._sums: dict[bytes, int] = {}
        """How many bytes wait so for each."""
        self._unfollowed: OrderedDict[bytes, int] = OrderedDict()
        """Bytes of the row that has begun."""

    def has_room(self, identity: bytes, size: int) -> bool:
        """Whether a large message of that size may be sent to that peer now."""
        waiting = self._left(identity)
        return not waiting or self._sums[identity] + size <= MAX_BACKLOG

    def follow(self, identity: bytes, size: int) -> int:
        """A large message of that size is sent now. Returns the bytes of the row that ends with it; 0 if it goes on."""
        row = self._unfollowed.pop(identity, 0) + size
        if row >= FOLLOW_EVERY:
            return row
        self._unfollowed[identity] = row
        if len(self._unfollowed) > MAX_UNFOLLOWED:
            self._unfollowed.popitem(last=False)
        return 0

    def add(self, identity: bytes, tracker: zmq.MessageTracker, size: int) -> None:
        """A row of large messages was sent; ``tracker`` knows when libzmq is done with its last."""
        self._waiting.setdefault(identity, deque()).append((tracker, size))
        self._sums[identity] = self._sums.get(identity, 0) + size
        self._look_at_oldest()

    def forget(self, identity: bytes) -> None:
        """That peer has no session any more. What waits for it still counts, should it have another one."""
        self._left(identity)
        self._look_at_oldest()

    def _look_at_oldest(self) -> None:
        """One for each that comes or goes, so that those who never come back are forgotten in the end."""
        oldest = next(iter(self._waiting), None)
        if oldest is not None and (waiting := self._left(oldest)):
            del self._waiting[oldest]
            self._waiting[oldest] = waiting

    def _left(self, identity: bytes) -> deque[tuple[zmq.MessageTracker, int]]:
        """What waits for that peer now."""
        waiting = self._waiting.get(identity)
        if waiting is None:
            return deque()
        while waiting and waiting[0][0].done:
            self._sums[identity] -= waiting.popleft()[1]
        if not waiting:
            del self._waiting[identity], self._sums[identity]
        return waiting
