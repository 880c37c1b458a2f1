"""Loss: numbers of records that are there, and those that are missing.

Numbers are kept as runs (`runs`), of which a journal has few, so they are handled here and not by Spark.

Rules:
- Loss is a gap in the numbers of one boot of a broker, over all dates: a late segment fills its gap. Of losses
  after a boot's last record, or of a whole boot, the part is counted that damaged segments show (`reach`).
- A drop record tells how many records before it the broker itself gave up: that part of the gap is known.
- A number is there twice where runs overlap.
"""

from collections.abc import Mapping
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa

from spark.capacity.tables.schema import BRONZE_RUNS, LOSS
from spark.capacity.tables.time_windows import BROKER_SILENCE, SET_BACK

START = ["broker", "boot"]
"""A broker's start: its records are numbered from 1 on."""

NEVER = np.iinfo(np.int64).max
"""A number that no record has."""

COUNTED = pd.Int64Dtype()
"""Numbers that may be missing, and are whole all the same."""


def exact(runs: pd.DataFrame) -> pd.DataFrame:
    """Convert the columns of runs to the types that the other functions need."""
    may_miss = dict.fromkeys(("ts_from", "ts_to", "earliest", "latest", "dropped"), COUNTED)
    return runs.astype({"seq_from": "int64", "seq_to": "int64", **may_miss})


def framed(runs: pa.Table) -> pd.DataFrame:
    """Return runs as a table of pandas."""
    return exact(runs.to_pandas(types_mapper={pa.int64(): COUNTED}.get))


def held(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out runs of drop records; put the others in order, and beside each the highest number before it."""
    held = runs[runs["dropped"].isna()].sort_values([*START, "seq_from", "seq_to"], ignore_index=True)
    reached = held.groupby(START)["seq_to"].cummax()
    held["before"] = reached.groupby([held["broker"], held["boot"]]).shift(fill_value=0)
    return held


def joined(runs: pd.DataFrame) -> pd.DataFrame:
    """Join the runs that follow each other by the rules of `runs`, so that there are few more than there are gaps."""
    day = ["date", *START]
    rest = runs[runs["dropped"].notna()]
    runs = runs[runs["dropped"].isna()].sort_values([*day, "seq_from"], ignore_index=True)
    number = [*day, "seq_from"]
    alone = pd.Series(pd.MultiIndex.from_frame(runs[number]).isin(pd.MultiIndex.from_frame(rest[number])))
    before = runs.groupby(day)[["seq_to", "ts_to"]].shift()
    step = runs["ts_from"] - before["ts_to"]
    near = ((step > -SET_BACK) & (step <= BROKER_SILENCE)).fillna(False).astype(bool)
    follows = (before["seq_to"] + 1 == runs["seq_from"]) & near & ~alone & ~alone.shift(fill_value=False)
    runs["run"] = (~follows).cumsum()
    ends = {"seq_from": "min", "seq_to": "max", "ts_from": "first", "ts_to": "last", "earliest": "min", "latest": "max"}
    whole = runs.groupby([*day, "run"], as_index=False).agg(ends).assign(dropped=pd.NA)
    names = BRONZE_RUNS.schema.names
    return exact(pd.concat([whole[names].astype(object), rest[names].astype(object)], ignore_index=True))


def find_loss(runs: pd.DataFrame, reach: Mapping[tuple[str, str], int] | None = None) -> pd.DataFrame:
    """Return the gaps between runs, from number 1 on; the part that a drop record tells of is known, and apart.

    ``reach`` is the highest number that each boot's records are known to have had, readable or not.
    """
    last = {start: int(seq) for start, seq in held(runs).groupby(START)["seq_to"].max().items()}
    tails = [(*start, last.get(start, 0) + 1, seq) for start, seq in (reach or {}).items()]
    gaps = held(runs).assign(a=lambda rows: rows["before"] + 1, b=lambda rows: rows["seq_from"] - 1)
    gaps = gaps[[*START, "a", "b"]].astype({"a": "int64", "b": "int64"})
    if tails:
        gaps = pd.concat([gaps, pd.DataFrame(tails, columns=[*START, "a", "b"])], ignore_index=True)
    gaps = gaps.loc[gaps["a"] <= gaps["b"]]
    told = runs[runs["dropped"].notna()].assign(b=lambda rows: rows["seq_from"] - 1)
    told = told.groupby([*START, "b"], as_index=False)["dropped"].max()
    gaps = gaps.merge(told, on=[*START, "b"], how="left")
    dropped = gaps["dropped"].fillna(0).astype("int64")
    gaps["split"] = (gaps["b"] - dropped + 1).clip(lower=gaps["a"])
    unknown = gaps.assign(seq_from=gaps["a"], seq_to=gaps["split"] - 1, known=False)
    known = gaps.assign(seq_from=gaps["split"], seq_to=gaps["b"], known=True)
    lost = pd.concat([unknown, known], ignore_index=True)
    lost = lost.assign(records=lost["seq_to"] - lost["seq_from"] + 1)
    return lost.loc[lost["records"] > 0, LOSS.schema.names].sort_values([*START, "seq_from"], ignore_index=True)


def doubled(runs: pd.DataFrame) -> set[date]:
    """Return the dates that may hold a number which is held twice."""
    dates: set[date] = set()
    ordered = held(runs)
    over = ordered[ordered["before"] >= ordered["seq_from"]]
    for (broker, boot), overlaps in over.groupby(START):
        mine = ordered[(ordered["broker"] == broker) & (ordered["boot"] == boot)]
        first = overlaps["seq_from"].to_numpy()
        last = np.maximum.accumulate(np.minimum(overlaps["seq_to"], overlaps["before"]).to_numpy())
        # The first overlap that does not end before the run is one that the run touches, or none is.
        near = np.searchsorted(last, mine["seq_from"])
        touches = np.append(first, NEVER)[near] <= mine["seq_to"]
        dates.update(mine.loc[touches, "date"])
    return dates
