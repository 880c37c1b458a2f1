"""Minutes of providers, beside loads that are added up second by second."""

import random
from datetime import timedelta

import pytest

from spark.capacity.tables.schema import SILVER_PROVIDER_5M
from spark.capacity.tables.store import Tables
from tests.spark.farm import Start, clock, every, rolled

BEGIN, END = clock("10:00"), clock("11:00")

WINDOW = 300

LOADS = [f"load_{number}" for number in range(1, 6)]

OFF = 0.5001e-3
"""Share by which four digits are off at most."""

INTERVAL = 30
"""Seconds between beats, for those that agreed on some; after thrice as much they are no longer up."""


def at(second):
    return BEGIN + timedelta(seconds=second)


class Farm:
    """Two brokers for an hour, and what each registration tells in each second."""

    def __init__(self):
        self.starts = [Start(name, "b") for name in ("left", "right")]
        for start in self.starts:
            start.alive(every(60, "10:00", "11:00"))
        self.told = {}
        self.providers = 0

    def register(self, service, broker, records, end=None, interval=0):
        """Write a registration: the seconds of its records with their loads, and that of its end, if there is one."""
        self.providers += 1
        names = {"service": service, "instance": f"{service}:1", "provider": self.providers}
        if interval:
            names["interval_ms"] = interval * 1000
        load = None
        last = end if end is not None else 3600
        for number, (second, said) in enumerate(records):
            event = "register" if not number else "hb" if said is None else "load"
            self.starts[broker].write(at(second), event, **names, **({} if said is None else {"load": said}))
            load = load if said is None else said
            until = records[number + 1][0] if number + 1 < len(records) else last
            up = min(until, second + 3 * interval) if interval else until
            if load is not None:
                for each in range(second, up):
                    self.told.setdefault(service, {}).setdefault(each, {})[self.providers] = load
        if end is not None:
            self.starts[broker].write(at(end), "unregister", why="left", **names)

    def minutes(self, service, window):
        """Return the mean loads of the minutes of a window, None where nothing is known, or they are the same."""
        told = self.told.get(service, {})
        seconds = [told.get(second, {}) for second in range(window * WINDOW, (window + 1) * WINDOW)]
        if not seconds[0] or any(one.keys() != seconds[0].keys() for one in seconds):
            return None
        means = [
            sum(sum(one.values()) / len(one) for one in seconds[minute * 60 : minute * 60 + 60]) / 60
            for minute in range(5)
        ]
        return None if max(means) == min(means) else means


