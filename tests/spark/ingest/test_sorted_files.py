"""Files of bronze: their order, the ranges of their row groups, and the pairs beside them."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet
import pytest

from spark.capacity.ingest import sorted_files
from spark.capacity.ingest.sorted_files import BRONZE, SortedFiles, write_again
from spark.capacity.tables.column_reader import batches, groups_with
from tests.spark.farm import DAY, clock

COLUMNS = ("service", "instance", "seq", "event", "provider")


def rows(number: int, day: Any = DAY, first: int = 1) -> pa.Table:
    """Make records of four services of five instances in turn, and a sign of the broker after each five of them."""
    made = []
    for seq in range(first, first + number):
        names = {"service": f"s{seq % 4}", "provider": seq % 5, "instance": f"i{seq % 5}", "event": "hb"}
        told = {"event": "alive"} if seq % 6 == 0 else names
        at = clock("10:00", day) + timedelta(milliseconds=seq)
        made.append({"date": day, "ts": at, "broker": "b", "boot": "one", "seq": seq, **told})
    return pa.Table.from_pylist(made, BRONZE)


def written(place: Path, *tables: pa.Table) -> list[str]:
    files = SortedFiles(place)
    for table in tables:
        files.add(table)
    files.flush()
    return files.names


def test_rows_are_in_the_order_of_services_and_instances_and_else_as_they_came(tmp_path: Path) -> None:
    records, pairs = written(tmp_path, rows(50), rows(50, first=51))
    assert records.replace("bronze_records/", "") == pairs.replace("bronze_pairs/", "")
    found = pyarrow.parquet.ParquetFile(tmp_path / records).read().select(["service", "instance", "seq"]).to_pylist()
    keys = [(row["service"] or "~", row["instance"] or "~", row["seq"]) for row in found]
    assert keys == sorted(keys)
    assert sorted(row["seq"] for row in found) == list(range(1, 101))


def test_pairs_count_the_records_of_providers(tmp_path: Path) -> None:
    _, pairs = written(tmp_path, rows(60))
    found = pyarrow.parquet.ParquetFile(tmp_path / pairs).read().to_pylist()
    assert sum(row["records"] for row in found) == 50
    assert {(row["broker"], row["boot"]) for row in found} == {("b", "one")}
    assert len(found) == len({(row["service"], row["provider"], row["instance"]) for row in found}) == 20


def test_each_date_has_its_files_and_so_many_rows_have_theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_files, "LARGE", 50)
    after = DAY + timedelta(days=1)
    names = written(tmp_path, rows(40), rows(20, after, 41), rows(130, after, 61))
    count = {name: pyarrow.parquet.ParquetFile(tmp_path / name).metadata.num_rows for name in names}
    records = sorted((name.split("/")[1], rows) for name, rows in count.items() if name.startswith("bronze_records"))
    assert records == [(f"date={DAY}", 40), *((f"date={after}", rows) for rows in (10, 40, 50, 50))]


def test_readers_of_some_instances_skip_row_groups_and_miss_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sorted_files, "GROUP", 16)
    [file, _] = written(tmp_path, rows(600))
    path = str(tmp_path / file)
    all_ = pyarrow.parquet.ParquetFile(path).read().to_pylist()
    groups = pyarrow.parquet.ParquetFile(path).metadata.num_row_groups
    for wanted in ([("s1", "i3")], [("s0", "i0"), ("s3", "i4")], [("s2", f"i{n}") for n in range(5)]):
        taken: list[int] = []

        def choose(metadata: Any, wanted: Any = wanted, taken: list[int] = taken) -> list[int]:
            taken += groups_with(metadata, wanted)
            return taken

        found = [row["seq"] for batch in batches([path], COLUMNS, choose) for row in batch.to_pylist()]
        assert {row["seq"] for row in all_ if (row["service"], row["instance"]) in wanted} <= set(found)
        assert 0 < len(taken) < groups / 2
    assert list(batches([path], COLUMNS, lambda metadata: groups_with(metadata, [("s9", "i1")]))) == []


def test_each_group_has_the_range_of_its_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sorted_files, "GROUP", 16)
    [file, _] = written(tmp_path, rows(600))
    with pyarrow.parquet.ParquetFile(tmp_path / file) as held:
        for number in range(held.metadata.num_row_groups):
            group = {(row["service"], row["instance"]) for row in held.read_row_group(number).to_pylist()}
            named = {name for name in group if None not in name}
            assert all(number in groups_with(held.metadata, [name]) for name in named)
            # Services share groups: an instance of one of them is not looked for in all of both.
            assert not any(number in groups_with(held.metadata, [(name[0], "i")]) for name in named if len(named) == 1)
        assert all(groups_with(held.metadata, [(f"s{n}", f"i{m}")]) for n in range(4) for m in range(5))
        assert groups_with(held.metadata, [("s4", "i0")]) == groups_with(held.metadata, [("", "")]) == []


def test_a_file_without_ranges_may_have_any_instance_in_any_group(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(rows(40), tmp_path / "other.parquet", row_group_size=10)
    metadata = pyarrow.parquet.ParquetFile(tmp_path / "other.parquet").metadata
    assert groups_with(metadata, [("s9", "i9")]) == [0, 1, 2, 3]


def test_files_in_another_order_are_written_again(tmp_path: Path) -> None:
    folder = tmp_path / "in" / f"date={DAY}"
    folder.mkdir(parents=True)
    table = rows(100).drop_columns("date")
    pyarrow.parquet.write_table(table.append_column("row", pa.nulls(100)), folder / "one.parquet")
    runs, names = write_again([str(folder / "one.parquet")], str(tmp_path / "out"))
    [direct, _] = written(tmp_path / "direct", rows(100))
    assert runs["seq_to"].to_pylist() == [100]
    assert [name.split("/")[0] for name in names] == ["bronze_records", "bronze_pairs"]
    again, wanted = (
        pyarrow.parquet.ParquetFile(path) for path in (tmp_path / "out" / names[0], tmp_path / "direct" / direct)
    )
    assert again.read().equals(wanted.read())
