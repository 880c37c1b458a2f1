"""The view of all counters."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from broker.wires.counter import Documentation
from broker.wires.views import AnyView, Column, Row, View

COLUMNS = (
    Column("name", "Name of the counter"),
    Column("value", "What was counted since the start, or what there is now"),
    Column("unit", "Unit of the value"),
    Column("now", "True for the number of what there is now; other counters only grow"),
    Column("help", "What is counted"),
)


def counters(counts: Callable[[], Mapping[str, int]], documentation: Documentation) -> AnyView:
    """Return the view of the counters that were counted so far."""

    def row(item: tuple[str, int]) -> Row:
        name, value = item
        about = documentation.of(name)
        if about is None:
            return {"name": name, "value": value}
        return {"name": name, "value": value, "unit": about.unit, "now": about.gauge, "help": about.help}

    return View(
        "broker counters",
        "Shows what was counted. A pattern selects names.",
        COLUMNS,
        lambda: sorted(counts().items()),
        row,
        lambda item: (item[0],),
    )
