"""Where a reservation is made, and why not.

Rules:
- A context that is open is chosen by its name; else a clone in the clone set of that name that has room, and whose name
  then replaces it; else a context is placed, for its first user to open, at the server with the least load.
- While it is not open, all go where it was placed. Of a clone set, only as many as one clone is meant for: the next one
  begins a further placement.
- How many one clone, or a context, is meant for is known of those that are open, and remembered of those that were.
- A placement adds the estimated load of a context to its server. Joining an open context, or a placement, does not.
- The server is told of the reservation before it is granted.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable

from broker.core.director.farm import Farm
from broker.core.director.interfaces import Denied, DoReserve, Granted
from broker.core.director.limits import TOKEN_BITS
from broker.core.director.names import check_name, family
from broker.core.director.reservations import Reservations
from broker.core.director.state import OpenContext, Place, Placement

NO_SERVER = "unable to find suitable server"
CONTEXT_FULL = "requested context full"
SERVER_FULL = "server full"
NO_PROTOCOL = "requested protocol not available"
TOO_MANY = "too many reservations"


class Choosing:
    """Makes reservations."""

    def __init__(self, farm: Farm, reservations: Reservations) -> None:
        self._farm = farm
        self._reservations = reservations
        self.granted = 0
        self.denied = 0

    def reserve(
        self, requester: Hashable, protocol: str, context: str, user: str | None, internal: bool
    ) -> Granted | Denied:
        """See `IDirector.reserve`."""
        check_name("context", context)
        check_name("protocol", protocol)
        if user is not None:
            check_name("user", user)
        place = self._choose(requester, protocol, context, internal)
        if isinstance(place, Denied):
            self.denied += 1
            self._farm.telling.tell()
            return place
        self.granted += 1
        self._reservations.book(place, user, requester)
        token = str(secrets.randbits(TOKEN_BITS))
        server = place.server
        self._farm.telling.add(server.newest, DoReserve(place.name, user, token))
        self._farm.telling.tell()
        return Granted(place.name, server.addresses[protocol], token)

    def _choose(self, requester: Hashable, protocol: str, context: str, internal: bool) -> Place | Denied:
        if not self._reservations.room(requester):
            return Denied(context, TOO_MANY)
        where = self._farm.where
        found = self._farm.open_context(context)
        clones = where.sets.get(context)
        if found is None and clones is not None:
            found = clones.first(protocol)
        if found is not None:
            why = _against(found, protocol, internal)
            return found if why is None else Denied(found.name, why)
        placement = self._reservations.placements.get(context)
        if placement is not None and placement.server.links:
            shape = self._farm.shapes.get(context)
            full = shape is not None and 0 <= shape.room <= len(placement.reservations)
            if shape is None or not full or not shape.cloned:
                why = CONTEXT_FULL if full else _against_placement(placement, protocol, internal)
                return placement if why is None else Denied(context, why)
        server = self._farm.openings.first(family(context), protocol, internal)
        if server is None:
            return Denied(context, NO_SERVER)
        self._farm.openings.placed(server)
        return self._reservations.place(context, server)


def _against_placement(placement: Placement, protocol: str, internal: bool) -> str | None:
    """Why nobody, or not he, may go where a context will be opened."""
    server = placement.server
    if server.families.get(family(placement.name), False) and not internal:
        return NO_SERVER
    if server.full:
        return SERVER_FULL
    return None if protocol in server.addresses else NO_PROTOCOL


def _against(context: OpenContext, protocol: str, internal: bool) -> str | None:
    """Why nobody, or not he, may enter an open context."""
    if context.restricted and not internal:
        return NO_SERVER
    if context.gate is not None:
        return context.gate
    if context.full:
        return CONTEXT_FULL
    if context.server.full:
        return SERVER_FULL
    return None if protocol in context.server.addresses else NO_PROTOCOL
