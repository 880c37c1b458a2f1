"""Server selection for a new context: the least loaded server that serves the family and speaks the protocol.

Rules:
- The weight of a server is its last reported load, and an estimate for each context that was placed there since; and
  for those that were placed before but were not open yet at the time of the report, which cannot include them. Without
  the latter, a server that has just reconnected would receive far more contexts than the others.
- A queue is a heap ordered by weight, then by the time of connection. The weight of an entry is never above the present
  weight of its server: after an increase it is corrected when the server is met at the front; after a decrease the
  server is entered again at once.
- A full server that is met at the front is set aside until it has room.
- A server with a failing health check comes after all others, or is not chosen at all, by the policy of the check. If
  more than the share ``panic`` of all servers fails, those that are not to be chosen come last, too: see
  `broker.core.registered_services`, which has the same rule for services.
- Thus a lookup costs the logarithm of the number of servers, for each change since the last lookup.

`placement` is the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush, heapreplace

from broker.core.director.farm_state import Server
from broker.core.model import Policy
from broker.core.registered_services import PANIC

_RANKS = {Policy.SHOW: 0, Policy.LAST: 1, Policy.HIDE: 2}
"""Order of servers before their weights."""

_SLACK = 64
"""Stale entries that a heap may have, besides as many as there are valid ones, before it is rebuilt."""

Key = tuple[str, str, bool]
"""Family, protocol, and True for requesters that may enter restricted contexts."""


class LeastLoaded:
    """A priority queue of servers: the first one has the least weight and is not full."""

    __slots__ = ("_entries", "_heap", "members")

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, int, Server]] = []
        self._entries: dict[Server, tuple[int, float, int, Server]] = {}
        """The valid entry of each server that is not set aside. Other entries of the heap are stale."""
        self.members = 0
        """Number of servers, including those set aside."""

    def add(self, server: Server) -> None:
        """Add a server."""
        self.members += 1
        self.take_back(server)

    def take_back(self, server: Server) -> None:
        """Enter a server with its present weight."""
        entry = self._entries[server] = (_RANKS[server.policy], server.weight, server.number, server)
        if len(self._heap) > 2 * len(self._entries) + _SLACK:
            self._heap = list(self._entries.values())
            heapify(self._heap)
        else:
            heappush(self._heap, entry)

    def lowered(self, server: Server) -> None:
        """Enter a server again after its weight has decreased, or its check passes again."""
        if server in self._entries:
            self.take_back(server)

    def remove(self, server: Server) -> None:
        """Remove a server. Its entry in the heap becomes stale."""
        self.members -= 1
        self._entries.pop(server, None)
        server.room_waiters.pop(self, None)

    def first(self) -> Server | None:
        """Return the lightest server that is not full, or None; one with a failing check only if there is no other."""
        heap = self._heap
        entries = self._entries
        while heap:
            entry = heap[0]
            rank, weight, number, server = entry
            # Lazy deletion: removing an entry from the middle of a heap would cost linear time.
            if entries.get(server) is not entry:
                heappop(heap)
            elif server.full:
                heappop(heap)
                del entries[server]
                # `Server.room_made` calls `take_back` when the server has room again.
                server.room_waiters[self] = None
            elif server.weight != weight or _RANKS[server.policy] != rank:
                entry = entries[server] = (_RANKS[server.policy], server.weight, number, server)
                heapreplace(heap, entry)
            else:
                return server
        return None


class ServerSelection:
    """The queues of all families and protocols. ``bump`` is the estimated load of a new context."""

    def __init__(self, bump: float) -> None:
        self.bump = bump
        self.panic = PANIC
        """Share of failing servers above which none is hidden."""
        self._failing: dict[Server, None] = {}
        self._queues: dict[Key, LeastLoaded] = {}
        self._keys: dict[Server, set[Key]] = {}

    def settle(self, server: Server) -> None:
        """Move a server to the queues of its present families and addresses."""
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
        """Remove a server that is gone."""
        self._failing.pop(server, None)
        self._leave(server, self._keys.pop(server, set()))

    def _leave(self, server: Server, keys: Iterable[Key]) -> None:
        for key in keys:
            queue = self._queues[key]
            queue.remove(server)
            if not queue.members:
                del self._queues[key]

    def judged(self, server: Server) -> None:
        """Take the present policy of a server, after it has changed."""
        if server.policy is Policy.SHOW:
            self._failing.pop(server, None)
        else:
            self._failing[server] = None
        for key in self._keys.get(server, ()):
            self._queues[key].lowered(server)

    def policy_of(self, server: Server) -> Policy:
        """Return the effective place of a server in choices."""
        if server.policy is Policy.HIDE and len(self._failing) > self.panic * len(self._keys):
            return Policy.LAST
        return server.policy

    @property
    def failing(self) -> int:
        """The number of servers with a failing health check and a policy other than SHOW."""
        return len(self._failing)

    def load(self, server: Server, load: float) -> None:
        """Set the reported load of a server."""
        before = server.weight
        server.load = load
        server.weight = load + self.bump * len(server.placements)
        if server.weight < before:
            for key in self._keys.get(server, ()):
                self._queues[key].lowered(server)

    def placed(self, server: Server) -> None:
        """Add the estimated load of one more context."""
        server.load += self.bump
        server.weight += self.bump

    def first(self, family: str, protocol: str, internal: bool) -> Server | None:
        """Return the server for a new context of that family, or None."""
        queue = self._queues.get((family, protocol, internal))
        server = None if queue is None else queue.first()
        if server is not None and self.policy_of(server) is Policy.HIDE:
            return None  # all others that are not full are hidden as well
        return server
