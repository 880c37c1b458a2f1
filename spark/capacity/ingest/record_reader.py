"""Records of segments: they become rows of bronze, and all other lines are put aside with their reason.

Rules:
- A record is a line with one JSON object, whose known members have their types, and in which `faults` finds nothing.
- Nearly all segments are whole: each line is a record of known members. Arrow reads one piece by piece, where it is
  written, so that no record passes between Python and Java. Nothing of it is written before its last piece.
- Of another segment a piece that does not parse is halved, until it does or is one line. Empty lines are passed over,
  and not counted in the numbers of lines. What cannot be decompressed is put aside as a whole.
- A line that is longer than any record is put aside by its beginning: a worker holds no line of any length.
- The segments of one task share the files that it writes (`sorted_files`).
- A task may be interrupted, or run twice: only the files that its answer names count.
"""

import gzip
import json
import uuid
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, BinaryIO, cast

import attrs
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json
import pyarrow.parquet

from spark.capacity.ingest.runs import RUNS, runs_of
from spark.capacity.ingest.segments import MOST_NUMBER, Digested, Reach, damage_of, reach
from spark.capacity.ingest.sorted_files import BRONZE, SortedFiles, numbered_names
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.object_store import opened
from spark.capacity.tables.schema import EVENTS, OF_BROKER, QUARANTINE, RECORD, VERSIONS

REQUIRED = ("v", "ts", "broker", "boot", "seq", "event")
"""Members that each record has."""

MEASURES = ("load", "full_load", "latency_ms", "rtt_ms", "requests", "errors", "in_flight")
"""Members that are no less than 0, and not infinite."""

POSITIVE = ("interval_ms", "full_load", "dropped")
"""Members that say nothing if they are 0 or less."""

EARLIEST = datetime(2001, 1, 1, tzinfo=UTC)
"""No broker is older; a clock that says so was never set."""

FUTURE = timedelta(days=1)
"""Tolerance for a broker's clock that is ahead: more than this is a wrong clock, and would move every forecast."""

LATEST_SENT = datetime(2200, 1, 1, tzinfo=UTC)
"""A provider's own clock may be wrong, but not so that later readers cannot show the date."""

LINE_LIMIT = 1 << 20
"""Bytes of the longest record: one has some hundred."""

LARGEST = 256 << 20
"""Bytes of a segment, unpacked, whose rows are held until all of it is known to be whole: four times the size of a
broker's. These are most of the memory of a worker; the lines of a larger one are written as they come."""

PIECE = 4 << 20
"""Bytes of a segment, unpacked, that are parsed at once. Their text and columns need some ten times as much memory."""

RAW_LIMIT = 2000
"""Letters of a bad line that are kept: enough to recognise it."""

NAMED = 1000
"""Unknown members that are named: bad input could have any number of names."""

NESTED = "(members nested too deeply)"
"""Name under which the unknown members of a record count if one has more levels than Python's recursion limit."""

INFINITE = "(members with a value that is no JSON)"
"""The same for a value that Arrow takes for a number, and Python does not: Inf."""

UNREADABLE = "no JSON object, or a member of a wrong type"

IN_FUTURE = "a date in the future"

TOO_LONG = f"a line of more than {LINE_LIMIT >> 20} MiB"

READ = pyarrow.json.ReadOptions(use_threads=False, block_size=LINE_LIMIT)
"""Spark gives each core a task of its own."""

ASIDE = arrow_schema(QUARANTINE.schema)


