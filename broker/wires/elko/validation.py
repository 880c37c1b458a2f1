"""Checks of the sections ``[elko]`` and ``[director]``."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from broker.config.checks import MAX_LABEL, MAX_SUFFIX, hostport, listens, printable
from broker.config.problem import Problem, in_ranges
from broker.wires.elko.config import BrokerListener, Director, DirectorListener, Elko
from broker.wires.elko.validate_transport import transport_problems

CONNECTION_RANGES: dict[str, tuple[float, float]] = {
    # A connection takes a file descriptor, of which the kernel gives a process at most a million.
    "connections": (1, 1_000_000),
    "connections_per_address": (0, 1_000_000),
    "rate": (0, 1_000_000),
    # With 0 no peer could connect.
    "burst": (1, 1_000_000),
    "authenticate_within": (0, 86_400),
    # A buffer below one full reply would disconnect well-behaved peers.
    "write_buffer": (4_096, 1024 * 1024 * 1024),
    # With 0 a peer would be disconnected at its first full buffer.
    "stalled_after": (0.1, 86_400),
    # A shorter time is over before the next request of a browser arrives.
    "http_timeout": (1, 86_400),
    "http_select_wait": (1, 3_600),
    "rtcp_timeout": (2, 86_400),
    "rtcp_disconnected": (0, 86_400),
    # Room for a few messages at least.
    "rtcp_backlog": (1_024, 1024 * 1024 * 1024),
}
"""The minimum and maximum of each limit, in the units of `ConnectionLimits`."""

RANGES = {**CONNECTION_RANGES, "waits": (0, 100_000), "services": (0, 100_000)}
"""The same for `BrokerLimits`."""

DIRECTOR_LIMITS = {**CONNECTION_RANGES, "watches": (0, 1_000), "reservations": (1, 10_000)}
"""The same for `DirectorLimits`."""

DIRECTOR_RANGES: dict[str, tuple[float, float]] = {
    "providers": (1, 1_000_000),
    # A load is a fraction of a server's time; one context takes all of it at most.
    "load_bump": (0, 1),
    # No user arrives in less than a second, and none waits for more than an hour.
    "reservation": (1, 3_600),
    # `ReservationQuotas` scans all reservations of a user who has too many.
    "user_reservations": (1, 100),
}
"""The minimum and maximum of each number in `Director`, in its units."""

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


def elko_problems(elko: Elko) -> Iterator[Problem]:
    """Yield the errors in the Elko Broker's section. Reads the TLS files that endpoints name."""
    yield from _listeners("elko.listeners", elko.listeners)


def director_problems(director: Director) -> Iterator[Problem]:
    """Yield the errors in the Elko Director's section. Reads the TLS files that endpoints name."""
    yield from printable("director.service", director.service, MAX_SUFFIX)
    yield from in_ranges("director", director, DIRECTOR_RANGES)
    yield from _listeners("director.listeners", director.listeners)


def _listeners(key: str, listeners: Sequence[BrokerListener | DirectorListener]) -> Iterator[Problem]:
    names: dict[str, str] = {}
    for index, listener in enumerate(listeners):
        here = f"{key}[{index}]"
        if not listener.name:
            yield Problem(f"{here}.name", "is empty")
        elif not _NAME.fullmatch(listener.name):
            yield Problem(f"{here}.name", "may have up to 64 letters, digits, dots, hyphens and underscores")
        elif listener.name in names:
            other = names[listener.name]
            yield Problem(f"{here}.name", f'the name "{listener.name}" is that of {other} too', other)
        else:
            names[listener.name] = here
        yield from _listener(here, listener)
        if isinstance(listener, BrokerListener):
            yield from in_ranges(f"{here}.limits", listener.limits, RANGES)
        else:
            yield from in_ranges(f"{here}.limits", listener.limits, DIRECTOR_LIMITS)


def _listener(here: str, listener: BrokerListener | DirectorListener) -> Iterator[Problem]:
    yield from listens(f"{here}.endpoint", listener.endpoint)
    if not listener.allow:
        roles = "client, admin or both" if isinstance(listener, BrokerListener) else "user, provider or admin"
        yield Problem(f"{here}.allow", f"allows no role; name {roles}")
    yield from transport_problems(here, listener)
    if listener.publish is not None and hostport(listener.publish) is None:
        hint = "; an IPv6 address goes in brackets" if listener.publish.count(":") > 1 else ""
        yield Problem(f"{here}.publish", f"must be host:port with a port from 1 to 65535{hint}")
    elif listener.publish is not None and len(listener.publish) > MAX_LABEL:
        yield Problem(f"{here}.publish", f"has more than {MAX_LABEL} characters")
    yield from printable(f"{here}.label", listener.label, MAX_LABEL)
