"""Who gets a new context: the server with the least load among those that serve its family and speak the protocol.

Rules:
- Servers are weighed by the load that they reported last, and an estimate for each context placed there since; and for
  those that were placed before but were not open yet when the server reported, since the report cannot count them.
  Without the last, a server that has just come back is filled far over the others.
- A queue is a heap by weight, then by connection order. The weight that it has for a server is never over the real one:
  one that rises is put right when the server is met at the front; one that falls is entered anew at once.
- A full server that is met at the front is put aside until it has room.
- So the front costs the logarithm of the number of servers, for each change since it was last looked at.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from broker.core.director.state import Server

_SLACK = 64
"""Entries that do not count any more before a heap is made anew, besides as many as there are that count."""

Key = tuple[str, str, bool]
"""Family, protocol, and whether for those who may enter what is restricted."""


class LeastLoaded:
    """Servers, of which the first is the lightest that is not full."""

    __slots__ = ("_entries", "_heap", "members")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Server]] = []
        self._entries: dict[Server, tuple[float, int, Server]] = {}
        """The entry that counts, for each server that is not put aside."""
        self.members = 0

    def add(self, server: Server) -> None:
        """One more server."""
        self.members += 1
        self.take_back(server)

    def take_back(self, server: Server) -> None:
        """The server counts, with the weight it has now."""
        entry = self._entries[server] = (server.weight, server.number, server)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapify(self._heap)
        else:
            heappush(self._heap, entry)

    def lowered(self, server: Server) -> None:
        """The server's weight has fallen."""
        if server in self._entries:
            self.take_back(server)

    def remove(self, server: Server) -> None:
        """One server less."""
        self.members -= 1
        self._entries.pop(server, None)
        server.room_waiters.pop(self, None)

    def first(self) -> Server | None:
        """The lightest server; None if all are full."""
        heap = self._heap
        entries = self._entries
        while heap:
            entry = heap[0]
            weight, number, server = entry
            if entries.get(server) is not entry:
                heappop(heap)
            elif server.full:
                heappop(heap)
                del entries[server]
                server.room_waiters[self] = None
            elif server.weight != weight:
                entry = entries[server] = (server.weight, number, server)
                heapreplace(heap, entry)
            else:
                return server
        return None


class ServerSelection:
    """The queues of all families and protocols. ``bump`` is the estimated load of a new context."""

    def __init__(self, bump: float) -> None:
        self.bump = bump
        self._queues: dict[Key, LeastLoaded] = {}
        self._keys: dict[Server, set[Key]] = {}

    def settle(self, server: Server) -> None:
        """The server's families or addresses may have changed."""
        now: set[Key] = set()
        for family, restricted in server.families.items():
            for protocol in server.addresses:
                now.add((family, protocol, True))
                if not restricted:
                    now.add((family, protocol, False))
        before = self._keys.get(server, set())
        self._leave(server, before - now)
        for key in now - before:
            self._queues.setdefault(key, LeastLoaded()).add(server)
        self._keys[server] = now

    def remove(self, server: Server) -> None:
        """The server is gone."""
        self._leave(server, self._keys.pop(server, set()))

    def _leave(self, server: Server, keys: Iterable[Key]) -> None:
        for key in keys:
            queue = self._queues[key]
            queue.remove(server)
            if not queue.members:
                del self._queues[key]

    def load(self, server: Server, load: float) -> None:
        """The server has reported its load."""
        before = server.weight
        server.load = load
        server.weight = load + self.bump * len(server.placements)
        if server.weight < before:
            for key in self._keys.get(server, ()):
                self._queues[key].lowered(server)

    def placed(self, server: Server) -> None:
        """One more context is placed there."""
        server.load += self.bump
        server.weight += self.bump

    def first(self, family: str, protocol: str, internal: bool) -> Server | None:
        """Who gets a new context of that family; None if nobody can."""
        queue = self._queues.get((family, protocol, internal))
        return None if queue is None else queue.first()
