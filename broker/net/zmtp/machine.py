"""State machine of one ZMTP connection, without I/O: bytes in, events and bytes out.

States, and the events that end them:

    GREETING   the peer's greeting              -> HANDSHAKE, or CLAIMED for ZMTP 1.0 and 2.0
    HANDSHAKE  the peer's last command          -> CLAIMED
    CLAIMED    `Machine.accept`                 -> TRAFFIC
    TRAFFIC    (the end of the connection)
    any        malformed input, `Machine.refuse` -> FAILED

Rules:
- Both sides send their version at once, and the rest of their greeting when they know the other's version. A side that
  speaks ZMTP 1.0 sends its version when it has the other's signature.
- HANDSHAKE allows only commands, of at most `MAX_HANDSHAKE` bytes. ERROR ends the connection with the peer's reason.
- CLAIMED suspends the input: octets after the last command are buffered, within the size of one read, and decoded after
  `accept`. The transport must be paused meanwhile.
- In TRAFFIC a PING is answered by a PONG with its context (RFC 37). A PONG has no effect besides proving liveness.
  SUBSCRIBE, CANCEL and unknown commands are ignored: a ROUTER has no subscriptions.
- ZMTP 1.0 and 2.0 have no mechanisms, no commands and no metadata: `Mechanism.oldest` is the oldest accepted version.
  Output of `encoder` is translated for a peer of version 1, by the queue that `output` returns.
- FAILED decodes nothing, and nothing may be sent.

The file is longer than others: its methods are the transitions of one handshake, with the versions of the protocol.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from typing import Protocol

import attrs

from broker.net.zmtp import version_1
from broker.net.zmtp.frames import (
    COMMAND,
    IDENTITY,
    LONG,
    MAX_HANDSHAKE,
    SOCKET_TYPE,
    Command,
    Decoder,
    Encoder,
    Fault,
    FrameLimits,
    PlainDecoder,
    PlainEncoder,
    ZmtpError,
    command,
    own_metadata,
    parse_metadata,
    split_command,
)
from broker.net.zmtp.version_1 import Version1Decoder, Version1Output

# Greeting codec: the version of ZMTP and the security mechanism of a peer (RFC 23, "The Greeting").
#
# Octets of a greeting of version 3: 0 is FF, 1 to 8 are padding, 9 is 7F, 10 the major version, 11 the minor version,
# 12 to 31 the mechanism, 32 the as-server flag, 33 to 63 zeros. libzmq sends the first 10, then 1, then the rest as the
# other side answers: so neither side may wait for more than the signature before it sends its own version.
#
# ZMTP 2.0 has a revision of 1 (2 in some releases) at octet 10, then the socket type in one octet, then the identity as
# a frame. The revision 0 is followed by the socket type, and by frames of ZMTP 1.0. ZMTP 1.0 has no signature: it
# begins with a frame (`broker.net.zmtp.version_1`), and takes the signature for one, but not the major version behind
# it. So a side that speaks it sends the major version once it has the signature of the other.

GREETING_SIZE = 64
"""Octets of a greeting of version 3."""

SIGNATURE_END, VERSION_END = 10, 11
"""Octets up to the end of the signature, and of the major version behind it."""

OPENING = b"\xff\0\0\0\0\0\0\0\x01\x7f\x03"
"""The broker's signature and major version. The length 1 in the padding is that of an empty identity in ZMTP 1.0."""

MINOR = 1
"""ZMTP 3.1."""

SOCKET_TYPES = ("PAIR", "PUB", "SUB", "REQ", "REP", "DEALER", "ROUTER", "PULL", "PUSH", "XPUB", "XSUB")
"""By their numbers in ZMTP 2.0."""


@attrs.frozen
class Greeting:
    """The greeting of a peer. ``mechanism`` is empty before ZMTP 3, which introduced it. ``signed`` is False if the
    connection began with a frame in place of a signature."""

    major: int
    minor: int
    mechanism: bytes = b""
    as_server: bool = False
    signed: bool = True


def greeting_rest(mechanism: bytes, as_server: bool) -> bytes:
    """Return the rest of the broker's greeting after `OPENING`, for a peer of version 3."""
    return bytes((MINOR,)) + mechanism.ljust(20, b"\0") + bytes((as_server,)) + bytes(31)


