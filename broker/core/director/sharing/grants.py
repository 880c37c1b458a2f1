"""Reservations that directors share, so that capacities and limits hold for all of them together.

Rules:
- A director sends each grant to the others, and each ends its copy by itself: when its user arrives, when its time is
  over, or when another grant replaces it.
- Of two grants that replace each other, and were made at the same time, the later one in the order of `Origin` counts.
- Two directors may place the same context on two servers at the same time. From the moment at which they know of each
  other, all place it on the server that would keep it if both opened it (`farm`).
- A snapshot contains the director's own grants, those of its recipient, which may have been restarted, and those of
  brokers that cannot be reached: so a director that is back has its reservations.
- A reservation for a server that is not known yet waits for that server.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterator
from secrets import randbits

from twisted.internet.interfaces import IReactorTime

from broker.core.director.farm import Farm, beats
from broker.core.director.farm_state import (
    MAX_RESERVATIONS,
    Holder,
    Origin,
    Placement,
    Reservation,
    ReservationPlace,
    Server,
)
from broker.core.director.reservations import Reservations
from broker.core.director.sharing.outgoing import Outgoing
from broker.core.director.sharing.records import MAX_WAITING_GRANTS, Grant


class SharedGrants:
    """Grants of this director for the others, and theirs; `broker.core.director.placement.Grants`."""

    def __init__(self, clock: IReactorTime, farm: Farm, reservations: Reservations, outgoing: Outgoing) -> None:
        self.instance = randbits(53)
        """Random number of this start."""
        self._clock = clock
        self._farm = farm
        self._reservations = reservations
        self._outgoing = outgoing
        self._numbers = 0
        self._stamp = 0
        self._waiting: dict[tuple[str, str], dict[tuple[str, int, int], tuple[float, Grant]]] = {}
        """Grants for unknown servers, by address and identity, with the time at which each expires."""
        self._count = 0
        self.latest: Reservation | None = None
        """The last grant of this director."""
        self.dropped = 0
        """Grants of others that could not be taken."""

    # Own grants

    def origin(self, requester: Hashable, protocol: str, hostport: str) -> Origin:
        """Return the origin of the next grant."""
        self._numbers += 1
        self._stamp += 1
        number = self._reservations.quotas.number(requester)
        return Origin(self._farm.here, self.instance, self._numbers, self._stamp, number, protocol, hostport)

    def granted(self, reservation: Reservation) -> None:
        """Send a grant to the others."""
        self.latest = reservation
        record = self._record(reservation)
        if record is not None:
            self._outgoing.add(0, record)

    def describe(self, broker: str, linked: Collection[str]) -> Iterator[Grant]:
        """Yield the grants in a snapshot for a broker; ``linked`` are the brokers that send theirs themselves."""
        own = self._farm.here
        for reservation in tuple(self._reservations):
            origin = reservation.origin
            if origin is None or not (origin.broker in (own, broker) or origin.broker not in linked):
                continue
            # It may have ended between two pieces.
            if self._reservations.shared.get(origin.identity) is reservation:
                record = self._record(reservation)
                if record is not None:
                    yield record

    def _record(self, reservation: Reservation) -> Grant | None:
        origin = reservation.origin
        if origin is None:
            return None
        return Grant(
            origin.broker,
            origin.instance,
            origin.number,
            origin.stamp,
            origin.requester,
            origin.protocol,
            origin.hostport,
            reservation.name,
            reservation.asked,
            reservation.user,
            reservation.user is None and reservation.holder is not None,
            reservation.due - self._clock.seconds(),
        )

    # Grants of others

    def take(self, grant: Grant) -> None:
        """Take a grant of another director, or one of this director from before its restart."""
        self._stamp = max(self._stamp, grant.stamp)
        identity = grant.broker, grant.instance, grant.number
        if grant.left <= 0 or identity in self._reservations.shared:
            return
        if not (grant.name and grant.asked) or len(self._reservations) >= MAX_RESERVATIONS:
            self.dropped += 1
            return
        server = self._farm.server_at(grant.protocol, grant.hostport)
        if server is None:
            self._wait(identity, grant)
        else:
            self._book(server, grant)

    def server_known(self, protocol: str, hostport: str) -> None:
        """Book the reservations that waited for a server with this address."""
        waiting = self._waiting.pop((protocol, hostport), None)
        if waiting is None:
            return
        self._count -= len(waiting)
        now = self._clock.seconds()
        server = self._farm.server_at(protocol, hostport)
        for due, grant in waiting.values():
            if server is not None and due > now and grant_identity(grant) not in self._reservations.shared:
                self._book(server, grant, due - now)

    def _wait(self, identity: tuple[str, int, int], grant: Grant) -> None:
        if self._count >= MAX_WAITING_GRANTS:
            self._expire_waiting()
        if self._count >= MAX_WAITING_GRANTS:
            self.dropped += 1
            return
        waiting = self._waiting.setdefault((grant.protocol, grant.hostport), {})
        if identity not in waiting:
            self._count += 1
        waiting[identity] = self._clock.seconds() + min(grant.left, self._reservations.seconds), grant

    def _expire_waiting(self) -> None:
        now = self._clock.seconds()
        for address, waiting in tuple(self._waiting.items()):
            left = {identity: each for identity, each in waiting.items() if each[0] > now}
            self._count -= len(waiting) - len(left)
            if left:
                self._waiting[address] = left
            else:
                del self._waiting[address]

    def _book(self, server: Server, grant: Grant, left: float | None = None) -> None:
        origin = Origin(
            grant.broker,
            grant.instance,
            grant.number,
            grant.stamp,
            grant.requester,
            grant.protocol,
            grant.hostport,
        )
        # A connection of another director, or of this one before its restart.
        requester = grant.broker, grant.instance, grant.requester
        holder: Holder = grant.user if grant.user is not None else (requester,) if grant.anonymous else None
        if self._reservations.superseded(origin, {grant.name, grant.asked}, holder):
            self._reservations.replaced += 1
            return
        place = self._place(server, grant.name)
        remaining = grant.left if left is None else left
        self._reservations.book(place, grant.asked, grant.user, holder, requester, origin, remaining)

    def _place(self, server: Server, name: str) -> ReservationPlace:
        context = server.contexts.get(name)
        if context is not None:
            return context
        placement = server.placements.get(name)
        if placement is not None:
            return placement
        rival = self._reservations.placements.get(name)
        placement = Placement(name, server, self._reservations.placements)
        if rival is not None and rival.server.links and not beats(server, rival.server):
            self._reservations.placements[name] = rival
        self._farm.selection.placed(server)
        return placement


def grant_identity(grant: Grant) -> tuple[str, int, int]:
    """Return the identity of a grant, as `Origin.identity`."""
    return grant.broker, grant.instance, grant.number
