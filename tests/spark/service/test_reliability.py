"""Reliability: days worked out by hand, and planted flaky providers that must be found."""

from datetime import timedelta
from math import log

import numpy as np
import pytest

from spark.capacity.service.reliability import HELD_UP, MEASURES, provider_days, reliability
from spark.capacity.tables.schema import GOLD_PROVIDER_DAY
from tests.spark.farm import as_rows, clock, each, silver

WINDOWS = 288


def day_of(service, number, missed=(), every=10, down=(), windows=WINDOWS, **members):
    """A day of a provider: the windows in which it misses a beat each, and those in which it is down for a minute."""
    rows = []
    for index in range(windows):
        bad = index in down
        up = 240.0 if bad else 300.0
        rows.append(
            {
                "service": service,
                "instance": f"{service}:{number}",
                "w": clock("00:00") + timedelta(minutes=5 * index),
                "hb": max(0, every - list(missed).count(index) - 5 * bad) if every else 0,
                "hb_expected": every * up / 300 if every else None,
                "connected_s": up,
                "up_s": up,
                "down_s": 300.0 - up,
                "outages": int(bad),
                "gap_max": 30.0 if every else None,
                **members,
            }
        )
    return rows


def planted():
    """Twenty services of seven providers: in half of them two miss from 2 % up, all others up to 0.5 % by chance."""
    chance = np.random.default_rng(5)
    rows, flaky = [], set()
    for service in range(20):
        for number in range(7):
            is_flaky = number < 2 and service % 2 == 0
            ratio = 0.02 + 0.01 * chance.integers(0, 3) if is_flaky else 0.005 * chance.random()
            # An hour in each row is as good as five minutes for a sum of beats.
            missed = chance.integers(0, 24, chance.binomial(2880, ratio))
            rows += day_of(f"planted {service}", number, missed, every=120, windows=24)
            if is_flaky:
                flaky.add(f"planted {service}:{number}")
    return rows, flaky


PLANTED, FLAKY = planted()

FARMS = [
    (beats, size, flaky) for beats in (8640, 2880, 1440) for size, flaky in ((3, 1), (3, 2), (5, 2), (10, 3), (40, 10))
]
"""Beats a day, providers of a service, and how many of them are flaky."""


