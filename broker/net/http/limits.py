"""Limits of an HTTP listener: pure data, without Twisted."""

from __future__ import annotations

import attrs

from broker.net.connection_limits import ConnectionLimits
from broker.net.http.bounds import RequestBounds


@attrs.frozen
class HttpLimits:
    """Limits of an HTTP listener: of its connections, of requests, and of answers that wait.

    ``waiting`` is the number of answers that may wait at once, for an event or as a stream; ``waiting_per_address`` the
    same for one address, 0 for no limit.
    """

    connections: ConnectionLimits
    requests: RequestBounds = attrs.Factory(RequestBounds)
    waiting: int = 1_000
    waiting_per_address: int = 200
