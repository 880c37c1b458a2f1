"""Feed of the journal: the real registry, and a list of the records that are put.

The file is longer than others: it has all tests of `broker.export.journal_feed`.
"""

from __future__ import annotations

from collections import Counter
from functools import partial
from itertools import count, pairwise
from typing import Any

import attrs
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.internet.task import Clock

from broker.core.errors import Refusal
from broker.core.model import ANONYMOUS, BROKER, Change, Kind, LoadDetails, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.export.journal_feed import IN_ADVANCE, KEPT, LATEST, LONGEST_WAIT, RECORDS, FullLoads, JournalFeed
from broker.export.journal_records import DetailedRecord, Record, microseconds
from tests.recording.logs import nothing_fails

START = 1_795_246_600.25
"""The clock's time at the beginning, in seconds of the epoch."""

AT = 1_795_246_600_250_000
"""That time as a ``ts``."""

BALANCED = {"register": 1, "unregister": -1, "expire": -1}


class Fed:
    """Registry and its feed; ``records`` are those put so far."""

    def __init__(self, full_loads: FullLoads | None = None) -> None:
        self.clock = Clock()
        self.clock.advance(START)
        self.registry = Registry(self.clock, count(1).__next__, Restored((), 0.0, self.clock, lambda ids: None))
        self.records: list[Record] = []
        self.feed = self.follow(full_loads)

    def follow(self, full_loads: FullLoads | None = None) -> JournalFeed:
        """Create another feed of the same registry."""
        return JournalFeed(
            self.registry,
            self.records.append,
            lambda: microseconds(self.clock.seconds()),
            full_loads or FullLoads(()),
        )

    def join(self, label: str = "", wire: str = "elko") -> int:
        """Register a provider."""
        return self.registry.join(label, wire, "192.0.2.1:1")

    def offer(self, provider: int, *names: str, **more: Any) -> list[Service]:
        """Offer its services, at the host h1 the first, at h2 the next."""
        services = [Service(name, f"h{number}:1", provider, **more) for number, name in enumerate(names, 1)]
        self.registry.offer(services, Rights(services=10_000))
        return services

    def take(self) -> list[Record]:
        """Return the records since the last call."""
        taken = list(self.records)
        self.records.clear()
        return taken


@pytest.fixture
def fed() -> Fed:
    return Fed()


def brief(records: list[Record]) -> list[tuple[str, str | None, str | None]]:
    return [(record.event, record.service, record.why) for record in records]


# registration and withdrawal


def test_a_service_that_is_offered_is_a_registration_with_all_that_is_known(fed: Fed) -> None:
    provider = fed.join("bank 1", "dbp")
    fed.clock.advance(0.5)
    fed.offer(provider, "bank", protocol="rtcp", interval=1.5)
    assert fed.take() == [
        Record(AT + 500_000, "register", "dbp", "bank", provider, "bank 1", "h1:1", "rtcp", interval_ms=1500)
    ]


def test_what_is_not_known_is_left_out(fed: Fed) -> None:
    fed.offer(fed.join(), "bank")
    [record] = fed.take()
    line = msgspec.json.decode(msgspec.json.encode(record))
    assert set(line) == {"ts", "event", "wire", "service", "provider", "endpoint", "protocol"}


@pytest.mark.parametrize("label", ["", ANONYMOUS])
def test_a_provider_without_a_label_of_its_own_has_none(fed: Fed, label: str) -> None:
    fed.offer(fed.join(label), "bank")
    assert fed.take()[0].label is None


def test_a_changed_label_is_in_the_next_records(fed: Fed) -> None:
    provider = fed.join(ANONYMOUS)
    fed.offer(provider, "bank")
    fed.registry.beat(provider, None)
    fed.registry.load(provider, 0.5)
    fed.registry.relabel(provider, "two")
    assert [record.label for record in fed.take()] == [None] * 3, "it makes no record"
    fed.registry.beat(provider, None)
    fed.registry.load(provider, 0.5)
    fed.offer(provider, "shop")
    fed.registry.relabel(provider, ANONYMOUS)
    fed.registry.leave(provider)
    labels = [(record.event, record.label) for record in fed.take()]
    assert labels == [("hb", "two"), ("load", "two"), ("register", "two"), ("unregister", None), ("unregister", None)]


