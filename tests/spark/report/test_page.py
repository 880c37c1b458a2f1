"""The report says what the tables say, opens without a network, and takes nothing from them for markup.

The file is longer than others: it has all tests of `spark.capacity.report.page`.
"""

import csv
import io
import math
import re
from datetime import UTC, date, datetime, timedelta
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spark.capacity.report.chart import HEIGHT, WIDTH, Line, Mark, chart
from spark.capacity.report.files import table_csv
from spark.capacity.report.page import links_of, write
from spark.capacity.report.service_rows import services_of
from spark.capacity.tables.schema import GOLD_PLAN
from tests.examples import examples
from tests.spark.report.report_tables import complete, render

Record = dict[str, Any]
NOW = datetime(2026, 6, 1, tzinfo=UTC)
HOSTILE = "<script>alert('x')</script>\"&\u202e\x00]]>"
CROSSED = NOW + timedelta(days=3, hours=5)


def hours(service: str, count: int, capacity: float | None = 800.0) -> list[Record]:
    return [
        {
            "service": service,
            "h": NOW - timedelta(hours=count - number),
            "demand_mean": 300 + 100 * math.sin(number / 24 * 2 * math.pi),
            "capacity": capacity,
            "providers_min": 8,
        }
        for number in range(count)
    ]


def forecast(service: str, flag: str = "", issued: datetime = NOW) -> list[Record]:
    return [
        {
            "service": service,
            "issued": issued,
            "h": issued + timedelta(hours=number),
            "model": "seasonal naive",
            "p50": 310.0,
            "hour_bound": 433.0,
            "peak_bound": 460.0,
            "bound_trials": 12,
            "bound_missed": 1,
            "bound_miss_most": 0.339,
            "bound_ahead_h": 168,
            "over_provision": 1.31,
            "seasons": 4.25,
            "flag": flag,
        }
        for number in range(168)
    ]


def plan(service: str, **members) -> Record:
    known = {
        "service": service,
        "issued": NOW,
        "providers_now": 8,
        "need_now": 7,
        "need_horizon": 11,
        "spare": 2,
        "rule": "bound at the target utilisation, and 2 to spare",
        "exhaust_p50": None,
        "exhaust_bound": CROSSED,
        "add": 3,
        "peak_bound": 460.0,
        "policy": "*",
        "headroom": 1.3,
        "target_utilisation": 0.7,
        "spares": 2,
        "n_plus": 0,
        "providers_least": 1,
        "bound_trials": 12,
        "bound_missed": 1,
        "bound_miss_most": 0.339,
        "bound_ahead_h": 168,
        "note": "",
        "odds_day": 0.031,
        "odds_trials": 12,
        "odds_missed": 1,
        "odds_said": 0.04,
        "odds_week": 0.05,
        "odds_week_trials": 3,
        "odds_week_missed": 0,
        "odds_week_said": 0.045,
        "hours_tried": 336,
        "hours_missed": 4,
        "weeks_tried": 2,
        "weeks_missed": 1,
        "highest": 200.0,
        "highest_at": datetime(2026, 5, 30, 18, tzinfo=UTC),
        "state": {0: "enough", None: "unknown"}.get(members.get("add", 3), "below policy"),
    }
    return {name: (known | members).get(name) for name in GOLD_PLAN.schema.names}


def provider(instance: str, **members) -> Record:
    return {
        "date": date(2026, 5, 31),
        "service": "auth",
        "instance": instance,
        "judged": "beats",
        "miss_ratio": 0.001,
        "outages": 0,
        "downtime_s": 0.0,
        "mtbf_s": None,
        "mttr_s": None,
        "flap_pct": 0.0,
        "phi_max": 1.0,
        "score": 1.0,
        "flaky": False,
    } | members


def balance(service: str, unbalanced: bool, hot: list[str]) -> Record:
    shape = {"cov": 0.57, "max_mean": 2.2, "gini": 0.3}
    return {"date": date(2026, 5, 31), "service": service, "hot_instances": hot, "unbalanced": unbalanced} | shape


