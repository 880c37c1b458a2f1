"""Failures: members that end, pause or meet; etcd that is away, wiped, compacted, or refuses.

The file is longer than others: all failures happen to the same kind of farm, which its fixtures make.
"""

from __future__ import annotations

import gc
import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import pytest
from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.python.failure import Failure

from broker.cluster.etcd.etcd_interface import Compare, Denied, Operation, Put, Unavailable
from broker.cluster.ids import BLOCK
from broker.cluster.member_sessions import ADOPTED_WITHIN, State
from broker.cluster.members import INTERVAL
from broker.cluster.publisher import MAX_BATCH
from broker.cluster.record import PIECE
from broker.cluster.settings import SILENCE, Memory
from broker.cluster.watch_feed import CLOSE
from broker.core.cluster.cluster_interfaces import QueueClaim
from broker.core.database import StateFull
from broker.core.disk import RETRY_SECONDS_MOST
from broker.core.errors import Reason, Refusal
from broker.core.model import Kind, Owner, Provider, Rights, Service
from broker.core.turns import SHARE
from tests.cluster.logic.members import Farm, KeptMemory, Member
from tests.garbage import no_collection

GRACE = 30.0
MANY = 1_500
"""Services that take several turns of the reactor (`broker.cluster.key_table.PIECE`)."""


@pytest.fixture
def farm() -> Farm:
    return Farm()


def claimed(farm: Farm, member: Member, name: str, lasting: bool = False, shared: bool = False) -> object:
    """The result of a claim."""
    results: list[object] = []
    member.cluster.claim("space", name, lasting, shared).addCallbacks(results.append, lambda f: results.append(f.value))
    farm.until(lambda: results, "the claim")
    return results[0]


def cut(member: Member) -> None:
    """End the watch, and let no call through."""
    member.client.disconnect()
    for watch in list(member.client._watches):
        watch.fail("the connection was lost")


def killed(farm: Farm) -> None:
    for member in range(3):
        farm.etcd.kill(member)


def restarted(farm: Farm) -> None:
    for member in range(3):
        farm.etcd.restart(member)


# etcd is away


