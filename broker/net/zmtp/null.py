"""NULL: no security. Both sides send READY with their metadata (RFC 23, "The NULL Mechanism")."""

from __future__ import annotations

from broker.net.zmtp import metadata as properties
from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.frames import Command, PlainDecoder, PlainEncoder, command
from broker.net.zmtp.limits import FrameLimits
from broker.net.zmtp.mechanism import Answer, Claim


class Null:
    """One side of the NULL mechanism. A server sends its READY when it has accepted the peer, a client at once."""

    name = b"NULL"

    def __init__(self, as_server: bool) -> None:
        self._server = as_server
        self.as_server = False  # in the greeting it says nothing, and libzmq leaves it zero
        self._ready = b""

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._ready = command(b"READY", metadata)
        return b"" if self._server else self._ready

    def take(self, command: Command) -> Answer:
        """See `Mechanism`."""
        if command.name != b"READY":
            raise ZmtpError(Fault.HANDSHAKE, f"{command.name[:20]!r} instead of READY")
        return Answer(claim=Claim(properties.parse(command.data)))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        return self._ready if self._server else b""

    def decoder(self, limits: FrameLimits) -> PlainDecoder:
        """See `Mechanism`."""
        return PlainDecoder(limits)

    def encoder(self) -> PlainEncoder:
        """See `Mechanism`."""
        return PlainEncoder()
