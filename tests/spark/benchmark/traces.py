"""Recorded series: files of times and values, made into series of hours.

Rules:
- A file is CSV, plain or gzipped, whatever its folder; a name without .csv is not looked at. Comma, semicolon or tab
  part the columns: the one that its first line has most of.
- The columns are those named in `TIMES` and `VALUES`; else the first one that has times, and the first other one that
  has numbers, in most of the first lines. A column that numbers the lines is neither.
- A time is ISO 8601 (without a zone it is UTC), or a number since 1970: seconds, or their thousandth, millionth or
  milliardth part, which its size tells. Times may be in any order; values of the same hour are averaged.
- A line without a time or a value is passed over, and counted. An endless value, or one beyond `LARGEST`, is unknown.
- Series are made into hourly means, and the highest value of each hour for the peak bound. One whose own step is
  longer than an hour keeps its step; above `LONGEST_STEP` it is left out. Hours of which nothing is known stay unknown.
- The group of a series is its file's name up to the first part, between underscores, that has a digit or is upper case
  (a ticker): "ec2_cpu_utilization_24ae8d" is of "ec2_cpu_utilization". The first part belongs to it, but for a number
  after a dash, or that ends the whole name: "exchange-2_cpc_results" is of "exchange", "input12" of "input".
- A file gives a series, or one sentence with the reason why not.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import re
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import BinaryIO, TextIO, cast

import attrs
import numpy as np

from spark.capacity.planning.models import DAY, Floats

HOUR = 3600.0

LONGEST_STEP = 6 * HOUR
"""Seconds. A day of fewer than four steps has no shape that a season could be seen in."""

LONGEST_SERIES = 200_000
"""Steps. 23 years of hours; a series that is longer has a timestamp that is wrong."""

MOST_LINES = 10_000_000
"""Four months of seconds. A file of more would fill the memory, for a few thousand hours."""

LONGEST_LINE = 65_536
"""Characters: a file that is no text may be one line without an end. A longer one is taken for several."""

SAMPLE = 200
"""Lines by which it is told which column is which."""

LARGEST = 1e100
"""A load that is larger was not measured, and its square is endless."""

FARTHEST = 1e11
"""Seconds since 1970: the year 5138. A number that is larger counts parts of seconds."""

EARLIEST = 1e8
"""Seconds since 1970: a smaller number is a time only if its column is said to have times, or is the first."""

TIMES = ("timestamp", "time", "ts", "datetime", "date", "ds")
VALUES = ("value", "values", "y", "load", "demand")

NAME = re.compile(r"\.csv(\.gz)?$", re.IGNORECASE)

GZIPPED = b"\x1f\x8b"


class TraceError(Exception):
    """A file is no series that can be walked through."""


@attrs.frozen(eq=False)
class Trace:
    """A recorded series: one value for each step, of which ``day`` make a day."""

    name: str
    group: str
    values: Floats
    peaks: Floats
    """The highest value of each step: of five minutes where the file has them."""
    half_hours: Floats
    """The highest mean of a half of each step: what peaks would be if the file were coarser."""
    day: int
    passed_over: int = 0
    """Lines without a time or a value."""


def files(folder: Path) -> list[Path]:
    """Return the files of a folder that may be series, or the one that is named."""
    if not folder.is_dir():
        return [folder]
    return sorted(path for path in folder.rglob("*") if NAME.search(path.name) and not path.is_dir())


def group_of(name: str) -> str:
    """Return the group of a series by the name of its file."""
    first, *parts = name.replace("|", "/").split("_")
    if (stem := re.sub(r"[-.]\d+$" if parts else r"[-.]?\d+$", "", first)) and stem != first:
        return stem
    kept = [first]
    for part in parts:
        if any(letter.isdigit() for letter in part) or part.isupper():
            break
        kept.append(part)
    return "_".join(kept)


def moment(text: str) -> float:
    """Return the seconds since 1970 of a timestamp."""
    try:
        number = float(text)
    except ValueError:
        when = datetime.fromisoformat(text.strip().replace("/", "-"))
        return (when if when.tzinfo else when.replace(tzinfo=UTC)).timestamp()
    while FARTHEST < abs(number) < np.inf:
        number /= 1000.0
    return number


def _reads(read: Callable[[str], float], text: str) -> bool:
    """Return True if a text is of the kind that it is read as."""
    try:
        read(text)
    except (ValueError, OverflowError):
        return False
    return True


def _columns(rows: Sequence[Sequence[str]]) -> tuple[int, int]:
    """Return the column of the times and that of the values, by the first lines."""
    names = [cell.strip().lower() for cell in rows[0]] if rows else []
    when = next((names.index(name) for name in TIMES if name in names), None)
    what = next((names.index(name) for name in VALUES if name in names), None)
    width = max((len(row) for row in rows), default=0)

    def have(column: int, read: Callable[[str], float]) -> bool:
        return 2 * sum(_reads(read, row[column]) for row in rows if len(row) > column) > len(rows)

    if when is None:
        timed = [column for column in range(width) if column != what and have(column, _dated)]
        # A time that is written as such is more likely meant than a number.
        when = next((column for column in timed if not have(column, float)), timed[0] if timed else 0)
    if what is None:
        numbered = [column for column in range(width) if column != when and have(column, float)]
        what = next((column for column in numbered if not _counts(rows, column)), 1 if when == 0 else 0)
    return when, what


def _dated(text: str) -> float:
    """Read a time as `moment` does, but no number that is hardly one."""
    at = moment(text)
    if abs(at) < EARLIEST:
        raise ValueError(text)
    return at


def _counts(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Return True if a column does nothing but number the lines."""
    cells = [row[column] for row in rows if len(row) > column and _reads(float, row[column])]
    return len(cells) > 2 and {float(later) - float(cell) for cell, later in pairwise(cells)} == {1.0}


