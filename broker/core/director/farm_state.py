"""State of the director: servers, the contexts on them, and the reservations at these.

Rules:
- The addresses, families and capacity of a server are merged from the reports of its links (`Server.settle`).
- The reporters of a context or user are a bit set, with one bit for each link of the server.
- A server without links is gone, and counts as full. Its contexts may still await their cleanup: see
  `farm_tables.Cleanup`.
- A choice that meets a full server or clone sets it aside, until it has room: no choice passes the same full one twice.

The classes keep themselves consistent; `farm`, `reservations` and `placement` change them.

Limits of the director's tables, each with its unit and reason.

Limits that are configured are in `director_interfaces.DirectorSettings`. docs/protocols/elko-director.md lists
these, and a test compares both.

The file is longer than others: servers, contexts and reservations refer to each other.
"""

from __future__ import annotations

from collections.abc import Hashable
from sys import getsizeof
from typing import Protocol

from broker.core.director.director_interfaces import UNLIMITED, ProviderLink
from broker.core.model import Policy


class RoomWaiter(Protocol):
    """A choice that has set a full server aside."""

    def take_back(self, server: Server) -> None:
        """Use the server again: it is not full any more."""


class CloneGroup(Protocol):
    """The clone set of a context; see `farm_tables.CloneSet`."""

    def refresh(self, context: OpenContext) -> None:
        """Take note of a change of the context's users, reservations, capacity or gate."""


class LinkReport:
    """The report of one link about its server: label, addresses, families and capacity."""

    __slots__ = ("addresses", "bit", "capacity", "families", "label", "link", "policy")

    def __init__(self, label: str, link: ProviderLink) -> None:
        self.label = label
        self.link = link
        self.bit = 1
        self.addresses: dict[str, str] = {}
        self.families: dict[str, bool] = {}
        """True for a restricted family, by its name."""
        self.capacity = UNLIMITED
        self.policy = Policy.SHOW
        """Place of the server in choices, by the health check of this link."""


class Server:
    """A Context Server. ``number`` counts up in the order of first connections."""

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
        "policy",
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
        """The bits of links that have ended, while the cleanup of their reports is pending."""
        self.newest: ProviderLink
        """The link over which messages are sent: the newest one, since older ones may be dead connections."""
        self.addresses: dict[str, str] = {}
        self.families: dict[str, bool] = {}
        self.capacity = UNLIMITED
        self.policy = Policy.SHOW
        """Place in choices: SHOW unless the health check of the newest link fails."""
        self.load = 0.0
        """The last reported load, and an estimate for each context that was placed here since."""
        self.weight = 0.0
        """The same, and an estimate for contexts that the report could not include: see `farm`."""
        self.contexts: dict[str, OpenContext] = {}
        """All contexts that its links report, including hidden ones."""
        self.users = 0
        """Number of users in those contexts."""
        self.shown = 0
        """Number of its contexts that are not hidden."""
        self.shown_users = 0
        """Number of users in those that are not hidden."""
        self.reserved = 0
        """Number of unused reservations."""
        self.placements: dict[str, Placement] = {}
        self.room_waiters: dict[RoomWaiter, None] = {}

    @property
    def full(self) -> bool:
        """True if the server admits no further user."""
        return 0 <= self.capacity <= self.users + self.reserved

    @property
    def key(self) -> str:
        """The key by which one of two servers keeps a context that both report."""
        # See "Two servers with one context" in docs/protocols/elko-director.md.
        return max(self.addresses.items())[1] if self.addresses else ""

    def matches(self, label: str) -> bool:
        """Return True if ``label`` is the server's label or one of its addresses."""
        return label == self.label or label in self.addresses.values()

    def admit(self, report: LinkReport) -> None:
        """Add a link, with the lowest bit that is free."""
        # Bits of links whose reports await cleanup are not reused.
        taken = self.retiring
        for other in self.links:
            taken |= other.bit
        report.bit = ~taken & (taken + 1)
        # A further link has not reported a capacity yet, and must not lift that of its server meanwhile.
        if self.links and not report.families:
            report.capacity = self.capacity
        self.links[report] = None
        self.newest = report.link

    def dismiss(self, report: LinkReport) -> None:
        """Remove a link."""
        del self.links[report]
        for newest in reversed(self.links):
            self.newest = newest.link
            break

    def settle(self) -> None:
        """Merge the reports of the links. If they differ, the newest counts."""
        self.addresses = {}
        self.families = {}
        if not self.links:
            self.capacity = 0
            return
        for report in self.links:
            self.label = report.label
            self.addresses.update(report.addresses)
            self.capacity = report.capacity
            for family, restricted in report.families.items():
                self.families[family] = restricted or self.families.get(family, False)
            self.newest = report.link
            self.policy = report.policy

    def room_made(self) -> None:
        """Return the server to the choices that have set it aside, unless it is full."""
        if self.room_waiters and not self.full:
            # Cleared before the calls: a choice may set the server aside again.
            waiting = tuple(self.room_waiters)
            self.room_waiters.clear()
            for each in waiting:
                each.take_back(self)


Holder = str | tuple[Hashable] | None
"""The user of a reservation: a name, the connection of an anonymous one, or None for one of a Context Server."""


