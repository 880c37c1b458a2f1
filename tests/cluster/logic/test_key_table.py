"""The table of the keys in etcd: its index of a member's keys follows each change, whatever the order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import KeyValue
from broker.cluster.key_table import Bad, Table, Touched
from broker.cluster.layout import Keys, MemberValue, RegistrationValue, ServiceValue
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
            assert len(made.of(name)) == len(set(made.of(name)))


@given(st.lists(changes, max_size=12), st.booleans(), st.sampled_from([None, *LEASES]))
def test_held_entries_are_indexed_until_they_are_dropped(
    each: list[tuple[str, bool, str, Key]], lost: bool, dropped: str | None
) -> None:
    before = table()
    for number, what in enumerate(each, 2):
        change(before, number, *what)
    made = Table(KEYS, Bad())
    made.hold(before, "a", lost)
    assert not made.of("a")
    for name in ("b", "c"):
        assert set(made.of(name)) == scanned(made, name) == (scanned(before, name) if lost else set())
    made.drop_held(dropped)
    for name in LEASES:
        assert set(made.of(name)) == scanned(made, name)
        assert not made.of(name) or dropped not in (None, name)


def test_a_member_with_another_lease_touches_the_keys_that_it_has_now() -> None:
    made = table()
    first, second = REGISTRATIONS
    change(made, 2, "put", False, "a", first)
    change(made, 3, "put", False, "a", second)
    change(made, 4, "put", False, "b", first)
    touched = Touched()
    made.put(KeyValue(KEYS.member("a"), layout.encode(MemberValue("i")), 1, 5, 10), touched)
    assert touched.registrations == {second: 5}
    touched = Touched()
    made.delete(KEYS.member("b"), 6, touched)
    assert touched.registrations == {first: 6}
