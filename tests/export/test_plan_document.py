"""The document of the capacity plan: verdicts, times, and texts that are no plan."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.plan import DAY, BadPlan, ScheduleRecord, Verdict, changes
from broker.export.plan_document import MAX_TEXT, parse
from tests.core.plans import MADE, document, service

TOMORROW = "2026-03-06T22:00:00Z"
UNKNOWN: dict[str, Any] = {"need_now": None, "need_horizon": None, "add": None, "full_load": None}


@pytest.mark.parametrize(
    ("members", "verdict", "days"),
    [
        ({}, Verdict.ENOUGH, None),
        ({"state": "overloaded", "need_now": 5, "add": 1, "short_from": TOMORROW}, Verdict.OVERLOADED, 0.0),
        ({"state": "no N+1"}, Verdict.NO_SPARE, 0.0),
        ({"state": "below policy", "need_horizon": 6, "add": 2, "short_from": TOMORROW}, Verdict.BELOW, 1.0),
        ({"state": "below policy", "need_horizon": 6, "add": 2}, Verdict.BELOW, 0.0),
        ({"state": "can free", "free": 2}, Verdict.FREE, None),
        ({"state": "can free", "free": 2, "short_by_trend": "2026-04-02T22:00:00Z"}, Verdict.LATER, 28.0),
        ({"state": "too little history", "need_horizon": 6, "add": 2}, Verdict.TOO_LITTLE, None),
        ({"short_by_trend": "2026-04-02T22:00:00Z"}, Verdict.LATER, 28.0),
        ({"short_by_trend": TOMORROW, "need_now": 5, "add": 1}, Verdict.BELOW, 0.0),
        (UNKNOWN, Verdict.UNKNOWN, None),
    ],
)
def test_a_verdict_has_a_time(members: dict[str, Any], verdict: Verdict, days: float | None) -> None:
    plan = parse(document(service("bank", **members)))
    bank = plan.services["bank"]
    assert (plan.made, bank.verdict, bank.days_until_short(MADE)) == (MADE, verdict, days)


@pytest.mark.parametrize(
    ("members", "verdict", "days"),
    [
        ({}, Verdict.ENOUGH, None),
        ({"need_now": 5, "add": 1}, Verdict.BELOW, 0.0),
        ({"need_horizon": 6, "add": 2, "short_from": TOMORROW}, Verdict.BELOW, 1.0),
        (UNKNOWN, Verdict.UNKNOWN, None),
    ],
)
def test_a_plan_without_states_is_read(members: dict[str, Any], verdict: Verdict, days: float | None) -> None:
    """It is of an older version of the jobs."""
    made = json.loads(document(service("bank", **members)))
    for name in ("state", "free", "policy"):
        del made["services"][0][name]
    bank = parse(json.dumps(made).encode()).services["bank"]
    assert (bank.verdict, bank.days_until_short(MADE)) == (verdict, days)


def test_a_state_of_a_later_version_is_unknown() -> None:
    text = document(service("bank", add=2)).replace(b'"below policy"', b'"of a later version"')
    assert parse(text).services["bank"].verdict is Verdict.UNKNOWN


def test_days_run_down_with_the_clock_to_nothing() -> None:
    bank = parse(document(service("bank", add=2, short_from=TOMORROW))).services["bank"]
    assert [bank.days_until_short(MADE + days * DAY) for days in (0.25, 1, 9)] == [0.75, 0, 0]


def test_the_worst_service_is_first() -> None:
    plan = parse(
        document(
            service("free", **UNKNOWN),
            service("fine"),
            service("trend", short_by_trend="2026-04-02T22:00:00Z"),
            service("later", add=1, short_from="2026-03-07T22:00:00Z"),
            service("soon", add=1, short_from=TOMORROW),
            service("more", add=3, state="no N+1"),
            service("now", add=1, state="no N+1"),
            service("hot", add=1, state="overloaded"),
        )
    )
    assert list(plan.services) == ["hot", "more", "now", "soon", "later", "trend", "fine", "free"]


def test_numbers_and_odds_are_those_of_the_file() -> None:
    bank = parse(document(service("bank", note="flagged"))).services["bank"]
    assert (bank.has, bank.need_now, bank.need, bank.add) == (4, 3, 4, 0)
    assert (bank.missed, bank.trials, bank.miss_at_most, bank.note) == (0, 16, 0.17, "flagged")


def test_the_schedule_is_by_the_hour_of_the_week() -> None:
    schedule = [None, *range(167)]
    bank = parse(document(service("bank", schedule=schedule))).services["bank"]
    assert bank.record == ScheduleRecord(336, 1, 2, 1, 0.3)
    monday = 1_772_409_600.0
    # Of this hour and the next one the larger number; the first is unknown, so that the horizon's counts.
    assert [bank.wanted(monday + hour * 3_600.0) for hour in (0, 1, 2, 166, 167)] == [4, 1, 2, 166, 4]


@pytest.mark.parametrize("schedule", [[1], [1] * 169, [-1] * 168, [10**9] * 168, ["x"] * 168])
def test_a_schedule_without_a_number_for_each_hour_is_no_plan(schedule: list[Any]) -> None:
    text = document(service("bank")).replace(json.dumps([None] * 168).encode(), json.dumps(schedule).encode())
    with pytest.raises(BadPlan):
        parse(text)


def test_changes_are_those_of_verdicts_and_of_new_services_that_are_short() -> None:
    before = parse(document(service("bank"), service("shop", add=1, need_now=5), service("chat"), service("old")))
    now = parse(
        document(
            service("bank", add=1, need_now=5),
            service("shop", add=2, need_now=6),
            service("chat", need_now=2),
            service("fine"),
            service("new", add=1, short_from=TOMORROW),
        )
    )
    assert [(change.service.name, change.before) for change in changes(before, now)] == [
        ("bank", Verdict.ENOUGH),
        ("new", None),
    ]
    assert [change.service.name for change in changes(None, before)] == ["shop"]
    assert [(c.service.verdict, c.before) for c in changes(now, before) if c.service.name == "bank"] == [
        (Verdict.ENOUGH, Verdict.BELOW)
    ]


@pytest.mark.parametrize(
    ("before", "now", "alarm"),
    [
        ({}, {"state": "overloaded"}, True),
        ({}, {"state": "no N+1"}, True),
        ({"state": "no N+1"}, {"state": "overloaded"}, True),
        ({"state": "overloaded"}, {"state": "no N+1"}, False),
        ({"state": "overloaded"}, {}, False),
        # A state that the policy wants is no alarm.
        ({}, {"state": "below policy", "add": 1}, False),
        ({}, {"short_by_trend": TOMORROW}, False),
    ],
)
def test_a_change_for_the_worse_is_an_alarm(before: dict[str, Any], now: dict[str, Any], alarm: bool) -> None:
    plans = [parse(document(service("bank", **members))) for members in (before, now)]
    [change] = changes(*plans)
    assert change.is_alarm is alarm


def test_the_layout_of_the_text_does_not_matter() -> None:
    services = [service("bank"), service("shop"), service("a\nb")]
    plain = document(*services)
    head = document().removesuffix(b"]}") + b"\n"
    lines = head + b",\n".join(json.dumps(each).encode() for each in services) + b"\n]}\n"
    indented = json.dumps(json.loads(plain), indent=1).encode()
    assert json.loads(lines) == json.loads(plain)
    assert parse(lines) == parse(plain) == parse(indented)
    assert parse(head + b"\n]}\n") == parse(document())
    with pytest.raises(BadPlan):
        parse(lines.replace(b"},\n", b"}\n", 1))
    with pytest.raises(BadPlan):
        parse(lines.replace(b"\n]}", b",\n]}"))


GOOD = json.loads(document(service("bank")))


def changed(**members: Any) -> dict[str, Any]:
    return {**GOOD, **members}


def with_service(**members: Any) -> dict[str, Any]:
    return changed(services=[{**GOOD["services"][0], **members}])


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (changed(version=2), "has version 2"),
        ({"services": []}, "no plan"),
        ([], "no plan"),
        (changed(issued=None), "empty"),
        (changed(issued="yesterday"), "no plan"),
        (changed(issued="2026-03-05T22:00:00"), "time zone"),
        (changed(services={}), "no plan"),
        (with_service(providers_now=None), "no plan"),
        (with_service(providers_now=-1), "negative"),
        (with_service(add=1.5), "no plan"),
        (with_service(short_from=5), "no plan"),
        (with_service(service="x" * (MAX_TEXT + 1)), "characters"),
        (with_service(bound={"missed": "many"}), "no plan"),
    ],
)
def test_a_document_that_is_no_plan_is_refused(made: object, why: str) -> None:
    with pytest.raises(BadPlan, match=why):
        parse(json.dumps(made).encode())


TEXT = document(service("bank"))


@given(st.binary() | st.integers(0, len(TEXT) - 1).map(lambda cut: TEXT[:cut]))
def test_other_bytes_are_refused(text: bytes) -> None:
    with pytest.raises(BadPlan):
        parse(text)


def test_members_of_later_versions_are_ignored() -> None:
    text = json.dumps({**with_service(colour="red"), "more": 1}).encode()
    assert list(parse(text).services) == ["bank"]


@pytest.mark.parametrize("path", ["report.html#s0", "services/s12.html"])
def test_the_section_or_page_of_the_report_is_known(path: str) -> None:
    assert parse(document(service("bank", report=path))).services["bank"].report == path
    assert parse(document(service("bank"))).services["bank"].report == ""


@pytest.mark.parametrize(
    "path",
    ["", "//elsewhere/x.html", "../x.html", "services/../report.html", "report.html#", "javascript:x", "x" * 300],
)
def test_another_path_for_the_report_is_ignored(path: str) -> None:
    made = json.loads(document(service("bank")))
    made["services"][0]["report"] = path
    assert parse(json.dumps(made).encode()).services["bank"].report == ""
