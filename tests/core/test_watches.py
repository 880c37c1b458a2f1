"""Watches: the changes that each watcher receives, and how a watcher resumes."""

from __future__ import annotations

import attrs
import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.model import Auth, Change, Kind, Load, Rights, Service
from broker.core.registered_services import Restored
from broker.core.registry import Registry
from broker.core.watches import FULL_RING, PIECE, RING, RING_BYTES, Notifier, Watches


@pytest.fixture
def registry() -> Registry:
    clock = Clock()
    return Registry(clock, iter(range(1, 100)).__next__, Restored((), 0.0, clock, lambda ids: None))


def history(registry: Registry) -> list[tuple[int, Kind, int, object]]:
    """Make one change of each kind. Returns the changes."""
    id = registry.join("one", "elko", "")
    service = Service("bank", "h:1", id)
    registry.offer([service], Rights())
    registry.load(id, 0.5)
    amended = attrs.evolve(service, info="{}")
    registry.amend(amended)
    registry.withdraw(id, ["bank"])
    registry.leave(id)
    return [
        (1, Kind.JOINED, id, "one"),
        (2, Kind.OFFERED, id, service),
        (3, Kind.LOAD, id, Load(id, "one", 0.5)),
        (4, Kind.AMENDED, id, amended),
        (5, Kind.WITHDRAWN, id, amended),
        (6, Kind.LEFT, id, "one"),
    ]


def shown(changes: object) -> list[tuple[int, Kind, int, object]]:
    assert isinstance(changes, list)
    return [(change.revision, change.kind, change.provider, change.subject) for change in changes]


def test_every_change_is_told_in_order(registry: Registry) -> None:
    heard: list[Change] = []
    registry.watch(heard.append)
    assert shown(heard) == []
    expected = history(registry)
    assert shown(heard) == expected
    assert registry.revision == 6


@pytest.mark.parametrize("kinds", [(Kind.LOAD,), (Kind.OFFERED, Kind.WITHDRAWN), (Kind.AMENDED,), ()])
def test_a_watcher_hears_of_the_kinds_that_it_asked_for(registry: Registry, kinds: tuple[Kind, ...]) -> None:
    heard: list[Change] = []
    registry.watch(heard.append, kinds)
    expected = [change for change in history(registry) if change[1] in kinds]
    assert shown(heard) == expected


def test_a_provider_that_leaves_withdraws_first(registry: Registry) -> None:
    id = registry.join("one", "elko", "")
    services = [Service("a", "h:1", id), Service("b", "h:2", id)]
    registry.offer(services, Rights())
    heard: list[Change] = []
    registry.watch(heard.append)
    registry.leave(id)
    assert [(change.kind, change.subject) for change in heard] == [
        (Kind.WITHDRAWN, services[0]),
        (Kind.WITHDRAWN, services[1]),
        (Kind.LEFT, "one"),
    ]


def test_a_cancelled_watch_hears_nothing_and_cancelling_twice_is_harmless(registry: Registry) -> None:
    heard: list[Change] = []
    stays: list[Change] = []
    watch = registry.watch(heard.append)
    registry.watch(stays.append)
    watch.cancel()
    watch.cancel()
    history(registry)
    assert heard == []
    assert len(stays) == 6


def test_a_watch_cancelled_by_another_watcher_hears_nothing(registry: Registry) -> None:
    heard: list[Change] = []
    registry.watch(lambda change: second.cancel())
    second = registry.watch(heard.append)
    registry.join("one", "elko", "")
    assert heard == []


def test_a_watch_begun_by_a_watcher_hears_from_the_next_change_on(registry: Registry) -> None:
    heard: list[Change] = []

    def replace(change: Change) -> None:
        first.cancel()
        registry.watch(heard.append)

    first = registry.watch(replace)
    registry.join("one", "elko", "")
    registry.join("two", "elko", "")
    assert [change.revision for change in heard] == [2]


def test_a_watcher_that_makes_changes_hears_of_each_when_it_is_done_with_the_one_before(registry: Registry) -> None:
    heard: list[int] = []
    hearing: list[int] = []

    def change_again(change: Change) -> None:
        assert hearing == []
        hearing.append(change.revision)
        if change.revision < 5:
            registry.join("p", "elko", "")
        heard.append(hearing.pop())

    registry.watch(change_again)
    with capturedLogs() as logs:
        registry.join("p", "elko", "")
    assert logs == []
    assert heard == [1, 2, 3, 4, 5]


