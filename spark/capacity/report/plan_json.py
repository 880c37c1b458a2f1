"""plan.json: the plan for programs: the broker's pages and metrics, autoscalers, and other readers of JSON.

Rules:
- `version` is 1. Later versions may add members; a reader leaves those that it does not know.
- Times are ISO 8601 in UTC, loads as providers report them, needs in providers, by the policy.
- A value that is not known is null. Nothing is said of capacity where `full_load` is null.
- `schedule` has a need for each hour of the week, with growth and events, 168 of them from Monday 00:00 UTC on; null
  beyond the horizon.
- Each service has a line of its own.
- The file is written under another name first, and takes its place by a rename: a reader sees the old or the new one.
- docs/plan.schema.json has the meaning of each member.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from spark.capacity.planning.needs import needs_of
from spark.capacity.report.files import TIME, table_csv
from spark.capacity.report.service_rows import cost_now, grown, planned_state, totals
from spark.capacity.tables.row_values import Row, number_of
from spark.capacity.tables.store import put_text

VERSION = 1

WEEK = 168


def document(
    plans: Iterable[Row],
    forecasts: Mapping[str, Sequence[Row]],
    inputs: Mapping[str, Any],
    links: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Return the plan as values of JSON, from the rows of gold_plan, and those of gold_forecast by service.

    ``links`` are the paths of `page.links_of`; None without a report.
    """
    links = links or {}
    plans = sorted(plans, key=lambda row: (planned_state(row).rank, -(row["add"] or 0), str(row["service"])))
    return {
        "version": VERSION,
        "issued": _time(plans[0]["issued"]) if plans else None,
        "inputs": dict(inputs),
        "short": sum(planned_state(row).is_short for row in plans),
        "totals": {
            total.state.value: {
                "services": total.services,
                "providers_now": total.now,
                "add": total.add,
                "free": total.free,
                "cost_now": total.cost,
            }
            for total in totals(plans)
        },
        # The last member: `text_of` writes its elements line by line.
        "services": [
            _service(row, [grown(step) for step in forecasts.get(row["service"], ())], links.get(row["service"]))
            for row in plans
        ],
    }


SERVICE = ("service", "state", "providers_now", "need_now", "need_horizon", "add", "free", "spare", "rule")


def _service(row: Row, steps: Sequence[Row], report: str | None) -> dict[str, Any]:
    cost, by_hour = row["cost"], schedule(row, steps)
    return {
        **{name: row[name] for name in SERVICE},
        "short_from": _time(row["exhaust_bound"]),
        "short_from_p50": _time(row["exhaust_p50"]),
        "growth_per_week": number_of(row, "growth_per_week"),
        "short_by_trend": _time(row["exhaust_trend"]),
        **{name: number_of(row, name) for name in ("demand_now", "demand_day", "peak_bound", "full_load")},
        "known_hours": row["known_hours"],
        "policy": {
            "services": row["policy"],
            **{name: number_of(row, name) for name in ("headroom", "target_utilisation")},
            **{name: row[name] for name in ("spares", "n_plus", "providers_least", "providers_most")},
            "cost": number_of(row, "cost"),
        },
        "bound": {
            "trials": row["bound_trials"],
            "missed": row["bound_missed"],
            "miss_at_most": number_of(row, "bound_miss_most"),
            "hours_ahead": row["bound_ahead_h"],
        },
        "odds": {
            "day_ahead": number_of(row, "odds_day"),
            "said": number_of(row, "odds_said"),
            "trials": row["odds_trials"],
            "missed": row["odds_missed"],
        },
        "odds_week": {
            "week_ahead": number_of(row, "odds_week"),
            "said": number_of(row, "odds_week_said"),
            "trials": row["odds_week_trials"],
            "missed": row["odds_week_missed"],
        },
        "schedule_record": {
            "hours": row["hours_tried"],
            "missed": row["hours_missed"],
            "weeks": row["weeks_tried"],
            "weeks_missed": row["weeks_missed"],
            "saved": saved(row, by_hour),
        },
        **{name: number_of(row, name) for name in ("erlangs", "service_s")},
        "shared_providers": row["shared_providers"],
        "pool": row["pool"],
        "cost_now": cost_now(row),
        "cost_needed": None if cost is None or row["need_horizon"] is None else cost * row["need_horizon"],
        "note": row["note"],
        "report": report,
        "schedule": by_hour,
    }


def schedule(row: Row, steps: Sequence[Row]) -> list[int | None]:
    """Return the need of each hour of the week, from Monday 00:00 UTC on, from `grown` hours of a forecast."""
    made: list[int | None] = [None] * WEEK
    needs = needs_of(row)
    for step in steps:
        at, needed = step["h"], needs.of(step["hour_bound"])
        slot = at.weekday() * 24 + at.hour
        if needed is not None:
            made[slot] = max(needed, made[slot] or 0)
    return made


def saved(row: Row, by_hour: Sequence[int | None]) -> float | None:
    """Return the part of the provider-hours of the need of the horizon that the schedule does without."""
    known = [number for number in by_hour if number is not None]
    flat = (number_of(row, "need_horizon") or 0) * len(known)
    return 1.0 - sum(known) / flat if flat else None


def write(out: Path, made: Mapping[str, Any], name: str = "plan.json") -> list[Path]:
    """Write the document, and its schedules as CSV; return their paths."""
    needs = [
        {"service": service["service"], "hour_of_week": hour, "providers": number}
        for service in made["services"]
        for hour, number in enumerate(service["schedule"])
        if number is not None
    ]
    schedules = table_csv(needs, ("service", "hour_of_week", "providers"))
    files = {out / name: text_of(made), out / "plan_schedule.csv": schedules}
    for path, text in files.items():
        put_text(path, text)
    return sorted(files)


def text_of(made: Mapping[str, Any]) -> str:
    """Return the document as text: a line for each service, so that a reader may decode them one by one."""
    head = json.dumps({**made, "services": []}, allow_nan=False).removesuffix("]}")
    services = ",\n".join(json.dumps(service, allow_nan=False) for service in made["services"])
    return f"{head}\n{services}\n]}}\n"


def _time(value: datetime | None) -> str | None:
    return None if value is None else value.strftime(TIME)