def is_signed(data: bytes) -> bool:
    """Return True if ``data`` begins with a whole signature."""
    return data[:1] == b"\xff" and data[9:10] == b"\x7f"


def greeting_version(data: bytes, oldest: int = 1) -> int:
    """Return the major version of the greeting that begins with ``data``: 1, 2 or 3, and 0 while it is unknown.

    ``oldest`` is the least version that is spoken. Later ones than 3 count as 3: their peers must downgrade. Raises
    `ZmtpError` as soon as it is no greeting, or one of an older version.
    """
    if not is_signed(data):
        is_long = data[:1] == b"\xff"
        flags = data[9:10] if is_long else data[1:2]
        if not data or (is_long and not flags):
            return 0
        if oldest > 1 or data[0] == 0 or flags > b"\x01":
            raise ZmtpError(Fault.GREETING, f"no greeting of ZMTP: the connection begins with {_shown(data)}")
        return 1 if flags else 0
    if len(data) < VERSION_END:
        return 0
    major = data[SIGNATURE_END]
    spoken = (1, 2, 2)[major] if major < 3 else 3
    if spoken < oldest:
        raise ZmtpError(Fault.GREETING, f"version {spoken}.0 of ZMTP is not spoken")
    return spoken


def parse_greeting(data: bytes, oldest: int = 1) -> tuple[Greeting, bytes] | None:
    """Return the greeting at the beginning of ``data``, and the octets after it; None while it is incomplete.

    Raises `ZmtpError` as `greeting_version` does.
    """
    major = greeting_version(data, oldest)
    if major in (1, 2):
        signed = is_signed(data)
        return Greeting(major, 0, signed=signed), data[VERSION_END:] if signed else data
    if not major or len(data) < GREETING_SIZE:
        return None
    mechanism = data[12:32].rstrip(b"\0")
    minor = data[VERSION_END] if data[SIGNATURE_END] == 3 else MINOR
    return Greeting(3, minor, mechanism, data[32:33] == b"\x01"), data[GREETING_SIZE:]


def _shown(data: bytes) -> str:
    return repr(bytes(data[:12]))[1:]


# Security mechanisms: the handshake between greeting and traffic.
#
# A mechanism is one side of one handshake: it consumes the commands of the other side and produces its own. Once it has
# verified the peer, it makes a *claim*: the metadata of the peer, with its key. The caller accepts or refuses the claim
# (an allow-list); only then does the mechanism produce its last command.


@attrs.frozen
class Claim:
    """The claim of a peer.

    ``properties`` is its metadata by name in lower case. ``key`` is its long-term public key (CURVE, 32 bytes,
    verified).
    """

    properties: Mapping[str, bytes]
    key: bytes = b""


@attrs.frozen
class Answer:
    """The result of a command: octets to send (whole frames), and the claim once the peer has made it."""

    output: bytes = b""
    claim: Claim | None = None


class Mechanism(Protocol):
    """One side of a handshake. ``metadata`` below is the local one, encoded."""

    name: bytes
    as_server: bool
    oldest: int
    """The least major version of ZMTP that the peer may speak."""

    def begin(self, metadata: bytes) -> bytes:
        """Begin after the greetings. Returns octets to send: empty if the other side begins."""

    def take(self, command: Command) -> Answer:
        """Handle a command of the peer. Raises `ZmtpError`. Not called after a claim."""

    def accept(self) -> bytes:
        """Finish after an accepted claim. Returns octets to send: traffic may follow them."""

    def decoder(self, limits: FrameLimits) -> Decoder:
        """Create the decoder of the peer's traffic. Called once, after `accept`."""

    def encoder(self) -> Encoder:
        """Create the encoder of the local traffic. Called once, after `accept`."""


PING, PONG, ERROR = b"PING", b"PONG", b"ERROR"

TTL = 2
"""Octets of the time to live in a PING, which counts tenths of a second."""

MAX_CONTEXT = 16
"""Octets of the context of a PING: RFC 37 allows no more, and a longer one is truncated in the answer."""

