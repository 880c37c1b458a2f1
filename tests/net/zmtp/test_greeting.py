"""The greeting: versions that are spoken, and noise, which is refused by its first octet that is wrong."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.zmtp.frames import Fault, FrameLimits, ZmtpError
from broker.net.zmtp.machine import (
    GREETING_SIZE,
    OPENING,
    SOCKET_TYPES,
    Greeting,
    Machine,
    Null,
    greeting_rest,
    greeting_version,
    parse_greeting,
)
from tests.net.zmtp.conversation import GREETING, GREETING_2, PLAIN, SIGNATURE, Side, bytewise, router
from tests.net.zmtp.curve_sides import client_side, server_side


def refused_after(data: bytes) -> int:
    """The number of octets after which a ROUTER without a mechanism refuses what comes byte by byte; 0 for never."""
    side = Side(router())
    for at, octet in enumerate(bytewise(data)):
        try:
            side.take(octet)
        except ZmtpError as error:
            assert error.fault in (Fault.GREETING, Fault.HANDSHAKE, Fault.FRAME)
            assert error.reply == b""
            return at + 1
    return 0


def test_our_greeting_is_that_of_libzmq() -> None:
    assert OPENING + greeting_rest(b"NULL", False) == GREETING
    assert OPENING + greeting_rest(b"PLAIN", False) == PLAIN
    assert len(OPENING + greeting_rest(b"CURVE", True)) == GREETING_SIZE
    assert (OPENING + greeting_rest(b"CURVE", True))[32] == 1


def test_greetings_are_read_once_they_are_complete() -> None:
    trailing = b"\x04\x06\x05READY"
    for octets, expected in (
        (GREETING, Greeting(3, 1, b"NULL")),
        (PLAIN, Greeting(3, 1, b"PLAIN")),
        (OPENING + greeting_rest(b"CURVE", True), Greeting(3, 1, b"CURVE", True)),
        (SIGNATURE + b"\x03\0NULL" + bytes(48), Greeting(3, 0, b"NULL")),
    ):
        for end in range(GREETING_SIZE):
            assert parse_greeting(octets[:end]) is None
            assert greeting_version(octets[:end]) == (3 if end > 10 else 0)
        assert parse_greeting(octets) == (expected, b"")
        assert parse_greeting(octets + trailing) == (expected, trailing)


def test_a_later_version_counts_as_ours_whatever_its_minor_version() -> None:
    minor = 7
    for major in range(3, 256):
        parsed = parse_greeting(SIGNATURE + bytes((major, minor)) + b"NULL" + bytes(48))
        assert parsed == (Greeting(3, minor if major == 3 else 1, b"NULL"), b""), major


@pytest.mark.parametrize("revision", [1, 2])
def test_version_2_ends_at_its_revision(revision: int) -> None:
    octets = SIGNATURE + bytes((revision,)) + GREETING_2[11:]
    assert [greeting_version(octets[:end]) for end in (9, 10, 11, 12)] == [0, 0, 2, 2]
    assert parse_greeting(octets[:10]) is None
    assert parse_greeting(octets) == (Greeting(2, 0), GREETING_2[11:])


def test_the_padding_of_the_signature_may_be_anything() -> None:
    # libzmq has the length of the identity there, for version 1.0.
    octets = b"\xff\x01\x02\x03\x04\x05\x06\x07\x08\x7f" + GREETING[10:]
    assert parse_greeting(octets) == (Greeting(3, 1, b"NULL"), b"")


@pytest.mark.parametrize(
    ("noise", "after"),
    [
        (b"\xff\0\0\0\0\0\0\x01\x01\0" + bytes(256), 10),  # an identity of 256 bytes
        (b"\xff\0\0\0\0\0\0\x01\x01\x02" + bytes(256), 10),
        (SIGNATURE + b"\0\x0b", 12),  # a socket type that there is not
        (SIGNATURE + b"\0\x05\0\0", 14),  # a frame of ZMTP 1.0 without flags
        (b"GET / HTTP/1.1\r\n\r\n", 2),
        (b"\x16\x03\x01\x02\0", 2),  # TLS
        (b"\0", 1),
        (b"{}", 2),
        (b"\xff" * 64, 10),
        (b"\xff" + bytes(63), 10),
        (b"\xff" + bytes(8) + b"\x80" + bytes(54), 10),
    ],
)
def test_noise_is_refused_by_the_first_octet_that_is_wrong(noise: bytes, after: int) -> None:
    assert refused_after(noise) == after


@given(st.binary(min_size=1, max_size=80))
def test_what_begins_otherwise_is_refused(noise: bytes) -> None:
    # The flags of the first frame of ZMTP 1.0 are 0, or 1.
    if noise[0] == 0:
        assert refused_after(noise) == 1
    elif noise[0] != 0xFF and len(noise) > 1 and noise[1] > 1:
        assert refused_after(noise) == 2
    elif noise[0] == 0xFF and len(noise) > 9 and noise[9] != 0x7F and noise[9] > 1:
        assert refused_after(noise) == 10


def test_a_client_refuses_version_1_by_the_first_octet() -> None:
    with pytest.raises(ZmtpError) as refusal:
        greeting_version(b"\x01", oldest=2)
    assert refusal.value.fault is Fault.GREETING
    with pytest.raises(ZmtpError):
        greeting_version(SIGNATURE + b"\0", oldest=2)


def test_the_reason_shows_a_few_octets_and_no_more() -> None:
    with pytest.raises(ZmtpError) as refusal:
        greeting_version(b"GET /a\nb" + b"x" * 60_000)
    assert "GET /a\\nbxxxx" in refusal.value.text
    assert len(refusal.value.text) < 100


@pytest.mark.parametrize(
    "mechanism",
    [b"PLAIN", b"CURVE", b"GSSAPI", b"", b"null", b"NUL", b"NULLX", b"N\0LL", b"NULL\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0x"],
)
def test_another_mechanism_is_refused(mechanism: bytes) -> None:
    side = Side(router())
    with pytest.raises(ZmtpError) as refusal:
        side.take(SIGNATURE + b"\x03\x01" + mechanism.ljust(20, b"\0") + bytes(32))
    assert refusal.value.fault is Fault.MECHANISM
    assert side.output == GREETING  # so the peer learns which one is spoken


def test_a_server_refuses_another_server() -> None:
    with pytest.raises(ZmtpError) as refusal:
        Side(server_side()).take(OPENING + greeting_rest(b"CURVE", True))
    assert refusal.value.fault is Fault.MECHANISM


def test_a_client_takes_a_server_that_does_not_say_so() -> None:
    # libzmq leaves the octet zero in both roles.
    for as_server in (False, True):
        Side(client_side()).take(OPENING + greeting_rest(b"CURVE", as_server))


def test_as_server_says_nothing_without_a_mechanism() -> None:
    Side(router()).take(OPENING + greeting_rest(b"NULL", True))


def test_neither_side_waits_for_more_than_the_version() -> None:
    side = Side(router())
    assert side.give() == SIGNATURE
    side.take(SIGNATURE)
    assert side.give() == b"\x03"
    side.take(b"\x03")
    assert side.give() == GREETING[len(OPENING) :]


@pytest.mark.parametrize("make", [client_side, server_side, lambda: Machine(Null(False), "DEALER", FrameLimits())])
def test_a_side_that_does_not_speak_version_1_sends_its_version_at_once(make: Callable[[], Machine]) -> None:
    assert Side(make()).give() == OPENING


def test_socket_types_have_their_numbers_of_version_2() -> None:
    assert SOCKET_TYPES[5] == "DEALER"
    assert SOCKET_TYPES[6] == "ROUTER"
    assert SOCKET_TYPES[10] == "XSUB"
