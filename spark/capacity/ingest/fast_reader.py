"""Whole segments: those of which every line is a record of this version, read at once and without a look at each line.

Nearly all segments are whole. Arrow reads one several times as fast as Spark reads its lines, and writes it as Parquet
where it was read, so that no record passes between Python and Java. It says of a segment only that it is whole, or that
it is not; then Spark reads its lines, one by one (`line_reader`), and tells the fault of each.

Rules:
- Whole: each line is one JSON object, every member is known and has its type, and no record has anything that
  `line_reader.why_bad` minds. In doubt a segment is not whole.
- The rows of a segment stay in its order. The segments of one task share a file for each date.
- A task may be cut off, or done twice: only the files that its answer names count.
"""

import gzip
import uuid
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from spark.capacity.ingest.record_rules import (
    DISTINCT,
    EARLIEST,
    LATEST_SENT,
    LINE_LIMIT,
    MEASURES,
    OF_BROKER,
    POSITIVE,
    REQUIRED,
    micros,
)
from spark.capacity.ingest.segments import Digested, Look, look
from spark.capacity.tables.object_store import opened
from spark.capacity.tables.schema import BRONZE_RECORDS, EVENTS, RECORD, VERSIONS, arrow_schema

LARGEST = 512 << 20
"""Bytes of a segment, unpacked, that are taken into memory at once: eight times the size of a broker's."""

RUNS = 1000
"""Runs of numbers in a whole segment: a writer that is in order makes one for each start of a broker and date."""

BRONZE = arrow_schema(BRONZE_RECORDS.schema)

FILE = BRONZE.remove(BRONZE.get_field_index("date"))
"""Columns of a file; its date is in the name of its folder."""

READ = pyarrow.json.ReadOptions(use_threads=False, block_size=LINE_LIMIT)
"""Spark gives each core a task of its own."""

PARSE = pyarrow.json.ParseOptions(explicit_schema=arrow_schema(RECORD), unexpected_field_behavior="error")


class Run(NamedTuple):
    """Numbers of records that a date holds.

    Without `dropped` a run is unbroken if `records` is its length. With it, it is the one number of a drop record.
    """

    date: date
    broker: str
    boot: str
    seq_from: int
    seq_to: int
    records: int
    dropped: int | None


@dataclass(frozen=True)
class Seen:
    """Reading of a segment: its runs, or without runs its bytes; with the digest of its file."""

    name: str
    digest: str
    runs: tuple[Run, ...] = ()
    look: Look | None = None


@dataclass(frozen=True)
class Taken:
    """Result of a task: its segments, and the files that it wrote, as "date=.../name"."""

    seen: tuple[Seen, ...]
    files: tuple[str, ...]


def take(segments: Iterable[tuple[str, str]], place: str, earliest: int, latest: int) -> Iterator[Taken]:
    """Read segments, given as names and paths, and write the records of those that are whole; a task of Spark."""
    seen = []
    with ExitStack() as stack:
        files = Files(Path(place), stack)
        for name, path in segments:
            with opened(path) as file:
                packed = Digested(file)
                table = read(packed, earliest, latest)
                digest = packed.digest()
            runs = () if table is None else runs_of(table)
            if table is None or not 0 < len(runs) <= RUNS:
                seen.append(Seen(name, digest, look=look(path)))
            else:
                files.write(made(table, name))
                seen.append(Seen(name, digest, runs))
    yield Taken(tuple(seen), tuple(files.names))


def read(packed: Digested, earliest: int, latest: int) -> pa.Table | None:
    """Read a segment: the members of its records, or nothing if it is not whole. Times are microseconds since 1970."""
    try:
        # To its types the file is more than what gzip reads with.
        with gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb") as file:
            text = file.read(LARGEST + 1)
    except (OSError, EOFError, zlib.error):
        return None
    # An object cannot end one line within it and begin the next one: as many objects as lines are one on each.
    if len(text) > LARGEST or not (text.startswith(b"{") and text.endswith(b"}\n")):
        return None
    lines = text.count(b"}\n{") + 1
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), READ, PARSE)
        table.validate(full=True)
    except pa.ArrowException:
        return None
    if len(table) != lines or lines != text.count(b"\n"):
        return None
    table = table.combine_chunks()
    return table if good(table, earliest, latest) else None


