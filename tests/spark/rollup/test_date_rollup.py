"""Five minutes of providers, from records whose times were added up by hand."""

import shutil
from datetime import timedelta

import pytest

from spark.capacity.ingest import sorted_files
from spark.capacity.rollup import date_rollup, partitioning
from spark.capacity.rollup.date_rollup import rollup
from spark.capacity.rollup.lost_time import Missing
from spark.capacity.rollup.window_sums import MOST_REQUESTS
from spark.capacity.tables.schema import (
    BRONZE_PAIRS,
    BRONZE_RECORDS,
    BRONZE_RUNS,
    SILVER_CARRY,
    SILVER_PROVIDER_5M,
    SILVER_SIGNS,
)
from spark.capacity.tables.store import Tables
from tests.spark.farm import DAY, Start, bronze, by_window, clock, every, rolled

NEXT = DAY + timedelta(days=1)


def killed_and_restarted():
    """A broker that is killed at 10:30 and comes back at 10:40, and its providers."""
    one, two = Start("one", "b1"), Start("one", "b2")
    one.alive(every(60, "10:00", "10:30"))
    two.alive(every(60, "10:40", "11:00"))
    one.beats("steady", 1, every(30, "10:00", "10:30"))
    two.beats("steady", 11, every(30, "10:40:20", "11:00"))
    kept = [at for at in every(30, "10:00", "10:30") if at not in (clock("10:06"), clock("10:06:30"))]
    one.beats("missing", 2, kept)
    two.beats("missing", 12, every(30, "10:40:20", "11:00"))
    one.beats("silent", 3, every(30, "10:00", "10:12"))
    one.write(clock("10:13:30"), "expire", service="silent", provider=3, instance="silent:1", interval_ms=30_000)
    one.beats("silent", 4, every(30, "10:20", "10:30"))
    one.beats("late", 5, every(30, "10:00", "10:30"))
    two.beats("late", 15, every(30, "10:43", "11:00"))
    bound = {"service": "bound", "instance": "bound:1", "full_load": 100.0}
    one.write(clock("10:00"), "register", provider=6, **bound)
    one.write(clock("10:01"), "load", provider=6, load=40.0, **bound)
    one.write(clock("10:07:30"), "load", provider=6, load=80.0, **bound)
    one.write(clock("10:16"), "unregister", provider=6, why="left", **bound)
    one.write(clock("10:17"), "register", provider=7, **bound)
    gone = {"service": "withdrawn", "provider": 8, "instance": "withdrawn:1"}
    one.write(clock("10:00"), "register", **gone)
    one.write(clock("10:08"), "unregister", why="withdrawn", **gone)
    one.write(clock("10:10"), "load", service="once", provider=9, instance="once:1", load=5.0)
    one.write(clock("10:02"), "load", service="nobody", load=5.0)
    one.write(clock("10:01"), "register", service="flooded", provider=10, instance="flooded:1")
    for number in range(1_100):
        flood = {"provider": 10, "instance": "flooded:1", "load": 1.0, "requests": 2**63 - 1}
        flood["in_flight"] = 2**62 + 1
        one.write(clock("10:02") + timedelta(seconds=number / 10), "load", service="flooded", **flood)
    return [one, two]


def set_back():
    """A broker whose clock is set back by ten minutes."""
    start = Start("clock", "b")
    start.beats("set back", 1, every(30, "12:00", "12:10"))
    start.beats("set back", 1, every(30, "12:00:30", "12:20"))
    return [start]


def asleep():
    """A broker that sleeps for ten minutes and then goes on."""
    start = Start("asleep", "b")
    start.alive([*every(60, "13:00", "13:10"), *every(60, "13:20", "13:30")])
    start.beats("asleep", 1, [*every(30, "13:00", "13:10"), *every(30, "13:20:10", "13:30:10")])
    start.write(clock("13:00"), "register", service="slept on", provider=2, instance="slept on:1")
    # It is not heard again.
    start.beats("dead", 3, every(30, "13:00", "13:10"))
    return [start]


def shared():
    """An instance that is registered with two brokers, and one whose broker's starts overlap."""
    starts = [Start("left", "b"), Start("right", "b"), Start("twice", "b1"), Start("twice", "b2")]
    for start in starts[:2]:
        start.alive(every(60, "14:00", "14:20"))
        start.beats("shared", 1, every(30, "14:00", "14:20"), load=10.0)
    starts[2].alive(every(60, "14:00", "14:10"))
    starts[2].beats("overlapping", 1, every(30, "14:00", "14:10"))
    starts[3].alive(every(60, "14:08", "14:20"))
    starts[3].beats("overlapping", 2, every(30, "14:09", "14:20"))
    return starts


