"""Retention: the dates whose records are kept, and the files of each.

Rules:
- Records, their five minutes, and all reports about segments are kept for some days before the date of the last
  record (`KEEP`). The hours of services and the days of providers, which are few, stay.
- Segments of older folders are not read any more; those of the day before the first date are, since a segment may end
  on the next date.
- Of a start of a broker with kept records, one run stands for all numbers before: no loss is claimed of that time.
- A date that is over, with many small files, as hourly runs leave them, is written again as few. Its files take the
  place of the old ones as those of a date that is healed (`intake`).
"""

from datetime import date, datetime, timedelta

import pandas as pd

from spark.capacity.ingest.journal_folders import is_kept
from spark.capacity.ingest.loss import START, exact
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    FOLDERS,
    LEDGER,
    QUARANTINE,
    SILVER_CARRY,
    SILVER_PROVIDER_5M,
    SILVER_SET_BACK,
    SILVER_SIGNS,
    UNKNOWN_MEMBERS,
)
from spark.capacity.tables.store import Tables

KEEP = 400
"""Days, as many as the broker keeps its journal by default: a year, and a month to look at it."""

DAY = timedelta(days=1)

OPEN = 2 * DAY
"""Dates before the last one that hourly runs may still add to: their files stay as they are."""

MANY, SMALL = 8, 1 << 20
"""Files of a date, and bytes of one in the mean: with more and smaller ones it is written again. A file of a full share
has 3 to 4 MB."""

DATES = (BRONZE_RECORDS, BRONZE_PAIRS, SILVER_PROVIDER_5M, SILVER_SIGNS, SILVER_SET_BACK)


def first_kept(tables: Tables, keep: int) -> date | None:
    """Return the first date whose records are kept; None where there are none yet."""
    held = tables.dates(BRONZE_RECORDS)
    return held[-1] - keep * DAY if held else None


def forget(tables: Tables, first: date, started: datetime, keep: int) -> None:
    """Remove everything from before the first date that is kept."""
    if all(day >= first for table in DATES for day in tables.dates(table)):
        return
    # The first date goes on from the state at the end of the one before.
    for table, begin in (*((table, first) for table in DATES), (SILVER_CARRY, first - DAY)):
        for day in tables.dates(table):
            if day < begin:
                tables.drop_date(table, day)
    tables.put(BRONZE_RUNS, shortened(exact(tables.rows(BRONZE_RUNS)), first))
    for table, column in ((LEDGER, "segment"), (QUARANTINE, "segment"), (FOLDERS, "folder")):
        # Not as a whole: a journal of nothing but garbage must not fill the memory.
        tables.keep_named(table, column, lambda name: is_kept(name, first))
    unknown = tables.rows(UNKNOWN_MEMBERS)
    if len(unknown):
        tables.put(UNKNOWN_MEMBERS, unknown[unknown["run"] >= f"{started - keep * DAY:%Y%m%d}"])


def shortened(runs: pd.DataFrame, first: date) -> pd.DataFrame:
    """Replace the runs before a date by one for each start of a broker that has later ones."""
    later = runs[runs["date"] >= first]
    old = runs[(runs["date"] < first) & runs["dropped"].isna()]
    old = old.merge(later[START].drop_duplicates(), on=START)
    if old.empty:
        return later
    last = old.sort_values("seq_to").drop_duplicates(START, keep="last")
    return exact(pd.concat([last.assign(seq_from=1)[later.columns].astype(object), later.astype(object)]))


def many_small(tables: Tables) -> dict[date, list[str]]:
    """Return the files of the dates that are to be written again."""
    held = tables.dates(BRONZE_RECORDS)
    files = {day: tables.files(BRONZE_RECORDS, day) for day in held if day < held[-1] - OPEN}
    return {
        day: [str(path) for path in mine]
        for day, mine in files.items()
        if len(mine) > MANY and sum(path.stat().st_size for path in mine) < SMALL * len(mine)
    }
