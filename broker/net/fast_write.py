"""Direct writes to the kernel, bypassing the reactor.

Twisted's `write` registers the socket for writing, sends in the next turn, and deregisters it: two system calls and a
turn for each answer. An idle socket takes almost every answer whole, so a direct send is tried first. These functions
access the buffers of plain TCP and Unix connections (`twisted.internet.tcp.Connection`), and apply to those only; the
rest that the kernel does not take goes through the reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.tcp import Connection


def plain_socket(transport: Any) -> Connection | None:
    """Return the transport itself, or the connection below it (TLS), if that is a plain socket; otherwise None."""
    if isinstance(transport, Connection):
        return transport
    below = getattr(transport, "transport", None)
    return below if isinstance(below, Connection) else None


def unsent(connection: Connection | None) -> int:
    """Return the number of bytes that the kernel has not taken; 0 if that is unknown."""
    if connection is None:
        return 0
    waiting: int = len(connection.dataBuffer) - connection.offset + connection._tempDataLen
    return waiting


def nothing_waits(transport: Connection) -> bool:
    """Return True if the kernel has taken all output."""
    return not transport.dataBuffer and not transport._tempDataLen


def send_now(transport: Connection, data: bytes) -> bytes:
    """Send as much as the kernel takes, if no earlier output waits. Returns the rest, which is still to be written.

    The rest of a memoryview is a memoryview: nothing is copied.
    """
    if transport.dataBuffer or transport._tempDataLen:
        return data
    try:
        sent: int = transport.socket.send(data)
    except OSError:
        return data  # no room, or connection lost: the reactor's own write detects which
    return data[sent:] if sent < len(data) else b""


def await_room(transport: Connection) -> None:
    """Pause the producer of a transport that has output left, as if the transport were full: it resumes the producer
    when the kernel has taken that output.

    Twisted pauses beyond ``bufferSize``, which is the size of a read as well. A thousand peers that do not read could
    each have that much in a transport; so the rest stays with the producer.
    """
    producer: Any = transport.producer
    if producer is not None and not transport.producerPaused:
        transport.producerPaused = True
        producer.pauseProducing()


def push(connection: Connection | None) -> None:
    """Send buffered output now instead of in the next turn, as far as the kernel takes it.

    No-op for a closing connection: the reactor closes it after the last send, and must observe that send.
    """
    if connection is None or connection.disconnecting or connection._writeDisconnecting or nothing_waits(connection):
        return
    connection.doWrite()