def micros(when: datetime) -> int:
    """Return a time in microseconds since 1970, as records have it."""
    return (when - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


@attrs.frozen
class Seen:
    """Reading of a segment: the number of its records and of its other lines, with the digest of its file; how far its
    unreadable parts reach, and the members that this version does not know, with their numbers."""

    name: str
    digest: str
    records: int
    bad: int = 0
    reach: Reach | None = None
    unknown: Mapping[str, int] = attrs.field(factory=dict)


@attrs.frozen
class Taken:
    """Result of a task: its segments, the runs of their records, its files, as "table/date=.../name", and the path of
    the file with the lines that are no records, if there are any."""

    seen: tuple[Seen, ...]
    runs: pa.Table
    files: tuple[str, ...]
    aside: str | None


def take(segments: Iterable[tuple[str, str]], place: str, earliest: int, latest: int, run: str) -> Taken:
    """Read segments, given as names and paths, and write their records below a folder; a task of Spark.

    Those that the broker's retention has deleted since they were listed are left out. Times are microseconds since
    1970; ``run`` is the name of the run.
    """
    seen, runs, files = [], [RUNS.empty_table()], SortedFiles(Path(place))
    aside = Aside(Path(place), run)
    for name, path in segments:
        # Each way of reading opens the file before it adds anything of it.
        with suppress(FileNotFoundError):
            with opened(path) as file:
                packed = Digested(file)
                rows = read(packed, name, earliest, latest)
                digest = packed.digest()
            if rows is not None:
                runs.append(runs_of(rows))
                files.add(rows)
                seen.append(Seen(name, digest, len(rows)))
            elif damage := damage_of(path):
                reached = reach(path)
                aside.add(name, [0], [damage], [None])
                seen.append(Seen(name, digest, 0, 1, reached))
            else:
                lines = Lines(name, earliest, latest, aside)
                for rows in lines.read(path):
                    runs.append(runs_of(rows))
                    files.add(rows)
                seen.append(Seen(name, digest, lines.good, lines.bad, lines.reach, lines.unknown))
    files.flush()
    return Taken(tuple(seen), pa.concat_tables(runs), tuple(files.names), aside.close())


def read(packed: Digested, segment: str, earliest: int, latest: int) -> pa.Table | None:
    """Read a segment piece by piece: rows of bronze, with names as numbers, or nothing if it is not whole."""
    parts = []
    try:
        # To its types the file is more than what gzip reads with.
        with gzip.GzipFile(fileobj=cast(BinaryIO, packed), mode="rb") as file:
            for piece in pieces(file):
                table = parse(piece)
                if file.tell() > LARGEST or table is None:
                    return None
                if any(pc.any(wrong).as_py() for wrong, _, _ in faults(table, earliest, latest)):
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


def parse(text: bytes, unknown: str = "error") -> pa.Table | None:
    """Parse lines: the members of their records, or nothing if not each line is an object of known members; they may
    have others if ``unknown`` is "ignore"."""
    # An object cannot end one line within it and begin the next one: as many objects as lines are one on each.
    if not (text.startswith(b"{") and text.endswith(b"}\n")):
        return None
    lines = text.count(b"}\n{") + 1
    options = pyarrow.json.ParseOptions(explicit_schema=arrow_schema(RECORD), unexpected_field_behavior=unknown)
    try:
        table = pyarrow.json.read_json(pa.BufferReader(text), READ, options)
        table.validate(full=True)
    except pa.ArrowException:
        return None
    return table.combine_chunks() if len(table) == lines == text.count(b"\n") else None


def faults(table: pa.Table, earliest: int, latest: int) -> Iterator[tuple[pa.ChunkedArray, str, str | None]]:
    """Yield the faults that records may have: a mask of those that do, the reason, and the member whose value it ends
    with."""
    event = table["event"]
    yield _other(table["v"], VERSIONS), "unknown version ", "v"
    for name in REQUIRED:
        yield pc.is_null(table[name]), f"{name} is missing", None
    yield _other(event, EVENTS), "unknown event ", "event"
    yield pc.less(table["seq"], 1), "seq is less than 1", None
    yield pc.greater(table["seq"], MOST_NUMBER), f"seq is more than {MOST_NUMBER}", None
    yield pc.less(table["ts"], earliest), "a date before 2001", None
    yield pc.greater(table["ts"], latest), IN_FUTURE, None
    for name in ("service", "provider"):
        yield pc.and_(_other(event, OF_BROKER), pc.is_null(table[name])), f"{name} is missing", None
    yield pc.and_(pc.equal(event, "load"), pc.is_null(table["load"])), "load is missing", None
    for name in MEASURES:
        # Arrow reads NaN, which is no JSON.
        yield pc.or_(pc.less(table[name], 0), pc.invert(pc.is_finite(table[name]))), f"{name} is no measure", None


def _other(column: pa.ChunkedArray, known: Collection[object]) -> pa.ChunkedArray:
    return pc.and_(pc.is_valid(column), pc.invert(pc.is_in(column, pa.array(known))))


def made(table: pa.Table, segment: str) -> pa.Table:
    """Make the rows of bronze, with their dates."""
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


class Aside:
    """The file of a task with the lines that are no records, below a folder."""

    def __init__(self, place: Path, run: str) -> None:
        self._path, self._run = place / f"{QUARANTINE.name}-{uuid.uuid4()}.parquet", run
        self._file: pyarrow.parquet.ParquetWriter | None = None

    def add(self, segment: str, numbers: Sequence[int], reasons: Sequence[str], raw: Sequence[str | None]) -> None:
        """Add lines of a segment by their numbers."""
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pyarrow.parquet.ParquetWriter(self._path, ASIDE, compression="zstd")
        rows = {"segment": [segment] * len(numbers), "line": numbers, "reason": reasons, "raw": raw}
        self._file.write_table(pa.table({**rows, "run": [self._run] * len(numbers)}, ASIDE))

    def close(self) -> str | None:
        """Return the path of the file, if there is one."""
        if self._file is None:
            return None
        self._file.close()
        return str(self._path)


def _texts(lines: Iterable[bytes]) -> list[bytes]:
    """Return the lines that are not empty, each with its end."""
    return [text + b"\n" for line in lines if (text := line.strip())]


def _behind_line(file: gzip.GzipFile) -> bytes:
    """Skip the rest of a line; return what was read behind it."""
    while data := file.read(PIECE):
        _, newline, behind = data.partition(b"\n")
        if newline:
            return behind
    return b""


class Lines:
    """The lines of a segment that is not whole."""

    def __init__(self, segment: str, earliest: int, latest: int, aside: Aside) -> None:
        self._segment, self._earliest, self._latest, self._aside = segment, earliest, latest, aside
        self.good = self.bad = 0
        self.unknown = Counter[str]()
        self._last: Reach | None = None
        self._after = 0

    def read(self, path: str) -> Iterator[pa.Table]:
        """Read the lines; yield rows of bronze."""
        with opened(path) as packed, gzip.open(packed) as file:
            rest = b""
            while data := file.read(PIECE):
                *lines, rest = (rest + data).split(b"\n")
                yield from self._rows(_texts(lines))
                if len(rest) > LINE_LIMIT:
                    self._put_aside([rest], [TOO_LONG])
                    rest = _behind_line(file)
            yield from self._rows(_texts(rest.split(b"\n")))

    @property
    def reach(self) -> Reach | None:
        """The reach of the bad lines at the end, which were records as well; None if there are none."""
        return attrs.evolve(self._last, seq=self._last.seq + self._after) if self._last and self._after else None

    def _rows(self, lines: list[bytes]) -> Iterator[pa.Table]:
        text = b"".join(lines)
        table = parse(text, "ignore") if lines else None
        if table is None and len(lines) > 1:
            half = len(lines) // 2
            yield from self._rows(lines[:half])
            yield from self._rows(lines[half:])
        elif table is None:
            self._put_aside(lines, [TOO_LONG if len(line) > LINE_LIMIT else UNREADABLE for line in lines])
        else:
            if parse(text) is None:
                self._count_unknown(lines)
            why = pa.nulls(len(table), pa.string())
            for wrong, reason, name in faults(table, self._earliest, self._latest):
                if name is not None:
                    value = pc.utf8_slice_codeunits(table[name].cast(pa.string()), 0, 40)
                    reason = pc.binary_join_element_wise(reason, value, "")
                why = pc.coalesce(why, pc.if_else(pc.fill_null(wrong, False), reason, None))
            self._put_aside(lines, why.to_pylist())
            good = table.filter(pc.is_null(why))
            if len(good):
                self.good += len(good)
                self._last = Reach(*(good[name][-1].as_py() for name in ("broker", "boot", "seq")))
                self._after = pc.index(pc.is_null(why)[::-1], True).as_py()
                yield made(good, self._segment)

    def _put_aside(self, lines: Sequence[bytes], why: Sequence[str | None]) -> None:
        """Put the lines that have a reason aside."""
        begin = self.good + self.bad + 1
        rows = [(begin + place, reason, lines[place]) for place, reason in enumerate(why) if reason is not None]
        self.bad += len(rows)
        self._after += len(rows)
        if rows:
            numbers, reasons, raw = zip(*rows, strict=True)
            self._aside.add(self._segment, numbers, reasons, [one.decode(errors="replace")[:RAW_LIMIT] for one in raw])

    def _count_unknown(self, lines: Sequence[bytes]) -> None:
        for line in lines:
            # Arrow does not look at the values of such members: they may be no UTF-8, integers of any length, or deep.
            try:
                members = json.loads(line.decode(errors="replace"), parse_int=str)
            except RecursionError:
                members = {NESTED: None}
            except ValueError:
                members = {INFINITE: None}
            for name in members.keys() - set(RECORD.names):
                if name in self.unknown or len(self.unknown) < NAMED:
                    self.unknown[name] += 1
