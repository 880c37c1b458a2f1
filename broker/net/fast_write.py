"""Giving output to the kernel at once, without the way round by the reactor.

Twisted's `write` registers the socket for writing, sends in the next turn, and takes it out again: two system calls and
a turn for each answer. A socket that nothing waits for takes almost every answer whole, so it is tried first. It looks
into the buffers of plain TCP and unix connections (`twisted.internet.tcp.Connection`), and is for them only; what the
kernel does not take goes the ordinary way.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection


def plain_socket(transport: Any) -> Connection | None:
    """The connection that a transport is, or that it stands on (TLS does); None where there is none."""
    if isinstance(transport, Connection):
        return transport
    below = getattr(transport, "transport", None)
    return below if isinstance(below, Connection) else None


def unsent(connection: Connection | None) -> int:
    """Bytes that the kernel did not take yet; 0 where that is not known."""
    if connection is None:
        return 0
    waiting: int = len(connection.dataBuffer) - connection.offset + connection._tempDataLen
    return waiting


def nothing_waits(transport: Connection) -> bool:
    """Return True if the kernel has taken all output."""
    return not transport.dataBuffer and not transport._tempDataLen


def send_now(transport: Connection, data: bytes) -> bytes:
    """Send what the kernel takes, if nothing waits before it. Returns the rest, which is still to be written.

    Of a memoryview the rest is a memoryview: nothing is copied.
    """
    if transport.dataBuffer or transport._tempDataLen:
        return data
    try:
        sent: int = transport.socket.send(data)
    except OSError:
        return data  # it has no room, or is lost: the ordinary way finds out
    return data[sent:] if sent < len(data) else b""


def push(connection: Connection | None) -> None:
    """Send now what waits for the next turn of the reactor, as far as the kernel takes it.

    A connection that is being closed is left alone: the reactor closes it when all is sent, and must see that.
    """
    if connection is None or connection.disconnecting or connection._writeDisconnecting or nothing_waits(connection):
        return
    connection.doWrite()
