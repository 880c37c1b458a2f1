"""The truths of generated journals come out of the whole pipeline within stated tolerances."""

import io
from collections import defaultdict
from datetime import timedelta
from statistics import fmean

import attrs
import pytest

from spark.capacity.pipeline import Pipeline, Settings
from spark.capacity.progress import Progress
from spark.capacity.tables.schema import GOLD_PLAN, GOLD_PROVIDER_DAY, GOLD_SERVICE_1H
from spark.capacity.tables.store import Tables
from tests.spark.generator import END, Faults, Service, generate
from tests.spark.generator.broker_lives import HOUR, SECOND

SHORT = Service("a minute each", providers=1, level=50.0, daily=0.0, noise=0.0, outages=0.0, lifetime=60.0, report=20.0)
ROLLED = Service("rolled", providers=6, level=240.0, deployments=4, outages=0.0, report=60.0)

ASKED = Service(
    "asked", providers=6, level=240.0, outages=0.0, report=60.0, service_s=0.25, failed=0.02, full_load=80.0
)

BURSTS = Service("bursts", providers=6, level=240.0, outages=0.0, report=5.0, burst=1.0)

BRIEF = (
    SHORT,
    attrs.evolve(SHORT, name="a minute each, killed", replaced_by="left"),
)

LASTING = (
    ROLLED,
    attrs.evolve(ROLLED, name="rolled by kill", replaced_by="left"),
    attrs.evolve(ROLLED, name="rolled at once", deploy_step=1.0),
    ASKED,
    Service("flaky", "dbp", providers=6, interval=20.0, report=300.0, flaky=(0.05,), losses=0.005, outages=1.0),
    BURSTS,
)

RESTARTS = Faults(kills=1, restarts=1)

FAULTS = Faults(kills=1, restarts=1, drops=1, clock_jumps=1, torn=1)
"""With losses. The brief instances have none: where the journal lost the end of an instance without heartbeats, it is
there until its broker's boot ends."""

MEAN_OFF, HOUR_OFF = 0.02, 0.20
"""Of the true demand and of the true number of providers: what all hours together and the worst hour may be off by."""


BURST_OFF = 0.08
"""Of the true highest minute: by how much that of an hour may be off, where loads are reported each 5 s."""


@pytest.fixture(scope="module")
def known(spark, tmp_path_factory):
    folder = tmp_path_factory.mktemp("truths")
    brief = generate(folder / "journal", 4, 1.25, BRIEF, faults=RESTARTS, broker="brief")
    lasting = generate(folder / "journal", 5, 1.25, LASTING, faults=FAULTS, broker="lasting")
    tables = Tables(spark, folder / "out")
    tables.open()
    settings = Settings((folder / "journal",), folder / "out", END + timedelta(hours=1), now=END, horizon=24)
    Pipeline(tables, settings, Progress(io.StringIO(), terminal=False)).run()
    tables.close()
    hours = defaultdict(list)
    for row in tables.read(GOLD_SERVICE_1H).orderBy("h").collect():
        hours[row["service"]].append(row)
    return {**dict.fromkeys(BRIEF, brief), **dict.fromkeys(LASTING, lasting)}, hours, tables


