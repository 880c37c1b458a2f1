"""Socket options by which the kernel ends the connections of hosts that vanish: without power, or behind a cut network.

Rules:
- Every TCP connection has them: accepted ones inherit them from their listening socket (`broker.net.listeners`), and
  outgoing ones get them before they connect (`broker.net.reactor`).
- An idle connection is probed by keepalive after `KEEPALIVE_IDLE`. Keepalive does not run while output is
  unacknowledged, such as a ping that is repeated for minutes: for that time `USER_TIMEOUT` counts.
- Output may begin just before keepalive would have ended the connection, so that both times may pass, one after the
  other: `GONE_WITHIN` is the bound for every connection.
"""

from __future__ import annotations

import fcntl
import socket
import termios
from contextlib import suppress

KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_COUNT = 30, 10, 3
"""TCP keepalive: seconds of idle time before the first probe, seconds between probes, and their number. On Linux
`USER_TIMEOUT` counts in place of the number."""

USER_TIMEOUT = 50
"""Seconds for which output may be unacknowledged, and a closed window may stay closed, before the kernel ends the
connection: eight retransmissions, longer than a switch takes to start or a route to change. With `KEEPALIVE_IDLE` it
keeps `GONE_WITHIN`."""

GONE_WITHIN = 120
"""Seconds after which no connection of a vanished host is left: up to 60 idle ones, until the probe that follows
`USER_TIMEOUT`, then `USER_TIMEOUT` for output that began at their end, and 10 for timers that run late."""


def end_with_host(sock: socket.socket) -> None:
    """Set the options on a socket. No-op for one that is not TCP; a system without an option goes without it."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or sock.type != socket.SOCK_STREAM:
        return
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (
        ("TCP_KEEPIDLE", KEEPALIVE_IDLE),
        ("TCP_KEEPINTVL", KEEPALIVE_INTERVAL),
        ("TCP_KEEPCNT", KEEPALIVE_COUNT),
        ("TCP_USER_TIMEOUT", USER_TIMEOUT * 1_000),
    ):
        # A connection without one of them works: the option shortens a wait, and decides nothing else.
        with suppress(AttributeError, OSError):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def unacknowledged(sock: socket.socket) -> bool:
    """Return True if the kernel of the peer has not acknowledged all output; False where that is unknown."""
    try:
        waiting = fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4))
    except (OSError, ValueError):  # a socket that is closed
        return False
    return waiting != bytes(4)