def evaluated(service: str, week: int, missed: bool) -> Record:
    return {
        "service": service,
        "issued": NOW - timedelta(weeks=week),
        "horizon_h": 168,
        "mape": 0.061,
        "peak_missed": missed,
        "promised_miss_most": 0.339,
    }


def full() -> dict[str, list[Record]]:
    return {
        "gold_service_1h": hours("auth", 200) + hours(HOSTILE, 50) + hours("free", 50, None),
        "gold_forecast": forecast("auth") + forecast(HOSTILE, flag="under a season") + forecast("free"),
        "gold_plan": [
            plan("auth"),
            plan(HOSTILE, rule=HOSTILE, note=HOSTILE),
            plan(
                "free",
                need_now=None,
                need_horizon=None,
                add=None,
                exhaust_bound=None,
                note="no full load set",
            ),
        ],
        "gold_provider_day": [
            provider("10.0.0.1:1", flaky=True, miss_ratio=0.064),
            provider("10.0.0.2:1"),
            provider(HOSTILE, judged="connection", miss_ratio=None, flaky=True, outages=3, downtime_s=7200.0),
        ],
        "gold_balance_day": [balance("auth", True, ["10.0.0.7:1"]), balance("free", False, [])],
        "evaluation": [evaluated("auth", week, week == 2) for week in (1, 2, 3, 4)],
        "ledger": [{"segment": f"s{number}", "size": 1, "records": 1000, "quarantined": 0} for number in range(3)],
        "quarantine": [{"segment": HOSTILE, "line": 1, "reason": "no JSON", "raw": HOSTILE}],
        "loss": [{"broker": "b", "boot": "t", "seq_from": 17, "seq_to": 21, "records": 5, "known": True}],
        "unknown_members": [{"run": "r", "member": "colour", "records": 4}],
        "broker_down": [{"broker": "b", "start": NOW - timedelta(hours=2), "end": NOW - timedelta(minutes=105)}],
        "set_back": [{"broker": HOSTILE, "boot": "t", "seq": 4711, "before": NOW, "after": NOW - timedelta(minutes=7)}],
    }


def parsed(html: str) -> ElementTree.Element:
    """The page as XML: a text that leaves its element or attribute breaks it."""
    start, rest = html.split("\n", 1)
    assert start == "<!DOCTYPE html>"
    return ElementTree.fromstring(rest)


def text(node: ElementTree.Element) -> str:
    return " ".join("".join(node.itertext()).split())


def section(page: ElementTree.Element, heading: str) -> ElementTree.Element:
    return next(one for one in page.iter("section") if text(one[0]) == heading)


def charts(node: ElementTree.Element) -> list[ElementTree.Element]:
    return [one for one in node.iter("svg") if one.get("role") == "img"]


@pytest.fixture(scope="module")
def html() -> str:
    return render(full())


@pytest.fixture(scope="module")
def page(html) -> ElementTree.Element:
    return parsed(html)


def test_every_service_has_its_section_and_chart(page):
    shown = HOSTILE.replace("\x00", "\ufffd")
    for name in ("auth", shown, "free"):
        own = section(page, " ".join(f"Service {name}".split()))
        assert len(charts(own)) == 1
        assert name in text(section(page, "At a glance"))


def test_a_hostile_name_is_text_wherever_it_stands(html, page):
    assert "<script" not in html
    assert {one.tag for one in page.iter()} & {"script", "img", "iframe", "object", "link", "base", "form"} == set()
    assert not [key for one in page.iter() for key in one.attrib if key.startswith("on") or key == "src"]
    assert "\x00" not in html
    # A change of the direction of writing ends with its own element.
    for one in page.iter():
        for own in (one.text, *(child.tail for child in one)):
            assert "\u202e" not in (own or "") or one.tag in ("bdi", "title")


@settings(max_examples=examples(25), deadline=None)
@given(st.text(max_size=40))
def test_no_name_breaks_the_page(name):
    tables = {
        "gold_service_1h": hours(name, 3),
        "gold_forecast": forecast(name, flag=name)[:3],
        "gold_plan": [plan(name, note=name, rule=name)],
        "gold_provider_day": [provider(name, service=name, flaky=True)],
        "gold_balance_day": [balance(name, True, [name])],
        "quarantine": [{"segment": name, "reason": name}],
    }
    found = render(tables)
    found.encode()
    assert len(charts(parsed(found))) == 1