@pytest.mark.parametrize("service", [*BRIEF, *LASTING], ids=lambda service: service.name)
def test_demand_providers_and_capacity_are_the_true_ones(known, service):
    truths, hours, _ = known
    truth = truths[service]
    true = truth.service(service.name)
    # In the hours of a start of the broker and of a wrong clock, less is known.
    bad = {begin // HOUR for _, begin, _, _ in truth.boots} | {end // HOUR for _, _, end, _ in truth.boots}
    bad |= {hour for begin, end, _ in truth.clock_jumps for hour in range(begin // HOUR - 1, end // HOUR + 2)}
    demand, providers, peaks, minutes = [], [], [], []
    for row in hours[service.name]:
        at = int(row["h"].timestamp()) * SECOND
        if at // HOUR in bad or at < true.since:
            continue
        wanted = true.demand[(at - true.since) // HOUR]
        demand.append(row["demand_mean"] / wanted - 1)
        if not service.burst:
            peaks.append(row["demand_max"] / wanted - 1)
        minutes.append(row["demand_peak"] / true.peaks[(at - true.since) // HOUR] - 1)
        providers.append(row["providers_mean"] / service.providers - 1)
        assert row["capacity"] == pytest.approx(row["providers_mean"] * service.full_load, rel=0.01)
    assert len(demand) > 20
    assert abs(fmean(demand)) < MEAN_OFF
    assert max(map(abs, demand)) < HOUR_OFF
    assert max(peaks, default=0.0) < 1.5 * HOUR_OFF
    assert max(minutes) < 1.5 * HOUR_OFF
    assert abs(fmean(providers)) < MEAN_OFF


def test_bursts_of_a_minute_are_the_true_peaks(known):
    truths, hours, _ = known
    true, boots = truths[BURSTS].service("bursts"), truths[BURSTS].boots
    bad = {at // HOUR for boot in boots for at in boot[1:3]}
    bad |= {hour for begin, end, _ in truths[BURSTS].clock_jumps for hour in range(begin // HOUR - 1, end // HOUR + 2)}
    minutes, windows = [], []
    for row in hours["bursts"]:
        at = int(row["h"].timestamp()) * SECOND
        if at // HOUR not in bad and at >= true.since:
            wanted = true.peaks[(at - true.since) // HOUR]
            minutes.append(row["demand_peak"] / wanted - 1)
            windows.append(row["demand_max"] / wanted - 1)
    assert len(minutes) > 20
    # A load holds until the next report, some seconds into the next minute.
    assert max(map(abs, minutes)) < BURST_OFF
    # One minute in five has twice the load.
    assert max(windows) < -0.3


def test_requests_are_the_true_ones_and_of_no_other_service(known):
    truths, hours, tables = known
    true, boots = truths[ASKED].service("asked"), truths[ASKED].boots
    bad = {at // HOUR for boot in boots for at in boot[1:3]}
    bad |= {hour for begin, end, _ in truths[ASKED].clock_jumps for hour in range(begin // HOUR - 1, end // HOUR + 2)}
    offered, handled = [], []
    for row in hours["asked"]:
        at = int(row["h"].timestamp()) * SECOND
        if at // HOUR not in bad and at >= true.since:
            wanted = true.demand[(at - true.since) // HOUR] / ASKED.full_load
            offered.append(row["requests"] * row["service_s"] / 3600 / wanted - 1)
            handled.append(row["in_flight"] / wanted - 1)
            assert row["service_s"] == pytest.approx(0.25)
    assert len(offered) > 20
    for off in (offered, handled):
        assert abs(fmean(off)) < MEAN_OFF
        assert max(map(abs, off)) < HOUR_OFF
    failed, requests = (sum(row[name] for row in hours["asked"]) for name in ("errors", "requests"))
    assert failed / requests == pytest.approx(ASKED.failed, rel=0.05)

    plans = {row["service"]: row for row in tables.read(GOLD_PLAN).collect()}
    asked = plans.pop("asked")
    assert asked["erlangs"] == pytest.approx(true.demand[-1] / ASKED.full_load, rel=0.1)
    assert asked["service_s"] == pytest.approx(0.25)
    assert {(row["erlangs"], row["service_s"]) for row in plans.values()} == {(None, None)}
    assert not any("wait" in row["rule"] for row in plans.values())
    assert all(hour["requests"] is None for name, rows in hours.items() if name != "asked" for hour in rows)


def test_the_flaky_provider_is_found_and_no_other(known):
    _, _, tables = known
    flaky = {row["instance"] for row in tables.read(GOLD_PROVIDER_DAY).where("flaky and service = 'flaky'").collect()}
    assert flaky == {"10.0.4.10:9004"}
