"""How much of everything the director keeps, and why so much."""

from __future__ import annotations

MAX_LINKS = 64
"""Links of one server. A real one opens another after each restart of the broker, and closes none of the old ones."""

MAX_LATE_REPORTS = 5_000
"""Contexts and users that a link has reported when its address tells that it is of a known server: they are then moved
there at once, which takes some 25 ms. Real servers say their addresses first."""

MAX_PROTOCOLS = 8
"""Protocols in which one server has an address: real ones have three."""

MAX_FAMILIES = 64
"""Families of contexts that one server serves: real ones have six, and what their configuration adds."""

MAX_CONTEXTS = 10_000
"""Open contexts of one server, the hidden ones included: some fifty times what a real one holds; some 10 MB."""

MAX_USERS_IN_CONTEXT = 10_000
"""Users in one context: what one piece of a dump may cost, about a millisecond."""

MAX_USERS = 30_000
"""Users at one server: what its end may cost at once, some 45 ms; and some 10 MB."""

MAX_RESERVATIONS = 200_000
"""Reservations whose users have not come yet, in all: 6,000 a second that are never used; some 100 MB."""

MAX_RESERVATIONS_EACH = 10_000
"""The same of one Context Server's connection, which may send all its users elsewhere at once. Other connections may
have fewer, by the limits of their listener."""

MAX_EXPECTED_USERS = MAX_USERS_IN_CONTEXT
"""Users of one context, and reservations for it, together: more of them could not be reported. It bounds what it costs
to move the reservations when the context opens or closes, which happens at once: some 5 ms."""

MAX_WATCHES = 1_000
"""Contexts and users that one administrator watches: more than people can look at."""

MAX_CAPACITY_HINTS = 10_000
"""Closed contexts whose capacity is remembered; some 2 MB. Of others it is learned when they open."""

TOKEN_BITS = 128
"""Random bits of a reservation: it cannot be guessed in the time for which it is good."""

EXPIRIES_PER_TURN = 1_000
"""Reservations that expire in one turn of the reactor: about 5 ms. The others expire in the next."""

MAX_PROTOCOL_PROBES = 8
"""Servers that are looked at for a clone with room that speaks the requested protocol. Farms speak the same everywhere,
so the first one mostly does; and a reservation must not cost more where there are more servers."""
