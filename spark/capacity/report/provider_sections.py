"""Findings about providers: those that were flaky, and services whose load lay unevenly on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from spark.capacity.tables.row_values import Row, grouped, highest_of, mean_of

HOT = 5
"""Hot providers that are named for a service."""


def reliability(days: Sequence[Row]) -> dict[str, Any]:
    """Return the number of providers that were judged, and the flaky ones with their days, the worst first."""
    found = grouped(days, "service", "instance")
    flaky: list[dict[str, Any]] = [
        {
            "instance": instance,
            "service": service,
            "judged": sorted({row["judged"] for row in own}),
            "flaky": sum(row["flaky"] for row in own),
            "days": len(own),
            "missed_mean": mean_of(row["miss_ratio"] for row in own),
            "missed_most": highest_of(row["miss_ratio"] for row in own),
            "outages": sum(row["outages"] for row in own),
            "down_s": sum(row["downtime_s"] for row in own),
            "flapping": highest_of(row["flap_pct"] for row in own),
        }
        for (service, instance), own in found.items()
        if any(row["flaky"] for row in own)
    ]
    flaky.sort(key=lambda one: (-one["flaky"], -(one["missed_mean"] or 0), one["service"], one["instance"]))
    return {"judged": len(found), "flaky": flaky}


def balance(days: Sequence[Row]) -> dict[str, Any]:
    """Return the number of services that were compared, and the unbalanced ones; `hot` has providers with the days on
    which each was hot."""
    found = grouped(days, "service")
    unbalanced = []
    for service, own in sorted(found.items()):
        bad = [row for row in own if row["unbalanced"]]
        if bad:
            hot = Counter(name for row in bad for name in row["hot_instances"])
            means = {name: mean_of(row[name] for row in bad) for name in ("cov", "max_mean", "gini")}
            days_of = {"name": service, "unbalanced": len(bad), "days": len(own)}
            unbalanced.append({**days_of, **means, "hot": hot.most_common(HOT)})
    return {"compared": len(found), "unbalanced": unbalanced}