def test_without_etcd_all_that_is_known_is_served(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    killed(farm)
    farm.until(lambda: a.degradations and b.degradations, "the notice")
    new = a.register("shop", "h:2")
    seen = set()
    for _ in range(60):
        farm.run(1.0)
        seen |= {(len(a.found()), len(b.found()))}
    assert (seen, a.found("shop")) == ({(1, 1)}, [new])
    assert "the cluster cannot be reached" in a.degradations
    restarted(farm)
    while b.found("shop") != [new] or not (a.is_member and b.is_member):
        assert a.found() == b.found() == [id]
        farm.run(0.05)
        assert farm.clock.seconds() < 120
    assert not a.degradations
    assert not b.degradations


def test_a_silent_watch_is_noticed(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    farm.run(2.0)
    a.client.cut = {a.client._preferred}
    id = b.register()
    assert farm.until(lambda: a.found() == [id], "the service", 12.0) > 1
    farm.until(lambda: a.is_member, "the new session")


def test_a_watch_that_cannot_catch_up_is_given_up(farm: Farm) -> None:
    """As with the end of a lease of many keys, which takes etcd longer to send than a broker waits."""
    a, b = farm.joined("a", "b")
    b.register()
    farm.until(a.found, "the service")
    watch = a.client.watch

    def behind(key: bytes, end: bytes, revision: int, watcher: Any) -> Any:
        found = watch(key, end, revision, watcher)
        if revision <= farm.etcd.revision:
            push = found.push  # type: ignore[attr-defined]
            found.push = lambda *events: farm.clock.callLater(2 * SILENCE, push, *events)  # type: ignore[attr-defined]
        return found

    a.client.watch = behind  # type: ignore[method-assign]
    for each in list(a.client._watches):
        each.fail("the connection was lost")
    b.kill()
    farm.until(lambda: not a.found(), "the end of the lease")
    farm.until(lambda: a.is_member, "the new session")


def test_a_stall_of_the_broker_is_no_silence_of_the_watch(farm: Farm) -> None:
    """As while the modules of the wires are imported on a busy machine: the beat is in a buffer of the kernel."""
    [a] = farm.joined("a")
    sessions = a.cluster._sessions.count
    [watch] = a.client._watches
    push, pushed = watch.push, []
    watch.push = lambda *events: pushed.append(events)  # type: ignore[method-assign]
    farm.run(1.5)
    farm.clock.advance(SILENCE + 1.0)
    watch.push = push  # type: ignore[method-assign]
    for events in pushed:
        push(*events)
    farm.run(SILENCE)
    assert a.cluster._sessions.count == sessions


def test_a_new_member_starts_without_etcd_if_it_has_ids(farm: Farm) -> None:
    [a] = farm.joined("a")
    id = a.register()
    a.kill()
    killed(farm)
    again = farm.member("a", a.memory)
    assert 4.9 < farm.until(lambda: again.started, "the start") < 5.2
    assert again.error is None
    assert again.register() > id
    assert again.degradations
    new = farm.member("b")
    farm.run(20.0)
    assert not new.started
    with pytest.raises(Refusal) as refused:
        new.registry.join("x", "elko", "h:1")
    assert refused.value.reason is Reason.UNAVAILABLE
    restarted(farm)
    farm.until(lambda: new.started and again.is_member and new.found(), "the join")


def test_a_start_without_etcd_serves_the_record_of_the_others(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(3)]
    farm.until(lambda: a.found() == ids, "the services")
    farm.run(3.0)
    b.registry.leave(ids[2])
    farm.run(3.0)
    a.kill()
    killed(farm)
    again = farm.member("a", a.memory)
    farm.until(lambda: again.started, "the start")
    assert again.cluster.obstacles() == []
    assert "found as restored, as of 1 s before the start" in again.degradations
    restored = again.registry.find("bank", "tcp", True)
    assert [(each.provider, each.restored) for each in restored] == [(id, True) for id in ids[:2]]
    # A server comes here meanwhile.
    own = again.register("bank", "h:0")
    farm.run(60.0)
    assert [each.provider for each in again.registry.find("bank", "tcp", True)] == [own, ids[1]]
    restarted(farm)
    while not again.is_member or again.found() != ids[:2]:
        assert len(again.registry.find("bank", "tcp", True)) == 2
        farm.run(0.01)
        assert farm.clock.seconds() < 300
    farm.run(1.0)
    assert not any(each.restored for each in again.registry.find("bank", "tcp", True))
    assert again.degradations == ""


def test_a_provider_that_moves_in_an_outage_from_a_broker_that_restarts_stays_found_there(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    old = a.register("bank", "h:1")
    farm.until(lambda: b.found() == [old], "the registration at b")
    kept = a.registry.providers()
    killed(farm)
    a.kill()
    new = b.register("bank", "h:1")
    again = farm.member("a", a.memory, kept, grace=GRACE)
    # An outage of many grace periods: only the keys can say that the provider is at b.
    farm.run(10 * GRACE)
    assert [(each.provider, each.restored) for each in again.registry.find("bank", "tcp", True)] == [(old, True)]

    restarted(farm)
    seen: set[tuple[str, ...]] = set()

    def back() -> bool:
        seen.add(tuple(each.hostport for each in again.registry.find("bank", "tcp", True)))
        return again.found() == [new]

    farm.until(back, "the registration at b once more")
    farm.run(2 * GRACE)
    assert again.registry.find("bank", "tcp", True) == b.registry.find("bank", "tcp", True)
    assert [each.provider for each in b.registry.find("bank", "tcp", True)] == [new]
    assert seen == {("h:1",)}, "it was never missed"


def test_the_record_has_standbys_and_large_changes_soon(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(1200)]
    c = farm.member("c")
    farm.until(lambda: c.started, "the join")
    later = c.register("bank", "h:0")
    farm.until(lambda: set(a.found()) == {*ids[1:], later} and farm.values("t"), "the services, and a standby")
    # Its successor ends while its broker cannot write.
    b.client.disconnect()
    c.registry.leave(later)
    farm.until(lambda: a.found() == ids, "the standby")
    farm.run(1.0)
    a.kill()
    a.client.disconnect()
    again = farm.member("a", a.memory)
    again.client.disconnect()
    farm.until(lambda: again.started, "the start")
    assert [each.provider for each in again.registry.find("bank", "tcp", True)] == ids


class FullDisk(KeptMemory):
    """A memory whose records fail while the disk is ``full``."""

    full = False
    failures = 0

    def save_record(self, changes: Mapping[str, str | None]) -> Deferred[None] | None:
        if not self.full:
            return super().save_record(changes)
        self.failures += 1
        return fail(StateFull("the disk is full"))


def test_a_large_record_on_a_full_disk_is_tried_again_after_growing_pauses(farm: Farm) -> None:
    memory = FullDisk()
    a, b = farm.member("a", memory), farm.member("b")
    farm.until(lambda: a.started and b.started, "the join")
    farm.run(1.0)
    memory.full = True
    ids = [b.register("bank", f"h:{number}") for number in range(3 * PIECE)]
    farm.until(lambda: a.found() == ids, "the services")
    farm.run(2 * RETRY_SECONDS_MOST)
    assert 2 <= memory.failures < 10
    memory.full = False
    farm.until(lambda: memory.record and len(memory.record) == len(ids), "the record", RETRY_SECONDS_MOST + 1)


def test_the_record_has_the_standby_of_a_session_that_ends_in_an_outage(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    first = b.register()
    farm.until(lambda: a.found() == [first], "the first session")
    second = a.register()
    farm.until(lambda: b.found() == [second] and farm.values("t"), "the second one, and the standby")
    farm.run(1.0)
    a.client.disconnect()
    a.registry.leave(second)
    assert a.found() == [first]
    farm.run(1.0)
    a.kill()
    again = farm.member("a", a.memory)
    again.client.disconnect()
    farm.until(lambda: again.started, "the start")
    assert [each.provider for each in again.registry.find("bank", "tcp", True)] == [first]


@pytest.mark.parametrize("back", [True, False])
@pytest.mark.parametrize("away", [3.0, 65.0])
def test_the_record_is_held_until_the_others_are_back(farm: Farm, back: bool, away: float) -> None:
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(3)]
    farm.run(6.0)
    a.kill()
    b.client.disconnect(0, 1, 2)
    farm.until(lambda: not farm.values("b"), "the ends of the leases")
    again = farm.member("a", a.memory)
    again.cluster.follow_links(list, lambda: ["b"] if back else [])
    again.client.disconnect(0, 1, 2)
    farm.run(away)
    assert again.started is (away > 5.0)
    again.client.connect()
    while not again.is_member:
        assert len(again.registry.find("bank", "tcp", True)) == 3
        farm.run(0.01)
    farm.run(15.0)
    assert again.found() == ids
    if not back:
        # Its broker is away for good.
        farm.until(lambda: not again.found(), "their end", 12.0)
        return
    farm.run(45.0)
    assert again.found() == ids
    b.client.connect()
    b.registry.leave(ids[2])
    while not b.is_member or again.found() != ids[:2]:
        assert again.found()[:2] == ids[:2]
        farm.run(0.01)
    farm.run(60.0)
    assert again.found() == ids[:2]


def test_a_start_without_etcd_and_without_a_record_is_not_ready(farm: Farm) -> None:
    [a] = farm.joined("a")
    a.kill()
    killed(farm)
    a.memory.record = None
    again = farm.member("a", a.memory)
    farm.until(lambda: again.started, "the start")
    [obstacle] = again.cluster.obstacles()
    assert "there is no record of them" in obstacle.reason
    restarted(farm)
    farm.until(lambda: again.is_member, "the return")
    assert again.cluster.obstacles() == []


def test_a_registration_without_etcd_takes_nothing_from_a_live_one(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    cut(c)
    stale = c.register()
    farm.run(1.0)
    live = a.register()
    farm.until(lambda: b.found() == [live], "the service")
    assert c.found() == [stale]
    for _ in range(30):
        a.registry.amend(attrs.evolve(a.registry.find("bank", "tcp")[0], info=f'{{"n":{farm.clock.seconds():.0f}}}'))
        farm.run(0.5)
    c.client.connect()
    sessions = c.cluster.counts()["cluster.sessions"]
    while not c.is_member or c.cluster.counts()["cluster.sessions"] == sessions or c.found() != [live]:
        assert a.found() == b.found() == [live]
        farm.run(0.01)
        assert farm.clock.seconds() < 120
    farm.run(15.0)
    assert a.found() == b.found() == c.found() == [live]
    assert farm.providers() == ([live], [stale])


def test_a_provider_that_moved_while_the_lease_of_its_holder_ended_stays_moved(farm: Farm) -> None:
    # It writes before its watch has brought what it missed.
    a = farm.member("a", gather=0.0)
    b, c = farm.joined("b", "c")
    old = a.register()
    farm.until(b.found, "the service")
    cut(a)
    new = b.register()
    farm.until(lambda: c.found() == [new] and farm.values("b") == ["b", "c"], "the move, and the end of the lease")
    a.client.connect()
    for _ in range(300):
        assert farm.providers()[0] == [new], "the old one is at most a standby"
        assert b.found() == c.found() == [new]
        farm.run(0.01)
    assert a.is_member
    assert a.found() == b.found() == c.found() == [new] != [old]


def test_a_standby_is_written_again_after_a_loss_of_the_lease(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old = a.register()
    farm.until(b.found, "the service")
    new = b.register()
    farm.until(lambda: farm.providers() == ([new], [old]), "the standby")
    farm.run(1.0)
    cut(a)
    farm.until(lambda: farm.providers() == ([new], []), "the end of the lease")
    a.client.connect()
    farm.until(lambda: farm.providers() == ([new], [old]), "the return")
    b.registry.leave(new)
    while c.found() != [old]:
        assert c.found() == [new]
        farm.run(0.01)
        assert farm.clock.seconds() < 100


def test_a_late_transaction_does_not_take_effect_after_its_repetition(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register()
    farm.until(b.found, "the service")
    [service] = a.registry.find("bank", "tcp")
    farm.run(0.5)
    a.client.chances.late = 1.0
    a.registry.amend(attrs.evolve(service, info='{"n":1}'))
    farm.run(0.2)
    a.client.chances.late = 0.0
    a.registry.amend(attrs.evolve(service, info='{"n":2}'))
    farm.until(lambda: b.registry.find("bank", "tcp")[0].info == '{"n":2}', "the newest value")
    for _ in range(100):
        farm.run(0.1)
        assert b.registry.find("bank", "tcp")[0].info == '{"n":2}'


def test_a_compacted_revision_is_read_again_without_a_gap(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [a.register("bank", f"h:{number}") for number in range(20)]
    farm.until(lambda: b.found() == ids, "the services")
    cut(b)
    farm.run(1.0)
    a.registry.leave(ids[0])
    ids = [*ids[1:], a.register("bank", "h:99")]
    farm.run(2.0)
    farm.etcd.compact(farm.etcd.revision)
    farm.run(6.0)
    b.client.connect()
    counts = set()
    while b.found() != ids:
        counts.add(len(b.found()))
        farm.run(0.01)
        assert farm.clock.seconds() < 120
    assert min(counts) >= 19
    assert b.cluster.counts()["cluster.resyncs"] == 2


def test_a_close_revision_is_resumed_and_a_far_one_read_again(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    for expected in ("cluster.resumed", "cluster.resyncs"):
        before = b.cluster.counts()
        cut(b)
        if expected == "cluster.resyncs":
            for _ in range(CLOSE + 1):
                farm.etcd.txn([], [Put(farm.key("ids"), b'{"next":99999999}', 0)])
        id = a.register("bank", expected)
        farm.run(6.0)
        b.client.connect()
        farm.until(lambda id=id: id in b.found(), "the service")  # type: ignore[misc]
        after = b.cluster.counts()
        assert {name for name in ("cluster.resumed", "cluster.resyncs") if after[name] > before[name]} == {expected}


@pytest.mark.parametrize("seconds", [15.0, 60.0])
def test_brokers_that_were_all_cut_off_beyond_the_ttl_miss_nothing_when_they_are_back(
    farm: Farm, seconds: float
) -> None:
    members = farm.joined("a", "b", "c")
    ids = sorted(each.register("bank", f"{each.name}{n}:1") for each in members for n in range(100))
    farm.until(lambda: all(each.found() == ids for each in members), "the services")
    for each in members:
        each.client.disconnect()
    farm.run(seconds)
    assert farm.values("b") == []
    gone = ids.index(members[1].found()[150])
    members[1].registry.leave(ids[gone]) if members[1].registry.holder(ids[gone]) == "" else None
    ids = members[1].found()
    for number, each in enumerate(members):
        farm.clock.callLater(1.7 * number, each.client.connect)
    end = farm.clock.seconds() + 25.0
    while farm.clock.seconds() < end:
        for each in members:
            missing = set(ids).difference(each.found())
            assert not missing, f"{each.name} misses {len(missing)}"
        farm.run(0.01)
    assert all(each.found() == ids and each.is_member for each in members)
    assert len(farm.values("s")) == len(ids)


@pytest.mark.parametrize("interrupted", [True, False])
def test_a_lease_that_ends_after_an_outage_is_held_by_a_member_whose_lease_survived(
    farm: Farm, interrupted: bool
) -> None:
    lost = farm.joined("a", "b")
    ids = sorted(each.register("bank", f"{each.name}:1") for each in lost)
    farm.run(1.5)
    kept = farm.joined("c")[0]
    farm.until(lambda: kept.found() == ids, "the services")
    first = min(each.deadline for each in farm.etcd.leases.values())
    farm.until(lambda: max(each.deadline for each in farm.etcd.leases.values()) > first + 1.0, "its later renewal")
    for each in [*lost, kept] if interrupted else lost:
        each.client.disconnect()
    farm.until(lambda: min(each.deadline for each in farm.etcd.leases.values()) < farm.clock.seconds(), "their end")
    kept.client.connect()
    farm.until(lambda: farm.values("b") == ["c"], "the end of their keys")
    farm.run(3.0)
    assert kept.cluster.counts()["cluster.lost-leases"] == 0
    assert kept.found() == (ids if interrupted else []), "those that end for themselves are gone"
    for each in lost:
        each.client.connect()
    while not all(each.is_member and each.found() == ids for each in (*lost, kept)):
        assert not interrupted or kept.found() == ids
        farm.run(0.01)
        assert farm.clock.seconds() < 100
    farm.run(60.0)
    # A lease that ends later is the end of its member.
    lost[0].kill()
    farm.until(lambda: kept.found() == lost[1].found() != ids, "the end of a dead one", 12.0)


@pytest.mark.parametrize(("alive", "least", "most"), [(["b"], 90, 101), ([], 19, 24)])
def test_entries_of_a_member_that_does_not_come_back_are_held_for_ten_times_the_ttl_if_it_shows_life(
    farm: Farm, alive: list[str], least: int, most: int
) -> None:
    """A member whose link shows no life either is held as long as leases may end because of the outage."""
    a, b = farm.joined("a", "b")
    a.cluster.follow_links(list, lambda: alive)
    id = b.offer(b.registry.join("server", "dbp", "10.0.0.1:5"), "bank", "h:1", lasting=True)
    farm.until(lambda: a.found() == [id], "the service")
    why: list[str] = []
    a.registry.watch(lambda change: why.append(change.why), (Kind.WITHDRAWN, Kind.LEFT))
    a.client.disconnect()
    b.client.disconnect()
    farm.run(15.0)
    b.kill()
    a.client.connect()
    farm.until(lambda: a.is_member and farm.values("b") == ["a"], "the return")
    assert least < farm.until(lambda: not a.found(), "the end", 110.0) < most
    assert farm.values("s") == []
    # As after any other end of a lease.
    assert why == ["expired", "expired"]
    assert [each.restored for each in a.registry.find("bank", "tcp", True)] == [True]


def test_the_return_of_one_member_does_not_shorten_the_time_of_another(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    a.cluster.follow_links(list, lambda: ["b"])
    ids = sorted([b.register("bank", "h:1"), c.register("bank", "h:2")])
    farm.until(lambda: a.found() == ids, "the services")
    a.client.disconnect()
    b.client.disconnect()
    farm.run(15.0)
    a.client.connect()
    farm.until(lambda: a.is_member and farm.values("b") == ["a", "c"], "the return of one")
    farm.run(8.0)
    c.client.disconnect()
    farm.until(lambda: farm.values("b") == ["a"], "the end of another lease", 12.0)
    farm.run(6.0)
    b.client.connect()
    farm.until(lambda: b.is_member, "the return of another", 10.0)
    c.client.connect()
    for _ in range(500):
        farm.run(0.01)
        assert a.found() == ids
    assert c.is_member


@pytest.mark.parametrize(("alive", "most"), [(["b"], 140), ([], 60)])
def test_watches_that_end_one_after_the_other_do_not_prolong_what_is_held(
    farm: Farm, alive: list[str], most: int
) -> None:
    """As behind a proxy that ends each answer after a while."""
    a, b = farm.joined("a", "b")
    a.cluster.follow_links(list, lambda: alive)
    id = b.register()
    farm.until(lambda: a.found() == [id], "the service")
    a.client.disconnect()
    b.client.disconnect()
    farm.run(15.0)
    b.kill()
    a.client.connect()
    farm.until(lambda: a.is_member and farm.values("b") == ["a"], "the return")
    for _ in range(most // 10):
        assert a.found() == [id] or farm.clock.seconds() > 38
        farm.run(10.0)
        for watch in list(a.client._watches):
            watch.fail("the connection was lost")
    assert a.found() == []


@pytest.mark.parametrize("seen", [True, False])
def test_the_time_without_a_watch_does_not_end_what_is_held(farm: Farm, seen: bool) -> None:
    """A lease ends in the doubt after an interruption, ``seen`` by the watch or while there is none. The watch is back
    after the doubt, with the return of the member still to come."""
    a, b = farm.joined("a", "b")
    a.cluster.follow_links(list, list)
    id = b.register()
    farm.until(lambda: a.found() == [id], "the service")
    a.client.disconnect()
    farm.run(6.0)
    b.client.disconnect()
    a.client.connect()
    farm.until(lambda: a.is_member, "the return of a")
    if seen:
        farm.until(lambda: farm.values("b") == ["a"], "the end of the lease of b", 12.0)
        farm.run(1.0)
    a.client.overloaded = True
    for watch in list(a.client._watches):
        watch.fail("the connection was lost")
    farm.run(30.0)
    assert farm.values("b") == ["a"]
    assert a.cluster.counts()["cluster.lost-leases"] == 0
    b.client.connect()
    farm.until(lambda: farm.registrations() != {}, "the return of b")
    a.client.overloaded = False
    for _ in range(3_000):
        assert a.found() == [id]
        farm.run(0.01)
    assert a.is_member


def test_what_a_member_does_not_restore_is_gone_once_it_has_restored_the_rest(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    kept, gone = b.register("bank", "h:1"), b.register("bank", "h:2")
    farm.until(lambda: len(a.found()) == 2, "the services")
    a.client.disconnect()
    b.client.disconnect()
    farm.run(15.0)
    b.registry.leave(gone)
    a.client.connect()
    farm.until(lambda: farm.values("b") == ["a"] and a.is_member, "the return of one")
    assert a.found() == [kept, gone]
    b.client.connect()
    farm.until(lambda: a.found() == [kept], "the return of the other", 10.0)
    assert json.loads(farm.etcd.keys[farm.key("b/b")].value)["restored"] is True


def test_listeners_that_change_during_a_return_do_not_hide_its_end(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(3 * MAX_BATCH)]
    farm.until(lambda: a.found() == ids, "the services")
    a.client.disconnect()
    b.client.disconnect()
    farm.run(15.0)
    b.registry.leave(ids[0])
    a.client.connect()
    farm.until(lambda: farm.values("b") == ["a"] and a.is_member, "the return of one")
    b.client.connect()
    farm.until(lambda: farm.values("s"), "the first keys of the other")
    assert len(farm.values("s")) < len(ids) - 1
    b.cluster.describe({"mtl": "tcp://h:1"}, False)
    farm.until(lambda: a.found() == ids[1:], "its return", 10.0)
    value = json.loads(farm.etcd.keys[farm.key("b/b")].value)
    assert (value["restored"], value["listeners"]) == (True, {"mtl": "tcp://h:1"})


# members


def own_providers(member: Member) -> list[Provider]:
    """Return the providers that the store of a broker has for its next start."""
    return [each for each in member.registry.providers() if not each.broker]


def started_again(farm: Farm, member: Member, stored: bool = True, grace: float = 30.0) -> Member:
    """Kill a member, and start it again a second later with what its store has: all, or nothing."""
    kept = own_providers(member) if stored else ()
    member.kill()
    farm.run(1.0)
    again = farm.member(member.name, member.memory, kept, grace)
    farm.until(lambda: again.started, "the restart")
    return again


def places(member: Member) -> list[str]:
    """Return the addresses at which a broker finds the bank, restored ones too."""
    return sorted(each.hostport for each in member.registry.find("bank", "tcp", restored=True))


def test_a_member_that_restarts_within_its_ttl_is_never_missed(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    bank, shop = a.register("bank", "h:1"), a.register("shop", "h:2")
    farm.until(lambda: b.found("shop"), "the services")
    a.kill()
    farm.run(4.0)
    again = farm.member("a", a.memory, grace=20.0)
    farm.until(lambda: again.started, "the restart")
    assert again.memory.memory.lease == a.memory.memory.lease
    farm.run(5.0)
    assert (b.found("bank"), b.found("shop")) == ([bank], [shop])
    new = again.register("bank", "h:1")
    while b.found("bank") != [new]:
        assert b.found("bank") == [bank]
        farm.clock.advance(0.001)
    farm.until(lambda: not b.found("shop"), "the end of the grace", 16.0)
    assert farm.providers()[0] == [new]


def test_a_provider_that_comes_back_at_another_port_is_known_by_its_label(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register("bank", "h:1", "one")
    farm.until(b.found, "the service")
    again = started_again(farm, a)
    new = again.register("bank", "h:777", "one")
    farm.until(lambda: b.found() == [new], "the move", 1.0)


def test_what_the_store_lacks_after_a_kill_is_restored_from_the_keys(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    for number in (1, 2):
        a.register("bank", f"h:{number}", f"server {number}")
    a.register_instance("bank", "h:3", "bank/3")
    farm.until(lambda: len(b.found()) == 3, "the services")
    again = started_again(farm, a, stored=False, grace=20.0)
    assert places(again) == places(b) == ["h:1", "h:2", "h:3"]
    assert again.registry.remembered_owner("http", "bank/3") == Owner("address 10.0.0.1", "bank/3")
    again.register("bank", "h:777", "server 1")
    assert again.registry.end_remembered("http", "bank/3")
    assert places(again) == ["h:2", "h:777"]
    farm.until(lambda: places(b) == ["h:2", "h:777"], "the move, and the end of the instance", 1.0)
    farm.until(lambda: places(again) == ["h:777"], "the end of the grace", 20.0)
    farm.until(lambda: places(b) == ["h:777"], "the same", 1.0)


def test_a_label_that_others_have_does_not_identify_what_the_store_lacks(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register("bank", "h:1", "pool")
    b.register("bank", "h:2", "pool")
    farm.until(lambda: len(a.found()) == len(b.found()) == 2, "the services")
    again = started_again(farm, a, stored=False)
    again.register("bank", "h:3", "pool")
    farm.run(1.0)
    assert places(again) == places(b) == ["h:1", "h:2", "h:3"]


def test_a_restored_instance_whose_place_another_one_takes_goes_everywhere(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register_instance("bank", "h:1", "bank/one")
    farm.until(b.found, "the service")
    again = started_again(farm, a)
    two = again.register_instance("bank", "h:1", "bank/two")
    assert places(again) == ["h:1"]
    farm.until(lambda: b.found() == [two], "the end of the other", 1.0)


def test_a_standby_replaces_what_is_restored_at_all_brokers(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    old = b.register()
    farm.until(lambda: a.found() == [old], "the service")
    new = a.register()
    farm.until(lambda: farm.providers() == ([new], [old]), "the standby")
    farm.run(0.1)
    again = started_again(farm, a)
    farm.until(lambda: again.found() == b.found() == c.found() == [old], "the session that lives", 1.0)


def test_a_grace_that_begins_again_does_so_at_all_brokers(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    a.register("bank", "h:1")
    c.offer(c.registry.join("node", "dbp", "10.0.0.1:5"), "bank", "h:2", lasting=True)
    farm.until(lambda: places(b) == ["h:1", "h:2"], "the services")
    kept = own_providers(a)
    a.kill()
    farm.run(1.0)
    again = farm.member("a", a.memory, kept, grace=20.0)
    farm.until(lambda: again.started, "the restart")
    c.kill()
    ended = farm.until(lambda: "h:1" not in places(again), "the end of the grace where it is restored", 40.0)
    assert ended > 25, "it has begun again with the end of the third broker"
    assert places(b) == ["h:1", "h:2"]
    farm.until(lambda: places(b) == ["h:2"], "the end at the other one", 1.0)


def test_a_label_does_not_identify_a_provider_that_has_another_entry(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    owner = Owner("address 10.0.0.1", "bank/1")
    one = a.offer(a.registry.join("pool", "http", "10.0.0.1", owner), "bank", "h:1")
    farm.until(lambda: b.found() == [one], "the service")
    a.kill()
    farm.run(1.0)
    again = farm.member("a", a.memory)
    farm.until(lambda: again.started, "the restart")
    two = again.offer(
        again.registry.join("pool", "http", "10.0.0.1", attrs.evolve(owner, entry="bank/2")), "bank", "h:2"
    )
    farm.until(lambda: two in b.found(), "the other one")
    farm.run(1.0)
    assert b.found() == [one, two]


def test_a_label_that_providers_of_two_brokers_have_replaces_none_of_a_broker_that_restarts(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register("bank", "h:1")
    b.register("bank", "h:2")
    farm.until(lambda: len(a.found()) == 2, "the services")
    farm.run(1.0)
    kept = own_providers(a)
    a.kill()
    b.register("bank", "h:3")
    again = farm.member("a", a.memory, kept)
    farm.until(lambda: again.started and len(again.found()) == 2, "the restart, and the services of the other one")
    farm.run(1.0)
    assert {each.hostport for each in again.registry.find("bank", "tcp", restored=True)} == {"h:1", "h:2", "h:3"}


@pytest.mark.parametrize("late", [False, True])
def test_a_provider_that_moves_to_another_broker_during_a_restart_is_known_by_its_label(farm: Farm, late: bool) -> None:
    a, b, c = farm.joined("a", "b", "c")
    a.register("bank", "h:1", "one")
    farm.until(c.found, "the service")
    farm.run(1.0)
    kept = own_providers(a)
    a.kill()
    if not late:
        b.register("bank", "h:777", "one")
    farm.run(1.0)
    again = farm.member("a", a.memory, kept)
    farm.until(lambda: again.started, "the restart")
    if late:
        b.register("bank", "h:777", "one")
    for member in (again, b, c):
        farm.until(lambda: places(member) == ["h:777"], "the move", 1.0)  # noqa: B023


@pytest.mark.parametrize("whole", [False, True])
def test_what_a_provider_does_not_offer_again_before_it_ends_goes_everywhere(farm: Farm, whole: bool) -> None:
    a, b = farm.joined("a", "b")
    id = a.register("bank", "h:1", "one")
    a.registry.offer([Service("bank", "h:1", id, protocol="udp")], Rights())
    farm.until(lambda: len(b.registry.services("bank")) == 2, "the services")
    again = started_again(farm, a)
    new = again.register("bank", "h:1", "one")
    farm.until(lambda: b.found() == [new], "the return")
    if whole:
        again.registry.leave(new)
    else:
        again.registry.withdraw(new, ["bank"])
    assert not list(again.registry.services_named("bank"))
    farm.until(lambda: b.registry.services("bank") == [], "the end of both", 2.0)


def test_what_a_provider_has_not_offered_again_before_the_next_stop_stays_for_the_restart(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register("bank", "h:1", "one")
    a.offer(id, "shop", "h:2")
    farm.until(lambda: b.found("shop"), "the services")
    again = started_again(farm, a)
    new = again.register("bank", "h:1", "one")
    farm.until(lambda: b.found() == [new], "the return")
    again.register("mail", "h:3")  # is still to be written
    again.cluster.stop(True)
    # The stop disconnects the peers.
    again.registry.leave(new)
    farm.run(1.0)
    assert (b.found("bank"), b.found("shop")) == ([new], [id])


@pytest.mark.parametrize("record", [False, True])
def test_a_label_of_a_provider_that_was_known_at_another_broker_replaces_none(farm: Farm, record: bool) -> None:
    a, b = farm.joined("a", "b")
    a.register("bank", "h:1")
    known = b.register("bank", "h:2")
    farm.until(lambda: len(a.found()) == 2, "the services")
    farm.run(1.0)
    kept = own_providers(a)
    a.kill()
    if not record:
        a.memory.record = None
    again = farm.member("a", a.memory, kept)
    farm.until(lambda: again.started and again.found() == [known], "the restart, and the service of the other one")
    assert places(again) == places(b) == ["h:1", "h:2"]
    b.offer(known, "bank", "h:3")
    farm.run(1.0)
    assert places(again) == places(b) == ["h:1", "h:2", "h:3"]


@pytest.mark.parametrize("back", ["h:1", "h:777"])
def test_a_provider_that_offers_its_services_again_one_by_one_keeps_the_others(farm: Farm, back: str) -> None:
    a, b = farm.joined("a", "b")
    id = a.register("bank", "h:1", "one")
    a.offer(id, "bank", "h:2")

    farm.until(lambda: places(b) == ["h:1", "h:2"], "the services")
    again = started_again(farm, a)
    new = again.register("bank", back, "one")
    farm.until(lambda: places(b) == sorted([back, "h:2"]) and new in b.found(), "the first one", 1.0)
    again.registry.amend(attrs.evolve(again.registry.services_of(new)[0], info="{}"))
    farm.until(lambda: any(each.info for each in b.registry.find("bank", "tcp")), "the amendment", 1.0)
    farm.run(0.5)
    assert places(b) == sorted([back, "h:2"])
    again.offer(new, "bank", "h:2")
    farm.until(lambda: b.found() == [new, new], "the other one", 1.0)


@pytest.mark.parametrize("back", [("h:1", "h:777"), ("h:777", "h:1")])
def test_of_services_that_are_offered_together_one_at_a_known_place_has_not_moved(
    farm: Farm, back: tuple[str, str]
) -> None:
    a, b = farm.joined("a", "b")
    id = a.register("bank", "h:1", "one")
    a.offer(id, "bank", "h:2")
    farm.until(lambda: b.found() == [id, id], "the services")
    again = started_again(farm, a)
    new = again.registry.join("one", "elko", "10.0.0.1:5")
    again.registry.offer([Service("bank", place, new) for place in back], Rights())
    farm.until(lambda: b.found() == [new, new], "both", 1.0)
    assert {each.hostport for each in b.registry.find("bank", "tcp")} == set(back)


@pytest.mark.parametrize("early", [False, True])
def test_an_instance_that_is_withdrawn_after_a_restart_before_its_return_goes_everywhere(
    farm: Farm, early: bool
) -> None:
    a, b = farm.joined("a", "b")
    one, two = (a.register_instance("bank", f"h:{n}", f"bank/{n}") for n in (1, 2))
    farm.until(lambda: b.found() == [one, two], "the services")
    kept = a.registry.providers()
    a.kill()
    farm.run(1.0)
    again = farm.member("a", a.memory, kept, grace=20.0)
    if not early:
        farm.until(lambda: again.started, "the restart")
    assert again.registry.end_remembered("http", "bank/1")
    assert not again.registry.end_remembered("http", "bank/1")
    farm.until(lambda: b.found() == [two], "the end of the service", 5.0)
    assert again.started
    assert farm.providers()[0] == [two]


def test_a_stop_for_a_restart_keeps_the_entries_and_another_one_ends_them(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    kept, gone = a.register("bank", "h:1"), b.register("bank", "h:2")
    farm.until(lambda: c.found() == sorted([kept, gone]), "the services")
    stopped: list[object] = []
    a.cluster.stop(True).addBoth(stopped.append)
    b.cluster.stop(False).addBoth(stopped.append)
    # The stop disconnects the peers.
    a.registry.leave(kept)
    farm.run(1.0)
    assert stopped == [None, None]
    assert c.found() == [kept]
    farm.run(11.0)
    assert c.found() == []


def test_a_start_behind_the_stop_is_cancelled(farm: Farm) -> None:
    """The start waits for the embedded etcd first, and the stop may come then."""
    [a] = farm.joined("a")
    a.cluster.stop(True)
    results: list[object] = []
    a.cluster.start().addBoth(results.append)
    farm.run(10.0)
    [result] = results
    assert isinstance(result, Failure)
    assert result.check(CancelledError)


def test_acts_of_sessions_during_a_stop_are_restored_and_stay(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    first, amended, theirs = a.register(), a.register("shop", "h:2"), b.register("news", "h:3")
    farm.until(lambda: b.found("shop") and a.found("news"), "the services")
    begun = a.register("mail", "h:4")
    stopped: list[object] = []
    a.cluster.stop(True).addBoth(stopped.append)
    a.registry.leave(first)
    again = a.register()
    a.registry.amend(attrs.evolve(a.registry.services_of(amended)[0], info="{}"))
    late = a.register("news", "h:3")
    for id in (again, amended, late, begun):
        a.registry.leave(id)
    farm.until(lambda: stopped, "the stop")
    farm.run(1.0)
    found = {each.name: (each.provider, each.info) for each in b.registry.services()}
    assert found == {"bank": (again, None), "shop": (amended, "{}"), "news": (theirs, None), "mail": (begun, None)}


def test_the_second_with_a_name_does_not_start(farm: Farm) -> None:
    [a] = farm.joined("a")
    id = a.register()
    second = farm.member("a", link="10.0.0.9:1")
    farm.until(lambda: second.started, "the refusal", 15.0)
    assert second.error is not None
    assert "has the name a" in str(second.error)
    assert second.cluster.state is State.FENCED
    farm.run(1.0)
    assert a.is_member
    assert farm.providers()[0] == [id]


def test_a_name_is_free_after_the_ttl_of_a_dead_holder(farm: Farm) -> None:
    [a] = farm.joined("a")
    a.kill()
    other = farm.member("a")
    farm.run(4.0)
    assert not other.started
    assert "the name a is held" in other.degradations
    farm.until(lambda: other.started, "the join", 8.0)
    assert other.error is None


def test_a_paused_member_is_fenced_by_another_with_its_name(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register()
    a.client.disconnect()
    farm.run(12.0)
    second = farm.member("a")
    farm.until(lambda: second.started and b.cluster.member("a") is not None, "the second")
    new = second.register("bank", "h:2")
    a.client.connect()
    farm.until(lambda: a.error is not None, "the fence")
    assert "another broker has the name a" in str(a.error)
    assert a.cluster.state is State.FENCED
    farm.run(1.0)
    assert farm.providers()[0] == [new]
    assert b.found() == [new]


def test_a_member_does_not_take_its_own_attempts_for_another_broker(
    farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    a.client.disconnect()
    farm.until(lambda: not b.found(), "the end of the lease", 15.0)
    write, attempts = a.client.txn, 0

    def txn(compare: Sequence[Compare], success: Sequence[Operation], failure: Sequence[Operation] = ()) -> Any:
        nonlocal attempts
        if attempts == 4 or not any(each.key == farm.key("b/a") for each in success if isinstance(each, Put)):
            return write(compare, success, failure)
        attempts += 1
        if attempts == 1:
            farm.etcd.txn(compare, success, failure)
        return fail(Unavailable("the connection was lost", True))

    monkeypatch.setattr(a.client, "txn", txn)
    a.client.connect()
    # The first attempt takes the name, the second one does not, and the third one finds it taken.
    farm.until(lambda: a.error or (a.is_member and b.found() == [id]), "the return", 15.0)
    assert (a.error, attempts) == (None, 4)


def test_a_paused_member_takes_a_new_lease_if_its_name_is_free(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    a.registry.load(id, 7.0)
    farm.run(2.0)
    before = a.memory.memory
    a.client.disconnect()
    farm.until(lambda: not b.found(), "the end of the lease", 15.0)
    assert a.found() == [id]
    a.client.connect()
    farm.until(lambda: b.found() == [id] and a.is_member, "the return")
    assert (a.memory.memory.lease, a.memory.memory.instance) != (before.lease, before.instance)
    farm.run(0.5)
    assert b.registry.loads()[0].load == 7.0


def outlived(farm: Farm, a: Member, b: Member) -> tuple[int, int]:
    """Let a member lose its lease while its provider moves to another one. Returns the ids before and after."""
    stale = a.register()
    farm.until(b.found, "the service")
    sessions = a.cluster.counts()["cluster.sessions"]
    a.client.disconnect()
    farm.until(lambda: not b.found(), "the end of the lease", 15.0)
    new = b.register()
    farm.run(1.0)
    a.client.connect()
    # It may not have noticed yet that it was away.
    farm.until(lambda: a.is_member and a.cluster.counts()["cluster.sessions"] > sessions, "the return")
    return stale, new


def test_a_provider_that_has_moved_from_a_paused_member_is_not_replaced(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    _, new = outlived(farm, a, b)
    for _ in range(30):
        assert (a.found(), b.found(), farm.providers()[0]) == ([new], [new], [new])
        farm.run(0.1)


class FragileMemory(KeptMemory):
    """A memory with whose next lease, once ``armed``, all members of etcd are killed."""

    def __init__(self, farm: Farm) -> None:
        super().__init__()
        self._farm = farm
        self.armed = False

    def save(self, memory: Memory) -> None:
        other = memory.lease not in (0, self.memory.lease)
        super().save(memory)
        if self.armed and other:
            self.armed = False
            killed(self._farm)


def test_a_loss_of_the_lease_counts_until_a_session_has_read_all_keys(farm: Farm) -> None:
    memory = FragileMemory(farm)
    a, b = farm.member("a", memory), farm.member("b")
    farm.until(lambda: a.started and b.started, "the joins")
    a.register()
    farm.until(b.found, "the service")
    before = memory.memory.lease
    a.client.disconnect()
    farm.until(lambda: not b.found(), "the end of the lease", 15.0)
    new = b.register()
    farm.run(1.0)
    memory.armed = True
    a.client.connect()
    # The first session has the name and a new lease, and no page of the keys.
    farm.until(lambda: memory.memory.lease != before, "the new lease")
    lease = memory.memory.lease
    farm.until(lambda: "no endpoint of etcd answers" in a.degradations, "the end of the first session")
    assert (a.is_member, a.cluster.counts()["cluster.resyncs"]) == (False, 1)
    restarted(farm)
    farm.until(lambda: a.is_member, "the second session")
    assert memory.memory.lease == lease, "the second session has the lease of the first one"
    for _ in range(30):
        assert (a.found(), b.found(), farm.providers()[0]) == ([new], [new], [new])
        farm.run(0.1)


def test_a_provider_that_has_moved_twice_from_a_paused_member_is_not_replaced(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    stale, first = outlived(farm, a, b)
    new = c.register()
    farm.until(lambda: a.found() == b.found() == [new], "the second move")
    # Of two sessions that live, either may be found later.
    b.registry.leave(first)
    farm.run(3.0)
    assert farm.providers()[0] == [new]
    # The session at the first member lives, and its entry is back after the last successor.
    c.registry.leave(new)
    farm.until(lambda: a.found() == b.found() == c.found() == [stale], "the stale provider", 2.0)


def test_a_provider_with_another_endpoint_has_not_moved_from_a_paused_member(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    stale = a.offer(a.register(), "shop", "h:1")
    farm.until(lambda: b.found("shop"), "the services")
    a.client.disconnect()
    farm.until(lambda: not b.found(), "the end of the lease", 15.0)
    new = b.register()
    a.client.connect()
    farm.until(lambda: a.is_member and b.found("shop") == [stale], "the return")
    farm.run(0.5)
    assert (a.found(), b.found()) == ([new], [new]), "one of its services has moved"


def test_an_act_after_the_return_of_a_paused_member_counts(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    stale, new = outlived(farm, a, b)
    assert a.found() == [new]
    a.offer(stale, "shop", "h:1")
    farm.until(lambda: b.found("shop") == [stale], "the offer", 2.0)
    assert a.found() == b.found() == [new], "it is no act on the other service"
    a.registry.amend(Service("bank", "h:1", stale, info="{}"))
    farm.until(lambda: a.found() == b.found() == [stale], "the amendment", 2.0)
    farm.run(1.0)
    assert farm.providers() == ([stale], [new])


def test_watchers_of_the_members_get_the_new_instance_of_this_one_too(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    seen: dict[str, list[tuple[str, str]]] = {"a": [], "b": []}
    for member in (a, b):
        told = seen[member.cluster.name]
        member.cluster.watch_members(lambda name, found, told=told: told.append((name, found and found.instance)))  # type: ignore[misc]
    before = a.memory.memory.instance
    farm.etcd.vanish(a.memory.memory.lease)
    farm.until(lambda: a.is_member and a.memory.memory.instance != before, "another lease")
    farm.until(lambda: seen["b"][-1:] == [("a", a.memory.memory.instance)], "the other member knows it")
    assert seen["a"] == [("a", a.memory.memory.instance)]
    own = a.cluster.member("a")
    assert own is not None
    assert own.instance == a.memory.memory.instance


def test_a_lease_that_vanishes_is_replaced_without_a_gap(farm: Farm) -> None:
    """A former leader of etcd that returns from a partition may revoke a lease that another one has renewed."""
    a, b = farm.joined("a", "b")
    b.cluster.follow_links(list, lambda: ["a"])
    ids = [a.register("bank", f"h:{number}") for number in range(2)]
    farm.until(lambda: b.found() == ids, "the services")
    farm.run(20.0)
    seen: list[object] = []
    b.cluster.watch_members(lambda name, member: seen.append(member))
    farm.etcd.vanish(a.memory.memory.lease)
    a.registry.leave(ids[1])
    for _ in range(500):
        farm.run(0.01)
        assert ids[0] in b.found()
    assert seen
    assert None not in seen
    assert b.found() == [ids[0]], "the one that ended meanwhile is gone once its broker is back"
    a.kill()
    farm.until(lambda: not b.found(), "the end of a dead one", 11.5)


def test_the_end_of_a_renewed_lease_is_held_while_its_member_shows_life(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    links = ["a"]
    b.cluster.follow_links(list, lambda: links)
    id = a.register()
    farm.until(lambda: b.found() == [id], "the service")
    farm.run(2.0)
    farm.etcd.vanish(a.memory.memory.lease)
    a.kill()
    for _ in range(60):
        farm.run(1.0)
        assert b.found() == [id]
    links.clear()
    farm.until(lambda: not b.found(), "the end with the link", 1.5)


# etcd's data


def test_a_wiped_etcd_gets_everything_again_without_a_gap(farm: Farm) -> None:
    a, b, c = farm.joined("a", "b", "c")
    ids = sorted([a.register("bank", "h:1"), b.register("bank", "h:2")])
    farm.until(lambda: c.found() == a.found() == b.found() == ids, "the services")
    used = max(farm.providers()[0])
    farm.etcd.wipe()
    begin = farm.clock.seconds()
    while len(farm.values("b")) < 3 or len(farm.values("s")) < 2:
        assert a.found() == b.found() == c.found() == ids
        farm.run(0.05)
        assert farm.clock.seconds() < begin + 40
    farm.run(30.0)
    assert a.found() == b.found() == c.found() == ids
    fresh = farm.joined("d")[0].register("shop", "h:3")
    assert fresh > used + BLOCK


@pytest.mark.long
def test_finds_and_acts_between_the_steps_of_a_return_are_right(farm: Farm) -> None:
    """More services than one turn handles are held, read and restored, and change in these turns."""
    rights = Rights(services=5_000)
    a, b = farm.joined("a", "b")
    id = a.register()
    a.registry.offer([Service(f"s-{number}", "h:1", id) for number in range(MANY)], rights)
    total = MANY + 1
    farm.until(lambda: len(b.registry.services()) == total, "the services", 120.0)
    farm.etcd.wipe()
    acts = 0

    def turn(left: int) -> None:
        nonlocal acts
        # Each act withdraws a service and offers another one, near the ends and the middle of what is restored.
        a.registry.withdraw(id, [f"s-{acts * 37 % MANY}"])
        a.registry.offer([Service(f"new-{acts}", "h:1", id)], rights)
        acts += 1
        assert len(a.registry.services()) == total
        assert len(b.found()) == 1
        assert total - acts <= len(b.registry.services()) <= total + acts
        if left:
            farm.clock.callLater(0, turn, left - 1)

    while not acts or not (a.is_member and b.is_member and len(farm.values("b")) == 2):
        farm.clock.callLater(0, turn, 3)
        farm.run(0.2)
        assert farm.clock.seconds() < 120
    names = sorted(each.name for each in a.registry.services())
    farm.until(lambda: sorted(each.name for each in b.registry.services()) == names, "the changes")
    assert len(farm.registrations()) == total


@pytest.mark.long
def test_the_return_of_many_services_leaves_few_objects_to_collect_in_one_turn(farm: Farm) -> None:
    """It discards as many as it makes, so that the collector does not run by itself."""
    a, b = farm.joined("a", "b")
    id = a.register()
    a.registry.offer([Service(f"s-{number}", "h:1", id) for number in range(2 * MANY)], Rights(services=5_000))
    farm.until(lambda: len(b.registry.services()) == 2 * MANY + 1, "the services", 120.0)
    gc.collect()
    farm.clock.tick = SHARE / 8  # a step takes a millisecond
    most = 0

    def is_back() -> bool:
        nonlocal most
        most = max(most, len(gc.get_objects(0)) + len(gc.get_objects(1)))
        return a.is_member and len(farm.registrations()) == 2 * MANY + 1

    with no_collection():
        farm.etcd.wipe()
        farm.until(is_back, "the services", 120.0)
    assert most < 7 * MANY


def test_a_member_that_died_with_the_data_of_etcd_is_held_for_a_while(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.register()
    farm.until(b.found, "the service")
    a.kill()
    farm.etcd.wipe()
    assert 20 < farm.until(lambda: not b.found(), "the end", 115.0) < 35
    assert [each.name for each in b.cluster.members()] == ["b"]


def test_a_memory_of_another_database_is_not_used(farm: Farm) -> None:
    memory = KeptMemory(Memory("old", 77, 10, 500, (600, 700), "another epoch", 12345))
    a = farm.member("a", memory)
    farm.until(lambda: a.started, "the join")
    assert a.register() > 700 + BLOCK
    assert memory.memory.lease != 77
    assert memory.memory.epoch != "another epoch"


def test_refused_credentials_end_the_start_but_not_a_membership(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = b.register()
    farm.until(a.found, "the service")
    real = a.client._call

    def refused(*args: object, **more: object) -> object:
        return fail(Denied("the password is wrong"))

    a.client._call = refused  # type: ignore[method-assign, assignment]
    farm.until(lambda: "the password is wrong" in a.degradations, "the trouble", 30.0)
    assert (a.found(), a.error) == ([id], None)
    a.client._call = real  # type: ignore[method-assign]
    farm.until(lambda: a.is_member, "the return", 60.0)
    assert not a.degradations


def test_history_is_compacted_by_the_first_member(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    farm.run(2.5 * INTERVAL)
    assert (a.cluster.counts()["cluster.compactions"], b.cluster.counts()["cluster.compactions"]) == (2, 0)
    assert 0 < farm.etcd.compacted < farm.etcd.revision


# ids


def test_ids_are_unique_and_blocks_last_without_etcd(farm: Farm) -> None:
    members = farm.joined("a", "b", "c")
    farm.until(lambda: all(each.cluster._parts.ids.complete for each in members), "spare blocks")
    killed(farm)
    ids = [each.cluster.next_id() for each in members for _ in range(BLOCK + 10)]
    assert len(set(ids)) == len(ids)
    farm.run(1.0)
    restarted(farm)
    farm.until(lambda: all(each.cluster._parts.ids.complete for each in members), "spare blocks")


def test_ids_are_not_used_again_after_a_kill(farm: Farm) -> None:
    [a] = farm.joined("a")
    memory = a.memory
    used: set[int] = set()
    for _ in range(5):
        used_now = {a.cluster.next_id() for _ in range(random.Random(1).randrange(1, 9_000))}
        assert not used & used_now
        used |= used_now
        a.kill()
        farm.run(1.0)
        a = farm.member("a", memory)
        farm.until(lambda a=a: a.started, "the restart")  # type: ignore[misc]


# queues


def test_a_queue_has_one_owner_until_its_release(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.cluster.describe({"mtl": "tcp://10.0.0.1:5975"}, False)
    farm.run(0.2)
    assert claimed(farm, a, "jobs") == QueueClaim("a", "tcp://10.0.0.1:5975")
    assert claimed(farm, b, "jobs") == QueueClaim("a", "tcp://10.0.0.1:5975")
    farm.until(lambda: b.cluster.claim_of("space", "jobs"), "the owner")
    seen: list[object] = []
    b.cluster.watch_claims(lambda *change: seen.append(change))
    a.cluster.release("space", "jobs")
    farm.until(lambda: seen, "the release")
    assert seen == [("space", "jobs", None)]
    assert claimed(farm, b, "jobs") == QueueClaim("b")


def test_a_claim_right_behind_a_release_counts_and_is_in_etcd(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    assert claimed(farm, a, "jobs") == QueueClaim("a")
    farm.run(1.0)
    # Calls and events overtake each other.
    a.client.chances.delay = (0.0, 0.4)
    for _ in range(30):
        told: list[object] = []
        seen = a.cluster.watch_claims(lambda space, name, claim, told=told: told.append(claim))  # type: ignore[misc]
        a.cluster.release("space", "jobs")
        assert claimed(farm, a, "jobs") == QueueClaim("a")
        farm.run(2.0)
        assert told == [None, QueueClaim("a")]
        assert len(farm.values("q")) == 1
        assert a.cluster.claim_of("space", "jobs") == b.cluster.claim_of("space", "jobs") == QueueClaim("a")
        seen.cancel()


def test_the_answer_to_a_claim_whose_lease_has_ended_meanwhile_does_not_count(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    a.client.chances.delay = (1.0, 1.0)
    results: list[object] = []
    a.cluster.claim("space", "jobs").addBoth(results.append)
    farm.until(lambda: farm.values("q"), "the claim in etcd")
    farm.etcd.revoke(farm.etcd.keys[farm.key("b/a")].lease)
    farm.run(0.5)
    assert claimed(farm, b, "jobs") == QueueClaim("b")
    farm.until(lambda: results, "the answer")
    assert isinstance(results[0], Failure)
    assert results[0].check(Refusal)
    farm.run(30.0)
    assert a.cluster.claim_of("space", "jobs") == b.cluster.claim_of("space", "jobs") == QueueClaim("b")


def test_a_release_leaves_a_claim_that_another_member_has_made_since(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    assert claimed(farm, a, "jobs", True) == QueueClaim("a", lasting=True)
    farm.run(0.5)
    # As a member does that has not seen this one since it was away.
    [key] = farm.values("q")
    claim = Put(farm.key(f"q/{key}"), b'{"owner":"b"}', farm.etcd.keys[farm.key("b/b")].lease)
    farm.etcd.txn([], [claim])
    a.cluster.release("space", "jobs")
    farm.run(0.5)
    assert a.cluster.claim_of("space", "jobs") == b.cluster.claim_of("space", "jobs") == QueueClaim("b")


def test_a_claim_ends_with_the_lease_and_a_lasting_one_does_not(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    assert claimed(farm, a, "passing") == QueueClaim("a")
    assert claimed(farm, a, "lasting", True) == QueueClaim("a", lasting=True)
    farm.run(0.5)
    lost: list[object] = []
    a.cluster.watch_claims(lambda *change: lost.append(change))
    a.client.disconnect()
    farm.run(13.0)
    assert claimed(farm, b, "passing") == QueueClaim("b")
    assert claimed(farm, b, "lasting", True) == QueueClaim("a", lasting=True)
    refused = claimed(farm, a, "another")
    assert isinstance(refused, Refusal)
    assert refused.reason is Reason.UNAVAILABLE
    a.client.connect()
    farm.until(lambda: a.is_member, "the return")
    farm.run(0.5)
    assert lost[-1] == ("space", "passing", QueueClaim("b"))
    assert a.cluster.claim_of("space", "lasting") == QueueClaim("a", lasting=True)


def test_a_release_without_etcd_fails_and_a_restarted_owner_sees_its_claim(farm: Farm) -> None:
    [a] = farm.joined("a")
    assert claimed(farm, a, "jobs", True) == QueueClaim("a", lasting=True)
    a.client.disconnect()
    farm.run(13.0)
    results: list[object] = []
    a.cluster.release("space", "jobs").addBoth(results.append)
    assert isinstance(results[0], Failure)
    assert results[0].check(Refusal)
    a.kill()
    again = farm.member("a", a.memory)
    known: list[object] = []
    again.cluster.watch_claims(lambda *change: known.append(change))
    farm.until(lambda: again.started, "the restart")
    assert known == [("space", "jobs", QueueClaim("a", lasting=True))]


def test_a_member_that_adopts_waits_for_the_listeners_which_follow_the_claims(farm: Farm) -> None:
    b = farm.member("b", adopts="a")
    farm.run(20.0)
    assert not b.started
    assert "the broker a, which this cluster adopts, has not joined it yet" in b.degradations
    [a] = farm.joined("a")
    farm.run(20.0)
    assert not b.started
    claims = [a.cluster.claim("space", f"jobs-{number}", lasting=True) for number in range(20)]
    a.client.chances.delay = (0.5, 0.9)
    a.cluster.describe({"mtl": "tcp://10.0.0.1:5975"}, False)
    farm.until(lambda: b.started, "the start")
    assert all(each.called for each in claims)
    assert len(b.cluster.claims()) == 20


def test_an_adopted_broker_without_listeners_for_others_is_waited_for_no_longer_than_its_claims_take(
    farm: Farm,
) -> None:
    b = farm.member("b", adopts="a")
    farm.run(2 * ADOPTED_WITHIN)
    assert not b.started
    farm.joined("a")
    farm.run(ADOPTED_WITHIN - 1.0)
    assert not b.started
    farm.until(lambda: b.started, "the start", 3.0)


def test_claims_follow_the_store(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    assert claimed(farm, a, "jobs", True) == QueueClaim("a", lasting=True)
    farm.run(0.5)
    # The messages are in a shared store from now on, and their former owner is there.
    assert claimed(farm, b, "jobs", False, True) == QueueClaim("a", lasting=True)
    assert claimed(farm, a, "jobs", False, True) == QueueClaim("a")
    assert claimed(farm, a, "jobs", True) == QueueClaim("a", lasting=True)
    a.kill()
    farm.until(lambda: farm.values("b") == ["b"], "the end of the owner")
    assert claimed(farm, b, "jobs") == QueueClaim("a", lasting=True)
    assert claimed(farm, b, "jobs", False, True) == QueueClaim("b")
    farm.run(0.2)
    assert b.cluster.claim_of("space", "jobs") == QueueClaim("b")


# operators


def test_members_and_their_health_are_known(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    changes: list[object] = []
    b.cluster.watch_members(lambda name, member: changes.append((name, member and member.draining)))
    a.register()
    a.cluster.describe({"mtl": "tcp://h:1"}, True)
    farm.run(2.5)
    assert changes == [("a", True)]
    [first, second] = b.cluster.health()
    assert (first.member.name, first.here, first.providers, first.services) == ("a", False, 1, 1)
    assert first.lag is not None
    assert first.lag < 0.1
    assert second.here
    assert second.providers == 0
    a.kill()
    farm.until(lambda: changes[-1] == ("a", None), "the end of a member", 11.5)
    assert [each.member.name for each in b.cluster.health()] == ["b"]
