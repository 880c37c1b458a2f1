"""Octets as real peers send them, and a side of a connection that accepts every claim."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from broker.net.zmtp.frames import Decoded, FrameLimits
from broker.net.zmtp.machine import Claim, Machine, Mechanism, Null, Output, ZmtpState

ROUTER_PEERS = frozenset([b"DEALER", b"REQ", b"ROUTER"])
"""The socket types that talk to a ROUTER."""

SIGNATURE = b"\xff\0\0\0\0\0\0\0\x01\x7f"

GREETING = SIGNATURE + b"\x03\x01NULL" + bytes(48)
"""The greeting of libzmq 4.3 without a mechanism."""

READY = b"\x04\x2b\x05READY\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\x02me"
"""The handshake of a DEALER of libzmq 4.3 with the identity ``me``."""

PLAIN = SIGNATURE + b"\x03\x01PLAIN" + bytes(47)
"""The greeting of libzmq 4.3 with a name and a password."""

HELLO = b"\x04\x0a\x05HELLO\x01u\x01p"
INITIATE = b"\x04\x2c\x08INITIATE\x0bSocket-Type\0\0\0\x06DEALER\x08Identity\0\0\0\0"

GREETING_2 = SIGNATURE + b"\x01\x05\0\x02me"
"""All that a DEALER of libzmq 3.2 sends before its messages: ZMTP 2.0, socket type 5, and its identity as a frame."""


class Side:
    """One side of a connection. It accepts every claim, at once, and keeps what it is given."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.output = machine.begin()
        self.claims: list[Claim] = []
        self.messages: list[list[bytes]] = []

    def take(self, data: bytes) -> None:
        """Feed what was read, and collect what comes of it."""
        machine = self.machine
        for event in machine.feed(data):
            if isinstance(event, Output):
                self.output += event.data
            elif isinstance(event, Claim):
                self.claims.append(event)
                self.output += machine.accept()
            elif event is not None:
                self.messages.append(event)

    def give(self) -> bytes:
        """The octets to be sent since the last call."""
        output, self.output = self.output, b""
        return output


def router(mechanism: Mechanism | None = None, limits: FrameLimits | None = None) -> Machine:
    """The machine of a ROUTER, as a server."""
    return Machine(mechanism or Null(True), "ROUTER", limits or FrameLimits(), peers=ROUTER_PEERS)


def whole(data: bytes) -> Iterator[bytes]:
    """All octets in one read."""
    return iter([data])


def bytewise(data: bytes) -> Iterator[bytes]:
    """Each octet in a read of its own."""
    return (data[at : at + 1] for at in range(len(data)))


def reads(data: bytes, size: int = 65_536) -> Iterator[bytes]:
    """Reads of the size that a transport has."""
    return (data[at : at + size] for at in range(0, len(data), size))


def converse(one: Side, other: Side, pieces: Callable[[bytes], Iterable[bytes]] = whole) -> None:
    """Let two sides exchange what they have to send, until both are silent."""
    while one.output or other.output:
        to_other, to_one = one.give(), other.give()
        for piece in pieces(to_other):
            other.take(piece)
        for piece in pieces(to_one):
            one.take(piece)


def in_traffic(limits: FrameLimits | None = None) -> Side:
    """A ROUTER whose peer, a DEALER, has completed its handshake."""
    side = Side(router(limits=limits))
    side.take(GREETING + READY)
    assert side.machine.state is ZmtpState.TRAFFIC
    side.give()
    return side


def messages(decoded: Iterable[Decoded]) -> list[list[bytes]]:
    """The messages in decoded input."""
    return [each for each in decoded if isinstance(each, list)]
