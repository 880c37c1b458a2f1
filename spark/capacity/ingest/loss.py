"""Loss: numbers of records that are there, and those that are missing.

Numbers are told as runs (`fast_reader.Run`), of which a journal has few, so they are handled here and not by Spark.

Rules:
- Loss is a gap in the numbers of one boot of a broker, over all dates: a late segment fills its gap. Of losses
  after a boot's last record, or of a whole boot, the part is counted that damaged segments show (`reach`).
- A drop record tells how many records before it the broker itself gave up: that part of the gap is known.
- A number may be there twice where runs overlap, or where one has holes that were not counted.
"""

from collections.abc import Iterable, Mapping
from datetime import date

import numpy as np
import pandas as pd
from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from spark.capacity.tables.schema import BRONZE_RUNS, LOSS

START = ["broker", "boot"]
"""A broker's start: its records are numbered from 1 on."""

NEVER = np.iinfo(np.int64).max
"""A number that no record has."""

COUNTED = pd.Int64Dtype()
"""Numbers that may be missing, and are whole all the same."""


def frame(runs: Iterable[tuple[date, str, str, int, int, int | None]]) -> pd.DataFrame:
    """Make a table of runs: date, broker, boot, seq_from, seq_to, dropped."""
    return exact(pd.DataFrame(list(runs), columns=BRONZE_RUNS.schema.names))


def exact(runs: pd.DataFrame) -> pd.DataFrame:
    """Give runs, wherever they are from, the types that the other functions count with."""
    return runs.astype({"seq_from": "int64", "seq_to": "int64", "dropped": COUNTED})


def held(runs: pd.DataFrame) -> pd.DataFrame:
    """Leave out runs of drop records; put the others in order, and beside each the highest number before it."""
    held = runs[runs["dropped"].isna()].sort_values([*START, "seq_from", "seq_to"], ignore_index=True)
    reached = held.groupby(START)["seq_to"].cummax()
    held["before"] = reached.groupby([held["broker"], held["boot"]]).shift(fill_value=0)
    return held


def joined(runs: pd.DataFrame) -> pd.DataFrame:
    """Join the runs of a date that follow each other, so that there are as many as there are gaps."""
    day = ["date", *START]
    rest = runs[runs["dropped"].notna()]
    runs = runs[runs["dropped"].isna()].sort_values([*day, "seq_from"], ignore_index=True)
    runs["run"] = (runs.groupby(day)["seq_to"].shift() + 1 != runs["seq_from"]).cumsum()
    whole = runs.groupby([*day, "run"], as_index=False).agg({"seq_from": "min", "seq_to": "max"}).assign(dropped=pd.NA)
    names = BRONZE_RUNS.schema.names
    return frame([*whole[names].itertuples(index=False), *rest[names].itertuples(index=False)])


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
    """Tell the dates on which a number may be held that is held twice."""
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


def exact_runs(records: DataFrame) -> pd.DataFrame:
    """Make the runs of records, whatever their order."""
    window = Window.partitionBy("date", *START).orderBy("seq")
    numbers = (
        records.select("date", *START, "seq")
        .distinct()
        .withColumn("base", F.col("seq") - F.row_number().over(window))
        .groupBy("date", *START, "base")
        .agg(F.min("seq").alias("seq_from"), F.max("seq").alias("seq_to"))
        .select("date", *START, "seq_from", "seq_to", F.lit(None).cast("long").alias("dropped"))
    )
    return frame(tuple(row) for row in numbers.union(drops(records)).collect())


def drops(records: DataFrame) -> DataFrame:
    """Return the losses that drop records count, in the form of runs."""
    return records.where((F.col("event") == "drop") & F.col("dropped").isNotNull()).select(
        "date", *START, F.col("seq").alias("seq_from"), F.col("seq").alias("seq_to"), "dropped"
    )
