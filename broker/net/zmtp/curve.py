"""CURVE: authentication by keys, and encryption of all traffic (RFC 26).

C and S are the long-term public keys of client and server, C' and S' their short-term keys for one connection.

    client  HELLO     C', a box of zeros from C' to S: proof that the client knows S
    server  WELCOME   a box from S to C': S' and the cookie
    client  INITIATE  the cookie, a box from C' to S': C, the vouch and the metadata
    server  READY     a box from S' to C': the metadata
    both    MESSAGE   see `broker.net.zmtp.curve_frames`

The vouch is a box from C to S' of C' and S: proof that the client knows the secret of C, for this connection and this
server alone. The claim is made with INITIATE.

The cookie is C' and the secret of S', encrypted by a key of this process. Between WELCOME and INITIATE the server keeps
only the cookie's nonce, which binds the cookie to its connection: otherwise a recorded connection could be replayed
while the cookie key is valid. Each handshake costs the server four scalar multiplications, 0.2 to 0.4 ms.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs

from broker.net.zmtp.curve_frames import MAC, Boxes, Sealing
from broker.net.zmtp.frames import Command, Decoder, Encoder, Fault, FrameLimits, ZmtpError, command, parse_metadata
from broker.net.zmtp.machine import Answer, Claim

KEY = 32
"""Bytes of a key."""

NONCE = 16
"""Bytes of a random nonce part; the other 8 are a fixed text."""

COUNTER = 8
"""Bytes of a counter nonce part; the other 16 are a fixed text."""

COOKIE = NONCE + 2 * KEY + MAC
VOUCH = NONCE + 2 * KEY + MAC

COOKIE_LIFE = 60.0
"""Seconds for which a key seals cookies; it opens them for as long again. RFC 26 requires a short life: this key and a
recorded handshake suffice to decrypt a connection."""

_VERSION = b"\x01\x00"
_PADDING = bytes(72)
_PROOF = bytes(64)
_FROM_CLIENT, _FROM_SERVER = b"CurveZMQMESSAGEC", b"CurveZMQMESSAGES"


class Cookies:
    """Encryption of the cookies of all connections of a process. ``now`` is a monotonic clock in seconds."""

    def __init__(self, boxes: Boxes, now: Callable[[], float]) -> None:
        self._boxes = boxes
        self._now = now
        self._since = now()
        self._key = boxes.random(KEY)
        self._previous: bytes | None = None

    def seal(self, content: bytes) -> bytes:
        """Return a cookie for ``content``. Its first `NONCE` bytes are unique."""
        self._rotate()
        nonce = self._boxes.random(NONCE)
        return nonce + self._boxes.seal(content, b"COOKIE--" + nonce, self._key)

    def open(self, cookie: bytes) -> bytes:
        """Return the content of a cookie. Raises ValueError if it is foreign or expired."""
        self._rotate()
        nonce, box = b"COOKIE--" + cookie[:NONCE], cookie[NONCE:]
        try:
            return self._boxes.open(box, nonce, self._key)
        except ValueError:
            if self._previous is None:
                raise
            return self._boxes.open(box, nonce, self._previous)

    def _rotate(self) -> None:
        age = self._now() - self._since
        if age >= COOKIE_LIFE:
            self._previous = self._key if age < 2 * COOKIE_LIFE else None
            self._key = self._boxes.random(KEY)
            self._since += age


@attrs.frozen
class Security:
    """Values common to all connections of a socket: its long-term keys, and the functions of encryption.

    Keys have `KEY` bytes.
    """

    boxes: Boxes
    sealing: Sealing
    public: bytes
    secret: bytes = attrs.field(repr=False)


class _Curve:
    """Common part of both sides: the key and the counters of a connection, until traffic begins."""

    __slots__ = ("_counter", "_key", "_metadata", "_peer_counter", "_security")

    name = b"CURVE"

    def __init__(self, security: Security) -> None:
        self._security = security
        self._metadata = b""
        self._key = b""
        """The shared key of S' and C'; empty while unknown."""
        self._counter = 0
        """The counter in the last command that was sent."""
        self._peer_counter = 0
        """The counter in the last command that was received."""

    def _open(self, box: bytes, nonce: bytes, key: bytes, what: str) -> bytes:
        try:
            return self._security.boxes.open(box, nonce, key)
        except ValueError:
            raise ZmtpError(Fault.HANDSHAKE, f"{what} does not open") from None

    def _shared(self, public: bytes, secret: bytes) -> bytes:
        try:
            return self._security.boxes.shared(public, secret)
        except ValueError:
            raise ZmtpError(Fault.HANDSHAKE, "a key that is no key") from None

    def _count(self, octets: bytes) -> None:
        """Verify and store the counter of a peer's command. Counters must increase, which prevents a replay."""
        counter = int.from_bytes(octets, "big")
        if counter <= self._peer_counter:
            raise ZmtpError(Fault.HANDSHAKE, "a counter that does not grow")
        self._peer_counter = counter

    def _next(self) -> bytes:
        """Return the counter of the next command."""
        self._counter += 1
        return self._counter.to_bytes(COUNTER, "big")

    def decoder(self, limits: FrameLimits) -> Decoder:
        """See `Mechanism`."""
        prefix = _FROM_CLIENT if self.as_server else _FROM_SERVER
        return self._security.sealing.decoder(limits, self._key, prefix, self._peer_counter)

    def encoder(self) -> Encoder:
        """See `Mechanism`."""
        prefix = _FROM_SERVER if self.as_server else _FROM_CLIENT
        encoder = self._security.sealing.encoder(self._key, prefix, self._counter)
        self._key = self._metadata = b""  # the encoder and the decoder have copies of all that is needed
        return encoder

    as_server = False
    oldest = 3


