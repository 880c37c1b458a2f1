"""Services of strangers count as memory of their address, by whatever wire they are offered."""

from __future__ import annotations

import gc
from itertools import count
from typing import Any

import attrs
import pytest
from twisted.internet.task import Clock

from broker.core.cluster.cluster_interfaces import Registration, key_of
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.errors import Reason, Refusal, Refusals
from broker.core.interfaces import SERVICES_PART
from broker.core.memory_budget import (
    SERVICE_BYTES,
    SHORT,
    TEXT_COPIES,
    MemoryBudget,
    MemoryLimits,
    Share,
    service_bytes,
)
from broker.core.model import INFO_COPIES, NOBODY, Auth, Provider, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from tests.garbage import no_collection, set_aside

HOST = "192.0.2.1"
FREE = Rights(services=1_000_000)


class Farm:
    """A registry with an account of memory, in which a few services of one address fit."""

    def __init__(self, kind: type[Registry] = Registry, fits: int = 4) -> None:
        self.memory = MemoryBudget(
            MemoryLimits(address=int((fits + 0.5) * service_bytes(self.service(0)) / SERVICES_PART))
        )
        clock = Clock()
        self.registry = kind(clock, count(1).__next__, Restored((), 0.0, clock, lambda ids: None), self.memory)

    @staticmethod
    def service(provider: int, name: str = "bank", **more: str) -> Service:
        return Service(name, "h:1", provider, **more)  # type: ignore[arg-type]

    def join(self, payer: str = HOST) -> int:
        return self.registry.join("p", "elko", HOST, payer=payer)

    def offer(self, provider: int, *names: str) -> tuple[Refusal, ...]:
        """Offer services, and return the refusals."""
        try:
            self.registry.offer([self.service(provider, name) for name in names], FREE)
        except Refusals as refused:
            return refused.each
        return ()

    @property
    def stored(self) -> int:
        return self.memory.shares()[Share.STORED]


@pytest.fixture(params=[Registry, ClusterRegistry])
def farm(request: pytest.FixtureRequest) -> Farm:
    return Farm(request.param)


def test_services_of_an_address_are_bounded_by_its_memory(farm: Farm) -> None:
    provider = farm.join()
    refused = farm.offer(provider, *(f"bank{number}" for number in range(6)))
    assert [refusal.reason for refusal in refused] == [Reason.LIMIT] * 2
    assert "memory" in refused[0].text
    assert len(farm.registry.services_of(provider)) == 4
    other = farm.join()
    assert farm.offer(other, "desk", "till")
    assert not farm.offer(farm.join("192.0.2.2"), "desk", "till")
    farm.registry.withdraw(provider, ["bank0", "bank1"])
    assert not farm.offer(other, "till")


def test_memory_of_services_is_given_back_when_they_go(farm: Farm) -> None:
    first, second = farm.join(), farm.join()
    farm.offer(first, "a", "b")
    farm.offer(second, "a", "b")
    assert farm.stored == 4 * service_bytes(farm.service(0, "a"))
    farm.registry.withdraw(first, ["a", "b"])
    farm.registry.leave(second)
    farm.registry.leave(second)
    assert farm.stored == farm.memory.held == 0
    farm.registry.leave(first)
    assert farm.stored == 0


def test_users_and_providers_of_one_short_service_are_not_counted(farm: Farm) -> None:
    assert SERVICE_BYTES < service_bytes(farm.service(0)) <= SHORT
    user = farm.join("")
    assert not farm.offer(user, *(f"bank{number}" for number in range(10)))
    for _ in range(10):
        assert not farm.offer(farm.join(), "bank")
    assert farm.stored == 0


def test_an_info_counts_when_it_is_amended(farm: Farm) -> None:
    provider = farm.join()
    farm.offer(provider, "bank")
    [service] = farm.registry.services_of(provider)
    farm.registry.amend(attrs.evolve(service, info="x" * 1_000))
    assert farm.stored == service_bytes(service) + INFO_COPIES * 1_000
    with pytest.raises(Refusal) as refused:
        farm.registry.amend(attrs.evolve(service, info="x" * 10_000))
    assert refused.value.reason is Reason.LIMIT
    assert farm.registry.services_of(provider)[0].info == "x" * 1_000
    farm.registry.amend(service)
    assert farm.stored == 0
    farm.memory.store(HOST, farm.memory.limits.address)
    farm.registry.amend(attrs.evolve(service, info="no more than is free of charge"))


def test_a_service_that_does_not_fit_in_the_place_of_another_is_refused_before(farm: Farm) -> None:
    provider = farm.join()
    farm.offer(provider, *(f"bank{number}" for number in range(4)))
    larger = farm.service(provider, "bank0", info="x" * 1_000)
    farm.registry.check(larger, FREE)
    with pytest.raises(Refusal) as refused:
        farm.registry.check(larger, FREE, provider)
    assert refused.value.reason is Reason.LIMIT
    farm.registry.check(farm.service(provider, "bank0"), FREE, provider)
    farm.registry.check(farm.service(0, "bank0", info="x" * 1_000), FREE, provider)
    assert farm.stored == 4 * service_bytes(farm.service(0, "bank0"))


@pytest.mark.parametrize(
    "more",
    [
        {"label": "x" * 9},
        {"zone": "x" * 9},
        {"tags": ("x" * 4, "x" * 5)},
        {"meta": {"x": "x" * 8}},
        {"auth": Auth("x" * 3, "x" * 4, "xx")},
        {"auth": Auth("x" * 9)},
    ],
)
def test_each_text_of_a_service_counts(more: dict[str, Any]) -> None:
    assert service_bytes(Service("bank", "h:1", 1, **more)) == SERVICE_BYTES + TEXT_COPIES * (len("bankh:1") + 9)


def test_a_superseded_service_counts_until_it_is_withdrawn() -> None:
    farm = Farm(ClusterRegistry)
    assert isinstance(farm.registry, ClusterRegistry)
    provider = farm.join()
    farm.offer(provider, "a", "b")
    other, service = Provider(1_000, "p", "elko", HOST, 0.0, 0.0, (), broker="other"), farm.service(1_000, "a")
    key = key_of("elko", service, NOBODY)
    farm.registry.mirror([Registration(key, other, service, 1)], superseded=[key])
    assert [each.provider for each in farm.registry.find("a", "tcp")] == [1_000]
    assert farm.stored == 2 * service_bytes(farm.service(0, "a"))
    farm.registry.withdraw(provider, ["a"])
    assert farm.stored == 0, "one short service is left"
    farm.registry.leave(provider)
    assert farm.stored == farm.memory.held == 0


def test_refused_services_are_no_garbage(farm: Farm) -> None:
    provider = farm.join()
    set_aside()
    with no_collection():
        assert len(farm.offer(provider, *(f"bank{number}" for number in range(50)))) == 46
        assert gc.collect() < 10