def test_a_failing_watcher_keeps_no_one_from_hearing(registry: Registry) -> None:
    def fails(change: Change) -> None:
        raise ZeroDivisionError("as it is meant to")

    heard: list[Change] = []
    registry.watch(fails)
    registry.watch(heard.append)
    with capturedLogs() as logs:
        expected = history(registry)
    assert shown(heard) == expected
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError] * 6


# resuming


def test_changes_since_a_revision_are_exactly_those_after_it(registry: Registry) -> None:
    expected = history(registry)
    for revision in range(7):
        assert shown(registry.changes_since(registry.epoch, revision)) == expected[revision:]


def test_a_load_is_kept_the_same_whether_anybody_watches_or_not(registry: Registry) -> None:
    id = registry.join("one", "elko", "")
    registry.load(id, 1.0)
    heard: list[Change] = []
    registry.watch(heard.append, (Kind.LOAD,))
    registry.load(id, 2.0)
    changes = registry.changes_since(registry.epoch, 1)
    assert shown(changes) == [(2, Kind.LOAD, id, Load(id, "one", 1.0)), (3, Kind.LOAD, id, Load(id, "one", 2.0))]


def test_who_is_told_of_loads_hears_of_each_in_order_with_all_changes_until_it_ends(registry: Registry) -> None:
    heard: list[object] = []
    registry.watch(lambda change: heard.append(change.kind), (Kind.OFFERED, Kind.LEFT))
    watch = registry.watch_loads(lambda provider, load, details: heard.append((provider, load)))
    id = registry.join("one", "elko", "")
    registry.offer([Service("bank", "h:1", id)], Rights())
    registry.load(id, 0.5)
    registry.load(id, 0.5)
    registry.load(id, 0.0)
    registry.load(99, 1.0)
    watch.cancel()
    watch.cancel()
    registry.load(id, 2.0)
    registry.leave(id)
    assert heard == [Kind.OFFERED, (id, 0.5), (id, 0.5), (id, 0.0), Kind.LEFT]


def test_a_load_that_is_reported_while_others_are_told_is_told_after_what_was_before_it(registry: Registry) -> None:
    heard: list[object] = []
    registry.watch(lambda change: registry.load(change.provider, 0.5), (Kind.OFFERED,))
    registry.watch(lambda change: heard.append(change.kind), (Kind.OFFERED, Kind.LOAD))
    registry.watch_loads(lambda provider, load, details: heard.append((provider, load)))
    id = registry.join("one", "elko", "")
    registry.offer([Service("bank", "h:1", id)], Rights())
    assert heard == [Kind.OFFERED, (id, 0.5), Kind.LOAD]


def test_who_ends_while_a_load_is_told_hears_no_more(registry: Registry) -> None:
    heard: list[float] = []
    registry.watch_loads(lambda provider, load, details: second.cancel())
    second = registry.watch_loads(lambda provider, load, details: heard.append(load))
    registry.load(registry.join("one", "elko", ""), 0.5)
    assert heard == []


@pytest.mark.parametrize("revision", [1, 2, 100, -1])
def test_there_is_no_future_and_nothing_before_the_beginning(registry: Registry, revision: int) -> None:
    assert registry.changes_since(registry.epoch, 0) == []
    assert registry.changes_since(registry.epoch, revision) is None


def test_what_fell_out_of_the_ring_is_not_known_any_more() -> None:
    watches = Watches(Notifier(), Clock())
    for number in range(FULL_RING):
        watches.record_load(1, "one", float(number))
    changes = watches.since(PIECE, tuple(Kind))
    assert changes is not None
    assert [change.revision for change in changes] == list(range(PIECE + 1, FULL_RING + 1))
    assert watches.since(PIECE - 1, tuple(Kind)) is None
    assert watches.since(0, (Kind.LOAD,)) is None
    assert watches.since(FULL_RING, tuple(Kind)) == []
    assert watches.since(FULL_RING + 1, tuple(Kind)) is None


