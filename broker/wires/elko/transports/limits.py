"""Limits of the Elko transports, as frozen values: pure data, without Twisted."""

from __future__ import annotations

import attrs

from broker.net.interfaces.limits import ConnectionLimits


# Without slots, since `TransportLimits` inherits from both and from a class with slots.
@attrs.frozen(slots=False)
class LongPollLimits:
    """Limits of sessions over HTTP long polling. Times in seconds."""

    http_timeout: float = 15.0
    """Idle timeout of a session over HTTP without a pending request."""
    http_select_wait: float = 60.0
    """Time after which a select without messages is answered with none."""


@attrs.frozen(slots=False)
class RtcpLimits:
    """Limits of sessions over RTCP. Sizes in bytes, times in seconds."""

    rtcp_timeout: float = 60.0
    """Idle timeout of an RTCP peer, which ends its session. The broker sends an acknowledgement after half of it."""
    rtcp_disconnected: float = 30.0
    """Time that an RTCP session without a connection waits for a resume."""
    rtcp_backlog: int = 64_000
    """Unacknowledged output beyond which an RTCP session ends."""


@attrs.frozen
class TransportLimits(RtcpLimits, LongPollLimits, ConnectionLimits):
    """Limits of one Elko listener with any transport: each transport reads its own base class."""
