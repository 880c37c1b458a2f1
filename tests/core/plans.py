"""Documents of plan.json for tests, each of which the schema in docs/ permits."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = Draft202012Validator(json.loads((Path(__file__).parents[2] / "docs" / "plan.schema.json").read_text()))

ISSUED = "2026-03-05T22:00:00Z"

POLICY = {
    "services": "*", "headroom": 1.3, "target_utilisation": 0.8, "spares": 0, "n_plus": 1, "providers_least": 1,
    "providers_most": None, "cost": None,
}  # fmt: skip

MADE = 1_772_748_000.0
"""That time in seconds of the epoch."""


def service(name: str, **members: Any) -> dict[str, Any]:
    """Return the plan of a service that has enough providers."""
    known: dict[str, Any] = {
        "service": name, "state": "enough", "providers_now": 4, "need_now": 3, "need_horizon": 4, "add": 0,
        "free": 0, "spare": 2, "rule": "peak bound at 80% load", "short_from": None, "short_from_p50": None,
        "growth_per_week": 0.01, "short_by_trend": None, "demand_now": 80.0, "demand_day": 90.0, "peak_bound": 120.0,
        "full_load": 50.0, "known_hours": 168, "policy": POLICY,
        "odds": {"day_ahead": 0.01, "said": 0.02, "trials": 16, "missed": 0},
        "odds_week": {"week_ahead": 0.03, "said": 0.04, "trials": 2, "missed": 0},
        "schedule_record": {"hours": 336, "missed": 1, "weeks": 2, "weeks_missed": 1, "saved": 0.3},
        "bound": {"trials": 16, "missed": 0, "miss_at_most": 0.17, "hours_ahead": 168},
        "erlangs": None, "service_s": None, "shared_providers": 0, "pool": None, "cost_now": None, "cost_needed": None,
        "note": "", "report": None, "schedule": [None] * 168,
    }  # fmt: skip
    if add := members.get("add", 0):
        known["state"] = "below policy"
    elif add is None:
        known["state"] = "unknown"
    return {**known, **members}


def document(*services: dict[str, Any], issued: str | None = ISSUED) -> bytes:
    """Return the text of a plan."""
    made: dict[str, Any] = {"version": 1, "issued": issued, "inputs": {}, "short": 0, "totals": {}}
    made["services"] = list(services)
    SCHEMA.validate(made)
    return json.dumps(made).encode()
