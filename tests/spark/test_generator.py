"""The generated journal holds what its truth says, read back line by line without Spark."""

import gzip
import json
import zlib
from collections import Counter, defaultdict
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.spark.generator import ALL, END, FARM, NONE, Faults, Service, Truth, deliver, generate, series
from tests.spark.generator.behaviour import MISSED
from tests.spark.generator.broker_lives import DAY, HOUR, RETURN, SECOND
from tests.spark.generator.farm import TARGET
from tests.spark.generator.faults import DATE, EVENT, JSON, TORN, TRUNCATED, UNWRITTEN, VERSION
from tests.spark.generator.segments import COPY

pytestmark = pytest.mark.long

Record = dict[str, Any]
Key = tuple[str, str, int]

SMALL = (
    Service("elko one", providers=4, flapping=1, outages=6.0),
    Service('dbp "100 %"', "dbp", providers=5, interval=30.0, flaky=(0.02, 0.1), flapping=1, outages=6.0, report=600.0),
    Service("labels", providers=2, labelled=True, full_load=None, once=1),
    Service("young", providers=2, hours=1.0, report=60.0, outages=0.0),
)
EVENTS = {"register", "unregister", "expire", "hb", "load", "alive", "drop"}


def lines(path: Path) -> list[bytes]:
    """The lines of a segment; of one that is cut off, none."""
    try:
        return gzip.decompress(path.read_bytes()).split(b"\n")
    except (EOFError, zlib.error):
        return []


def read(journal: Path) -> tuple[dict[Key, Record], Counter[str]]:
    """The good records by their keys, and the lines that are none by reason."""
    good: dict[Key, Record] = {}
    bad: Counter[str] = Counter()
    for path in sorted(journal.glob("segments/*/*/*.jsonl.gz")):
        found = lines(path)
        bad[TRUNCATED] += not found
        for number, line in enumerate(found):
            try:
                record = json.loads(line)
            except ValueError:
                if line:
                    bad[JSON if number < len(found) - 1 else TORN] += 1
                continue
            if record["v"] != 1:
                bad[VERSION] += 1
            elif record["event"] not in EVENTS:
                bad[EVENT] += 1
            elif record["ts"] > (END.timestamp() + 86400) * SECOND:
                bad[DATE] += 1
            else:
                good[record["broker"], record["boot"], record["seq"]] = record
    return good, bad


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> tuple[Truth, list[Record]]:
    """A journal without faults."""
    journal = tmp_path_factory.mktemp("sound") / "journal"
    truth = generate(journal, 5, 6, SMALL)
    return truth, [record for _, record in sorted(read(journal)[0].items())]


@pytest.fixture(scope="module")
def broken(tmp_path_factory) -> tuple[Truth, Path, dict[Key, Record], Counter[str]]:
    """A journal with every fault, the late segments delivered, and what is read from it."""
    journal = tmp_path_factory.mktemp("broken") / "journal"
    truth = generate(journal, 6, 6, SMALL, faults=ALL)
    assert deliver(journal) == sorted(truth.late)
    return truth, journal, *read(journal)


def of(records: list[Record], instance: str, *events: str) -> list[Record]:
    return [
        record
        for record in records
        if record["event"] in events and instance in (record.get("endpoint"), record.get("label"))
    ]


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path):
    def journal(name: str, seed: int) -> dict[str, bytes]:
        root = tmp_path / name
        generate(root / "journal", seed, 1, SMALL, faults=ALL)
        return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}

    first = journal("first", 1)
    assert first == journal("second", 1)
    assert first != journal("third", 2)


def test_every_record_has_the_members_that_each_must_have(sound):
    for record in sound[1]:
        assert record["v"] == 1
        assert {"ts", "broker", "boot", "seq", "event", "wire"} <= set(record)
        assert None not in record.values()
        if record["event"] == "hb":
            assert record["hb_seq"] >= 1
            assert isinstance(record["hb_seq"], int)
            assert record["interval_ms"] == 30000
            assert 0 < record["ts"] - record["sent_ts"] < SECOND
        if record["event"] == "load":
            assert record["load"] >= 0
            assert ("full_load" in record) == (record["service"] != "labels")


def test_a_journal_without_faults_is_whole(sound):
    truth, records = sound
    assert len(records) == truth.records
    assert [record["seq"] for record in records] == list(range(1, len(records) + 1))
    times = [record["ts"] for record in records]
    assert times == sorted(times)
    assert truth.start <= times[0] < times[-1] < truth.end
    assert (truth.lost, truth.bad, truth.unacknowledged) == ((), (), 0)


