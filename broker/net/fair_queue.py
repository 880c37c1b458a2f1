"""Fair queue (round-robin) of two levels: over lanes, and within a lane over addresses.

Invariant: a connection waits only behind those of its own listener and address. Ten thousand connections of one address
delay a connection of another address by one quantum, and those of one listener delay another listener by one quantum.
The scheduler (`broker.net.scheduler`) is its user.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from broker.access.identity import network_of


class Placed(Protocol):
    """A connection with its keys in the queue."""

    @property
    def lane(self) -> Hashable:
        """The listener."""

    @property
    def host(self) -> str:
        """The address of the peer, without its port."""


P = TypeVar("P", bound=Placed)


class FairQueue(Generic[P]):
    """The fair queue. All operations take constant time."""

    __slots__ = ("_lanes", "_order", "_size")

    def __init__(self) -> None:
        self._lanes: dict[Hashable, tuple[dict[str, deque[P]], deque[str]]] = {}
        self._order: deque[Hashable] = deque()
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def append(self, connection: P) -> None:
        """Append a connection to the queue of its listener and address."""
        self._size += 1
        lane = self._lanes.get(connection.lane)
        if lane is None:
            lane = self._lanes[connection.lane] = {}, deque()
            self._order.append(connection.lane)
        addresses, order = lane
        network = network_of(connection.host)
        waiting = addresses.get(network)
        if waiting is None:
            waiting = addresses[network] = deque()
            order.append(network)
        waiting.append(connection)

    def popleft(self) -> P:
        """Remove and return the next connection. Raises IndexError if the queue is empty."""
        name = self._order.popleft()
        addresses, order = self._lanes[name]
        network = order.popleft()
        waiting = addresses[network]
        connection = waiting.popleft()
        self._size -= 1
        if waiting:
            order.append(network)
        else:
            del addresses[network]
        if order:
            self._order.append(name)
        else:
            del self._lanes[name]
        return connection
