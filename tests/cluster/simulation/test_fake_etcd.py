"""The fake etcd and the real one behave alike: one suite for both. Then the faults of the fake one."""

from __future__ import annotations

import random
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock, deferLater
from zope.interface.verify import verifyObject

from broker.cluster.etcd.etcd_interface import (
    BadRequest,
    Compacted,
    Compare,
    Delete,
    Ended,
    FutureRevision,
    Get,
    IEtcd,
    LeaseGone,
    NoSpace,
    Put,
    Unavailable,
)
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.cluster.real_etcd import Etcd
from tests.cluster.simulation.fake_client import TIMEOUT, FakeClient
from tests.cluster.simulation.fake_etcd import FakeEtcd


class Conformance(ClientCase):
    """Behaviour of etcd on which a member of a cluster depends. Each test has a prefix of its own."""

    __test__ = False

    def etcd_client(self) -> Any:
        raise NotImplementedError

    def key(self, name: str) -> bytes:
        return f"/{self.id()}/{name}".encode()

    async def test_transactions_compare_and_read(self) -> None:
        client = self.etcd_client()
        one, two, none = self.key("1"), self.key("2"), self.key("none")
        lease = (await client.grant(60)).lease
        for target in ("CREATE", "MOD", "LEASE"):
            assert (await client.txn([Compare(target, none, 0)], [])).succeeded
            assert not (await client.txn([Compare(target, none, 7)], [])).succeeded
        made = await client.txn([Compare("CREATE", one, 0)], [Put(one, b"a", lease), Get(one), Put(two, b"", 0)])
        [[kv]] = made.found
        assert (kv.value, kv.lease, kv.create_revision, kv.mod_revision) == (b"a", lease, made.revision, made.revision)
        again = await client.txn(
            [Compare("MOD", one, kv.mod_revision), Compare("LEASE", one, lease)], [Put(one, b"b", 0)]
        )
        [kv] = (await client.range(one)).keys
        assert (kv.value, kv.lease, kv.create_revision, kv.mod_revision) == (b"b", 0, made.revision, again.revision)
        lost = await client.txn([Compare("CREATE", one, 0)], [Delete(one)], [Get(one, self.key("3")), Get(none)])
        assert not lost.succeeded
        assert [[each.key for each in some] for some in lost.found] == [[one, two], []]

    async def test_a_transaction_without_an_effect_makes_no_revision(self) -> None:
        client = self.etcd_client()
        before = (await client.txn([], [Put(self.key("a"), b"", 0)])).revision
        assert (await client.txn([], [Delete(self.key("none")), Get(self.key("a"))])).revision == before
        assert (
            await client.txn([Compare("CREATE", self.key("a"), 0)], [Put(self.key("a"), b"", 0)])
        ).revision == before

    async def test_transactions_that_etcd_refuses(self) -> None:
        client = self.etcd_client()
        puts = [Put(self.key(str(number)), b"", 0) for number in range(129)]
        await self.fails(client.txn([], puts), BadRequest)
        assert (await client.txn([], puts[:128])).succeeded
        await self.fails(client.txn([], [puts[0], puts[0]]), BadRequest)
        await self.fails(client.txn([], [puts[0], Delete(self.key("0"))]), BadRequest)
        await self.fails(client.txn([], [Delete(self.key(""), self.key("9")), puts[5]]), BadRequest)
        await self.fails(client.txn([], [Put(self.key("big"), bytes(1_600_000), 0)]), BadRequest)
        await self.fails(client.txn([], [Put(self.key("fresh"), b"", 0), Put(self.key("x"), b"", 4711)]), LeaseGone)
        assert (await client.range(self.key("fresh"))).keys == ()
        # Puts of the branch that is not executed need no lease.
        assert (await client.txn([], [], [Put(self.key("x"), b"", 4711)])).succeeded

    async def test_ranges_in_pages_at_a_past_revision(self) -> None:
        client = self.etcd_client()
        end = self.key("x")
        await client.txn([], [Put(self.key(str(number)), b"1", 0) for number in range(5)])
        first = await client.range(self.key(""), end, 2)
        assert (first.count, first.more, [each.key for each in first.keys]) == (5, True, [self.key("0"), self.key("1")])
        change = await client.txn([], [Delete(self.key("2")), Put(self.key("3"), b"2", 0), Put(self.key("35"), b"", 0)])
        rest = await client.range(first.keys[-1].key + b"\0", end, 0, first.revision)
        assert [(each.key, each.value) for each in rest.keys] == [(self.key(n), b"1") for n in ("2", "3", "4")]
        assert (rest.more, rest.count) == (False, 3)
        assert rest.revision >= change.revision
        now = await client.range(self.key(""), end)
        assert [each.key for each in now.keys] == [self.key(n) for n in ("0", "1", "3", "35", "4")]
        await self.fails(client.range(end, None, 0, change.revision + 1000), FutureRevision)

    async def test_a_compacted_revision(self) -> None:
        client = self.etcd_client()
        old = (await client.txn([], [Put(self.key("a"), b"1", 0)])).revision
        new = (await client.txn([], [Put(self.key("a"), b"2", 0)])).revision
        await client.compact(new)
        await client.compact(new)
        await self.fails(client.range(self.key("a"), None, 0, old), Compacted)
        [kv] = (await client.range(self.key("a"), None, 0, new)).keys
        assert kv.value == b"2"
        recorder = Recorder()
        client.watch(self.key("a"), self.key("b"), old, recorder)
        assert (await recorder.is_ended())[0] is Ended.COMPACTED
        from_there = Recorder()
        watch = client.watch(self.key("a"), self.key("b"), new, from_there)
        await from_there.until(lambda: from_there.keys == [self.key("a")])
        watch.cancel()

    async def test_a_watch_from_the_future_is_ended(self) -> None:
        client = self.etcd_client()
        now = (await client.txn([], [Put(self.key("a"), b"1", 0)])).revision
        recorder = Recorder()
        client.watch(self.key("a"), self.key("b"), now + 1000, recorder)
        assert (await recorder.is_ended())[0] is Ended.COMPACTED
        live = Recorder()
        watch = client.watch(self.key("a"), self.key("b"), now + 1, live)
        await client.txn([], [Put(self.key("a"), b"2", 0)])
        await live.until(lambda: live.keys)
        watch.cancel()

    async def test_a_watch_has_the_events_of_a_revision_together_and_in_order(self) -> None:
        client = self.etcd_client()
        a, b, c = (self.key(name) for name in "abc")
        first = (await client.txn([], [Put(a, b"1", 0), Put(b, b"1", 0)])).revision
        recorder = Recorder()
        watch = client.watch(self.key(""), c, first, recorder)
        last = (await client.txn([], [Delete(a), Put(b, b"2", 0), Put(c, b"not watched", 0)])).revision
        await recorder.until(lambda: len(recorder.keys) == 4)
        watch.cancel()
        events = [event for _, some in recorder.calls for event in some]
        assert [(each.key, each.value and each.value.value, each.revision) for each in events] == [
            (a, b"1", first),
            (b, b"1", first),
            (a, None, last),
            (b, b"2", last),
        ]
        assert recorder.calls[-1][0] == last
        await client.txn([], [Put(a, b"3", 0)])
        assert len(recorder.keys) == 4

    async def test_leases(self) -> None:
        client = self.etcd_client()
        granted = await client.grant(60)
        other = await client.grant(60)
        assert granted.ttl == 60
        a, b = self.key("a"), self.key("b")
        await client.txn([], [Put(a, b"", granted.lease), Put(b, b"", granted.lease)])
        # A put moves its key.
        moved = (await client.txn([], [Put(b, b"", other.lease)])).revision
        assert await client.keep_alive(granted.lease) == 60
        assert 50 < await client.time_to_live(granted.lease) <= 60
        recorder = Recorder()
        watch = client.watch(self.key(""), self.key("x"), moved + 1, recorder)
        await client.revoke(granted.lease)
        await client.revoke(granted.lease)
        await recorder.until(lambda: recorder.keys == [a])
        watch.cancel()
        assert [each.key for each in (await client.range(a, self.key("x"))).keys] == [b]
        await self.fails(client.keep_alive(granted.lease), LeaseGone)
        await self.fails(client.time_to_live(granted.lease), LeaseGone)
        await self.fails(client.txn([], [Put(a, b"", granted.lease)]), LeaseGone)

    async def test_a_lease_that_is_not_renewed_ends(self) -> None:
        client = self.etcd_client()
        granted = await client.grant(1)
        assert granted.ttl == 2
        recorder = Recorder()
        made = await client.txn([], [Put(self.key(name), b"", granted.lease) for name in "ba"])
        watch = client.watch(self.key(""), self.key("x"), made.revision + 1, recorder)
        before = reactor.seconds()
        await recorder.until(lambda: len(recorder.keys) == 2)
        assert reactor.seconds() - before > 1.5
        watch.cancel()
        # One revision, in the order of the keys.
        assert recorder.keys == [self.key("a"), self.key("b")]
        await self.fails(client.keep_alive(granted.lease), LeaseGone)

    async def test_calls_after_the_end(self) -> None:
        client = self.etcd_client()
        recorder = Recorder()
        client.watch(self.key("a"), self.key("b"), 0, recorder)
        await client.close()
        assert (await recorder.is_ended())[0] is Ended.FAILED
        await self.fails(client.grant(60), Unavailable)