MAX_REASON = 255
"""Octets of the reason in an ERROR: its length has one octet."""

MAX_IDENTITY = 255
"""Octets of an identity (RFC 23)."""


class ZmtpState(enum.Enum):
    """The states of a connection; see the head of this module."""

    GREETING = "greeting"
    HANDSHAKE = "handshake"
    CLAIMED = "claimed"
    TRAFFIC = "traffic"
    FAILED = "failed"


@attrs.frozen
class Output:
    """Octets that are to be sent."""

    data: bytes


Event = list[bytes] | Claim | Output | None
"""A message, a claim to accept or refuse, octets to send, or None: an opportunity to check the quantum."""


class Machine:
    """One side of one connection, with a socket type such as "ROUTER" and, for clients, an identity.

    ``peers`` are the allowed socket types of the other side; ``None`` allows any.
    """

    __slots__ = (
        "_held", "_identity", "_limits", "_mechanism", "_metadata", "_opening", "_peers", "_signed", "_socket_type",
        "decoder", "encoder", "minor", "state", "version",
    )  # fmt: skip

    def __init__(
        self,
        mechanism: Mechanism,
        socket_type: str,
        limits: FrameLimits,
        identity: bytes = b"",
        peers: frozenset[bytes] | None = None,
    ) -> None:
        self._mechanism = mechanism
        self._socket_type = socket_type
        self._identity = identity
        self._metadata = own_metadata(socket_type, identity)
        self._limits = limits
        self._peers = peers
        self._held = b""
        self._opening = b""
        """Octets to send when the peer has sent its signature."""
        self._signed = True
        """False for a peer of version 1 without a signature."""
        self.decoder: Decoder | None = None
        """The decoder of input; None before TRAFFIC. It may be fed directly, with its commands passed to `heartbeat`,
        which saves a step for each message."""
        self.encoder: Encoder | None = None
        """The encoder of output; None before TRAFFIC."""
        self.state = ZmtpState.GREETING
        self.version = 0
        """The major version of the peer; 0 while unknown."""
        self.minor = 0

    def begin(self) -> bytes:
        """Return the octets to send before any input."""
        first = SIGNATURE_END if self._mechanism.oldest == 1 else VERSION_END
        self._opening = OPENING[first:]
        return OPENING[:first]

    @property
    def pending(self) -> int:
        """Bytes held of incomplete input."""
        return len(self._held) + (0 if self.decoder is None else self.decoder.pending)

    def feed(self, data: bytes) -> Iterator[Event]:
        """Decode the octets of one read. Raises `ZmtpError`, with the state FAILED.

        The iterator must be exhausted before the next call, or abandoned if the connection ends before.
        """
        try:
            if self.decoder is None:
                yield from self._prelude(data)
                data = b""
            decoder = self.decoder
            if decoder is None:
                return
            if self._held:  # octets after the last command of the handshake
                data, self._held = self._held + data, b""
            for each in decoder.feed(data):
                if isinstance(each, Command):
                    yield self.heartbeat(each)
                else:
                    yield each
        except ZmtpError:
            self.fail()
            raise

    def accept(self) -> bytes:
        """Accept the claim: TRAFFIC begins. Returns octets to send before any others.

        ``feed(b"")`` then decodes octets after the peer's last command.
        """
        assert self.state is ZmtpState.CLAIMED
        self.state = ZmtpState.TRAFFIC
        output = self._mechanism.accept() if self.version == 3 else b""
        self.decoder, self.encoder = self._mechanism.decoder(self._limits), self._mechanism.encoder()
        if self.version == 1:
            self.decoder = Version1Decoder(self.decoder)
        return output

    def output(self, queue: list[bytes]) -> list[bytes]:
        """Return the queue for output of `encoder`: this one, or for a peer of version 1 one that translates."""
        return Version1Output(queue) if self.version == 1 else queue

    def refuse(self, reason: str) -> bytes:
        """Refuse the claim. Returns octets to send before the close."""
        version = self.version
        self.fail()
        return error(reason) if version == 3 else b""

    def fail(self) -> None:
        """Enter FAILED, and free held input."""
        self.state = ZmtpState.FAILED
        self._held = b""
        self.decoder = None

    # before traffic

    def _prelude(self, data: bytes) -> Iterator[Event]:
        """Decode greeting and handshake."""
        if self.state is ZmtpState.FAILED:
            return
        if len(self._held) > self._limits.message:  # possible while CLAIMED only, with a transport that is not paused
            raise ZmtpError(Fault.TOO_LARGE, "too much traffic before the handshake is complete")
        self._held += data
        if self.state is ZmtpState.GREETING:
            mechanism = self._mechanism
            output = b""
            if not self.version:
                self.version = greeting_version(self._held, mechanism.oldest)
                if self._opening and is_signed(self._held):
                    output, self._opening = self._opening, b""
                if self.version == 3:
                    output += greeting_rest(mechanism.name, mechanism.as_server)
                if output:
                    yield Output(output)
            parsed = parse_greeting(self._held)
            if parsed is None:
                return
            greeting, self._held = parsed
            output = self._greeted(greeting)
            if output:
                yield Output(output)
        while self.state is ZmtpState.HANDSHAKE:
            if self.version < 3:
                claim = self._claim_of_1() if self.version == 1 else self._claim_of_2()
                if claim is None:
                    return
            else:
                received = self._command()
                if received is None:
                    return
                answer = self._mechanism.take(received)
                if answer.output:
                    yield Output(answer.output)
                claim = answer.claim
            if claim is not None:
                self._check(claim.properties)
                self.state = ZmtpState.CLAIMED
                yield claim

    def _greeted(self, greeting: Greeting) -> bytes:
        """Handle a complete greeting. Returns octets to send."""
        mechanism = self._mechanism
        self.minor = greeting.minor
        self.state = ZmtpState.HANDSHAKE
        if greeting.major < 3:
            self._signed = greeting.signed
            if not self._signed:  # the signature of this side is its identity
                return b""
            # The rest of the greeting is the socket type, and the identity as a frame.
            kind, size = SOCKET_TYPES.index(self._socket_type), len(self._identity)
            return bytes((kind, size + 1, 0) if greeting.major == 1 else (kind, 0, size)) + self._identity
        if greeting.mechanism != mechanism.name:
            shown = repr(greeting.mechanism)[1:]
            raise ZmtpError(Fault.MECHANISM, f"the mechanism {shown} instead of {mechanism.name.decode()}")
        # False is no evidence: servers of libzmq also leave the flag unset
        if greeting.as_server and mechanism.as_server:
            raise ZmtpError(Fault.MECHANISM, "both sides are server")
        return mechanism.begin(self._metadata)

    def _command(self) -> Command | None:
        """Return the next command of the handshake; None while it is incomplete."""
        held = self._held
        if len(held) < 2:
            return None
        flags, size, start = held[0], held[1], 2
        if flags == COMMAND | LONG:
            if len(held) < 9:
                return None
            size, start = int.from_bytes(held[1:9], "big"), 9
        elif flags != COMMAND:
            raise ZmtpError(Fault.HANDSHAKE, f"a frame with the flags {flags:#04x} in the handshake")
        if size > MAX_HANDSHAKE:
            raise ZmtpError(Fault.TOO_LARGE, f"a command of the handshake has more than {MAX_HANDSHAKE} bytes")
        if start + size > len(held):
            return None
        self._held = held[start + size :]
        body = held[start : start + size]
        received = split_command(body, Fault.HANDSHAKE)
        if received.name == ERROR:
            text = received.data[1 : 1 + received.data[0]] if received.data else b""
            raise ZmtpError(Fault.REFUSED, f"the other side refused: {repr(text)[1:]}")
        return received

    def _claim_of_1(self) -> Claim | None:
        """Return the identity of a ZMTP 1.0 peer, and behind a signature its socket type, as a claim; None while they
        are incomplete."""
        held, properties = self._held, {}
        if self._signed:
            properties[SOCKET_TYPE] = _socket_type(held[0]) if held else b""
            held = held[1:]
        found = version_1.header(held) if held else None
        if found is None:
            return None
        size, _, start = found
        if size > MAX_IDENTITY:
            raise ZmtpError(Fault.HANDSHAKE, f"an identity has more than {MAX_IDENTITY} bytes")
        if start + size > len(held):
            return None
        self._held = held[start + size :]
        return Claim({**properties, IDENTITY: held[start : start + size]})

    def _claim_of_2(self) -> Claim | None:
        """Return the socket type and identity of a ZMTP 2.0 peer as a claim; None while they are incomplete."""
        held = self._held
        if len(held) < 3 or len(held) < 3 + held[2]:
            return None
        if held[1]:
            raise ZmtpError(Fault.HANDSHAKE, f"an identity with the flags {held[1]:#04x}")
        socket_type = _socket_type(held[0])
        self._held = held[3 + held[2] :]
        return Claim({SOCKET_TYPE: socket_type, IDENTITY: held[3 : 3 + held[2]]})

    def _check(self, properties: Mapping[str, bytes]) -> None:
        """Refuse an incompatible socket type, and an identity that is too long. A missing type is compatible, as in
        libzmq."""
        socket_type = properties.get(SOCKET_TYPE)
        if self._peers is not None and socket_type is not None and socket_type not in self._peers:
            raise self._refusal(f"a {self._socket_type} does not talk to {repr(socket_type[:20])[1:]}")
        identity = properties.get(IDENTITY, b"")
        if len(identity) > MAX_IDENTITY:
            raise self._refusal(f"an identity has more than {MAX_IDENTITY} bytes")

    def _refusal(self, text: str) -> ZmtpError:
        return ZmtpError(Fault.HANDSHAKE, text, error(text) if self.version == 3 else b"")

    # traffic

    def heartbeat(self, received: Command) -> Output | None:
        """Handle a command between messages. Returns the answer, if any."""
        if self.version < 3:
            raise ZmtpError(Fault.FRAME, f"a command in ZMTP {self.version}.0")
        if received.name != PING:
            return None
        if len(received.data) < TTL:
            raise ZmtpError(Fault.FRAME, "a PING without a time to live")
        assert self.encoder is not None
        return Output(self.encoder.command(PONG, received.data[TTL : TTL + MAX_CONTEXT]))

    def ping(self) -> bytes:
        """Return a PING with a zero time to live; empty outside TRAFFIC and before ZMTP 3.1, which introduced it."""
        if self.state is not ZmtpState.TRAFFIC or self.version < 3 or self.minor < 1:
            return b""
        assert self.encoder is not None
        return self.encoder.command(PING, bytes(TTL))