def moved():
    """Instances that change their broker: one whose broker is killed, and one whose broker goes on."""
    starts = [Start("killed", "b"), Start("drained", "b"), Start("taking", "b")]
    starts[0].alive(every(60, "17:00", "17:10"))
    for start in starts[1:]:
        start.alive(every(60, "17:00", "17:20"))
    for start, service, until in ((starts[0], "orphan", "17:10"), (starts[1], "sent away", "17:12")):
        start.beats(service, 1, every(30, "17:00", until), load=10.0)
    starts[1].write(
        clock("17:12:10"), "unregister", service="sent away", provider=1, instance="sent away:1", why="left"
    )
    starts[2].beats("orphan", 7, every(30, "17:10:20", "17:20"), load=10.0)
    starts[2].beats("sent away", 8, every(30, "17:12:10", "17:20"), load=10.0)
    return starts


def amended():
    """A provider whose heartbeats become rarer, as the broker records it."""
    start = Start("amending", "b")
    start.alive(every(60, "18:00", "18:20"))
    start.beats("amended", 1, every(5, "18:00", "18:07"), seconds=5, load=10.0)
    for event, seconds in (("unregister", 5), ("register", 60)):
        names = {"service": "amended", "provider": 1, "instance": "amended:1", "interval_ms": seconds * 1000}
        start.write(clock("18:07:02"), event, why="amended" if event == "unregister" else None, **names)
    start.beats("amended", 1, every(60, "18:08", "18:20"), seconds=60, load=10.0)
    return [start]


def twice_killed():
    """A broker that comes back for twenty seconds, is killed again, and stays the next time."""
    starts = [Start("briefly", f"b{number}") for number in range(3)]
    starts[0].alive(every(60, "15:00", "15:10"))
    starts[1].alive(every(10, "15:20", "15:20:20"))
    starts[2].alive(every(60, "15:30", "15:50"))
    for number, (name, first) in enumerate((("prompt", "15:30:40"), ("tardy", "15:31:30"), ("never", None))):
        names = {"service": name, "instance": f"{name}:1"}
        starts[0].write(clock("15:01"), "register", provider=number, **names)
        if first:
            starts[2].write(clock(first), "register", provider=number + 10, **names)
    return starts


def in_order(start, lost):
    """Number the records of a start by time, and lose some; tell the numbers that are missing."""
    start.records.sort(key=lambda record: record["ts"])
    for number, record in enumerate(start.records, 1):
        record["seq"] = number
    gone = [record for record in start.records if lost(record)]
    start.records = [record for record in start.records if not lost(record)]
    return [Missing(record["broker"], record["boot"], record["seq"], record["seq"]) for record in gone]


def lossy():
    """A broker whose journal loses all that comes between 16:05:00 and 16:05:40, and one beat among many others."""
    start = Start("lossy", "b")
    start.alive(every(60, "16:00", "16:30"))
    start.beats("quick", 1, every(5, "16:00", "16:30"), seconds=5)
    start.beats("slow", 2, every(60, "16:00", "16:30"), seconds=60)
    start.beats("dies", 3, every(30, "16:00", "16:04:30"))
    start.write(clock("16:12"), "expire", service="dies", provider=3, instance="dies:1", interval_ms=30_000)
    start.beats("comes", 4, every(5, "16:05:20", "16:30"), seconds=5)
    start.write(clock("16:00"), "register", service="quiet", provider=5, instance="quiet:1")
    start.beats("other", 6, every(1, "16:00", "16:30"), seconds=1)

    def lost(record):
        one = record.get("service") == "quick" and record["ts"] == clock("16:15:05")
        return one or clock("16:05") < record["ts"] < clock("16:05:40")

    return start, in_order(start, lost)


@pytest.fixture(scope="module")
def day(spark, tmp_path_factory):
    start, loss = lossy()
    tables = Tables(spark, tmp_path_factory.mktemp("out"))
    bronze(
        tables,
        [
            *killed_and_restarted(),
            *set_back(),
            *asleep(),
            *shared(),
            *moved(),
            *amended(),
            *twice_killed(),
            start,
        ],
        copies=2,
    )
    list(rollup(tables, [DAY], loss))
    rows = tables.read(SILVER_PROVIDER_5M).collect()
    found = by_window(rows)
    assert len(found) == len(rows), "an instance has two rows for the same five minutes"
    return found


