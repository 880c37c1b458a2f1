"""Findings about providers: those that were flaky, and services whose load lay unevenly on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from spark.capacity.report.row_values import Row, highest_of, mean_of, number_of, total_of, yes
from spark.capacity.report.service_rows import by_service

HOT = 5
"""Hot providers that are named for a service."""


def reliability(days: Sequence[Row]) -> dict[str, Any]:
    """Return the number of providers that were judged, and the flaky ones with their days, the worst first."""
    found: dict[tuple[str, str], list[Row]] = {}
    for row in days:
        found.setdefault((str(row.get("service")), str(row.get("instance"))), []).append(row)
    flaky: list[dict[str, Any]] = [
        {
            "instance": instance,
            "service": service,
            "judged": sorted({row["judged"] for row in own if row.get("judged")}),
            "flaky": sum(yes(row, "flaky") for row in own),
            "days": len(own),
            "missed_mean": mean_of(number_of(row, "miss_ratio") for row in own),
            "missed_most": highest_of(number_of(row, "miss_ratio") for row in own),
            "outages": total_of(number_of(row, "outages") for row in own),
            "down_s": total_of(number_of(row, "downtime_s") for row in own),
            "flapping": highest_of(number_of(row, "flap_pct") for row in own),
        }
        for (service, instance), own in found.items()
        if any(yes(row, "flaky") for row in own)
    ]
    flaky.sort(key=lambda one: (-one["flaky"], -(one["missed_mean"] or 0), one["service"], one["instance"]))
    return {"judged": len(found), "flaky": flaky}


def balance(days: Sequence[Row]) -> dict[str, Any]:
    """Return the number of services that were compared, and the unbalanced ones; `hot` has providers with the days on
    which each was hot."""
    found = by_service(days)
    unbalanced = []
    for service, own in sorted(found.items()):
        bad = [row for row in own if yes(row, "unbalanced")]
        if bad:
            hot = Counter(name for row in bad for name in row["hot_instances"] or ())
            means = {name: mean_of(number_of(row, name) for row in bad) for name in ("cov", "max_mean", "gini")}
            days_of = {"name": service, "unbalanced": len(bad), "days": len(own)}
            unbalanced.append({**days_of, **means, "hot": hot.most_common(HOT)})
    return {"compared": len(found), "unbalanced": unbalanced}
