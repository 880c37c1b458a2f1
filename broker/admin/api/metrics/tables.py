"""Metrics of tables: the number of rows of each view of a wire, and the sums of the columns that views name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice

from prometheus_client.core import GaugeMetricFamily, Metric

from broker.admin.api.metrics.counters import BASE_UNITS, PREFIX
from broker.wires.view_scan import ITEMS, ROWS
from broker.wires.views import AnyView

OWN = "broker"
"""The first word of the daemon's own views: their sizes are gauges of the registry and metrics of listeners."""


def collect(views: Iterable[AnyView]) -> Iterator[Metric | None]:
    """Yield the metrics, and None for work without a result."""
    metrics: dict[str, GaugeMetricFamily] = {}
    for view in views:
        if view.wire == OWN:
            continue
        sums = dict.fromkeys(view.sums, 0.0)
        count = 0
        items = iter(view.items())
        while some := list(islice(items, ROWS if sums else ITEMS)):
            count += len(some)
            for row in map(view.row, some) if sums else ():
                for column in sums:
                    value = row.get(column)
                    sums[column] += value if isinstance(value, int | float) else 0
            yield None
        help = f"Rows of the table {view.table}: {view.table} that there are now."
        _add(metrics, f"{PREFIX}active_{view.table}", help, view.wire, count)
        for each in view.columns:
            if each.name in sums:
                _add(metrics, column_name(view, each.name), f"{each.help}.", view.wire, sums[each.name])
    yield from metrics.values()


def column_name(view: AnyView, column: str) -> str:
    """Return the metric of a column's sum."""
    stem = f"{PREFIX}{view.table}_{column}"
    unit = next((each.unit for each in view.columns if each.name == column), "")
    return f"{stem}_{unit}" if unit in BASE_UNITS and column != unit else stem


def _add(metrics: dict[str, GaugeMetricFamily], name: str, help: str, wire: str, value: float) -> None:
    metric = metrics.get(name)
    if metric is None:
        metric = metrics[name] = GaugeMetricFamily(name, help, labels=["wire"])
    metric.add_metric([wire], value)
