"""Limits of the transports that carry Elko messages, as frozen values: pure data, without Twisted."""

from __future__ import annotations

import attrs

from broker.net.interfaces.limits import ConnectionLimits


# Without slots: `TransportLimits` inherits from both, and from a class with slots.
@attrs.frozen(slots=False)
class LongPollLimits:
    """Limits of sessions over HTTP long polling. Times in seconds."""

    http_timeout: float = 15.0
    """Time that a session over HTTP may go without a request of its peer."""
    http_select_wait: float = 60.0
    """Time after which a select without any message to deliver is answered all the same."""


@attrs.frozen(slots=False)
class RtcpLimits:
    """Limits of sessions over RTCP. Sizes in bytes, times in seconds."""

    rtcp_timeout: float = 60.0
    """Silence of an RTCP peer after which its session ends; after half of it, the broker sends an acknowledgement."""
    rtcp_disconnected: float = 30.0
    """Time that an RTCP session waits for its peer to connect again."""
    rtcp_backlog: int = 64_000
    """Output that may be unacknowledged in an RTCP session, before the session ends."""


@attrs.frozen
class TransportLimits(RtcpLimits, LongPollLimits, ConnectionLimits):
    """Limits of one Elko listener, whatever its transport: each transport reads the base class that concerns it."""
