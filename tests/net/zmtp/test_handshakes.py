"""Handshakes: NULL, PLAIN and version 2.0, in both roles, and each way in which they are refused."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from broker.net.zmtp import metadata
from broker.net.zmtp.errors import Fault, ZmtpError
from broker.net.zmtp.frames import LONG, command, message
from broker.net.zmtp.limits import MAX_HANDSHAKE, FrameLimits
from broker.net.zmtp.machine import MAX_IDENTITY, Machine, ZmtpState, error
from broker.net.zmtp.mechanism import Claim, Mechanism
from broker.net.zmtp.null import Null
from broker.net.zmtp.plain import PlainClient, PlainServer
from tests.net.zmtp.conversation import (
    GREETING,
    GREETING_2,
    HELLO,
    INITIATE,
    PLAIN,
    READY,
    SIGNATURE,
    Side,
    bytewise,
    converse,
    router,
    whole,
)

DEALER = {metadata.SOCKET_TYPE: b"DEALER", metadata.IDENTITY: b"me"}


def ready(*properties: tuple[bytes, bytes]) -> bytes:
    return command(b"READY", metadata.encode(properties))


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
@pytest.mark.parametrize(
    ("server", "client", "claim"),
    [
        (lambda: Null(True), lambda: Null(False), Claim(DEALER)),
        (PlainServer, lambda: PlainClient(b"user", b"word"), Claim(DEALER, b"", b"user", b"word")),
        (PlainServer, lambda: PlainClient(b"", b""), Claim(DEALER)),
        (PlainServer, lambda: PlainClient(b"u" * 255, b"p" * 255), Claim(DEALER, b"", b"u" * 255, b"p" * 255)),
    ],
)
def test_two_of_ours_come_to_traffic(
    pieces: Callable[[bytes], Iterable[bytes]],
    server: Callable[[], Mechanism],
    client: Callable[[], Mechanism],
    claim: Claim,
) -> None:
    one = Side(router(server()))
    other = Side(Machine(client(), "DEALER", FrameLimits(), b"me", frozenset([b"ROUTER"])))
    converse(one, other, pieces)
    assert one.claims == [claim]
    assert other.claims == [Claim({metadata.SOCKET_TYPE: b"ROUTER", metadata.IDENTITY: b""})]
    assert (one.machine.state, other.machine.state) == (ZmtpState.TRAFFIC, ZmtpState.TRAFFIC)
    assert (one.machine.version, one.machine.minor) == (3, 1)
    for sender, receiver in ((one, other), (other, one)):
        assert sender.machine.encoder is not None
        sender.output += sender.machine.encoder.message([b"", b"x" * 300])
        sender.output += sender.machine.ping()
        converse(one, other, pieces)
        assert receiver.messages == [[b"", b"x" * 300]]


def test_a_password_is_not_shown() -> None:
    assert "secret" not in repr(Claim({}, b"", b"user", b"secret"))


CONVERSATIONS = {
    "NULL": (lambda: Null(True), GREETING + READY, Claim(DEALER)),
    "PLAIN": (
        PlainServer,
        PLAIN + HELLO + INITIATE,
        Claim({metadata.SOCKET_TYPE: b"DEALER", metadata.IDENTITY: b""}, b"", b"u", b"p"),
    ),
    "version 2.0": (lambda: Null(True), GREETING_2, Claim(DEALER)),
    "version 3.0": (lambda: Null(True), SIGNATURE + b"\x03\0NULL" + bytes(48) + READY, Claim(DEALER)),
    "version 4.7": (lambda: Null(True), SIGNATURE + b"\x04\x07NULL" + bytes(48) + READY, Claim(DEALER)),
    "a size of eight octets": (
        lambda: Null(True),
        GREETING + b"\x06" + len(READY[2:]).to_bytes(8, "big") + READY[2:],
        Claim(DEALER),
    ),
}


@pytest.mark.parametrize(("mechanism", "octets", "claim"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_a_client_that_sends_everything_at_once_or_in_any_pieces_is_taken(
    mechanism: Callable[[], Mechanism], octets: bytes, claim: Claim
) -> None:
    traffic = message([b"", b"first"]) + message([b"second"])
    reference = Side(router(mechanism()))
    reference.take(octets)
    said = reference.give()
    data = octets + traffic
    for pieces in ([data], list(bytewise(data)), *([data[:at], data[at:]] for at in range(len(data)))):
        side = Side(router(mechanism()))
        for piece in pieces:
            side.take(piece)
        assert side.claims == [claim]
        assert side.messages == [[b"", b"first"], [b"second"]]
        assert side.give() == said
        assert side.machine.pending == 0


@pytest.mark.parametrize(("mechanism", "octets", "claim"), CONVERSATIONS.values(), ids=CONVERSATIONS)
def test_traffic_behind_the_handshake_waits_until_the_claim_is_accepted(
    mechanism: Callable[[], Mechanism], octets: bytes, claim: Claim
) -> None:
    machine = router(mechanism())
    first, second, third = (message([each]) for each in (b"first", b"second", b"third"))
    events = list(machine.feed(octets + first + second[:2]))
    assert events[-1] == claim
    assert machine.state is ZmtpState.CLAIMED
    assert list(machine.feed(second[2:])) == []
    assert machine.pending == len(first + second)
    machine.accept()
    assert machine.pending == len(first + second)
    assert list(machine.feed(b"")) == [[b"first"], [b"second"]]
    assert machine.pending == 0
    assert list(machine.feed(b"")) == []
    # Another read may come before: the order is kept.
    machine = router(mechanism())
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
    assert side.claims == [Claim({metadata.SOCKET_TYPE: b"REQ", metadata.IDENTITY: b"i" * 255})]


@pytest.mark.parametrize(
    "machine",
    [
        lambda: router(PlainServer()),
        lambda: Machine(PlainClient(b"u", b"p"), "ROUTER", FrameLimits()),
    ],
)
def test_version_2_is_for_routers_without_a_mechanism(machine: Callable[[], Machine]) -> None:
    assert refused(Side(machine()), GREETING_2).fault is Fault.MECHANISM


# refusals


@pytest.mark.parametrize("mechanism", ["NULL", "PLAIN"])
@pytest.mark.parametrize(
    "socket_type", [b"SUB", b"PUSH", b"REP", b"PUB", b"XPUB", b"PAIR", b"router", b"DEALER\0", b""]
)
def test_a_socket_that_does_not_go_with_ours_is_told_why(mechanism: str, socket_type: bytes) -> None:
    properties = metadata.encode([(b"Socket-Type", socket_type), (b"Identity", b"me")])
    if mechanism == "NULL":
        side, octets = Side(router()), GREETING + command(b"READY", properties)
    else:
        side, octets = Side(router(PlainServer())), PLAIN + HELLO + command(b"INITIATE", properties)
    refusal = refused(side, octets)
    assert refusal.fault is Fault.HANDSHAKE
    assert refusal.reply == error(refusal.text)
    assert side.claims == []


def test_a_socket_without_a_type_or_metadata_is_served_as_by_libzmq() -> None:
    for octets in (ready(), ready((b"Identity", b"me"))):
        side = Side(router())
        side.take(GREETING + octets)
        assert metadata.SOCKET_TYPE not in side.claims[0].properties


def test_an_identity_has_255_bytes_at_most() -> None:
    octets = ready((b"Socket-Type", b"DEALER"), (b"Identity", b"i" * (MAX_IDENTITY + 1)))
    refusal = refused(Side(router()), GREETING + octets)
    assert refusal.fault is Fault.HANDSHAKE
    assert refusal.reply == error(refusal.text)


@pytest.mark.parametrize("identity", [b"", b"a", b"a\0b", b"\xff", b"i" * MAX_IDENTITY])
def test_identities_that_peers_may_have(identity: bytes) -> None:
    side = Side(router())
    side.take(GREETING + ready((b"Socket-Type", b"DEALER"), (b"Identity", identity)))
    assert [claim.properties[metadata.IDENTITY] for claim in side.claims] == [identity]


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


@pytest.mark.parametrize(
    "octets",
    [
        INITIATE,
        command(b"READY", b""),
        HELLO + HELLO,
        command(b"HELLO", b""),
        command(b"HELLO", b"\x01"),
        command(b"HELLO", b"\x01u"),
        command(b"HELLO", b"\x01u\x01"),
        command(b"HELLO", b"\x01u\x01pp"),
        command(b"HELLO", b"\xffu\x01p"),
        HELLO + command(b"INITIATE", b"\x01"),
        HELLO + message([b"a"]),
    ],
)
def test_what_a_plain_server_refuses(octets: bytes) -> None:
    assert refused(Side(router(PlainServer())), PLAIN + octets).fault is Fault.HANDSHAKE


@pytest.mark.parametrize(
    ("octets", "fault"),
    [
        (command(b"READY", b""), Fault.HANDSHAKE),
        (command(b"WELCOME", b"") * 2, Fault.HANDSHAKE),
        (command(b"WELCOME", b"") + command(b"READY", b"\x01"), Fault.HANDSHAKE),
        (error("400"), Fault.REFUSED),
        (b"\x04\x09^RROR\x03400", Fault.REFUSED),  # as libzmq spells it
        (command(b"WELCOME", b"") + error("400"), Fault.REFUSED),
    ],
)
def test_what_a_plain_client_refuses(octets: bytes, fault: Fault) -> None:
    side = Side(Machine(PlainClient(b"u", b"p"), "DEALER", FrameLimits()))
    as_server = PLAIN[:32] + b"\x01" + bytes(31)
    assert refused(side, as_server + octets).fault is fault


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
    properties = metadata.encode([(b"Socket-Type", b"DEALER"), (b"x", b"")])
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
