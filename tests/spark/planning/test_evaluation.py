"""Evaluation of past forecasts."""

import pytest

from spark.capacity.planning.forecast import evaluate
from spark.capacity.tables.columns import arrow_schema
from spark.capacity.tables.schema import EVALUATION, GOLD_FORECAST
from tests.spark.hours import hour, row, table


def told(service: str, issued: int, p50: list[float]):
    """A forecast: the bound is 20 above p50."""
    rows = []
    for i, value in enumerate(p50):
        known = {
            "service": service,
            "issued": hour(issued),
            "h": hour(issued + i),
            "p50": value,
            "peak_bound": value + 20.0,
            "bound_miss_most": 0.1,
        }
        rows.append(tuple(known.get(name) for name in GOLD_FORECAST.schema.names))
    return rows


@pytest.fixture(scope="module")
def became(spark):
    """Return the evaluation of some forecasts four hours later."""
    forecasts = [
        *told("good", 0, [100.0] * 4),
        *told("good", 2, [100.0] * 48),
        *told("bad", 0, [100.0] * 4),
        *told("minute", 0, [100.0] * 4),
        *told("zero", 0, [0.0] * 4),
        *told("new", 4, [1.0] * 4),
        *told("unseen", 0, [1.0] * 4),
    ]
    load = [
        *(row("good", i, d) for i, d in enumerate([100.0, 110.0, 90.0, 115.0, 5_000.0])),
        *(row("bad", i, d, demand_peak=125.0) for i, d in enumerate([100.0, 111.0, None])),
        *(row("minute", i, 100.0, demand_max=115.0, demand_peak=115.0 + 3 * i) for i in range(3)),
        *(row("zero", i, 0.0) for i in range(4)),
    ]
    job = evaluate(spark.createDataFrame(forecasts, GOLD_FORECAST.schema), table(spark, load), hour(4))
    assert job.schema.names == EVALUATION.schema.names
    rows = job.toArrow().cast(arrow_schema(EVALUATION.schema)).to_pylist()
    assert {row_["issued"] for row_ in rows} == {hour(0), hour(2)}
    issued = sorted({row_["issued"] for row_ in rows})
    return {(row_["service"], issued.index(row_["issued"])): row_ for row_ in rows}


def test_only_hours_that_are_over_and_known_are_compared(became):
    assert {key: row_["horizon_h"] for key, row_ in became.items()} == {
        ("good", 0): 4,
        ("good", 1): 2,
        ("bad", 0): 2,
        ("minute", 0): 3,
        ("zero", 0): 4,
    }


def test_the_error_is_of_all_hours_together(became):
    assert became["good", 0]["mape"] == pytest.approx((0 + 10 + 10 + 15) / 415)
    assert became["good", 1]["mape"] == pytest.approx((10 + 15) / 205)
    assert became["zero", 0]["mape"] is None


def test_whether_the_peak_was_missed(became):
    assert not became["good", 0]["peak_missed"]
    assert became["bad", 0]["peak_missed"]
    assert became["minute", 0]["peak_missed"]


def test_what_was_promised_stands_beside_it(became):
    assert became["good", 0]["promised_miss_most"] == 0.1