@pytest.mark.usefixtures("one_etcd")
class RealTests(Conformance):
    """The suite with the real etcd, through the real client."""

    __test__ = True
    etcd: Etcd

    def etcd_client(self) -> Any:
        return self.client(self.etcd.url)


class FakeTests(Conformance):
    """The suite with the fake etcd, through the fake client."""

    __test__ = True

    def setUp(self) -> None:
        self.etcd = FakeEtcd(reactor, random.Random(1))

    def etcd_client(self) -> Any:
        client = FakeClient(self.etcd, reactor, random.Random(2))
        self.addCleanup(self._end, client)
        return client

    def _end(self, client: FakeClient) -> Any:
        for lease in list(self.etcd.leases):
            self.etcd.revoke(lease)
        # The events of the revocations are on their way.
        client.close()
        return deferLater(reactor, 0.02)

    def test_the_interface(self) -> None:
        assert verifyObject(IEtcd, FakeClient(self.etcd, reactor, random.Random(2)))


class Faults:
    """A fake etcd on a hand clock, with a client."""

    def __init__(self, seed: int = 0) -> None:
        self.clock = Clock()
        self.lines: list[tuple[Any, ...]] = []
        self.etcd = FakeEtcd(self.clock, random.Random(seed), lambda *what: self.lines.append(what))
        self.one = self.client("one", seed)

    def client(self, name: str, seed: int = 0) -> FakeClient:
        return FakeClient(self.etcd, self.clock, random.Random(f"{seed}/{name}"), name)

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 100)):
            self.clock.advance(0.01)

    def outcome(self, call: Deferred[Any], seconds: float = 30.0) -> Any:
        """Return the result of a call, or the exception."""
        outcomes: list[Any] = []
        call.addBoth(outcomes.append)
        for _ in range(round(seconds * 100)):
            if outcomes:
                break
            self.clock.advance(0.01)
        [outcome] = outcomes
        return getattr(outcome, "value", outcome)


