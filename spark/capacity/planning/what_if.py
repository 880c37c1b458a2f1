"""What-if questions: a plan of the last run's tables with other assumptions. It needs no Spark.

Rules:
- The plan of the question stands beside the plan as it is: providers there, needs, and missing providers.
- Providers that are taken away are those with the given endpoint, host or label which were up in the last full hour.
  They have the labels that their records of that date have.
- A calendar is CSV: `from,to,factor` and, if not for all, `service`. Times are ISO 8601; without a zone they are UTC.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from glob import escape
from pathlib import Path
from typing import Any

import attrs
import pyarrow.compute as pc
import pyarrow.parquet

from spark.capacity.planning.forecast import full_hour
from spark.capacity.planning.needs import policy_of
from spark.capacity.planning.plan import Options, plan_service
from spark.capacity.planning.policy import Event
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    GOLD_FORECAST,
    GOLD_PLAN,
    GOLD_SERVICE_1H,
    SILVER_PROVIDER_5M,
    Table,
)
from spark.capacity.tables.store import OutError, Tables
from spark.capacity.utc import utc

LABEL = "label"

KINDS = ("endpoint", "host", LABEL)
"""Properties that select the providers to take away: an endpoint, its part before the last colon, or a label."""

Row = Mapping[str, Any]


class QuestionError(Exception):
    """A question cannot be understood."""


def read_calendar(path: Path) -> tuple[Event, ...]:
    """Read known events."""
    events = []
    try:
        with path.open(newline="") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    begin, end = (_moment(row[name]) for name in ("from", "to"))
                    factor = float(row["factor"])
                except (KeyError, TypeError, ValueError) as error:
                    raise QuestionError(f"{path}, line {number}: from, to and factor are needed") from error
                if begin >= end or not 0.0 <= factor < float("inf"):
                    raise QuestionError(f"{path}, line {number}: it ends before it begins, or its factor is no factor")
                events.append(Event(begin, end, factor, escape(row["service"]) if row.get("service") else "*"))
    except (OSError, UnicodeError) as error:
        raise QuestionError(f"{path} cannot be read") from error
    return tuple(events)


def _moment(text: str) -> datetime:
    return utc(datetime.fromisoformat(text.strip()))


def needed(wanted: Sequence[str]) -> list[Table]:
    """Return the tables, of the date of the last full hour, in which `removed` looks for providers."""
    labels = any(one.startswith(f"{LABEL}=") for one in wanted)
    return [SILVER_PROVIDER_5M, *([BRONZE_RECORDS] if labels else [])] if wanted else []


def removed(tables: Tables, issued: datetime, wanted: Sequence[str]) -> dict[str, int]:
    """Count the providers of each service, up in the last full hour, that match one of ``KIND=VALUE``.

    Raises `QuestionError` where none of them matches: a name with a typing error must not look like an answer.
    """
    pairs = [tuple(one.partition("=")[::2]) for one in wanted]
    for kind, value in pairs:
        if kind not in KINDS or not value:
            raise QuestionError(f"{kind}={value}: providers are named by {', '.join(KINDS)}")
    if not pairs:
        return {}
    since = last_hour(issued)
    rows = tables.rows_of(SILVER_PROVIDER_5M, since.date())
    there = rows.filter(pc.and_(pc.greater_equal(rows["w"], since), pc.greater(rows["up_s"], 0.0)))
    names = set(zip(there["service"].to_pylist(), there["instance"].to_pylist(), strict=True))
    gone: set[tuple[str, str]] = set()
    for kind, value in pairs:
        labelled = _labelled(tables, since.date(), value) if kind == LABEL else set()
        mine = {name for name in names if name in labelled or _matches(name[1], kind, value)}
        if not mine:
            raise QuestionError(f"no provider that was up in the last full hour has {kind}={value}")
        gone |= mine
    return dict(Counter(service for service, _ in gone))


def _matches(instance: str, kind: str, value: str) -> bool:
    return value == (instance.rpartition(":")[0] if kind == "host" else instance)


def _labelled(tables: Tables, day: date, label: str) -> set[tuple[str, str]]:
    """Return services and instances that had a label on a date: one with an endpoint goes by that everywhere else."""
    found: set[tuple[str, str]] = set()
    for path in tables.files(BRONZE_RECORDS, day):
        rows = pyarrow.parquet.read_table(path, columns=["service", "instance"], filters=[("label", "=", label)])
        found.update(zip(rows["service"].to_pylist(), rows["instance"].to_pylist(), strict=True))
    return found


def answer(tables: Tables, options: Options) -> list[tuple[Row, Row]]:
    """Return the plan of each service of the last run, and beside it the plan with other assumptions."""
    issued = last_issue(tables)
    plans, told = (tables.rows_of(table, issued.date()).to_pylist() for table in (GOLD_PLAN, GOLD_FORECAST))
    steps = _by_service(row for row in told if row["issued"] == issued)
    hours = _by_service(_hours(tables, issued))
    return [
        (row, plan_service(steps[row["service"]], hours.get(row["service"], []), issued, _with_policy(options, row)))
        for row in sorted(plans, key=lambda row: str(row["service"]))
        if row["issued"] == issued and row["service"] in steps
    ]


def _with_policy(options: Options, row: Row) -> Options:
    """Return the options with the policy of a plan: a question is about other assumptions, not another policy."""
    policy = attrs.evolve(policy_of(row), services="*")
    return attrs.evolve(options, assumed=attrs.evolve(options.assumed, policies=(policy,)))


def last_hour(issued: datetime) -> datetime:
    """Return the start of the last full hour before a plan."""
    return issued - timedelta(hours=1)


def last_issue(tables: Tables) -> datetime:
    """Return the time of the last plan."""
    days = tables.dates(GOLD_PLAN)
    issues = tables.rows_of(GOLD_PLAN, days[-1])["issued"].to_pylist() if days else []
    if not issues:
        raise OutError(f"{tables.out} has no plan yet: run the jobs first")
    return full_hour(max(issues))


def _hours(tables: Tables, issued: datetime, days: int = 91) -> Iterable[Row]:
    first: date = (issued - timedelta(days=days)).date()
    table: Table = GOLD_SERVICE_1H
    for day in tables.dates(table):
        if first <= day <= issued.date():
            yield from (row for row in tables.rows_of(table, day).to_pylist() if row["h"] < issued)


def _by_service(rows: Iterable[Row]) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row["service"], []).append(row)
    return {service: sorted(mine, key=lambda row: row["h"]) for service, mine in found.items()}


def table(answers: Sequence[tuple[Row, Row]]) -> str:
    """Return the answer as text: a line for each service, those first that are short."""
    heads = ("service", "providers", "needed", "to add", "what if: providers", "needed", "to add", "short from")
    priced = any(other["cost"] is not None for _, other in answers)
    lines: list[tuple[str, ...]] = [(*heads, "cost of the needed") if priced else heads]
    for plan, other in sorted(answers, key=lambda pair: (-(pair[1]["add"] or 0), str(pair[1]["service"]))):
        line = (
            str(plan["service"]),
            *(_said(plan[name]) for name in ("providers_now", "need_horizon", "add")),
            *(_said(other[name]) for name in ("providers_now", "need_horizon", "add")),
            f"{other['exhaust_bound']:%Y-%m-%d %H:%M}" if other["exhaust_bound"] else "-",
        )
        lines.append((*line, _costs(other["cost"], other["need_horizon"])) if priced else line)
    widths = [max(len(line[place]) for line in lines) for place in range(len(lines[0]))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines)
    return "\n".join(padded)


def _costs(cost: float | None, number: int | None) -> str:
    return "-" if cost is None or number is None else f"{cost * number:,.2f}"


def _said(number: float | None) -> str:
    return "-" if number is None else f"{number:,}"
