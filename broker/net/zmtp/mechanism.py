"""Security mechanisms: the handshake between greeting and traffic.

A mechanism is one side of one handshake: it consumes the commands of the other side and produces its own. Once it has
verified the peer, it makes a *claim*: the metadata of the peer, with its key. The caller accepts or refuses
the claim (an allow-list); only then does the mechanism produce its last command.
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
