"""Plans of the last run's tables with other assumptions, for the command ``what-if``. They need no Spark.

Rules:
- The plan of the question stands beside the plan as it is: providers there, needs, and missing providers.
- Providers that are taken away are those with the given endpoint, host or label which were up in the last full hour.
  They have the labels that their records of that date have.
- Growth, policies, events and exclusions are those of the last run, whose policy file stands in the out directory
  (`POLICY`), or those of the policy file of the question. With another file the bounds are made again of the peaks.
"""

from collections import Counter
from collections.abc import Sequence
from datetime import date, datetime, timedelta
from pathlib import Path

import pandas as pd  # type: ignore[import-untyped, unused-ignore]
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from spark.capacity.planning.forecast import bounds, full_hour, peaks_of
from spark.capacity.planning.plan import WEEKS, Options, known_rows, plan_service
from spark.capacity.planning.policy import Assumptions, read_assumptions
from spark.capacity.service.pools import planned_rows, pools_of
from spark.capacity.tables.row_values import Row, RowsByService
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    GOLD_FORECAST,
    GOLD_PLAN,
    SILVER_PROVIDER_5M,
    Table,
)
from spark.capacity.tables.store import OutError, Tables

LABEL = "label"

POLICY = "plan_policy.toml"
"""Name of the policy file of the last run in the out directory."""

KINDS = ("endpoint", "host", LABEL)
"""Properties that select the providers to take away: an endpoint, its part before the last colon, or a label."""


class QuestionError(Exception):
    """A question cannot be understood."""


def policy_of_run(out: Path) -> Assumptions:
    """Return the policy file of the last run; the defaults where it had none."""
    path = out / POLICY
    return read_assumptions(path) if path.exists() else Assumptions()


def needed(wanted: Sequence[str]) -> list[Table]:
    """Return the tables that `removed` reads, for the date of the last full hour."""
    labels = any(one.startswith(f"{LABEL}=") for one in wanted)
    return [SILVER_PROVIDER_5M, *([BRONZE_RECORDS] if labels else [])] if wanted else []


def removed(tables: Tables, issued: datetime, wanted: Sequence[str]) -> dict[str, int]:
    """Count the providers of each service, or of its pool, up in the last full hour, that match one of ``KIND=VALUE``.

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
    in_hour = pc.and_(pc.greater_equal(rows["w"], since), pc.less(rows["w"], issued))
    there = rows.filter(pc.and_(in_hour, pc.greater(rows["up_s"], 0.0)))
    names = set(zip(there["service"].to_pylist(), there["instance"].to_pylist(), strict=True))
    gone: set[tuple[str, str]] = set()
    for kind, value in pairs:
        labelled = _labelled(tables, since.date(), value) if kind == LABEL else set()
        mine = {name for name in names if name in labelled or _matches(name[1], kind, value)}
        if not mine:
            raise QuestionError(f"no provider that was up in the last full hour has {kind}={value}")
        gone |= mine
    pools = pools_of(tables, since.date())
    of_pool = {(pools.get(service, service), instance) for service, instance in gone}
    count = Counter(pool for pool, _ in of_pool)
    services = {service for service, _ in names}
    return {service: count[pool] for service in services if count[pool := pools.get(service, service)]}


def _matches(instance: str, kind: str, value: str) -> bool:
    return value == (instance.rpartition(":")[0] if kind == "host" else instance)


def _labelled(tables: Tables, day: date, label: str) -> set[tuple[str, str]]:
    """Return services and instances that had a label on a date: one with an endpoint goes by that everywhere else."""
    found: set[tuple[str, str]] = set()
    for path in tables.files(BRONZE_RECORDS, day):
        rows = pyarrow.parquet.read_table(path, columns=["service", "instance"], filters=[("label", "=", label)])
        found.update(zip(rows["service"].to_pylist(), rows["instance"].to_pylist(), strict=True))
    return found


def answer(tables: Tables, options: Options, again: bool = False) -> list[tuple[Row, Row]]:
    """Return the plan of each service of the last run, and beside it the plan with other assumptions.

    The bounds are made ``again`` for headrooms and exclusions that are not those of the run.
    """
    issued = last_issue(tables)
    plans, told = (tables.rows_of(table, issued.date()) for table in (GOLD_PLAN, GOLD_FORECAST))
    steps, hours = RowsByService(told.filter(pc.equal(told["issued"], issued))), _hours(tables, issued)
    if again:
        # Those that were withdrawn have hours and no forecast.
        options.assumed.need_services({*steps, *hours})
    answers: list[tuple[Row, Row]] = []
    for row in plans.sort_by("service").to_pylist():
        mine, past = steps.get(row["service"], []), hours.get(row["service"], [])
        if mine:
            bounded = _bounded(mine, past, options) if again else mine
            answers.append((row, plan_service(bounded, past, issued, options)))
    return answers


def _bounded(steps: Sequence[Row], hours: Sequence[Row], options: Options) -> Sequence[Row]:
    """Return the rows of a forecast with bounds by the policy, and without the peaks of exclusions."""
    if not hours:
        return steps
    start = pd.Timestamp(steps[0]["issued"]).tz_localize(None)
    headroom = options.assumed.of(str(steps[0]["service"])).headroom
    peaks = peaks_of(pd.DataFrame(hours), start, options.assumed)
    made = known_rows(pd.DataFrame(bounds(peaks, len(steps), start, headroom), index=range(len(steps))))
    return [{**row, **new} for row, new in zip(steps, made, strict=True)]


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


def _hours(tables: Tables, issued: datetime) -> RowsByService:
    """Return the hours of the weeks before a plan."""
    days = (issued.date() - timedelta(days=number) for number in range(WEEKS * 7 + 1))
    rows = pa.concat_tables([planned_rows(tables, day) for day in days])
    return RowsByService(rows.filter(pc.less(rows["h"], issued)))


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
