"""etcd without space: no beat can be written, so that a silent watch has to be replaced without one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from twisted.internet import reactor
from twisted.internet.task import Clock
from twisted.internet.threads import deferToThread

from broker.cluster.cluster import Cluster
from broker.cluster.publisher import MAX_BATCH
from broker.cluster.settings import WATCH_ENDED, WATCH_SILENT, ClusterFailed, ClusterSettings, Environment
from broker.cluster.watch_feed import Reopening
from broker.core.cluster.cluster_registry import ClusterRegistry
from broker.core.errors import Refusal
from broker.core.model import Provider, Rights, Service
from broker.core.registered_services import Restored
from tests.cluster.etcd.recording import ClientCase
from tests.cluster.logic.members import STEP, Farm, KeptMemory, Member
from tests.cluster.logic.test_real_etcd import until
from tests.cluster.real_etcd import Etcd


@pytest.fixture
def farm() -> Farm:
    return Farm()


def full(farm: Farm) -> tuple[Member, Member, list[int]]:
    """Two members, of which b has three services, when they know that etcd has no space."""
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(3)]
    farm.until(lambda: a.found() == ids, "the services")
    farm.run(1.5)
    farm.etcd.fill()
    farm.until(lambda: all("no space" in each.degradations for each in (a, b)), "the notice")
    return a, b, ids


def sessions(member: Member) -> int:
    """The number of its sessions so far."""
    return member.cluster.counts()["cluster.sessions"]


def test_without_space_deletions_and_the_lease_go_on(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    id = a.register()
    farm.until(b.found, "the service")
    farm.etcd.fill()
    new = a.register("shop", "h:2")
    a.registry.leave(id)
    farm.until(lambda: not b.found(), "the deletion", 10.0)
    farm.run(25.0)
    assert a.cluster.member("b") is not None
    assert b.found("shop") == []
    assert "etcd has no space" in a.degradations
    farm.etcd.drain_alarm()
    farm.until(lambda: b.found("shop") == [new], "the service", 10.0)
    farm.until(lambda: not a.degradations, "the end of the trouble", 10.0)


def test_without_space_more_deletions_than_one_transaction_has_follow_each_other(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    ids = [b.register("bank", f"h:{number}") for number in range(3 * MAX_BATCH)]
    farm.until(lambda: a.found() == ids, "the services")
    farm.etcd.fill()
    waiting = b.register("shop", "h:1")
    farm.until(lambda: "no space" in b.degradations, "the notice")
    for id in ids:
        b.registry.leave(id)
    farm.until(lambda: not a.found(), "the departures", 0.5)
    before = b.cluster.counts()["cluster.transactions"]
    farm.run(2.0)
    assert b.cluster.counts()["cluster.transactions"] == before, "nothing is left to delete"
    farm.etcd.drain_alarm()
    farm.until(lambda: a.found("shop") == [waiting], "the service", 10.0)


def test_a_silent_watch_is_replaced_without_another_session(farm: Farm) -> None:
    a, b, ids = full(farm)
    before = sessions(a)
    a.client.cut = {a.client._preferred}
    b.registry.leave(ids[0])
    took = farm.until(lambda: a.found() == ids[1:], "the departure", 8.0)
    assert took > 1, "the watch was silent"
    assert (a.is_member, sessions(a)) == (True, before)
    b.registry.leave(ids[1])
    farm.until(lambda: a.found() == ids[2:], "the next departure", 0.5)


def test_a_watch_that_ends_is_replaced_and_own_deletions_go_on(farm: Farm) -> None:
    a, b, ids = full(farm)
    before = sessions(a), sessions(b)
    for _ in range(3):
        for watch in (*a.client._watches, *b.client._watches):
            watch.fail("the connection was lost")
        farm.run(2.0)
    b.registry.leave(ids[0])
    farm.until(lambda: a.found() == ids[1:], "the departure", 0.5)
    assert (sessions(a), sessions(b)) == before
    assert a.is_member
    assert b.is_member
    new = a.register("shop", "h:9")
    farm.etcd.drain_alarm()
    farm.until(
        lambda: b.found("shop") == [new] and not a.degradations and not b.degradations, "the end of the trouble", 10.0
    )
    assert (sessions(a), sessions(b)) == before


def test_a_registration_that_waits_for_space_is_not_written_while_it_is_tried_again(farm: Farm) -> None:
    a, _, _ = full(farm)
    a.register("shop", "h:9")
    answers: list[object] = []
    transactions = a.cluster.counts()["cluster.transactions"]
    while a.cluster.counts()["cluster.transactions"] < transactions + 3:
        a.cluster.written().addBoth(lambda answer: answers.append(getattr(answer, "value", answer)))
        farm.clock.advance(STEP)
    assert all(isinstance(answer, Refusal) for answer in answers)


def test_a_read_that_is_to_be_consistent_is_refused_while_no_watch_is_open(farm: Farm) -> None:
    a, b, ids = full(farm)
    for _ in range(5):  # the pause until the next watch grows
        farm.until(lambda: a.client._watches, "a watch")
        for watch in list(a.client._watches):
            watch.fail("the connection was lost")
    b.registry.leave(ids[0])
    farm.until(lambda: len(farm.registrations()) == 2, "the deletion", 0.1)
    read: list[object] = []
    a.cluster.caught_up().addCallback(lambda _: read.append(a.found())).addErrback(lambda f: read.append(f.value))
    farm.until(lambda: read, "the answer", 5.0)
    [answer] = read
    assert answer == ids[1:] or isinstance(answer, Refusal)


def test_a_broker_that_was_cut_off_meanwhile_still_follows_the_others(farm: Farm) -> None:
    a, b, ids = full(farm)
    a.client.disconnect()
    farm.until(lambda: not a.is_member, "the end of the session", 60.0)
    a.client.connect()
    farm.run(10.0)
    assert not a.is_member, "a session needs a write"
    for watch in list(a.client._watches):
        watch.fail("the connection was lost")
    b.registry.leave(ids[0])
    farm.until(lambda: a.found() == ids[1:], "the departure", 75.0)


def test_a_compacted_revision_is_read_again_without_space(farm: Farm) -> None:
    a, b, ids = full(farm)
    before = sessions(a)
    a.client.disconnect()
    for id in ids[:2]:
        b.registry.leave(id)
        farm.run(0.5)
    farm.etcd.compact(farm.etcd.revision)
    for watch in list(a.client._watches):
        watch.fail("the connection was lost")
    a.client.connect()
    farm.until(lambda: a.found() == ids[2:], "the departures", 10.0)
    assert (a.is_member, sessions(a)) == (True, before + 1), "the lease and the name are held"
    assert "etcd has no space" in a.degradations


def test_what_a_broker_that_ran_alone_has_is_found_when_it_joins_after_a_wait_for_space(farm: Farm) -> None:
    [a] = farm.joined("a")
    farm.etcd.fill()
    b = farm.member("b", kept=[Provider(5, "server", "elko", "10.0.0.1:5", 0.0, 0.0, (Service("bank", "h:1", 5),))])
    farm.run(20.0)
    assert not b.started
    farm.etcd.drain_alarm()
    farm.until(lambda: b.started, "the join")
    farm.run(2.0)
    assert a.found() == [5]


def test_a_broker_that_restarts_finds_the_others_and_deletes_what_goes(farm: Farm) -> None:
    a, b = farm.joined("a", "b")
    own, ids = a.register("shop", "h:9"), [b.register("bank", f"h:{number}") for number in range(2)]
    farm.until(lambda: a.found() == ids and b.found("shop") == [own], "the services")
    farm.etcd.fill()
    a.kill()
    farm.run(2.0)
    again = farm.member("a", a.memory, grace=5.0)
    farm.until(lambda: again.started, "the restart", 3.0)
    assert (again.error, again.is_member, again.found()) == (None, True, ids)
    b.registry.leave(ids[0])
    farm.until(lambda: again.found() == ids[1:], "the departure", 1.0)
    farm.run(15.0)
    assert b.found("shop") == [], "the grace is over, and the lease was renewed"
    assert b.cluster.member("a") is not None
    new = again.register("shop", "h:9")
    farm.etcd.drain_alarm()
    farm.until(lambda: b.found("shop") == [new] and not again.degradations, "the end of the trouble", 10.0)


def test_a_broker_without_a_lease_finds_the_others_until_there_is_space(farm: Farm) -> None:
    a, b, ids = full(farm)
    a.kill()
    farm.until(lambda: b.cluster.member("a") is None, "the end of the lease", 20.0)
    farm.etcd.compact(farm.etcd.revision)
    again = farm.member("a", a.memory)
    farm.until(lambda: again.started, "the restart", 6.0)
    assert (again.error, again.is_member, again.found()) == (None, False, ids)
    own = again.register("shop", "h:9")
    b.registry.leave(ids[0])
    farm.until(lambda: again.found() == ids[1:], "the departure", 1.0)
    # The watch that ends, or is silent, is replaced.
    for watch in list(again.client._watches):
        watch.fail("the connection was lost")
    b.registry.leave(ids[1])
    farm.until(lambda: again.found() == ids[2:], "the next departure", 5.0)
    again.client.cut = {again.client._preferred}
    b.registry.leave(ids[2])
    farm.until(lambda: again.found() == [], "the last departure", 75.0)
    again.client.connect()
    farm.etcd.drain_alarm()
    farm.until(lambda: again.is_member and b.found("shop") == [own] and not again.degradations, "the return", 10.0)


class Watched:
    """A watch for `Reopening`, which notes the times at which it is replaced."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.needed = self.open = True
        self.times: list[float] = []
        self.reopening = Reopening(self.clock, random.Random(1), lambda: self.needed, lambda: self.open, self.replace)

    def replace(self) -> None:
        self.open = True
        self.times.append(self.clock.seconds())

    def pauses(self, seconds: float, step: float = 0.01) -> list[float]:
        """Let time pass. Returns the pauses before the replacements in that time."""
        begun = self.clock.seconds()
        self.times = []
        self.clock.pump([step] * round(seconds / step))
        return [after - before for before, after in zip([begun, *self.times], self.times, strict=False)]


