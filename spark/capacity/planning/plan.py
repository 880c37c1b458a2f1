"""Job: how many providers each service needs, now and for the horizon, and when those that it has are too few.

Rules:
- Nothing is claimed about capacity where nothing says when a provider is full: no `full_load`, no number, and a note.
- Providers for a demand = demand / (`full_load` * target utilisation), rounded up, and never less than one.
- The demand of now is the p95 of the last full hour; that of the horizon is the highest peak bound of the forecast.
- Spare providers come on top: `SPARE`, or `SPARE_SHARE` of those needed if that is more.
- Where the requests of an hour and the time that one takes are known, Erlang's formula says how many providers keep all
  but `WAIT_SHARE` of them from waiting; the larger number is taken. The requests of the horizon are those of the last
  hour in proportion to the demand.
- The providers run out in the first hour in which the forecast (p50; the bound) is above the capacity of now times the
  target utilisation. No such hour in the horizon: no date.
- Confidence goes from 0 to 1: the part of `SURE_SEASONS` that the history has, times the share of past peaks that the
  bound held, times a half if the forecast has a flag (other than that it is constant). Where no fold could tell of a
  peak, the share is a half.
"""

from __future__ import annotations

from datetime import datetime

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from spark.capacity.planning.erlang import MOST_ERLANGS, WAIT_SHARE
from spark.capacity.planning.forecast import full_hour
from spark.capacity.planning.models import FLAG_CONSTANT
from spark.capacity.tables.schema import GOLD_PLAN

TARGET = 0.7
"""How full a provider should be in the busiest hour: the rest is for what happens within an hour, and for the load that
comes over when another provider goes."""

SPARE = 2
"""One may be down and another be restarted at the same time, and demand is still met."""

SPARE_SHARE = 0.05
"""Of a large farm more than two are down at a time."""

SURE_SEASONS = 8
"""Seasons that make a history long: the bound is the largest of so many independent misses at least."""

HOUR = 3600.0

NO_FULL_LOAD = "full_load is not set for this service: nothing is claimed about its capacity"
GONE = "no provider was there in the last full hour"
RUNS_OUT = "the bound is above what the providers of now should carry"


def plan(
    load: DataFrame,
    forecasts: DataFrame,
    now: datetime,
    service_times: DataFrame | None = None,
    target: float = TARGET,
) -> DataFrame:
    """Return the rows of gold_plan for the forecasts that were issued at ``now``.

    ``load`` is gold_service_1h, ``service_times`` has the seconds that a request takes: (service, service_s).
    """
    if not 0.0 < target <= 1.0:
        raise ValueError(f"a target utilisation of {target} is not above 0 and at most 1")
    issued = full_hour(now)
    known = _known(load, issued)
    told = forecasts.where(F.col("issued") == F.lit(issued)).join(known, "service", "left")
    if service_times is None:
        told = told.withColumn("service_s", F.lit(None).cast("double"))
    else:
        told = told.join(service_times.select("service", F.col("service_s").cast("double")), "service", "left")
    usable = F.col("capacity") * target
    services = told.groupBy("service", "issued").agg(
        F.max("peak_bound").alias("peak_bound"),
        F.min(F.when(F.col("p50") > usable, F.col("h"))).alias("exhaust_p50"),
        F.min(F.when(F.col("peak_bound") > usable, F.col("h"))).alias("exhaust_bound"),
        *(
            F.first(name).alias(name)
            for name in (
                "peak_miss_rate",
                "seasons",
                "flag",
                "full_load",
                "capacity",
                "demand_now",
                "requests_now",
                "service_s",
            )
        ),
        F.coalesce(F.first("providers_now"), F.lit(0)).cast("long").alias("providers_now"),
    )
    erlangs = F.col("requests_now") / HOUR * F.col("service_s")
    growth = F.when(F.col("demand_now") > 0.0, F.col("peak_bound") / F.col("demand_now")).otherwise(F.lit(1.0))
    per_provider = F.col("full_load") * target
    counted = (
        services.withColumn("load_now", _for_load(F.col("demand_now"), per_provider))
        .withColumn("load_horizon", _for_load(F.col("peak_bound"), per_provider))
        .withColumn("erlang_now", providers_for(erlangs))
        .withColumn("erlang_horizon", providers_for(erlangs * F.greatest(growth, F.lit(1.0))))
        .withColumn("busy_now", F.greatest("load_now", "erlang_now"))
        .withColumn("busy_horizon", F.greatest("load_horizon", "erlang_horizon"))
        .withColumn("spare", spare_for(F.col("busy_horizon")))
    )
    return counted.select(
        "service",
        "issued",
        "providers_now",
        (F.col("busy_now") + spare_for(F.col("busy_now"))).alias("need_now"),
        (F.col("busy_horizon") + F.col("spare")).alias("need_horizon"),
        "spare",
        _rule(target).alias("rule"),
        "exhaust_p50",
        "exhaust_bound",
        _confidence().alias("confidence"),
        "peak_bound",
        F.lit(target).alias("target_utilisation"),
        "peak_miss_rate",
        _note().alias("note"),
    ).select(*GOLD_PLAN.schema.names)