def down(day, service):
    return sum(row.down_s for (name, _), row in day.items() if name == service)


def outages(day, service):
    return sum(row.outages for (name, _), row in day.items() if name == service)


def test_a_steady_provider_has_the_beats_that_are_expected(day):
    row = day["steady", "10:05"]
    assert (row.hb, row.hb_expected, row.connected_s, row.up_s, row.broker_up_s) == (10, 10.0, 300.0, 300.0, 300.0)
    assert (row.down_s, row.outages, row.gap_max, row.load_mean, row.requests) == (0.0, 0, 30.0, None, None)
    assert row.date == DAY


def test_the_rows_have_the_columns_of_the_schema(day):
    assert list(day["steady", "10:05"].asDict()) == SILVER_PROVIDER_5M.schema.names


def test_missed_beats_are_expected_and_are_no_outage(day):
    row = day["missing", "10:05"]
    assert (row.hb, row.hb_expected, row.up_s, row.gap_max) == (8, 10.0, 300.0, 90.0)
    assert down(day, "missing") == 0.0


def test_the_downtime_of_the_broker_is_nobodys(day):
    assert day["steady", "10:40"].connected_s == 280.0
    assert day["steady", "10:40"].hb_expected == round(280 / 30, 6)
    assert down(day, "steady") == 0.0
    assert outages(day, "steady") == 0
    assert ("steady", "10:35") not in day


def test_who_comes_back_after_the_grace_was_down_since_its_end(day):
    assert down(day, "late") == 120.0
    assert outages(day, "late") == 1
    assert day["late", "10:40"].outages == 1


def test_silence_is_an_outage_from_three_intervals_after_the_last_beat(day):
    row = day["silent", "10:10"]
    assert (row.hb, row.hb_expected, row.connected_s, row.up_s) == (5, 7.0, 210.0, 210.0)
    assert (row.down_s, row.outages) == (90.0, 1)
    row = day["silent", "10:15"]
    assert (row.hb, row.hb_expected, row.connected_s, row.down_s, row.outages) == (0, 0.0, 0.0, 300.0, 0)
    assert day["silent", "10:20"].down_s == 0.0


def test_loads_are_weighted_by_time_and_hold_until_the_next(day):
    assert (day["bound", "10:00"].load_mean, day["bound", "10:00"].load_max) == (40.0, 40.0)
    assert (day["bound", "10:05"].load_mean, day["bound", "10:05"].load_max) == (60.0, 80.0)
    assert (day["bound", "10:10"].load_mean, day["bound", "10:10"].full_load) == (80.0, 100.0)
    assert day["bound", "10:20"].load_mean is None


def test_requests_that_add_up_to_more_than_64_bits_hold_are_limited(day):
    assert (day["flooded", "10:00"].requests, day["flooded", "10:00"].in_flight) == (MOST_REQUESTS, 2.0**62)


def test_who_agreed_on_no_beats_is_judged_by_its_connection(day):
    row = day["bound", "10:15"]
    assert (row.hb, row.hb_expected, row.gap_max) == (0, None, None)
    assert (row.connected_s, row.up_s, row.down_s, row.outages) == (240.0, 240.0, 60.0, 1)


def test_who_never_comes_back_is_down_while_the_broker_is_up(day):
    assert sum(day["bound", w].down_s for w in ("10:40", "10:45", "10:50", "10:55")) == 240.0 + 3 * 300.0
    assert ("bound", "10:35") not in day


def test_who_agrees_on_rarer_beats_is_up_until_the_first_of_them(day):
    assert (down(day, "amended"), outages(day, "amended")) == (0.0, 0)
    rows = [day["amended", w] for w in ("18:00", "18:05", "18:10", "18:15")]
    assert [(row.up_s, row.load_mean, row.load_1) for row in rows] == [(300.0, 10.0, None)] * 4
    assert rows[1].hb_expected == round(122 / 5 + 178 / 60, 6)


def test_who_withdraws_is_not_down(day):
    assert day["withdrawn", "10:05"].connected_s == 180.0
    assert ("withdrawn", "10:10") not in day


def test_one_record_is_a_registration_until_the_broker_ends(day):
    assert sum(row.connected_s for (name, _), row in day.items() if name == "once") == 20 * 60.0
    assert day["once", "10:10"].load_mean == 5.0


