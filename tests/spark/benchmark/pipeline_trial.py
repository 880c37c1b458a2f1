"""A trial of all jobs: journals of which the truth is known go through the pipeline, and its tables are compared.

Rules:
- Each seed makes two farms, of a broker each, in one journal. One is of a few days of heartbeats, with flaky and good
  providers in services of several sizes. The other is of the load of all these days, for the forecasts.
- Heartbeats: a quarter of the providers are flaky, half of these at the least ratio; some come and go; the good ones
  miss up to `LOSSES`, and have outages. Brokers are killed and restarted, lose records, have a wrong clock, and leave
  segments that are torn, cut off, there twice, or that come after the first run.
- The days of heartbeats of different seeds are different dates: each farm is judged by itself.
- Loads: the forecast is that of the run's own table, of the day after the journal's end. The later values are in the
  truth only, noise included.
- A week ahead takes weeks of history, for which Spark would need minutes. There the demand is walked through without a
  journal, as recorded series are; and how well the jobs measure demand is told apart.
- Nothing is read but the tables. The dates are fixed, and the wall clock is not asked.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from itertools import cycle, islice
from pathlib import Path

import attrs
import numpy as np
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from spark.capacity.pipeline import Pipeline, Settings
from spark.capacity.planning import models
from spark.capacity.progress import Progress
from spark.capacity.progress import Step as Tell
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_PROVIDER_DAY, GOLD_SERVICE_1H
from spark.capacity.tables.store import Tables
from tests.spark.benchmark import flaky_detection
from tests.spark.benchmark.back_test import Bounds, Step, judge, walk
from tests.spark.generator import END, Faults, Service, Truth, deliver, generate, series
from tests.spark.generator.broker_lives import HOUR, SECOND
from tests.spark.generator.demand import FUTURE

RATIOS = (0.02, 0.03, 0.02, 0.05, 0.02, 0.1)
"""Of beats that flaky providers miss, in turn: the least is the hardest, and is half of them."""

LOSSES = 0.005
"""The most that good ones miss: networks lose some."""

OUTAGES = 4.0
"""Of each provider in 30 days: more than a good farm has, so that some fall into the few days."""

REPORT = 1800.0
"""Seconds between reports of load: the trial is about beats, or about hours."""

AFTER = timedelta(hours=1)
"""Start of the runs, after the end of the journal: nothing in it is of the future."""


@attrs.frozen
class Scale:
    """Size of a trial."""

    seeds: tuple[int, ...] = (11, 12, 13)
    days: int = 2
    """Of heartbeats, for each seed."""
    sizes: tuple[int, ...] = (3, 10, 50)
    """Providers of the services that beat; from `WITH_FLAPPING` on some come and go."""
    intervals: tuple[float, ...] = (10.0, 30.0)
    weeks: int = 8
    """Of load that is walked through: from four weeks on, a week ahead each."""

    @property
    def span(self) -> int:
        """Days of the whole journal."""
        return self.days * len(self.seeds)


WITH_FLAPPING = 10
"""Providers of a service of which one in twenty-five, and one at least, comes and goes."""

FAULTS = Faults(
    kills=1,
    restarts=1,
    drops=2,
    clock_jumps=1,
    unknown_versions=1,
    unknown_events=1,
    garbage=1,
    torn=1,
    truncated=1,
    duplicates=2,
)
"""Of each farm that beats."""

LATE = 2
"""Segments of the last such farm that come after the first run."""


@attrs.frozen
class Measured:
    """Error of the measured demand, as a share of the true one: the mean over hours."""

    hours: int
    error: float
    hours_down: int
    """Hours in which a provider was down: the jobs fill in the load that it would have carried."""
    error_down: float
    bias_down: float
    """The same with its sign: demand must not look as if it fell."""


@attrs.frozen
class Outcome:
    """Results of the pipeline beside the truth."""

    days: tuple[flaky_detection.Judged, ...]
    forecasts: tuple[tuple[Step, ...], ...]
    """Of each service of the loads."""
    measured: Measured


@attrs.frozen
class Farms:
    """A journal and the truth about its farms."""

    journal: Path
    beating: tuple[tuple[Truth, tuple[Service, ...]], ...]
    loaded: tuple[Truth, ...]

    @property
    def records(self) -> int:
        """Good records of all farms."""
        return sum(truth.records for truth in (*(truth for truth, _ in self.beating), *self.loaded))


def beating(seed: int, scale: Scale) -> tuple[Service, ...]:
    """Make the services of a farm that beats, and one whose providers are judged by their connection."""
    # Each seed begins with another ratio: small services have one flaky provider.
    ratios = islice(cycle(RATIOS), seed % len(RATIOS), None)
    services = [
        Service(
            f"{seed} of {size} every {interval:g}",
            "dbp",
            providers=size,
            level=30.0 * size,
            interval=interval,
            report=REPORT,
            outages=OUTAGES,
            flaky=tuple(islice(ratios, max(1, size // 4))),
            losses=LOSSES,
            flapping=max(1, size // 25) if size >= WITH_FLAPPING else 0,
        )
        for size in scale.sizes
        for interval in scale.intervals
    ]
    connected = Service(f"{seed} connected", providers=10, report=REPORT, outages=OUTAGES, flapping=1)
    return (*services, connected)


def loaded(seed: int) -> tuple[Service, ...]:
    """Make the services of a farm of loads: of every kind that the generator can make."""
    kinds = (
        Service("daily", outages=2.0),
        Service("office", weekend=0.4, peak_hour=11.0, daily=0.7, outages=2.0),
        Service("weekend", weekend=1.8, noise=0.08),
        Service("grows", trend=0.01, weekend=0.8),
        Service("grows fast", trend=0.03, noise=0.06),
        Service("shrinks", trend=-0.008, weekend=0.7),
        Service("runs out", runs_out=5.0, noise=0.03),
        Service("noisy", daily=0.1, noise=0.25),
        Service("even", daily=0.02, noise=0.01),
        Service("takes over", failover=True, outages=10.0),
        Service("loses its share", outages=10.0),
        Service("flaps", flapping=1, outages=4.0),
        Service("skewed", skew=1.5, daily=0.6, labelled=True, full_load=None),
    )
    return tuple(
        attrs.evolve(kind, name=f"{seed} {kind.name}", providers=4, level=160.0, report=REPORT) for kind in kinds
    )


def make(folder: Path, scale: Scale, progress: Progress) -> Farms:
    """Make the journal of all farms; late segments are beside it."""
    journal = folder / "journal"
    beats: list[tuple[Truth, tuple[Service, ...]]] = []
    loads: list[Truth] = []
    with progress.job("generate") as step:
        for number, seed in enumerate(scale.seeds):
            last = number == len(scale.seeds) - 1
            services = beating(seed, scale)
            end = END - timedelta(days=scale.days * (len(scale.seeds) - 1 - number))
            faults = attrs.evolve(FAULTS, late=LATE if last else 0)
            told = _told(step, number, len(scale.seeds))
            truth = generate(
                journal, seed, scale.days, services, faults=faults, end=end, broker=f"beats-{seed}", told=told
            )
            beats.append((truth, services))
            loads.append(generate(journal, seed, scale.span, loaded(seed), broker=f"loads-{seed}"))
        farms = Farms(journal, tuple(beats), tuple(loads))
        step(1.0, f"{farms.records:,} records of {2 * len(scale.seeds)} farms")
    return farms


def _told(step: Tell, number: int, of: int) -> Callable[[int, int], None]:
    """Report the progress of the farm of one seed, as a part of them all."""
    return lambda done, total: step((number + done / total) / of, f"farm {number + 1} of {of}")


def walked(scale: Scale) -> list[list[Step]]:
    """Walk through weeks of the loads of all seeds."""
    future = FUTURE // models.DAY
    return [
        walk(np.array(values))
        for seed in scale.seeds
        for values in series(seed, scale.weeks * models.WEEK_DAYS - future, loaded(seed)).values()
    ]


def run(spark: SparkSession, farms: Farms, out: Path, progress: Progress) -> Outcome:
    """Let the pipeline make its tables of a journal, the late segments in a second run, and compare."""
    tables = Tables(spark, out)
    tables.open()
    try:
        for turn in (1, 2):
            settings = Settings((farms.journal,), out, END + turn * AFTER, now=END, horizon=models.DAY)
            Pipeline(tables, settings, progress).run()
            if turn == 1:
                brought = deliver(farms.journal)
                if not brought:
                    break
                progress.note(f"{len(brought)} segments come late, and the jobs run again")
        return compare(tables, farms)
    finally:
        tables.close()


def compare(tables: Tables, farms: Farms) -> Outcome:
    """Set the tables beside the truth."""
    told = _by_service(tables.read(GOLD_FORECAST).where(F.col("issued") == F.lit(END)))
    seen = _by_service(tables.read(GOLD_SERVICE_1H).where(F.col("h") < F.lit(END)))
    steps = tuple(
        (_step(told[service.service], seen[service.service], np.array(service.came[: models.DAY])),)
        for truth in farms.loaded
        for service in truth.services
    )
    return Outcome(_days(tables, farms), steps, _measured(farms, seen))


def _days(tables: Tables, farms: Farms) -> tuple[flaky_detection.Judged, ...]:
    """Read which providers were called flaky, and when."""
    judged: list[flaky_detection.Judged] = []
    for truth, services in farms.beating:
        rows = tables.read(GOLD_PROVIDER_DAY, flaky_detection.days_of(truth))
        found = {(row["date"], row["service"], row["instance"]): bool(row["flaky"]) for row in rows.collect()}
        judged += flaky_detection.judge(truth, {service.name: service.interval for service in services}, found)
    return tuple(judged)


def _measured(farms: Farms, seen: Mapping[str, Sequence[Row]]) -> Measured:
    """Set the demand that the jobs measured beside the true one."""
    off: list[float] = []
    down: list[bool] = []
    for truth in farms.loaded:
        for service in truth.services:
            away = [span for one in truth.providers if one.service == service.service for span in one.outages]
            for row in seen[service.service]:
                at = int(row["h"].timestamp()) * SECOND
                true = service.demand[(at - service.since) // HOUR]
                if row["demand_mean"] is not None and true > 0:
                    off.append(row["demand_mean"] / true - 1)
                    down.append(any(start < at + HOUR and at < end for start, end in away))
    errors, some = np.array(off), np.array(down)
    return Measured(
        hours=len(off),
        error=float(np.abs(errors).mean()),
        hours_down=int(some.sum()),
        error_down=float(np.abs(errors[some]).mean()) if some.any() else 0.0,
        bias_down=float(errors[some].mean()) if some.any() else 0.0,
    )


def _by_service(rows: DataFrame) -> dict[str, list[Row]]:
    """Fetch rows by service, in the order of their hours."""
    found: dict[str, list[Row]] = defaultdict(list)
    for row in rows.orderBy("h").collect():
        found[row["service"]].append(row)
    return found


def _step(told: Sequence[Row], seen: Sequence[Row], came: models.Floats) -> Step:
    """Judge one forecast."""
    end = int(END.timestamp())
    # Spark gives times in the zone of the machine, without saying so.
    hours = [(end - int(row["h"].timestamp())) // 3600 for row in seen]
    before = np.full(hours[0], np.nan)
    for back, row in zip(hours, seen, strict=True):
        if row["demand_mean"] is not None:
            before[-back] = row["demand_mean"]
    season = models.season_of(len(models.recent(before)))
    forecast = models.Forecast(
        model=told[0]["model"],
        p50=np.array([row["p50"] for row in told]),
        season=season,
        seasons=told[0]["seasons"],
        flag=told[0]["flag"],
    )
    return judge(forecast, Bounds(told[0]["peak_bound"], np.array([row["hour_bound"] for row in told])), came, before)
