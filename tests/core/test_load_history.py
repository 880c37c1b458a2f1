"""The loads of the last hour."""

from __future__ import annotations

from itertools import count

import pytest

from broker.core.load_history import PIECE, SAMPLES, STEP, LoadHistory
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.turns import SHARE, Turns
from tests.ticking_clock import TickingClock


class Farm:
    def __init__(self) -> None:
        self.clock = TickingClock()
        ids = count(1)
        self.registry = Registry(self.clock, lambda: next(ids), Restored([], 0, self.clock, lambda ids: None))
        self.history = LoadHistory(self.registry, self.clock, Turns(self.clock))
        self.history.start()
        self.clock.advance(0)

    def minutes(self, number: int) -> None:
        for _ in range(number):
            self.clock.advance(STEP)


@pytest.fixture
def farm() -> Farm:
    return Farm()


def test_a_load_is_sampled_once_a_minute(farm: Farm) -> None:
    provider = farm.registry.join("bank", "elko", "a")
    assert farm.history.of(provider) == []
    for load in (0.5, 0.25):
        farm.registry.load(provider, 9.0)
        farm.registry.load(provider, load)
        farm.minutes(1)
    assert farm.history.of(provider) == [0.5, 0.25]


def test_the_last_hour_is_kept(farm: Farm) -> None:
    provider = farm.registry.join("bank", "elko", "a")
    for number in range(SAMPLES + 5):
        farm.registry.load(provider, float(number))
        farm.minutes(1)
    assert farm.history.of(provider) == [float(number) for number in range(5, SAMPLES + 5)]


def test_the_history_ends_with_the_provider(farm: Farm) -> None:
    one, other = farm.registry.join("one", "elko", "a"), farm.registry.join("other", "elko", "b")
    farm.minutes(1)
    assert len(farm.history) == 2
    farm.registry.leave(one)
    farm.minutes(1)
    assert (len(farm.history), farm.history.of(one), farm.history.of(other)) == (1, [], [0.0, 0.0])


def test_many_providers_are_sampled_in_several_turns(farm: Farm) -> None:
    last = [farm.registry.join("", "elko", "a") for _ in range(8 * PIECE)][-1]
    farm.clock.rightNow += STEP
    farm.clock.tick = SHARE / 4
    farm.clock.turn()
    assert 0 < len(farm.history) < 8 * PIECE
    farm.minutes(1)
    farm.clock.tick = 0.0
    assert len(farm.history) == 8 * PIECE
    assert farm.history.of(last)[0] == 0.0


def test_the_number_of_histories_is_bounded(farm: Farm) -> None:
    farm.history = LoadHistory(farm.registry, farm.clock, Turns(farm.clock), most=2)
    providers = [farm.registry.join("", "elko", "a") for _ in range(3)]
    farm.history.start()
    farm.clock.advance(0)
    assert [farm.history.of(provider) for provider in providers] == [[0.0], [0.0], []]
    farm.registry.leave(providers[0])
    farm.minutes(1)
    assert [farm.history.of(provider) for provider in providers] == [[], [0.0, 0.0], [0.0]]


def test_a_stopped_history_has_no_timer(farm: Farm) -> None:
    farm.history.stop()
    assert farm.clock.getDelayedCalls() == []