def test_nothing_outside_of_the_page_is_referred_to(html, page):
    assert not re.search(r"https?:|//[a-z]|url\(|@import", html)
    inside = {one.get("id") for one in page.iter()}
    links = [one.get("href", "") for one in page.iter("a")]
    assert len(links) > 6
    assert all(link.startswith("#") and link[1:] in inside for link in links)


def test_ids_are_given_once_and_charts_are_named_for_those_who_do_not_see_them(page):
    ids = [one.get("id") for one in page.iter() if one.get("id")]
    assert len(ids) == len(set(ids))
    for drawing in charts(page):
        named = drawing.get("aria-labelledby", "").split()
        assert [one.get("id") for one in drawing[:2]] == named
        assert [one.tag for one in drawing[:2]] == ["title", "desc"]
        labels = [text(one) for one in drawing.iter("text")]
        assert "load (as reported)" in labels
        assert "time (UTC)" in labels
    # All others are a part of a chart, or beside the text of the legend.
    parts = [id(one) for drawing in charts(page) for one in drawing.iter("svg")]
    assert all(id(one) in parts or one.get("aria-hidden") == "true" for one in page.iter("svg"))
    for own in page.iter("section"):
        assert not list(own.iter("svg")) or list(own.iter("details"))


def test_the_date_at_which_the_limit_is_reached_is_said_and_drawn(page):
    own = section(page, "Service auth")
    assert "Too few from, at the earliest2026-06-04 05:00 UTC" in text(own)
    assert "Too few from, as expectednot in the horizon" in text(own)
    assert len([one for one in own.iter("path") if one.get("class") == "crossed"]) == 1
    assert "2026-06-04 05:00 UTC" in text(section(page, "At a glance"))


def trended(**members) -> Record:
    """A plan of a service whose weekly peaks grow by 10 a week up to 220; its providers carry 6 * 0.7 * 100."""
    peaks = [None, None, 120.0, None, *(140.0 + 10 * week for week in range(9))]
    known = {"weekly_peaks": peaks, "trend_level": 220.0, "growth_per_week": 10 / 220, "full_load": 100.0}
    return plan("a", **known | {"exhaust_trend": NOW + timedelta(weeks=10)} | members)


def drawings(one: Record) -> tuple[list[ElementTree.Element], str]:
    own = section(parsed(render({"gold_service_1h": hours("a", 2), "gold_plan": [one]})), "Service a")
    return charts(own), text(own)


def ends(drawing: ElementTree.Element, kind: str) -> list[tuple[float, float]]:
    """Points of the last line of a kind."""
    last = [one.get("d", "") for one in drawing.iter("path") if one.get("class") == kind][-1]
    return [(float(x), float(y)) for x, y in re.findall(r"[ML]([\d.]+) ([\d.]+)", last)]


def test_the_trend_meets_the_limit_in_the_week_that_the_plan_names():
    (_, trend), said = drawings(trended())
    assert "The peaks change by 4.5 % of their level a week." in said
    assert "too few from the week of 2026-08-10" in said
    bound, [begin, limit] = ends(trend, "bound"), ends(trend, "capacity")
    assert (begin[0], limit[0]) == (ends(trend, "p50")[0][0], bound[-1][0])
    # 1.3 * (220 + 10 * (n + 1)) exceeds 420 from n = 10 on; y grows downwards.
    assert [y < limit[1] for _, y in bound].index(True) == 10
    [crossed] = [one.get("d", "") for one in trend.iter("path") if one.get("class") == "crossed"]
    assert crossed.startswith(f"M{bound[10][0]} ")
    # The first two weeks are unknown and left out; the one between breaks the line.
    line = next(one.get("d", "") for one in trend.iter("path") if one.get("class") == "demand")
    assert line.count("M") == 2
    assert len(ends(trend, "p50")) == 11 + 13


