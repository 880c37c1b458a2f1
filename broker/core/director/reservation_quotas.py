"""Quotas: the unused reservations of each user and of each connection, and the limits on their numbers.

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

from collections.abc import Hashable, Mapping, Sequence

from broker.core.director.limits import MAX_RESERVATIONS
from broker.core.director.state import Holder, Reservation
from broker.core.errors import Reason, Refusal

_NONE: Mapping[str, Reservation] = {}


class ReservationQuotas:
    """All reservations by user and by requesting connection. ``each_user`` is the maximum of one user."""

    def __init__(self, each_user: int) -> None:
        self.each_user = each_user
        self._held: dict[Holder, dict[str, Reservation]] = {}
        """Reservations by user, the oldest first, under both the requested and the granted name, which are usually
        equal."""
        self._requesters: dict[Hashable, int] = {}
        self._numbers: dict[Hashable, int] = {}
        self._count = 0

    def number(self, requester: Hashable) -> int:
        """Return a number for a requester: the same one until its last reservation has ended."""
        number = self._numbers.get(requester)
        if number is None:
            self._count += 1
            number = self._numbers[requester] = self._count
        return number

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
        mine = self._requesters.get(requester, 0)
        # A reservation that replaces one of the same connection never exceeds its limit.
        if mine >= most and (own is None or own.requester != requester):
            raise _too_many(f"this connection has {mine}")
        if own is not None:
            return own
        if everything >= MAX_RESERVATIONS:
            raise _too_many(f"the director has {everything}")
        if len(held) >= self.each_user and isinstance(holder, str):
            # Only this connection's own requests count against it: others are replaced, see the rules.
            count = sum(each.requester == requester for each in set(held.values()))
            if count >= self.each_user:
                raise _too_many(f"this user has {count}")
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
            self._numbers.pop(requester, None)


def _too_many(these: str) -> Refusal:
    return Refusal(Reason.LIMIT, f"too many reservations: {these} unused ones")
