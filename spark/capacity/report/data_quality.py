"""The quality of the data: read, quarantined and lost records, and the times of brokers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spark.capacity.report.row_values import Row, Tables, number_of, time_of, total_of, yes
from spark.capacity.report.service_rows import in_time

EXAMPLES = 5
"""Segments that are named for each reason of quarantine."""


def quality(tables: Tables) -> dict[str, Any]:
    """Return the values of `data_quality.html`. Absences and clocks are None where nothing is known of them."""
    ledger = tables.get("ledger", ())
    members = _by("member", tables.get("unknown_members", ())).items()
    down = in_time(tables["broker_down"], "start") if "broker_down" in tables else None
    return {
        "segments": len(ledger),
        "records": total_of(number_of(row, "records") for row in ledger) or 0,
        "quarantined": _quarantined(tables.get("quarantine", ())),
        "lost": [_lost(row) for row in tables.get("loss", ())],
        "absences": None if down is None else [_absence(row) for row in down],
        "set_back": None if (told := tables.get("set_back")) is None else _set_back(told),
        "unknown_members": [(name, total_of(number_of(row, "records") for row in own)) for name, own in members],
    }


def _quarantined(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the entries by their reasons: the first segments by name, and the number of more ones."""
    found = []
    for reason, own in sorted(_by("reason", rows).items(), key=lambda item: (-len(item[1]), item[0])):
        names = sorted({str(row.get("segment")) for row in own})
        more = max(0, len(names) - EXAMPLES)
        found.append({"reason": reason, "entries": len(own), "segments": names[:EXAMPLES], "more": more})
    return found


def _lost(row: Row) -> dict[str, Any]:
    first, last = (int(number_of(row, name) or 0) for name in ("seq_from", "seq_to"))
    records, known = number_of(row, "records"), yes(row, "known")
    return {"start": _start(row), "first": first, "last": last, "records": records, "known": known}


def _absence(row: Row) -> dict[str, Any]:
    begin, end = time_of(row, "start"), time_of(row, "end")
    seconds = (end - begin).total_seconds() if begin and end else None
    return {"broker": str(row.get("broker")), "begin": begin, "end": end, "seconds": seconds}


def _set_back(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        {
            "start": _start(row),
            "record": number_of(row, "seq"),
            "before": before,
            "after": after,
            "seconds": (before - after).total_seconds(),
        }
        for row in sorted(rows, key=lambda row: (str(row.get("broker")), str(row.get("boot")), row["seq"]))
        if (before := time_of(row, "before")) and (after := time_of(row, "after"))
    ]


def _start(row: Row) -> str:
    """Return the name of a start of a broker."""
    return f"{row.get('broker')} {row.get('boot')}"


def _by(name: str, rows: Sequence[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: str(row.get(name))):
        found.setdefault(str(row.get(name)), []).append(row)
    return found
