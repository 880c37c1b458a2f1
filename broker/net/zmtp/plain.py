"""PLAIN: a name and a password in clear text (RFC 24).

The client sends HELLO with both, the server WELCOME, the client INITIATE with its metadata, the server READY with its
own. The claim is made with INITIATE: a refusal before it would only save the peer one round trip.
"""

from __future__ import annotations

from broker.net.zmtp import metadata as properties
from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.frames import Command, PlainDecoder, PlainEncoder, command
from broker.net.zmtp.limits import FrameLimits
from broker.net.zmtp.mechanism import Answer, Claim


class _Plain:
    name = b"PLAIN"

    def __init__(self) -> None:
        self._metadata = b""

    def decoder(self, limits: FrameLimits) -> PlainDecoder:
        """See `Mechanism`."""
        return PlainDecoder(limits)

    def encoder(self) -> PlainEncoder:
        """See `Mechanism`."""
        return PlainEncoder()


class PlainServer(_Plain):
    """The side that asks for a name and a password."""

    as_server = True

    def __init__(self) -> None:
        super().__init__()
        self._credentials: tuple[bytes, bytes] | None = None

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._metadata = metadata
        return b""

    def take(self, received: Command) -> Answer:
        """See `Mechanism`."""
        if self._credentials is None:
            _expect(received, b"HELLO")
            self._credentials = _credentials(received.data)
            return Answer(command(b"WELCOME", b""))
        _expect(received, b"INITIATE")
        username, password = self._credentials
        return Answer(claim=Claim(properties.parse(received.data), b"", username, password))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        return command(b"READY", self._metadata)


class PlainClient(_Plain):
    """The side that has a name and a password, of 255 bytes at most each."""

    as_server = False

    def __init__(self, username: bytes, password: bytes) -> None:
        super().__init__()
        self._hello = b"".join(bytes((len(each),)) + each for each in (username, password))
        self._welcomed = False

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._metadata = metadata
        return command(b"HELLO", self._hello)

    def take(self, received: Command) -> Answer:
        """See `Mechanism`."""
        if not self._welcomed:
            _expect(received, b"WELCOME")
            self._welcomed = True
            return Answer(command(b"INITIATE", self._metadata))
        _expect(received, b"READY")
        return Answer(claim=Claim(properties.parse(received.data)))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        return b""


def _expect(received: Command, name: bytes) -> None:
    if received.name != name:
        raise ZmtpError(Fault.HANDSHAKE, f"{received.name[:20]!r} instead of {name.decode()}")


def _credentials(data: bytes) -> tuple[bytes, bytes]:
    """The name and the password in a HELLO."""
    middle = 1 + data[0] if data else 0
    end = middle + 1 + data[middle] if 0 < middle < len(data) else 0
    if end != len(data) or not end:
        raise ZmtpError(Fault.HANDSHAKE, "a malformed HELLO")
    return data[1:middle], data[middle + 1 :]