def test_a_changed_label_is_that_of_a_report_that_waits(fed: Fed) -> None:
    provider = fed.join("one")
    fed.offer(provider, "bank")
    for _ in range(2_000):
        fed.registry.load(provider, 0.5)
    fed.take()
    fed.registry.relabel(provider, "two")
    fed.feed.stop()
    assert [record.label for record in fed.take()] == ["two"]


def test_a_provider_that_offers_nothing_is_not_told_of(fed: Fed) -> None:
    provider = fed.join("idle")
    fed.registry.load(provider, 3)
    fed.registry.beat(provider, None)
    fed.registry.leave(provider)
    assert fed.take() == []


def test_who_withdraws_one_service_goes_on_with_the_others(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank", "shop")
    fed.take()
    fed.registry.withdraw(provider, ["bank", "unknown"])
    assert brief(fed.take()) == [("unregister", "bank", "withdrawn")]
    fed.registry.load(provider, 1)
    fed.registry.beat(provider, None)
    assert [(record.event, record.service) for record in fed.take()] == [("load", "shop"), ("hb", "shop")]
    fed.registry.leave(provider)
    assert brief(fed.take()) == [("unregister", "shop", "left")]


def test_all_services_of_a_provider_that_leaves_go(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank", "shop")
    fed.take()
    fed.registry.leave(provider)
    assert brief(fed.take()) == [("unregister", "bank", "left"), ("unregister", "shop", "left")]


def test_a_provider_that_was_silent_for_too_long_expires(fed: Fed) -> None:
    provider = fed.join("bank", "dbp")
    fed.offer(provider, "bank", interval=2.0)
    fed.take()
    fed.registry.leave(provider, "expired")
    [record] = fed.take()
    assert record == Record(
        AT, "expire", "dbp", "bank", provider, "bank", "h1:1", "tcp", interval_ms=2000, why="expired"
    )


def test_nothing_more_is_told_of_a_provider_that_left(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.registry.leave(provider)
    fed.take()
    fed.registry.load(provider, 1)
    fed.registry.leave(provider)
    fed.registry.beat(provider, None)
    assert fed.take() == []


def test_the_brokers_own_services_are_not_told_of(fed: Fed) -> None:
    fed.registry.offer_own([Service("broker-client", "h:1", BROKER), Service("elkobroker.x", "h:2", BROKER)])
    fed.registry.offer_own([])
    fed.registry.beat(BROKER, None)
    assert fed.take() == []


def test_a_provider_that_is_gone_before_it_is_told_of_was_never_there() -> None:
    fed = Fed()
    fed.feed.stop()

    def end(change: Change) -> None:
        fed.registry.leave(change.provider)

    with nothing_fails():
        fed.registry.watch(end, (Kind.OFFERED,))
        fed.follow()  # notified after the watcher that ends it
        fed.offer(fed.join(), "bank", "shop")
    assert fed.take() == []


def test_a_later_service_of_a_provider_that_is_gone_before_it_is_told_of_comes_and_goes() -> None:
    fed = Fed()
    fed.feed.stop()
    provider = fed.join()

    def end(change: Change) -> None:
        if change.subject == shop:
            fed.registry.leave(provider)

    shop = Service("shop", "h:2", provider)
    with nothing_fails():
        fed.registry.watch(end, (Kind.OFFERED,))
        fed.follow()
        fed.offer(provider, "bank")
        fed.registry.offer([shop], Rights())
    assert brief(fed.take()) == [
        ("register", "bank", None),
        ("register", "shop", None),
        ("unregister", "bank", "left"),
        ("unregister", "shop", "left"),
    ]


# heartbeats


def test_heartbeats_are_counted_from_the_registration(fed: Fed) -> None:
    first = fed.join("one", "dbp")
    fed.offer(first, "bank", interval=1.0)
    fed.take()
    for _ in range(2):
        fed.clock.advance(1)
        fed.registry.beat(first, START + 0.5)
    hb = Record(
        AT + 1_000_000,
        "hb",
        "dbp",
        "bank",
        first,
        "one",
        "h1:1",
        "tcp",
        interval_ms=1000,
        hb_seq=1,
        sent_ts=AT + 500_000,
    )
    assert fed.take() == [hb, msgspec.structs.replace(hb, ts=AT + 2_000_000, hb_seq=2)]
    fed.registry.leave(first)
    again = fed.join("one", "dbp")
    fed.offer(again, "bank", interval=1.0)
    fed.take()
    fed.registry.beat(again, None)
    [record] = fed.take()
    assert (record.provider, record.hb_seq) == (again, 1)


def test_each_service_of_a_provider_gets_its_heartbeat_with_one_number_and_one_time(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank", "shop")
    fed.take()
    fed.registry.beat(provider, None)
    records = fed.take()
    assert [(r.service, r.endpoint, r.hb_seq, r.ts) for r in records] == [
        ("bank", "h1:1", 1, AT),
        ("shop", "h2:1", 1, AT),
    ]
    assert {r.interval_ms for r in records} == {None}


@pytest.mark.parametrize("sent", [None, -1.0, LATEST, 1e13, 1e308])
def test_a_time_that_is_none_is_left_out(fed: Fed, sent: float | None) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.registry.beat(provider, sent)
    assert fed.take()[-1].sent_ts is None


@pytest.mark.parametrize("sent", [0.0, START, LATEST - 1])
def test_any_other_time_of_a_peer_is_kept_as_it_is(fed: Fed, sent: float) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.registry.beat(provider, sent)
    assert fed.take()[-1].sent_ts == int(sent * 1_000_000)


def test_an_interval_that_changes_counts_from_the_next_record_on(fed: Fed) -> None:
    provider = fed.join()
    bank, shop = fed.offer(provider, "bank", "shop", interval=1.0)
    fed.take()
    fed.registry.amend(attrs.evolve(shop, interval=0.5))
    assert fed.take() == [], "no event of its own"
    fed.registry.amend(attrs.evolve(shop, interval=2.5))
    fed.take()
    fed.registry.beat(provider, None)
    assert [record.interval_ms for record in fed.take()] == [1000, 2500]
    fed.registry.amend(attrs.evolve(bank, interval=None))
    fed.take()
    fed.registry.leave(provider)
    assert [record.interval_ms for record in fed.take()] == [None, 2500]


@pytest.mark.parametrize("later", [2.5, None])
def test_an_interval_that_becomes_longer_is_recorded_at_once(fed: Fed, later: float | None) -> None:
    provider = fed.join("one")
    _, shop = fed.offer(provider, "bank", "shop", interval=1.0, zone="north")
    fed.take()
    fed.clock.advance(0.5)
    fed.registry.amend(attrs.evolve(shop, interval=later))
    same = (AT + 500_000, "elko", "shop", provider, "one", "h2:1", "tcp")
    ended, begun = fed.take()
    assert ended == Record(same[0], "unregister", *same[1:], interval_ms=1000, why="amended")
    milliseconds = None if later is None else 2500
    assert begun == DetailedRecord(same[0], "register", *same[1:], interval_ms=milliseconds, zone="north")


@pytest.mark.parametrize(("before", "after"), [("north", "south"), (None, "south"), ("north", None)])
def test_another_zone_is_recorded_at_once(fed: Fed, before: str | None, after: str | None) -> None:
    provider = fed.join("one")
    [bank] = fed.offer(provider, "bank", interval=1.0, zone=before)
    fed.take()
    fed.clock.advance(0.5)
    fed.registry.amend(attrs.evolve(bank, zone=after, interval=0.5))
    same = (AT + 500_000, "elko", "bank", provider, "one", "h1:1", "tcp")
    ended, begun = fed.take()
    assert ended == Record(same[0], "unregister", *same[1:], interval_ms=1000, why="amended")
    form = Record if after is None else partial(DetailedRecord, zone=after)
    assert begun == form(same[0], "register", *same[1:], interval_ms=500)
    fed.registry.amend(attrs.evolve(bank, zone=after, interval=0.5, tags=("v2",)))
    assert fed.take() == [], "no record has tags"


def test_of_several_services_of_the_same_name_the_amended_one_is_the_registrys(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank", "bank", interval=1.0)
    [http] = fed.offer(provider, "bank", protocol="http", interval=1.0)
    first = fed.registry.services("bank", "tcp")[0]
    fed.registry.amend(attrs.evolve(first, interval=3.0))
    fed.registry.amend(attrs.evolve(http, interval=4.0))
    fed.take()
    fed.registry.beat(provider, None)
    provided = fed.registry.provider(provider)
    assert provided is not None
    told = [(r.endpoint, r.protocol, r.interval_ms) for r in fed.take()]
    assert told == [("h1:1", "tcp", 3000), ("h2:1", "tcp", 1000), ("h1:1", "http", 4000)]
    assert told == [(s.hostport, s.protocol, (s.interval or 0) * 1000) for s in provided.services]


# loads


def test_a_load_is_told_once_for_each_service(fed: Fed) -> None:
    provider = fed.join("one")
    fed.offer(provider, "bank", "shop")
    fed.take()
    fed.registry.load(provider, 0.75)
    assert fed.take() == [
        Record(AT, "load", "elko", name, provider, "one", f"h{n}:1", "tcp", load=0.75)
        for n, name in enumerate(("bank", "shop"), 1)
    ]


def test_a_load_that_is_as_before_is_told_again(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.take()
    for load in (2, 2, 0):
        fed.registry.load(provider, load)
    assert [record.load for record in fed.take()] == [2, 2, 0]


def test_the_details_of_a_load_are_in_the_record_of_each_service(fed: Fed) -> None:
    provider = fed.join("one")
    fed.offer(provider, "bank", "shop")
    fed.take()
    fed.registry.load(provider, 0.75, LoadDetails(120, 2, 3, 41.5))
    fed.registry.load(provider, 0.5)
    assert fed.take() == [
        *(
            DetailedRecord(
                AT, "load", "elko", name, provider, "one", f"h{n}:1", "tcp", load=0.75,
                requests=120, errors=2, in_flight=3, latency_ms=41.5,
            )
            for n, name in enumerate(("bank", "shop"), 1)
        ),
        *(Record(AT, "load", "elko", name, provider, "one", f"h{n}:1", "tcp", load=0.5)
          for n, name in enumerate(("bank", "shop"), 1)),
    ]  # fmt: skip


def test_no_request_is_lost_where_reports_coalesce(fed: Fed) -> None:
    provider = fed.join("one")
    fed.offer(provider, "bank")
    fed.take()
    for _ in range(3 * IN_ADVANCE):
        fed.registry.load(provider, 1, LoadDetails(requests=2, errors=1, latency_ms=10))
    fed.registry.load(provider, 2, LoadDetails(requests=2 * IN_ADVANCE, in_flight=9, latency_ms=30))
    fed.registry.load(provider, 3)
    told = fed.take()
    fed.clock.advance(1)
    fed.feed.catch_up()
    [last] = fed.take()
    both = [each for each in [*told, last] if isinstance(each, DetailedRecord)]
    assert both == [*told, last]
    assert (last.load, both[-1].in_flight) == (3, 9)
    assert sum(each.requests or 0 for each in both) == 8 * IN_ADVANCE
    assert sum(each.errors or 0 for each in both) == 3 * IN_ADVANCE
    spent = sum((each.requests or 0) * (each.latency_ms or 0) for each in both)
    assert spent == pytest.approx(6 * IN_ADVANCE * 10 + 2 * IN_ADVANCE * 30)

    fed.registry.load(provider, 3)
    assert type(fed.take()[0]) is Record


def test_a_load_before_the_first_offer_is_not_told(fed: Fed) -> None:
    provider = fed.join()
    fed.registry.load(provider, 4)
    fed.offer(provider, "bank")
    assert [(record.event, record.load) for record in fed.take()] == [("register", None)]


def test_the_first_pattern_that_matches_says_when_a_provider_is_full() -> None:
    fed = Fed(FullLoads([(("bank*", "sh?p"), 10.0), (("*",), 20.0)]))
    provider = fed.join()
    fed.offer(provider, "bank", "banking", "shop", "shoop", "Bank")
    fed.take()
    fed.registry.load(provider, 1)
    fulls = {record.service: record.full_load for record in fed.take()}
    assert fulls == {"bank": 10, "banking": 10, "shop": 10, "shoop": 20, "Bank": 20}


def test_where_no_pattern_matches_no_record_claims_a_capacity() -> None:
    fed = Fed(FullLoads([(("bank",), 10.0), ((), 20.0)]))
    provider = fed.join()
    fed.offer(provider, "a bank", "bank x")
    fed.take()
    fed.registry.load(provider, 1)
    assert [record.full_load for record in fed.take()] == [None, None]


def test_another_table_counts_from_then_on() -> None:
    fed = Fed(FullLoads([(("bank",), 10.0)]))
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.take()
    fed.registry.load(provider, 1)
    fed.feed.use(FullLoads([(("b*",), 30.0)]))
    fed.registry.load(provider, 1)
    fed.feed.use(FullLoads(()))
    fed.registry.load(provider, 1)
    assert [record.full_load for record in fed.take()] == [10, 30, None]


def test_the_table_keeps_a_bounded_number_of_names_and_goes_on_being_right() -> None:
    table = FullLoads([(("*7",), 7.0)])
    for _ in range(2):
        for number in range(KEPT + 10):
            assert table.of(f"s{number}") == (7.0 if number % 10 == 7 else None)
            assert len(table._kept) <= KEPT


# stop


def test_a_feed_that_was_stopped_tells_nothing_and_the_registry_tells_nobody(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.take()
    fed.feed.stop()
    fed.registry.load(provider, 1)
    fed.offer(provider, "shop")
    fed.registry.leave(provider)
    assert fed.take() == []


# random sequences

NAMES = st.sampled_from(["a", "b", "c"])
PROVIDERS = st.integers(1, 3)
CALLS = st.one_of(
    st.tuples(st.just("join")),
    st.tuples(st.just("offer"), PROVIDERS, st.lists(NAMES, max_size=3), st.sampled_from(["tcp", "http"])),
    st.tuples(st.just("withdraw"), PROVIDERS, st.lists(NAMES, max_size=2)),
    st.tuples(st.just("amend"), PROVIDERS, NAMES, st.sampled_from([None, 1.0, 2.0])),
    st.tuples(st.just("leave"), PROVIDERS, st.sampled_from(["left", "expired"])),
    st.tuples(st.just("load"), PROVIDERS),
    st.tuples(st.just("beat"), PROVIDERS),
    st.tuples(st.just("own"), st.lists(NAMES, max_size=2)),
)


def call(fed: Fed, name: str, *arguments: Any) -> None:
    """Apply one operation to the registry: to the provider of that number from the last, if it exists."""
    registry = fed.registry
    if name == "join":
        fed.join()
        return
    if name == "own":
        registry.offer_own([Service(each, "h:0", BROKER) for each in arguments[0]])
        return
    present = [provider.id for provider in registry.providers()][-arguments[0] :]
    if not present:
        return
    provider = present[0]
    if name == "offer":
        fed.offer(provider, *arguments[1], protocol=arguments[2])
    elif name == "withdraw":
        registry.withdraw(provider, arguments[1])
    elif name == "leave":
        registry.leave(provider, arguments[1])
    elif name == "load":
        registry.load(provider, 1.0)
    elif name == "beat":
        fed.registry.beat(provider, None)
    else:
        known = registry.provider(provider)
        assert known is not None
        for service in known.services:
            if service.name == arguments[1]:
                # Of several of one name and protocol it is the first that can be amended.
                key = (service.name, service.protocol)
                first = next(one for one in known.services if (one.name, one.protocol) == key)
                try:
                    registry.amend(attrs.evolve(service, interval=arguments[2]))
                except Refusal:
                    assert service.hostport != first.hostport


@given(st.lists(CALLS, max_size=30))
def test_registrations_and_their_ends_balance_after_whatever_happens(calls: list[tuple[Any, ...]]) -> None:
    with nothing_fails():
        fed = Fed()
        for name, *arguments in calls:
            call(fed, name, *arguments)
            there: Counter[tuple[object, ...]] = Counter()
            for record in fed.records:
                key = (record.provider, record.service, record.endpoint, record.protocol)
                there[key] += BALANCED.get(record.event, 0)
                assert there[key] >= 0, "nothing ends that did not begin"
                assert record.event in BALANCED or there[key] > 0, "nothing is told of what is not there"
            live = Counter(
                (s.provider, s.name, s.hostport, s.protocol) for s in fed.registry.services() if s.provider != BROKER
            )
            assert +there == live
        for provider in fed.registry.providers():
            fed.registry.leave(provider.id)
        assert sum(BALANCED.get(record.event, 0) for record in fed.records) == 0
        kept = (fed.feed._providers, fed.feed._beats, fed.feed._loads, fed.feed._waiting)
        assert kept == ({}, {}, {}, {}), "and nothing is kept of providers that left"


def test_reports_follow_the_services_of_their_provider_and_heartbeats_count_on(fed: Fed) -> None:
    provider = fed.join()

    def reported() -> list[tuple[str, str | None, int | None, int | None]]:
        fed.take()
        fed.registry.load(provider, 1)
        fed.registry.beat(provider, None)
        return [(r.event, r.service, r.interval_ms, r.hb_seq) for r in fed.take()]

    [bank] = fed.offer(provider, "bank", interval=1.0)
    assert reported() == [("load", "bank", None, None), ("hb", "bank", 1000, 1)]
    fed.offer(provider, "shop")
    assert reported() == [
        ("load", "bank", None, None),
        ("load", "shop", None, None),
        ("hb", "bank", 1000, 2),
        ("hb", "shop", None, 2),
    ]
    fed.registry.withdraw(provider, ["shop"])
    fed.registry.amend(attrs.evolve(bank, interval=2.0))
    assert reported() == [("load", "bank", None, None), ("hb", "bank", 2000, 3)]
    fed.registry.withdraw(provider, ["bank"])
    assert reported() == []
    fed.offer(provider, "bank")
    assert reported() == [("load", "bank", None, None), ("hb", "bank", None, 5)]


def test_of_services_that_are_equal_each_ends_once(fed: Fed) -> None:
    provider = fed.join()
    for _ in range(2):
        fed.offer(provider, "bank")
    fed.registry.leave(provider)
    assert [record.event for record in fed.take()] == ["register", "register", "unregister", "unregister"]


@given(st.lists(CALLS, max_size=30))
def test_a_heartbeat_tells_of_just_the_services_that_the_registry_has(calls: list[tuple[Any, ...]]) -> None:
    with nothing_fails():
        fed = Fed()
        for name, *arguments in calls:
            call(fed, name, *arguments)
        for provider in fed.registry.providers():
            fed.take()
            fed.registry.beat(provider.id, None)
            assert [(r.service, r.endpoint, r.protocol, r.interval_ms) for r in fed.take()] == [
                (s.name, s.hostport, s.protocol, None if s.interval is None else s.interval * 1000)
                for s in provider.services
            ]


# floods


def told(records: list[Record]) -> list[tuple[str, float | int | None, int | None]]:
    """Reduce records of loads and heartbeats to their event, value and number of coalesced reports."""
    return [(r.event, r.hb_seq if r.event == "hb" else r.load, r.coalesced) for r in records]


def test_reports_that_come_too_fast_coalesce_and_the_newest_is_told_in_its_turn(fed: Fed) -> None:
    provider, other = fed.join(), fed.join()
    fed.offer(provider, "bank")
    fed.offer(other, "shop")
    fed.take()
    for load in range(IN_ADVANCE + 1):
        fed.registry.load(provider, load)
    assert told(fed.take()) == [("load", load, None) for load in range(IN_ADVANCE + 1)], "which it has in advance"
    for load in range(500):
        fed.registry.load(provider, load)
    fed.registry.load(other, 7)
    assert told(fed.take()) == [("load", 7, None)], "another provider's report does not wait"
    fed.feed.catch_up()
    assert fed.take() == []
    fed.clock.advance(0.5)
    fed.feed.catch_up()
    [record] = fed.take()
    assert (record.load, record.coalesced, record.ts) == (499, 499, AT), "when the newest one came"
    assert fed.feed.counts() == {"journal_records.coalesced": 499}
    fed.feed.catch_up()
    assert fed.take() == []
    fed.clock.advance(2 * IN_ADVANCE / RECORDS)
    fed.registry.load(provider, 3)
    assert told(fed.take()) == [("load", 3, None)]


def test_a_flood_of_a_provider_of_many_services_makes_a_bounded_number_of_records(fed: Fed) -> None:
    names = [f"service-{number}" for number in range(1_000)]
    provider = fed.join()
    fed.offer(provider, *names)
    fed.take()
    reports, seconds = 78, 60
    for _ in range(seconds):
        for load in range(reports):
            fed.registry.load(provider, load)
            fed.registry.beat(provider, None)
        fed.clock.advance(1)
        fed.feed.catch_up()
    records = fed.take()
    counted = Counter(record.event for record in records)
    assert all(counted[event] <= IN_ADVANCE + len(names) + RECORDS * seconds for event in ("load", "hb"))
    assert {record.service for record in records} == set(names)
    last = {r.event: r for r in records}
    assert last["load"].load == reports - 1
    fed.feed.stop()
    stands_for = sum(1 + (r.coalesced or 0) for r in [*records, *fed.take()])
    assert stands_for == 2 * seconds * reports * len(names), "each report is told of, or counted in one that is"


def test_heartbeats_that_come_too_fast_coalesce_too_with_the_newest_number_and_time(fed: Fed) -> None:
    provider = fed.join("", "dbp")
    fed.offer(provider, "bank", interval=0.05)
    fed.take()
    for number in range(IN_ADVANCE + 21):
        fed.registry.beat(provider, START + number)
    beats = fed.take()
    assert [record.hb_seq for record in beats] == list(range(1, IN_ADVANCE + 2))
    fed.clock.advance(1)
    fed.feed.catch_up()
    [record] = fed.take()
    assert (record.hb_seq, record.coalesced) == (IN_ADVANCE + 21, 19)
    assert record.sent_ts == microseconds(START + IN_ADVANCE + 20)


def test_a_load_a_second_of_a_thousand_services_is_told_at_least_each_minute_and_of_more_too(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, *(f"service-{number}" for number in range(10_000)))
    fed.take()
    at = []
    for second in range(300):
        fed.registry.load(provider, second)
        fed.clock.advance(1)
        fed.feed.catch_up()
        at += [second] * bool(fed.take())
    assert max(after - before for before, after in pairwise([0, *at])) <= LONGEST_WAIT + 1


def test_what_waits_is_told_by_the_stop_and_not_when_the_provider_goes(fed: Fed) -> None:
    for gone in (True, False):
        provider = fed.join()
        fed.offer(provider, "bank")
        for load in range(IN_ADVANCE + 10):
            fed.registry.load(provider, load)
        fed.take()
        if gone:
            fed.registry.leave(provider)
            assert brief(fed.take()) == [("unregister", "bank", "left")]
    fed.feed.stop()
    assert told(fed.take()) == [("load", IN_ADVANCE + 9, 8)]


def test_a_clock_that_is_set_back_keeps_no_report_waiting(fed: Fed) -> None:
    provider = fed.join()
    fed.offer(provider, "bank")
    fed.registry.load(provider, 1)
    fed.clock.rightNow -= 3_600
    fed.take()
    fed.registry.load(provider, 2)
    fed.feed.catch_up()
    assert told(fed.take()) == [("load", 2, None)]
    fed.registry.load(provider, 3)
    assert told(fed.take()) == [("load", 3, None)]