def test_records_of_no_provider_are_left_out(day):
    assert not [key for key in day if key[0] == "nobody"]


def test_a_clock_that_is_set_back_makes_no_time(day):
    for w in ("12:00", "12:05"):
        row = day["set back", w]
        assert row.connected_s == row.up_s == row.broker_up_s == 300.0
        assert row.hb_expected <= 10.0
    assert down(day, "set back") == 0.0
    assert day["set back", "12:15"].hb == 10


def test_while_the_broker_sleeps_nothing_is_expected(day):
    assert ("asleep", "13:15") not in day
    assert day["asleep", "13:20"].hb == 10
    assert day["asleep", "13:20"].hb_expected == round(290 / 30, 6)
    assert down(day, "asleep") == down(day, "slept on") == 0.0
    assert day["slept on", "13:20"].up_s == 300.0


def test_who_is_not_heard_after_the_broker_slept_is_down_from_three_intervals_after(day):
    row = day["dead", "13:20"]
    assert (row.connected_s, row.up_s, row.down_s, row.outages) == (300.0, 90.0, 210.0, 1)
    assert row.hb_expected == 8.0


def test_an_instance_with_two_brokers_is_one(day):
    row = day["shared", "14:05"]
    assert (row.connected_s, row.up_s, row.broker_up_s, row.load_mean) == (300.0, 300.0, 300.0, 10.0)
    assert (row.hb, row.hb_expected) == (20, 20.0)


def test_an_instance_that_changes_its_broker_counts_once(day):
    for service in ("orphan", "sent away"):
        assert (down(day, service), outages(day, service)) == (0.0, 0)
        assert {name for (name, _) in day if name == service} == {service}
        for w in ("17:05", "17:10", "17:15"):
            row = day[service, w]
            assert row.load_mean == 10.0
            assert row.up_s <= 300.0
    # The killed broker's last sign is at 17:10:00, and the other one has it from 17:10:20.
    assert day["orphan", "17:10"].up_s == 280.0
    assert day["sent away", "17:10"].up_s == 300.0


def test_starts_of_a_broker_that_overlap_are_no_outage(day):
    assert down(day, "overlapping") == 0.0
    assert day["overlapping", "14:05"].connected_s == 300.0
    # Both starts have a beat at 14:10.
    assert day["overlapping", "14:10"].hb == 11


def test_who_had_no_minute_of_a_broker_to_come_back_is_not_down(day):
    assert (down(day, "prompt"), outages(day, "prompt")) == (0.0, 0)
    assert (down(day, "tardy"), outages(day, "tardy")) == (30.0, 1)
    assert (down(day, "never"), outages(day, "never")) == (19 * 60.0, 1)
    assert day["never", "15:30"].down_s == 240.0
    row = day["prompt", "15:20"]
    assert (row.connected_s, row.up_s, row.down_s, row.outages, row.broker_up_s) == (0.0, 0.0, 0.0, 0, 20.0)


def test_what_the_journal_lost_is_neither_silence_nor_missed(day):
    row = day["quick", "16:05"]
    assert (row.hb, row.hb_expected, row.connected_s, row.up_s, row.broker_up_s) == (53, 52.0, 300.0, 300.0, 300.0)
    assert (row.gap_max, row.down_s, row.outages) == (5.0, 0.0, 0)
    assert day["slow", "16:05"].hb_expected == round(260 / 60, 6)
    assert day["quiet", "16:05"].up_s == 300.0
    assert down(day, "quick") == down(day, "slow") == down(day, "quiet") == 0.0


def test_a_record_that_is_lost_among_many_hides_a_moment_only(day):
    row = day["quick", "16:15"]
    assert (row.hb, row.hb_expected, row.up_s, row.gap_max) == (59, 59.8, 300.0, 9.0)
    assert day["other", "16:15"].hb_expected == 299.0


def test_a_life_does_not_run_out_in_hidden_time_and_runs_out_after_it(day):
    # Heard last at 16:04:30; it would have lived until 16:06:00.
    row = day["dies", "16:05"]
    assert (row.up_s, row.down_s, row.outages) == (100.0, 200.0, 1)
    assert row.hb_expected == round(260 / 30, 6)


def test_who_registered_in_hidden_time_is_there_from_its_first_record(day):
    row = day["comes", "16:05"]
    assert (row.hb, row.hb_expected, row.connected_s) == (52, 52.0, 260.0)


