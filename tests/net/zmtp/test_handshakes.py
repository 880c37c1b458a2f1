"""Handshakes: NULL and version 2.0, in both roles, and each way in which they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from broker.net.zmtp import frames
from broker.net.zmtp.frames import LONG, MAX_HANDSHAKE, Fault, FrameLimits, ZmtpError, command, message
from broker.net.zmtp.machine import MAX_IDENTITY, Claim, Machine, Null, ZmtpState, error
from tests.net.zmtp.conversation import (
    GREETING,
    GREETING_2,
    READY,
    SIGNATURE,
    Side,
    bytewise,
    converse,
    router,
    whole,
)
from tests.net.zmtp.curve_sides import server_side

DEALER = {frames.SOCKET_TYPE: b"DEALER", frames.IDENTITY: b"me"}


def ready(*properties: tuple[bytes, bytes]) -> bytes:
    return command(b"READY", frames.encode_metadata(properties))


def refused(side: Side, data: bytes) -> ZmtpError:
    """The error by which octets are refused. Afterwards nothing is decoded, held or sent any more."""
    with pytest.raises(ZmtpError) as refusal:
        side.take(data)
    assert side.machine.state is ZmtpState.FAILED
    side.give()
    side.take(GREETING + READY + b"\0\x01a")
    assert (side.output, side.messages, side.machine.pending) == (b"", [], 0)
    return refusal.value


# whole handshakes


@pytest.mark.parametrize("pieces", [whole, bytewise])
def test_two_of_ours_come_to_traffic(pieces: Callable[[bytes], Iterable[bytes]]) -> None:
    one = Side(router())
    other = Side(Machine(Null(False), "DEALER", FrameLimits(), b"me", frozenset([b"ROUTER"])))
    converse(one, other, pieces)
    assert one.claims == [Claim(DEALER)]
    assert other.claims == [Claim({frames.SOCKET_TYPE: b"ROUTER", frames.IDENTITY: b""})]
    assert (one.machine.state, other.machine.state) == (ZmtpState.TRAFFIC, ZmtpState.TRAFFIC)
    assert (one.machine.version, one.machine.minor) == (3, 1)
    for sender, receiver in ((one, other), (other, one)):
        assert sender.machine.encoder is not None
        sender.output += sender.machine.encoder.message([b"", b"x" * 300])
        sender.output += sender.machine.ping()
        converse(one, other, pieces)
        assert receiver.messages == [[b"", b"x" * 300]]


CONVERSATIONS = {
    "NULL": GREETING + READY,
    "version 2.0": GREETING_2,
    "version 3.0": SIGNATURE + b"\x03\0NULL" + bytes(48) + READY,
    "version 4.7": SIGNATURE + b"\x04\x07NULL" + bytes(48) + READY,
    "a size of eight octets": GREETING + b"\x06" + len(READY[2:]).to_bytes(8, "big") + READY[2:],
}


@pytest.mark.parametrize("octets", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_client_that_sends_everything_at_once_or_in_any_pieces_is_taken(octets: bytes) -> None:
    traffic = message([b"", b"first"]) + message([b"second"])
    reference = Side(router())
    reference.take(octets)
    said = reference.give()
    data = octets + traffic
    for pieces in ([data], list(bytewise(data)), *([data[:at], data[at:]] for at in range(len(data)))):
        side = Side(router())
        for piece in pieces:
            side.take(piece)
        assert side.claims == [Claim(DEALER)]
        assert side.messages == [[b"", b"first"], [b"second"]]
        assert side.give() == said
        assert side.machine.pending == 0


@pytest.mark.parametrize("octets", CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_traffic_behind_the_handshake_waits_until_the_claim_is_accepted(octets: bytes) -> None:
    machine = router()
    first, second, third = (message([each]) for each in (b"first", b"second", b"third"))
    events = list(machine.feed(octets + first + second[:2]))
    assert events[-1] == Claim(DEALER)
    assert machine.state is ZmtpState.CLAIMED
    assert list(machine.feed(second[2:])) == []
    assert machine.pending == len(first + second)
    machine.accept()
    assert machine.pending == len(first + second)
    assert list(machine.feed(b"")) == [[b"first"], [b"second"]]
    assert machine.pending == 0
    assert list(machine.feed(b"")) == []
    # Another read may come before: the order is kept.
    machine = router()
    list(machine.feed(octets + first + second[:2]))
    machine.accept()
    assert list(machine.feed(second[2:] + third)) == [[b"first"], [b"second"], [b"third"]]


def test_what_is_held_for_a_claim_is_bounded() -> None:
    limits = FrameLimits(frame=1_000, message=2_000)
    machine = router(limits=limits)
    list(machine.feed(GREETING + READY))
    read = bytes(1_500)
    assert list(machine.feed(read)) == list(machine.feed(read)) == []
    with pytest.raises(ZmtpError) as refusal:
        list(machine.feed(read))
    assert refusal.value.fault is Fault.TOO_LARGE
    assert machine.pending == 0


def test_a_claim_may_be_refused_with_a_reason() -> None:
    machine = router()
    list(machine.feed(GREETING + READY + b"\0\x01a"))
    assert machine.refuse("no room") == b"\x04\x0e\x05ERROR\x07no room"
    assert (machine.state, machine.pending) == (ZmtpState.FAILED, 0)
    assert list(machine.feed(b"\0\x01a")) == []


# version 2.0


def test_a_peer_of_version_2_gets_our_socket_type_and_an_empty_identity_instead_of_commands() -> None:
    side = Side(router())
    side.take(GREETING_2[:11])
    assert side.give() == SIGNATURE + b"\x03" + b"\x06\0\0"
    side.take(GREETING_2[11:])
    assert side.give() == b""
    assert (side.machine.version, side.machine.state) == (2, ZmtpState.TRAFFIC)
    side.take(b"\x01\0\x00\x01a")
    assert side.messages == [[b"", b"a"]]
    assert side.machine.ping() == b""


def test_a_client_speaks_version_2_with_a_service_that_has_no_later_one() -> None:
    side = Side(Machine(Null(False), "DEALER", FrameLimits(), b"me", frozenset([b"ROUTER"])))
    side.take(SIGNATURE + b"\x01")
    assert side.give() == SIGNATURE + b"\x03" + b"\x05\0\x02me"
    side.take(b"\x06\0\0" + b"\0\x01a")
    assert (side.machine.version, side.machine.state) == (2, ZmtpState.TRAFFIC)
    assert side.messages == [[b"a"]]
    assert side.give() == b""


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (b"\x02\0\0", Fault.HANDSHAKE),  # SUB
        (b"\x0b\0\0", Fault.HANDSHAKE),  # no socket type
        (b"\xff\0\0", Fault.HANDSHAKE),
        (b"\x05\x01\0", Fault.HANDSHAKE),  # more identity
        (b"\x05\x02" + bytes(8), Fault.HANDSHAKE),  # a long one
        (b"\x05\0\0" + READY, Fault.FRAME),  # commands came with 3.0
    ],
)
def test_what_a_peer_of_version_2_may_not_say(octets: bytes, fault: Fault) -> None:
    side = Side(router())
    side.take(GREETING_2[:11])
    refusal = refused(side, octets)
    assert refusal.fault is fault
    assert refusal.reply == b""  # it has no ERROR


def test_an_identity_of_version_2_may_have_255_octets() -> None:
    side = Side(router())
    side.take(GREETING_2[:11] + b"\x03\0\xff" + b"i" * 255)
    assert side.claims == [Claim({frames.SOCKET_TYPE: b"REQ", frames.IDENTITY: b"i" * 255})]


def test_version_2_is_for_routers_without_a_mechanism() -> None:
    assert refused(Side(server_side()), GREETING_2).fault is Fault.GREETING


# refusals


@pytest.mark.parametrize(
    "socket_type", [b"SUB", b"PUSH", b"REP", b"PUB", b"XPUB", b"PAIR", b"router", b"DEALER\0", b""]
)
def test_a_socket_that_does_not_go_with_ours_is_told_why(socket_type: bytes) -> None:
    properties = frames.encode_metadata([(b"Socket-Type", socket_type), (b"Identity", b"me")])
    side = Side(router())
    refusal = refused(side, GREETING + command(b"READY", properties))
    assert refusal.fault is Fault.HANDSHAKE
    assert refusal.reply == error(refusal.text)
    assert side.claims == []


def test_a_socket_without_a_type_or_metadata_is_served_as_by_libzmq() -> None:
    for octets in (ready(), ready((b"Identity", b"me"))):
        side = Side(router())
        side.take(GREETING + octets)
        assert frames.SOCKET_TYPE not in side.claims[0].properties


def test_an_identity_has_255_bytes_at_most() -> None:
    octets = ready((b"Socket-Type", b"DEALER"), (b"Identity", b"i" * (MAX_IDENTITY + 1)))
    refusal = refused(Side(router()), GREETING + octets)
    assert refusal.fault is Fault.HANDSHAKE
    assert refusal.reply == error(refusal.text)


@pytest.mark.parametrize("identity", [b"", b"a", b"a\0b", b"\xff", b"i" * MAX_IDENTITY])
def test_identities_that_peers_may_have(identity: bytes) -> None:
    side = Side(router())
    side.take(GREETING + ready((b"Socket-Type", b"DEALER"), (b"Identity", identity)))
    assert [claim.properties[frames.IDENTITY] for claim in side.claims] == [identity]


NULL_REFUSED = {
    "another command": (command(b"HELLO", b""), Fault.HANDSHAKE),
    "a name in small letters": (command(b"ready", READY[8:]), Fault.HANDSHAKE),
    "a heartbeat": (command(b"PING", b"\0\0"), Fault.HANDSHAKE),
    "octets behind the metadata": (command(b"READY", READY[8:] + b"\0"), Fault.HANDSHAKE),
    "a message": (message([b"a"]), Fault.HANDSHAKE),
    "a frame with more": (b"\x01\x01a", Fault.HANDSHAKE),
    "a command with more": (b"\x05" + READY[1:], Fault.HANDSHAKE),
    "a reserved flag": (b"\x0c" + READY[1:], Fault.HANDSHAKE),
    "no name": (b"\x04\0", Fault.HANDSHAKE),
    "an empty name": (b"\x04\x01\0", Fault.HANDSHAKE),
    "a name beyond the end": (b"\x04\x03\x05REA", Fault.HANDSHAKE),
    "a refusal": (error("no"), Fault.REFUSED),
    "a refusal without a reason": (command(b"ERROR", b""), Fault.REFUSED),
    "a refusal whose reason is cut off": (command(b"ERROR", b"\xffno"), Fault.REFUSED),
}


@pytest.mark.parametrize(("octets", "fault"), NULL_REFUSED.values(), ids=NULL_REFUSED)
@pytest.mark.parametrize("as_server", [False, True])
def test_what_is_no_ready(octets: bytes, fault: Fault, as_server: bool) -> None:
    machine = Machine(Null(as_server), "ROUTER" if as_server else "DEALER", FrameLimits())
    assert refused(Side(machine), GREETING + octets).fault is fault


def test_the_reason_of_the_other_side_is_shown_and_cannot_break_a_line() -> None:
    refusal = refused(Side(router()), GREETING + command(b"ERROR", b"\x0cno\n\x1b[31m\xffred"))
    assert refusal.text == "the other side refused: 'no\\n\\x1b[31m\\xffred'"


# bounds


def test_the_size_of_a_command_is_bounded_before_it_comes() -> None:
    size = MAX_HANDSHAKE + 1
    header = bytes((4 | LONG,)) + size.to_bytes(8, "big")
    side = Side(router())
    side.take(GREETING)
    for octet in bytewise(header[:-1]):
        side.take(octet)
    refusal = refused(side, header[-1:])
    assert refusal.fault is Fault.TOO_LARGE


def test_a_command_of_the_greatest_size_is_taken() -> None:
    properties = frames.encode_metadata([(b"Socket-Type", b"DEALER"), (b"x", b"")])
    padding = MAX_HANDSHAKE - len(b"\x05READY") - len(properties)
    octets = ready((b"Socket-Type", b"DEALER"), (b"x", b"y" * padding))
    assert len(octets) == 9 + MAX_HANDSHAKE
    side = Side(router())
    for octet in bytewise(GREETING + octets):
        side.take(octet)
        assert side.machine.pending <= 9 + MAX_HANDSHAKE
    assert len(side.claims) == 1


@pytest.mark.parametrize("size", [2**31, 2**63, 2**64 - 1])
def test_an_absurd_size_is_refused(size: int) -> None:
    assert refused(Side(router()), GREETING + b"\x06" + size.to_bytes(8, "big")).fault is Fault.TOO_LARGE


# commands of traffic


def test_commands_that_a_router_does_not_know_are_ignored() -> None:
    side = Side(router())
    side.take(GREETING + READY)
    side.give()
    for octets in (
        READY,  # again
        error("too late"),
        command(b"SUBSCRIBE", b"topic"),
        command(b"CANCEL", b"topic"),
        command(b"JOIN", b"group"),
        command(b"PONG", b"context"),
        command(b"ping", b""),
        command(b"\xff", b""),
        b"\0\x01a",
    ):
        side.take(octets)
    assert (side.messages, side.give(), len(side.claims)) == ([[b"a"]], b"", 1)


@pytest.mark.parametrize(
    ("data", "context"),
    [(b"\0\0", b""), (b"\0\x0a", b""), (b"\xff\xffcontext", b"context"), (b"\0\0" + b"c" * 17, b"c" * 16)],
)
def test_a_ping_is_answered_with_its_context(data: bytes, context: bytes) -> None:
    for pieces in (whole, bytewise):
        side = Side(router())
        side.take(GREETING + READY)
        side.give()
        for piece in pieces(b"\x01\x01a" + command(b"PING", data) + b"\0\x01b"):
            side.take(piece)
        assert side.give() == command(b"PONG", context)
        assert side.messages == [[b"a", b"b"]]


@pytest.mark.parametrize("data", [b"", b"\0"])
def test_a_ping_without_a_time_to_live_is_refused(data: bytes) -> None:
    side = Side(router())
    side.take(GREETING + READY)
    assert refused(side, command(b"PING", data)).fault is Fault.FRAME


def test_a_ping_of_ours_goes_to_peers_that_know_it() -> None:
    for minor, ping in ((0, b""), (1, b"\x04\x07\x04PING\0\0"), (2, b"\x04\x07\x04PING\0\0")):
        machine = router()
        octets = SIGNATURE + bytes((3, minor)) + b"NULL" + bytes(48) + READY
        assert machine.ping() == b""
        list(machine.feed(octets))
        assert machine.ping() == b""  # it would come before our READY
        machine.accept()
        assert machine.ping() == ping
        machine.fail()
        assert machine.ping() == b""


def test_the_reason_of_a_refusal_fits_its_length_and_is_ascii() -> None:
    assert error("no") == b"\x04\x09\x05ERROR\x02no"
    assert error("né") == b"\x04\x09\x05ERROR\x02n?"
    assert len(error("x" * 1_000)) == 9 + 6 + 1 + 255
