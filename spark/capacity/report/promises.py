"""Past forecasts beside the measured load, and the services of which something is not claimed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs

from spark.capacity.report.row_values import Tables, mean_of, missing, number_of, text_of
from spark.capacity.report.service_rows import ServiceRows


@attrs.frozen
class Promise:
    """The promises of a service's forecasts and the outcome: shares of one, each None where it is not known.

    `judged` is the number of past forecasts, or, `by_back_test`, of past moments at which the same rule was tried: of
    these nothing was promised, since the promises of a first forecast are made of that same record. `missed` is the
    share of `peaks` that were over the bound.
    """

    service: str
    judged: float
    by_back_test: bool
    error: float | None
    coverage_promised: float | None
    coverage: float | None
    missed_promised: float | None
    missed: float | None
    peaks: float
    over_provision: float | None


@attrs.frozen
class Unclaimed:
    """Names of services of which something is not claimed, by the reason."""

    no_full_load: Sequence[str]
    no_load: Sequence[str]
    no_forecast: Sequence[str]
    flagged: Sequence[str]
    unjudged: Sequence[str]
    by_connection: int
    """Providers that promised no heartbeats."""


def promises(services: Sequence[ServiceRows]) -> list[Promise]:
    """Return the services with past forecasts, then, of a first run, those with a back-test."""
    judged = [_judged(service) for service in services if service.evaluations]
    tried = [service for service in services if not service.evaluations and number_of(service.plan, "bound_trials")]
    return judged + [_tried(service) for service in tried]


def _judged(service: ServiceRows) -> Promise:
    own = service.evaluations
    missed = [bool(row["peak_missed"]) for row in own if not missing(row.get("peak_missed"))]
    return Promise(
        service.name,
        len(own),
        False,
        mean_of(number_of(row, "mape") for row in own),
        mean_of(number_of(row, "promised_coverage") for row in own),
        mean_of(number_of(row, "coverage") for row in own),
        mean_of(number_of(row, "promised_miss_most") for row in own),
        sum(missed) / len(missed) if missed else None,
        len(missed),
        number_of(service.told, "over_provision"),
    )


def _tried(service: ServiceRows) -> Promise:
    trials = number_of(service.plan, "bound_trials") or 1
    return Promise(
        service.name,
        trials,
        True,
        None,
        None,
        number_of(service.told, "coverage"),
        None,
        (number_of(service.plan, "bound_missed") or 0) / trials,
        trials,
        number_of(service.told, "over_provision"),
    )


def unclaimed(services: Sequence[ServiceRows], tables: Tables) -> Unclaimed:
    def names(holds: Callable[[ServiceRows], object]) -> list[str]:
        return [service.name for service in services if holds(service)]

    days = tables.get("gold_provider_day", ())
    return Unclaimed(
        names(lambda service: service.measured and service.capacity is None),
        names(lambda service: not service.measured),
        names(lambda service: service.measured and not service.told),
        names(lambda service: text_of(service.told, "flag")),
        names(lambda service: service.told and not service.evaluations),
        len({str(row.get("instance")) for row in days if row.get("judged") == "connection"}),
    )