def over_midnight():
    start = Start("b", "b")
    start.alive([*every(60, "23:00", "23:59"), *every(60, "00:00:10", "01:00:10", NEXT)])
    start.beats("beating", 1, [*every(30, "23:00", "23:59:30"), *every(30, "00:00", "01:00", NEXT)])
    start.beats("silent", 2, every(30, "23:00", "23:50"))
    start.write(clock("23:51:30"), "expire", service="silent", provider=2, instance="silent:1")
    start.beats("silent", 3, every(30, "00:30", "01:00", NEXT))
    start.write(clock("23:10"), "register", service="bound", provider=4, instance="bound:1")
    start.write(clock("23:20"), "load", service="bound", provider=4, instance="bound:1", load=7.0, full_load=10.0)
    start.write(clock("23:10"), "register", service="gone", provider=5, instance="gone:1")
    start.write(clock("23:50"), "unregister", service="gone", provider=5, instance="gone:1", why="withdrawn")
    start.beats("mute", 6, every(30, "23:00", "23:58"))
    start.write(clock("00:50", NEXT), "load", service="bound", provider=4, instance="bound:1", load=9.0)
    return start


def test_a_date_goes_on_from_the_day_before(spark, tmp_path):
    tables = rolled(Tables(spark, tmp_path), [over_midnight()], [DAY, NEXT])
    day = by_window(tables.read(SILVER_PROVIDER_5M, [NEXT]).collect())
    assert day["silent", "00:25"].down_s == 300.0
    # It was silent for less than three intervals when the date began; the other outages began the day before.
    assert {name for (name, _), row in day.items() if row.outages} == {"mute"}
    assert day["bound", "00:05"].load_mean == 7.0
    assert day["bound", "00:05"].full_load == 10.0
    assert not [key for key in day if key[0] == "gone"]
    assert day["mute", "00:05"].up_s == 0.0
    assert day["mute", "00:05"].hb_expected == 10.0


def test_the_next_date_is_made_again_if_the_state_before_it_changes(spark, tmp_path):
    tables = rolled(Tables(spark, tmp_path), [over_midnight()], [DAY, NEXT])
    assert list(rollup(tables, [DAY])) == [(DAY, 0)]
    assert list(rollup(tables, [NEXT])) == [(NEXT, 0)]
    more = Start("b", "b")
    more.write(clock("23:59:59"), "load", service="bound", provider=4, instance="bound:1", load=8.0)
    more.records[0]["seq"] = 10_000
    bronze(tables, [over_midnight(), more])
    assert [day for day, _ in rollup(tables, [DAY])] == [DAY, NEXT]
    assert by_window(tables.read(SILVER_PROVIDER_5M, [NEXT]).collect())["bound", "00:05"].load_mean == 8.0


def lossy_midnight():
    """A broker whose journal loses some seconds before, over and after midnight."""
    start = Start("b", "b")
    start.alive([*every(30, "23:50", "23:59:30"), *every(30, "00:00", "00:20", NEXT)])
    start.beats("slow", 1, every(30, "23:50", "23:58:30"), seconds=60)
    start.beats("quick", 2, [*every(5, "23:50", "23:59:55"), *every(5, "00:00", "00:20", NEXT)], seconds=5)

    def lost(record):
        hidden = [("23:58:50", "23:59:10", DAY), ("00:01", "00:01:10", NEXT)]
        over = clock("23:59:50") < record["ts"] < clock("00:00:10", NEXT)
        return over or any(clock(first, day) < record["ts"] < clock(last, day) for first, last, day in hidden)

    return start, in_order(start, lost)


def test_hidden_time_goes_on_over_midnight(spark, tmp_path):
    start, loss = lossy_midnight()
    tables = rolled(Tables(spark, tmp_path), [start], [DAY, NEXT], loss)
    day = by_window(tables.read(SILVER_PROVIDER_5M, [NEXT]).collect())
    # Heard last at 23:58:30, it lives for three minutes, and for the 20, 20 and 10 s that were hidden.
    assert (day["slow", "00:00"].down_s, day["slow", "00:00"].outages) == (300.0 - 140.0, 1)
    assert down(day, "quick") == 0.0
    assert day["quick", "00:00"].hb_expected == (300 - 10 - 10) / 5


class PowerCut(Exception):
    pass


class Unlucky(Tables):
    """Tables whose process ends after the state of a date was kept."""

    def put_date(self, table, rows, day):
        super().put_date(table, rows, day)
        if table is SILVER_CARRY:
            raise PowerCut