def test_a_segment_is_filed_by_the_hour_of_its_first_record(broken):
    truth, journal, _, _ = broken
    for name in (*truth.segments, *truth.duplicates):
        if found := lines(journal / name):
            first = json.loads(found[0])
            at = datetime.fromtimestamp(first["ts"] // SECOND, UTC)
            assert name.startswith(at.strftime("segments/date=%Y-%m-%d/hour=%H/"))


def test_planted_miss_ratios_are_those_of_the_heartbeats(sound):
    truth, records = sound
    for provider in truth.providers:
        beats = of(records, provider.instance, "hb")
        if provider.judged == "beats":
            # The last beat may have been due just before the end, and come after it.
            sessions = len(of(records, provider.instance, "register"))
            assert 0 <= provider.due - provider.missed - len(beats) <= sessions
        else:
            assert beats == []
    flaky = [p for p in truth.providers if p.flaky]
    assert [p.ratio for p in flaky] == [0.02, 0.1]
    for provider in flaky:
        # Luck has its part: four standard deviations.
        deviation = (provider.ratio / provider.due) ** 0.5
        assert 0 < abs(provider.miss_ratio - provider.ratio) < 4 * deviation
    assert all(p.missed == 0 for p in truth.providers if not p.flaky)


def test_providers_that_are_not_flaky_may_lose_a_few_beats_each_at_its_own_ratio(tmp_path):
    service = Service("s", "dbp", providers=6, interval=30.0, flaky=(0.03, 0.0), losses=0.005, outages=0.0)
    first, *others = generate(tmp_path / "journal", 2, 2, [service]).providers
    assert (first.flaky, first.ratio) == (True, 0.03)
    assert not any(one.flaky for one in others)
    assert len({one.ratio for one in others}) == 5
    assert all(0 < one.ratio < 0.005 and 0 < one.missed < 0.01 * one.due for one in others)


def test_a_flaky_provider_is_never_silent_for_so_long_that_it_would_be_expired(sound):
    truth, records = sound
    for provider in truth.providers:
        if provider.flaky:
            by_session = defaultdict(list)
            for beat in of(records, provider.instance, "hb"):
                by_session[beat["provider"]].append(beat)
            for beats in by_session.values():
                assert [beat["hb_seq"] for beat in beats] == list(range(1, len(beats) + 1))
                gaps = np.diff([beat["ts"] for beat in beats])
                assert gaps.max(initial=0) < (MISSED + 0.1) * 30 * SECOND


def test_an_outage_begins_with_an_end_and_ends_with_a_registration(sound):
    truth, records = sound
    seen = 0
    for provider in truth.providers:
        heard = of(records, provider.instance, "register", "unregister", "expire")
        signs = of(records, provider.instance, "hb", "load")
        for start, end in provider.outages:
            seen += 1
            ends = [one for one in heard if start <= one["ts"] < end and one["event"] != "register"]
            starts = [one for one in heard if end <= one["ts"] <= end + RETURN * SECOND and one["event"] == "register"]
            assert (len(ends), len(starts)) == (1, 1)
            flaps = any(low <= start < high for low, high in provider.episodes)
            assert ends[0]["event"] == ("expire" if provider.judged == "beats" and not flaps else "unregister")
            assert ends[0]["why"] == ("silent" if ends[0]["event"] == "expire" else "left")
            assert not [one for one in signs if start < one["ts"] < end]
            assert ends[0]["provider"] != starts[0]["provider"]
    assert seen > 20


def test_only_flapping_providers_come_and_go_all_the_time(sound):
    for provider in sound[0].providers:
        assert (len(provider.outages) > 10) == provider.flapping
        assert len(provider.episodes) == 2 * provider.flapping
        for start, end in provider.episodes:
            inside = [one for one in provider.outages if start <= one[0] and one[1] <= end]
            assert len(inside) > (end - start) // HOUR * 3


@pytest.mark.parametrize("failover", [False, True])
def test_demand_is_the_sum_of_the_loads_unless_a_share_went_down_with_its_provider(tmp_path, failover):
    service = Service("s", providers=4, report=60.0, outages=40.0, failover=failover)
    truth = generate(tmp_path / "journal", 3, 3, [service])
    hours = len(truth.services[0].demand)
    sums = np.zeros((4, hours))
    counts = np.zeros((4, hours))
    names = truth.services[0].instances
    for record in read(tmp_path / "journal")[0].values():
        if record["event"] == "load":
            place = names.index(record["endpoint"]), (record["ts"] - truth.start) // HOUR
            sums[place] += record["load"]
            counts[place] += 1
    # The load of a provider counts for the part of the hour in which it was there.
    carried = (sums / np.maximum(counts, 1) * np.minimum(1, counts / 60)).sum(axis=0)
    ratio = carried / np.array(truth.services[0].demand)
    down = np.zeros(hours, dtype=bool)
    for provider in truth.providers:
        for start, end in provider.outages:
            down[(start - truth.start) // HOUR : (end - truth.start) // HOUR + 1] = True
    assert down.any()
    assert np.abs(ratio[~down] - 1).max() < 0.05
    if failover:
        assert ratio[down].mean() > 0.97
    else:
        assert ratio[down].mean() < 0.95


def test_a_service_runs_out_when_it_was_told_to(tmp_path):
    service = Service("growing", runs_out=9.0, outages=0.0)
    truth = generate(tmp_path / "journal", 1, 3, [service]).services[0]
    end = int(END.timestamp()) * SECOND
    assert truth.over_target is not None
    assert truth.over_capacity is not None
    assert abs(truth.over_target - (end + 9 * DAY)) <= DAY
    hour = (truth.over_target - end) // HOUR
    assert truth.capacity == 800.0
    assert truth.future[hour] > TARGET * 800.0 >= max(truth.future[:hour])
    assert truth.over_capacity > truth.over_target


def test_what_came_after_the_end_is_what_was_known_but_for_noise(tmp_path):
    truth = generate(tmp_path / "journal", 1, 1, [Service("quiet", noise=0.0), Service("noisy", noise=0.1)])
    quiet, noisy = truth.services
    assert quiet.came == quiet.future
    off = np.array(noisy.came) / np.array(noisy.future) - 1
    assert 0.05 < off.std() < 0.2
    assert abs(off.mean()) < 0.05


def test_demand_is_the_same_without_a_journal(tmp_path):
    services = [Service("one", providers=2, noise=0.1), Service("young", hours=5.0)]
    truth = generate(tmp_path / "journal", 7, 2, services)
    assert series(7, 2, services) == {one.service: one.demand + one.came for one in truth.services}


def test_two_brokers_may_share_a_journal(tmp_path):
    one = generate(tmp_path / "journal", 1, 0.1, SMALL[:1], broker="one")
    two = generate(tmp_path / "journal", 2, 0.1, SMALL[:1], broker="two")
    good, _ = read(tmp_path / "journal")
    assert Counter(broker for broker, _, _ in good) == {"one": one.records, "two": two.records}


def test_a_service_that_never_grows_never_runs_out(tmp_path):
    truth = generate(tmp_path / "journal", 1, 1, [Service("flat"), Service("unknown", full_load=None)])
    assert [service.over_target for service in truth.services] == [None, None]
    assert truth.service("unknown").capacity is None


def test_a_young_service_has_an_hour_of_history(sound):
    truth, records = sound
    times = [record["ts"] for record in records if record.get("service") == "young"]
    assert truth.end - HOUR <= min(times)
    assert len(truth.service("young").demand) == 1


def test_there_is_a_provider_of_one_record(sound):
    assert len(of(sound[1], "labels 3", *EVENTS)) == 1


def test_an_unbalanced_service_has_its_hot_provider(tmp_path):
    truth = generate(tmp_path / "journal", 1, 1, [Service("skewed", providers=5, skew=1.5, outages=0.0)])
    load: Counter[str | None] = Counter()
    for record in read(tmp_path / "journal")[0].values():
        load[record.get("endpoint")] += record.get("load", 0)
    hot, others = load.pop(truth.services[0].hot[0]), [value for value in load.values() if value]
    assert hot > 2 * max(others)


def test_good_records_are_as_many_as_the_truth_says_and_each_counts_once(broken):
    truth, journal, good, _ = broken
    assert len(good) == truth.records
    assert truth.duplicates
    for name in truth.duplicates:
        base, _, number = name.removesuffix(".jsonl.gz").rpartition("-")
        assert (journal / name).read_bytes() == (journal / f"{base}-{int(number) - COPY}.jsonl.gz").read_bytes()


def test_bad_lines_are_as_many_as_the_truth_says(broken):
    truth, _, _, bad = broken
    told: Counter[str] = Counter()
    for one in truth.bad:
        told[one.reason] += 1 if one.reason == TRUNCATED else one.lines
    assert told == +bad
    assert told[VERSION] == ALL.unknown_versions
    assert set(told) == {VERSION, EVENT, DATE, JSON, TORN, TRUNCATED}


def test_gaps_in_the_numbers_are_exactly_the_losses_of_the_truth(broken):
    truth, _, good, _ = broken
    numbers = defaultdict(set)
    for broker, boot, seq in good:
        numbers[broker, boot].add(seq)
    gaps = {(*key, seq) for key, there in numbers.items() for seq in range(1, max(there) + 1) if seq not in there}
    lost = {(loss.broker, loss.boot, seq) for loss in truth.lost for seq in range(loss.seq_from, loss.seq_to + 1)}
    # Records that are lost at the very end of a boot leave no gap.
    assert gaps == {key for key in lost if key[2] <= max(numbers[key[:2]])}
    assert len(gaps) > 20


def test_a_drop_record_tells_of_the_numbers_just_before_its_own(broken):
    truth, _, good, _ = broken
    drops = [record for record in good.values() if record["event"] == "drop"]
    told = {(one["boot"], one["seq"] - one["dropped"], one["seq"] - 1) for one in drops}
    known = {(loss.boot, loss.seq_from, loss.seq_to) for loss in truth.lost if loss.known}
    assert told <= known
    assert told


def test_a_killed_broker_leaves_no_last_record_and_a_stopped_one_does(broken):
    truth, _, good, _ = broken
    records = list(good.values())
    assert [how for *_, how in truth.boots].count("killed") == ALL.kills
    for boot, start, end, how in truth.boots:
        own = [record for record in records if record["boot"] == boot]
        stops = [one for one in own if one["event"] == "alive" and one.get("why") == "stop"]
        assert len(stops) == (how == "stopped")
        assert min(one["ts"] for one in own) == start
        if how == "killed":
            assert max(one["ts"] for one in own) < end - UNWRITTEN * SECOND
        assert max(one["ts"] for one in own) < end
    assert len({record["boot"] for record in records}) == len(truth.boots)


def test_everybody_is_back_soon_after_a_restart(broken):
    truth, _, good, _ = broken
    records = [one for one in good.values() if one["event"] == "register"]
    boot, start, _, _ = truth.boots[1]
    back = {one.get("endpoint", one.get("label")) for one in records if one["boot"] == boot}
    for provider in truth.providers:
        gone = any(low <= start + RETURN * SECOND and start <= high for low, high in provider.outages)
        if provider.service != "young" and not gone:
            assert provider.instance in back


def test_a_clock_that_jumps_goes_back_while_the_numbers_go_on(broken):
    truth, _, good, _ = broken
    ordered = sorted(good.items())
    back = [
        (one["ts"], after["ts"])
        for (key, one), (other, after) in pairwise(ordered)
        if key[1] == other[1] and after["ts"] < one["ts"]
    ]
    assert len(back) == ALL.clock_jumps == len(truth.clock_jumps)
    for (at, to), (start, _, by) in zip(sorted(back), sorted(truth.clock_jumps), strict=True):
        assert abs(at - start) < 120 * SECOND
        assert abs(to - at - by) < 120 * SECOND


def test_unknown_members_are_in_good_records(broken):
    truth, _, good, _ = broken
    assert sum("colour" in one for one in good.values()) == truth.unknown_members > 0


def test_late_segments_are_not_there_until_they_are_delivered(tmp_path):
    truth = generate(tmp_path / "journal", 1, 1, SMALL, faults=Faults(late=3))
    before = len(read(tmp_path / "journal")[0])
    assert not any((tmp_path / "journal" / name).exists() for name in truth.late)
    assert len(deliver(tmp_path / "journal")) == 3
    assert before < len(read(tmp_path / "journal")[0]) == truth.records
    assert deliver(tmp_path / "journal") == []


def test_the_truth_is_written_beside_the_journal(broken):
    truth, journal, _, _ = broken
    told = json.loads((journal.parent / "truth.json").read_text())
    assert told["records"] == truth.records
    assert [service["service"] for service in told["services"]] == [service.name for service in SMALL]
    assert not list(journal.rglob("truth.json"))


def test_progress_is_told_segment_by_segment(tmp_path):
    told: list[tuple[int, int]] = []
    truth = generate(tmp_path / "journal", 1, 0.25, SMALL, faults=NONE, told=lambda *now: told.append(now))
    assert told == [(number + 1, len(truth.segments)) for number in range(len(truth.segments))]


def test_the_farm_of_the_demo_is_of_the_size_that_it_promises():
    assert 6 <= len(FARM) <= 8
    assert 60 <= sum(service.providers for service in FARM) <= 80
    beats = sum(service.providers * 30 * 86400 / service.interval for service in FARM if service.interval)
    loads = sum(service.providers * (service.hours or 720) * 3600 / service.report for service in FARM)
    assert beats + loads + 30 * 1440 < 1_500_000
