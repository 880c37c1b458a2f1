"""The capacity plan over HTTP, and its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs
import pytest
from zope.interface import implementer

from broker.core.model import Provider, Service
from broker.core.plan import WEEK, IPlan, Plan, PlannedService, ScheduleRecord, Verdict
from broker.operate import metrics, plan_endpoints
from broker.rest.problem import Problem
from tests.operate.calls import ApiFarm, Site
from tests.operate.test_metrics import samples
from tests.recording.farm import GRACE

DAY = 86_400.0


@implementer(IPlan)
class Current:
    """A plan that was made an hour ago, or none."""

    path = None

    def __init__(self, farm: ApiFarm, *services: PlannedService) -> None:
        self._clock = farm.clock
        made = farm.clock.seconds() - 3_600
        self._plan = Plan(made, {each.name: each for each in services}) if services else None
        self.reason: str | None = None

    def current(self) -> Plan | None:
        return self._plan

    def problem(self) -> str | None:
        return self.reason

    def age(self) -> float | None:
        return None if self._plan is None else self._clock.seconds() - self._plan.made

    def days_until_short(self) -> Mapping[str, float]:
        services = () if self._plan is None else self._plan.services.values()
        days = ((each.name, each.days_until_short(self._clock.seconds())) for each in services)
        return {name: left for name, left in days if left is not None}

    def watch(self, changed: Any) -> Any:
        raise NotImplementedError


def short(farm: ApiFarm, name: str, days: float | None) -> PlannedService:
    verdict = Verdict.ENOUGH if days is None else Verdict.BELOW
    return PlannedService(name, verdict, 2, 2, 3, 1, None if days is None else farm.clock.seconds() + days * DAY)


def test_the_plan_is_a_list_with_its_age() -> None:
    farm = ApiFarm()
    current = Current(farm, short(farm, "bank", 2.5), short(farm, "shop", None))
    site = Site(plan_endpoints.plan_endpoints(current, farm.registry, farm.clock))
    answer = site.get("/v1/plan")
    assert (answer["made"], answer["age"], answer["problem"]) == ("2025-12-31T23:00:00Z", 3_600, None)
    assert [(row["name"], row.get("days_until_short")) for row in answer["rows"]] == [("bank", 2.5), ("shop", None)]
    assert site.get("/v1/plan?pattern=s*")["total"] == 1


def test_without_a_plan_the_list_is_empty_and_tells_the_problem() -> None:
    farm = ApiFarm()
    current = Current(farm)
    current.reason = "there is no such file"
    answer = Site(plan_endpoints.plan_endpoints(current, farm.registry, farm.clock)).get("/v1/plan")
    assert (answer["made"], answer["age"], answer["problem"], answer["rows"]) == (None, None, current.reason, [])
    assert samples(metrics.plan_metrics(current)) == {}


def test_services_that_are_short_first_are_metrics() -> None:
    farm = ApiFarm()
    many = [short(farm, f"s{number}", float(number)) for number in range(metrics.SERVICES + 5)]
    found = samples(metrics.plan_metrics(Current(farm, short(farm, "enough", None), *many)))
    assert found["elkobroker_plan_age_seconds"] == 3_600
    assert found["elkobroker_plan_short_services"] == len(many)
    days = {name: value for name, value in found.items() if name.startswith("elkobroker_plan_days_until_short")}
    assert len(days) == metrics.SERVICES
    assert max(days.values()) == metrics.SERVICES - 1
    assert not [name for name in found if name.startswith("elkobroker_plan_urgent")]


def test_services_that_are_overloaded_are_metrics_by_their_state() -> None:
    farm = ApiFarm()
    verdicts = {"hot": Verdict.OVERLOADED, "alone": Verdict.NO_SPARE, "below": Verdict.BELOW}
    found = samples(
        metrics.plan_metrics(
            Current(farm, *(PlannedService(name, each, 2, 2, 3, 1, None) for name, each in verdicts.items()))
        )
    )
    assert {name: value for name, value in found.items() if name.startswith("elkobroker_plan_urgent")} == {
        f"elkobroker_plan_urgent{[('service', name), ('state', state)]}": 1
        for name, state in (("hot", "overloaded"), ("alone", "no N+1"))
    }


def scheduled(farm: ApiFarm, *numbers: int) -> PlannedService:
    """A service whose schedule has those needs from the present hour on, and one provider in all other hours."""
    schedule = [1] * WEEK
    # The clock of the farm begins on a Thursday at midnight.
    for at, number in enumerate(numbers):
        schedule[(3 * 24 + at) % WEEK] = number
    return attrs.evolve(short(farm, "bank", None), schedule=schedule, record=ScheduleRecord(336, 2, 2, 1, 0.4))


def test_an_autoscaler_gets_one_number_that_covers_this_hour_and_the_next() -> None:
    farm = ApiFarm()
    site = Site(plan_endpoints.plan_endpoints(Current(farm, scheduled(farm, 3, 5)), farm.registry, farm.clock))
    told = site.get("/v1/plan/bank/replicas")
    assert (told["replicas"], told["wanted"], told["has"], told["age"]) == (5, 5, 0, 3_600)
    assert told["record"] == {"hours": 336, "missed": 2, "weeks": 2, "weeks_missed": 1, "saved": 0.4}
    farm.clock.advance(2 * 3_600)
    assert site.get("/v1/plan/bank/replicas")["wanted"] == 1
    # Without a schedule the need of the horizon counts.
    site = Site(plan_endpoints.plan_endpoints(Current(farm, short(farm, "bank", 2.5)), farm.registry, farm.clock))
    assert site.get("/v1/plan/bank/replicas")["replicas"] == 3


def test_an_autoscaler_scales_in_only_if_it_says_so() -> None:
    farm = ApiFarm()
    site = Site(plan_endpoints.plan_endpoints(Current(farm, scheduled(farm, 1)), farm.registry, farm.clock))
    farm.join("a", "bank")
    farm.join("b", "bank", "shop")
    told = site.get("/v1/plan/bank/replicas")
    assert (told["replicas"], told["wanted"], told["has"]) == (2, 1, 2)
    assert site.get("/v1/plan/bank/replicas?scale_in=true")["replicas"] == 1


def test_an_autoscaler_counts_the_servers_of_a_pool_once() -> None:
    farm = ApiFarm()
    planned = [attrs.evolve(scheduled(farm, 1), name=name, pool="bank") for name in ("bank", "shop")]
    site = Site(plan_endpoints.plan_endpoints(Current(farm, *planned), farm.registry, farm.clock))
    farm.join("a", "bank", "shop")
    farm.join("b", "shop")
    farm.join("c", "other")
    assert [site.get(f"/v1/plan/{name}/replicas")["has"] for name in ("bank", "shop")] == [2, 2]


def test_an_autoscaler_counts_the_providers_that_return_after_a_restart() -> None:
    farm = ApiFarm(
        *(Provider(id, f"b-{id}", "elko", "", 0.0, 0.0, (Service("bank", f"b-{id}:80", id),)) for id in (7, 8))
    )
    site = Site(plan_endpoints.plan_endpoints(Current(farm, scheduled(farm, 1)), farm.registry, farm.clock))
    told = site.get("/v1/plan/bank/replicas")
    assert (told["replicas"], told["has"]) == (2, 2)
    farm.join("b-7", "bank")
    assert site.get("/v1/plan/bank/replicas")["has"] == 2
    farm.clock.advance(GRACE)
    assert site.get("/v1/plan/bank/replicas")["has"] == 1


def test_an_autoscaler_gets_no_number_from_an_old_plan_or_of_an_unknown_service() -> None:
    farm = ApiFarm()
    current = Current(farm, scheduled(farm, 1), PlannedService("free", Verdict.UNKNOWN, 1, None, None, None, None))
    site = Site(plan_endpoints.plan_endpoints(current, farm.registry, farm.clock))
    for name in ("nobody", "free"):
        with pytest.raises(Problem, match="has no need") as caught:
            site.get(f"/v1/plan/{name}/replicas")
        assert caught.value.status == 404
    farm.clock.advance(9 * DAY)
    with pytest.raises(Problem, match="9 days old") as caught:
        site.get("/v1/plan/bank/replicas")
    assert caught.value.status == 503
    with pytest.raises(Problem, match="no capacity plan: plan\\.file is not set") as caught:
        Site(plan_endpoints.plan_endpoints(Current(farm), farm.registry, farm.clock)).get("/v1/plan/bank/replicas")
    assert caught.value.status == 404