def test_a_date_that_is_to_be_made_again_outlives_a_run_that_is_cut_off(spark, tmp_path):
    tables = rolled(Tables(spark, tmp_path), [over_midnight()], [DAY, NEXT])
    more = Start("b", "b")
    more.write(clock("23:59:59"), "load", service="bound", provider=4, instance="bound:1", load=8.0)
    more.records[0]["seq"] = 10_000
    bronze(tables, [over_midnight(), more])
    with pytest.raises(PowerCut):
        list(rollup(Unlucky(spark, tmp_path), [DAY]))
    assert tables.state().changed == {str(NEXT)}


def test_dates_that_are_made_together_are_as_those_made_one_by_one(spark, tmp_path):
    third = NEXT + timedelta(days=1)
    start, loss = lossy_midnight()
    late = Start("late", "b")
    late.beats("later", 1, [*every(30, "23:00", "23:30"), *every(30, "10:00", "11:00", third)], load=3.0)
    starts = [start, late, *killed_and_restarted(), *moved()]
    together = rolled(Tables(spark, tmp_path / "together"), starts, [DAY, NEXT, third], loss)
    alone = Tables(spark, tmp_path / "alone")
    bronze(alone, starts)
    assert [day for day, _ in rollup(alone, [DAY], loss)] == [DAY, NEXT, third]
    for day in (DAY, NEXT, third):
        assert list(rollup(alone, [day], loss)) == [(day, 0)]
    for table in (SILVER_PROVIDER_5M, SILVER_CARRY, SILVER_SIGNS):
        rows, wanted = (sorted(map(str, tables.read(table).collect())) for tables in (together, alone))
        assert rows == wanted, table.name
        assert wanted


def test_a_date_without_records_has_no_rows_and_no_state(spark, tmp_path):
    tables = rolled(Tables(spark, tmp_path), [])
    assert tables.read(SILVER_PROVIDER_5M).collect() == tables.read(SILVER_CARRY).collect() == []


def test_a_date_whose_records_are_gone_has_no_rows_any_more(spark, tmp_path):
    tables = rolled(Tables(spark, tmp_path), killed_and_restarted())
    assert tables.dates(SILVER_PROVIDER_5M) == [DAY]
    shutil.rmtree(tables.path(BRONZE_PAIRS))
    shutil.rmtree(tables.path(BRONZE_RECORDS))
    tables.put(BRONZE_RUNS, tables.rows(BRONZE_RUNS).iloc[:0])
    list(rollup(tables, [DAY]))
    assert tables.dates(SILVER_PROVIDER_5M) == tables.dates(SILVER_CARRY) == []


def test_an_instance_may_change_within_a_registration(spark, tmp_path):
    start = Start("b", "b")
    start.alive(every(60, "10:00", "10:20"))
    start.beats("moved", 1, every(30, "10:00", "10:07"), instance="one:1")
    start.beats("moved", 1, every(30, "10:07:30", "10:20"), instance="two:1")
    rows = rolled(Tables(spark, tmp_path), [start]).read(SILVER_PROVIDER_5M).collect()
    assert {(row.instance, row.w.strftime("%H:%M"), row.hb, row.up_s) for row in rows if row.connected_s} == {
        ("one:1", "10:00", 9, 300.0), ("one:1", "10:05", 5, 150.0),
        ("two:1", "10:05", 4, 150.0), ("two:1", "10:10", 10, 300.0), ("two:1", "10:15", 10, 300.0),
    }  # fmt: skip


@pytest.mark.parametrize("most", [4, 1000], ids=["divided first", "by row groups"])
def test_the_parts_of_a_date_do_not_show(spark, tmp_path, monkeypatch, most):
    starts = [*killed_and_restarted(), *shared(), *moved(), *twice_killed()]
    whole = rolled(Tables(spark, tmp_path / "whole"), starts)
    monkeypatch.setattr(partitioning, "LARGE", 1)
    monkeypatch.setattr(date_rollup, "MOST_PARTS", most)
    monkeypatch.setattr(sorted_files, "GROUP", 16)
    divided = rolled(Tables(spark, tmp_path / "divided"), starts)
    assert len(divided.files(SILVER_PROVIDER_5M, DAY)) > 5 > len(whole.files(SILVER_PROVIDER_5M, DAY))
    for table in (SILVER_PROVIDER_5M, SILVER_CARRY):
        assert sorted(map(str, divided.read(table).collect())) == sorted(map(str, whole.read(table).collect()))
