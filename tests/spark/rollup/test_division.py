"""Division of a date with many parts: each record of a provider is in the file of its part, once."""

from pathlib import Path

import pyarrow.parquet
import pytest

from spark.capacity.ingest import sorted_files
from spark.capacity.rollup import partitioning
from spark.capacity.rollup.partitioning import divide_records, in_ranges
from tests.spark.ingest.test_sorted_files import rows, written

INSTANCES = [(f"s{service}", f"i{instance}") for service in range(4) for instance in range(5)]


@pytest.mark.parametrize("cores", [1, 2, 3, 100])
@pytest.mark.parametrize("most", [1, 4, 32])
def test_ranges_have_all_parts_in_their_order(monkeypatch: pytest.MonkeyPatch, cores: int, most: int) -> None:
    monkeypatch.setattr(partitioning, "RANGE", most)
    parts = [[one] for one in INSTANCES]
    ranges = in_ranges(parts, cores)
    assert [each for one in ranges for each in one] == list(enumerate(parts))
    assert max(map(len, ranges)) <= most
    assert len(ranges) >= min(cores, len(parts)) // 2


def test_each_record_is_in_the_file_of_its_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_files, "GROUP", 16)
    monkeypatch.setattr(partitioning, "GROUP", 10)
    tables = [rows(200), rows(130, first=201)]
    files = [str(tmp_path / written(tmp_path, table)[0]) for table in tables]
    parts = [INSTANCES[begin : begin + 3] for begin in range(0, len(INSTANCES), 3)]
    # The last instance has a part of its own, and one that nobody is of has no file.
    parts = [*parts[:-1], [INSTANCES[-2]], [INSTANCES[-1]], [("s9", "i9")]]
    made: dict[int, str] = {}
    for range_ in in_ranges(parts, 3):
        made |= dict(divide_records(files, range_, str(tmp_path)))
    assert sorted(made) == list(range(len(parts) - 1))
    told = [row for table in tables for row in table.to_pylist() if row["event"] != "alive"]
    for number, path in made.items():
        found = pyarrow.parquet.ParquetFile(path).read().to_pylist()
        mine = [row for row in told if (row["service"], row["instance"]) in parts[number]]
        assert sorted(row["seq"] for row in found) == [row["seq"] for row in mine]
        assert {(row["seq"], row["ts"], row["provider"]) for row in found} == {
            (row["seq"], row["ts"], row["provider"]) for row in mine
        }
    assert len(told) == sum(pyarrow.parquet.ParquetFile(path).metadata.num_rows for path in made.values())
