"""Reservations, from their grant until their user enters or they expire.

Rules:
- A reservation counts on its server and at its place: an open context, or the placement of one that is not open.
- A reservation that a newer one of its user replaces (see the quotas below) takes up no room from then on. Its token
  remains valid at the Context Server until it expires, since the protocol has no message that revokes it. This is
  harmless: a user that enters with it uses up the newer reservation; and a real server has the same user in a context
  once (the later entry ends the earlier one), and admits no user beyond its capacities.
- A user that enters uses up the reservation on that server, for that context or its clone set, under their name; else
  the one under their name without its last part, which real servers add for each visit; else the oldest one of an
  anonymous user.
- When a context opens, it takes over the reservations for its name on its server, and of those for its clone set as
  many as one clone has room for. When it closes, the remaining ones become a placement on the same server, where their
  users will open it again.
- The end of a server ends its reservations.

Quotas: the unused reservations of each user and of each connection, and the limits on their numbers.

Rules:
- A user has one reservation for a context at most, whichever connection requested it: the newest one, which replaces
  the older one. "For a context" means for the requested name, or for the name of the clone that was chosen.
- An anonymous user is identified with their connection. The anonymous users of a Context Server all differ: none
  replaces another.
- The number of unused reservations is limited for a connection, for a user, and in all. A request beyond a limit is
  refused. But any connection may request under any user's name: therefore a user is not refused because of the requests
  of other connections; the oldest of those reservations is replaced instead.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import attrgetter

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from broker.core.director.farm_state import (
    EXPIRIES_PER_TURN,
    MAX_RESERVATIONS,
    Holder,
    OpenContext,
    Placement,
    Reservation,
    ReservationPlace,
    Server,
    context_set,
)
from broker.core.director.farm_tables import MultiMap
from broker.core.errors import Refusal, at_limit

_NONE: Mapping[str, Reservation] = {}

_due = attrgetter("due")

EACH_CONNECTION = "director.listeners.limits.reservations"
"""Name of the limit of a connection in the configuration, for `at_limit`."""


class ReservationQuotas:
    """All reservations by user and by requesting connection. ``each_user`` is the maximum of one user."""

    def __init__(self, each_user: int) -> None:
        self.each_user = each_user
        self._held: dict[Holder, dict[str, Reservation]] = {}
        """Reservations by user, the oldest first, under both the requested and the granted name, which are usually
        equal."""
        self._requesters: dict[Hashable, int] = {}

    def of(self, requester: Hashable) -> int:
        """Return the number of unused reservations of a requester."""
        return self._requesters.get(requester, 0)

    def held(self, holder: Holder) -> Mapping[str, Reservation]:
        """Return the reservations of a user, by the names of the contexts."""
        return self._held.get(holder, _NONE)

    def check(
        self, holder: Holder, context: str, requester: Hashable, most: int, everything: int
    ) -> Reservation | None:
        """Return the user's reservation for this context, or None.

        Raises `Refusal` LIMIT if the requester, which may have ``most`` unused reservations, may not make another for
        that user. ``everything`` is the present number of all reservations.
        """
        held = self._held.get(holder, _NONE)
        own = held.get(context)
        mine = self.of(requester)
        # A reservation that replaces one of the same connection never exceeds its limit.
        if mine >= most and (own is None or own.requester != requester):
            raise _too_many(f"this connection has {mine}", EACH_CONNECTION)
        if own is not None:
            return own
        if everything >= MAX_RESERVATIONS:
            raise _too_many(f"the director has {everything}")
        if len(held) >= self.each_user and isinstance(holder, str):
            # Only this connection's own requests count against it: others are replaced, see the rules.
            count = sum(each.requester == requester for each in set(held.values()))
            if count >= self.each_user:
                raise _too_many(f"this user has {count}", "director.user_reservations")
        return None

    def replaced_by(self, new: Reservation) -> Sequence[Reservation]:
        """Return the reservations that a new one, which is not added yet, replaces."""
        held = self._held.get(new.holder)
        if held is None:
            return ()
        gone = [held[name] for name in {new.asked, new.name} if name in held]
        if len(held) >= self.each_user and isinstance(new.holder, str):
            left = [each for each in dict.fromkeys(held.values()) if each not in gone]
            others = [each for each in left if each.requester != new.requester]
            gone += others[: max(0, len(left) + 1 - self.each_user)]
        return tuple(dict.fromkeys(gone))

    def add(self, reservation: Reservation) -> None:
        """Add a reservation, after those that it replaces were removed."""
        if reservation.holder is not None:
            held = self._held.setdefault(reservation.holder, {})
            held[reservation.asked] = held[reservation.name] = reservation
        requester = reservation.requester
        self._requesters[requester] = self._requesters.get(requester, 0) + 1

    def remove(self, reservation: Reservation) -> None:
        """Remove a reservation that has ended."""
        if reservation.holder is not None:
            held = self._held[reservation.holder]
            del held[reservation.name]
            if reservation.asked != reservation.name:
                del held[reservation.asked]
            if not held:
                del self._held[reservation.holder]
        requester = reservation.requester
        left = self._requesters[requester] - 1
        if left:
            self._requesters[requester] = left
        else:
            del self._requesters[requester]


def _too_many(these: str, key: str = "") -> Refusal:
    return at_limit(f"too many reservations: {these} unused ones", key)


class Reservations:
    """All reservations and placements. ``seconds`` is the lifetime of each, ``each_user`` as in `ReservationQuotas`."""

    def __init__(self, clock: IReactorTime, seconds: float, each_user: int) -> None:
        self._clock = clock
        self.seconds = seconds
        self._lines: list[OrderedDict[Reservation, None]] = [OrderedDict()]
        """Each in the order of expiry. New ones are added to the last: the others are of longer lifetimes than now."""
        self.quotas = ReservationQuotas(each_user)
        self._anonymous: MultiMap[tuple[Server, str], Reservation] = MultiMap()
        """Reservations of anonymous users, by the server and the granted name."""
        self._timer: IDelayedCall | None = None
        self.placements: dict[str, Placement] = {}
        """The latest placement of each name."""
        self.used = 0
        """Number of reservations that were used."""
        self.expired = 0
        """Number of reservations that expired."""
        self.lost = 0
        """Number of reservations that ended with their server."""
        self.replaced = 0
        """Number of reservations that a newer one replaced."""

    def __len__(self) -> int:
        return sum(map(len, self._lines))

    def __iter__(self) -> Iterator[Reservation]:
        return chain.from_iterable(self._lines)

    def __contains__(self, reservation: Reservation) -> bool:
        return any(reservation in line for line in self._lines)

    def use(self, seconds: float, each_user: int) -> None:
        """Apply another lifetime to later reservations, and another maximum of one user."""
        if seconds < self.seconds:
            self._lines = [*filter(None, self._lines), OrderedDict()]
        self.seconds = seconds
        self.quotas.each_user = each_user

    def place(self, name: str, server: Server) -> Placement:
        """Return the placement of a context that is to be opened on a server, as the latest one of that name."""
        placement = server.placements.get(name)
        if placement is None:
            return Placement(name, server, self.placements)
        self.placements[name] = placement
        return placement

    def book(
        self,
        place: ReservationPlace,
        asked: str,
        user: str | None,
        holder: Holder,
        requester: Hashable,
    ) -> Reservation:
        """Add a reservation. ``asked`` is the name of the context in the request."""
        server = place.server
        due = self._clock.seconds() + self.seconds
        reservation = Reservation(place, place.name, asked, user, holder, requester, due)
        self._lines[-1][reservation] = None
        if user is None:
            self._anonymous.add((server, place.name), reservation)
        place.reservations[reservation] = None
        server.reserved += 1
        # The older one ends only after the new one is counted: a placement ends with its last reservation.
        for old in self.quotas.replaced_by(reservation):
            if old.name == reservation.name == asked:
                # A clone that was requested by the name of its set may be requested by that name again.
                reservation.asked = old.asked
            self.replaced += 1
            self._end(old)
        self.quotas.add(reservation)
        place.changed()
        if self._timer is None:
            self._timer = self._clock.callLater(self.seconds, self._expire)
        elif due < self._timer.getTime():
            self._timer.reset(self.seconds)
        return reservation

    def claim(self, context: OpenContext, user: str) -> None:
        """Use up the reservation of a user who has entered a context, if there is one."""
        server = context.server
        if not server.reserved:
            return
        base = context_set(context.name)
        names = (context.name,) if base is None else (context.name, base)
        # Real servers report ``user-joe-8232480406087251935`` for the reservation of ``user-joe``.
        for who in (user, user.rpartition("-")[0]):
            held = self.quotas.held(who)
            for name in names:
                reservation = held.get(name)
                if reservation is not None and reservation.name == name and reservation.place.server is server:
                    self._use(reservation)
                    return
        for name in names:
            reservation = self._anonymous.first((server, name))
            if reservation is not None:
                self._use(reservation)
                return

    def opened(self, context: OpenContext) -> None:
        """Move the reservations that concern a newly opened context to it."""
        placements = context.server.placements
        placement = placements.get(context.name)
        if placement is not None:
            self._move(tuple(placement.reservations), context)
        placement = placements.get(context_set(context.name) or "")
        if placement is not None:
            waiting = tuple(placement.reservations)
            room = context.basecap if context.basecap >= 0 else context.maxcap
            taken = len(context.users) + len(context.reservations)
            # The reservations beyond the room of this clone stay at the placement, for the next clone.
            self._move(waiting if room < 0 else waiting[: max(0, room - taken)], context)

    def closed(self, context: OpenContext) -> None:
        """Move the reservations of a closed context to a placement, or end them if its server is gone."""
        waiting = tuple(context.reservations)
        if not context.server.links:
            for reservation in waiting:
                self._lose(reservation)
        elif waiting:
            self._move(waiting, self.place(context.name, context.server))

    def server_left(self, server: Server) -> Iterator[None]:
        """End the reservations of a departed server, whose contexts have closed: one in each step."""
        for placement in tuple(server.placements.values()):
            for reservation in tuple(placement.reservations):
                # It may have expired or been replaced between two steps.
                if reservation in self:
                    self._lose(reservation)
                    yield

    def _use(self, reservation: Reservation) -> None:
        self.used += 1
        self._end(reservation)

    def _lose(self, reservation: Reservation) -> None:
        self.lost += 1
        self._end(reservation)

    def _move(self, reservations: Iterable[Reservation], place: ReservationPlace) -> None:
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
        for line in self._lines:
            line.pop(reservation, None)
        self.quotas.remove(reservation)
        if reservation.user is None:
            self._anonymous.remove((server, reservation.name), reservation)
        del place.reservations[reservation]
        server.reserved -= 1
        place.changed()
        server.room_made()

    def _expire(self) -> None:
        self._timer = None
        now = self._clock.seconds()
        due = 0.0
        # A burst of reservations expires as a burst: the bound keeps one turn of the reactor short.
        for _ in range(EXPIRIES_PER_TURN):
            oldest = (next(iter(line)) for line in self._lines if line)
            first = min(oldest, key=_due, default=None)
            if first is None:
                return
            due = first.due
            if due > now:
                break
            self.expired += 1
            self._end(first)
        if self:
            self._timer = self._clock.callLater(max(0.0, due - now), self._expire)