def test_a_new_leader_gives_every_lease_its_full_time() -> None:
    faults = Faults()
    lease = faults.outcome(faults.one.grant(10)).lease
    faults.advance(8)
    faults.etcd.lose_leader()
    faults.advance(0.5)
    assert faults.etcd.leader is None
    faults.advance(9.5)
    assert lease in faults.etcd.leases
    faults.advance(4)
    assert lease not in faults.etcd.leases


def test_two_members_of_three_work_and_one_does_not() -> None:
    faults = Faults()
    faults.etcd.kill(0)
    faults.advance(3)
    assert faults.outcome(faults.one.grant(10)).ttl == 10
    faults.etcd.kill(1)
    assert isinstance(faults.outcome(faults.one.grant(10)), Unavailable)
    faults.etcd.restart(0)
    faults.advance(3)
    assert faults.outcome(faults.one.grant(10)).ttl == 10


def test_an_isolated_member_is_silent_and_ends_its_watches() -> None:
    faults = Faults()
    one = faults.one
    recorder = Recorder()
    one.watch(b"a", b"b", 0, recorder)
    faults.advance(0.1)
    member = next(number for number in range(3) if one.silent(number) is False and number == one._preferred)
    faults.etcd.isolate(member)
    faults.advance(2.5)
    faults.etcd.txn([], [Put(b"a", b"", 0)])
    faults.advance(1)
    assert recorder.calls == []
    faults.advance(2)
    assert recorder.end
    assert recorder.end[0] is Ended.FAILED


