"""File descriptors of the process: its limit, and the connections for which they suffice."""

from __future__ import annotations

import resource

from broker.app.checks import connections_of
from broker.app.wires import descriptors, streams
from broker.config.schema import Config
from broker.core.place_table import CLOSING, Pool

WANTED = 65_536
"""File descriptors requested, within the limit of the system: one for each connection, and some more."""

SPARE = 150
"""Descriptors besides those of connections: store, listeners, pipes of launched programs, outgoing connections."""


def raise_limit() -> int:
    """Raise the limit on file descriptors as far as allowed and needed. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED if hard == resource.RLIM_INFINITY else min(WANTED, hard)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return WANTED if soft == resource.RLIM_INFINITY else soft
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted


FOR_CLOSING = 4
"""Divisor: at most a quarter of the descriptors for connections are kept for those that are closing."""


def pool(config: Config, limit: int) -> Pool:
    """Return the descriptors for the connections of all listeners together, out of the ``limit`` of the process."""
    listeners = streams(config) + config.console.enabled
    left = max(1, limit - SPARE - descriptors(config, limit) - connections_of(config.checks))
    closing = min(CLOSING, left // FOR_CLOSING // max(listeners, 1))
    return Pool(left - closing * listeners, closing)