@pytest.mark.parametrize(
    ("members", "said"),
    [
        ({"exhaust_trend": None}, "By this trend the providers are enough for 13 weeks."),
        ({"exhaust_trend": NOW}, "By this trend the providers are too few for the peak of this week."),
        ({"full_load": None}, "Without a full load nothing is claimed about when the providers are too few."),
    ],
)
def test_the_trend_says_when_the_providers_are_too_few(members, said):
    (_, _), told = drawings(trended(**members))
    assert said in told


@pytest.mark.parametrize(("full_load", "said"), [(100.0, "not in 13 weeks"), (None, "\N{EN DASH}")])
def test_the_first_screen_claims_no_more_of_the_trend_than_the_figure(full_load, said):
    one = trended(full_load=full_load, exhaust_trend=None)
    glance = section(parsed(render({"gold_service_1h": hours("a", 2), "gold_plan": [one]})), "At a glance")
    [row] = [row for row in glance.iter("tr") if text(row[0]) == "a"]
    assert text(row[8]) == said


def test_a_trend_of_too_few_weeks_is_not_drawn():
    drawn, told = drawings(trended(trend_level=None, growth_per_week=None))
    assert len(drawn) == 1
    assert "There is no 13-week trend: it needs 4 weeks with a known load." in told


def test_requests_are_shown_where_providers_report_them_and_nowhere_else(page):
    asked = [hour | {"requests": 7200, "errors": 72} for hour in hours("asked", 2)]
    # The hour of the plan still runs.
    asked.append(asked[-1] | {"h": NOW, "requests": 100, "errors": 1})
    one = plan("asked", erlangs=5.0, service_s=2.5)
    shown = text(section(parsed(render({"gold_service_1h": asked, "gold_plan": [one]})), "Service asked"))
    for said in (
        "Requests of the last full hour7,200, of which 72 failed",
        "Mean time of a request2,500 ms",
        "Requests in service at a time5 (erlangs)",
        "Busy providers with which at most 5 % of them wait10",
    ):
        assert said in shown
    assert "Requests" not in text(section(page, "Service auth"))
    assert "wait" not in text(section(page, "Service auth"))

    several = plan("asked", erlangs=50.0)
    shown = text(section(parsed(render({"gold_service_1h": asked, "gold_plan": [several]})), "Service asked"))
    assert "wait" not in shown, "the formula says nothing where providers handle several at a time"


def test_need_rule_and_the_achieved_rates_stand_together(page):
    own = text(section(page, "Service auth"))
    for said in (
        "Providers now8",
        "Needed in the horizon11",
        "bound at the target utilisation, and 2 to spare",
        "was missed: 1 of 12, a week ahead; 95 %: at most 34 %",
        "1.31 times the peak",
    ):
        assert said in own
    [auth] = [row for row in section(page, "At a glance").iter("tr") if text(row).startswith("auth")]
    cells = [text(cell) for cell in auth]
    assert (cells[1:3], cells[5:8]) == (["below policy", "+3"], ["8", "7", "11"])
    # Both needs are marked by what there is, spares included.
    assert [one.get("class") for one in auth.iter("strong")] == ["good", "bad"]


def test_promises_stand_beside_what_came_true(page):
    rows = [[text(cell) for cell in row] for row in section(page, "Promises and outcomes").iter("tr")]
    assert rows[1] == ["auth", "4", "6.1 %", "34 %", "25 % of 4", "1.31 x"]
    # Of a service without past forecasts nothing was promised: the record of its bound stands in its section.
    assert len(rows) == 2


def test_the_first_sentence_says_what_to_do(page):
    said = text(next(one for one in page.iter("p") if one.get("class") == "verdict"))
    assert said.startswith("2 of 3 services are below policy; ")
    assert said.endswith("Thursday, 2026-06-04 05:00 UTC: add 3.")
    states = next(one for one in page.iter("ul") if one.get("class") == "states")
    assert [text(one) for one in states] == ["2 services below policy, 6 to add", "1 service unknown"]


