"""Row groups of bronze: those that may have records of some instances, by the ranges in the footer of a file.

Rules:
- Rows are sorted by service and instance (`ingest/sorted_files.py`), so an instance is in one group of a file, or in
  some that follow each other.
- The range of a group is the service and the instance of its first and of its last row. Parquet's own ranges are of one
  column each: of a group with two services they say nothing of instances.
- A file without ranges, as an earlier version wrote them, may have any instance in any group.
- Long names are cut off, so that a range is wider than its rows, and never narrower.
"""

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

from pyarrow.parquet import FileMetaData

Name = tuple[str, str]
"""A service and an instance of it."""

Row = tuple[str, str | None]
"""Service and instance of a row."""

RANGES = "elkobroker.ranges"
"""Key in the footer."""

LONGEST = 200
"""Characters of a name in a range: a footer is read by each part of a date."""


def footer(ranges: Iterable[tuple[Row, Row] | None]) -> dict[str, str]:
    """Return the entry of a footer for the first and the last row of each group; None for one without any service."""
    told = [None if one is None else [_least(*one[0]), _most(*one[1])] for one in ranges]
    return {RANGES: json.dumps(told, ensure_ascii=False, separators=(",", ":"))}


def groups_with(metadata: FileMetaData, instances: Sequence[Name]) -> list[int]:
    """Return the row groups of a file that may have records of providers of these instances, which are in order."""
    told = (metadata.metadata or {}).get(RANGES.encode())
    if told is None:
        return list(range(metadata.num_row_groups))
    return [number for number, one in enumerate(json.loads(told)) if one is not None and _any_in(instances, *one)]


def _any_in(instances: Sequence[Name], least: list[str], most: list[str] | None) -> bool:
    end = len(instances) if most is None else bisect_right(instances, (*most,))
    return bisect_left(instances, (*least,)) < end


def _least(service: str, instance: str | None) -> Name:
    return (service[:LONGEST], (instance or "")[:LONGEST])


def _most(service: str, instance: str | None) -> Name | None:
    if len(service) > LONGEST:
        return None
    if instance is None or len(instance) > LONGEST:
        # What follows all instances of the service.
        return (service + "\0", "")
    return (service, instance)
