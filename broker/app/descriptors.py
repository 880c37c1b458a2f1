"""File descriptors of the process: its limit, and the connections for which they suffice."""

from __future__ import annotations

import resource

from broker.app.checks import connections_of
from broker.app.wires import descriptors, streams
from broker.config.schema import Config
from broker.core.session_table import CLOSING

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


def room(config: Config, limit: int) -> int:
    """Return the connections that all listeners together may have, so that there are descriptors for all of the
    ``limit``."""
    listeners = streams(config) + config.console.enabled
    spare = SPARE + descriptors(config, limit) + connections_of(config.checks) + CLOSING * listeners
    return max(1, limit - spare)
