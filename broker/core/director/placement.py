"""Where a reservation is made, and why not.

Rules:
- A context that is open is chosen by its name; else a clone in the clone set of that name that has room, and whose name
  then replaces it; else a context is placed, for its first user to open, at the server with the least load.
- While it is not open, all go where it was placed. Of a clone set, only as many as one clone is meant for: the next one
  begins a further placement.
- How many one clone, or a context, is meant for is known of those that are open, and remembered of those that were.
- A user that asks again for the same context keeps their place, as long as they may go there: their own reservation
  never stands in their way. Each request that is granted has a token of its own; one that is denied changes nothing.
- A placement adds the estimated load of a context to its server. Joining an open context, or a placement, does not.
- The server is told of the reservation before it is granted.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable

from broker.core.director.farm import Farm
from broker.core.director.interfaces import Denied, DoReserve, Granted
from broker.core.director.limits import MAX_EXPECTED_USERS, MAX_RESERVATIONS_EACH, TOKEN_BITS
from broker.core.director.names import check_name, family
from broker.core.director.reservations import Reservations
from broker.core.director.state import OpenContext, Placement, Reservation, ReservationPlace, Server
from broker.core.errors import Refusal

NO_SERVER = "unable to find suitable server"
CONTEXT_FULL = "requested context full"
SERVER_FULL = "server full"
NO_PROTOCOL = "requested protocol not available"


class Placer:
    """Makes reservations."""

    def __init__(self, farm: Farm, reservations: Reservations) -> None:
        self._farm = farm
        self._reservations = reservations
        self.granted = 0
        self.denied = 0

    def reserve(
        self, requester: Hashable, protocol: str, context: str, user: str | None, internal: bool, most: int
    ) -> Granted:
        """See `IDirector.reserve`."""
        check_name("context", context)
        check_name("protocol", protocol)
        if user is not None:
            check_name("user", user)
        if internal:
            most = MAX_RESERVATIONS_EACH
        holder = user if user is not None else None if internal else (requester,)
        quotas = self._reservations.quotas
        try:
            own = quotas.check(holder, context, requester, most, len(self._reservations))
        except Refusal:
            self.denied += 1
            raise
        found = self._farm.open_context(context)  # this may end ``own``, at a server that is gone: nobody is sent there
        try:
            place = self._choose(found, own, protocol, context, internal)
        except Denied:
            self.denied += 1
            self._farm.telling.tell()  # of what ended above
            raise
        self.granted += 1
        self._reservations.book(place, context, user, holder, requester)
        token = str(secrets.randbits(TOKEN_BITS))
        server = place.server
        self._farm.telling.add(server.newest, DoReserve(place.name, user, token))
        self._farm.telling.tell()
        return Granted(place.name, server.addresses[protocol], token)

    def _choose(
        self, found: OpenContext | None, own: Reservation | None, protocol: str, context: str, internal: bool
    ) -> ReservationPlace:
        """Return the place for a user with the reservation ``own``, or without one, for this context.

        ``found`` is the context, if it is open. Raises `Denied`.
        """
        if found is None and own is not None and self._keeps(own, protocol, context, internal):
            return own.place
        if found is None:
            clones = self._farm.presence.sets.get(context)
            if clones is not None:
                found = clones.first(protocol)
        if found is not None:
            why = _against(found, own, protocol, internal)
            if why is not None:
                raise Denied(found.name, why)
            return found
        placement = self._reservations.placements.get(context)
        if placement is not None and placement.server.links:
            full, cloned = self._shaped(placement, own)
            if not full or not cloned:
                why = CONTEXT_FULL if full else _against_placement(placement, own, protocol, internal)
                if why is not None:
                    raise Denied(context, why)
                return placement
        server = self._farm.selection.first(family(context), protocol, internal)
        if server is None:
            raise Denied(context, NO_SERVER)
        self._farm.selection.placed(server)
        return self._reservations.place(context, server)

    def _keeps(self, own: Reservation, protocol: str, context: str, internal: bool) -> bool:
        """True if a user that asks again for a context that is not open by that name may go where they were sent.

        Never to a server that is gone: that speaks no protocol.
        """
        place = own.place
        if isinstance(place, OpenContext):  # a clone
            inviting = place.basecap < 0 or len(place.users) + _others(place, own) < place.basecap
            return inviting and not place.hidden and _against(place, own, protocol, internal) is None
        if place.name != context or not isinstance(place, Placement):
            return False
        full, _ = self._shaped(place, own)
        return not full and _against_placement(place, own, protocol, internal) is None

    def _shaped(self, placement: Placement, own: Reservation | None) -> tuple[bool, bool]:
        """True if as many are on their way to a placement as one context is meant for, and whether it has clones.

        One may always go, so that a capacity that was raised meanwhile becomes known.
        """
        shape = self._farm.capacity_hints.get(placement.name)
        if shape is None:
            return False, False
        return shape.room >= 0 and max(1, shape.room) <= _others(placement, own), shape.cloned


def _others(place: ReservationPlace, own: Reservation | None) -> int:
    """The number of reservations of others that a place has."""
    count = len(place.reservations)
    return count - 1 if own is not None and own.place is place else count


def _server_full(server: Server, own: Reservation | None) -> bool:
    """True if a server takes nobody else, besides those who are there or have reserved."""
    taken = server.users + server.reserved
    if own is not None and own.place.server is server:
        taken -= 1
    return 0 <= server.capacity <= taken


def _against_placement(placement: Placement, own: Reservation | None, protocol: str, internal: bool) -> str | None:
    """The reason why a user may not go where a context will be opened, None if they may."""
    server = placement.server
    if server.families.get(family(placement.name), False) and not internal:
        return NO_SERVER
    if _others(placement, own) >= MAX_EXPECTED_USERS:
        return CONTEXT_FULL
    if server.capacity >= 0 and _server_full(server, own):
        return SERVER_FULL
    return None if protocol in server.addresses else NO_PROTOCOL


def _against(context: OpenContext, own: Reservation | None, protocol: str, internal: bool) -> str | None:
    """The reason why a user may not enter an open context, None if they may."""
    if context.restricted and not internal:
        return NO_SERVER
    if context.gate is not None:
        return context.gate
    coming = len(context.users) + _others(context, own)
    if coming >= MAX_EXPECTED_USERS or 0 <= context.maxcap <= coming:
        return CONTEXT_FULL
    server = context.server
    if server.capacity >= 0 and _server_full(server, own):
        return SERVER_FULL
    return None if protocol in server.addresses else NO_PROTOCOL