def test_the_pauses_of_a_farm_without_changes_grow() -> None:
    watched = Watched()
    watched.reopening.begin()
    watched.reopening.begin()
    pauses = watched.pauses(400)
    assert 9 <= len(pauses) <= 11
    for number, pause in enumerate(pauses):
        assert WATCH_SILENT.after(number + 1, 0.0) - 0.02 <= pause <= WATCH_SILENT.after(number + 1) + 0.02
    # An event proves the watch alive, and the next silence is short again.
    watched.reopening.heard()
    before, after, *_ = watched.pauses(WATCH_SILENT.most + 4 * WATCH_SILENT.first)
    assert before > after
    assert after <= 2 * WATCH_SILENT.first
    watched.needed = False
    assert watched.pauses(200) == []
    watched.reopening.begin()
    watched.needed = True
    assert watched.pauses(5)[0] <= WATCH_SILENT.first + 0.02


def test_watches_that_end_at_once_are_replaced_with_growing_pauses() -> None:
    watched = Watched()
    watched.reopening.begin()
    pauses = []
    for _ in range(8):
        watched.open = False
        watched.reopening.ended()
        pauses += watched.pauses(WATCH_ENDED.most + 0.02)[:1]
    for number, pause in enumerate(pauses):
        assert WATCH_ENDED.after(number + 1, 0.0) - 0.02 <= pause <= WATCH_ENDED.after(number + 1) + 0.02
    # Space is back, but the watch has to be replaced first.
    watched.open = watched.needed = False
    watched.reopening.ended()
    assert len(watched.pauses(20)) == 1


