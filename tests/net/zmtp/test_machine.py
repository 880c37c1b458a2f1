"""The state machine: each state with each input, and any sequence of them.

Only ZmtpError escapes, nothing is decoded after it, and nothing is lost before it.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from broker.net.zmtp.frames import MAX_HANDSHAKE, STEP, Fault, FrameLimits, ZmtpError, command, message
from broker.net.zmtp.machine import Claim, Machine, Output, ZmtpState, error
from tests.examples import examples
from tests.net.zmtp.conversation import (
    GREETING,
    GREETING_2,
    PLAIN,
    READY,
    SIGNATURE,
    in_traffic,
    router,
)

PING = command(b"PING", b"\0\x0acontext")
PONG = command(b"PONG", b"context")


def at(state: ZmtpState) -> Machine:
    """A ROUTER in that state."""
    machine = router()
    if state is ZmtpState.GREETING:
        return machine
    list(machine.feed(GREETING))
    if state is ZmtpState.HANDSHAKE:
        return machine
    if state is ZmtpState.FAILED:
        machine.fail()
        return machine
    list(machine.feed(READY))
    if state is ZmtpState.TRAFFIC:
        machine.accept()
    assert machine.state is state
    return machine


Expected = tuple[ZmtpState, list[Any]] | Fault

ROUTER_REST = Output(GREETING[11:])
CLAIM = Claim({"socket-type": b"DEALER", "identity": b"me"})

# State, input: the state afterwards and the events, or the fault.
TABLE: list[tuple[ZmtpState, bytes, Expected]] = [
    (ZmtpState.GREETING, b"", (ZmtpState.GREETING, [])),
    (ZmtpState.GREETING, SIGNATURE, (ZmtpState.GREETING, [])),
    (ZmtpState.GREETING, SIGNATURE + b"\x03", (ZmtpState.GREETING, [ROUTER_REST])),
    (ZmtpState.GREETING, GREETING, (ZmtpState.HANDSHAKE, [ROUTER_REST])),
    (ZmtpState.GREETING, GREETING + READY, (ZmtpState.CLAIMED, [ROUTER_REST, CLAIM])),
    (ZmtpState.GREETING, GREETING + READY + b"\0\0", (ZmtpState.CLAIMED, [ROUTER_REST, CLAIM])),
    (ZmtpState.GREETING, GREETING_2, (ZmtpState.CLAIMED, [Output(b"\x06\0\0"), CLAIM])),
    (ZmtpState.GREETING, PLAIN, Fault.MECHANISM),
    (ZmtpState.GREETING, READY, Fault.GREETING),
    (ZmtpState.GREETING, PING, Fault.GREETING),
    (ZmtpState.GREETING, error("no"), Fault.GREETING),
    (ZmtpState.GREETING, message([b"a"]), Fault.GREETING),
    (ZmtpState.GREETING, b"GET / HTTP/1.1\r\n\r\n", Fault.GREETING),
    (ZmtpState.HANDSHAKE, b"", (ZmtpState.HANDSHAKE, [])),
    (ZmtpState.HANDSHAKE, READY[:-1], (ZmtpState.HANDSHAKE, [])),
    (ZmtpState.HANDSHAKE, READY, (ZmtpState.CLAIMED, [CLAIM])),
    (ZmtpState.HANDSHAKE, READY + READY, (ZmtpState.CLAIMED, [CLAIM])),
    (ZmtpState.HANDSHAKE, GREETING, Fault.HANDSHAKE),
    (ZmtpState.HANDSHAKE, PING, Fault.HANDSHAKE),
    (ZmtpState.HANDSHAKE, PONG, Fault.HANDSHAKE),
    (ZmtpState.HANDSHAKE, error("no"), Fault.REFUSED),
    (ZmtpState.HANDSHAKE, message([b"a"]), Fault.HANDSHAKE),
    (ZmtpState.HANDSHAKE, command(b"READY", bytes(MAX_HANDSHAKE))[:9], Fault.TOO_LARGE),
    (ZmtpState.CLAIMED, b"", (ZmtpState.CLAIMED, [])),
    (ZmtpState.CLAIMED, READY, (ZmtpState.CLAIMED, [])),
    (ZmtpState.CLAIMED, PING, (ZmtpState.CLAIMED, [])),
    (ZmtpState.CLAIMED, error("no"), (ZmtpState.CLAIMED, [])),
    (ZmtpState.CLAIMED, message([b"a"]), (ZmtpState.CLAIMED, [])),
    (ZmtpState.CLAIMED, b"\xff\xff", (ZmtpState.CLAIMED, [])),
    (ZmtpState.TRAFFIC, b"", (ZmtpState.TRAFFIC, [])),
    (ZmtpState.TRAFFIC, message([b"a"]), (ZmtpState.TRAFFIC, [[b"a"]])),
    (ZmtpState.TRAFFIC, PING, (ZmtpState.TRAFFIC, [Output(PONG)])),
    (ZmtpState.TRAFFIC, PONG, (ZmtpState.TRAFFIC, [None])),
    (ZmtpState.TRAFFIC, READY, (ZmtpState.TRAFFIC, [None])),
    (ZmtpState.TRAFFIC, error("no"), (ZmtpState.TRAFFIC, [None])),
    (ZmtpState.TRAFFIC, message([b"a"]) + PING + message([b"b"]), (ZmtpState.TRAFFIC, [[b"a"], Output(PONG), [b"b"]])),
    (ZmtpState.TRAFFIC, command(b"PING", b""), Fault.FRAME),
    (ZmtpState.TRAFFIC, GREETING, Fault.FRAME),
    (ZmtpState.TRAFFIC, b"\x05\x01a", Fault.FRAME),
    (ZmtpState.TRAFFIC, b"\x02" + b"\xff" * 8, Fault.TOO_LARGE),
    *(
        (ZmtpState.FAILED, octets, (ZmtpState.FAILED, []))
        for octets in (b"", GREETING, GREETING_2, READY, PING, error("no"), message([b"a"]), b"\xff\xff", b"GET")
    ),
]


@pytest.mark.parametrize(("state", "octets", "expected"), TABLE)
def test_each_state_with_each_input(state: ZmtpState, octets: bytes, expected: Expected) -> None:
    machine = at(state)
    if isinstance(expected, Fault):
        with pytest.raises(ZmtpError) as refusal:
            list(machine.feed(octets))
        assert refusal.value.fault is expected
        assert (machine.state, machine.pending) == (ZmtpState.FAILED, 0)
    else:
        events = list(machine.feed(octets))
        assert (machine.state, events) == expected
        if machine.state is ZmtpState.FAILED:
            assert machine.pending == 0


def test_all_states_are_in_the_table() -> None:
    assert {state for state, _, _ in TABLE} == set(ZmtpState)


@pytest.mark.parametrize("state", ZmtpState)
def test_a_connection_may_fail_in_each_state(state: ZmtpState) -> None:
    machine = at(state)
    if state is not ZmtpState.FAILED:
        list(machine.feed({ZmtpState.GREETING: SIGNATURE, ZmtpState.HANDSHAKE: READY[:9]}.get(state, b"\x01\x01a")))
        assert machine.pending
    machine.fail()
    assert (machine.state, machine.pending, machine.ping()) == (ZmtpState.FAILED, 0, b"")
    assert list(machine.feed(GREETING + READY + b"\0\0")) == []
    assert machine.pending == 0


@pytest.mark.parametrize("state", [state for state in ZmtpState if state is not ZmtpState.CLAIMED])
def test_only_a_claim_can_be_accepted(state: ZmtpState) -> None:
    with pytest.raises(AssertionError):
        at(state).accept()


def test_what_came_before_the_error_is_given_first() -> None:
    events = in_traffic().machine.feed(message([b"a"]) + PING + message([b"b"]) + b"\xff\xff" + message([b"c"]))
    assert list(islice(events, 3)) == [[b"a"], Output(PONG), [b"b"]]
    with pytest.raises(ZmtpError):
        next(events)


@pytest.mark.parametrize("taken", range(6))
def test_a_connection_may_close_while_its_input_is_decoded(taken: int) -> None:
    machine = router()
    decoding = machine.feed(GREETING + READY + message([b"a"]))
    list(islice(decoding, taken))
    machine.fail()
    del decoding
    machine = in_traffic().machine
    decoding = machine.feed(message([b"a"]) * 3 + PING + b"\xff\xff")
    list(islice(decoding, taken if taken < 5 else 4))
    machine.fail()
    decoding.close()  # type: ignore[attr-defined]
    assert machine.state is ZmtpState.FAILED


def test_a_long_read_is_decoded_with_moments_to_look_at_the_clock() -> None:
    count = 4 * len(STEP)
    events = list(in_traffic().machine.feed(message([b""] * count)))
    assert events.count(None) == 4
    assert [len(event) for event in events if isinstance(event, list)] == [count]


def test_a_claim_with_traffic_in_one_packet_loses_nothing() -> None:
    machine = router()
    events: list[Any] = []
    for event in machine.feed(GREETING + READY + message([b"a"]) + PING):
        events.append(event)
        if isinstance(event, Claim):
            machine.accept()
    assert [type(event) for event in events] == [Output, Claim, list, Output]
    assert events[2] == [b"a"]


LIMITS = FrameLimits(frame=1_000, message=3_000, frames=12)
"""Small ones, so that sequences reach them."""

parts = st.lists(st.integers(0, 400).map(lambda size: b"x" * size), min_size=1, max_size=4)


class Conversation(RuleBasedStateMachine):
    """A ROUTER and all that a peer, the application and the network may do to it, in any order.

    The octets that are sent are kept until the network delivers some of them. As long as all that was sent is well
    formed, all messages that were delivered in full come, in order.
    """

    def __init__(self) -> None:
        super().__init__()
        self.machine = router(limits=LIMITS)
        self.sent = bytearray()
        """Octets on their way."""
        self.good = True
        """Everything that was sent is well formed, and in its place."""
        self.spoken = 0
        """Parts of the handshake that were sent."""
        self.expected: list[list[bytes]] = []
        self.received: list[list[bytes]] = []
        self.read = 0
        """Octets of the largest read so far."""

    def _feed(self, data: bytes) -> None:
        self.read = max(self.read, len(data))
        failed = self.machine.state is ZmtpState.FAILED
        claims = self.machine.state in (ZmtpState.CLAIMED, ZmtpState.TRAFFIC)
        try:
            for event in self.machine.feed(data):
                assert not failed
                if isinstance(event, list):
                    assert self.machine.state is ZmtpState.TRAFFIC
                    self.received.append(event)
                elif isinstance(event, Claim):
                    assert not claims
                    claims = True
        except ZmtpError:
            assert not failed
            assert self.machine.state is ZmtpState.FAILED
            assert not self.good

    @rule()
    def speak(self) -> None:
        """Send what comes next in the handshake."""
        if self.spoken < 2:
            self.sent += (GREETING, READY)[self.spoken]
            self.spoken += 1

    @precondition(lambda self: self.spoken == 2)
    @rule(frames=parts, ping=st.booleans())
    def send(self, frames: list[bytes], ping: bool) -> None:
        """Send a message, with a heartbeat in it."""
        octets = message(frames)
        first = len(message(frames[:1]))
        if ping and len(frames) > 1:
            octets = octets[:first] + PING + octets[first:]
        self.sent += octets
        self.expected.append(frames)

    @rule(
        octets=st.one_of(st.sampled_from([GREETING, GREETING_2, READY, b"\xff\xff", b"\x05\0"]), st.binary(max_size=9))
    )
    @precondition(lambda self: len(self.received) > 1 or self.spoken == 1)
    def spoil(self, octets: bytes) -> None:
        """Send something else."""
        self.sent += octets
        self.good = False

    @rule(count=st.integers(0, 3_000))
    def deliver(self, count: int) -> None:
        """Some of the octets arrive."""
        if self.machine.state is ZmtpState.CLAIMED and self.machine.pending > LIMITS.message:
            return  # the transport is paused
        data = bytes(self.sent[:count])
        del self.sent[:count]
        self._feed(data)

    @precondition(lambda self: self.machine.state is ZmtpState.CLAIMED)
    @rule(go_on=st.booleans())
    def accept(self, go_on: bool) -> None:
        """Accept the claim, and decode what waits for it now or with the next read."""
        self.machine.accept()
        if go_on:
            self._feed(b"")

    @precondition(lambda self: self.machine.state is ZmtpState.CLAIMED)
    @rule(luck=st.integers(0, 9))
    def refuse(self, luck: int) -> None:
        """Refuse it, rarely."""
        if luck == 0:
            assert self.machine.refuse("no") == error("no")
            self.good = False

    @invariant()
    def no_more_is_held_than_the_limits_and_a_read(self) -> None:
        assert self.machine.pending <= max(LIMITS.message, MAX_HANDSHAKE) + self.read

    @invariant()
    def messages_come_in_order(self) -> None:
        if self.good:
            assert self.received == self.expected[: len(self.received)]
            assert self.machine.state is not ZmtpState.FAILED

    def teardown(self) -> None:
        """Deliver the rest: nothing is lost."""
        while self.sent:
            self.deliver(2_000)
            if self.machine.state is ZmtpState.CLAIMED:
                self.accept(True)
        if self.good:
            if self.machine.state is ZmtpState.CLAIMED:
                self.accept(False)
            self._feed(b"")
            assert self.received == (self.expected if self.spoken == 2 else [])


TestConversation = Conversation.TestCase
TestConversation.settings = settings(max_examples=examples(60), stateful_step_count=25, deadline=None)
