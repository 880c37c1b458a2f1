"""What-if questions, of tables and without Spark."""

from datetime import timedelta

import pytest

from spark.capacity.__main__ import main
from spark.capacity.planning import what_if
from spark.capacity.planning.plan import Options, plan_service
from spark.capacity.tables.schema import BRONZE_RECORDS, GOLD_FORECAST, GOLD_PLAN, GOLD_SERVICE_1H, SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables
from tests.spark.farm import put_dates
from tests.spark.hours import hour

NOW = 34
"""Ten o'clock on a Tuesday."""


@pytest.fixture
def tables(tmp_path):
    made = Tables(None, tmp_path / "out")
    made.out.mkdir()
    load = {"service": "web", "providers_mean": 4.0, "full_load": 50.0, "demand_mean": 80.0, "demand_max": 100.0}
    hours = [{**load, "date": hour(number).date(), "h": hour(number)} for number in range(24, NOW)]
    put_dates(made, GOLD_SERVICE_1H, hours)
    told = {"service": "web", "issued": hour(NOW), "peak_bound": 130.0, "flag": "", "bound_trials": 0}
    steps = [{**told, "h": hour(NOW + number), "p50": 80.0, "hour_bound": 100.0 + number} for number in range(24)]
    names = GOLD_FORECAST.schema.names
    put_dates(made, GOLD_FORECAST, [{**row, "date": hour(NOW).date()} for row in steps])
    row = plan_service([{name: step.get(name) for name in names} for step in steps], hours, hour(NOW))
    row["shared_providers"] = 0
    put_dates(made, GOLD_PLAN, [row])
    windows = [
        {"service": "web", "instance": f"10.0.0.{number}:80", "w": hour(NOW - 1) + timedelta(minutes=5 * at)}
        for number in range(1, 5)
        for at in range(12)
    ]
    # One of them had left an hour before.
    gone = {"service": "web", "instance": "10.0.0.1:99", "w": hour(NOW - 2)}
    up = {"date": hour(NOW).date(), "up_s": 300.0}
    put_dates(made, SILVER_PROVIDER_5M, [{**one, **up} for one in [*windows, gone]])
    return made


def asked(tables, **members):
    [(plan, other)] = what_if.answer(tables, Options(**members))
    assert (plan["providers_now"], plan["need_horizon"], plan["add"]) == (4, 4, 0)
    return other


def test_other_assumptions_give_another_plan_and_none_the_same(tables):
    # 130 / 40; with a growth 169 / 40; of a full load of 100, 130 / 80 or 130 / 100 and one.
    assert asked(tables)["need_horizon"] == 4
    assert asked(tables, growth=1.3)["need_horizon"] == 5
    assert asked(tables, full_load=100.0)["need_horizon"] == 3
    assert asked(tables, target=0.5)["need_horizon"] == 6


def test_a_host_that_goes_takes_its_providers_along(tables):
    without = what_if.removed(tables, hour(NOW), ["host=10.0.0.1", "endpoint=10.0.0.2:80"])
    assert without == {"web": 2}
    other = asked(tables, without=without)
    assert (other["providers_now"], other["add"], other["state"]) == (2, 2, "no N+1")
    with pytest.raises(what_if.QuestionError, match="named by endpoint, host, label"):
        what_if.removed(tables, hour(NOW), ["name=x"])


def test_a_label_is_that_of_the_records(tables):
    known = {"v": 1, "date": hour(NOW).date(), "service": "web", "event": "load"}
    named = {"10.0.0.1:80": "a", "10.0.0.2:80": "a", "10.0.0.3:80": "b", "10.0.0.1:99": "b"}
    put_dates(tables, BRONZE_RECORDS, [{**known, "instance": one, "label": label} for one, label in named.items()])
    assert what_if.removed(tables, hour(NOW), ["label=a"]) == {"web": 2}
    # The other one had left an hour before.
    assert what_if.removed(tables, hour(NOW), ["label=b", "endpoint=10.0.0.3:80"]) == {"web": 1}


@pytest.mark.parametrize("wrong", ["label=nobody", "host=10.0.0.99", "endpoint=10.0.0.1:99"])
def test_a_name_that_no_provider_has_is_told(tables, capsys, wrong):
    question = ["--without", "host=10.0.0.4", "--without", wrong]
    assert main(["what-if", "--out", str(tables.out), *question]) == 1
    assert capsys.readouterr() == ("", f"capacity: no provider that was up in the last full hour has {wrong}\n")


def test_a_known_event_raises_its_hours(tables, tmp_path):
    calendar = tmp_path / "events.csv"
    calendar.write_text(f"from,to,factor,service\n{hour(NOW + 5)},{hour(NOW + 6)},3,web\n2030-01-01,2030-01-02,9,\n")
    other = asked(tables, events=what_if.read_calendar(calendar))
    assert other["need_horizon"] == 10
    assert asked(tables, events=what_if.read_calendar(calendar), full_load=100.0)["exhaust_bound"] == hour(NOW + 5)


@pytest.mark.parametrize("text", ["from,to\n", "from,to,factor\nx,y,1\n", "from,to,factor\n2026-01-02,2026-01-01,1\n"])
def test_a_calendar_that_cannot_be_understood_is_told(tmp_path, text):
    path = tmp_path / "events.csv"
    path.write_text(text + "2026-01-01,2026-01-02\n")
    with pytest.raises(what_if.QuestionError, match="line 2"):
        what_if.read_calendar(path)


def test_the_command_prints_both_plans(tables, capsys):
    question = ["--growth", "2", "--without", "host=10.0.0.4", "--cost", "5"]
    assert main(["what-if", "--out", str(tables.out), *question]) == 0
    heads, line = capsys.readouterr().out.splitlines()
    assert heads.split("  ")[0] == "service"
    assert line.split() == ["web", "4", "4", "0", "3", "7", "4", "2026-03-03", "10:00", "35.00"]
    # An unknown need has no cost.
    unknown = {"service": "free", "providers_now": 3, "cost": 5.0}
    unknown |= dict.fromkeys(("need_horizon", "add", "exhaust_bound"))
    assert what_if.table([(unknown, unknown)]).splitlines()[1].split() == ["free", "3", *"--3----"]
    assert main(["what-if", "--out", str(tables.out / "nothing")]) == 1
    assert "has no plan yet" in capsys.readouterr().err