class RealEtcdTests(ClientCase):
    directory: Path

    @pytest.fixture(autouse=True)
    def use_directory(self, tmp_path: Path) -> None:
        """Give the test a directory."""
        self.directory = tmp_path

    def member(self, name: str, etcd: Etcd, first: str) -> tuple[Cluster, ClusterRegistry]:
        """Make a member, which is not started, at the endpoint ``first``, and then at the others."""
        failures: list[ClusterFailed] = []
        restored = Restored((), 30.0, reactor, lambda ids: None)  # type: ignore[arg-type]
        registry = ClusterRegistry(reactor, lambda: cluster.next_id(), restored)  # type: ignore[arg-type]
        client = self.client(first, *[each for each in etcd.urls if each != first])
        settings = ClusterSettings(name, ttl=20)
        environment = Environment(client, registry, reactor, KeptMemory(), settings, random.Random(name))  # type: ignore[arg-type]
        cluster = Cluster(environment, failures.append)
        self.addCleanup(lambda: self.assertEqual(failures, []))
        self.addCleanup(cluster.stop, False)
        return cluster, registry

    @pytest.mark.long
    async def test_departures_are_seen_though_the_member_of_the_watch_stands_still(self) -> None:
        with Etcd(self.directory, members=3, options=["--quota-backend-bytes", "2000000"]) as etcd:
            frozen = etcd.followers()[0]
            a, seen = self.member("a", etcd, frozen.url)
            b, registry = self.member("b", etcd, etcd.leader().url)
            await a.start()
            await b.start()
            ids = [registry.join("server", "elko", "10.0.0.1:5") for _ in range(2)]
            for number, id in enumerate(ids):
                registry.offer([Service("bank", f"h:{number}", id)], Rights())
            await until(lambda: [each.provider for each in seen.find("bank", "tcp")] == ids, "the services")
            await deferToThread(etcd.fill)
            both = (a, b)
            await until(lambda: all("no space" in str(each.degradations()) for each in both), "the notice")
            before = a.counts()["cluster.sessions"]
            frozen.pause()
            registry.leave(ids[0])
            await until(lambda: [each.provider for each in seen.find("bank", "tcp")] == ids[1:], "the departure")
            assert a.counts()["cluster.sessions"] == before
            frozen.resume()
