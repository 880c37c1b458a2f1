"""How good the forecasts are on recorded series."""

import gzip

import numpy as np
import pytest

from spark.capacity import backtest as bt


def write(path, values, step=3600, start=1_700_000_000):
    """Write a series as CSV."""
    lines = ["timestamp,value", *(f"{start + i * step},{value}" for i, value in enumerate(values))]
    text = "\n".join(lines).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def daily(days, rng):
    """A noisy daily curve."""
    hours = np.arange(days * 24)
    return 100 + 60 * np.sin(2 * np.pi * hours / 24) + rng.normal(0, 15, len(hours))


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ec2_cpu_utilization_24ae8d", "ec2_cpu_utilization"),
        ("ec2_request_latency_system_failure", "ec2_request_latency_system_failure"),
        ("Twitter_volume_AAPL", "Twitter_volume"),
        ("iio_us-east-1_i-a2eb1cd9_NetworkIn", "iio"),
        ("nyc_taxi", "nyc_taxi"),
        ("exchange-2_cpc_results", "exchange-2_cpc_results"),
        ("speed_7578", "speed"),
        ("7", "7"),
    ],
)
def test_the_group_is_the_name_up_to_what_tells_one_from_another(name, group):
    assert bt.group_of(name) == group


def test_a_folder_is_walked_through_and_what_cannot_be_used_is_named(tmp_path):
    rng = np.random.default_rng(8)
    (tmp_path / "deeper").mkdir()
    for number in range(3):
        write(tmp_path / "deeper" / f"web_{number}.csv.gz", daily(12, rng))
    write(tmp_path / "noise_1.csv", rng.gamma(2, 50, 12 * 24))
    write(tmp_path / "short.csv", range(60))
    write(tmp_path / "days.csv", range(60), step=86_400)
    write(tmp_path / "empty.csv", [])
    write(tmp_path / "mad.csv", [1, 2, 3]).open("a").write("\n99999999999,4\n")
    (tmp_path / "torn.csv.gz").write_bytes(gzip.compress(b"timestamp,value\n1,2\n" * 9_999)[:-20])
    (tmp_path / "binary.csv").write_bytes(bytes(range(256)))
    (tmp_path / "notes.txt").write_text("nothing")
    result = bt.backtest(tmp_path)
    assert [(group.name, group.series, group.forecasts) for group in result.groups] == [("noise", 1, 8), ("web", 3, 24)]
    assert result.total.mase == pytest.approx(np.mean([group.mase for group in result.groups]))
    assert dict(result.left_out).keys() == {
        "short.csv",
        "days.csv",
        "empty.csv",
        "mad.csv",
        "torn.csv.gz",
        "binary.csv",
    }
    assert result.kept
    text = bt.markdown(result)
    assert "| web | 3 | 24 |" in text
    assert text.count("- kept: ") == 3
    assert "- left out: days.csv has a step of 24 hours" in text


def test_a_promise_that_is_not_kept_is_said():
    group = bt.Group("g", 1, 10, 2.0, 1.0, 1.0, 1.0, 0.5, 0.5, 1.0, 0.5)
    result = bt.Result((group,), group, ())
    assert not result.kept
    assert bt.markdown(result).count("- MISSED: ") == 3


def test_a_folder_without_series_is_an_error(tmp_path):
    with pytest.raises(bt.TraceError, match="no series"):
        bt.backtest(tmp_path)


def test_a_series_becomes_hours_whatever_its_order_its_format_and_its_columns(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "\ufeffid,Value,Timestamp\n"
        "x,5,2026-03-02 02:30:00\n"
        "x,1,2026-03-02 00:00:00\n"
        "x,3,2026-03-02T00:30:00+00:00\n"
        "x,nan,2026-03-02 01:00:00\n"
        "torn\n"
        "x,y,z\n"
    )
    np.testing.assert_array_equal(bt.read_trace(path).values, [2.0, np.nan, 5.0])
    assert bt.read_trace(write(tmp_path / "b.csv", range(120), step=60)).values.tolist() == [29.5, 89.5]
    milliseconds = write(tmp_path / "c.csv", [1.0, 2.0], step=3_600_000, start=1_700_000_000_000)
    assert bt.read_trace(milliseconds).values.tolist() == [1.0, 2.0]


def test_a_longer_step_is_kept(tmp_path):
    trace = bt.read_trace(write(tmp_path / "a.csv", np.tile([1.0, 2.0, 3.0, 4.0], 30), step=6 * 3600))
    assert (trace.day, len(trace.values)) == (4, 120)
    assert all(step.mase == 0.0 for step in bt.walk(trace.values, trace.day))


def test_a_forecast_is_judged_by_what_came():
    values = np.tile(np.arange(1.0, 25.0), 10)
    values[-24:] *= 2.0
    good, bad = bt.walk(values)[-2:]
    assert (good.mase, good.missed, good.over_provision, good.covered) == (0.0, False, 1.0, 1.0)
    assert bad.missed
    assert bad.over_provision == 0.5
    assert bad.mase == bad.mase_naive > 0.0


def test_a_long_series_is_forecast_a_week_ahead():
    rng = np.random.default_rng(5)
    assert len(bt.walk(daily(42, rng))) == 2
    assert len(bt.walk(daily(41, rng))) == 41 - 4
    assert len(bt.walk(daily(4, rng))) == 1
    assert bt.walk(daily(3, rng)) == []