def test_states_have_their_totals_and_cost():
    plans = [
        plan("a", state="overloaded", cost=2.5),
        plan("b", state="no N+1"),
        plan("c", state="can free", add=0, free=3, cost=1.0),
        plan("d", state="can free", add=0, free=1, cost=1.0),
    ]
    found = parsed(render({"gold_plan": plans}))
    said = text(next(one for one in found.iter("p") if one.get("class") == "verdict"))
    assert said == "1 of 4 services is overloaded; a first: add 3."
    states = next(one for one in found.iter("ul") if one.get("class") == "states")
    assert [text(one) for one in states] == [
        "1 service overloaded, 3 to add, cost 20",
        "1 service no N+1, 3 to add",
        "2 services can free, 4 providers may go, cost 16",
    ]
    rows = [[text(cell) for cell in row][:3] for row in section(found, "At a glance").iter("tr")]
    assert rows[1:] == [
        ["a", "overloaded", "+3"],
        ["b", "no N+1", "+3"],
        ["c", "can free", "\N{MINUS SIGN}3"],
        ["d", "can free", "\N{MINUS SIGN}1"],
    ]


def test_a_failure_that_overloads_is_said():
    found = parsed(render({"gold_plan": [plan("a", state="no N+1")]}))
    said = text(next(one for one in found.iter("p") if one.get("class") == "verdict"))
    assert said == "One failure overloads 1 of 1 service; a first: add 3."


def test_the_policy_stands_with_its_limit():
    own = section(parsed(render({"gold_plan": [plan("a", full_load=100.0, providers_most=20)]})), "Service a")
    assert "peak x 1.3; at most 70 % of the full load of 100, and 2 spares; at least 1, at most 20" in text(own)
    assert "Limit of the providers now420 (load)" in text(own)


@pytest.mark.parametrize(
    ("members", "said"),
    [
        (
            {"exhaust_bound": NOW + timedelta(hours=16)},
            "1 of 1 service is below policy; a first, today 16:00 UTC",
        ),
        ({"exhaust_bound": NOW + timedelta(hours=40)}, "a first, tomorrow 16:00 UTC: add 3."),
        ({"exhaust_bound": NOW}, "a first, already now: add 3."),
        ({"exhaust_bound": None}, "a first, at its highest peak: add 3."),
        ({"add": 0}, "None of 1 service is short of providers."),
    ],
)
def test_the_verdict_has_a_date_in_words(members, said):
    found = parsed(render({"gold_plan": [plan("a", **members)]}))
    assert said in text(next(one for one in found.iter("p") if one.get("class") == "verdict"))


def test_services_are_counted_as_the_plan_counts_them():
    """A service without a plan is no service that has enough, for the broker's log counts the plan's."""
    found = parsed(render({"gold_plan": [plan("a"), plan("b", add=0)], "gold_service_1h": hours("lost", 2)}))
    assert "1 of 2 services is below policy" in text(found)
    assert "3 services, 2 with a plan." in text(found)


def test_a_running_hour_is_measured_to_the_last_record():
    rows = [*hours("a", 2), hours("a", 1)[0] | {"h": NOW}]
    last = NOW + timedelta(minutes=7)
    signs = [{"broker": "b", "first": NOW - timedelta(hours=3), "last": last}]
    found = text(parsed(render({"gold_service_1h": rows, "silver_signs": signs})))
    assert f"to {last:%Y-%m-%d %H:%M} UTC" in found


@pytest.mark.parametrize(
    ("names", "said"), [("a", "1 service has no forecast, since"), ("ab", "2 services have no forecast, since")]
)
def test_one_service_has_and_several_have(names, said):
    rows = [row for name in names for row in hours(name, 2)]
    limits = text(section(parsed(render({"gold_service_1h": rows})), "Limits of the report"))
    assert f"{said} a service without providers and demand is withdrawn: {', '.join(names)}." in limits


def test_a_bound_that_is_not_known_is_a_dash():
    unknown = dict.fromkeys(("peak_bound", "need_now", "need_horizon", "add", "highest", "highest_at"))
    tables = {"gold_plan": [plan("a", state="too little history", **unknown)], "gold_forecast": forecast("a")}
    said = text(section(parsed(render(tables)), "Service a"))
    assert "Peak bound of the horizon\N{EN DASH} (load)" in said
    assert "Needed in the horizon\N{EN DASH}" in said


