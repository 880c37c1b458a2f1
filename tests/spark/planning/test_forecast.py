"""The forecast of each service, from its hours."""

from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pandas as pd  # type: ignore[import-untyped, unused-ignore]
import pytest

from spark.capacity.planning import models
from spark.capacity.planning.forecast import HORIZON, forecast, full_hour
from spark.capacity.planning.peak_bound import headroom_of
from spark.capacity.planning.policy import Assumptions, Event, Exclusion
from spark.capacity.tables.schema import GOLD_FORECAST
from tests.spark.hours import hour, row, table

DAYS = 10


ASSUMED = Assumptions(
    growth=1.5,
    events=(Event(hour(DAYS * 24 + 1), hour(DAYS * 24 + 3), "steady", factor=2.0),),
    exclusions=(Exclusion(hour(DAYS * 24 - 12), hour(DAYS * 24 - 10), "incident"),),
)


def demand(number: int) -> float:
    return 100.0 + 10.0 * (number % 24)


@pytest.fixture(scope="module")
def told(spark):
    """Return the forecasts of some services, from one run of the job."""
    hours = DAYS * 24
    rows = [
        *(row("steady", i, demand(i), demand_max=demand(i) + 5.0, demand_peak=demand(i) + 15.0) for i in range(hours)),
        # Values after now are not known yet.
        row("steady", hours, 9_999.0),
        row("young", hours - 1, 7.0),
        *(row("incident", i, demand(i) if i not in (hours - 12, hours - 11) else 900.0) for i in range(hours)),
        *(row("gone", i, 5.0) for i in range(hours - 50)),
        *(row("holes", i, demand(i) if i % 10 else None) for i in range(hours) if i % 7),
        row("o'; <b>", hours - 2, 0.0, providers_mean=1.0),
        row("nothing", hours - 2, None, providers_mean=1.0),
        row("unseen", hours - HORIZON - 1, 5.0, providers_mean=1.0),
        row("unseen", hours - 2, None, providers_mean=0.0),
        row("idle", hours - HORIZON, None, providers_mean=1.0),
        row("ancient", -24 * models.HISTORY_DAYS, 5.0),
        *(row("long", i, demand(i)) for i in range(-12 * 24, hours)),
    ]
    job = forecast(table(spark, rows), hour(hours) + timedelta(minutes=59), 48, ASSUMED)
    assert job.schema == GOLD_FORECAST.schema
    return pd.DataFrame(job.toPandas()).sort_values(["service", "h"]).set_index("service")


def test_each_service_has_a_row_for_each_hour_to_come(told):
    assert set(told.index) == {"steady", "young", "incident", "gone", "holes", "o'; <b>", "nothing", "idle", "long"}
    start = pd.Timestamp(hour(DAYS * 24)).tz_localize(None)
    for _, rows in told.groupby(level=0):
        assert list(rows["h"]) == list(pd.date_range(start, periods=48, freq="h"))
        assert set(rows["issued"]) == {start}


def test_what_repeats_is_forecast_at_the_right_hour(told):
    steady = told.loc["steady"]
    np.testing.assert_allclose(steady["p50"], [demand(i) for i in range(48)])
    headroom = headroom_of(DAYS * 24)
    assert set(steady["headroom"]) == {headroom}
    assert steady["peak_bound"].to_numpy() == pytest.approx(headroom * 345.0)
    assert steady["hour_bound"].iloc[0] == pytest.approx(headroom * (demand(23) + 15.0))
    # The first of the hours of the last week with that peak.
    first = hour(next(i for i in range((DAYS - 7) * 24, DAYS * 24) if i % 24 == 23))
    origin = {(345.0, pd.Timestamp(first).tz_localize(None))}
    assert set(zip(steady["highest"], steady["highest_at"], strict=True)) == origin
    assert set(steady["model"]) == {"profile-day"}
    assert set(steady["seasons"]) == {10.0}
    record = steady[["bound_trials", "bound_missed", "bound_ahead_h"]]
    assert record.drop_duplicates().to_numpy().tolist() == [[1, 0, 48]]
    assert steady["bound_miss_most"].iloc[0] == pytest.approx(0.95)
    assert set(steady["flag"]) == {""}


def test_growth_and_events_stand_beside_the_forecast_and_do_not_change_it(told):
    assert told.loc["steady", "factor"].tolist() == [1.5, 3.0, 3.0, *[1.5] * 45]
    assert set(told.loc["young", "factor"]) == {1.5}


def test_odds_and_the_schedule_have_a_record(told):
    long = told.loc["long"].iloc[0]
    assert (long["odds_trials"], long["odds_missed"]) == (8, 0)
    assert 0.0 < long["odds_day"] < long["odds_week"] < 0.1
    assert (long["odds_week_trials"], long["weeks_tried"], long["weeks_missed"]) == (1, 2, 0)
    # Ten days are one week and no week after it, and too few for odds.
    steady = told.loc["steady"].iloc[0]
    assert (steady["odds_trials"], steady["odds_week_trials"], steady["weeks_tried"]) == (0, 0, 0)
    assert told.loc[["steady", "young"], ["odds_day", "odds_week"]].isna().all(axis=None)


def test_a_short_history_is_flagged_and_claims_no_accuracy(told):
    for service, last in (("young", 7.0), ("o'; <b>", 0.0)):
        young = told.loc[service]
        assert set(young["p50"]) == {last}
        assert set(young["flag"]) == {models.FLAG_TINY}
        assert young["over_provision"].isna().all()
        assert set(zip(young["bound_trials"], young["bound_miss_most"], strict=True)) == {(0, 1.0)}


def test_a_service_that_fell_silent_says_so(told):
    assert told.loc["gone", "flag"].iloc[0] == (
        f"{models.FLAG_CONSTANT}; {models.FLAG_GAPS}; nothing known of the last 50 hours"
    )


def test_hours_that_are_missing_or_unknown_are_no_zeros(told):
    holes = told.loc["holes"]
    assert holes["p50"].min() >= 100.0
    assert models.FLAG_GAPS in holes["flag"].iloc[0]


def test_a_service_of_which_no_demand_is_known_is_flagged(told):
    nothing = told.loc["nothing"]
    assert models.FLAG_EMPTY in nothing["flag"].iloc[0]
    assert nothing[["p50", "hour_bound", "peak_bound", "highest", "highest_at"]].isna().all(axis=None)


def test_a_service_is_withdrawn_that_was_not_there_for_the_horizon_or_a_week(spark):
    hours = table(spark, [row("s", -HORIZON - 1, 5.0)])
    assert [forecast(hours, hour(0), horizon, ASSUMED).count() for horizon in (24, HORIZON, HORIZON + 1)] == [
        0, 0, HORIZON + 1,
    ]  # fmt: skip


def test_an_incident_that_is_excluded_is_in_no_forecast_or_bound(told):
    incident = told.loc["incident"]
    assert incident["p50"].max() == demand(23)
    assert incident["peak_bound"].to_numpy() == pytest.approx(headroom_of(DAYS * 24) * demand(23))


def test_an_empty_table_gives_an_empty_forecast(spark):
    assert forecast(table(spark, []), hour(0), 24, ASSUMED).count() == 0


def test_a_moment_has_its_full_hour_in_utc():
    noon = datetime(2026, 3, 2, 12, tzinfo=UTC)
    assert full_hour(datetime(2026, 3, 2, 12, 34, 56, 7)) == noon
    assert full_hour(datetime(2026, 3, 2, 14, 59, tzinfo=timezone(timedelta(hours=2)))) == noon
