"""Times at which brokers were there, by signs written down by hand. Times are seconds of a day, or more where noted."""

from datetime import UTC, datetime, timedelta

from spark.capacity.rollup.broker_presence import (
    Signs,
    Span,
    Stay,
    broker_down,
    in_windows,
    of_brokers,
    stays,
    up_spans,
)
from spark.capacity.tables.time_windows import SECOND

MIDNIGHT = 86400 * 20_000


def sign(first: float, last: float | None = None, boot: str = "one", broker: str = "b") -> Signs:
    return Signs(broker, boot, at(first), at(first if last is None else last))


def at(second: float) -> int:
    return round((MIDNIGHT + second) * SECOND)


def span(first: float, last: float, returned: bool = False, boot: str = "one", broker: str = "b") -> Span:
    return Span(broker, boot, at(first), at(last), returned)


def test_signs_that_are_near_each_other_make_one_span() -> None:
    assert up_spans([sign(100), sign(10, 40), sign(190)]) == [span(10, 190)]


def test_a_longer_silence_divides_and_the_broker_returned() -> None:
    assert up_spans([sign(10), sign(100.000001)]) == [span(10, 10), span(100.000001, 100.000001, returned=True)]


def test_silence_counts_from_the_last_sign_and_not_from_the_row_before() -> None:
    assert up_spans([sign(10, 300), sign(20, 30), sign(350)]) == [span(10, 350)]


def test_midnight_divides_and_nobody_returned() -> None:
    assert up_spans([sign(-30), sign(30)]) == [span(-30, -30), span(30, 30)]


def test_starts_are_apart_and_a_broker_is_all_of_them() -> None:
    up = up_spans([sign(0, 60), sign(70, 100, boot="two"), sign(500, 600, broker="c")])
    assert up == [span(0, 60), span(70, 100, boot="two"), span(500, 600, broker="c")]
    assert of_brokers(up) == [span(0, 100, boot=""), span(500, 600, boot="", broker="c")]


def test_a_stay_goes_over_midnight_and_ends_with_the_start_or_a_silence() -> None:
    up = up_spans([sign(-100, -30), sign(30, 60), sign(300, 400), sign(65, 90, boot="two")])
    assert stays(up) == {"b": [Stay(at(-100), at(60)), Stay(at(300), at(400)), Stay(at(65), at(90))]}


def test_five_minutes_have_the_time_that_the_broker_was_up_in_them() -> None:
    found = in_windows([span(200, 650), span(800, 800), span(900, 1000), span(1100, 1300, broker="c")])
    times = {(broker, w // SECOND - MIDNIGHT): time / SECOND for (broker, w), time in found.items()}
    assert times == {
        ("b", 0): 100, ("b", 300): 300, ("b", 600): 50, ("b", 900): 100, ("c", 900): 100, ("c", 1200): 100,
    }  # fmt: skip


def test_the_report_is_told_when_a_broker_was_not_there() -> None:
    day = datetime(2024, 10, 4, tzinfo=UTC)
    signs = [
        {"broker": broker, "first": day + timedelta(seconds=first), "last": day + timedelta(seconds=last)}
        for broker, first, last in (("c", 0, 1), ("b", 400, 500), ("b", 0, 100), ("b", 180, 300))
    ]
    start, end = day + timedelta(seconds=300), day + timedelta(seconds=400)
    assert broker_down(signs) == [{"broker": "b", "start": start, "end": end}]
