"""Placement: the choice of a context and server for each reservation, or the reason to deny it.

Rules:
- A context that is open by the requested name is chosen; else a clone with room in the clone set of that name, whose
  name then replaces it; else the context is placed on the server with the least load, where its first user opens it.
- Until it is open, all requests for it are sent to the same server. For a clone set, only as many as one clone has room
  for; the next request begins a further placement.
- The capacity of a context or clone is known while it is open, and remembered afterwards (`farm_tables.CapacityHints`).
- A user that requests the same context again keeps their place, as long as it admits them: their own reservation never
  stands in their way. Each granted request has a token of its own; a denied one changes nothing.
- A placement adds the estimated load of a context to its server. Joining an open context or a placement does not.
- The server receives the reservation before the requester does.
- A server with a failing health check gets new contexts and clones only if no other server can take them; by the policy
  "hide", not even then, and contexts that are open there admit no further users.
"""

from __future__ import annotations

import secrets

from broker.core.director.director_interfaces import SERVER_FAILING, Denied, DoReserve, Granted, Request
from broker.core.director.farm import Farm
from broker.core.director.farm_state import (
    MAX_EXPECTED_USERS,
    MAX_RESERVATIONS,
    MAX_RESERVATIONS_EACH,
    TOKEN_BITS,
    Holder,
    OpenContext,
    Placement,
    Reservation,
    ReservationPlace,
    Server,
    family,
)
from broker.core.director.reservations import Reservations
from broker.core.errors import Refusal
from broker.core.model import Policy, check_name

NO_SERVER = "unable to find suitable server"
CONTEXT_FULL = "requested context full"
SERVER_FULL = "server full"
NO_PROTOCOL = "requested protocol not available"


def check_names(request: Request) -> None:
    """Raise `Refusal` PARAMETER if a name in a request is empty or too long."""
    check_name("context", request.context)
    check_name("protocol", request.protocol)
    if request.user is not None:
        check_name("user", request.user)


