"""Rules that all WebSockets of the broker share, whatever carries them; wsproto implements handshake and frames."""

from __future__ import annotations

from wsproto import WSConnection
from wsproto.connection import Connection, ConnectionState
from wsproto.events import CloseConnection, Ping

from broker.core.errors import Reason, Refusal

PING_EVERY = 30.0
"""Seconds between pings: half of what common proxies allow a silent connection."""

MAX_REPORTED, MAX_CLOSE_TEXT = 200, 100
"""Characters of the description of a breach: in the log, and in the close frame, which has room for 123 bytes."""


def breach(text: str) -> Refusal:
    """Return the refusal of frames that break RFC 6455, or that the listener does not take."""
    return Refusal(Reason.HANDSHAKE, f"no frame of the protocol: {text[:MAX_REPORTED]}")


def close_frame(ws: WSConnection | Connection, code: int, text: str = "") -> bytes:
    """Return the close frame of a connection; empty if one was sent, or the peer's was answered."""
    if ws.state not in (ConnectionState.OPEN, ConnectionState.REMOTE_CLOSING):
        return b""
    return ws.send(CloseConnection(code, text[:MAX_CLOSE_TEXT] or None))


def end(ws: WSConnection | Connection) -> None:
    """Free the parser of a connection that has ended, which takes no more input.

    It is a generator that refers to its own object: without its end, the connection would wait for a full garbage
    collection, of which there are few.
    """
    connection = ws.connection if isinstance(ws, WSConnection) else ws
    if connection is not None:
        connection._proto._parse_more.close()


def ping_frame(ws: WSConnection | Connection) -> bytes:
    """Return a ping frame; empty unless the connection is open."""
    return ws.send(Ping()) if ws.state is ConnectionState.OPEN else b""