def farms():
    """Services of all sizes: flaky ones miss 2 % or more, all others up to 0.5 %."""
    chance = np.random.default_rng(11)
    rows, flaky = [], set()
    for beats, size, planted in FARMS:
        name = f"farm {beats} {size} {planted}"
        for number in range(size):
            ratio = (0.02, 0.03, 0.02, 0.05)[number % 4] if number < planted else 0.005 * chance.random()
            missed = chance.integers(0, 24, chance.binomial(beats, ratio))
            rows += day_of(name, number, missed, every=beats // 24, windows=24)
            if number < planted:
                flaky.add(f"{name}:{number}")
    return rows, flaky


OFTEN, OFTEN_FLAKY = farms()


def twice(rows):
    """The broker's clock was set back by ten minutes: two rows have the beats of others as well."""
    for row in rows[100:102]:
        row["hb"] += 10
    return rows


def judged(folder, rows):
    return as_rows(GOLD_PROVIDER_DAY, reliability(each(provider_days, MEASURES, [silver(folder, rows)])))


@pytest.fixture(scope="module")
def day(tmp_path_factory):
    rows = [
        *PLANTED,
        *OFTEN,
        *(row for number in range(5) for row in day_of("good", number)),
        *(row for number in range(4) for row in twice(day_of("clock", number))),
        # One in fifty.
        *twice(day_of("clock", 4, range(0, WINDOWS, 5))),
        # Each fifth beat is held up, and comes in the next five minutes.
        *({**row, "hb": row["hb"] + (-1 if index % 2 else 1)} for index, row in enumerate(day_of("held up", 1))),
        # Beats that come 5 % too slowly, and from all of them.
        *(row for number in range(5) for row in day_of("slow", number, range(0, WINDOWS, 2))),
        *day_of("outages", 1, down=(50, 150)),
        *day_of("flapping", 1, down=(50, 55, 60)),
        *day_of("bound", 1, every=0),
        *day_of("bound", 2, every=0, down=(50, 55, 60, 65)),
        *day_of("few", 1, missed=(1, 5, 9), every=1),
        *day_of("absent", 1, connected_s=0.0, up_s=0.0, down_s=300.0, hb=0, hb_expected=0.0, windows=3, gap_max=None),
        *day_of("once", 1, windows=1, hb=0, connected_s=3.0, up_s=3.0, hb_expected=0.1, gap_max=3.0),
        *day_of("mute", 1, windows=12, hb=0, connected_s=300.0, up_s=0.0, down_s=300.0),
    ]
    return {row.instance: row for row in judged(tmp_path_factory.mktemp("silver"), rows)}


def test_a_good_provider_has_nothing_against_it(day):
    row = day["good:1"]
    assert (row.judged, row.miss_ratio, row.outages, row.downtime_s, row.score) == ("beats", 0.0, 0, 0.0, 1.0)
    assert (row.mtbf_s, row.mttr_s, row.flap_pct, row.flaky) == (None, None, 0.0, False)
    assert row.phi_max == pytest.approx(1 / log(10), abs=1e-6)


def test_planted_flaky_providers_are_found_and_no_others(day):
    found = {name for name, row in day.items() if row.flaky and name.startswith("planted")}
    assert len(found & FLAKY) >= 0.95 * len(FLAKY)
    assert len(found & FLAKY) >= 0.95 * len(found)


@pytest.mark.parametrize("beats", [8640, 2880, 1440])
def test_flaky_providers_are_found_in_services_of_any_size(day, beats):
    start = f"farm {beats} "
    planted = {name for name in OFTEN_FLAKY if name.startswith(start)}
    found = {name for name, row in day.items() if row.flaky and name.startswith(start)}
    assert len(planted) == 18
    assert len(found & planted) >= 0.95 * len(planted)
    assert len(found & planted) >= 0.95 * len(found)


def test_beats_that_a_wrong_clock_shows_beside_others_do_not_make_up_for_missed_ones(day):
    row = day["clock:4"]
    # Of 58 it misses one in the ten minutes, where nobody can tell.
    assert row.miss_ratio == pytest.approx((57 - 2 * HELD_UP) / 2880, abs=1e-6)
    assert row.flaky
    assert (day["clock:1"].miss_ratio, day["clock:1"].flaky) == (0.0, False)


def test_a_beat_that_is_held_up_is_not_missed(day):
    assert (day["held up:1"].miss_ratio, day["held up:1"].score, day["held up:1"].flaky) == (0.0, 1.0, False)


def test_where_all_beat_too_slowly_none_is_flaky(day):
    assert day["slow:1"].miss_ratio == 0.05
    assert not day["slow:1"].flaky


def test_outages_are_counted_and_their_missed_beats_are_theirs(day):
    row = day["outages:1"]
    up = 288 * 300.0 - 120.0
    assert (row.outages, row.downtime_s, row.mttr_s, row.mtbf_s) == (2, 120.0, 60.0, up / 2)
    assert row.miss_ratio == round(6 / 2876, 6)
    assert row.score == round(up / (288 * 300.0), 6)
    assert (row.flap_pct, row.flaky) == (10.0, False)


def test_three_outages_in_a_short_time_are_flapping(day):
    assert (day["flapping:1"].flap_pct, day["flapping:1"].flaky) == (30.0, True)


def test_who_sends_no_beats_is_judged_by_its_connection(day):
    good, bad = day["bound:1"], day["bound:2"]
    assert (good.judged, good.miss_ratio, good.phi_max, good.score, good.flaky) == (
        "connection",
        None,
        None,
        1.0,
        False,
    )
    assert (bad.judged, bad.outages, bad.flap_pct, bad.flaky) == ("connection", 4, 40.0, True)


def test_three_missed_of_few_are_chance(day):
    assert day["few:1"].miss_ratio == round(3 / 288, 6)
    assert not day["few:1"].flaky


def test_who_is_away_all_day_is_down_and_not_flaky(day):
    row = day["absent:1"]
    assert (row.judged, row.miss_ratio, row.downtime_s, row.score, row.flaky) == ("beats", None, 900.0, 0.0, False)


def test_a_provider_of_one_record_is_no_finding(day):
    assert (day["once:1"].flaky, day["once:1"].outages) == (False, 0)


def test_who_is_registered_but_mute_misses_all(day):
    row = day["mute:1"]
    assert (row.miss_ratio, row.score, row.flaky, row.phi_max) == (1.0, 0.0, False, None)


def test_another_date_makes_no_difference(tmp_path, day):
    rows = day_of("flapping", 1, down=(50, 55, 60))
    later = [{**row, "w": row["w"] + timedelta(days=1)} for row in rows]
    assert judged(tmp_path, [*rows, *later]) == [day["flapping:1"]]


def test_nobody_is_judged_where_nobody_was():
    assert reliability([]) == []
