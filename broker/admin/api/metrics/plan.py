"""Metrics of the capacity plan.

The label ``service`` has names that peers chose. So there is one sample for each of the services that are short first,
`SERVICES` at most, and the number of the others is a metric. A user is shown samples of services that they may find.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import nsmallest
from itertools import islice, takewhile
from operator import itemgetter

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.access.registry_reading import EVERY_ENTRY, RegistryReading
from broker.core.plan import IPlan

SERVICES = 100
"""Services with a sample: those that are short first. More than an operator can look after."""


def collect(plan: IPlan, reading: RegistryReading = EVERY_ENTRY) -> Iterator[Metric | None]:
    """Yield the metrics that a user with that reading of the registry is shown; nothing without a plan."""
    age = plan.age()
    if age is None:
        return
    yield GaugeMetricFamily("elkobroker_plan_age_seconds", "Time since the moment for which the plan was made.", age)
    days = plan.days_until_short()
    yield None
    first = nsmallest(SERVICES, (each for each in days.items() if reading.shows(each[0])), key=itemgetter(1))
    yield None
    samples = GaugeMetricFamily(
        "elkobroker_plan_days_until_short",
        f"Days until the service has too few providers, of the {SERVICES} services that are short first.",
        labels=["service"],
    )
    for name, left in first:
        samples.add_metric([name], left)
    yield samples
    current = plan.current()
    urgent = GaugeMetricFamily(
        "elkobroker_plan_urgent",
        f"1 for each of {SERVICES} services at most that are overloaded, or that one failure overloads, as measured.",
        labels=["service", "state"],
    )
    # The worst stand first.
    services = () if current is None else current.services.values()
    worst = takewhile(lambda service: service.verdict.is_urgent, services)
    for service in islice((each for each in worst if reading.shows(each.name)), SERVICES):
        urgent.add_metric([service.name, service.verdict.value], 1)
    yield urgent
    yield GaugeMetricFamily(
        "elkobroker_plan_short_services", "Services that are foreseen to have too few providers.", len(days)
    )
