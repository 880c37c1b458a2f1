"""Findings about providers: those that were flaky, and services whose load lay unevenly on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import attrs

from spark.capacity.report.row_values import Row, highest_of, mean_of, number_of, texts_of, total_of, yes
from spark.capacity.report.service_rows import by_service

HOT = 5
"""Hot providers that are named for a service."""


@attrs.frozen
class FlakyProvider:
    """A provider with its flaky days, and all days of it."""

    instance: str
    service: str
    judged: Sequence[str]
    flaky: int
    days: int
    missed_mean: float | None
    missed_most: float | None
    outages: float | None
    down_s: float | None
    flapping: float | None


@attrs.frozen
class Reliability:
    """The flaky ones of all providers that were judged, the worst first."""

    judged: int
    flaky: Sequence[FlakyProvider]


@attrs.frozen
class UnbalancedService:
    """A service on its unbalanced days; `hot` has providers with the days on which each was hot."""

    name: str
    unbalanced: int
    days: int
    cov: float | None
    max_mean: float | None
    gini: float | None
    hot: Sequence[tuple[str, int]]


@attrs.frozen
class Balance:
    """The unbalanced ones of all services that were compared."""

    compared: int
    unbalanced: Sequence[UnbalancedService]


def reliability(days: Sequence[Row]) -> Reliability:
    found: dict[tuple[str, str], list[Row]] = {}
    for row in days:
        found.setdefault((str(row.get("service")), str(row.get("instance"))), []).append(row)
    flaky = [
        FlakyProvider(
            instance,
            service,
            sorted({row["judged"] for row in own if row.get("judged")}),
            sum(yes(row, "flaky") for row in own),
            len(own),
            mean_of(number_of(row, "miss_ratio") for row in own),
            highest_of(number_of(row, "miss_ratio") for row in own),
            total_of(number_of(row, "outages") for row in own),
            total_of(number_of(row, "downtime_s") for row in own),
            highest_of(number_of(row, "flap_pct") for row in own),
        )
        for (service, instance), own in found.items()
        if any(yes(row, "flaky") for row in own)
    ]
    flaky.sort(key=lambda one: (-one.flaky, -(one.missed_mean or 0), one.service, one.instance))
    return Reliability(len(found), flaky)


def balance(days: Sequence[Row]) -> Balance:
    found = by_service(days)
    services = []
    for service, own in sorted(found.items()):
        bad = [row for row in own if yes(row, "unbalanced")]
        if not bad:
            continue
        hot = Counter(name for row in bad for name in texts_of(row.get("hot_instances")))
        services.append(
            UnbalancedService(
                service,
                len(bad),
                len(own),
                mean_of(number_of(row, "cov") for row in bad),
                mean_of(number_of(row, "max_mean") for row in bad),
                mean_of(number_of(row, "gini") for row in bad),
                hot.most_common(HOT),
            )
        )
    return Balance(len(found), services)
