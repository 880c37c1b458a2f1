"""ZMTP 1.0, of libzmq 2: its handshake, and its frames in those of the later versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.zmtp.frames import IDENTITY, SOCKET_TYPE, Fault, FrameLimits, ZmtpError, message
from broker.net.zmtp.machine import Claim
from broker.net.zmtp.version_1 import Version1Output
from tests.net.zmtp.conversation import SIGNATURE, Side, bytewise, router, whole
from tests.net.zmtp_peers import message_1

SIZES = st.one_of(st.integers(0, 3), st.integers(250, 260), st.just(5_000))

FRAMES = st.lists(SIZES.map(lambda size: b"x" * size), min_size=1, max_size=5)


def in_traffic(limits: FrameLimits | None = None) -> Side:
    """A ROUTER whose peer, without an identity, has completed its handshake."""
    side = Side(router(limits=limits))
    side.take(b"\x01\0")
    side.give()
    return side


@pytest.mark.parametrize("pieces", [whole, bytewise])
@pytest.mark.parametrize(
    ("began", "claim", "answer"),
    [
        (b"\x01\0", {IDENTITY: b""}, b""),
        (b"\x03\0me", {IDENTITY: b"me"}, b""),
        (b"\xff\0\0\0\0\0\0\x01\0\0" + b"i" * 255, {IDENTITY: b"i" * 255}, b""),
        # libzmq 3.0: a revision of 0, the socket type, and the identity.
        (
            SIGNATURE + b"\0\x05\x03\0me",
            {SOCKET_TYPE: b"DEALER", IDENTITY: b"me"},
            b"\x03\x06\x01\0",
        ),
    ],
)
def test_a_handshake(pieces: object, began: bytes, claim: dict[str, bytes], answer: bytes) -> None:
    side = Side(router())
    assert side.give() == SIGNATURE
    for piece in pieces(began + message_1(b"", b"hello")):  # type: ignore[operator]
        side.take(piece)
    assert side.claims == [Claim(claim)]
    assert side.messages == [[b"", b"hello"]]
    assert side.give() == answer
    assert side.machine.ping() == b""
    assert side.machine.refuse("no") == b""


@given(st.lists(FRAMES, max_size=5), st.integers(1, 700))
def test_messages_are_read_in_any_pieces(messages: list[list[bytes]], size: int) -> None:
    side = in_traffic()
    data = b"".join(message_1(*frames) for frames in messages)
    for start in range(0, len(data), size):
        side.take(data[start : start + size])
    assert side.messages == messages
    assert side.machine.pending == 0


@given(st.lists(FRAMES, max_size=5), st.integers(1, 700))
def test_messages_are_written_in_any_pieces(messages: list[list[bytes]], size: int) -> None:
    out = Version1Output([b"before"])
    data = b"".join(map(message, messages))
    for start in range(0, len(data), size):
        out.append(data[start : start + size])
    out += []
    assert b"".join(out) == b"before" + b"".join(message_1(*frames) for frames in messages)


def test_reserved_flags_of_messages_are_ignored() -> None:
    side = in_traffic()
    side.take(b"\x01\x03\x03\x82hi")
    assert side.messages == [[b"", b"hi"]]


def test_limits_are_those_of_the_later_versions() -> None:
    side = in_traffic(FrameLimits(frame=1_000, message=2_000, frames=3))
    with pytest.raises(ZmtpError) as refusal:
        side.take(b"\xff" + (2**40).to_bytes(8, "big") + b"\0")
    assert refusal.value.fault is Fault.TOO_LARGE
    side = in_traffic(FrameLimits(frame=1_000, message=2_000, frames=3))
    with pytest.raises(ZmtpError):
        side.take(b"\x01\x01" * 10)


def test_a_frame_counts_its_flags() -> None:
    with pytest.raises(ZmtpError) as refusal:
        in_traffic().take(b"\0\0hi")
    assert refusal.value.fault is Fault.FRAME
