"""The quality of the data: read, quarantined and lost records, and the times of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from spark.capacity.report.service_rows import Tables
from spark.capacity.tables.row_values import Row, grouped

EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""


def quality(tables: Tables) -> dict[str, Any]:
    """Return the values of `data_quality.html`."""
    ledger = tables.get("ledger", ())
    members = grouped(tables.get("unknown_members", ()), "member")
    down = sorted(tables.get("broker_down", ()), key=itemgetter("start"))
    set_back = sorted(tables.get("set_back", ()), key=itemgetter("broker", "boot", "seq"))
    return {
        "segments": len(ledger),
        "records": sum(row["records"] for row in ledger),
        "quarantined": _quarantined(tables.get("quarantine", ())),
        "lost": [{**row, "start": _start(row)} for row in tables.get("loss", ())],
        "absences": [{**row, "seconds": (row["end"] - row["start"]).total_seconds()} for row in down],
        "set_back": [
            {**row, "start": _start(row), "seconds": (row["before"] - row["after"]).total_seconds()} for row in set_back
        ],
        "unknown_members": [(name, sum(row["records"] for row in own)) for name, own in sorted(members.items())],
    }


def _quarantined(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the entries by their reasons: the first segments by name, and the number of more ones."""
    found = []
    for reason, own in sorted(grouped(rows, "reason").items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({row["segment"] for row in own})
        more = max(0, len(names) - EXAMPLES)
        found.append({"reason": reason, "entries": len(own), "segments": names[:EXAMPLES], "more": more})
    return found


def _start(row: Row) -> str:
    """Return the name of a start of a broker."""
    return f"{row['broker']} {row['boot']}"