class Reservation:
    """A place that is reserved for a user.

    ``asked`` is the requested context, ``name`` the one that the user was sent to. ``user`` is the name in the request,
    ``requester`` the connection that it came from. ``due`` is the time of expiry, in seconds of the clock.
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
    """A place at which reservations count."""

    __slots__ = ("name", "reservations", "server")

    def __init__(self, name: str, server: Server) -> None:
        self.name = name
        self.server = server
        self.reservations: dict[Reservation, None] = {}

    def changed(self) -> None:
        """Update dependent tables after a change of the number of reservations."""


class Placement(ReservationPlace):
    """A context that is not open yet, or a further clone of one: its first user will open it on that server.

    It exists as long as there are reservations for it. ``all`` has the latest placement of each name.
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
    """A context that is open on a server."""

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
        """The reporting links (a bit set) of each user in it."""
        self.maxcap = UNLIMITED
        self.basecap = UNLIMITED
        self.restricted = False
        self.yours = False
        self.gate: str | None = None
        """The reason to deny reservations, or None while the gate is open."""
        self.hidden = False
        self.closing = False
        """True if the server was sent `Close` because another server has the context open."""
        self.clone_group: CloneGroup | None = None

    @property
    def full(self) -> bool:
        """True if no further user may enter."""
        return 0 <= self.maxcap <= len(self.users) + len(self.reservations)

    @property
    def inviting(self) -> bool:
        """True if requests for any clone of its set may be sent here. A context that is never cloned always is."""
        if self.gate is not None:
            return False
        return self.basecap < 0 or (len(self.users) + len(self.reservations) < self.basecap and not self.full)

    def changed(self) -> None:
        if self.clone_group is not None:
            self.clone_group.refresh(self)


# Names of contexts and users, with their families and clone sets; see "Names" in docs/protocols/elko-director.md.


def family(context: str) -> str:
    """Return the family of a context: the part before the first dash."""
    return context.partition("-")[0]


def context_set(context: str) -> str | None:
    """Return the clone set of a context: its name up to the last dash; None with less than two dashes."""
    base = context.rpartition("-")[0]
    return base if "-" in base else None


def user_set(user: str) -> str | None:
    """Return the clone set of a user: the name up to the second dash; None with less than two dashes."""
    kind, _, rest = user.partition("-")
    name, dash, _ = rest.partition("-")
    return f"{kind}-{name}" if dash else None


def context_bytes(context: str) -> int:
    """Return the bytes that an open context takes, without its users."""
    size = CONTEXT_BYTES + getsizeof(context)
    return size if context_set(context) is None else size + CONTEXT_SET_BYTES


def user_bytes(user: str) -> int:
    """Return the bytes that a user in a context takes."""
    size = getsizeof(user)
    return USER_BYTES + size if user_set(user) is None else USER_BYTES + USER_SET_BYTES + 2 * size


MAX_LINKS = 64
"""Links of one server. A real one opens another after each restart of the broker, and closes none of the old ones."""

MAX_LATE_REPORTS = 5_000
"""Contexts and users that a link may have reported before its address assigns it to a known server: they are moved
there at once, in some 25 ms. Real servers report their addresses first."""

MAX_PROTOCOLS = 8
"""Protocols for which one server has an address: real ones have three."""

MAX_FAMILIES = 64
"""Families of contexts that one server serves: real ones have six, and those that their configuration adds."""

MAX_CONTEXTS = 10_000
"""Open contexts of one server, including hidden ones: some fifty times those of a real one; some 10 MB."""

MAX_USERS_IN_CONTEXT = 10_000
"""Users in one context. It bounds the cost of one piece of a dump to about a millisecond."""

MAX_USERS = 30_000
"""Users on one server. It bounds the cost of a server's end without `Cleanup` to some 45 ms, and its memory to some 10
MB."""

MAX_RESERVATIONS = 200_000
"""Unused reservations in all: 6,000 a second that are never used; some 100 MB."""

MAX_RESERVATIONS_EACH = 10_000
"""Unused reservations of one Context Server's connection, which may send all its users elsewhere at once. The limit of
other connections is configured for their listener."""

MAX_EXPECTED_USERS = MAX_USERS_IN_CONTEXT
"""Users of one context, and reservations for it, together: more could not be reported. It bounds the cost of moving the
reservations when the context opens or closes, which happens at once: some 5 ms."""

USER_BYTES, USER_SET_BYTES = 80, 60
"""Bytes that a user takes beside the name, and beside that of the clone set. Measured, as those below."""

CONTEXT_BYTES, CONTEXT_SET_BYTES = 500, 1_600
"""The same of a context, and of its clone set."""

SHORT_REASON = 100
"""Characters of the reason of a closed gate that count with the context; longer reasons count for themselves."""

MAX_WATCHES = 1_000
"""Contexts, and as many users, that one administrator watches: more than people can follow."""

MAX_CAPACITY_HINTS = 10_000
"""Closed contexts whose capacity is remembered; some 2 MB. The capacity of others becomes known when they open."""

TOKEN_BITS = 128
"""Random bits of a reservation: it cannot be guessed within its lifetime."""

EXPIRIES_PER_TURN = 1_000
"""Reservations that expire in one turn of the reactor: about 5 ms. The others expire in the next turns."""

MAX_PROTOCOL_PROBES = 8
"""Servers that are examined for a clone with room that speaks the requested protocol. The servers of a farm speak the
same protocols, so the first one usually matches; and the cost of a reservation must not grow with the farm."""
