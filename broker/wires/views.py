"""Views: tables of a wire's state, for the console, the HTTP API and the command line alike.

A view names its columns and yields its rows in a stable order, by age if its items have one. A row is a JSON object; a
column that does not apply to a row is absent from it. `broker.wires.view_scan` selects, sorts and pages rows in bounded
pieces.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Generic, TypeVar

import attrs

from broker.access.registry_reading import RegistryReading

MAX_ROWS = 1_000
"""Rows of one page: more than a person reads, and a few milliseconds of the reactor's time."""

Item = TypeVar("Item")
Row = Mapping[str, object]


@attrs.frozen
class Column:
    """A column: its ``name`` in rows, its meaning, and the ``unit`` of numbers ("" for a plain number or a text)."""

    name: str
    help: str
    unit: str = ""


@attrs.frozen(eq=False)
class View(Generic[Item]):
    """A table.

    - ``name``: its name in commands: ``dbp services``. ``help``: a sentence.
    - ``columns``: all columns, in order.
    - ``items``: the items, one for each row. The iteration may last many turns of the reactor, in which the state
      changes: it goes over a copy of the references that were there at its begin, or skips what has ended.
    - ``row``: returns the row of an item.
    - ``keys``: returns the texts of an item that a shell pattern is matched against.
    - ``order``: the column by which rows are sorted unless another one is asked for; "" for the order of the items.
    - ``sums``: columns whose sum over all rows is a metric.
    - ``tagged``: True if the rows change with the registry's revision only.
    - ``shown``: True if an item is shown to a user with that reading of the registry; None for tables that show nothing
      of the registry.
    - ``title``: its name as a heading, with the wire as people write it: ``DBP services``. By default the name with a
      capital letter.
    """

    name: str
    help: str
    columns: Sequence[Column]
    items: Callable[[], Iterable[Item]]
    row: Callable[[Item], Row]
    keys: Callable[[Item], Iterable[str]]
    order: str = ""
    sums: Sequence[str] = ()
    tagged: bool = False
    shown: Callable[[RegistryReading, Item], bool] | None = attrs.field(default=None, kw_only=True)
    title: str = attrs.field(
        default=attrs.Factory(lambda view: view.name[:1].upper() + view.name[1:], takes_self=True), kw_only=True
    )

    @property
    def table(self) -> str:
        """The last word of the name: ``sessions``."""
        return self.name.rpartition(" ")[2]

    @property
    def wire(self) -> str:
        """The first word of the name: ``mc0``."""
        return self.name.partition(" ")[0]


AnyView = View[Any]


def join(name: str, help: str, views: Sequence[AnyView]) -> View[tuple[AnyView, Any]]:
    """Return the rows of several views as one view, with the name of each view's wire in the column ``wire``."""
    columns = {"wire": Column("wire", "Wire of the row")}
    for column in chain.from_iterable(view.columns for view in views):
        columns.setdefault(column.name, column)
    return View(
        name,
        help,
        tuple(columns.values()),
        lambda: ((view, item) for view in views for item in view.items()),
        lambda pair: {"wire": pair[0].wire, **pair[0].row(pair[1])},
        lambda pair: pair[0].keys(pair[1]),
        shown=lambda reading, pair: pair[0].shown is None or pair[0].shown(reading, pair[1]),
    )