def _known(load: DataFrame, issued: datetime) -> DataFrame:
    """Return what is known of each service: its last full hour, and when a provider of it is full."""
    before = load.where(F.col("h") < F.lit(issued))
    is_last = F.col("h") == F.lit(issued) - F.expr("INTERVAL 1 HOUR")
    last = {
        name: F.max(F.when(is_last, F.col(name)))
        for name in ("providers_mean", "capacity", "demand_mean", "demand_p95", "requests")
    }
    full = F.max_by("full_load", F.when(F.col("full_load") > 0.0, F.col("h")))
    providers = F.round(last["providers_mean"])
    return before.groupBy("service").agg(
        full.alias("full_load"),
        providers.alias("providers_now"),
        F.when(full.isNotNull(), F.coalesce(last["capacity"], providers * full, F.lit(0.0))).alias("capacity"),
        F.coalesce(last["demand_p95"], last["demand_mean"], F.lit(0.0)).alias("demand_now"),
        last["requests"].alias("requests_now"),
    )


def _for_load(demand: Column, per_provider: Column) -> Column:
    """Return the providers that carry a demand; null where nothing says when one is full."""
    return F.greatest(F.ceil(demand / per_provider), F.lit(1)).cast("long") * F.when(per_provider > 0.0, 1)


def spare_for(needed: Column) -> Column:
    """Return the providers that must be there beside those that are needed."""
    share = F.ceil(needed * SPARE_SHARE)
    return F.when(needed.isNotNull(), F.greatest(F.lit(SPARE), share)).cast("long")


def providers_for(erlangs: Column, wait_share: float = WAIT_SHARE) -> Column:
    """Return `erlang.providers_for` as an expression of Spark's own; null where the traffic is unknown or absurd."""
    # Four standard deviations above the mean: far above the answer for a twentieth that waits, also for small traffic.
    within = F.least(erlangs, F.lit(MOST_ERLANGS))
    most = F.ceil(within + 4.0 * F.sqrt(within) + 8.0).cast("int")
    start = F.struct(F.lit(1.0).alias("blocked"), F.lit(None).cast("long").alias("found"))

    def step(state: Column, k: Column) -> Column:
        blocked = erlangs * state["blocked"] / (k + erlangs * state["blocked"])
        waits = F.when(k > erlangs, blocked / (F.lit(1.0) - erlangs / k * (F.lit(1.0) - blocked))).otherwise(1.0)
        enough = waits <= wait_share
        found = F.coalesce(state["found"], F.when(enough, k.cast("long")))
        return F.struct(blocked.alias("blocked"), found.alias("found"))

    searched = F.aggregate(F.sequence(F.lit(1), most), start, step, lambda state: state["found"])
    return F.when(erlangs == 0.0, F.lit(0).cast("long")).when(erlangs.between(0.0, MOST_ERLANGS), searched)


def _rule(target: float) -> Column:
    """Name what decided on the number of providers."""
    waits = F.col("load_horizon").isNull() | (F.col("erlang_horizon") > F.col("load_horizon"))
    decided = F.when(waits, f"at most {WAIT_SHARE:.0%} wait").otherwise(f"peak bound at {target:.0%} load")
    spare = F.when(F.col("spare") > SPARE, f" + {SPARE_SHARE:.0%} spare").otherwise(f" + {SPARE} spare")
    return F.when(F.col("busy_horizon").isNull(), "none").otherwise(F.concat(decided, spare))


def _confidence() -> Column:
    """Tell how far to trust the row."""
    history = F.least(F.col("seasons") / SURE_SEASONS, F.lit(1.0))
    held = F.coalesce(F.lit(1.0) - F.col("peak_miss_rate"), F.lit(0.5))
    flagged = F.when(F.coalesce(F.col("flag"), F.lit("")).isin("", FLAG_CONSTANT), 1.0).otherwise(0.5)
    return F.round(history * held * flagged, 2)


def _note() -> Column:
    """Say what a reader should know of the row."""
    return F.concat_ws(
        "; ",
        F.when(F.col("full_load").isNull(), NO_FULL_LOAD),
        F.when(F.col("providers_now") == 0, GONE),
        F.when((F.col("providers_now") > 0) & F.col("exhaust_bound").isNotNull(), RUNS_OUT),
        F.when(F.coalesce(F.col("flag"), F.lit("")) != "", F.col("flag")),
    )
