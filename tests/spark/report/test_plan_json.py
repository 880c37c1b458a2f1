"""plan.json and its schedules."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from broker.core.plan import Verdict
from broker.export.plan_document import parse
from spark.capacity.planning.needs import State
from spark.capacity.report import plan_json
from spark.capacity.tables.schema import GOLD_PLAN
from spark.capacity.tables.store import put_text

NOW = datetime(2026, 3, 5, 22, tzinfo=UTC)
"""A Thursday."""

SCHEMA = json.loads((Path(__file__).parents[3] / "docs" / "plan.schema.json").read_text())


def plan(service, **members):
    known = {"service": service, "issued": NOW, "providers_now": 4, "need_now": 3, "need_horizon": 6, "add": 2}
    known |= {"full_load": 50.0, "target_utilisation": 0.8, "peak_bound": 120.0, "note": "", "exhaust_bound": NOW}
    known |= {"policy": "*", "headroom": 1.3, "spares": 2, "n_plus": 0, "providers_least": 1, "free": 0}
    known |= {"odds_day": 0.03, "odds_trials": 12, "odds_missed": 0}
    known |= {"known_hours": 100, "state": {0: "enough", None: "unknown"}.get(members.get("add", 2), "below policy")}
    return {name: (known | members).get(name) for name in GOLD_PLAN.schema.names}


def steps(service, bounds):
    return {service: [{"h": NOW + timedelta(hours=i), "hour_bound": bound} for i, bound in enumerate(bounds)]}


def made(cost=None, **members):
    plans = [
        plan("fine", add=0, need_horizon=4, exhaust_bound=None, cost=cost),
        plan("short", cost=cost),
        plan("free", full_load=None, add=None, need_now=None, need_horizon=None, erlangs=float("inf"), cost=cost),
    ]
    return plan_json.document(plans, steps("short", [10.0, 50.0, 130.0]) | steps("free", [1.0]), {"x": 1}, **members)


def test_the_services_stand_with_the_shortest_first_and_times_in_utc():
    told = made()
    assert (told["version"], told["issued"], told["short"], told["inputs"]) == (1, "2026-03-05T22:00:00Z", 1, {"x": 1})
    assert [one["service"] for one in told["services"]] == ["short", "fine", "free"]
    short = told["services"][0]
    assert (short["add"], short["short_from"], short["cost_needed"]) == (2, "2026-03-05T22:00:00Z", None)


def test_every_document_is_what_its_schema_permits_and_the_broker_reads():
    schema = Draft202012Validator(SCHEMA)
    unbound = plan("u", peak_bound=None, need_now=None, need_horizon=None, add=None, exhaust_bound=None)
    for told in (
        made(),
        made(cost=2.5),
        plan_json.document([plan("=a")], steps("=a", [1.0]), {}),
        plan_json.document([unbound], steps("u", [None]), {}),
    ):
        schema.validate(told)
        assert set(told) == set(schema.schema["required"])
        service = schema.schema["$defs"]["service"]
        assert (
            {name for one in told["services"] for name in one} == set(service["required"]) == set(service["properties"])
        )
        read = parse(json.dumps(told).encode())
        assert {one["service"]: one["need_horizon"] for one in told["services"]} == {
            name: one.need for name, one in read.services.items()
        }
    fine, short, free = (parse(json.dumps(made()).encode()).services[name] for name in ("fine", "short", "free"))
    assert [one.verdict for one in (fine, short, free)] == [Verdict.ENOUGH, Verdict.BELOW, Verdict.UNKNOWN]
    schema.validate(plan_json.document([], {}, {}))


@pytest.mark.parametrize("state", State)
def test_the_broker_has_a_verdict_for_each_state(state):
    told = plan_json.document([plan("a", state=state.value, exhaust_bound=None)], {}, {})
    Draft202012Validator(SCHEMA).validate(told)
    read = parse(json.dumps(told).encode()).services["a"]
    assert (read.verdict.value, read.verdict.is_short) == (state.value, state.is_short)
    assert told["short"] == state.is_short
    assert [name for name, one in told["totals"].items() if one["services"]] == [state.value]


def test_the_providers_of_a_pool_count_once():
    plans = [
        plan("a", pool="a", cost=2.0),
        plan("b", pool="a", cost=2.0, state="overloaded"),
        plan("c", pool="a", cost=2.0),
        plan("d", cost=2.0),
    ]
    told = plan_json.document(plans, {}, {})
    of_state = {name: one for name, one in told["totals"].items() if one["services"]}
    assert [one["pool"] for one in told["services"]] == ["a", "a", "a", None]
    assert of_state == {
        "overloaded": {"services": 1, "providers_now": 4, "add": 2, "free": 0, "cost_now": 8.0},
        "below policy": {"services": 3, "providers_now": 4, "add": 2, "free": 0, "cost_now": 8.0},
    }


def test_totals_have_the_cost_of_each_state():
    plans = [
        plan("a", state="can free", free=3, cost=2.0, add=0),
        plan("b", state="can free", free=1, cost=1.0, add=0),
        plan("c", state="overloaded", add=2),
    ]
    told = plan_json.document(plans, {}, {})["totals"]
    assert told["can free"] == {"services": 2, "providers_now": 8, "add": 0, "free": 4, "cost_now": 12.0}
    assert told["overloaded"] == {"services": 1, "providers_now": 4, "add": 2, "free": 0, "cost_now": None}


def test_each_service_has_its_place_in_the_report_where_there_is_one():
    told = made(links={"short": "report.html#s2", "fine": "services/s1.html"})
    Draft202012Validator(SCHEMA).validate(told)
    assert [one["report"] for one in told["services"]] == ["report.html#s2", "services/s1.html", None]
    assert parse(json.dumps(told).encode()).services["fine"].report == "services/s1.html"


def test_the_schedule_has_the_hours_of_the_week_and_null_beyond_the_horizon():
    short, fine, free = (one["schedule"] for one in made()["services"])
    assert len(short) == 168
    # Thursday 22:00 and 23:00, Friday 00:00: 1, 2 and 4 of them, and two spare.
    assert {place: number for place, number in enumerate(short) if number is not None} == {94: 3, 95: 4, 96: 6}
    assert set(fine) == set(free) == {None}


def test_the_schedule_has_the_growth_and_the_events_that_the_plan_has():
    # Of 100 with an event of twice as much: 5 of them, and two spare; without one 3, and two.
    hours = steps("a", [100.0] * 3)
    for step, factor in zip(hours["a"], (1.0, 2.0, None), strict=True):
        step["factor"] = factor
    [told] = plan_json.document([plan("a")], hours, {})["services"]
    assert [number for number in told["schedule"] if number is not None] == [5, 7, 5]
    assert told["schedule_record"]["saved"] == pytest.approx(1 - 17 / 18)


def test_cost_is_of_the_providers_now_and_of_the_larger_need():
    short, _, free = made(cost=10.0)["services"]
    assert (short["cost_now"], short["cost_needed"], free["cost_needed"]) == (40.0, 60.0, None)


def test_files_hold_only_what_json_has_and_no_formulas(tmp_path):
    told = plan_json.document([plan("=a")], steps("=a", [1.0]), {})
    paths = plan_json.write(tmp_path, told)
    assert [path.name for path in paths] == ["plan.json", "plan_schedule.csv"]
    assert json.loads((tmp_path / "plan.json").read_text()) == told
    assert (tmp_path / "plan_schedule.csv").read_text() == "service,hour_of_week,providers\n'=a,94,3\n"


def test_a_reader_sees_the_file_before_until_the_new_one_is_whole(tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    put_text(path, "before")

    def cut(number):
        assert path.read_text() == "before"
        raise OSError("no space")

    monkeypatch.setattr("os.fsync", cut)
    with pytest.raises(OSError, match="no space"):
        put_text(path, "after")
    assert path.read_text() == "before"
