"""The drain: its states, its deadline, and its end."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock

from broker.core.drain import CHECK, MOST_SECONDS, Drain, Draining
from broker.core.errors import Reason, Refusal


class Wires:
    """Wires with numbers of peers, which a test changes."""

    def __init__(self, **peers: int) -> None:
        self.peers = peers
        self.calls: list[str] = []
        self.changes = 0

    def changed(self) -> None:
        self.changes += 1

    def away(self) -> None:
        self.calls.append("away")

    def back(self) -> None:
        self.calls.append("back")

    def remaining(self) -> dict[str, int]:
        return {name: count for name, count in self.peers.items() if count}


def drain_of(wires: Wires) -> tuple[Draining, Clock]:
    clock = Clock()
    return Draining(clock, wires.away, wires.back, wires.remaining, wires.changed), clock


def test_nothing_drains_at_first() -> None:
    wires = Wires(elko=1)
    draining, _ = drain_of(wires)
    assert draining.describe() == Drain()
    assert wires.calls == []


def test_a_drain_without_peers_is_over_at_once() -> None:
    draining, clock = drain_of(Wires())
    assert draining.drain(10) == Drain("drained")
    assert not clock.getDelayedCalls()


def test_a_drain_ends_when_the_last_peer_has_left() -> None:
    wires = Wires(elko=2, mc0=1)
    draining, clock = drain_of(wires)
    assert draining.drain(10) == Drain("draining", 10.0, {"elko": 2, "mc0": 1})
    wires.peers = {"mc0": 1}
    clock.advance(CHECK)
    assert draining.describe() == Drain("draining", 10.0 - CHECK, {"mc0": 1})
    wires.peers = {}
    clock.advance(CHECK)
    assert draining.describe() == Drain("drained")
    assert not clock.getDelayedCalls()
    assert wires.calls == ["away"]


def test_peers_that_stay_after_the_deadline_are_shown_and_awaited() -> None:
    wires = Wires(elko=1)
    draining, clock = drain_of(wires)
    draining.drain(1)
    clock.pump([CHECK] * 3)
    assert draining.describe() == Drain("overdue", 0.0, {"elko": 1})
    wires.peers = {}
    clock.advance(CHECK)
    assert draining.describe() == Drain("drained")


def test_undrain_serves_everybody_again() -> None:
    wires = Wires(elko=1)
    draining, clock = drain_of(wires)
    assert draining.undrain() == Drain()
    assert wires.calls == []
    draining.drain(1)
    assert draining.undrain() == Drain()
    assert wires.calls == ["away", "back"]
    assert not clock.getDelayedCalls()


def test_a_further_drain_sends_away_again_with_a_new_deadline() -> None:
    wires = Wires(elko=1)
    draining, clock = drain_of(wires)
    draining.drain(0)
    assert draining.describe().state == "overdue"
    assert draining.drain(5) == Drain("draining", 5.0, {"elko": 1})
    assert wires.calls == ["away", "away"]
    assert len(clock.getDelayedCalls()) == 1


@pytest.mark.parametrize("seconds", [-1, MOST_SECONDS + 1, float("nan"), float("inf")])
def test_a_deadline_out_of_range_is_refused(seconds: float) -> None:
    wires = Wires(elko=1)
    draining, clock = drain_of(wires)
    with pytest.raises(Refusal) as refused:
        draining.drain(seconds)
    assert refused.value.reason is Reason.PARAMETER
    assert (wires.calls, clock.getDelayedCalls()) == ([], [])


def test_the_begin_and_the_end_of_a_drain_are_reported() -> None:
    wires = Wires(elko=1)
    draining, _ = drain_of(wires)
    draining.undrain()
    assert wires.changes == 0
    draining.drain(10)
    assert wires.changes == 1
    draining.undrain()
    draining.undrain()
    assert wires.changes == 2
