"""The reservations of each user and of each connection, and how many of them they may have.

Rules:
- A user has one reservation for a context at most, whichever connection asked for it: the newest, which replaces the
  older one. "For a context" means for the name that was asked for, or for that of the clone that was chosen.
- An anonymous user is their connection. Those of a Context Server are many users: none replaces another.
- A connection has so many reservations that nobody used, a user so many, and all together so many. What is over it is
  refused. But any connection may ask under any user's name: so a user is not refused for what other connections asked
  for; the oldest of those is replaced.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence

from broker.core.director.limits import MAX_RESERVATIONS
from broker.core.director.state import Holder, Reservation
from broker.core.errors import Reason, Refusal

_NONE: Mapping[str, Reservation] = {}


class ReservationQuotas:
    """All reservations, by their users and by the connections that asked. ``each_user``: how many one user may have."""

    def __init__(self, each_user: int) -> None:
        self.each_user = each_user
        self._held: dict[Holder, dict[str, Reservation]] = {}
        """Those of each user, the oldest first, by the names that were asked for and told: mostly one and the same."""
        self._requesters: dict[Hashable, int] = {}

    def held(self, holder: Holder) -> Mapping[str, Reservation]:
        """The reservations of a user, by the names of the contexts."""
        return self._held.get(holder, _NONE)

    def check(
        self, holder: Holder, context: str, requester: Hashable, most: int, everything: int
    ) -> Reservation | None:
        """The reservation that a user has for this context, if there is one.

        Raises `Refusal` LIMIT if a connection, which may have ``most`` reservations, may not make one for that user.
        ``everything`` is how many there are in all.
        """
        held = self._held.get(holder, _NONE)
        own = held.get(context)
        mine = self._requesters.get(requester, 0)
        if mine >= most and (own is None or own.requester != requester):
            raise _too_many(f"this connection has {mine}")
        if own is not None:
            return own
        if everything >= MAX_RESERVATIONS:
            raise _too_many(f"the director has {everything}")
        if len(held) >= self.each_user and isinstance(holder, str):
            count = sum(each.requester == requester for each in set(held.values()))
            if count >= self.each_user:
                raise _too_many(f"this user has {count}")
        return None

    def replaced_by(self, new: Reservation) -> Sequence[Reservation]:
        """The reservations that a new one, which is not added yet, takes the place of."""
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
        """A reservation is made, and those that it replaces are removed."""
        if reservation.holder is not None:
            held = self._held.setdefault(reservation.holder, {})
            held[reservation.asked] = held[reservation.name] = reservation
        requester = reservation.requester
        self._requesters[requester] = self._requesters.get(requester, 0) + 1

    def remove(self, reservation: Reservation) -> None:
        """A reservation has ended."""
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


def _too_many(these: str) -> Refusal:
    return Refusal(Reason.LIMIT, f"too many reservations: {these} that nobody has used yet")
