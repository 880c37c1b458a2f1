"""The state machines of a connection: their tables, and every transition of a connection's life through bytes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs

from broker.core.errors import Reason, Refusal
from broker.net import connection_states as states
from broker.net.connection import CLOSE_WITHIN, HALF_CLOSED
from broker.net.connection_limits import ConnectionLimits
from broker.net.connection_output import BATCH
from broker.net.connection_states import LifeState, TransitionTable
from tests.net.words import Hub

TABLES: dict[str, TransitionTable[Any]] = {
    "life": states.LIFE,
    "output": states.OUTPUT,
    "quantum": states.QUANTUM,
    "reads": states.READS,
}


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_an_event_that_a_state_does_not_list_is_refused(table: TransitionTable[Any]) -> None:
    listed = {(state, event) for state, event, _ in table.rows}
    every = {state for state, _, _ in table.rows} | {after for _, _, after in table.rows}
    for state, event in product(every, {event for _, event, _ in table.rows}):
        if (state, event) not in listed:
            with pytest.raises(AttributeError):
                getattr(state, f"on_{event}")


@pytest.mark.parametrize("table", TABLES.values(), ids=TABLES)
def test_every_state_is_reached_from_the_first_one(table: TransitionTable[Any]) -> None:
    reached = {table.rows[0][0]}
    while more := {after for state, _, after in table.rows if state in reached} - reached:
        reached |= more
    assert reached == {state for state, _, _ in table.rows} | {after for _, _, after in table.rows}


def test_nothing_follows_the_loss_of_a_connection() -> None:
    assert states.LOST not in {state for state, _, _ in states.LIFE.rows}


class Traced:
    """A connection of which each step may move the life."""

    def __init__(self) -> None:
        self.link = Hub(ConnectionLimits(authenticate_within=0, write_buffer=1_000)).connect()

    @property
    def life(self) -> LifeState:
        return self.link.protocol.life

    def end(self) -> None:
        self.link.protocol.readConnectionLost()


def read(traced: Traced) -> None:
    traced.link.send("{a")


def wait_for_an_answer(traced: Traced) -> None:
    traced.link.send("wait")


def undecided(traced: Traced) -> None:
    traced.link.protocol.dataReceived(b"GE")


def browser(traced: Traced) -> None:
    traced.link.protocol.dataReceived(b"GET / HTTP/1.1\r\n")


def end(traced: Traced) -> None:
    traced.end()


def close(traced: Traced) -> None:
    traced.link.protocol.close()


def stall(traced: Traced) -> None:
    traced.link.stall()


def overfill(traced: Traced) -> None:
    traced.link.stall()
    traced.link.protocol.write(b"x" * 1_001)


def lose(traced: Traced) -> None:
    traced.link.lose()


Step = Callable[[Traced], None]


@pytest.mark.parametrize(
    ("steps", "lives"),
    [
        ([undecided, lose], [states.OPENING, states.LOST]),
        ([undecided, overfill], [states.OPENING, states.ABORTED]),
        ([undecided, close], [states.OPENING, states.CLOSING]),
        ([undecided, end], [states.OPENING, states.SHUT]),
        ([browser], [states.CLOSING]),
        ([read, close, lose], [states.OPEN, states.CLOSING, states.LOST]),
        ([read, close, end, end, lose], [states.OPEN, states.CLOSING, states.SHUT, states.SHUT, states.LOST]),
        ([read, overfill, end, lose], [states.OPEN, states.ABORTED, states.ABORTED, states.LOST]),
        ([read, end, lose], [states.OPEN, states.SHUT, states.LOST]),
        (
            [read, wait_for_an_answer, end, end, close],
            [states.OPEN, states.OPEN, states.LINGERING, states.LINGERING, states.SHUT],
        ),
        (
            [wait_for_an_answer, end, overfill, lose],
            [states.OPEN, states.LINGERING, states.ABORTED, states.LOST],
        ),
        ([wait_for_an_answer, end, lose], [states.OPEN, states.LINGERING, states.LOST]),
        ([read, stall, read, end, end, close], [states.OPEN] * 3 + [states.ENDED, states.ENDED, states.SHUT]),
        ([read, stall, read, end, lose], [states.OPEN] * 3 + [states.ENDED, states.LOST]),
        ([read, stall, read, end, overfill], [states.OPEN] * 3 + [states.ENDED, states.ABORTED]),
    ],
)
def test_the_life_of_a_connection(steps: list[Step], lives: list[LifeState]) -> None:
    traced = Traced()
    found = []
    for step in steps:
        step(traced)
        found.append(traced.life)
    assert found == lives


STEPS = st.one_of(
    st.sampled_from(
        [
            ("read", b"word\n"),
            ("read", b"{word\nhalf a "),
            ("read", b"say a\nsay b\n"),
            ("read", b"wait\n"),
            ("read", b"close\nlate\n"),
            ("read", b"fail\n"),
            ("read", b"hello\n"),
            ("read", b"?\n"),
            ("read", b"??\n"),
            ("read", f"big {BATCH}\nword\n".encode()),
            ("read", f"big {BATCH + 1}\nbig 3\n".encode() * 3),
            ("read", b"w\n" * BATCH),
            ("read", b"GE"),
            ("read", b"GET / HTTP/1.1\r\n"),
        ]
    ),
    st.tuples(st.sampled_from(["write", "first", "end", "stall", "drain", "close", "refuse"]), st.just(b"")),
    st.tuples(st.just("pass"), st.sampled_from([0, 1, 6, HALF_CLOSED, CLOSE_WITHIN])),
)


@given(st.lists(STEPS, max_size=20), st.sampled_from([BATCH, 10, 10**9]))
def test_no_order_of_events_meets_an_illegal_transition(steps: list[tuple[str, bytes]], full_at: int) -> None:
    """A peer, a transport and a session do anything in any order. Input of a closed connection is not handled."""
    with capturedLogs() as logged:
        hub = Hub(ConnectionLimits(authenticate_within=0, stalled_after=5, write_buffer=3 * BATCH))
        link = hub.connect()
        link.wire.full_at = full_at
        protocol = link.protocol
        for kind, data in steps:
            if kind == "pass":
                hub.clock.advance(float(data))
                continue
            handled = len(hub.heard)
            closing = protocol.life.closing
            if kind == "read":
                protocol.dataReceived(data)
            elif kind == "write":
                protocol.write(b"notice")
            elif kind == "first":
                protocol.write_first(b"order")
            elif kind == "end":
                protocol.readConnectionLost()
            elif kind == "stall":
                link.stall()
            elif kind == "drain":
                link.drain()
            elif kind == "close":
                protocol.close()
            else:
                protocol.refuse(Refusal(Reason.PARAMETER, "no"))
            if closing:
                assert len(hub.heard) == handled
        link.lose()
        assert protocol.life is states.LOST
        hub.clock.pump([1.0] * 70)
    assert [event for event in logged if "log_failure" in event and "as it is meant to" not in str(event)] == []
    assert hub.factory.connections == set()
    assert hub.clock.getDelayedCalls() == []
