"""Whole segments: every line is a record of this version, so that the segment is read at once, and not line by line.

Nearly all segments are whole. Arrow reads one several times as fast as Spark reads its lines, and writes it as Parquet
where it was read, so that no record passes between Python and Java. If a segment is not whole, Spark reads its lines
one by one (`line_reader`), and finds the fault of each.

Rules:
- Whole: each line is one JSON object, every member is known and has its type, and
  `line_reader.why_bad` has no objection to any record. In doubt a segment counts as incomplete.
- The segments of one task share the files that it writes (`sorted_files`).
- A task may be interrupted, or run twice: only the files that its answer names count.
"""

import gzip
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json

from spark.capacity.ingest.line_reader import (
    EARLIEST,
    LATEST_SENT,
    LINE_LIMIT,
    MEASURES,
    OF_BROKER,
    POSITIVE,
    REQUIRED,
    micros,
)
from spark.capacity.ingest.runs import RUNS, runs_of
from spark.capacity.ingest.segments import Digested, Look, look
from spark.capacity.ingest.sorted_files import BRONZE, SortedFiles, numbered_names
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.object_store import opened
from spark.capacity.tables.schema import EVENTS, RECORD, VERSIONS

LARGEST = 256 << 20
"""Bytes of a segment, unpacked, whose rows are held until all of it is known to be whole: four times the size of a
broker's. These are most of the memory of a worker; a larger segment is read line by line."""

PIECE = 4 << 20
"""Bytes of a segment, unpacked, that are parsed at once. Their text and columns need some ten times as much memory."""

READ = pyarrow.json.ReadOptions(use_threads=False, block_size=LINE_LIMIT)
"""Spark gives each core a task of its own."""

PARSE = pyarrow.json.ParseOptions(explicit_schema=arrow_schema(RECORD), unexpected_field_behavior="error")


@attrs.frozen
class Seen:
    """Reading of a segment: the number of its records, or its bytes if incomplete; with the digest of its file."""

    name: str
    digest: str
    records: int = 0
    look: Look | None = None


@attrs.frozen
class Taken:
    """Result of a task: its segments, the runs of their records, and its files, as "table/date=.../name"."""

    seen: tuple[Seen, ...]
    runs: pa.Table
    files: tuple[str, ...]


def take(segments: Iterable[tuple[str, str]], place: str, earliest: int, latest: int) -> Taken:
    """Read segments, given as names and paths, and write the records of those that are whole; a task of Spark."""
    seen, runs, files = [], [RUNS.empty_table()], SortedFiles(Path(place))
    for name, path in segments:
        with opened(path) as file:
            packed = Digested(file)
            rows = read(packed, name, earliest, latest)
            digest = packed.digest()
        if rows is None:
            seen.append(Seen(name, digest, look=look(path)))
            continue
        runs.append(runs_of(rows))
        files.add(rows)
        seen.append(Seen(name, digest, len(rows)))
    files.flush()
    return Taken(tuple(seen), pa.concat_tables(runs), tuple(files.names))


def read(packed: Digested, segment: str, earliest: int, latest: int) -> pa.Table | None:
    """Read a segment piece by piece: rows of bronze, with names as numbers, or nothing if it is incomplete.

    Times are microseconds since 1970.
    """
    parts = []
    try:
        # To its types the file is more than what gzip reads with.
        with gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb") as file:
            for piece in pieces(file):
                table = parse(piece)
                if file.tell() > LARGEST or table is None or not good(table, earliest, latest):
                    return None
                parts.append(numbered_names(made(table, segment)))
    except (OSError, EOFError, zlib.error):
        return None
    return pa.concat_tables(parts) if parts else None


def pieces(file: gzip.GzipFile) -> Iterator[bytes]:
    """Yield the text of a file in pieces that end with a line; the last one ends as the file does."""
    rest = b""
    while data := file.read(PIECE):
        whole, newline, begun = data.rpartition(b"\n")
        if newline:
            yield rest + whole + newline
            rest = begun
        else:
            rest += data
            if len(rest) > LINE_LIMIT:
                break
    if rest:
        yield rest


def parse(text: bytes) -> pa.Table | None:
    """Parse lines: the members of their records, or nothing if not each line is an object of known members."""
    # An object cannot end one line within it and begin the next one: as many objects as lines are one on each.
    if not (text.startswith(b"{") and text.endswith(b"}\n")):
        return None
    lines = text.count(b"}\n{") + 1
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), READ, PARSE)
        table.validate(full=True)
    except pa.ArrowException:
        return None
    return table.combine_chunks() if len(table) == lines == text.count(b"\n") else None


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


def made(table: pa.Table, segment: str) -> pa.Table:
    """Make the rows of bronze, as `line_reader.parse` does, and their dates."""
    sent = table["sent_ts"]
    known = pc.and_(pc.greater_equal(sent, micros(EARLIEST)), pc.less_equal(sent, micros(LATEST_SENT)))
    columns: dict[str, Any] = {name: table[name] for name in table.column_names}
    for name in POSITIVE:
        columns[name] = pc.if_else(pc.greater(table[name], 0), table[name], None)
    columns["ts"] = table["ts"].cast(pa.timestamp("us", "UTC"))
    columns["sent_ts"] = pc.if_else(known, sent, None).cast(pa.timestamp("us", "UTC"))
    number = pc.binary_join_element_wise("provider-", table["provider"].cast(pa.string()), "")
    columns["instance"] = pc.coalesce(table["endpoint"], table["label"], number)
    columns["segment"] = pa.repeat(segment, len(table))
    columns["date"] = columns["ts"].cast(pa.date32())
    return pa.table({name: columns[name] for name in BRONZE.names}, schema=BRONZE)
