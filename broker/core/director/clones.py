"""The clones of one context, with constant-time choice of a clone that has room."""

from __future__ import annotations

from collections import OrderedDict

from broker.core.director.limits import MAX_PROTOCOL_PROBES
from broker.core.director.state import OpenContext, Server
from broker.core.model import Policy


class CloneSet:
    """The open clones of a context.

    The clone that has had room for the longest time is chosen. Another server is used only when the first one has no
    clone with room left.
    """

    def __init__(self) -> None:
        self.clones: dict[str, OpenContext] = {}
        """All clones by name, in the order in which they opened."""
        self.servers: dict[Server, int] = {}
        """Number of clones on each server."""
        self._rooms: dict[Server, OrderedDict[OpenContext, None]] = {}
        """The clones that have room, by server; servers without such a clone are absent."""
        self._ready: OrderedDict[Server, None] = OrderedDict()
        """The servers of ``_rooms``, without those that `first` set aside because they are full."""

    def add(self, context: OpenContext) -> None:
        """Add a clone that has opened."""
        self.clones[context.name] = context
        self.servers[context.server] = self.servers.get(context.server, 0) + 1
        context.clone_group = self
        self.refresh(context)

    def remove(self, context: OpenContext) -> bool:
        """Remove a clone that has closed. Returns True if it was the last one."""
        context.clone_group = None
        self._take(context)
        del self.clones[context.name]
        left = self.servers.pop(context.server) - 1
        if left:
            self.servers[context.server] = left
        return not self.clones

    def refresh(self, context: OpenContext) -> None:
        """Update the tables after a change of the clone's users, reservations, capacity or gate."""
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
        """Return a server that is not full any more to the choice."""
        if server in self._rooms:
            self._ready[server] = None

    def first(self, protocol: str) -> OpenContext | None:
        """Return a clone with room on a server that is not full, or None.

        A clone whose server speaks ``protocol`` and has no failing health check is preferred among the first
        `MAX_PROTOCOL_PROBES` servers.
        """
        found: OpenContext | None = None
        failing: OpenContext | None = None
        looks = 0
        while looks < min(len(self._ready), MAX_PROTOCOL_PROBES):
            server = next(iter(self._ready))
            if server.full:
                # Set aside until `Server.room_made` calls `take_back`: no later choice meets it before it has room.
                del self._ready[server]
                server.room_waiters[self] = None
                continue
            context = next(iter(self._rooms[server]))
            if protocol in server.addresses:
                if server.policy is Policy.SHOW:
                    return context
                failing = failing or context
            found = found or context
            looks += 1
            # Rotation: a farm in which the first servers lack the protocol does not probe the same ones each time.
            self._ready.move_to_end(server)
        return failing or found

    def _take(self, context: OpenContext) -> None:
        """Remove a clone that has no room, or that has closed, from the choice."""
        server = context.server
        rooms = self._rooms.get(server)
        if rooms is None or context not in rooms:
            return
        del rooms[context]
        if not rooms:
            del self._rooms[server]
            self._ready.pop(server, None)
            server.room_waiters.pop(self, None)
