"""What the director keeps of servers, of the contexts at them, and of the places that are reserved there.

Rules:
- What a server has in all (its addresses, families, capacity) is made of what its links have said (`Server.settle`).
- Who reports a context, or a user in it, is a set of bits, one for each link of the server.
- A server without links is gone, and full. What it had may still be put away: see `clearing`.
- A server or a clone that is full is put aside by whoever meets it while choosing, and returns when it has room: a
  choice never passes by the same full one twice.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from broker.core.director.interfaces import UNLIMITED, ProviderLink


class RoomWaiter(Protocol):
    """Who has put a full server aside."""

    def take_back(self, server: Server) -> None:
        """The server is not full any more."""


class CloneGroup(Protocol):
    """The set of clones that a context belongs to."""

    def refresh(self, context: OpenContext) -> None:
        """How many are in the context, or may be, has changed."""


class LinkReport:
    """What one link has said of its server."""

    __slots__ = ("addresses", "bit", "capacity", "families", "label", "link")

    def __init__(self, label: str, link: ProviderLink) -> None:
        self.label = label
        self.link = link
        self.bit = 1
        self.addresses: dict[str, str] = {}
        self.families: dict[str, bool] = {}
        """Each with whether it is restricted."""
        self.capacity = UNLIMITED


class Server:
    """A Context Server. ``number`` counts up in the order of their first connections."""

    __slots__ = (
        "addresses",
        "capacity",
        "contexts",
        "families",
        "label",
        "links",
        "load",
        "newest",
        "number",
        "placements",
        "reserved",
        "retiring",
        "room_waiters",
        "shown",
        "shown_users",
        "users",
        "weight",
    )

    def __init__(self, number: int) -> None:
        self.number = number
        self.label = ""
        self.links: dict[LinkReport, None] = {}
        self.retiring = 0
        """The bits of links that are gone, while what they have reported is put away."""
        self.newest: ProviderLink
        """The link over which it is told things: the one that is the most likely to live."""
        self.addresses: dict[str, str] = {}
        self.families: dict[str, bool] = {}
        self.capacity = UNLIMITED
        self.load = 0.0
        """What it reported last, and an estimate for each context that was placed there since."""
        self.weight = 0.0
        """The same, and what it could not know of when it reported: see `loads`."""
        self.contexts: dict[str, OpenContext] = {}
        """All that its links report, the hidden ones included."""
        self.users = 0
        """How many are in those contexts."""
        self.shown = 0
        """How many of the contexts are not hidden."""
        self.shown_users = 0
        """How many are in those."""
        self.reserved = 0
        """How many have a reservation and have not come yet."""
        self.placements: dict[str, Placement] = {}
        self.room_waiters: dict[RoomWaiter, None] = {}

    @property
    def full(self) -> bool:
        """Whether it takes nobody else."""
        return 0 <= self.capacity <= self.users + self.reserved

    @property
    def key(self) -> str:
        """What decides which of two servers keeps a context that both have open."""
        return max(self.addresses.items())[1] if self.addresses else ""

    def matches(self, label: str) -> bool:
        """Whether this is its label, or one of its addresses."""
        return label == self.label or label in self.addresses.values()

    def admit(self, report: LinkReport) -> None:
        """One more link of it."""
        taken = self.retiring
        for other in self.links:
            taken |= other.bit
        report.bit = ~taken & (taken + 1)
        if self.links and not report.families:
            report.capacity = self.capacity
        self.links[report] = None
        self.newest = report.link

    def dismiss(self, report: LinkReport) -> None:
        """One link less."""
        del self.links[report]
        for newest in reversed(self.links):
            self.newest = newest.link
            break

    def settle(self) -> None:
        """Make of what its links have said what holds now. Where they differ, the newest is right."""
        self.addresses = {}
        self.families = {}
        if not self.links:
            self.capacity = 0
        for report in self.links:
            self.label = report.label
            self.addresses.update(report.addresses)
            self.capacity = report.capacity
            for family, restricted in report.families.items():
                self.families[family] = restricted or self.families.get(family, False)

    def room_made(self) -> None:
        """Fewer are there than before, or more may be: whoever put it aside may choose it again."""
        if self.room_waiters and not self.full:
            waiting = tuple(self.room_waiters)
            self.room_waiters.clear()
            for each in waiting:
                each.take_back(self)


Holder = str | tuple[Hashable] | None
"""The user that a reservation is for: a name, the connection of an anonymous one, or None for one without either."""


class Reservation:
    """A place that is kept for a user.

    ``asked`` is the context that was asked for, ``name`` the one that the user was told to enter. ``user`` is the name
    in the request, ``requester`` the connection that it came from. ``due`` is when the place is kept no longer.
    """

    __slots__ = ("asked", "due", "holder", "name", "place", "requester", "user")

    def __init__(
        self,
        place: ReservationPlace,
        name: str,
        asked: str,
        user: str | None,
        holder: Holder,
        requester: Hashable,
        due: float,
    ) -> None:
        self.place = place
        self.name = name
        self.asked = asked
        self.user = user
        self.holder = holder
        self.requester = requester
        self.due = due


class ReservationPlace:
    """Where reservations are counted."""

    __slots__ = ("name", "reservations", "server")

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self.server = server
        self.reservations: dict[Reservation, None] = {}

    def changed(self) -> None:
        """There are more or fewer reservations."""


class Placement(ReservationPlace):
    """A context that is not open yet, or a further clone of one: its first user will open it at that server.

    It lasts as long as there are reservations for it. ``all`` has the latest placement of each name.
    """

    __slots__ = ("_all",)

    def __init__(self, name: str, server: Server, all: dict[str, Placement]) -> None:
        super().__init__(name, server)
        self._all = all
        server.placements[name] = all[name] = self

    def changed(self) -> None:
        if not self.reservations:
            self.server.placements.pop(self.name, None)
            if self._all.get(self.name) is self:
                del self._all[self.name]


class OpenContext(ReservationPlace):
    """A context that is open at a server."""

    __slots__ = (
        "basecap",
        "clone_group",
        "closing",
        "gate",
        "hidden",
        "maxcap",
        "reporters",
        "restricted",
        "users",
        "yours",
    )

    def __init__(self, name: str, server: Server) -> None:
        super().__init__(name, server)
        self.reporters = 0
        self.users: dict[str, int] = {}
        """Who is in it, and which links report him."""
        self.maxcap = UNLIMITED
        self.basecap = UNLIMITED
        self.restricted = False
        self.yours = False
        self.gate: str | None = None
        """Why nobody may enter; None while the gate is open."""
        self.hidden = False
        self.closing = False
        """Whether the server was told to close it, because another has it open."""
        self.clone_group: CloneGroup | None = None

    @property
    def full(self) -> bool:
        """Whether nobody else may enter."""
        return 0 <= self.maxcap <= len(self.users) + len(self.reservations)

    @property
    def inviting(self) -> bool:
        """Whether it is chosen for those who want any clone of its set. One that is never cloned always is."""
        if self.gate is not None:
            return False
        return self.basecap < 0 or (len(self.users) + len(self.reservations) < self.basecap and not self.full)

    def changed(self) -> None:
        if self.clone_group is not None:
            self.clone_group.refresh(self)
