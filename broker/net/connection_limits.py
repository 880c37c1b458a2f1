"""Limits on the connections of one listener, as frozen values: pure data, without Twisted.

A listener takes one `ConnectionLimits`. A configuration section provides it in one of two ways:

- A section whose keys are these fields *is* one: its class inherits from `ConnectionLimits` and adds its own keys.
- A section of a ROUTER (ZeroMQ) inherits from `RouterLimits`, whose `connection_limits` derives the value.

A section that has some of the keys only, or other defaults, declares them by the functions below, which have their
ranges. A reload passes the new value to the listener (`ConnectionFactory.limit`). The limits are enforced in
`broker.net.admission` and `broker.net.router`.
"""

from __future__ import annotations

from typing import ClassVar

import attrs

from broker.config.key import Settings, bytes_key, key, seconds_key


def connections_key(default: int, doc: str) -> int:
    """Declare the number of open connections of a listener."""
    return key(default, doc, within=(1, 1_000_000), reload=True)


def connections_per_address_key(default: int, doc: str) -> int:
    """Declare the number of open connections of one address; 0 is no limit."""
    return key(default, doc, within=(0, 1_000_000), reload=True)


def rate_key(default: float, doc: str) -> float:
    """Declare the number of new connections a second from one address; 0 is no limit."""
    return key(default, doc, within=(0, 1_000_000), reload=True)


def stalled_after_key(doc: str) -> float:
    """Declare the time without progress after which a connection is closed."""
    # The upper bound is a day: a longer one would end no stalled connection in useful time.
    return seconds_key(30.0, doc, within=(0.1, 86_400))


def high_water_key(default: int, beyond: str) -> int:
    """Declare the number of messages that may wait for one client of a ROUTER; ``beyond`` is the effect on more."""
    # With 0, no message could be sent at all.
    return key(
        default,
        f"Messages that may wait for one client, and 32 MiB of them; further ones are {beyond} until it reads.",
        within=(1, 1_000_000),
        reload=True,
    )


def max_message_key(default: int, within: tuple[int, int]) -> int:
    """Declare the size of one frame of a message."""
    return bytes_key(
        default,
        "Size of one frame of a message. All frames of a message may have 524288 more together, where each counts for "
        "64 bytes more than its length. A peer that sends more is disconnected.",
        within=within,
    )


@attrs.frozen
class ConnectionLimits:
    """Limits on the peers of one listener. Sizes in bytes, times in seconds."""

    connections: int = connections_key(20_000, "Open connections. Beyond them, an idle one gives way to a new one.")
    connections_per_address: int = connections_per_address_key(
        0,
        "Open connections of one address, over http and rtcp its sessions; further ones are refused. Loopback "
        "addresses count, and all peers of a unix socket are one address. 0 is no limit.",
    )
    rate: float = rate_key(
        100.0, "New connections a second from one address; loopback and unix sockets are not counted. 0 is no limit."
    )
    burst: int = key(
        1_000, "New connections of one address at once before `rate` applies.", within=(1, 1_000_000), reload=True
    )
    authenticate_within: float = seconds_key(30.0, "Time to a successful `auth`. 0 is no limit.", within=(0, 86_400))
    write_buffer: int = bytes_key(
        4 * 1024**2,
        "Output that may wait for one peer that does not read, before it is disconnected.",
        within=(4_096, 1024**3),
    )
    stalled_after: float = stalled_after_key(
        "Time for which output may wait for a peer that reads none of it, before it is disconnected."
    )


@attrs.frozen
class RouterLimits(Settings):
    """Limits on the peers of one ROUTER, by the keys of a section in the configuration."""

    KEYS_LAST: ClassVar = (
        "handshake",
        "stalled_after",
        "connections",
        "connections_per_address",
        "high_water",
        "max_message",
    )

    # A handshake takes several round trips. A client whose key is not allowed yet retries after this time.
    handshake: float = seconds_key(
        2.0,
        "Time that a handshake may take. A client that is not allowed yet tries again after that.",
        within=(0.1, 60),
    )
    stalled_after: float = stalled_after_key(
        "Time within which an unfinished message must continue; otherwise the connection is closed."
    )
    connections: int = connections_key(
        20_000, "Open connections of each socket. Beyond them, an idle one gives way to a new one."
    )
    connections_per_address: int = connections_per_address_key(
        10_000,
        "Open connections of one address; further ones are closed. Loopback addresses count, and all peers of a unix "
        "socket are one address. 0 is no limit.",
    )
    high_water: int = high_water_key(1_000, "dropped")
    # Ordinary frames must fit, and the memory must hold a few of the largest.
    max_message: int = max_message_key(16 * 1024**2, within=(1_024, 1024**3))

    def connection_limits(self) -> ConnectionLimits:
        """Return the limits of the listener."""
        return ConnectionLimits(
            # A peer of a ROUTER authenticates in its handshake, so both have one time limit.
            connections=self.connections,
            connections_per_address=self.connections_per_address,
            authenticate_within=self.handshake,
            stalled_after=self.stalled_after,
        )
