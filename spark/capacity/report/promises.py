"""Past forecasts beside the measured load, and the services of which something is not claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from spark.capacity.report.service_rows import ServiceRows, Tables
from spark.capacity.tables.row_values import mean_of, number_of


def promises(services: Sequence[ServiceRows]) -> list[dict[str, Any]]:
    """Return the services with past forecasts.

    Shares are of one, each None where it is not known. `judged` is the number of past forecasts; `missed` is the share
    of `peaks` that were over the bound.
    """
    return [_judged(service) for service in services if service.evaluations]


def _judged(service: ServiceRows) -> dict[str, Any]:
    own = service.evaluations
    missed = [row["peak_missed"] for row in own if row["peak_missed"] is not None]
    return {
        "service": service.name,
        "judged": len(own),
        "error": mean_of(row["mape"] for row in own),
        "coverage_promised": mean_of(row["promised_coverage"] for row in own),
        "coverage": mean_of(row["coverage"] for row in own),
        "missed_promised": mean_of(row["promised_miss_most"] for row in own),
        "missed": sum(missed) / len(missed) if missed else None,
        "peaks": len(missed),
        "over_provision": number_of(service.told, "over_provision"),
    }


def unclaimed(services: Sequence[ServiceRows], tables: Tables) -> dict[str, Any]:
    """Return the names of services of which something is not claimed, by the reason, and the number of providers that
    promised no heartbeats."""

    def names(holds: Callable[[ServiceRows], object]) -> list[str]:
        return [service.name for service in services if holds(service)]

    days = tables.get("gold_provider_day", ())
    return {
        "no_full_load": names(lambda service: service.measured and not _has_capacity(service)),
        "no_load": names(lambda service: not service.measured),
        "no_forecast": names(lambda service: service.measured and not service.told),
        "flagged": names(lambda service: service.told.get("flag")),
        "unjudged": names(lambda service: service.told and not service.evaluations),
        "by_connection": len({row["instance"] for row in days if row["judged"] == "connection"}),
    }


def _has_capacity(service: ServiceRows) -> bool:
    return any(row["capacity"] is not None for row in service.history)