def test_each_number_of_a_plan_opens_to_its_inputs():
    tables = {"gold_plan": [plan("a", full_load=50.0, highest=400.0)], "gold_forecast": forecast("a")}
    told = text(section(parsed(render(tables)), "Service a"))
    assert "460 (load) 400 x 1.15: the minute" in told
    grown = tables | {"gold_plan": [plan("a", peak_bound=690.0, highest=400.0)]}
    assert "690 (load) 400 x 1.15 x 1.5 (growth or an event):" in text(section(parsed(render(grown)), "Service a"))
    assert "came on Saturday, 2026-05-30, at 18 h UTC" in told
    # 460 / (50 x 70 %) are 14, and two.
    assert "11 the largest of 16 (peak bound at 70% load + 2 spare), 1 (at least 1)" in told
    assert "2 % a day ahead: said 4 %, came 1 of 12 days" in told
    assert "5 % a week ahead: said 4.5 %, came 0 of 3 weeks" in told
    assert "fewer provider-hours a peak was above the bound of the hour in 4 of 336 hours, in 1 of 2 past weeks" in told


def test_a_shortage_of_now_has_one_wording():
    one = trended(need_now=9, exhaust_bound=NOW, exhaust_p50=NOW, exhaust_trend=NOW)
    found = parsed(render({"gold_service_1h": hours("a", 2), "gold_plan": [one]}))
    [row] = [row for row in section(found, "At a glance").iter("tr") if text(row[0]) == "a"]
    assert [text(row[place]) for place in (3, 4, 8)] == ["already now", "already now", "this week"]
    # The need stands beside it that makes it so.
    assert (text(row[5]), text(row[6])) == ("8", "9")
    own = text(section(found, "Service a"))
    for said in ("at the earliestalready now", "as expectedalready now", "at the earliest: already now."):
        assert said in own


def test_the_providers_are_too_few_where_the_bound_is_above_the_load_that_they_carry():
    steps = forecast("a")
    for number, step in enumerate(steps):
        step["hour_bound"] = 400.0 + number
    # Six of eight carry 6 * 0.7 * 100 = 420: from the hour 21 on the bound is above it.
    one = plan("a", full_load=100.0, exhaust_bound=steps[21]["h"])
    page = parsed(render({"gold_service_1h": hours("a", 48), "gold_forecast": steps, "gold_plan": [one]}))
    [chart_, *_] = charts(section(page, "Service a"))
    bound, [(_, limit), _] = ends(chart_, "bound"), ends(chart_, "capacity")[:2]
    first = next(x for x, y in bound if y < limit)
    [crossed] = [one.get("d", "") for one in chart_.iter("path") if one.get("class") == "crossed"]
    assert crossed.startswith(f"M{first} ")


def test_growth_and_events_are_in_the_hours_to_come():
    steps = forecast("a")
    steps[0]["factor"] = 2.0
    [one] = services_of(complete({"gold_forecast": steps, "gold_plan": [plan("a")]}))
    values = [[hour[name] for name in ("p50", "hour_bound")] for hour in one.forecast[:2]]
    assert values == [[620.0, 866.0], [310.0, 433.0]]


def test_the_first_screen_has_the_earliest_and_the_expected_time():
    one = plan("a", exhaust_p50=CROSSED + timedelta(days=2))
    glance = section(parsed(render({"gold_plan": [one]})), "At a glance")
    [row] = [row for row in glance.iter("tr") if text(row[0]) == "a"]
    assert (text(row[3]), text(row[4])) == ("2026-06-04 05:00 UTC", "2026-06-06 05:00 UTC")


@pytest.mark.parametrize(("hours_ahead", "said"), [(24, "a day"), (168, "a week"), (48, "48 hours"), (1, "1 hour")])
def test_the_record_of_the_bound_says_how_far_ahead_it_looked(hours_ahead, said):
    page = parsed(render({"gold_plan": [plan("a", bound_ahead_h=hours_ahead)]}))
    for own in ("At a glance", "Service a"):
        assert f"1 of 12, {said} ahead; 95 %: at most 34 %" in text(section(page, own))


