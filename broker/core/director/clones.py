"""The clones of one context, and which of them has room."""

from __future__ import annotations

from collections import OrderedDict

from broker.core.director.limits import MAX_PROTOCOL_PROBES
from broker.core.director.state import OpenContext, Server


class CloneSet:
    """The open clones of a context.

    Of those with room, the one that has had it the longest is chosen; servers take turns only when one has none left.
    """

    def __init__(self) -> None:
        self.clones: dict[str, OpenContext] = {}
        """All of them, by name, in the order in which they opened."""
        self.servers: dict[Server, int] = {}
        """How many each server has."""
        self._rooms: dict[Server, OrderedDict[OpenContext, None]] = {}
        """Those that have room, for each server that has such."""
        self._ready: OrderedDict[Server, None] = OrderedDict()
        """Those servers, without the full ones that were put aside."""

    def add(self, context: OpenContext) -> None:
        """A clone has opened."""
        self.clones[context.name] = context
        self.servers[context.server] = self.servers.get(context.server, 0) + 1
        context.clone_group = self
        self.refresh(context)

    def remove(self, context: OpenContext) -> bool:
        """A clone has closed. Returns whether it was the last."""
        context.clone_group = None
        self._take(context)
        del self.clones[context.name]
        left = self.servers.pop(context.server) - 1
        if left:
            self.servers[context.server] = left
        return not self.clones

    def refresh(self, context: OpenContext) -> None:
        if not context.inviting:
            self._take(context)
            return
        rooms = self._rooms.get(context.server)
        if rooms is None:
            self._rooms[context.server] = OrderedDict(((context, None),))
            self._ready[context.server] = None
        elif context not in rooms:
            rooms[context] = None

    def take_back(self, server: Server) -> None:
        if server in self._rooms:
            self._ready[server] = None

    def first(self, protocol: str) -> OpenContext | None:
        """A clone with room at a server that is not full, if possible one that speaks the protocol."""
        found: OpenContext | None = None
        looks = 0
        while looks < min(len(self._ready), MAX_PROTOCOL_PROBES):
            server = next(iter(self._ready))
            if server.full:
                del self._ready[server]
                server.room_waiters[self] = None
                continue
            context = next(iter(self._rooms[server]))
            if protocol in server.addresses:
                return context
            found = found or context
            looks += 1
            self._ready.move_to_end(server)
        return found

    def _take(self, context: OpenContext) -> None:
        """The clone has no room, or is gone."""
        server = context.server
        rooms = self._rooms.get(server)
        if rooms is None or context not in rooms:
            return
        del rooms[context]
        if not rooms:
            del self._rooms[server]
            self._ready.pop(server, None)
            server.room_waiters.pop(self, None)
