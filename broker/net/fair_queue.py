"""Fair queueing: a queue in which lanes take turns, and within a lane the addresses.

A connection waits behind those of its own listener and address. Ten thousand connections of one address delay a
connection of another address by one quantum, and those of one listener delay another listener by one quantum.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar


class Placed(Protocol):
    """A connection with its place in the queue."""

    @property
    def lane(self) -> Hashable:
        """The listener."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""


P = TypeVar("P", bound=Placed)


class Lanes(Generic[P]):
    """The queue. All operations take constant time."""

    __slots__ = ("_lanes", "_order", "_size")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, tuple[dict[str, deque[P]], deque[str]]] = {}
        self._order: deque[Hashable] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, connection: P) -> None:
        """Add a connection behind those of its listener and address."""
        self._size += 1
        lane = self._lanes.get(connection.lane)
        if lane is None:
            lane = self._lanes[connection.lane] = {}, deque()
            self._order.append(connection.lane)
        addresses, order = lane
        waiting = addresses.get(connection.host)
        if waiting is None:
            waiting = addresses[connection.host] = deque()
            order.append(connection.host)
        waiting.append(connection)

    def popleft(self) -> P:
        """Take the connection whose turn it is. Raises IndexError when the queue is empty."""
        name = self._order.popleft()
        addresses, order = self._lanes[name]
        host = order.popleft()
        waiting = addresses[host]
        connection = waiting.popleft()
        self._size -= 1
        if waiting:
            order.append(host)
        else:
            del addresses[host]
        if order:
            self._order.append(name)
        else:
            del self._lanes[name]
        return connection
