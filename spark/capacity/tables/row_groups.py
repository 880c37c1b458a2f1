"""Row groups of bronze: those that may have records of some instances, by the ranges in the footer of a file.

Rows are sorted by service and instance (`ingest/sorted_files.py`), so an instance is in one group of a file, or in some
that follow each other. A group without a range may have any instance.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from operator import itemgetter

from pyarrow.parquet import FileMetaData, Statistics

Name = tuple[str, str]
"""A service and an instance of it."""


def groups_with(metadata: FileMetaData, instances: Sequence[Name]) -> list[int]:
    """Return the row groups of a file that may have records of providers of these instances, which are in order."""
    places = {metadata.schema.column(number).path: number for number in range(metadata.num_columns)}
    found = []
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        service, instance = (group.column(places[name]).statistics for name in ("service", "instance"))
        if service is None or _may_hold(service, instance, instances):
            found.append(number)
    return found


def _may_hold(service: Statistics, instance: Statistics | None, instances: Sequence[Name]) -> bool:
    if not service.has_min_max:
        # Without a value all are the broker's own; else the names are too long for a footer.
        return bool(service.num_values)
    if service.min != service.max or instance is None or not instance.has_min_max:
        first, last = bisect_left(instances, (service.min, "")), bisect_right(instances, service.max, key=itemgetter(0))
    else:
        first = bisect_left(instances, (service.min, instance.min))
        last = bisect_right(instances, (service.max, instance.max))
    return first < last
