"""Files of recorded series: whatever is in them, there is a series or one sentence."""

import gzip
import os
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.examples import examples
from tests.spark.benchmark import traces
from tests.spark.benchmark.traces import TraceError, files, group_of, read_trace
from tests.spark.series import write

DAYS = 3
TIMES = [datetime(2026, 3, 2) + timedelta(hours=hour) for hour in range(DAYS * 24)]
VALUES = [float(100 + hour % 24) for hour in range(DAYS * 24)]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("ec2_cpu_utilization_24ae8d", "ec2_cpu_utilization"),
        ("ec2_request_latency_system_failure", "ec2_request_latency_system_failure"),
        ("Twitter_volume_AAPL", "Twitter_volume"),
        ("iio_us-east-1_i-a2eb1cd9_NetworkIn", "iio"),
        ("nyc_taxi", "nyc_taxi"),
        ("exchange-2_cpc_results", "exchange"),
        ("speed_7578", "speed"),
        ("input12", "input"),
        ("web-3", "web"),
        ("7", "7"),
        ("7_days", "7_days"),
        ("", ""),
        ("a|b", "a/b"),
    ],
)
def test_the_group_is_the_name_up_to_what_tells_one_from_another(name, group):
    assert group_of(name) == group


def text(head: str, rows: Iterable[Iterable[object]], by: str = ",") -> str:
    return "\n".join([head, *(by.join(map(str, row)) for row in rows)])


NUMBERS = [int(at.replace(tzinfo=UTC).timestamp()) for at in TIMES]

SAME = {
    "as in the benchmark": text("timestamp,value", list(zip(TIMES, VALUES, strict=True))),
    "other names": text("When;Requests", list(zip(TIMES, VALUES, strict=True)), ";"),
    "known names elsewhere": text("host,Y,ds", [("a", v, t) for t, v in zip(TIMES, VALUES, strict=True)]),
    "tabs": text("ds\ty", list(zip(TIMES, VALUES, strict=True)), "\t"),
    "no names": text("", list(zip(NUMBERS, VALUES, strict=True))),
    "lines are numbered": text(",timestamp,cpu", [(i, *p) for i, p in enumerate(zip(TIMES, VALUES, strict=True))]),
    "lines are numbered, no names": text("", [(i, *p) for i, p in enumerate(zip(NUMBERS, VALUES, strict=True))]),
    "milliseconds": text("ts,cpu", [(t * 1000, v) for t, v in zip(NUMBERS, VALUES, strict=True)]),
    "nanoseconds": text("ts,cpu", [(t * 10**9, v) for t, v in zip(NUMBERS, VALUES, strict=True)]),
    "slashes": text("date,value", [(f"{t:%Y/%m/%d %H:%M}", v) for t, v in zip(TIMES, VALUES, strict=True)]),
    "a zone": text("time,load", [(f"{t.isoformat()}+02:00", v) for t, v in zip(TIMES, VALUES, strict=True)]),
    "backwards": text("timestamp,value", list(zip(TIMES, VALUES, strict=True))[::-1]),
    "each twice": text("timestamp,value", [p for p in zip(TIMES, VALUES, strict=True) for _ in range(2)]),
    "quoted": text('"timestamp","value"', [(f'"{t}"', f'"{v}"') for t, v in zip(TIMES, VALUES, strict=True)]),
    "a comment": text("# mine\ntimestamp,value", list(zip(TIMES, VALUES, strict=True))),
    "blank lines": text("\n\ntimestamp,value\n", list(zip(TIMES, VALUES, strict=True))),
    "minutes": text(
        "timestamp,value",
        [(t + timedelta(minutes=m), v + m - 29.5) for t, v in zip(TIMES, VALUES, strict=True) for m in range(60)],
    ),
}


@pytest.mark.parametrize("kind", SAME)
def test_the_same_series_may_be_written_in_many_ways(tmp_path, kind):
    (tmp_path / "a.csv").write_text(SAME[kind])
    np.testing.assert_allclose(read_trace(tmp_path / "a.csv").values, VALUES)


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
@pytest.mark.parametrize("line", ["\n", "\r\n", "\r"])
@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "compressed.csv"])
def test_bytes_may_be_of_any_kind(tmp_path, encoding, line, name):
    data = SAME["as in the benchmark"].replace("\n", line).encode(encoding)
    # The name does not tell whether it is compressed.
    (tmp_path / name).write_bytes(gzip.compress(data) if name == "compressed.csv" else data)
    np.testing.assert_allclose(read_trace(tmp_path / name).values, VALUES)


