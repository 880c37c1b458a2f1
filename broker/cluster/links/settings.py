"""Settings and limits of links."""

from __future__ import annotations

import attrs

from broker.config.zmq_endpoint import ZEndpoint
from broker.core.backoff import Backoff
from broker.net.interfaces.limits import RouterLimits

WIRE = "cluster_links"
"""Name of the listener in counters and logs."""

PING_EVERY = 1.0
"""Seconds between two PINGs of each side."""

SILENCE = 3.0
"""Seconds without any message after which a link ends, on the clock that excludes stalls of this broker: three PINGs
are lost. With the pause of that clock a stopped broker is noticed within five seconds."""

CONNECT_WITHIN = 3.0
"""Seconds for a connection of TCP: a host that is off does not answer at all."""

AGAIN = Backoff(first=0.1, most=5.0, jitter=0.5)
"""Pauses between two attempts. The first one is short: after the start of a member, its neighbours may try before their
watch has shown each other's keys. The longest one delays a link after a partition by as much at most."""

STEADY = 10.0
"""Seconds after which an open link is taken for a success: a link that ends earlier counts as one more failure, so that
a pair that cannot agree does not connect ten times a second."""

MAX_CHANNEL = 32
"""Bytes of the name of a channel."""

LIMITS = RouterLimits(
    # Members, their replacements after a loss, and strangers until their handshake fails.
    connections=1_000,
    # A broker has one connection to each other. More come from one address if several brokers are on one machine.
    connections_per_address=100,
    # A burst of messages of topics, of one turn of the reactor or of a short pause of the neighbour.
    high_water=10_000,
)
"""Limits of the listener. The frame has the size of the largest one of all wires, 16 MiB: a message that a peer may
publish can travel."""


@attrs.frozen
class LinkSettings:
    """Settings of the links of a broker.

    ``endpoint`` is where the other brokers connect. ``secret_key`` is the CURVE secret key in Z85; without one, links
    are neither encrypted nor authenticated, which is possible on the loopback interface only.
    """

    endpoint: ZEndpoint
    secret_key: str | None = attrs.field(default=None, repr=False)
    limits: RouterLimits = LIMITS
    again: Backoff = AGAIN