class Placer:
    """Makes reservations, and counts granted and denied requests."""

    def __init__(self, farm: Farm, reservations: Reservations) -> None:
        self._farm = farm
        self._reservations = reservations
        self.granted = 0
        self.denied = 0

    def reserve(self, request: Request) -> Granted:
        """Reserve a place at once, for a request with valid names; see `IDirector.reserve`."""
        protocol, context, user, internal = request.protocol, request.context, request.user, request.internal
        most = MAX_RESERVATIONS_EACH if internal else request.most
        holder = _holder(request)
        quotas = self._reservations.quotas
        try:
            own = quotas.check(holder, context, request.requester, most, len(self._reservations))
        except Refusal:
            self.denied += 1
            raise
        # This may end ``own``, if it is on a departed server; `_keeps` then refuses the place.
        found = self._farm.open_context(context)
        try:
            place = self._choose(found, own, protocol, context, internal)
        except Denied:
            self.denied += 1
            # `open_context` may have closed a context of a departed server: its notices are due.
            self._farm.notifier.deliver()
            raise
        self.granted += 1
        server = place.server
        self._reservations.book(place, context, user, holder, request.requester)
        # Decimal text: see "reserve" in docs/protocols/elko-director.md.
        token = str(secrets.randbits(TOKEN_BITS))
        self._farm.notifier.add(server.newest, DoReserve(place.name, user, token))
        self._farm.notifier.deliver()
        return Granted(place.name, server.addresses[protocol], token)

    def enter(self, request: Request, granted: Granted) -> None:
        """Enter a reservation that another director has granted, if its server is known."""
        server = self._farm.server_at(request.protocol, granted.hostport)
        if server is None or len(self._reservations) >= MAX_RESERVATIONS:
            return
        place: ReservationPlace | None = server.contexts.get(granted.context)
        if place is None:
            if granted.context not in server.placements:
                self._farm.selection.placed(server)
            place = self._reservations.place(granted.context, server)
        self._reservations.book(place, request.context, request.user, _holder(request), request.requester)

    def _choose(
        self, found: OpenContext | None, own: Reservation | None, protocol: str, context: str, internal: bool
    ) -> ReservationPlace:
        """Return the place for a user who has the reservation ``own``, or none, for this context.

        ``found`` is the context if it is open. Raises `Denied`.
        """
        if found is None and own is not None and self._keeps(own, protocol, context, internal):
            return own.place
        spare: ReservationPlace | None = None
        if found is None:
            clones = self._farm.presence.sets.get(context)
            if clones is not None:
                found = clones.first(protocol)
                if found is not None and self._failing(found.server):
                    # A further clone on another server is better than a clone whose server does not answer.
                    spare, found = found, None
        if found is not None:
            return self._admitted(found, own, protocol, internal)
        placement = self._reservations.placements.get(context)
        if placement is not None and placement.server.links:
            full, cloned = self._shaped(placement, own)
            # A full placement of a clone set falls through to a further placement; a context without clones is denied.
            if not full or not cloned:
                if not self._failing(placement.server):
                    if full:
                        raise Denied(context, CONTEXT_FULL)
                    return self._admitted(placement, own, protocol, internal)
                # The context is not open there yet, and can still be opened elsewhere.
                spare = spare or placement
        server = self._farm.selection.first(family(context), protocol, internal)
        if spare is not None and (server is None or self._failing(server)):
            return self._admitted(spare, own, protocol, internal)
        if server is None:
            raise Denied(context, NO_SERVER)
        self._farm.selection.placed(server)
        return self._reservations.place(context, server)

    def _admitted(
        self, place: ReservationPlace, own: Reservation | None, protocol: str, internal: bool
    ) -> ReservationPlace:
        """Return an open context or a placement that admits the user. Raises `Denied` if it does not."""
        why = SERVER_FAILING if self._farm.selection.policy_of(place.server) is Policy.HIDE else None
        if isinstance(place, OpenContext):
            why = why or _against(place, own, protocol, internal)
        elif isinstance(place, Placement):
            why = why or _against_placement(place, own, protocol, internal)
        if why is not None:
            raise Denied(place.name, why)
        return place

    def _failing(self, server: Server) -> bool:
        """Return True if a server's health check fails and its policy prefers other servers."""
        return self._farm.selection.policy_of(server) is not Policy.SHOW

    def _keeps(self, own: Reservation, protocol: str, context: str, internal: bool) -> bool:
        """Return True if the place of the user's reservation admits them again, though the context is not open.

        Never for a departed server, which has no addresses, nor for one with a failing health check.
        """
        place = own.place
        if self._failing(place.server):
            return False
        # The requested name is that of a clone set, and the place one of its clones.
        if isinstance(place, OpenContext):
            inviting = place.basecap < 0 or len(place.users) + _others(place, own) < place.basecap
            return inviting and not place.hidden and _against(place, own, protocol, internal) is None
        if place.name != context or not isinstance(place, Placement):
            return False
        full, _ = self._shaped(place, own)
        return not full and _against_placement(place, own, protocol, internal) is None

    def _shaped(self, placement: Placement, own: Reservation | None) -> tuple[bool, bool]:
        """Return two flags: the placement is full by its capacity hint; it belongs to a clone set.

        At least one reservation is always admitted, so that a capacity that was raised meanwhile becomes known.
        """
        shape = self._farm.capacity_hints.get(placement.name)
        if shape is None:
            return False, False
        return shape.room >= 0 and max(1, shape.room) <= _others(placement, own), shape.cloned


def _holder(request: Request) -> Holder:
    """Return the user of a request; the tuple keeps an anonymous connection distinct from every name."""
    return request.user if request.user is not None else None if request.internal else (request.requester,)


def _others(place: ReservationPlace, own: Reservation | None) -> int:
    """Return the number of reservations at a place, except ``own``."""
    count = len(place.reservations)
    return count - 1 if own is not None and own.place is place else count


def _server_full(server: Server, own: Reservation | None) -> bool:
    """Return True if a server admits no user besides its present and expected ones."""
    taken = server.users + server.reserved
    if own is not None and own.place.server is server:
        taken -= 1
    return 0 <= server.capacity <= taken


def _against_placement(placement: Placement, own: Reservation | None, protocol: str, internal: bool) -> str | None:
    """Return the reason why a placement does not admit the user, or None."""
    server = placement.server
    if server.families.get(family(placement.name), False) and not internal:
        return NO_SERVER
    if _others(placement, own) >= MAX_EXPECTED_USERS:
        return CONTEXT_FULL
    if server.capacity >= 0 and _server_full(server, own):
        return SERVER_FULL
    return None if protocol in server.addresses else NO_PROTOCOL


def _against(context: OpenContext, own: Reservation | None, protocol: str, internal: bool) -> str | None:
    """Return the reason why an open context does not admit the user, or None."""
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
