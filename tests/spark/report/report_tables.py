"""Tables as a run gives them to the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from spark.capacity.report import page
from spark.capacity.report.service_rows import services_of
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.row_values import Row, RowsByService
from spark.capacity.tables.schema import GOLD_FORECAST, GOLD_SERVICE_1H


def complete(tables: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """Return tables with the rows of hours and forecasts by service, also where none are given."""
    by_service = {
        table.name: RowsByService(pa.Table.from_pylist(tables.get(table.name, []), arrow_schema(table.schema)))
        for table in (GOLD_SERVICE_1H, GOLD_FORECAST)
    }
    return {**tables, **by_service}


def render(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the report of tables, on one page."""
    whole = complete(tables)
    return page.render(whole, services_of(whole))