class CurveServer(_Curve):
    """The server side: proves S, and verifies C."""

    __slots__ = ("_cookie", "_cookies")

    as_server = True
    oldest = 3

    def __init__(self, security: Security, cookies: Cookies) -> None:
        super().__init__(security)
        self._cookies = cookies
        self._cookie = b""
        """The nonce of the cookie of this connection; empty before HELLO."""

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._metadata = metadata
        return b""

    def take(self, received: Command) -> Answer:
        """See `Mechanism`."""
        if not self._cookie:
            _expect(received, b"HELLO", 194, 194)
            return Answer(self._welcome(received.data))
        _expect(received, b"INITIATE", COOKIE + COUNTER + MAC + KEY + VOUCH)
        return Answer(claim=self._claim(received.data))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        counter = self._next()
        box = self._security.boxes.seal(self._metadata, b"CurveZMQREADY---" + counter, self._key)
        return command(b"READY", counter + box)

    def _welcome(self, data: bytes) -> bytes:
        """Verify a HELLO. Returns the WELCOME."""
        boxes = self._security.boxes
        # An unknown minor version is handled by the rules of this one.
        if data[:1] != _VERSION[:1]:
            raise ZmtpError(Fault.HANDSHAKE, f"version {data[0]} of CURVE")
        # Octets 2 to 73 are padding: a HELLO must be longer than the WELCOME, so that the server is no amplifier.
        client, counter, box = data[74:106], data[106:114], data[114:]
        shared = self._shared(client, self._security.secret)
        if self._open(box, b"CurveZMQHELLO---" + counter, shared, "the box of HELLO") != _PROOF:
            raise ZmtpError(Fault.HANDSHAKE, "the box of HELLO has other than zeros")
        self._count(counter)
        public, secret = boxes.keypair()
        cookie = self._cookies.seal(client + secret)
        self._cookie = cookie[:NONCE]
        nonce = boxes.random(NONCE)
        return command(b"WELCOME", nonce + boxes.seal(public + cookie, b"WELCOME-" + nonce, shared))

    def _claim(self, data: bytes) -> Claim:
        """Verify an INITIATE."""
        cookie, counter, box = data[:COOKIE], data[COOKIE : COOKIE + COUNTER], data[COOKIE + COUNTER :]
        try:
            if cookie[:NONCE] != self._cookie:
                raise ValueError("of another connection")
            content = self._cookies.open(cookie)
        except ValueError:
            raise ZmtpError(Fault.HANDSHAKE, "the cookie is not that of this connection, or too old") from None
        client, secret = content[:KEY], content[KEY:]
        # The shared key of C' and S', recomputed from the cookie: the server kept no state for it.
        self._key = self._shared(client, secret)
        opened = self._open(box, b"CurveZMQINITIATE" + counter, self._key, "the box of INITIATE")
        self._count(counter)
        key, nonce, vouch = opened[:KEY], opened[KEY : KEY + NONCE], opened[KEY + NONCE : KEY + VOUCH]
        vouched = self._open(vouch, b"VOUCH---" + nonce, self._shared(key, secret), "the vouch")
        if vouched != client + self._security.public:
            raise ZmtpError(Fault.HANDSHAKE, "the vouch is for another connection or another server")
        return Claim(parse_metadata(opened[KEY + VOUCH :]), key)


class CurveClient(_Curve):
    """The client side: knows ``server``, which is S, and proves its own C."""

    __slots__ = ("_public", "_secret", "_server")

    def __init__(self, security: Security, server: bytes) -> None:
        super().__init__(security)
        self._server = server
        self._public, self._secret = security.boxes.keypair()

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._metadata = metadata
        counter = self._next()
        shared = self._shared(self._server, self._secret)
        box = self._security.boxes.seal(_PROOF, b"CurveZMQHELLO---" + counter, shared)
        return command(b"HELLO", _VERSION + _PADDING + self._public + counter + box)

    def take(self, received: Command) -> Answer:
        """See `Mechanism`."""
        if not self._key:
            _expect(received, b"WELCOME", NONCE + MAC + KEY + COOKIE, NONCE + MAC + KEY + COOKIE)
            return Answer(self._initiate(received.data))
        _expect(received, b"READY", COUNTER + MAC)
        counter, box = received.data[:COUNTER], received.data[COUNTER:]
        metadata = self._open(box, b"CurveZMQREADY---" + counter, self._key, "the box of READY")
        self._count(counter)
        return Answer(claim=Claim(parse_metadata(metadata), self._server))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        return b""

    def _initiate(self, data: bytes) -> bytes:
        """Verify a WELCOME. Returns the INITIATE."""
        security, boxes = self._security, self._security.boxes
        shared = self._shared(self._server, self._secret)
        opened = self._open(data[NONCE:], b"WELCOME-" + data[:NONCE], shared, "the box of WELCOME")
        server, cookie = opened[:KEY], opened[KEY:]
        self._key = self._shared(server, self._secret)
        nonce = boxes.random(NONCE)
        vouch = boxes.seal(self._public + self._server, b"VOUCH---" + nonce, self._shared(server, security.secret))
        counter = self._next()
        box = boxes.seal(security.public + nonce + vouch + self._metadata, b"CurveZMQINITIATE" + counter, self._key)
        self._secret = b""
        return command(b"INITIATE", cookie + counter + box)


def _expect(received: Command, name: bytes, least: int, most: int | None = None) -> None:
    """Refuse a command with another name or an invalid length."""
    if received.name != name:
        raise ZmtpError(Fault.HANDSHAKE, f"{received.name[:20]!r} instead of {name.decode()}")
    if len(received.data) < least or (most is not None and len(received.data) > most):
        raise ZmtpError(Fault.HANDSHAKE, f"a {name.decode()} of {len(received.data)} bytes")
