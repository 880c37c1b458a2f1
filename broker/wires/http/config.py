"""The values of the section ``[http]``."""

from __future__ import annotations

from typing import Literal

import attrs


@attrs.frozen
class Http:
    """The HTTP listener, and registration by HTTP. Sizes in bytes, times in seconds."""

    enabled: bool = True
    endpoint: str = "tcp:9080:interface=127.0.0.1"
    """As a listener's. Port 0 takes a free one."""
    auth: Literal["open", "users"] | None = None
    """``open``: peers without credentials have the rights of the anonymous user, which are all rights where there is no
    users file. ``users``: the listener opens with a users file only. None: open on loopback; elsewhere it must be
    given."""
    hosts: tuple[str, ...] = ()
    """Host names by which the listener is addressed, besides IP addresses and localhost."""
    offer: tuple[str, ...] | None = None
    """Patterns of service names that may be registered. None: all on loopback, none elsewhere."""
    services: int = 10_000
    """Registered instances."""
    services_per_user: int = 1_000
    """Those of one user, or of one address without a user. 0: no limit."""
    connections: int = 5_000
    """Open connections; beyond them, an idle one is closed, of the address with the most."""
    connections_per_address: int = 2_000
    """Those of one address. 0: no limit."""
    rate: float = 100.0
    """New connections a second of one address (loopback and unix sockets excepted). 0: no limit."""
    burst: int = 1_000
    """New connections that one address may make at once before ``rate`` applies."""
    waiting: int = 2_000
    """Answers that wait at once: finds with ``wait``, streams and WebSockets."""
    waiting_per_address: int = 1_000
    """Those of one address. 0: no limit."""
    max_body: int = 1_048_576
    """Size of the body of a request."""
    request_within: float = 30.0
    """Time from the first byte of a request to its last."""
    kept_open: float = 75.0
    """Time for which a connection without a request stays open. Load balancers keep theirs for 60 s by default, and one
    that sends a request as the other side closes gets no answer."""
    write_buffer: int = 4 * 1024 * 1024
    """Output of a stream that is pending while the peer does not read. Beyond it, the peer is disconnected."""
    stalled_after: float = 30.0
    """Time for which output may be pending while the peer reads none of it."""