def test_services_that_share_servers_have_the_need_of_their_pool(page):
    plans = [plan("a", shared_providers=3, pool="a"), plan("b", shared_providers=1, pool="a"), plan("c")]
    shared = parsed(render({"gold_plan": plans}))
    assert "2 services share servers with others. Such services are a pool" in text(section(shared, "At a glance"))
    for name, said in (("a", "3 providers of this service offer"), ("b", "1 provider of this service offers")):
        of_service = text(section(shared, f"Service {name}"))
        assert f"{said} other services as well. The chart and the numbers are those of the pool a" in of_service
    for own in (section(shared, "Service c"), section(page, "At a glance")):
        assert "pool" not in text(own)


def test_the_worst_service_stands_first():
    plans = [
        plan("fine", add=0),
        plan("unclaimed", add=None),
        plan("late"),
        plan("now", need_now=20, exhaust_bound=NOW, add=4),
        plan("soon", exhaust_bound=NOW),
    ]
    page = parsed(render({"gold_plan": plans}))
    rows = [text(row[0]) for row in section(page, "At a glance").iter("tr")]
    assert rows[1:] == ["now", "soon", "late", "fine", "unclaimed"]


def test_many_services_have_a_page_each(tmp_path):
    plans = [plan(f"service {number}") for number in range(4)] + [plan(HOSTILE)]
    write(tmp_path, complete({"gold_plan": plans}), paged=4)
    told = links_of(complete({"gold_plan": plans}), paged=4)
    assert "<title>service 2: capacity plan</title>" in (tmp_path / told["service 2"]).read_text()
    assert len({tmp_path / path for path in told.values()} & {*(tmp_path / "services").iterdir()}) == 5
    pages = sorted(path.name for path in (tmp_path / "services").iterdir())
    assert len(pages) == 5
    index = parsed((tmp_path / "report.html").read_text())
    links = {one.get("href") for one in index.iter("a")}
    assert {f"services/{name}" for name in pages} <= links
    for name in pages:
        assert "All services" in text(parsed((tmp_path / "services" / name).read_text()))
    # Fewer services the next time: their pages go.
    write(tmp_path, complete({"gold_plan": plans[:4]}), paged=4)
    assert list((tmp_path / "services").iterdir()) == []
    page = parsed((tmp_path / "report.html").read_text())
    assert "Service service 3" in text(page)
    name, _, ident = links_of(complete({"gold_plan": plans[:4]}), paged=4)["service 3"].partition("#")
    assert name == "report.html"
    assert ["Service service 3" in text(one) for one in page.iter("section") if one.get("id") == ident] == [True]


def test_flaky_providers_are_listed_and_sound_ones_are_not(page):
    own = text(section(page, "Flaky providers"))
    assert "10.0.0.1:1 auth beats 1 of 1 6.4 %".replace(" ", "") in own.replace(" ", "")
    assert "connection" in own
    assert "10.0.0.2:1" not in own


def test_unbalanced_services_name_their_hot_providers(page):
    own = text(section(page, "Unbalanced services"))
    assert "10.0.0.7:1 (1 day)" in own
    assert "free" not in own


def test_the_quality_of_the_data_is_told(page):
    own = text(section(page, "Quality of the data"))
    for said in (
        "3 segments read, with 3,000 records",
        "no JSON",
        "17 to 21",
        "which dropped them",
        "colour",
        "15 min",
        "A clock that was set forward looks the same",
        "A broker's clock was set back",
        "4,711",
        "7 min",
        "Times that such a clock showed twice count once",
    ):
        assert said in own


def test_clocks_that_were_not_set_back_are_told_of():
    assert "No clock of a broker was set back" in text(section(parsed(render({})), "Quality of the data"))


def test_what_is_not_claimed_has_its_reason(page):
    items = [text(one) for one in section(page, "Limits of the report").iter("li")]
    assert any("no full load" in one and "free" in one and "auth" not in one for one in items)
    assert any("flag" in one and "alert" in one for one in items)
    assert any("1 provider promised no heartbeats" in one for one in items)
    assert any("heard for a short time only, or once" in one for one in items)
    own = text(section(page, "Service free"))
    assert "no full load set" in own
    assert "Too few from, at the earliest\u2013" in own


