"""The sections below those of the services. Each public function gives the values of its name in a template: of
``providers.html``, ``promises.html``, ``data_quality.html`` and ``unclaimed.html``."""

from collections import Counter
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

from spark.capacity.report.service_rows import ServiceRows, Tables
from spark.capacity.tables.row_values import Row, grouped, highest_of, mean_of, number_of

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
        "missed_promised": mean_of(row["promised_miss_most"] for row in own),
        "missed": sum(missed) / len(missed) if missed else None,
        "peaks": len(missed),
        "over_provision": number_of(service.told, "over_provision"),
    }


EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""


def quality(tables: Tables) -> dict[str, Any]:
    """Return the values of `data_quality.html`."""
    ledger = tables.get("ledger", ())
    members = grouped(tables.get("unknown_members", ()), "member")
    down = sorted(tables.get("broker_down", ()), key=itemgetter("start"))
    set_back = sorted(tables.get("set_back", ()), key=itemgetter("broker", "boot", "seq"))
    return {
        "segments": len(ledger),
        "records": sum(row["records"] for row in ledger),
        "quarantined": _quarantined(tables.get("quarantine", ())),
        "lost": [{**row, "start": _start(row)} for row in tables.get("loss", ())],
        "absences": [{**row, "seconds": (row["end"] - row["start"]).total_seconds()} for row in down],
        "set_back": [
            {**row, "start": _start(row), "seconds": (row["before"] - row["after"]).total_seconds()} for row in set_back
        ],
        "unknown_members": [(name, sum(row["records"] for row in own)) for name, own in sorted(members.items())],
    }


def _quarantined(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the entries by their reasons: the first segments by name, and the number of more ones."""
    found = []
    for reason, own in sorted(grouped(rows, "reason").items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({row["segment"] for row in own})
        more = max(0, len(names) - EXAMPLES)
        found.append({"reason": reason, "entries": len(own), "segments": names[:EXAMPLES], "more": more})
    return found


def _start(row: Row) -> str:
    """Return the name of a start of a broker."""
    return f"{row['broker']} {row['boot']}"


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
