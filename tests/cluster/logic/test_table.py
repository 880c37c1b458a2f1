"""The table of the keys in etcd: its indexes follow the newest value of each key."""

from __future__ import annotations

from broker.cluster import layout
from broker.cluster.etcd.etcd_interface import KeyValue
from broker.cluster.key_table import Bad, Place, Table, Touched
from broker.cluster.layout import Keys, MemberValue, ProviderValue, ServiceValue

KEYS = Keys("farm")
LEASE = 7


def table() -> Table:
    """A table with the members "a" and "b", both under the lease `LEASE`."""
    made = Table(KEYS, Bad())
    for name in "ab":
        made.put(KeyValue(KEYS.member(name), layout.encode(MemberValue("i")), 1, 1, LEASE), Touched())
    return made


def put(
    into: Table, id: int, revision: int, *services: str, broker: str = "a", replaces: tuple[int, ...] = ()
) -> Touched:
    """Put a provider with these services; returns what that touches."""
    touched = Touched()
    offered = [ServiceValue(name=name, hostport="h:1") for name in services]
    value = ProviderValue(broker=broker, label="x", wire="elko", services=offered, replaces=list(replaces))
    into.put(KeyValue(KEYS.provider(id), layout.encode(value), 1, revision, LEASE), touched)
    return touched


def place(name: str) -> Place:
    return "elko", name, "tcp", "h:1"


def test_a_new_value_of_a_provider_takes_the_old_one_out_of_all_indexes() -> None:
    made = table()
    put(made, 5, 2, "bank", "mint", replaces=(3,))
    put(made, 3, 2, "bank", broker="b")
    assert (made.successor(3), list(made.at(place("bank"))), made.of("a")) == (5, [5, 3], (5,))
    touched = put(made, 5, 3, "mint", broker="b")
    assert (made.successor(3), made.replacing(3)) == (None, ())
    assert (list(made.at(place("bank"))), list(made.at(place("mint")))) == ([3], [5])
    assert (made.of("a"), made.of("b")) == ((), (3, 5))
    assert list(touched.providers) == [3, 5], "the one that is not replaced any more is touched, too"
