"""Pools: services that share servers, and the hours of all servers of a pool together.

A server reports one load, which is recorded for each service that it offers. So the demands of services that share
servers count the same load, and their needs do not add up: they have one need, that of the union of their servers.

Rules:
- Services are of one pool on a date if an instance was up with both in `TOGETHER` windows of it, and so are those that
  are connected through others. A pool has the name of the first of its services.
- The hours of a pool are made as those of a service (`demand`), of each instance once. They stand in gold_pool_1h under
  each of its services, beside the service's own providers and peak.
- Plans, forecasts and their records take these hours in place of the service's own; on dates on which a service shared
  no server, its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame

from spark.capacity.rollup.partitioning import connected
from spark.capacity.tables.column_reader import batches, codes, micros, real
from spark.capacity.tables.row_values import Row
from spark.capacity.tables.schema import (
    GOLD_POOL_1H,
    GOLD_PROVIDER_DAY,
    GOLD_SERVICE_1H,
    OWN_PEAK,
    OWN_PROVIDERS,
    SILVER_PROVIDER_5M,
)
from spark.capacity.tables.store import Tables
from spark.capacity.tables.time_windows import FIVE_MINUTES, WINDOWS, midnight

TOGETHER = 2
"""Windows. In one an address may have two services one after the other."""


def find_pools(tables: Tables, days: Sequence[date]) -> dict[date, dict[str, str]]:
    """Return the pool of each service that shares servers, by date."""
    offers = {day: _offers(tables, day) for day in days}
    tasks = [
        (day, sorted(mine), [str(path) for path in tables.files(SILVER_PROVIDER_5M, day)])
        for day in days
        if (mine := {instance for instance, services in offers[day].items() if len(services) > 1})
    ]
    if not tasks:
        return {day: {} for day in days}
    done = tables.spark.sparkContext.parallelize(tasks, len(tasks)).map(lambda task: (task[0], _pools(*task)))
    return {day: {} for day in days} | dict(done.collect())


def _offers(tables: Tables, day: date) -> dict[str, set[str]]:
    """Return the services of each instance on a date."""
    rows, found = tables.rows_of(GOLD_PROVIDER_DAY, day), defaultdict[str, set[str]](set)
    for service, instance in zip(rows["service"].to_pylist(), rows["instance"].to_pylist(), strict=True):
        found[instance].add(service)
    return found


def _pools(day: date, instances: Sequence[str], files: Sequence[str]) -> dict[str, str]:
    """Find the pools among the services of some instances; a task of Spark."""
    up = defaultdict[str, dict[str, int]](dict)
    for service, instance, windows in _windows(day, instances, files):
        up[instance][service] = up[instance].get(service, 0) | windows
    pairs = []
    for of_instance in up.values():
        groups: list[tuple[int, str]] = []
        for service, windows in sorted(of_instance.items()):
            near = [group for group in groups if (group[0] & windows).bit_count() >= TOGETHER]
            pairs += [(service, name) for _, name in near]
            for group in near:
                groups.remove(group)
                windows |= group[0]
            groups.append((windows, service))
    members = defaultdict[object, list[str]](list)
    for name, lead in connected(pairs).items():
        members[lead].append(str(name))
    return {service: min(mine) for mine in members.values() for service in mine}


def _windows(day: date, instances: Sequence[str], files: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Yield services and instances, with a number of which a bit is set for each window in which it was up."""
    wanted, begin = pa.array(instances, pa.string()), midnight(day)
    for batch in batches(files, ("service", "instance", "w", "up_s")):
        named = batch.filter(pc.is_in(batch["instance"].cast(pa.string()), wanted))
        (service, services), (instance, names) = codes(named["service"]), codes(named["instance"])
        place = (micros(named["w"]) - begin) // FIVE_MINUTES
        there = (real(named["up_s"]) > 0) & (place >= 0) & (place < WINDOWS)
        keys, row = np.unique((service * len(names) + instance)[there], return_inverse=True)
        bits = np.zeros((len(keys), WINDOWS), bool)
        bits[row, place[there]] = True
        for key, packed in zip(keys.tolist(), np.packbits(bits, axis=1), strict=True):
            yield services[key // len(names)], names[key % len(names)], int.from_bytes(packed.tobytes(), "big")


def shared(tables: Tables, day: date) -> dict[str, int]:
    """Return the number of providers of each service that offered others as well on a date."""
    offers = _offers(tables, day).values()
    return dict(Counter(service for services in offers if len(services) > 1 for service in services))


def of_members(rows: Iterable[Row], pools: Mapping[str, str], own: Iterable[Row]) -> list[dict[str, Any]]:
    """Return the hours of pools under each of their services; ``own`` are the hours of the services themselves."""
    by_hour, made = {(row["service"], row["h"]): row for row in rows}, []
    for row in own:
        pool = pools.get(row["service"])
        if (whole := by_hour.get((pool, row["h"]))) is not None:
            own_hour = {OWN_PROVIDERS: row["providers_mean"], OWN_PEAK: row["demand_peak"]}
            made.append({**whole, "service": row["service"], "pool": pool, **own_hour})
    return made


def pools_of(tables: Tables, day: date) -> dict[str, str]:
    """Return the pool of each service that shares servers on a date, from the table of their hours."""
    rows = tables.rows_of(GOLD_POOL_1H, day)
    return dict(zip(rows["service"].to_pylist(), rows["pool"].to_pylist(), strict=True))


def planned(tables: Tables, days: Iterable[date]) -> DataFrame:
    """Return the hours that plans are made of, as rows of gold_pool_1h."""
    days = set(days)
    own, pooled = tables.read(GOLD_SERVICE_1H, days), days.intersection(tables.dates(GOLD_POOL_1H))
    rows = tables.read(GOLD_POOL_1H, pooled)
    if pooled:
        own = own.join(rows.select("service", "h"), ["service", "h"], "left_anti")
    return rows.unionByName(own, allowMissingColumns=True)


def planned_rows(tables: Tables, day: date) -> pa.Table:
    """Return the hours of a date that plans are made of, as rows of gold_pool_1h."""
    own, pooled = tables.rows_of(GOLD_SERVICE_1H, day), tables.rows_of(GOLD_POOL_1H, day)
    keys = ["service", "h"]
    rest = own.join(pooled.select(keys), keys, join_type="left anti")
    return pa.concat_tables([pooled, rest], promote_options="default")
