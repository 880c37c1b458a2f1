"""How many bytes of large messages wait for each peer of a ZeroMQ socket.

libzmq bounds what waits for a peer by the number of messages. That bounds memory too while messages are small; a
thousand large ones would be gigabytes. libzmq tells when it is done with a frame that it shares, so the large ones, and
only these, are counted in bytes.
"""

from __future__ import annotations

from collections import deque

import zmq

LARGE = 64 * 1024
"""Bytes from which a message is large: to follow one costs some 20 µs, about what the network takes for so many."""

MAX_BACKLOG = 64 * 1024 * 1024
"""Bytes of large messages that may wait for one peer: as much as the thousand small ones that may wait beside them.
One message of any size that is allowed at all may always wait."""


class Backlogs:
    """What waits, by identity, in the order in which it was sent."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, deque[tuple[zmq.MessageTracker, int]]] = {}

    def has_room(self, identity: bytes, size: int) -> bool:
        """Whether a large message of that size may be sent to that peer now."""
        waiting = self._left(identity)
        return not waiting or sum(each for _, each in waiting) + size <= MAX_BACKLOG

    def add(self, identity: bytes, tracker: zmq.MessageTracker, size: int) -> None:
        """A large message was sent; ``tracker`` knows when libzmq is done with it."""
        self._waiting.setdefault(identity, deque()).append((tracker, size))
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
            waiting.popleft()
        if not waiting:
            del self._waiting[identity]
        return waiting
