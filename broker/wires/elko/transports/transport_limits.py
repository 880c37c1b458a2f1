"""Limits of the Elko transports, as frozen values: pure data, without Twisted."""

from __future__ import annotations

import attrs

from broker.config.key import key
from broker.net.connection_limits import ConnectionLimits


# Without slots, since `TransportLimits` inherits from both and from a class with slots.
@attrs.frozen(slots=False)
class LongPollLimits:
    """Limits of sessions over HTTP long polling. Times in seconds."""

    http_timeout: float = key(
        15.0, "Time that a session over http may last without a request.", unit="s", within=(1, 86_400), reload=True
    )
    http_select_wait: float = key(
        50.0,
        "Time after which a select over http is answered without messages. Proxies give up after 60 s by default.",
        unit="s",
        within=(1, 3_600),
        reload=True,
    )


@attrs.frozen(slots=False)
class RtcpLimits:
    """Limits of sessions over RTCP. Sizes in bytes, times in seconds."""

    rtcp_timeout: float = key(
        60.0,
        "Silence after which an rtcp peer is considered gone. The broker sends something at least every half of that.",
        unit="s",
        within=(2, 86_400),
        reload=True,
    )
    rtcp_disconnected: float = key(
        30.0,
        "Time that an rtcp session waits for its peer to connect again.",
        unit="s",
        within=(0, 86_400),
        reload=True,
    )
    rtcp_backlog: int = key(
        64_000,
        "Output that an rtcp peer may leave unacknowledged, before its session ends.",
        unit="bytes",
        within=(1_024, 1024**3),
        reload=True,
    )


@attrs.frozen
class TransportLimits(RtcpLimits, LongPollLimits, ConnectionLimits):
    """Limits of one Elko listener with any transport: each transport reads its own base class."""
