"""Limits of the director's tables, each with its unit and reason.

Limits that are configured are in `DirectorSettings`. docs/protocols/elko-director.md lists these, and a test compares
both.
"""

from __future__ import annotations

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
"""Users on one server. It bounds the cost of a server's end without `cleanup` to some 45 ms, and its memory to some 10
MB."""

MAX_RESERVATIONS = 200_000
"""Unused reservations in all: 6,000 a second that are never used; some 100 MB."""

MAX_RESERVATIONS_EACH = 10_000
"""Unused reservations of one Context Server's connection, which may send all its users elsewhere at once. The limit of
other connections is configured for their listener."""

MAX_EXPECTED_USERS = MAX_USERS_IN_CONTEXT
"""Users of one context, and reservations for it, together: more could not be reported. It bounds the cost of moving the
reservations when the context opens or closes, which happens at once: some 5 ms."""

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