@contextmanager
def _opened(path: Path) -> Iterator[TextIO]:
    """Open a file as text, compressed or not; bytes that are no text become strange characters."""
    with path.open("rb") as plain:
        raw = gzip.GzipFile(fileobj=plain) if plain.peek(2)[:2] == GZIPPED else plain
        wide = raw.peek(2)[:2] in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
        encoding = "utf-16" if wide else "utf-8-sig"
        yield io.TextIOWrapper(cast(BinaryIO, raw), encoding=encoding, errors="replace", newline="")


def _points(path: Path) -> tuple[Floats, int]:
    """Return the times and values of a file, and how many lines have none."""
    found, passed_over = array("d"), 0
    with _opened(path) as text:
        lines = iter(lambda: text.readline(LONGEST_LINE), "")
        first = next(lines, "")
        parted = csv.reader(chain([first], lines), delimiter=max(",;\t", key=first.count))
        head = list(islice(parted, SAMPLE))
        when, what = _columns(head)
        for number, row in enumerate(chain(head, parted)):
            if number >= MOST_LINES:
                raise TraceError(f"has more than {MOST_LINES:,} lines")
            if not row:
                continue
            try:
                at, value = moment(row[when]), float(row[what] or "nan")
            except (ValueError, IndexError, OverflowError):
                at = value = np.nan
            if np.isfinite(at):
                found.extend((at, value))
            elif number:
                passed_over += 1
    return np.array(found, dtype=np.float64).reshape(-1, 2), passed_over


def read_trace(path: Path) -> Trace:
    """Read a file, and make it a series of hours, or of its own longer step."""
    if not path.is_file():
        raise TraceError("is no file that can be read")
    try:
        points, passed_over = _points(path)
    except (OSError, EOFError, zlib.error, UnicodeError, csv.Error) as error:
        raise TraceError(f"cannot be read: {error}") from error
    moments = np.unique(points[:, 0])
    if len(moments) < 2:
        raise TraceError("has no two lines with a time (ISO 8601, or seconds since 1970) and a value")
    step = max(HOUR, float(np.median(np.diff(moments))))
    if step > LONGEST_STEP:
        raise TraceError(f"has a step of {step / HOUR:.0f} hours, more than {LONGEST_STEP / HOUR:.0f}")
    day = max(1, round(DAY * HOUR / step))
    last = (moments[-1] - moments[0]) / (DAY * HOUR / day)
    if last >= LONGEST_SERIES:
        raise TraceError(f"spans {last:,.0f} steps, more than {LONGEST_SERIES:,}")
    known = np.abs(points[:, 1]) <= LARGEST
    if not known.any():
        raise TraceError("has no value that is a number")
    at = (points[known, 0] - moments[0]) / (DAY * HOUR / day)
    length = int(np.floor((points[:, 0].max() - moments[0]) / (DAY * HOUR / day))) + 1
    values, told = _means(at, points[known, 1], length), points[known, 1]
    peaks = np.full(length, -np.inf)
    np.maximum.at(peaks, np.floor(at).astype(np.int64), told)
    halves = _means(at * 2, told, length * 2).reshape(length, 2)
    name = NAME.sub("", path.name)
    return Trace(
        name,
        group_of(name),
        values,
        np.where(np.isnan(values), np.nan, peaks),
        np.fmax(halves[:, 0], halves[:, 1]),
        day,
        passed_over,
    )


def _means(at: Floats, told: Floats, length: int) -> Floats:
    """Return the means of values by the whole part of their places, NaN where there is none."""
    slots = np.floor(at).astype(np.int64)
    counts = np.bincount(slots, minlength=length)
    sums = np.bincount(slots, weights=told, minlength=length)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
