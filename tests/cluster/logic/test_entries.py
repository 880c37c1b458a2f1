"""Entries of providers: published, mirrored, moved, and gone with their holders."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import msgspec
import pytest
from twisted.python.failure import Failure

from broker.cluster.etcd.codec import txn_request
from broker.cluster.etcd.etcd_interface import Compare, Delete, Event, Operation, Put
from broker.core.errors import Reason, Refusal
from broker.core.model import LoadDetails, Owner, Service
from tests.cluster.logic.members import Farm
from tests.examples import sampled

KEY = "s/elko/bank/tcp/h:9"
"""Key of a registration."""


@pytest.fixture
def farm() -> Farm:
    return Farm()


def test_a_service_is_found_at_all_members_until_it_leaves(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    id = a.register()
    assert farm.until(lambda: b.found() == [id] and c.found() == [id], "the service") < 0.1
    mirrored = b.registry.provider(id)
    assert mirrored is not None
    assert (mirrored.broker, mirrored.label, mirrored.wire, mirrored.address) == ("a", "server", "elko", "10.0.0.1:5")
    a.registry.leave(id)
    assert farm.until(lambda: not b.found() and not c.found(), "its end") < 0.1
    assert farm.values("s") == []


def test_a_change_of_a_provider_with_900_services_is_one_small_request(farm: Farm, monkeypatch: Any) -> None:
    [a] = farm.joined("a")
    id = a.registry.join("server", "elko", "10.0.0.1:5")
    for number in range(900):
        a.offer(id, f"service-{number:04d}", f"10.0.0.1:{10_000 + number}")
    farm.run(5.0)
    written: list[int] = []
    write = a.client.txn

    def txn(compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()) -> Any:
        if not all(isinstance(each, Put) and b"/beat/" in each.key for each in success):
            written.append(len(txn_request(compare, success, failure).body))
        return write(compare, success, failure)

    monkeypatch.setattr(a.client, "txn", txn)
    service = a.registry.services_of(id)[7]
    for change in (
        lambda: a.registry.amend(attrs.evolve(service, info='{"a":1}')),
        lambda: a.registry.withdraw(id, ["service-0008"]),
        lambda: a.offer(id, "one-more", "10.0.0.1:80"),
    ):
        written.clear()
        change()
        farm.run(0.5)
        assert [size < 1_000 for size in written] == [True], written


def test_all_of_a_service_arrives(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.registry.join("\ud800 alone", "elko", "h:5", Owner("user anna", "bank/1", "ab12"))
    a.offer(id, "bank", "h:1", label="x", info='{"a":1}', lasting=True, interval=2.5)
    farm.until(b.found, "the service")
    assert b.registry.find("bank", "tcp") == a.registry.find("bank", "tcp")
    provider = b.registry.provider(id)
    assert provider is not None
    assert (provider.label, provider.owner) == ("? alone", Owner("user anna", "bank/1", "ab12"))
    [service] = a.registry.services_of(id)
    a.registry.amend(attrs.evolve(service, info='{"a":2}'))
    farm.until(lambda: b.registry.find("bank", "tcp")[0].info == '{"a":2}', "the amendment")


def test_a_consistent_find_has_what_was_written_consistently(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    # The watch of one is behind.
    b.client.chances.delay = (0.3, 0.4)
    for number in range(3):
        done: list[object] = []
        id = a.register("bank", f"h:{number}")
        a.cluster.written().addBoth(done.append)
        farm.until(lambda done=done: done, "the write", 1.0)  # type: ignore[misc]
        assert id in farm.providers()[0]
        b.cluster.caught_up().addBoth(done.append)
        farm.until(lambda done=done: len(done) == 2, "the read", 3.0)  # type: ignore[misc]
        assert done[1] is None
        assert id in b.found()


@pytest.mark.parametrize("moves", [True, False])
def test_a_consistent_registration_is_written_although_the_watch_of_its_broker_is_behind(
    farm: Farm, moves: bool
) -> None:
    a, b, c = farm.joined("a", "b", "c")
    [watch] = a.client._watches
    push = watch.push
    watch.push = lambda *events: farm.clock.callLater(0.5, push, *events)  # type: ignore[method-assign, assignment]
    old = (b if moves else a).register()
    farm.until(lambda: farm.registrations(), "the key")
    farm.run(1.0)
    if moves:
        # The table of the broker does not have this change when it writes the next one.
        b.registry.amend(attrs.evolve(b.registry.services_of(old)[0], info="{}"))
    else:
        a.registry.leave(old)
    farm.run(0.033)
    new = a.register()
    written: list[str] = []
    a.cluster.written().addCallback(written.append)
    farm.until(lambda: written, "the write", 3.0)
    assert farm.providers()[0] == [new]
    read: list[object] = []
    c.cluster.caught_up(written[0]).addBoth(read.append)
    farm.until(lambda: read, "the read", 3.0)
    assert (read, c.found()) == ([None], [new])


def test_a_find_after_a_revision_waits_without_a_request_of_etcd(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    b.client.chances.delay = (0.3, 0.4)
    id = a.register()
    written: list[str] = []
    a.cluster.written().addCallback(written.append)
    farm.until(lambda: written, "the write", 1.0)
    assert not b.found()
    read: list[object] = []
    b.cluster.caught_up(written[0]).addBoth(read.append)
    assert not read
    farm.until(lambda: read, "the read", 3.0)
    assert (read, b.found()) == ([None], [id])
    # At once where it is known; of other data of etcd it means all that is there; and any other text is refused.
    for after in (written[0], f"other-{1 << 60}", "junk", "-7", f"x-{'9' * 30}"):
        read.clear()
        b.cluster.caught_up(after).addBoth(read.append)
        if after == written[0]:
            assert read == [None]
        farm.until(lambda: read, "the answer", 3.0)
        reason = getattr(getattr(read[0], "value", None), "reason", None)
        assert reason is (None if after in (written[0], f"other-{1 << 60}") else Reason.PARAMETER), after


def test_a_consistent_request_without_etcd_is_refused(farm: Farm) -> None:
    a, _ = farm.joined("a", "b")
    a.client.disconnect()
    refused: list[object] = []

    def note(failure: Failure) -> None:
        assert isinstance(failure.value, Refusal)
        refused.append(failure.value.reason)

    a.register()
    a.cluster.written().addErrback(note)
    a.cluster.caught_up().addErrback(note)
    farm.until(lambda: len(refused) == 2, "the refusals", 4.0)
    farm.run(20.0)
    a.cluster.written().addErrback(note)
    assert refused == [Reason.UNAVAILABLE] * 3


def test_writes_are_gathered(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    before = a.cluster.counts()["cluster.transactions"]
    ids = [a.register("bank", f"h:{number}") for number in range(250)]
    farm.until(lambda: b.found() == ids, "all services")
    assert a.cluster.counts()["cluster.transactions"] - before <= 4


def test_loads_are_coalesced_and_the_newest_wins(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(300)]
    farm.until(lambda: len(b.found()) == 300, "all services")
    farm.run(2.0)
    before = a.cluster.counts()["cluster.operations"]
    for round in range(20):
        for id in ids:
            a.registry.load(id, float(round), LoadDetails(requests=round))
        farm.run(0.1)
    farm.run(1.2)
    # 300 loads are two keys; each second has one write of both, and a beat.
    assert a.cluster.counts()["cluster.operations"] - before <= 3 * 4
    loads = {each.provider: (each.load, each.details) for each in b.registry.loads()}
    assert [loads[id] for id in ids] == [(19.0, LoadDetails(requests=19))] * 300
    [late] = farm.joined("c")
    assert {each.load for each in late.registry.loads()} == {19.0}


def test_a_provider_that_comes_back_elsewhere_moves_in_one_step(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old = a.register()
    farm.until(lambda: b.found() == c.found() == [old], "the service")
    new = b.register()
    assert b.found() == [new], "the holder returns the new one at once"
    counts = set()
    while a.found() != [new] or c.found() != [new]:
        counts |= {len(a.found()), len(b.found()), len(c.found())}
        farm.clock.advance(0.001)
    assert counts <= {1}
    assert farm.providers()[0] == [new]
    assert a.registry.wire_and_label(old) is not None, "the session of the old one stays"
    farm.until(lambda: farm.providers() == ([new], [old]), "the standby")
    assert a.found() == b.found() == c.found() == [new]
    b.registry.leave(new)
    farm.until(lambda: a.found() == b.found() == c.found() == [old], "the return of the old one")
    farm.until(lambda: farm.providers() == ([old], []), "the end of the standby")


@pytest.mark.parametrize("how", ["leaves", "dies"])
def test_a_server_at_two_members_is_never_missing_when_it_leaves_one(farm: Farm, how: str) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old = a.register()
    farm.until(lambda: c.found() == [old], "the service")
    new = b.register()
    farm.until(lambda: farm.providers() == ([new], [old]), "the standby")
    farm.run(0.1)  # the watches bring it
    if how == "leaves":
        b.registry.leave(new)
    else:
        b.kill()
    members = [a, c] if how == "dies" else [a, b, c]
    while any(each.found() != [old] for each in members):
        assert all(len(each.found()) == 1 for each in members)
        assert farm.clock.seconds() < 60
        farm.clock.advance(0.001)


@pytest.mark.parametrize("lives", [True, False])
def test_a_session_that_ends_before_its_move_is_read_leaves_a_gap_of_a_round_trip_at_most(
    farm: Farm, lives: bool
) -> None:
    a, b = farm.joined("a", "b")
    old = a.register()
    farm.until(lambda: b.found() == [old], "the service")
    new = b.register()
    while farm.providers()[0] != [new]:
        assert farm.clock.seconds() < 60
        farm.clock.advance(0.0005)
    b.registry.leave(new)
    if not lives:
        a.registry.leave(old)
    missing = 0
    end = farm.clock.seconds() + 2.0
    while farm.clock.seconds() < end:
        assert b.found() in ([old], [])
        missing += not b.found()
        farm.clock.advance(0.001)
    assert missing < 150 or not lives
    assert b.found() == a.found() == ([old] if lives else [])
    assert farm.providers() == ([old] if lives else [], [])


def test_a_standby_follows_its_session(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old = a.offer(a.register(), "shop", "h:1")
    b.offer(b.register(), "shop", "h:1")
    farm.until(lambda: old in farm.providers()[1], "the standby")
    a.registry.withdraw(old, ["shop"])
    a.registry.relabel(old, "other")
    farm.run(0.5)
    b.kill()
    farm.until(lambda: c.found() == [old], "the end of the other")
    assert c.found("shop") == []
    provider = c.registry.provider(old)
    assert provider is not None
    assert provider.label == "other"
    new = c.register()
    farm.until(lambda: farm.providers() == ([new], [old]), "the standby")
    a.registry.leave(old)
    farm.until(lambda: farm.providers() == ([new], []), "the end of its session")


def test_of_two_standbys_one_is_found_when_their_successor_leaves(farm: Farm) -> None:
    a, b, c, d = farm.joined("a", "b", "c", "d")
    ids = []
    for each in (a, b, c):
        ids.append(each.register())
        farm.run(1.0)
    assert farm.providers() == ([ids[2]], sorted(ids[:2]))
    c.registry.leave(ids[2])
    found = [ids[2]]
    end = farm.clock.seconds() + 3.0
    while farm.clock.seconds() < end:
        assert d.found(), "one of them"
        found = d.found()
        farm.clock.advance(0.001)
    assert len(found) == 1
    assert a.found() == b.found() == c.found() == found
    assert farm.providers()[0] == found


def test_a_provider_replaces_another_only_with_all_its_services(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    old = a.offer(a.register("bank", "h:1"), "shop", "h:2")
    farm.until(lambda: b.found("shop"), "the services")
    new = b.register("bank", "h:1")
    farm.run(0.5)
    assert (b.found("bank"), b.found("shop"), a.found("shop")) == ([new], [old], [old])
    b.offer(new, "shop", "h:2")
    farm.until(lambda: a.found("shop") == [new] and a.found("bank") == [new], "the move")
    assert farm.providers()[0] == [new]


def test_two_servers_with_one_label_are_both_found(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = sorted([a.register("bank", "h:1", "bank"), b.register("bank", "h:2", "bank")])
    farm.run(1.0)
    assert a.found() == b.found() == ids


def test_a_registration_at_two_members_at_once_is_found_once_and_does_not_flap(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    first, second = a.register(), b.register()
    farm.run(1.0)
    [kept] = c.found()
    assert kept in (first, second)
    assert a.found() == b.found() == [kept]
    before = farm.etcd.revision
    farm.run(10.0)
    assert farm.providers() == ([kept], [first + second - kept])
    assert farm.etcd.revision - before <= 3 * 11, "beats only"


@pytest.mark.parametrize("seed", sampled(range(1, 6)))
def test_of_two_registrations_at_once_the_one_of_the_later_key_counts(seed: int) -> None:
    farm = Farm(seed)
    a, b, c = members = farm.joined("a", "b", "c")
    written: list[int] = []

    def applied(revision: int, events: Sequence[Event]) -> None:
        values = [each.value.value for each in events if each.value is not None and b"/s/" in each.key]
        written.extend(msgspec.json.decode(each)["provider"] for each in values)

    farm.etcd.applied.append(applied)
    homes = {a.register(): a, b.register(): b}
    farm.until(lambda: len(written) == 2, "both keys")
    earlier, later = written
    farm.until(lambda: all(each.found() == [later] for each in members), "the later one", 1.0)
    # The end of the session that a server has left is no gap.
    homes[earlier].registry.leave(earlier)
    for _ in range(300):
        assert c.found() == [later]
        farm.clock.advance(0.001)


def test_a_dead_member_is_gone_after_its_ttl(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    gone: list[str] = []
    b.registry.watch(lambda change: gone.append(change.why) if change.provider == id else None)
    a.kill()
    seconds = farm.until(lambda: not b.found(), "the end")
    assert 7 < seconds <= 11
    assert set(gone) == {"expired"}
    assert [each.name for each in b.cluster.members()] == ["b"]


def test_a_session_that_comes_back_before_its_deletion_is_read_is_found(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    old = a.register()
    farm.until(lambda: b.found() == [old], "the service")
    [watch] = a.client._watches
    push, late = watch.push, []
    watch.push = lambda *event: late.append(event)  # type: ignore[method-assign]
    a.registry.leave(old)
    farm.until(lambda: farm.values("s") == [], "the deletion")
    new = a.register()
    farm.run(0.3)
    watch.push = push  # type: ignore[method-assign]
    for event in late:
        push(*event)
    farm.until(lambda: b.found() == [new], "the new session", 1.0)


def test_an_own_key_that_vanishes_is_written_again(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register()
    farm.until(b.found, "the service")
    farm.etcd.txn([], [Delete(farm.key("s/elko/bank/tcp/h:1"))])
    farm.until(lambda: not b.found(), "the foreign deletion")
    assert farm.until(b.found, "the repair") < 0.2
    assert a.cluster.counts()["cluster.repairs"] == 1


@pytest.mark.parametrize(
    ("rest", "value"),
    [
        (KEY, b"not json"),
        (KEY, b'{"broker":"a","provider":7,"service":{"name":"bank"}}'),
        (KEY, b'{"broker":"a","provider":0,"service":{"name":"bank","hostport":"h:9"}}'),
        (KEY, b'{"broker":"a","provider":7,"service":{"name":"bank","hostport":"h:9","info":"[]"}}'),
        (KEY, b'{"broker":"a","provider":7,"service":{"name":"shop","hostport":"h:9"}}'),
        (KEY, b'{"broker":"a","provider":7,"service":{"name":"bank","hostport":"h:9"},"entry":"x"}'),
        (
            "s/elko/elkobroker.x/tcp/h:9",
            b'{"broker":"a","provider":7,"service":{"name":"elkobroker.x","hostport":"h:9"}}',
        ),
        ("s/elko/b%61nk/tcp/h:9", b'{"broker":"a","provider":7,"service":{"name":"bank","hostport":"h:9"}}'),
        ("s/elko/bank/tcp", b"{}"),
        ("s/elko/bank/tcp/h:9/more", b"{}"),
        ("s/elko/%FF/tcp/h:9", b"{}"),
        ("t/" + KEY[2:] + "/b", b'{"broker":"a","provider":7,"service":{"name":"bank","hostport":"h:9"}}'),
        ("b/x", b"[]"),
        ("b/\u00e9/y", b"{}"),
        ("l/a/x", b"{}"),
        ("l/a/0", b'{"loads":[[0,1,null,null,null,null]]}'),
        ("q/!!/x", b'{"owner":"a"}'),
        ("beat/a/b", b"{}"),
        ("something/else", b"{}"),
    ],
)
def test_a_foreign_value_is_counted_and_left_out(farm: Farm, rest: str, value: bytes) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    farm.until(a.found, "the service")
    before = a.cluster.counts()["cluster.bad-values"]
    farm.etcd.txn([], [Put(farm.key(rest), value, 0)])
    farm.run(0.5)
    assert a.cluster.counts()["cluster.bad-values"] == before + 1
    assert a.found() == [id]
    assert a.is_member
    [late] = farm.joined("c")
    assert late.found() == [id]
    assert late.cluster.counts()["cluster.bad-values"] >= 1


@pytest.mark.parametrize("lease", [0, 12345])
def test_an_entry_without_the_lease_of_its_holder_is_not_shown(farm: Farm, lease: int) -> None:
    a, b = farm.joined("a", "b")
    if lease:
        lease = farm.etcd.grant(100).lease
    for broker in ("b", "nobody"):
        value = b'{"broker":"%s","provider":7,"service":{"name":"bank","hostport":"h:9"}}'
        farm.etcd.txn([], [Put(farm.key(KEY), value % broker.encode(), lease)])
        farm.run(1.0)
        assert a.found() == b.found() == []


def test_a_provider_id_of_this_member_is_nobody_elses(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    value = b'{"broker":"b","provider":%d,"service":{"name":"bank","hostport":"evil:1"}}' % id
    lease = farm.etcd.keys[farm.key("b/b")].lease
    farm.etcd.txn([], [Put(farm.key("s/elko/bank/tcp/evil:1"), value, lease)])
    farm.run(0.5)
    assert a.registry.find("bank", "tcp") == (Service("bank", "h:1", id),)
    farm.run(0.5)
    assert [each for each in farm.values("s") if "evil" in each] == [], "its holder has no such registration"
