"""The ZMTP codec: whatever octets come, only ZmtpError comes out, and no more is held than the limits and one read."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.net.zmtp.frames import MAX_HANDSHAKE, FrameLimits, ZmtpError, command, message
from broker.net.zmtp.machine import Claim, Machine, Null, Output, ZmtpState, error
from tests.examples import examples
from tests.net.zmtp.conversation import GREETING, GREETING_2, HELLO, INITIATE, READY, ROUTER_PEERS
from tests.net.zmtp_peers import message_1

LIMITS = FrameLimits(frame=2_000, message=5_000, frames=20)

MOST = max(LIMITS.message, MAX_HANDSHAKE + 9)
"""Bytes that may be pending besides those of one read."""

ROUNDS = examples(80)
"""Conversations of each test with its own seed."""

TRAFFIC = (
    message([b"", b"PUT", b"TOPIC", b"t", b"", b"body" * 50])
    + command(b"PING", b"\0\x0acontext")
    + message([b"x" * 300, b"", b"y" * 1_500])
    + command(b"SUBSCRIBE", b"topic")
    + message([b"%d" % number for number in range(20)])
    + message([b"z"])
)

GREETING_1 = b"\x03\0me"
"""All that a DEALER of libzmq 2 with an identity sends before its messages."""

NULL_CLIENT = GREETING + READY
NULL_SERVER = GREETING + command(b"READY", b"\x0bSocket-Type\0\0\0\x06ROUTER\x08Identity\0\0\0\0")

Role = tuple[Callable[[], Machine], bytes]

ROLES: dict[str, Role] = {
    "a NULL server": (lambda: Machine(Null(True), "ROUTER", LIMITS, peers=ROUTER_PEERS), NULL_CLIENT),
    "a NULL server, version 2.0": (lambda: Machine(Null(True), "ROUTER", LIMITS, peers=ROUTER_PEERS), GREETING_2),
    "a NULL server, version 1.0": (
        lambda: Machine(Null(True), "ROUTER", LIMITS, peers=ROUTER_PEERS),
        GREETING_1,
    ),
    "a NULL client": (lambda: Machine(Null(False), "DEALER", LIMITS, b"me"), NULL_SERVER),
}

PIECES = [
    b"",
    GREETING,
    GREETING_1,
    GREETING_2,
    READY,
    HELLO,
    INITIATE,
    error("no"),
    TRAFFIC,
    b"\x06" + b"\xff" * 8,
    b"\x02" * 9,
]


def talk(machine: Machine, reads: list[bytes], random: Random, refusing: bool = True) -> int:
    """Feed these reads, accept a claim sooner or later or refuse it, and go on after failures. Returns the messages."""
    reads = [*reads, *[b""] * 30]  # by then a claim that waits is accepted
    count = 0
    largest = 0
    for read in reads:
        largest = max(largest, len(read))
        failed = machine.state is ZmtpState.FAILED
        try:
            for event in machine.feed(read):
                assert not failed
                assert event is None or isinstance(event, (list, Claim, Output))
                if isinstance(event, list):
                    count += 1
                    assert 1 <= len(event) <= LIMITS.frames
                    assert sum(map(len, event)) <= LIMITS.message
                    assert all(type(frame) is bytes for frame in event)
                elif isinstance(event, Claim) and random.random() < 0.7:
                    machine.accept()
        except ZmtpError as refusal:
            assert not failed
            assert machine.state is ZmtpState.FAILED
            assert len(refusal.text) < 1_000
            assert refusal.text.isprintable()
        if machine.state is ZmtpState.CLAIMED:
            if random.random() < 0.5:
                machine.accept()
            elif refusing and random.random() < 0.05:
                machine.refuse("no")
        assert machine.pending <= MOST + largest
        if machine.state is ZmtpState.FAILED:
            assert machine.pending == 0
    return count


def cut(octets: bytes, random: Random) -> list[bytes]:
    """The same in reads of random sizes."""
    reads, at = [], 0
    most = random.choice([1, 10, 100, 10_000])
    while at < len(octets):
        size = random.randint(1, most)
        reads.append(octets[at : at + size])
        at += size
    return reads


def mutated(octets: bytes, random: Random) -> bytes:
    """The same with a few octets changed, taken out, doubled or put in."""
    for _ in range(random.randint(1, 4)):
        at = random.randrange(len(octets) + 1)
        end = min(len(octets), at + random.randint(0, 12))
        change = random.randrange(5)
        if change == 0:
            octets = octets[:at] + random.randbytes(end - at) + octets[end:]
        elif change == 1:
            octets = octets[:at] + octets[end:]
        elif change == 2:
            octets = octets[:end] + octets[at:]
        elif change == 3:
            octets = octets[:at] + random.choice(PIECES) + octets[at:]
        elif at < len(octets):
            octets = octets[:at] + bytes((octets[at] ^ 1 << random.randrange(8),)) + octets[at + 1 :]
    return octets


@pytest.mark.parametrize("role", ROLES)
def test_a_conversation_that_is_not_changed_comes_through(role: str) -> None:
    create, handshake = ROLES[role]
    for seed in range(examples(20)):
        random = Random(seed)
        traffic = {GREETING_1: message_1(b"x" * 300, b"y") * 4, GREETING_2: message([b"a"]) * 4}.get(handshake, TRAFFIC)
        assert talk(create(), cut(handshake + traffic, random), random, refusing=False) == 4


@pytest.mark.parametrize("role", ROLES)
def test_a_conversation_with_faults_ends_in_order(role: str) -> None:
    create, handshake = ROLES[role]
    whole = 0
    for seed in range(ROUNDS):
        random = Random(seed)
        octets = mutated(handshake + TRAFFIC, random)
        whole += talk(create(), cut(octets, random), random) > 0
    assert whole > ROUNDS // 20  # it does not always end at once


@pytest.mark.parametrize("role", ROLES)
@pytest.mark.parametrize("stage", ["greeting", "handshake", "traffic"])
def test_noise_at_each_stage_ends_in_order(role: str, stage: str) -> None:
    create, handshake = ROLES[role]
    begin = {"greeting": 0, "handshake": 11 if handshake == GREETING_2 else 64, "traffic": len(handshake)}[stage]
    for seed in range(ROUNDS // 2):
        random = Random(seed)
        noise = random.randbytes(random.choice([1, 20, 3_000]))
        if random.random() < 0.5:  # flags and sizes that are likelier to mean something
            noise = bytes(octet % random.choice([2, 3, 7, 20]) for octet in noise)
        talk(create(), cut(handshake[:begin] + noise, random), random)


@pytest.mark.parametrize("role", ROLES)
def test_a_flood_of_what_is_well_formed_is_held_within_the_limits(role: str) -> None:
    create, handshake = ROLES[role]
    for flood in (b"\x01\0", b"\x01\x01a", b"\x01\x21" + b"x" * 33, message([b"y" * 1_900, b""])[:-2], TRAFFIC[:40]):
        random = Random(1)
        talk(create(), cut(handshake + flood * (20_000 // len(flood)), random), random)


@given(
    st.sampled_from(sorted(ROLES)), st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=40))), st.randoms()
)
def test_pieces_in_any_order_end_in_order(role: str, pieces: list[bytes], random: Random) -> None:
    create, handshake = ROLES[role]
    talk(create(), [handshake, *pieces], random)
    talk(create(), pieces, random)