def good(table: pa.Table, earliest: int, latest: int) -> bool:
    """Return True if all records are of this version: the same as `line_reader.why_bad`, for all of them at once."""
    if any(table[name].null_count for name in REQUIRED):
        return False
    event = table["event"]
    of_provider = pc.invert(pc.is_in(event, pa.array(OF_BROKER)))
    nameless = pc.or_(pc.is_null(table["service"]), pc.is_null(table["provider"]))
    empty = pc.and_(pc.equal(event, "load"), pc.is_null(table["load"]))
    measures = [pc.min_max(table[name]) for name in MEASURES]
    return (
        pc.all(pc.is_in(table["v"], pa.array(VERSIONS))).as_py()
        and pc.min(table["ts"]).as_py() >= earliest
        and pc.max(table["ts"]).as_py() <= latest
        and pc.min(table["seq"]).as_py() >= 1
        and pc.all(pc.is_in(event, pa.array(EVENTS))).as_py()
        and not pc.any(pc.and_(of_provider, nameless)).as_py()
        and not pc.any(empty).as_py()
        and all(one["min"].as_py() is None or one["min"].as_py() >= 0 for one in measures)
        and all(one["max"].as_py() is None or one["max"].as_py() < float("inf") for one in measures)
    )


def dates_of(table: pa.Table) -> pa.ChunkedArray:
    """Tell the date of each record."""
    return table["ts"].cast(pa.timestamp("us", "UTC")).cast(pa.date32())


def runs_of(table: pa.Table) -> tuple[Run, ...]:
    """Find the numbers of the records. If they are in order, `seq` less the row stays the same."""
    numbers = pa.table(
        {
            "date": dates_of(table),
            "broker": table["broker"],
            "boot": table["boot"],
            "base": pc.subtract(table["seq"], pa.array(np.arange(len(table)))),
            "seq": table["seq"],
        }
    )
    groups = numbers.group_by(["date", "broker", "boot", "base"], use_threads=False).aggregate(
        [("seq", "min"), ("seq", "max"), ("seq", "count")]
    )
    names = ("date", "broker", "boot", "seq_min", "seq_max", "seq_count")
    rows = zip(*(groups[name].to_pylist() for name in names), strict=True)
    runs = [Run(day, broker, boot, first, last, records, None) for day, broker, boot, first, last, records in rows]
    dropped = table.append_column("date", dates_of(table)).filter(
        pc.and_(pc.equal(table["event"], "drop"), pc.greater(pc.coalesce(table["dropped"], pa.scalar(0)), 0))
    )
    told = dropped.select(["date", "broker", "boot", "seq", "dropped"]).to_pylist()
    runs += [Run(row["date"], row["broker"], row["boot"], row["seq"], row["seq"], 0, row["dropped"]) for row in told]
    return tuple(runs)


def made(table: pa.Table, segment: str) -> pa.Table:
    """Make the rows of bronze, as `line_reader.parse` does, and their dates."""
    dates, sent = dates_of(table), table["sent_ts"]
    known = pc.and_(pc.greater_equal(sent, micros(EARLIEST)), pc.less_equal(sent, micros(LATEST_SENT)))
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    for name in POSITIVE:
        columns[name] = pc.if_else(pc.greater(table[name], 0), table[name], None)
    columns["ts"] = table["ts"].cast(pa.timestamp("us", "UTC"))
    columns["sent_ts"] = pc.if_else(known, sent, None).cast(pa.timestamp("us", "UTC"))
    number = pc.binary_join_element_wise("provider-", table["provider"].cast(pa.string()), "")
    columns["instance"] = pc.coalesce(table["endpoint"], table["label"], number)
    columns["segment"] = pa.repeat(segment, len(table))
    columns["date"] = dates
    return pa.table({name: columns[name] for name in BRONZE.names}, schema=BRONZE)


class Files:
    """The files of a task, one for each date."""

    def __init__(self, place: Path, stack: ExitStack) -> None:
        self._place = place
        self._stack = stack
        self._name = f"{uuid.uuid4()}.parquet"
        self._writers: dict[date, pyarrow.parquet.ParquetWriter] = {}

    @property
    def names(self) -> list[str]:
        """Paths of the written files, below the folder."""
        return [f"date={day}/{self._name}" for day in self._writers]

    def write(self, table: pa.Table) -> None:
        """Write rows of bronze to the files of their dates."""
        for day in pc.unique(table["date"]).to_pylist():
            rows = table.filter(pc.equal(table["date"], day)).drop_columns("date")
            self._writer(day).write_table(rows)

    def _writer(self, day: date) -> pyarrow.parquet.ParquetWriter:
        if day not in self._writers:
            path = self._place / f"date={day}" / self._name
            path.parent.mkdir(parents=True, exist_ok=True)
            dictionaries = [name for name in FILE.names if name not in DISTINCT]
            writer = pyarrow.parquet.ParquetWriter(
                path, FILE, compression="zstd", use_dictionary=dictionaries, store_schema=False
            )
            self._writers[day] = self._stack.enter_context(writer)
        return self._writers[day]