def test_empty_tables_are_explained(tmp_path):
    page = parsed(render({}))
    for heading, said in (
        ("At a glance", "There are no services"),
        ("Flaky providers", "No provider has been judged yet"),
        ("Unbalanced services", "No service has been compared yet"),
        ("Promises and outcomes", "No past forecast can be judged yet"),
        ("Quality of the data", "No segment has been read"),
    ):
        assert said in text(section(page, heading))
    assert "nan" not in text(page).lower().split()


def test_a_service_that_is_only_in_one_table_is_shown_with_what_is_missing():
    page = parsed(
        render(
            {
                "gold_service_1h": hours("measured", 1),
                "gold_plan": [plan("planned", exhaust_bound=None, add=None, bound_trials=None)],
                "gold_provider_day": [provider("1", service="judged")],
            }
        )
    )
    assert "There is no forecast" in text(section(page, "Service measured"))
    assert "There is no plan" in text(section(page, "Service measured"))
    assert "There is no chart" in text(section(page, "Service planned"))
    assert "Bound missed beforenever tried" in text(section(page, "Service planned"))
    assert "Service judged" in text(section(page, "Service judged"))


def test_a_missing_hour_breaks_the_line():
    there = hours("a", 30)
    whole = chart([Line("l", "demand", [(one["h"].timestamp(), 1.0) for one in there])])
    gap = chart([Line("l", "demand", [(n * 3600.0, None if n == 9 else 1.0) for n in range(30)])])
    assert whole is not None
    assert gap is not None
    assert [path.d.count("M") for path in (*whole.lines, *gap.lines)] == [1, 2]
    assert len(re.findall('class="demand" d="M[^"]*M', render({"gold_service_1h": there[:10] + there[12:]}))) == 1


@pytest.mark.parametrize("values", [[0.0, 0.0], [5.0], [1e-9, 2e-9], [1e15, 3e15], [7.0] * 400])
def test_charts_of_any_size_stay_in_their_frame(values):
    points = [(number * 3600.0, value) for number, value in enumerate(values)]
    drawn = chart([Line("l", "demand", points)], [Mark("m", "now", datetime.fromtimestamp(0, UTC))])
    assert drawn is not None
    for path in (*drawn.lines, *(path for path, _ in drawn.marks)):
        for x, y in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", path.d):
            assert 0 <= float(x) <= WIDTH
            assert 0 <= float(y) <= HEIGHT
    ticks = [one.text for one in drawn.values]
    assert 2 <= len(ticks) == len(set(ticks)) <= 7
    assert float(ticks[0]) == 0


def test_a_chart_of_nothing_is_nothing():
    assert chart([Line("l", "demand", [(0.0, None)])]) is None


def test_csv_has_the_rows_and_no_formulas():
    rows = [plan("=HYPERLINK(1)"), plan('a,"b"\nc')]
    found = list(csv.DictReader(io.StringIO(table_csv(rows))))
    assert [row["service"] for row in found] == ["'=HYPERLINK(1)", 'a,"b"\nc']
    assert found[0]["exhaust_bound"] == "2026-06-04T05:00:00Z"
    assert found[0]["exhaust_p50"] == ""
    assert found[0]["bound_miss_most"] == "0.339"
    assert table_csv([plan("a", peak_bound=-1.0)]).count("'") == 0


def test_three_files_are_written_and_the_same_tables_give_the_same_bytes(tmp_path):
    paths = write(tmp_path / "out", complete(full()))
    assert [path.name for path in paths] == ["gold_plan.csv", "gold_provider_day.csv", "report.html"]
    before = [path.read_bytes() for path in paths]
    write(tmp_path / "out", complete(full()))
    assert [path.read_bytes() for path in paths] == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [path.name for path in paths]


def test_the_page_knows_dark_paper_and_small_screens(html):
    for said in ("prefers-color-scheme: dark", "@media print", 'name="viewport"', 'lang="en"', 'charset="utf-8"'):
        assert said in html