def chance(seed):
    """Registrations at random times: reports each second or each ten minutes, silences, ends, second brokers."""
    farm, rng = Farm(), random.Random(seed)
    for number in range(60):
        for _ in range(rng.choice((1, 1, 2, 3))):
            interval = rng.choice((0, 0, INTERVAL))
            first = rng.choice((0, 0, 0, rng.randrange(3000)))
            last = rng.choice((3600, 3600, rng.randrange(first + 1, 3601)))
            step = rng.choice((1, 7, 60, 300, 900))
            seconds = sorted({first, *(rng.randrange(first, last) for _ in range((last - first) // step))})
            values = [rng.choice((None, None, 5.0, rng.uniform(0, 100))) for _ in seconds]
            records = list(zip(seconds, values, strict=True))
            farm.register(f"s{number}", rng.randrange(2), records, last if last < 3600 else None, interval)
    return farm


def silver(spark, tmp_path, farm):
    rows = rolled(Tables(spark, tmp_path / "out"), farm.starts).rows_of(SILVER_PROVIDER_5M, BEGIN.date()).to_pylist()
    return {(row["service"], (row["w"] - BEGIN) // timedelta(minutes=5)): row for row in rows}


def minutes(row):
    return [row[name] for name in LOADS]


NOTHING = [None] * 5


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_minutes_are_those_of_the_load_second_by_second(spark, tmp_path, seed):
    farm = chance(seed)
    rows = silver(spark, tmp_path, farm)
    known = 0
    for (service, window), row in rows.items():
        wanted = farm.minutes(service, window)
        if wanted is None:
            assert minutes(row) == NOTHING, (service, window)
        elif minutes(row) != NOTHING:
            assert minutes(row) == pytest.approx(wanted, rel=OFF, abs=1e-6), (service, window)
            known += 1
        else:
            # They are the same in the digits that are kept.
            assert max(wanted) == pytest.approx(min(wanted), rel=2 * OFF, abs=1e-6), (service, window)
    assert known > 100


def test_a_load_that_holds_for_some_minutes_is_in_these(spark, tmp_path):
    farm = Farm()
    farm.register("burst", 0, [(0, 10.0), (390, 70.0), (450, 10.0)])
    rows = silver(spark, tmp_path, farm)
    assert minutes(rows["burst", 1]) == [10.0, 40.0, 40.0, 10.0, 10.0]
    assert minutes(rows["burst", 0]) == minutes(rows["burst", 2]) == NOTHING


def test_a_change_with_the_window_is_none_within_it(spark, tmp_path):
    farm = Farm()
    farm.register("steps", 0, [(second, float(second)) for second in range(0, 3600, 300)])
    rows = silver(spark, tmp_path, farm)
    assert all(minutes(row) == NOTHING for row in rows.values())
    assert rows["steps", 3]["load_mean"] == 900.0


def test_a_part_of_a_window_has_no_minutes(spark, tmp_path):
    steps = [(second, second / 10) for second in range(0, 3600, 20)]
    farm = Farm()
    farm.register("comes", 0, steps[20:])
    farm.register("ends", 0, steps[:20], 410)
    farm.register("unknown", 0, [(0, None), *steps[20:]])
    farm.register("silent", 0, [*steps[:20], *steps[30:]], interval=INTERVAL)
    farm.register("returns", 0, steps[:20], 395)
    farm.register("returns", 0, steps[20:])
    rows = silver(spark, tmp_path, farm)
    for service in ("comes", "ends", "unknown", "silent", "returns"):
        assert minutes(rows[service, 1]) == NOTHING, service
    assert minutes(rows["unknown", 2]) == [pytest.approx(62 + 6 * number) for number in range(5)]
    assert minutes(rows["ends", 0]) == minutes(rows["silent", 0]) == [pytest.approx(2 + 6 * n) for n in range(5)]


def test_an_instance_with_two_brokers_has_the_mean_of_its_loads_unless_it_comes_to_one(spark, tmp_path):
    farm = Farm()
    farm.register("both", 0, [(0, 10.0), (360, 30.0), (420, 10.0)])
    farm.register("both", 1, [(0, 10.0)])
    farm.register("comes", 0, [(0, 10.0), (360, 30.0), (420, 10.0)])
    farm.register("comes", 1, [(450, 10.0)])
    rows = silver(spark, tmp_path, farm)
    assert minutes(rows["both", 1]) == [10.0, 20.0, 10.0, 10.0, 10.0]
    assert minutes(rows["comes", 1]) == NOTHING


def test_a_window_in_which_the_broker_is_away_has_no_minutes(spark, tmp_path):
    one, two = Start("one", "b1"), Start("one", "b2")
    one.alive(every(60, "10:00", "10:12"))
    two.alive(every(60, "10:16", "10:30"))
    names = {"service": "s", "instance": "s:1"}
    for start, number, seconds in ((one, 1, range(0, 720, 20)), (two, 2, range(965, 1800, 20))):
        for second in seconds:
            start.write(at(second), "load", provider=number, load=float(second), **names)
    farm = Farm()
    farm.starts = [one, two]
    rows = silver(spark, tmp_path, farm)
    assert {window for (_, window), row in rows.items() if minutes(row) != NOTHING} == {0, 1, 4, 5}
