"""Plans with other assumptions, of tables and without Spark."""

from datetime import timedelta

import pytest

from spark.capacity.command import main
from spark.capacity.planning import what_if
from spark.capacity.planning.plan import Options, plan_service
from spark.capacity.planning.policy import Assumptions, read_assumptions
from spark.capacity.tables.schema import (
    BRONZE_RECORDS,
    GOLD_FORECAST,
    GOLD_PLAN,
    GOLD_POOL_1H,
    GOLD_SERVICE_1H,
    SILVER_PROVIDER_5M,
)
from spark.capacity.tables.store import Tables
from tests.spark.farm import put_dates
from tests.spark.hours import hour

NOW = 34
"""Ten o'clock on a Tuesday."""


@pytest.fixture
def tables(tmp_path):
    made = Tables(None, tmp_path / "out")
    made.out.mkdir()
    load = {"service": "web", "providers_mean": 4.0, "full_load": 50.0, "demand_mean": 80.0, "demand_peak": 100.0}
    hours = [{**load, "date": hour(number).date(), "h": hour(number)} for number in range(24, NOW)]
    put_dates(made, GOLD_SERVICE_1H, hours)
    told = {"service": "web", "issued": hour(NOW), "peak_bound": 130.0, "flag": "", "headroom": 1.3}
    known = {"p50": 80.0}
    steps = [{**told, **known, "h": hour(NOW + number), "hour_bound": 100.0 + number} for number in range(24)]
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
    # One of them had left an hour before, and another came in the hour of the plan.
    gone = {"service": "web", "instance": "10.0.0.1:99", "w": hour(NOW - 2)}
    came = {"service": "web", "instance": "10.0.0.1:100", "w": hour(NOW)}
    up = {"date": hour(NOW).date(), "up_s": 300.0}
    put_dates(made, SILVER_PROVIDER_5M, [{**one, **up} for one in [*windows, gone, came]])
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


def test_a_provider_of_several_services_goes_once_from_their_pool(tables):
    load = {"date": hour(NOW).date(), "h": hour(NOW - 1), "providers_mean": 5.0, "full_load": 50.0, "demand_mean": 90.0}
    put_dates(tables, GOLD_POOL_1H, [{**load, "service": name, "pool": "api"} for name in ("api", "web")])
    shared = {"date": hour(NOW).date(), "up_s": 300.0, "w": hour(NOW - 1)}
    windows = tables.rows_of(SILVER_PROVIDER_5M, hour(NOW).date()).to_pylist()
    more = [{**shared, "service": "api", "instance": f"10.0.0.{number}:80"} for number in (1, 2, 9)]
    put_dates(tables, SILVER_PROVIDER_5M, [*windows, *more])
    assert what_if.removed(tables, hour(NOW), ["host=10.0.0.1", "host=10.0.0.9"]) == {"api": 2, "web": 2}
    assert asked(tables, without={"web": 2})["providers_now"] == 3


def test_a_label_is_that_of_the_records(tables):
    known = {"v": 1, "date": hour(NOW).date(), "service": "web", "event": "load"}
    named = {"10.0.0.1:80": "a", "10.0.0.2:80": "a", "10.0.0.3:80": "b", "10.0.0.1:99": "b"}
    put_dates(tables, BRONZE_RECORDS, [{**known, "instance": one, "label": label} for one, label in named.items()])
    assert what_if.removed(tables, hour(NOW), ["label=a"]) == {"web": 2}
    # The other one had left an hour before.
    assert what_if.removed(tables, hour(NOW), ["label=b", "endpoint=10.0.0.3:80"]) == {"web": 1}


@pytest.mark.parametrize("wrong", ["label=nobody", "host=10.0.0.99", "endpoint=10.0.0.1:99", "endpoint=10.0.0.1:100"])
def test_a_name_that_no_provider_has_is_told(tables, capsys, wrong):
    question = ["--without", "host=10.0.0.4", "--without", wrong]
    assert main(["what-if", "--out", str(tables.out), *question]) == 1
    assert capsys.readouterr() == ("", f"capacity: no provider that was up in the last full hour has {wrong}\n")


def policy(tables, text):
    path = tables.out / what_if.POLICY
    path.write_text(text)
    return what_if.policy_of_run(tables.out)


def test_a_known_event_and_the_growth_of_the_run_are_in_the_question(tables):
    event = f"[[event]]\nservices = 'web'\nfrom = {hour(NOW + 5)}\nto = {hour(NOW + 6)}\nfactor = 3\n"
    other = asked(tables, assumed=policy(tables, event))
    assert other["need_horizon"] == 10
    assert asked(tables, assumed=policy(tables, event), full_load=100.0)["exhaust_bound"] == hour(NOW + 5)
    # The growth of the run and that of the question multiply.
    assert asked(tables, assumed=policy(tables, "growth = 1.3\n"))["need_horizon"] == 5
    assert asked(tables, assumed=policy(tables, "growth = 1.3\n"), growth=2.0)["need_horizon"] == 9
    (tables.out / what_if.POLICY).unlink()
    assert what_if.policy_of_run(tables.out) == Assumptions()


def test_another_policy_file_makes_the_bounds_again(tables, tmp_path, capsys):
    path = tmp_path / "other.toml"
    question = ["what-if", "--out", str(tables.out), "--policy", str(path)]
    # Of ten hours of history the headroom is 1.8: 180 / 40; of the policy 3: 300 / 40.
    for text, need in (("", "5"), ("[[policy]]\nheadroom = 3.0\n", "8")):
        path.write_text(text)
        assert main(question) == 0
        assert capsys.readouterr().out.splitlines()[1].split()[5] == need
    hours = f"from = {hour(NOW - 1)}\nto = {hour(NOW)}\n"
    path.write_text(f"[[exclude]]\n{hours}")
    [(_, kept)] = what_if.answer(tables, Options(read_assumptions(path)), again=True)
    assert (kept["peak_bound"], kept["highest"]) == (180.0, 100.0)
    path.write_text(f"[[exclude]]\nfrom = {hour(0)}\nto = {hour(NOW)}\n")
    [(_, nothing)] = what_if.answer(tables, Options(read_assumptions(path)), again=True)
    assert [nothing[name] for name in ("peak_bound", "highest", "highest_at", "need_horizon")] == [None] * 4
    assert nothing["state"] == "too little history"
    path.write_text("[[policy]]\nservices = 'nobody'\n")
    assert main(question) == 1
    assert (
        capsys.readouterr().err == f"capacity: {path}, line 2: services = 'nobody' matches no service of the journal\n"
    )


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
