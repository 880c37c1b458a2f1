"""Reservations, from when they are granted until their user comes or their time is up.

Rules:
- A reservation counts at its server and at its place: an open context, or the placement of one that is not open.
- Who enters uses up the oldest reservation at that server, for that context or for its clone set, that is for his
  name; else for his name without its last part, which real servers add for each visit; else for an anonymous user.
- When a context opens, it takes over what is reserved for its name there, and of what is reserved for its clone set as
  much as is meant for one clone. When it closes, those who are still to come will open it again, at that server.
- The end of a server ends its reservations.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.limits import EXPIRED_AT_ONCE, MAX_RESERVATIONS, MAX_RESERVATIONS_EACH
from broker.core.director.multi import Multi
from broker.core.director.names import context_set
from broker.core.director.state import OpenContext, Place, Placement, Reservation, Server

_Key = tuple[Server, str, str | None]


class Reservations:
    """All reservations, and all placements."""

    def __init__(self, clock: IReactorTime, seconds: float) -> None:
        self._clock = clock
        self.seconds = seconds
        self._all: OrderedDict[Reservation, None] = OrderedDict()
        """In the order in which they expire."""
        self._lines: Multi[_Key, Reservation] = Multi()
        self._requesters: dict[Hashable, int] = {}
        self._timer: IDelayedCall | None = None
        self.placements: dict[str, Placement] = {}
        """The latest placement of each name."""
        self.used = 0
        self.expired = 0
        self.lost = 0
        """How many ended with their server."""

    def __len__(self) -> int:
        return len(self._all)

    def room(self, requester: Hashable) -> bool:
        """Whether he may have one more."""
        return len(self._all) < MAX_RESERVATIONS and self._requesters.get(requester, 0) < MAX_RESERVATIONS_EACH

    def place(self, name: str, server: Server) -> Placement:
        """A context of that name is to be opened there."""
        placement = server.placements.get(name)
        if placement is None:
            return Placement(name, server, self.placements)
        self.placements[name] = placement
        return placement

    def book(self, place: Place, user: str | None, requester: Hashable) -> None:
        """Keep a place."""
        server = place.server
        reservation = Reservation(place, place.name, user, requester, self._clock.seconds() + self.seconds)
        self._all[reservation] = None
        self._lines.add((server, place.name, user), reservation)
        self._requesters[requester] = self._requesters.get(requester, 0) + 1
        place.reservations[reservation] = None
        server.reserved += 1
        place.changed()
        if self._timer is None:
            self._timer = self._clock.callLater(self.seconds, self._expire)

    def claim(self, context: OpenContext, user: str) -> None:
        """A user has entered."""
        server = context.server
        if not server.reserved:
            return
        names = (context.name, context_set(context.name))
        for who in (user, user.rpartition("-")[0] or None, None):
            for name in names:
                if name is not None:
                    reservation = self._lines.first((server, name, who))
                    if reservation is not None:
                        self.used += 1
                        self._end(reservation)
                        return

    def opened(self, context: OpenContext) -> None:
        """A context that was not open is."""
        placements = context.server.placements
        placement = placements.get(context.name)
        if placement is not None:
            self._move(tuple(placement.reservations), context)
        placement = placements.get(context_set(context.name) or "")
        if placement is not None:
            waiting = tuple(placement.reservations)
            room = context.basecap if context.basecap >= 0 else context.maxcap
            taken = len(context.users) + len(context.reservations)
            self._move(waiting if room < 0 else waiting[: max(0, room - taken)], context)

    def closed(self, context: OpenContext) -> None:
        """A context is not open any more."""
        waiting = tuple(context.reservations)
        if not context.server.links:
            for reservation in waiting:
                self._lose(reservation)
        elif waiting:
            self._move(waiting, self.place(context.name, context.server))

    def server_left(self, server: Server) -> Iterator[None]:
        """A server is gone. Its contexts have closed before; each step ends a reservation."""
        for placement in tuple(server.placements.values()):
            for reservation in tuple(placement.reservations):
                if reservation in self._all:
                    self._lose(reservation)
                    yield

    def _lose(self, reservation: Reservation) -> None:
        self.lost += 1
        self._end(reservation)

    def _move(self, reservations: Iterable[Reservation], place: Place) -> None:
        for reservation in reservations:
            before = reservation.place
            del before.reservations[reservation]
            place.reservations[reservation] = None
            reservation.place = place
            before.changed()
        place.changed()

    def _end(self, reservation: Reservation) -> None:
        place = reservation.place
        server = place.server
        requester = reservation.requester
        del self._all[reservation]
        self._lines.remove((server, reservation.name, reservation.user), reservation)
        left = self._requesters[requester] - 1
        if left:
            self._requesters[requester] = left
        else:
            del self._requesters[requester]
        del place.reservations[reservation]
        server.reserved -= 1
        place.changed()
        server.room_made()

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        due = 0.0
        for _ in range(EXPIRED_AT_ONCE):
            first = next(iter(self._all), None)
            if first is None:
                return
            due = first.due
            if due > now:
                break
            self.expired += 1
            self._end(first)
        if self._all:
            self._timer = self._clock.callLater(max(0.0, due - now), self._expire)
