"""Reliability: a score of each provider on each day, by its beats or, where none were agreed, its connection.

Rules:
- The miss ratio is the share of the expected beats that did not come, over the time in which the provider was
  registered and the broker up. Beats beyond those that five minutes can have, and the few that were held up before, do
  not make up for others: a broker's clock that was set back shows the beats of some minutes beside those of others.
- Outages, their lengths and the time between them come from the down time of the rollup: the broker's own downtime
  and a withdrawal are none.
- Flapping is looked for as Naemon does: the share of changes between 21 states in a row, here five minutes with or
  without down time, and the day's highest such share. Another outage that begins in a row of bad ones is a change.
- phi is how surprising the longest silence was, if silences are exponential with the day's own mean: 8 is one in 10^8.
- The score is the share of time that the provider was up, times the share of beats that came while it was.
- A provider is flaky when it misses beats while it is up, more than chance and its service explain, or when it flaps.
  The beats missed on the way into an outage are the outage's. The rest is compared with the service's lower
  quartile, not its median: in a service of three, two may be flaky, and where all come late none is. Services of less
  than four are compared with all providers that beat. Two tests must both agree:
  - the excess over the quartile is at least 0.8 % of the beats: of a provider that misses 2 % among others that miss up
    to 0.5 %, a day of beats each 30 s (2,880 of them) shows 1.3 % or more on 99 days of 100;
  - the number is 3 standard deviations off the one that the quartile explains, by the square root that makes counts
    normal. It decides where beats are few: three of 288 are no finding.
"""

from collections.abc import Iterable, Iterator
from datetime import date
from math import log
from typing import Any

import numpy as np
import pandas as pd

from spark.capacity.service.grids import Grid, Service
from spark.capacity.tables.time_windows import DIGITS, LIVENESS, Flags, Floats

STATES = 21
"""States that flapping is looked for in: an hour and three quarters."""

FLAPPING = 30.0
"""Per cent of changes from which a provider flaps: three outages in an hour and three quarters, of two changes each."""

EXCESS = 0.008
"""The share of beats, over the share that the service misses anyway, from which a provider may be flaky."""

SIGNIFICANT = 3.0
"""Standard deviations from which a number of missed beats is more than chance."""

HELD_UP = 2.0
"""Beats that five minutes may have in addition, for they were due in those before. If all were counted, and ten
minutes were there twice, a provider that missed 2 % of its beats each 30 s seemed to miss 1 %."""

NOISE = 0.001
"""The share of beats that any network may lose: a quartile of nothing would make each single miss a wonder."""

COMPARABLE = 4
"""Providers of a service from which its lower quartile is its own."""


MEASURES = ("hb", "hb_expected", "connected_s", "up_s", "down_s", "outages", "gap_max")
"""Input columns."""


def provider_days(service: Service, day: date) -> Iterator[dict[str, Any]]:
    """Add up the day of each provider of a service."""
    return (row for rows in service.each(lambda grid: _provider_days(service.name, grid, day)) for row in rows)


def _provider_days(service: str, grid: Grid, day: date) -> list[dict[str, Any]]:
    there = grid["connected_s"] + grid["down_s"] > 0
    connected, up, expected = grid["connected_s"], grid["up_s"], grid["hb_expected"]
    share = np.minimum(np.divide(up, connected, out=np.zeros_like(up), where=connected > 0), 1.0)
    expected_up = expected * share
    beats = np.where(np.isnan(expected), grid["hb"], np.minimum(grid["hb"], expected + HELD_UP))
    changes = _changes(there, grid["down_s"] > 0, grid["outages"] > 0)
    rows = []
    for number, instance in enumerate(grid.instances):
        mine = there[number]
        if not mine.any():
            continue
        known = mine & ~np.isnan(expected[number])
        gaps = grid["gap_max"][number][mine]
        row = {
            "date": day,
            "service": service,
            "instance": instance,
            "hb": beats[number][mine].sum(),
            "expected": expected[number][known].sum() if known.any() else np.nan,
            "expected_up": expected_up[number][known].sum() if known.any() else np.nan,
            "outages": int(grid["outages"][number][mine].sum()),
            "up_s": up[number][mine].sum(),
            "downtime_s": grid["down_s"][number][mine].sum(),
            "gap_max": np.fmax.reduce(gaps, initial=np.nan),
            "flap_pct": round(100.0 * float(changes[number]) / (STATES - 1), DIGITS),
        }
        rows.append(row)
    return rows


def _changes(there: Flags, bad: Flags, begun: Flags) -> Floats:
    """Return the most changes of each provider among `STATES` states in a row; only rows that are there are states."""
    order = np.argsort(~there, axis=1, kind="stable")
    there, bad, begun = (np.take_along_axis(one, order, axis=1) for one in (there, bad & there, begun & there))
    before = bad[:, :-1]
    changed = there[:, 1:] & ((before != bad[:, 1:]) | (before & begun[:, 1:]))
    so_far = np.cumsum(np.pad(changed, ((0, 0), (STATES, 0))), axis=1)
    most: Floats = (so_far[:, STATES - 1 :] - so_far[:, : so_far.shape[1] - STATES + 1]).max(axis=1)
    return most


def reliability(days: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Judge the days of all providers, each date by itself; to be like the others is no failing."""
    rows = pd.DataFrame(days)
    if rows.empty:
        return []
    explained = rows["hb"] + LIVENESS * rows["outages"]
    missed = np.fmax(rows["expected_up"] - explained, 0.0)
    share = (missed / rows["expected_up"]).where(rows["expected_up"] > 0).round(DIGITS)
    of_service = share.groupby([rows["date"], rows["service"]])
    usual = of_service.transform("quantile", 0.25)
    farm = share.groupby(rows["date"]).transform("quantile", 0.25)
    usual = usual.where(of_service.transform("count") >= COMPARABLE, farm)
    chance = rows["expected_up"] * np.fmax(usual, NOISE)
    off = 2 * (np.sqrt(missed + 0.375) - np.sqrt(chance + 0.375))
    misses = (share - usual >= EXCESS) & (off >= SIGNIFICANT)
    total, some = rows["up_s"] + rows["downtime_s"], rows["outages"] > 0
    up = rows["up_s"].where(rows["up_s"] > 0)
    due = rows["expected"].where(rows["expected"] > 0)
    judged = rows[["date", "service", "instance", "outages", "downtime_s", "flap_pct"]].assign(
        judged=np.where(rows["expected"].notna(), "beats", "connection"),
        miss_ratio=(1 - rows["hb"] / due).clip(lower=0.0),
        mtbf_s=rows["up_s"] / rows["outages"].where(some),
        mttr_s=rows["downtime_s"] / rows["outages"].where(some),
        phi_max=rows["gap_max"] * rows["hb"] / up / log(10),
        score=rows["up_s"] / total.where(total > 0) * (1 - share.fillna(0.0)),
        flaky=misses | (rows["flap_pct"] >= FLAPPING),
    )
    table = judged.round(DIGITS).astype(object)
    made: list[dict[str, Any]] = table.where(table.notna(), None).to_dict("records")
    return made
