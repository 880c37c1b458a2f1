"""The values of the section ``[dns]``."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Dns:
    """DNS: services by name, for any program. Times in seconds."""

    enabled: bool = False
    endpoint: str = "tcp:9053:interface=127.0.0.1"
    """Endpoint of both UDP and TCP. Port 0 takes a free one."""
    auth: Literal["open"] | None = None
    """DNS has no authentication. None: open on loopback; elsewhere it must be given."""
    domain: str = "elkobroker."
    """The domain below which the names are."""
    ttl: int = 5
    """Time for which resolvers may keep a response, negative ones as well."""
    response_rate: float = 50.0
    """Responses by UDP that one address gets in a second; its network (/24, /56) gets four times as many. 0: no
    limit."""
    response_burst: int = 200
    """Responses that one address may get at once before ``response_rate`` counts."""
    limit_loopback: bool = False
    """``response_rate`` counts for addresses of this machine as well."""
    connections: int = 2_000
    """Open TCP connections; over it, the one that is idle for the longest time is closed."""
    connections_per_address: int = 500
    """Those of one address; further ones are closed. 0: no bound."""
    idle: float = 10.0
    """Time between two queries on a connection; then it is closed."""
    stalled_after: float = 30.0
    """Time in which a client must read something of what it was sent."""
