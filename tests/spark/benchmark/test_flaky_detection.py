"""Planted faults beside the detected ones: days calculated by hand."""

from datetime import UTC, datetime

import pytest

from tests.spark.benchmark.flaky_detection import (
    FLAPPING,
    GOOD,
    Judged,
    Score,
    days_of,
    goals,
    judge,
    markdown,
    score,
)
from tests.spark.generator import ProviderTruth, ServiceTruth, Truth
from tests.spark.generator.broker_lives import DAY, HOUR, SECOND

START = int(datetime(2026, 3, 2, tzinfo=UTC).timestamp()) * SECOND


def provider(instance: str, ratio: float = 0.003, *, flaky: bool = False, episodes=()) -> ProviderTruth:
    return ProviderTruth("mail", instance, "beats", 100, 1, ratio, flaky, bool(episodes), (), tuple(episodes))


def farm() -> Truth:
    night = START + DAY
    providers = (
        provider("flaky", 0.02, flaky=True),
        provider("good"),
        provider("accused"),
        # An hour and a half before midnight, and a quarter after it.
        provider("flaps", episodes=[(night - 3 * HOUR // 2, night + HOUR // 4)]),
    )
    service = ServiceTruth("mail", ("flaky", "good", "accused", "flaps"), None, START, (), (), (), (), None, None, ())
    return Truth(1, START, START + 2 * DAY, "b", (), (service,), providers, 0, (), (), 0, (), 0, (), (), ())


def test_a_day_is_judged_by_what_was_planted_on_it():
    first, second = days_of(farm())
    found = {(first, "mail", "flaky"): True, (second, "mail", "accused"): True, (first, "mail", "good"): False}
    judged = judge(farm(), {"mail": 30.0}, found)
    assert [(day.kind, day.found) for day in judged] == [
        ("2%", True),
        # Of the second day there is no row: what is not found is not found.
        ("2%", False),
        (GOOD, False),
        (GOOD, False),
        (GOOD, False),
        (GOOD, True),
        # A quarter of an hour of coming and going is neither.
        (FLAPPING, False),
    ]
    assert {(day.beats, day.size) for day in judged} == {(2880, 4)}
    assert judge(farm(), {"mail": None}, found)[0].beats == 0


def days(kind: str, found: int, of: int, *, ratio: float = 0.0, beats: int = 2880, size: int = 10) -> list[Judged]:
    return [Judged(kind, ratio, beats, size, number < found) for number in range(of)]


def test_recall_and_precision_are_counted():
    one = score([*days("2%", 3, 4, ratio=0.02), *days(GOOD, 1, 10)])
    assert one == Score(planted=4, found=3, false=1)
    assert (one.recall, one.precision) == (0.75, 0.75)
    assert (score([]).recall, score([]).precision) == (None, None)


@pytest.mark.parametrize(
    ("least", "most", "false", "kept"),
    [
        (95, 100, 10, [True, True, True]),
        (94, 100, 0, [True, False, True]),
        (90, 98, 0, [False, False, True]),
        (100, 100, 11, [True, True, False]),
        (0, 0, 0, [False, False, False]),
    ],
)
def test_what_is_promised_is_promised_of_the_hardest_as_well(least, most, false, kept):
    every = [
        *days("2%", least, 100, ratio=0.02),
        *days("10%", most, 100, ratio=0.1),
        *days(GOOD, false, 1000),
    ]
    assert [one for _, one in goals(every)] == kept


def test_without_any_that_miss_beats_nothing_is_promised_of_them():
    assert [text.split(":")[0] for text, _ in goals(days(FLAPPING, 2, 2))] == [
        "planted flaky days found",
        "days found that were planted",
    ]


def test_the_table_has_the_false_alarms_of_as_many_beats_against_each_row():
    every = [
        *days("10%", 4, 4, ratio=0.1, beats=8640, size=3),
        *days("2%", 3, 4, ratio=0.02),
        *days("2%", 2, 2, ratio=0.02, beats=8640, size=3),
        *days(FLAPPING, 1, 1, beats=0),
        *days(GOOD, 1, 100),
        *days(GOOD, 0, 50, beats=8640, size=3),
        *days(GOOD, 0, 5, beats=0),
    ]
    assert markdown(every).splitlines()[2:] == [
        "| misses 2% | 8,640 | 2 | 2 | 2 | 100.0% | 0 | 100.0% |",
        "| misses 2% | 2,880 | 4 | 4 | 3 | 75.0% | 1 | 75.0% |",
        "| misses 10% | 8,640 | 4 | 4 | 4 | 100.0% | 0 | 100.0% |",
        "| comes and goes | none | 1 | 1 | 1 | 100.0% | 0 | 100.0% |",
        "| good | 8,640 | 50 | 0 | 0 |  | 0 |  |",
        "| good | 2,880 | 100 | 0 | 0 |  | 1 | 0.0% |",
        "| good | none | 5 | 0 | 0 |  | 0 |  |",
        "| services of 3 |  | 56 | 6 | 6 | 100.0% | 0 | 100.0% |",
        "| services of 10 |  | 110 | 5 | 4 | 80.0% | 1 | 80.0% |",
        "| all |  | 166 | 11 | 10 | 90.9% | 1 | 90.9% |",
    ]
