"""The table of the keys in etcd: its index of a member's keys follows each change, whatever the order."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import KeyValue
from broker.cluster.key_table import Bad, Table, Touched
from broker.cluster.layout import Keys, MemberValue, RegistrationValue, ServiceValue
from broker.core import turns
from broker.core.cluster.cluster_interfaces import Key

KEYS = Keys("farm")
LEASES = {"a": 7, "b": 8, "c": 9}
"""Leases of the members."""

REGISTRATIONS: tuple[Key, ...] = (("elko", "bank", "tcp", "h:1"), ("elko", "bank", "tcp", "h:2"))


def value(broker: str, key: Key, provider: int = 1) -> bytes:
    _, name, protocol, hostport = key
    return layout.encode(RegistrationValue(broker, provider, ServiceValue(name, hostport, protocol)))


def table() -> Table:
    """A table with the members of `LEASES`."""
    made = Table(KEYS, Bad())
    for name, lease in LEASES.items():
        made.put(KeyValue(KEYS.member(name), layout.encode(MemberValue("i")), 1, 1, lease), Touched())
    return made


def scanned(of: Table, name: str) -> set[Key]:
    """The keys at which a member has an entry or a standby, without the index."""
    entries = {key for key, entry in of.entries.items() if entry.broker == name}
    return entries | {key for key, standbys in of.standbys.items() if name in standbys}


def drop(of: Table, name: str, over: bool = False) -> int:
    """Drop what is held of a member. Returns the number of steps."""
    return len(list(of.drop_held(name, lambda: over or not of.has_key(name), lambda: 99)))


changes = st.tuples(
    st.sampled_from(["put", "delete", "bad"]), st.booleans(), *map(st.sampled_from, (list(LEASES), REGISTRATIONS))
)


def change(into: Table, number: int, kind: str, standby: bool, name: str, key: Key) -> Touched:
    """Put or delete the registration at a key, or the standby of a member there."""
    touched = Touched()
    text = KEYS.standby(key, name) if standby else KEYS.registration(key)
    if kind == "delete":
        into.delete(text, number, touched)
    else:
        given = value(name, key) if kind == "put" else b"rubbish"
        into.put(KeyValue(text, given, number, number, LEASES[name]), touched)
    return touched


@given(st.lists(changes, max_size=20))
def test_the_keys_of_a_member_are_those_that_a_scan_finds(each: list[tuple[str, bool, str, Key]]) -> None:
    made = table()
    for number, what in enumerate(each, 2):
        touched = change(made, number, *what)
        assert what[3] in touched.registrations
        for name in LEASES:
            assert set(made.of(name)) == scanned(made, name)


@given(st.lists(changes, max_size=12), st.booleans(), st.sampled_from([None, *LEASES]))
def test_held_entries_are_indexed_until_they_are_dropped(
    each: list[tuple[str, bool, str, Key]], lost: bool, dropped: str | None
) -> None:
    before = table()
    for number, what in enumerate(each, 2):
        change(before, number, *what)
    made = Table(KEYS, Bad())
    turns.all_at_once(made.hold(before, "a", lost, {}))
    assert not made.of("a")
    assert set(made.members) == ({"b", "c"} if lost else set())
    for name in ("b", "c"):
        assert set(made.of(name)) == scanned(made, name) == (scanned(before, name) if lost else set())
    for name in LEASES:
        if dropped in (None, name):
            drop(made, name, over=True)
    for name in LEASES:
        assert set(made.of(name)) == scanned(made, name)
        assert not made.of(name) or dropped not in (None, name)


@given(st.lists(changes, max_size=12), st.booleans())
def test_what_a_held_lease_had_counts_until_its_member_has_restored(
    each: list[tuple[str, bool, str, Key]], hold: bool
) -> None:
    made = table()
    for number, what in enumerate(each, 2):
        change(made, number, *what)
    had = [made.valid(key) for key in REGISTRATIONS]
    made.delete(KEYS.member("b"), 90, Touched(), lambda name: hold)
    for key in made.of("b"):
        # As etcd deletes what is under a lease.
        entry = made.entries.get(key)
        if entry is not None and entry.broker == "b":
            made.delete(KEYS.registration(key), 90, Touched())
            assert made.modified(key) == 0
        if "b" in made.standbys.get(key, ()):
            made.delete(KEYS.standby(key, "b"), 90, Touched())
    left = [entry if entry is None or entry.broker != "b" else None for entry in had]
    assert [made.valid(key) for key in REGISTRATIONS] == (had if hold else left)
    assert set(made.of("b")) == scanned(made, "b")
    touched = Touched()
    made.put(KeyValue(KEYS.member("b"), layout.encode(MemberValue("i", restored=True)), 91, 91, 18), touched)
    assert touched.due is hold
    drop(made, "b")
    assert [made.valid(key) for key in REGISTRATIONS] == left
    assert not made.of("b")
    assert not made.held


def test_a_member_with_another_lease_is_touched_with_the_keys_that_it_has_now() -> None:
    made = table()
    first, second = REGISTRATIONS
    change(made, 2, "put", False, "a", first)
    change(made, 3, "put", False, "a", second)
    change(made, 4, "put", False, "b", first)
    touched = Touched()
    made.put(KeyValue(KEYS.member("a"), layout.encode(MemberValue("i")), 1, 5, 10), touched)
    assert (touched.leases, [*made.of("a")]) == ({"a": 5}, [second])
    touched = Touched()
    made.delete(KEYS.member("b"), 6, touched)
    assert (touched.leases, [*made.of("b")]) == ({"b": 6}, [first])


def test_a_lease_that_ends_after_the_return_of_its_member_is_not_due_with_the_one_before() -> None:
    made = table()
    change(made, 2, "put", False, "b", REGISTRATIONS[0])
    made.delete(KEYS.member("b"), 3, Touched(), hold=lambda name: True)
    # It is back under another lease, restores one of its registrations, and is gone again before anything was dropped.
    restored = layout.encode(MemberValue("i", restored=True))
    made.put(KeyValue(KEYS.member("b"), restored, 4, 4, 18), Touched())
    again = RegistrationValue("b", 2, ServiceValue("bank", "h:2"), "server")
    made.put(KeyValue(KEYS.registration(REGISTRATIONS[1]), layout.encode(again), 5, 5, 18), Touched())
    made.delete(KEYS.member("b"), 6, Touched(), hold=lambda name: True)
    assert list(made.held.values()) == [True, False]
    list(made.drop_held("b", bool, lambda: 6))
    assert [made.valid(key) is not None for key in REGISTRATIONS[:2]] == [False, True]
    assert list(made.held.values()) == [False]


@pytest.mark.parametrize("restored", [True, False], ids=["restored", "ended"])
def test_what_a_member_with_many_registrations_had_is_dropped_in_steps(
    restored: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "PIECE", 10)
    keys: list[Key] = [("elko", "bank", "tcp", f"h:{number}") for number in range(95)]
    made = table()
    for number, key in enumerate(keys, 2):
        change(made, number, "put", False, "b", key)
    made.delete(KEYS.member("b"), 99, Touched(), hold=lambda name: True)
    came = KeyValue(KEYS.member("b"), layout.encode(MemberValue("i", restored=restored)), 100, 100, 18)
    touched = Touched()
    made.put(came, touched)
    if not restored:
        assert list(made.drop_held("b", bool, lambda: 101)) == []
        made.delete(KEYS.member("b"), 101, touched)
    # Nothing is dropped at once; from then on, a piece in each step.
    assert touched.due
    assert not touched.registrations
    for left, step in zip([*range(85, 0, -10), 0, 0], made.drop_held("b", bool, lambda: 102), strict=True):
        assert len(step.registrations) <= 10
        assert sum(made.valid(key) is not None for key in keys) == left
    assert not made.held