def test_a_packed_change_is_the_same_change() -> None:
    watches = Watches(Notifier(), Clock())
    subjects: list[Service | str] = [
        Service("bank", "h:1", 1),
        Service("bank", "h:1", 1, "udp", "label", Auth("password", "code", "id"), True, "{}", True, 2.5),
        "",
        "of one",
        Service("half of a pair \ud800", "h:1", 1),
    ]
    kinds = [kind for kind in Kind if kind is not Kind.LOAD]
    made = [watches.record(kind, 1, subject, "left") for _ in range(PIECE) for subject in subjects for kind in kinds]
    assert watches.since(0, tuple(Kind)) == made
    assert watches.recent((Kind.LEFT,), 7) == [change for change in made if change.kind is Kind.LEFT][-7:]


def test_the_ring_keeps_fewer_changes_of_services_with_long_descriptions() -> None:
    watches = Watches(Notifier(), Clock())
    info = "x" * 16_000
    for _ in range(RING):
        watches.record(Kind.AMENDED, 1, Service("long", "h:1", 1, info=info))
    changes = watches.recent((Kind.AMENDED,), RING)
    assert RING_BYTES // len(info) - PIECE <= len(changes) <= RING_BYTES // len(info) + 2 * PIECE
    assert watches.since(changes[0].revision - 1, (Kind.AMENDED,)) == changes
    assert watches.since(changes[0].revision - 2, (Kind.AMENDED,)) is None


def test_loads_do_not_push_other_changes_out(registry: Registry) -> None:
    id = registry.join("one", "elko", "")
    registry.offer([Service("bank", "h:1", id)], Rights())
    for number in range(FULL_RING):
        registry.load(id, float(number))
    changes = registry.changes_since(registry.epoch, 0, (Kind.JOINED, Kind.OFFERED))
    assert changes is not None
    assert [change.kind for change in changes] == [Kind.JOINED, Kind.OFFERED]
    assert registry.changes_since(registry.epoch, 0) is None


def test_loads_and_other_changes_come_in_the_order_of_their_revisions(registry: Registry) -> None:
    for _ in range(3):
        registry.load(registry.join("one", "elko", ""), 1.0)
    changes = registry.changes_since(registry.epoch, 1)
    assert changes is not None
    assert [change.revision for change in changes] == [2, 3, 4, 5, 6]


def test_a_revision_of_another_registry_is_not_known(registry: Registry) -> None:
    assert registry.changes_since(registry.epoch, 0) == []
    assert registry.changes_since(registry.epoch + 1, 0) is None


def test_a_watcher_that_falls_behind_can_take_up_without_a_gap(registry: Registry) -> None:
    id = registry.join("one", "elko", "")
    copy: dict[int, float] = {}
    at = registry.revision
    for number in range(100):
        registry.load(id, float(number))
        if number % 7 == 0:
            changes = registry.changes_since(registry.epoch, at)
            assert changes is not None
            assert [change.revision for change in changes] == list(range(at + 1, registry.revision + 1))
            at = registry.revision
            for change in changes:
                assert isinstance(change.subject, Load)
                copy[change.provider] = change.subject.load
    assert copy == {id: 98.0}


def test_the_recent_changes_are_all_that_the_rings_have(registry: Registry) -> None:
    provider = registry.join("a", "elko", "a")
    for _ in range(FULL_RING):
        registry.load(provider, 1.0)
    [joined, *loads] = registry.recent(tuple(Kind), 2 * RING)
    assert (joined.kind, len(loads), loads[-1].revision) == (Kind.JOINED, RING, registry.revision)
    assert registry.recent((Kind.JOINED,), 10) == [joined]
    assert registry.recent(tuple(Kind), 2) == loads[-2:]


def test_a_reader_may_take_changes_in_parts(registry: Registry) -> None:
    provider = registry.join("a", "elko", "a")
    for name in "bc":
        registry.load(provider, 1.0)
        registry.offer([Service(name, "h:1", provider)], Rights())
    whole = registry.changes_since(registry.epoch, 0)
    assert whole is not None
    found: list[Change] = []
    while some := registry.changes_since(registry.epoch, found[-1].revision if found else 0, tuple(Kind), 2):
        assert len(some) <= 2
        found += some
    assert found == whole
