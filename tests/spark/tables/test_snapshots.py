"""Snapshots: sets of versions that belong together, in a folder and in an object store, whatever is cut off."""

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from pathlib import Path

import attrs
import pandas as pd
import pytest

from spark.capacity.tables.lake import publish
from spark.capacity.tables.object_store import ObjectFolder, Place, listing
from spark.capacity.tables.schema import GOLD_BALANCE_DAY, LOSS
from spark.capacity.tables.snapshots import Snapshot, commit, last, open_table
from spark.capacity.tables.store import OutError, State, Tables
from spark.capacity.tables.working_copy import LAKE, refresh
from tests.spark.farm import put_dates

ROOT = Path(__file__).parents[3]

DAYS = [date(2026, 3, day) for day in (1, 2, 3)]

ONLY = (GOLD_BALANCE_DAY, LOSS)


def written(tables: Tables, number: int) -> None:
    """Write the same number to two tables."""
    put_dates(tables, GOLD_BALANCE_DAY, [{"date": day, "service": "s", "cov": float(number)} for day in DAYS])
    tables.put(LOSS, pd.DataFrame({"broker": ["b"], "records": [number]}).reindex(columns=LOSS.schema.names))


def numbers(lake: Place) -> set[int]:
    """Read both tables as of the last snapshot."""
    told = last(lake)
    assert told is not None
    found: set[int] = set()
    for table, column in ((GOLD_BALANCE_DAY, "cov"), (LOSS, "records")):
        opened = open_table(lake / table.name, told.versions[table.name])
        assert opened is not None
        rows = opened.to_pyarrow_table()
        assert rows.num_rows == (3 if table.dated else 1)
        found |= {int(number) for number in rows[column].to_pylist()}
    return found


@pytest.fixture(params=["folder", pytest.param("bucket", marks=pytest.mark.long)])
def origin(request: pytest.FixtureRequest) -> ObjectFolder | None:
    return request.getfixturevalue("bucket") if request.param == "bucket" else None


@pytest.fixture
def tables(origin: ObjectFolder | None, tmp_path: Path) -> Tables:
    made = Tables(None, tmp_path / "work")
    made.lock()
    if origin is not None:
        assert not refresh(made, origin)
    made.open()
    return made


@pytest.mark.long
def test_readers_see_versions_that_belong_together_while_runs_publish(
    tables: Tables, origin: ObjectFolder | None
) -> None:
    lake: Place = (tables.out if origin is None else origin) / LAKE
    written(tables, 0)
    publish(tables, "r0", ONLY, origin)
    with ThreadPoolExecutor(2) as readers:
        looks = []
        for number in range(1, 6):
            looks += [readers.submit(numbers, lake) for _ in range(3)]
            written(tables, number)
            publish(tables, f"r{number}", ONLY, origin)
        seen = [look.result() for look in looks]
    assert all(len(found) == 1 for found in seen)
    assert numbers(lake) == {5}


@pytest.mark.long
def test_nothing_new_is_no_snapshot(tables: Tables, origin: ObjectFolder | None) -> None:
    lake: Place = (tables.out if origin is None else origin) / LAKE
    assert last(lake) is None
    written(tables, 1)
    assert publish(tables, "r1", ONLY, origin) == {"gold_balance_day": 0, "loss": 0}
    first = last(lake)
    assert publish(tables, "r2", ONLY, origin) == {}
    assert last(lake) == first
    tables.keep(State(set(), {"2026-03-01"}))
    publish(tables, "r3", ONLY, origin)
    third = last(lake)
    assert third is not None
    assert (third.run, third.to_do) == ("r3", frozenset({"2026-03-01"}))
    assert third.versions == {"gold_balance_day": 0, "loss": 0}


@pytest.mark.long
def test_of_two_runs_that_go_on_from_one_snapshot_the_second_is_refused(bucket: ObjectFolder) -> None:
    commit(bucket, Snapshot("r0", {"a": 1}, 3), None)
    before = last(bucket)
    commit(bucket, Snapshot("r1", {"a": 2}, 3), before)
    with pytest.raises(OutError, match="another run has published"):
        commit(bucket, Snapshot("r2", {"a": 3}, 3), before)
    with pytest.raises(OutError, match="another run has published"):
        commit(bucket, Snapshot("r2", {"a": 3}, 3), None)
    now = last(bucket)
    assert now is not None
    assert (now.run, now.versions) == ("r1", {"a": 2})


@pytest.mark.long
def test_of_commits_at_the_same_time_one_is_taken(bucket: ObjectFolder) -> None:
    commit(bucket, Snapshot("r0", {"a": 0}, 3), None)
    before = last(bucket)

    def attempt(number: int) -> int:
        try:
            commit(bucket, Snapshot(f"r{number}", {"a": number}, 3), before)
        except OutError:
            return 0
        return number

    with ThreadPoolExecutor(4) as pool:
        taken = sum(pool.map(attempt, range(1, 5)))
    now = last(bucket)
    assert now is not None
    assert now.versions == {"a": taken}


PUBLISHER = """
import sys
from itertools import count
from pathlib import Path
from spark.capacity.tables.lake import publish
from spark.capacity.tables.object_store import ObjectFolder
from spark.capacity.tables.store import Tables
from spark.capacity.tables.working_copy import refresh
from tests.spark.tables.test_snapshots import ONLY, written

tables, origin = Tables(None, Path(sys.argv[1])), ObjectFolder.parse(sys.argv[2])
tables.lock()
refresh(tables, origin)
tables.open()
for number in count(int(sys.argv[3])):
    written(tables, number)
    print(number, flush=True)
    publish(tables, f"r{number}", ONLY, origin)
"""
"""Publishes one number after the other, until it is killed."""


@pytest.mark.long
def test_a_run_that_is_killed_leaves_the_snapshot_readable_and_the_next_goes_on(
    bucket: ObjectFolder, tmp_path: Path
) -> None:
    work, reached = tmp_path / "work", 0
    for turn in range(8):
        command = [sys.executable, "-c", PUBLISHER, str(work), str(bucket), str(reached + 1)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as run:
            assert run.stdout is not None
            for _ in range(2):
                reached = int(run.stdout.readline())
            # In the middle of what it does with the second number: each turn after more of its files and commits.
            files = len(listing(bucket))
            while len(listing(bucket)) < files + 1 + turn:
                assert run.poll() is None
            os.kill(run.pid, signal.SIGKILL)
        [number] = numbers(bucket / LAKE)
        assert number >= reached - 1
        # Its folder goes on, wherever the run was killed.
        mine = Tables(None, work)
        mine.lock()
        assert not refresh(mine, bucket)
        mine.close()
    # Elsewhere, without the folder of the run that was killed.
    other = Tables(None, tmp_path / "other")
    other.lock()
    assert refresh(other, bucket)
    other.open()
    assert numbers(bucket / LAKE) == {int(number) for number in other.rows(LOSS)["records"]}
    written(other, 1000)
    publish(other, "last", ONLY, bucket)
    assert numbers(bucket / LAKE) == {1000}


def test_a_snapshot_that_says_the_same_is_known() -> None:
    one = Snapshot("r1", {"a": 1}, 3, frozenset({"2026-03-01"}))
    assert one.says_the_same(attrs.evolve(one, run="r2", ident="x"))
    assert not one.says_the_same(attrs.evolve(one, versions={"a": 2}))
    assert not one.says_the_same(None)