def _socket_type(number: int) -> bytes:
    if number >= len(SOCKET_TYPES):
        raise ZmtpError(Fault.HANDSHAKE, f"the socket type {number}")
    return SOCKET_TYPES[number].encode()


def error(reason: str) -> bytes:
    """Return the octets of an ERROR in the handshake."""
    said = reason.encode("ascii", "replace")[:MAX_REASON]
    return command(ERROR, bytes((len(said),)) + said)


# NULL: no security. Both sides send READY with their metadata (RFC 23, "The NULL Mechanism").


class Null:
    """One side of the NULL mechanism. A server sends its READY after it accepted the peer, a client at once."""

    name = b"NULL"

    def __init__(self, as_server: bool) -> None:
        self._server = as_server
        self.oldest = 1 if as_server else 2
        self.as_server = False  # NULL ignores the as-server flag of the greeting, and libzmq leaves it zero
        self._ready = b""

    def begin(self, metadata: bytes) -> bytes:
        """See `Mechanism`."""
        self._ready = command(b"READY", metadata)
        return b"" if self._server else self._ready

    def take(self, command: Command) -> Answer:
        """See `Mechanism`."""
        if command.name != b"READY":
            raise ZmtpError(Fault.HANDSHAKE, f"{command.name[:20]!r} instead of READY")
        return Answer(claim=Claim(parse_metadata(command.data)))

    def accept(self) -> bytes:
        """See `Mechanism`."""
        return self._ready if self._server else b""

    def decoder(self, limits: FrameLimits) -> PlainDecoder:
        """See `Mechanism`."""
        return PlainDecoder(limits)

    def encoder(self) -> PlainEncoder:
        """See `Mechanism`."""
        return PlainEncoder()
