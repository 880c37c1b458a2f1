"""Services that share servers: the pools that are found, and their hours."""

from datetime import timedelta

import pytest

from spark.capacity.service.demand import LOOKBACK, MEASURES, service_load
from spark.capacity.service.pools import find_pools, of_members, planned, planned_rows, shared
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import GOLD_POOL_1H, GOLD_PROVIDER_DAY, GOLD_SERVICE_1H
from spark.capacity.tables.store import Tables
from tests.spark.farm import DAY, Start, as_rows, clock, each, every, put_dates, rolled

EVERY_MINUTE = every(60, "10:00", "11:59")


def server(start: Start, number: int, services: str, load: float, first: str = "10:00", last: str = "11:59") -> None:
    """A server that offers some services, and reports one load, which is recorded for each of them."""
    for at in every(60, first, last):
        for place, service in enumerate(services):
            told = {"service": service, "provider": number * 10 + place, "instance": f"10.0.0.{number}:80"}
            if at == clock(first):
                start.write(at, "register", **told)
            start.write(at, "load", load=load, full_load=100.0, requests=6, **told)
    for place, service in enumerate(services):
        told = {"service": service, "provider": number * 10 + place, "instance": f"10.0.0.{number}:80"}
        start.write(clock(last), "unregister", why="withdrawn", **told)


@pytest.fixture(scope="module")
def tables(spark, tmp_path_factory) -> Tables:
    """A farm of chained services, of one by itself, and of an address that has two services one after the other."""
    start = Start("b", "1")
    start.alive(EVERY_MINUTE)
    server(start, 1, "ab", 40.0)
    server(start, 2, "bc", 60.0)
    server(start, 3, "c", 10.0)
    server(start, 4, "d", 50.0)
    server(start, 5, "e", 50.0, last="10:58")
    server(start, 5, "f", 50.0, first="10:59")
    made = rolled(Tables(spark, tmp_path_factory.mktemp("pools") / "out"), [start])
    offers = ["a1", "b1", "b2", "c2", "c3", "d4", "e5", "f5"]
    rows = [{"date": DAY, "service": one[0], "instance": f"10.0.0.{one[1]}:80"} for one in offers]
    put_dates(made, GOLD_PROVIDER_DAY, rows)
    return made


def test_services_that_share_a_server_at_the_same_time_are_a_pool(tables):
    assert find_pools(tables, [DAY]) == {DAY: {"a": "a", "b": "a", "c": "a"}}
    # An address that had one service after the other offers both on that date, and shares nothing.
    assert shared(tables, DAY) == {"a": 1, "b": 2, "c": 1, "e": 1, "f": 1}


def test_dates_without_shared_servers_have_no_pools(tables):
    assert find_pools(tables, [DAY + timedelta(days=1)]) == {DAY + timedelta(days=1): {}}


def test_a_pool_counts_each_server_once(tables):
    files = [str(path) for path in tables.out.glob("silver_provider_5m/*/*.parquet")]
    pools = dict.fromkeys("abc", "a")
    own = as_rows(GOLD_SERVICE_1H, each(service_load, MEASURES, files, DAY, LOOKBACK.days))
    whole = as_rows(GOLD_SERVICE_1H, each(service_load, MEASURES, files, DAY, LOOKBACK.days, pools=pools))
    by_hour = {(row.service, row.h): row for row in own}
    assert {row.service for row in whole} == {"a"}
    at = clock("10:00")
    assert [by_hour[service, at].demand_mean for service in "abc"] == [40.0, 100.0, 70.0]
    [first] = [row for row in whole if row.h == at]
    assert (first.demand_mean, first.demand_peak, first.full_load) == (110.0, 110.0, 100.0)
    assert (first.providers_mean, first.providers_min, first.capacity) == (3.0, 3, 300.0)
    # Each server told six requests in each minute, for each of its services.
    assert first.requests == 3 * 60 * 6


def test_the_hours_of_a_pool_stand_in_place_of_those_of_its_services(tables):
    hour = {"date": DAY, "h": clock("10:00"), "demand_mean": 40.0, "demand_peak": 45.0, "providers_mean": 1.0}
    put_dates(tables, GOLD_SERVICE_1H, [{**hour, "service": service} for service in "ad"])
    own = tables.rows_of(GOLD_SERVICE_1H, DAY).to_pylist()
    pool = {**own[0], "demand_mean": 110.0, "demand_peak": 120.0, "providers_mean": 3.0}
    rows = of_members([pool], {"a": "a"}, own)
    assert (rows[0]["own_providers"], rows[0]["own_peak"], rows[0]["demand_peak"]) == (1.0, 45.0, 120.0)
    before = {row["service"]: row["demand_peak"] for row in planned_rows(tables, DAY).to_pylist()}
    assert before == {"a": 45.0, "d": 45.0}
    put_dates(tables, GOLD_POOL_1H, rows)
    made = planned_rows(tables, DAY)
    assert made.schema == arrow_schema(GOLD_POOL_1H.schema)
    expected = {"a": (120.0, "a"), "d": (45.0, None)}
    assert {row["service"]: (row["demand_peak"], row["pool"]) for row in made.to_pylist()} == expected
    read = planned(tables, [DAY]).collect()
    assert {row["service"]: (row["demand_peak"], row["pool"]) for row in read} == expected
