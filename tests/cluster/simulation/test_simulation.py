"""Histories of simulated brokers. `python -m tests.cluster.simulation` runs many more."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from broker.cluster.etcd.etcd_interface import Put
from tests.cluster.simulation.history import History
from tests.cluster.simulation.invariants import Broken
from tests.cluster.simulation.timeline import Timeline
from tests.examples import sampled

FIRST = 1001
"""First of the seeds of the everyday run: a failure is repeated by its seed."""

COUNT = 10
"""Histories in one test."""


@pytest.mark.parametrize("first", sampled(range(FIRST, FIRST + 160, COUNT)))
def test_histories_with_faults(first: int) -> None:
    for seed in range(first, first + COUNT):
        History(seed).run()


@pytest.mark.parametrize("first", sampled(range(2001, 2031, COUNT)))
def test_histories_without_faults(first: int) -> None:
    for seed in range(first, first + COUNT):
        History(seed, faults=False).run()


@pytest.mark.parametrize("first", sampled(range(3001, 3041, COUNT)))
def test_histories_in_which_another_program_deletes_keys(first: int) -> None:
    for seed in range(first, first + COUNT):
        History(seed, faults=bool(seed % 2), strangers=True).run()


FOUND = {20260434: "etcd loses all leases while a broker stands still for half the TTL"}
"""Seeds of histories that found a fault."""


@pytest.mark.parametrize("seed", FOUND)
def test_histories_that_found_a_fault(seed: int) -> None:
    History(seed).run()


@pytest.mark.long
def test_the_same_seed_gives_the_same_history() -> None:
    def lines() -> str:
        history = History(FIRST, steps=20)
        history.run()
        return history.report()

    assert lines() == lines()
    code = f"from tests.cluster.simulation.history import History as H\nh=H({FIRST}, 20); h.run(); print(h.report())"
    environment = {**os.environ, "PYTHONHASHSEED": "77", "PYTHONPATH": "."}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.rstrip("\n") == lines()


def started() -> History:
    """A history without faults, with servers at all brokers that all others know."""
    history = History(5, steps=10, faults=False)
    history.run_to_calm()
    return history


def test_a_missing_provider_breaks_an_invariant() -> None:
    history = started()
    node = next(each for each in history.nodes if each.registry.mirrored())
    node.registry.mirror((), [(key, "left") for key in node.cluster._parts.shared.table.entries])
    with pytest.raises(Broken, match="any more"):
        history.advance(1)


def test_a_write_without_the_lease_of_its_member_breaks_an_invariant() -> None:
    history = started()
    key = next(each for each in history.etcd.keys if b"/s/" in each)
    with pytest.raises(Broken, match="another lease"):
        history.etcd.txn([], [Put(key, history.etcd.keys[key].value, 0)])


def test_calls_of_a_paused_clock_are_late_and_in_order() -> None:
    timeline = Timeline()
    clock, other = timeline.clock(100.0), timeline.clock()
    made: list[object] = []
    clock.callLater(1, made.append, "one")
    clock.callLater(2, made.append, "two")
    cancelled = clock.callLater(2, made.append, "never")
    other.callLater(3, made.append, "other")
    clock.pause()
    timeline.run(5)
    assert made == ["other"]
    cancelled.cancel()
    clock.resume()
    timeline.run(5)
    assert made == ["other", "one", "two"]
    assert (clock.seconds(), other.seconds()) == (105.0, 5.0)
