"""The small parts: names, tables with several values, and the queue of the least loaded, against a plain sort."""

from __future__ import annotations

import tracemalloc

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.core.director.director_interfaces import UNLIMITED
from broker.core.director.farm_state import (
    MAX_CAPACITY_HINTS,
    LinkReport,
    OpenContext,
    Server,
    context_set,
    family,
    user_set,
)
from broker.core.director.farm_tables import LARGE, CapacityHint, CapacityHints, CountedMultiMap, MultiMap
from broker.core.director.server_selection import LeastLoaded, ServerSelection


@pytest.mark.parametrize(
    ("name", "its_family", "its_context_set", "its_user_set"),
    [
        ("context", "context", None, None),
        ("context-a", "context", None, None),
        ("context-a-1", "context", "context-a", "context-a"),
        ("context-a-b-1", "context", "context-a-b", "context-a"),
        ("user-alice-8232480406087251935", "user", "user-alice", "user-alice"),
        ("a--", "a", "a-", "a-"),
        ("--", "", "-", "-"),
        ("-", "", None, None),
        ("", "", None, None),
    ],
)
def test_dashes_tell_families_and_sets(
    name: str, its_family: str, its_context_set: str | None, its_user_set: str | None
) -> None:
    assert family(name) == its_family
    assert context_set(name) == its_context_set
    assert user_set(name) == its_user_set


@pytest.mark.parametrize("kind", [MultiMap, CountedMultiMap])
def test_a_large_table_gives_its_memory_back_when_few_keys_are_left(
    kind: type[MultiMap[int, int] | CountedMultiMap[int, int]],
) -> None:
    many = range(4 * LARGE)
    tracemalloc.start()
    try:
        table = kind()
        for key in many:
            table.add(key, 1)
        large = tracemalloc.get_traced_memory()[0]
        for key in many[10:]:
            table.remove(key, 1)
        assert tracemalloc.get_traced_memory()[0] < large / 8
    finally:
        tracemalloc.stop()
    assert [(key, table.all(key)) for key in table] == [(key, (1,)) for key in many[:10]]


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 4))))
def test_a_table_of_several_values_is_like_one_of_lists(changes: list[tuple[int, int]]) -> None:
    multi: MultiMap[int, int] = MultiMap()
    plain: dict[int, list[int]] = {}
    for key, value in changes:
        values = plain.setdefault(key, [])
        if value in values:
            values.remove(value)
            assert multi.remove(key, value) == (not values)
        else:
            values.append(value)
            assert multi.add(key, value) == (len(values) == 1)
        if not values:
            del plain[key]
        assert sorted(multi) == sorted(plain)
        assert len(multi) == len(plain)
        for each in range(3):
            assert multi.all(each) == tuple(plain.get(each, ()))
            assert multi.first(each) == next(iter(plain.get(each, ())), None)


class Nobody:
    def receive(self, order: object) -> None:
        raise AssertionError("nobody is told anything here")


def make(count: int) -> list[Server]:
    servers = []
    for number in range(count):
        server = Server(number)
        report = LinkReport(str(number), Nobody())
        report.addresses["tcp"] = f"{number}:1"
        report.families["context"] = False
        server.admit(report)
        server.settle()
        servers.append(server)
    return servers


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("load"), st.integers(0, 5), st.integers(0, 4)),
            st.tuples(st.just("users"), st.integers(0, 5), st.integers(0, 3)),
            st.tuples(st.just("capacity"), st.integers(0, 5), st.integers(-1, 3)),
            st.tuples(st.just("gone"), st.integers(0, 5), st.just(0)),
            st.tuples(st.just("choose"), st.just(0), st.integers(1, 3)),
        ),
        max_size=60,
    )
)
def test_the_least_loaded_is_the_first_of_a_plain_sort(changes: list[tuple[str, int, int]]) -> None:
    servers = make(6)
    there = set(servers)
    selection = ServerSelection(0.25)
    for server in servers:
        selection.settle(server)
    for what, place, value in changes:
        server = servers[place]
        if what == "load":
            selection.load(server, value / 4)
        elif what == "users":
            server.users = value
            server.room_made()
        elif what == "capacity":
            server.capacity = value
            server.room_made()
        elif what == "gone" and server in there:
            there.remove(server)
            selection.remove(server)
        elif what == "gone":
            there.add(server)
            selection.settle(server)
        for _ in range(value if what == "choose" else 1):
            expected = min(
                (server for server in there if not server.full),
                key=lambda server: (server.weight, server.number),
                default=None,
            )
            assert selection.first("context", "tcp", False) is expected
            if expected is not None and what == "choose":
                selection.placed(expected)


