"""One registry behind every wire: what is offered on one is found, awaited and watched on each."""

from __future__ import annotations

from itertools import product

import pytest

from broker.core.model import LoadDetails
from tests.contract.wires import WIRES, Offering, Seeking
from tests.wires.recording import ElkoFarm


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


@pytest.fixture(params=product(WIRES, WIRES), ids=lambda pair: f"{pair[0]}-to-{pair[1]}")
def pair(request: pytest.FixtureRequest, farm: ElkoFarm) -> tuple[Offering, Seeking]:
    """A provider on one wire, and a seeker on the same or another."""
    offering, seeking = request.param
    return WIRES[offering](farm).provider("provider"), WIRES[seeking](farm).seeker()


def test_what_is_offered_is_found(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    assert seeker.find("bank") == []
    provider.offer("bank", "h:1")
    provider.offer("bank", "h:2")
    provider.offer("post", "h:3")
    assert seeker.find("bank") == ["h:1", "h:2"]


def test_what_is_withdrawn_is_not(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    provider.offer("bank", "h:1")
    provider.offer("post", "h:2")
    provider.withdraw("bank")
    assert seeker.find("bank") == []
    assert seeker.find("post") == ["h:2"]


def test_what_an_operator_withdrew_is_offered_again(pair: tuple[Offering, Seeking], farm: ElkoFarm) -> None:
    provider, seeker = pair
    provider.offer("bank", "h:1")
    [service] = farm.registry.find("bank", "tcp")
    farm.registry.withdraw(service.provider, ["bank"])
    assert seeker.find("bank") == []
    provider.offer_again("bank", "h:1")
    assert seeker.find("bank") == ["h:1"]


def test_a_provider_that_dies_takes_its_services_along(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    provider.offer("bank", "h:1")
    provider.die()
    assert seeker.find("bank") == []


def test_a_wait_ends_when_the_service_comes(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    seeker.wait("bank", 5)
    provider.offer("post", "h:1")
    assert seeker.waited() is None
    provider.offer("bank", "h:2")
    assert seeker.waited() == ["h:2"]


def test_a_wait_ends_in_vain_when_its_time_is_up(pair: tuple[Offering, Seeking], farm: ElkoFarm) -> None:
    provider, seeker = pair
    seeker.wait("bank", 5)
    farm.clock.advance(4)
    assert seeker.waited() is None
    farm.clock.advance(1)
    assert seeker.waited() == []
    provider.offer("bank", "h:1")
    assert seeker.waited() is None


def test_a_load_is_told(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    assert seeker.loads() == [0.0]
    provider.load(0.25)
    assert seeker.loads() == [0.25]


def test_details_of_a_load_reach_the_registry_and_end_with_the_next_report(
    pair: tuple[Offering, Seeking], farm: ElkoFarm
) -> None:
    def details() -> list[LoadDetails]:
        return [each.details for each in farm.registry.loads() if each.details is not None]

    provider, _ = pair
    provider.load(0.25, requests=120, errors=2, in_flight=3, latency_ms=41.5)
    assert details() == [LoadDetails(120, 2, 3, 41.5)]
    provider.load(0.25, requests=7)
    assert details() == [LoadDetails(requests=7)]
    provider.load(0.25)
    assert details() == []


def test_a_negative_load_is_nobodys(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    provider.load(0.25)
    left = provider.load_less_than_nothing()
    assert seeker.loads() == [left]


def test_what_is_offered_at_no_place_is_refused_and_not_found(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    provider.offer("bank", "h:1")
    provider.offer_nowhere("bank")
    provider.offer_nowhere("post")
    assert seeker.find("post") == []
    assert seeker.find("bank") == ["h:1"]


def test_who_watches_hears_what_comes_and_goes(pair: tuple[Offering, Seeking]) -> None:
    provider, seeker = pair
    seeker.watch()
    provider.offer("bank", "h:1")
    provider.offer("post", "h:2")
    provider.withdraw("bank")
    provider.die()
    assert seeker.heard() == [("bank", True), ("post", True), ("bank", False), ("post", False)]
