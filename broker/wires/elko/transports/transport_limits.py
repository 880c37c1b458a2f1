"""Limits of the Elko transports, as frozen values: pure data, without Twisted."""

from __future__ import annotations

import attrs

from broker.config.key import bytes_key, seconds_key
from broker.net.connection_limits import ConnectionLimits


# Without slots, since `TransportLimits` inherits from both and from a class with slots.
@attrs.frozen(slots=False)
class LongPollLimits:
    """Limits of sessions over HTTP long polling. Times in seconds."""

    http_timeout: float = seconds_key(
        15.0, "Time that a session over http may last without a request.", within=(1, 86_400)
    )
    http_select_wait: float = seconds_key(
        50.0,
        "Time after which a select over http is answered without messages. Proxies give up after 60 s by default.",
        within=(1, 3_600),
    )


@attrs.frozen(slots=False)
class RtcpLimits:
    """Limits of sessions over RTCP. Sizes in bytes, times in seconds."""

    rtcp_timeout: float = seconds_key(
        60.0,
        "Silence after which an rtcp peer is considered gone. The broker sends something at least every half of that.",
        within=(2, 86_400),
    )
    rtcp_disconnected: float = seconds_key(
        30.0, "Time that an rtcp session waits for its peer to connect again.", within=(0, 86_400)
    )
    rtcp_backlog: int = bytes_key(
        64_000, "Output that an rtcp peer may leave unacknowledged, before its session ends.", within=(1_024, 1024**3)
    )


@attrs.frozen
class TransportLimits(RtcpLimits, LongPollLimits, ConnectionLimits):
    """Limits of one Elko listener with any transport: each transport reads its own base class."""
