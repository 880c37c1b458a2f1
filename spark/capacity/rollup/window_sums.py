"""Sums of five minutes: times and records of a part, added to the five minutes of their sites, and the rows that
are made of that."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from spark.capacity.rollup.registrations import Names
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import SILVER_PROVIDER_5M
from spark.capacity.tables.time_windows import (
    DAY,
    DIGITS,
    FIVE_MINUTES,
    MINUTES,
    SECOND,
    WINDOWS,
    Floats,
    Ints,
)

COUNTS = ("hb", "connected", "up", "loaded", "down", "awaited", "outages")
"""Whole numbers that are added up; nothing is 0."""

AMOUNTS = ("load", "expected")
"""Numbers that are added up; nothing is 0."""

TOLD = ("requests", "errors", "busy", "timed", "in_flight", "in_flight_reports")
"""Numbers that are added up where they are reported at all."""

MOST = ("load_max", "full_load", "rtt_max", "gap")
"""Of these the greatest counts."""

SIGNS = ("beats", "absent_beats")
"""Flags that are set if any part of the five minutes has them."""

NUMBERS: dict[str, Any] = {
    **dict.fromkeys(COUNTS, np.int64(0)),
    **dict.fromkeys(AMOUNTS, 0.0),
    **dict.fromkeys((*TOLD, *MOST), np.nan),
    **dict.fromkeys(SIGNS, False),
}
"""All of them, and the one that stands for none."""

WAYS = {
    **dict.fromkeys((*COUNTS, *AMOUNTS, *TOLD, "broker_up"), "sum"),
    **dict.fromkeys(MOST, "max"),
    **dict.fromkeys(SIGNS, "any"),
}
"""The way in which each is aggregated, by its name in Arrow."""

SIGNIFICANT = 4
"""Digits of the loads of minutes: off by 0.05 % at most. With all of them, which hardly repeat, the table would be more
than twice as large."""

MOST_REQUESTS = 1e12
"""Requests that count of an instance in five minutes. The reports of one may add up to more than 64 bits hold."""

ROW = arrow_schema(SILVER_PROVIDER_5M.schema)

FILE = ROW.remove(ROW.get_field_index("date"))


def table_of(keys: Ints, columns: Mapping[str, Any]) -> pa.Table:
    """Return columns with the key of each row; NaN stands for nothing."""
    return pa.table({"key": keys, **{name: pa.array(values, from_pandas=True) for name, values in columns.items()}})


def grouped(rows: pa.Table) -> pa.Table:
    """Aggregate rows by key, each column in its way, in the order of the keys. Nothing adds nothing."""
    ways = {name: WAYS[name] for name in rows.column_names if name != "key"}
    made = rows.group_by("key", use_threads=False).aggregate(list(ways.items())).sort_by("key")
    return pa.table({"key": made["key"], **{name: made[f"{name}_{way}"] for name, way in ways.items()}})


@attrs.frozen
class Minutes:
    """The windows of instances that have minutes, in order: as `instance * WINDOWS + window`.

    `rise` has for each minute the sum of the loads of the instance's registrations, less the mean of the window.
    """

    keys: Ints
    rise: Floats

    def of(self, keys: Ints) -> Floats:
        """Return the rises of some windows, NaN for those without minutes."""
        made = np.full((len(keys), MINUTES), np.nan)
        if len(self.keys):
            place = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
            known = self.keys[place] == keys
            made[known] = self.rise[place[known]]
        return made


class FiveMinutes:
    """The five minutes of a date, which begins at `begin`; others are of no interest."""

    def __init__(self, begin: int) -> None:
        self._begin = begin
        self._parts = [table_of(np.zeros(0, np.int64), {name: np.array([none])[:0] for name, none in NUMBERS.items()})]

    def add(self, site: Ints, w: Ints, **columns: Any) -> None:
        """Add rows that are of one site and of five minutes each; a value that is not given is nothing."""
        window = (w - self._begin) // FIVE_MINUTES
        here = (window >= 0) & (window < WINDOWS)
        # At once: the columns of all records of a part are most of what a task would hold.
        mine = {name: values[here] for name, values in columns.items()}
        self._parts.append(grouped(table_of((site * WINDOWS + window)[here], mine)))

    def rows(self, names: Names, broker_up: Mapping[tuple[str, int], int], minutes: Minutes) -> pa.Table:
        """Make the rows of instances; `broker_up` tells for how long each broker was up in which five minutes.

        The times of each site are capped by its broker's, and those of an instance's brokers are added up.
        """
        found = grouped(pa.concat_tables(self._parts, promote_options="default"))
        mine = {name: pc.fill_null(found[name], none).to_numpy() for name, none in NUMBERS.items()}
        site, window = np.divmod(found["key"].to_numpy(), WINDOWS)
        up = self._broker_up(names, broker_up)[site, window]
        there = up >= 0
        mine = _capped({name: values[there] for name, values in mine.items()}, up[there])
        found = grouped(table_of((names.instance_of[site] * WINDOWS + window)[there], {**mine, "broker_up": up[there]}))
        keys = found["key"].to_numpy()
        return self._made(names, keys, {name: found[name].to_numpy() for name in WAYS}, minutes.of(keys))

    def _broker_up(self, names: Names, broker_up: Mapping[tuple[str, int], int]) -> Ints:
        """Return for how long the broker of each site was up in all five minutes, -1 where it was not there."""
        brokers = {name: number for number, name in enumerate(sorted({site[0] for site in names.sites}))}
        table = np.full((len(brokers), WINDOWS), -1, np.int64)
        for (broker, w), time in broker_up.items():
            if broker in brokers and 0 <= w - self._begin < DAY:
                table[brokers[broker], (w - self._begin) // FIVE_MINUTES] = time
        return table[[brokers[site[0]] for site in names.sites]]

    def _made(self, names: Names, keys: Ints, columns: Mapping[str, Any], rises: Floats) -> pa.Table:
        instance, window = np.divmod(keys, WINDOWS)
        loaded = columns["loaded"]
        mean = np.divide(columns["load"], loaded, out=np.full(len(keys), np.nan), where=loaded > 0)
        made = {
            "service": pa.array([one[0] for one in names.instances], pa.string()).take(pa.array(instance)),
            "instance": pa.array([one[1] for one in names.instances], pa.string()).take(pa.array(instance)),
            "w": pa.array(self._begin + window * FIVE_MINUTES).cast(pa.timestamp("us", "UTC")),
            "hb": columns["hb"],
            "hb_expected": _rounded(columns["expected"]),
            "connected_s": _seconds(columns["connected"]),
            "up_s": _seconds(columns["up"]),
            "load_mean": _rounded(mean),
            "load_max": _nullable(columns["load_max"]),
            "full_load": _nullable(columns["full_load"]),
            "requests": _whole(columns["requests"]),
            "errors": _whole(columns["errors"]),
            "busy_s": _rounded(columns["busy"]),
            "timed": _whole(columns["timed"]),
            "in_flight": _rounded(columns["in_flight"] / columns["in_flight_reports"]),
            "rtt_max": _nullable(columns["rtt_max"]),
            "broker_up_s": _seconds(columns["broker_up"]),
            "down_s": _seconds(columns["down"]),
            "awaited_s": _seconds(columns["awaited"]),
            "outages": columns["outages"],
            "gap_max": _nullable(columns["gap"] / SECOND),
            **_minutes(mean, rises, loaded),
        }
        return pa.table({name: made[name] for name in FILE.names}, FILE)


def _minutes(mean: Floats, rises: Floats, loaded: Ints) -> dict[str, pa.Array]:
    """Return the mean loads of the minutes, where they differ."""
    registrations = np.maximum(loaded, 1) / FIVE_MINUTES
    loads = _significant(np.maximum(mean[:, np.newaxis] + rises / registrations[:, np.newaxis], 0.0))
    loads[loads.max(axis=1) == loads.min(axis=1)] = np.nan
    return {f"load_{number + 1}": _nullable(column) for number, column in enumerate(loads.T)}


def _significant(values: Floats) -> Floats:
    """Round to `SIGNIFICANT` digits, and to `DIGITS` decimals at least."""
    size = np.log10(values, out=np.full_like(values, -np.inf), where=values > 0)
    unit = 10.0 ** np.clip(np.floor(size) + 1 - SIGNIFICANT, -DIGITS, 300)
    made: Floats = np.round(np.round(values / unit) * unit, DIGITS)
    return made


def _capped(mine: dict[str, Any], broker_up: Ints) -> dict[str, Any]:
    """Cap the times by the broker's. Without an agreed interval, beats and the silences between them are left out."""
    connected = np.minimum(mine["connected"], broker_up)
    # A clock that was set back shows the same minutes twice; the share that was one too many is not expected either.
    real = np.divide(connected, mine["connected"], out=np.ones(len(connected)), where=mine["connected"] > 0)
    return {
        **mine,
        "expected": np.where(mine["beats"] | mine["absent_beats"], mine["expected"] * real, np.nan),
        "connected": connected,
        "up": np.minimum(mine["up"], broker_up),
        "gap": np.where(mine["beats"], mine["gap"], np.nan),
    }


def _nullable(values: Floats) -> pa.Array:
    return pa.array(values, from_pandas=True)


def _whole(values: Floats) -> pa.Array:
    return _nullable(np.minimum(values, MOST_REQUESTS)).cast(pa.int64())


def _rounded(values: Floats) -> pa.Array:
    return _nullable(np.round(values, DIGITS))


def _seconds(micros: Ints) -> Floats:
    return np.minimum(micros, FIVE_MINUTES) / SECOND
