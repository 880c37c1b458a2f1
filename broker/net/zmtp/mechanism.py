"""Security mechanisms: the handshake between greeting and traffic.

A mechanism is one side of one handshake. It takes the commands of the other side and gives its own. When it has
verified the peer, it makes a *claim*: the metadata of the peer, with its key or its name. The claim is accepted or
refused elsewhere (an allow list, a password); only then does the mechanism give its last command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import attrs

from broker.net.zmtp.frames import Command, Decoder, Encoder
from broker.net.zmtp.limits import FrameLimits


@attrs.frozen
class Claim:
    """The claim of a peer.

    ``properties`` is its metadata by name in small letters. ``key`` is its long-term public key (CURVE, 32 bytes,
    proved), ``username`` and ``password`` those of PLAIN, not checked yet.
    """

    properties: Mapping[str, bytes]
    key: bytes = b""
    username: bytes = b""
    password: bytes = attrs.field(default=b"", repr=False)


@attrs.frozen
class Answer:
    """The consequence of a command: octets to be sent (whole frames), and a claim if the peer has made it."""

    output: bytes = b""
    claim: Claim | None = None


class Mechanism(Protocol):
    """One side of a handshake. ``metadata`` below is our own, encoded."""

    name: bytes
    as_server: bool

    def begin(self, metadata: bytes) -> bytes:
        """The greetings are exchanged. Returns octets to be sent: empty where the other side speaks first."""

    def take(self, command: Command) -> Answer:
        """Take a command of the peer. Raises `ZmtpError`. Not called after a claim."""

    def accept(self) -> bytes:
        """The claim is accepted. Returns octets to be sent: traffic may follow them."""

    def decoder(self, limits: FrameLimits) -> Decoder:
        """The decoder of the peer's traffic. To be called once, after `accept`."""

    def encoder(self) -> Encoder:
        """The encoder of our traffic. To be called once, after `accept`."""