def test_a_queue_does_not_grow_with_the_reports() -> None:
    queue = LeastLoaded()
    servers = make(10)
    for server in servers:
        queue.add(server)
    for turn in range(1_000):
        for server in servers:
            server.weight = 1.0 / (turn + 1)
            queue.lowered(server)
    assert len(queue._heap) <= 2 * len(servers) + 65


def test_no_queue_is_kept_for_families_that_nobody_serves() -> None:
    selection = ServerSelection(0.25)
    (server,) = make(1)
    selection.settle(server)
    assert len(selection._queues) == 2
    server.families = {"other": True}
    selection.settle(server)
    assert set(selection._queues) == {("other", "tcp", True)}
    selection.remove(server)
    selection.remove(server)
    assert selection._queues == {}
    assert selection._keys == {}


def test_a_server_with_many_links_gives_each_its_own_bit_and_the_free_ones_again() -> None:
    server = Server(1)
    report = [LinkReport("x", Nobody()) for _ in range(70)]
    for each in report:
        server.admit(each)
    assert [each.bit for each in report] == [1 << n for n in range(70)]
    server.dismiss(report[3])
    again = LinkReport("x", Nobody())
    server.admit(again)
    assert again.bit == 1 << 3
    assert server.newest is again.link
    server.dismiss(again)
    assert server.newest is report[-1].link


@pytest.mark.parametrize(
    ("name", "maxcap", "basecap", "key", "shape"),
    [
        ("context-a", 5, 5, "context-a", CapacityHint(False, 5)),
        ("context-a", 5, 2, "context-a", CapacityHint(False, 5)),
        ("context-a", -1, -1, "context-a", None),  # as without a hint
        ("context-a-1", 5, 2, "context-a", CapacityHint(True, 2)),
        ("context-a-1", 2, 5, "context-a", CapacityHint(True, 2)),
        ("context-a-1", -1, 5, "context-a", CapacityHint(True, 5)),
        ("context-a-1", 5, -1, "context-a", CapacityHint(False, 5)),
    ],
)
def test_how_many_a_context_is_meant_for_is_remembered(
    name: str, maxcap: int, basecap: int, key: str, shape: CapacityHint | None
) -> None:
    capacity_hints = CapacityHints()
    context = OpenContext(name, Server(1))
    context.maxcap, context.basecap = maxcap, basecap
    capacity_hints.remember(context)
    assert capacity_hints.get(key) == shape


def test_only_so_many_shapes_are_remembered_and_the_oldest_is_forgotten() -> None:
    capacity_hints = CapacityHints()
    server = Server(1)

    def remember(name: str) -> None:
        context = OpenContext(name, server)
        context.maxcap = 5
        capacity_hints.remember(context)

    for number in range(MAX_CAPACITY_HINTS):
        remember(f"context-{number}")
    remember("context-0")
    remember("context-new")
    assert capacity_hints.get("context-0") is not None
    assert capacity_hints.get("context-1") is None


def test_a_context_that_becomes_unlimited_has_no_hint_any_more() -> None:
    capacity_hints, context = CapacityHints(), OpenContext("context-a", Server(1))
    context.maxcap = 5
    capacity_hints.remember(context)
    context.maxcap = UNLIMITED
    capacity_hints.remember(context)
    assert capacity_hints.get("context-a") is None