def test_hours_are_means_and_what_is_not_known_stays_unknown(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text(
        "\ufeffid,Value,Timestamp\n"
        "x,5,2026-03-02 02:30:00\n"
        "x,1,2026-03-02 00:00:00\n"
        "x,3,2026-03-02T00:30:00+00:00\n"
        "x,nan,2026-03-02 01:00:00\n"
        "x,,2026-03-02 01:10:00\n"
        "x,inf,2026-03-02 01:20:00\n"
        "x,1e300,2026-03-02 01:30:00\n"
        "torn\n"
        "x,y,z\n"
    )
    trace = read_trace(path)
    np.testing.assert_array_equal(trace.values, [2.0, np.nan, 5.0])
    np.testing.assert_array_equal(trace.peaks, [3.0, np.nan, 5.0])
    np.testing.assert_array_equal(trace.half_hours, [3.0, np.nan, 5.0])
    assert trace.passed_over == 2


def test_of_five_minutes_there_are_peaks_and_half_hours(tmp_path):
    minutes = np.array([1.0] * 6 + [2.0] * 5 + [14.0] + [3.0] * 12)
    trace = read_trace(write(tmp_path / "a.csv", minutes, step=300))
    np.testing.assert_array_equal(trace.peaks, [14.0, 3.0])
    np.testing.assert_array_equal(trace.half_hours, [4.0, 3.0])
    np.testing.assert_array_equal(trace.values, [2.5, 3.0])


def test_a_longer_step_is_kept(tmp_path):
    trace = read_trace(write(tmp_path / "a.csv", [1.0, 2.0, 3.0, 4.0] * 30, step=6 * 3600))
    assert (trace.day, len(trace.values)) == (4, 120)


def broken(folder: Path) -> dict[str, str]:
    """Write files that are no series. Returns what must be said of each."""
    none = "has no two lines with a time"
    good = SAME["as in the benchmark"]
    (folder / "empty.csv").write_bytes(b"")
    (folder / "empty.csv.gz").write_bytes(b"")
    (folder / "names only.csv").write_text("timestamp,value\n")
    (folder / "one.csv").write_text("timestamp,value\n2026-03-02,1\n")
    (folder / "words.csv").write_text(text("timestamp,value", [(at, "high") for at in TIMES]))
    (folder / "day first.csv").write_text(
        text("t,v", [(f"{t:%d.%m.%Y %H:%M}", v) for t, v in zip(TIMES, VALUES, strict=True)])
    )
    (folder / "decimal comma.csv").write_text(good.replace(",", ";").replace(".0", ",0"))
    (folder / "random.csv").write_bytes(os.urandom(10_000))
    (folder / "nothing.csv").write_bytes(bytes(500_000))
    (folder / "bomb.csv.gz").write_bytes(gzip.compress(bytes(20_000_000)))
    (folder / "torn.csv.gz").write_bytes(gzip.compress(good.encode())[:-20])
    (folder / "damaged.csv.gz").write_bytes(gzip.compress(good.encode())[:40] + os.urandom(400))
    (folder / "quote.csv").write_text('timestamp,value\n"' + "x" * 500_000)
    (folder / "huge.csv").write_text(good.replace(".0", "e300"))
    (folder / "far.csv").write_text(good + "\n9999-01-01,1\n")
    write(folder / "days.csv", range(60), step=86_400)
    (folder / "link.csv").symlink_to(folder / "nowhere")
    os.mkfifo(folder / "pipe.csv")
    return {
        "empty.csv": none,
        "empty.csv.gz": none,
        "names only.csv": none,
        "one.csv": none,
        "words.csv": none,
        "day first.csv": none,
        "decimal comma.csv": none,
        "random.csv": none,
        "nothing.csv": none,
        "bomb.csv.gz": none,
        "torn.csv.gz": "cannot be read",
        "damaged.csv.gz": "cannot be read",
        "quote.csv": "cannot be read: field larger",
        "huge.csv": "has no value that is a number",
        "far.csv": "steps, more than",
        "days.csv": "has a step of 24 hours, more than 6",
        "link.csv": "is no file that can be read",
        "pipe.csv": "is no file that can be read",
    }


@pytest.mark.long
def test_what_is_no_series_is_told_in_one_sentence(tmp_path):
    told = {}
    for name, why in broken(tmp_path).items():
        with pytest.raises(TraceError, match=why) as caught:
            read_trace(tmp_path / name)
        told[name] = str(caught.value)
    assert {path.name for path in files(tmp_path)} == set(told)
    assert not [sentence for sentence in told.values() if "\n" in sentence]


def test_a_file_of_too_many_lines_is_left_out(tmp_path, monkeypatch):
    monkeypatch.setattr(traces, "MOST_LINES", 50)
    with pytest.raises(TraceError, match="more than 50 lines"):
        read_trace(write(tmp_path / "a.csv", VALUES))


def test_series_are_looked_for_in_all_folders_and_by_their_names_only(tmp_path):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "folder.csv").mkdir()
    for name in ("b/c/1.csv", "b/2.CSV.GZ", "3.csv", "notes.txt", "4.csv.bak"):
        (tmp_path / name).write_text("")
    assert [str(path.relative_to(tmp_path)) for path in files(tmp_path)] == ["3.csv", "b/2.CSV.GZ", "b/c/1.csv"]
    assert files(tmp_path / "notes.txt") == [tmp_path / "notes.txt"]


CELLS = st.one_of(
    st.floats().map(str),
    st.integers().map(str),
    st.datetimes().map(str),
    st.text(max_size=8),
    st.sampled_from(["timestamp", "value", "", "1e400", "-1e18", "2026-03-02 00:00", '"']),
)


@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.lists(CELLS, max_size=4), max_size=12), st.sampled_from(",;\t"))
def test_any_text_is_a_series_or_a_sentence(tmp_path, rows, by):
    (tmp_path / "a.csv").write_bytes("\n".join(by.join(row) for row in rows).encode("utf-8", "replace"))
    try:
        trace = read_trace(tmp_path / "a.csv")
    except TraceError as error:
        assert str(error)
    else:
        assert 1 <= len(trace.values) <= traces.LONGEST_SERIES
        assert not np.isinf(trace.values).any()
