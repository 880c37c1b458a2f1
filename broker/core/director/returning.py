"""Servers from before a restart that have not returned: requests for their contexts wait for them.

Rules:
- A Context Server admits a user only by a reservation that it has received, and there is no connection over which it
  could be sent one before it has returned. So a request waits for the server, instead of an answer that fails there.
- A request for a context that is recorded on a server waits until that server reports it. A server that has returned
  has `SETTLE` seconds for its reports; without the context, it is placed as any other.
- A request for another context is placed at once if a server can take it. Otherwise it waits while a recorded server
  that could has not returned.
- All waits end `within` seconds after the start: real servers look for their broker every 15 seconds. Then each request
  is answered from the farm as it is.
- At most `MAX_WAITING` requests wait, and of one requester as many as it may have reservations; others are answered at
  once.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterable

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.director_interfaces import Request
from broker.core.director.farm import Farm
from broker.core.director.farm_record import RecordedServer
from broker.core.director.farm_state import context_set, family

WITHIN = 20.0
"""Seconds after the start for which requests wait at most."""

SETTLE = 1.0
"""Seconds that a server has for its reports after its address. Real ones send all at once."""

LOOK_EVERY = 0.1
"""Seconds between two checks of the waiting requests."""

MAX_WAITING = 10_000
"""Requests that wait: as many users as a farm has that lose their servers with the director."""

AT_ONCE = 100
"""Requests that are released in one turn of the reactor: some 5 ms."""


class Returning:
    """The recorded servers that have not returned. They are forgotten ``within`` seconds from now."""

    def __init__(
        self, clock: IReactorTime, farm: Farm, known: Iterable[RecordedServer], within: float = WITHIN
    ) -> None:
        self._clock = clock
        self._farm = farm
        self._servers = list(known)
        self._contexts: dict[str, list[RecordedServer]] = {}
        """The servers of each context, and of each set of clones."""
        for server in self._servers:
            for context in server.contexts:
                for name in {context, context_set(context)} - {None}:
                    assert name is not None
                    self._contexts.setdefault(name, []).append(server)
        self._back: dict[RecordedServer, float] = {}
        """Servers that have returned, with the time at which that was seen."""
        self._waiting: deque[tuple[Request, Deferred[None]]] = deque()
        self._of: Counter[Hashable] = Counter()
        self._timer: IDelayedCall | None = None
        self._end: IDelayedCall | None = clock.callLater(within, self._over) if self._servers else None

    def __len__(self) -> int:
        return len(self._waiting)

    def of(self, requester: Hashable) -> int:
        """Return the number of waiting requests of a requester."""
        return self._of[requester]

    def wait(self, request: Request) -> Deferred[None] | None:
        """Return None if a request is to be answered now, else a Deferred that fires when it is. It never fails."""
        if self._end is None or not self._waits(request.protocol, request.context, request.internal):
            return None
        if len(self._waiting) >= MAX_WAITING or self._of[request.requester] >= request.most:
            return None
        ready: Deferred[None] = Deferred()
        self._waiting.append((request, ready))
        self._of[request.requester] += 1
        if self._timer is None:
            self._timer = self._clock.callLater(LOOK_EVERY, self._look)
        return ready

    def stop(self) -> None:
        """Stop releasing requests: their connections are about to close."""
        for timer in (self._timer, self._end):
            if timer is not None and timer.active():
                timer.cancel()
        self._timer = self._end = None
        self._waiting.clear()

    def _waits(self, protocol: str, context: str, internal: bool) -> bool:
        """Return True if a server that has not returned is the place of that context, or the only one for it."""
        if self._end is None:
            return False
        farm = self._farm
        if farm.open_context(context) is not None:
            return False
        clones = farm.presence.sets.get(context)
        if clones is not None and clones.first(protocol) is not None:
            return False
        own = self._contexts.get(context)
        if own is not None and not all(self._is_back(server) for server in own):
            return True
        if farm.selection.first(family(context), protocol, internal) is not None:
            return False
        return any(self._could(server, protocol, context, internal) for server in self._servers)

    def _could(self, server: RecordedServer, protocol: str, context: str, internal: bool) -> bool:
        restricted = server.families.get(family(context))
        return (
            restricted is not None
            and (internal or not restricted)
            and protocol in server.addresses
            and not self._is_back(server)
        )

    def _is_back(self, server: RecordedServer) -> bool:
        """Return True if a server has returned, and had the time for its reports."""
        now = self._clock.seconds()
        since = self._back.get(server)
        if since is None:
            if not any(self._farm.server_at(*address) for address in server.addresses.items()):
                return False
            since = self._back[server] = now
        return not 0 <= now - since < SETTLE

    def _look(self) -> None:
        self._timer = None
        released = 0
        for _ in range(len(self._waiting)):
            if released == AT_ONCE:
                break
            request, ready = self._waiting.popleft()
            if ready.called or not self._waits(request.protocol, request.context, request.internal):
                released += 1
                self._of[request.requester] -= 1
                if not self._of[request.requester]:
                    del self._of[request.requester]
                ready.callback(None)
            else:
                self._waiting.append((request, ready))
        if self._waiting:
            self._timer = self._clock.callLater(0 if released == AT_ONCE else LOOK_EVERY, self._look)

    def _over(self) -> None:
        self._end = None
        self._servers.clear()
        self._contexts.clear()
        self._back.clear()