def test_a_cut_watch_is_silent_and_has_everything_afterwards() -> None:
    faults = Faults()
    recorder = Recorder()
    faults.one.watch(b"a", b"b", 0, recorder)
    faults.advance(0.1)
    faults.one.disconnect()
    for _ in range(3):
        faults.etcd.txn([], [Put(b"a", b"", 0)])
        faults.advance(10)
    assert recorder.calls == []
    assert recorder.end is None
    error = faults.outcome(faults.one.grant(10))
    assert isinstance(error, Unavailable)
    faults.one.connect()
    faults.advance(5)
    assert recorder.keys == [b"a"] * 3


def test_a_write_whose_answer_is_lost_has_an_unknown_result() -> None:
    faults = Faults()
    faults.one.chances.unanswered = 1.0
    error = faults.outcome(faults.one.txn([], [Put(b"a", b"1", 0)]))
    assert isinstance(error, Unavailable)
    assert error.unknown
    assert faults.etcd.keys[b"a"].value == b"1"
    faults.one.chances.unanswered, faults.one.chances.lost = 0.0, 1.0
    error = faults.outcome(faults.one.txn([], [Put(b"a", b"2", 0)]))
    assert error.unknown
    assert faults.etcd.keys[b"a"].value == b"1"


def test_a_late_write_takes_effect_after_its_failure() -> None:
    faults = Faults()
    faults.one.chances.late = 1.0
    error = faults.outcome(faults.one.txn([], [Put(b"a", b"1", 0)]))
    assert error.unknown
    assert b"a" not in faults.etcd.keys
    faults.advance(2 * TIMEOUT)
    assert faults.etcd.keys[b"a"].value == b"1"


def test_without_space_reads_renewals_and_deletions_go_on() -> None:
    faults = Faults()
    lease = faults.outcome(faults.one.grant(10)).lease
    faults.outcome(faults.one.txn([], [Put(b"a", b"", 0)]))
    faults.etcd.fill()
    assert isinstance(faults.outcome(faults.one.txn([], [Put(b"a", b"", 0)])), NoSpace)
    assert isinstance(faults.outcome(faults.one.grant(10)), NoSpace)
    assert faults.outcome(faults.one.keep_alive(lease)) == 10
    assert faults.outcome(faults.one.txn([], [Delete(b"a")])).succeeded
    faults.etcd.drain_alarm()
    assert faults.outcome(faults.one.grant(10)).ttl == 10


def test_wiped_data_end_the_watches_and_the_leases() -> None:
    faults = Faults()
    lease = faults.outcome(faults.one.grant(10)).lease
    faults.outcome(faults.one.txn([], [Put(b"a", b"", lease)]))
    recorder = Recorder()
    faults.one.watch(b"a", b"b", 0, recorder)
    faults.advance(0.1)
    faults.etcd.wipe()
    faults.advance(3)
    assert recorder.end
    assert recorder.keys == []
    assert isinstance(faults.outcome(faults.one.keep_alive(lease)), LeaseGone)
    assert faults.etcd.revision == 1


def test_a_killed_client_receives_nothing_and_its_requests_take_effect() -> None:
    faults = Faults()
    outcomes: list[Any] = []
    faults.one.txn([], [Put(b"a", b"", 0)]).addBoth(outcomes.append)
    faults.one.abandon()
    faults.advance(10)
    assert outcomes == []
    assert b"a" in faults.etcd.keys


def test_the_same_seed_gives_the_same_history() -> None:
    def history(seed: int) -> list[tuple[Any, ...]]:
        faults = Faults(seed)
        clients = [faults.one, faults.client("two", seed)]
        rng = random.Random(seed)
        for client in clients:
            client.chances.lost = client.chances.unanswered = client.chances.late = 0.1
        for step in range(200):
            rng.choice(clients).txn([], [Put(b"%d" % rng.randrange(5), b"%d" % step, 0)]).addErrback(lambda _: None)
            if rng.random() < 0.05:
                faults.etcd.lose_leader()
            faults.advance(rng.random())
        return faults.lines

    assert history(1) == history(1)
    assert history(1) != history(2)
