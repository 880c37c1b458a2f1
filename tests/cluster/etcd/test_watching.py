"""Watches against the real etcd: events, and each way in which a watch ends or goes silent."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThread

from bench.machine import cpu_seconds
from broker.cluster.etcd.etcd_interface import Delete, Ended, Put, Unavailable
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.cluster.real_etcd import Etcd


@pytest.mark.usefixtures("one_etcd")
class EventsTests(ClientCase):
    etcd: Etcd

    async def test_changes_come_in_order(self) -> None:
        client, watcher = self.client(self.etcd.url), Recorder()
        start = self.etcd.revision() + 1
        client.watch(b"/e/", b"/e0", start, watcher)
        first = await client.txn([], [Put(b"/e/1", b"a", 0), Put(b"/e/2", b"b", 0), Put(b"/other", b"", 0)])
        second = await client.txn([], [Put(b"/e/1", b"c", 0), Delete(b"/e/2")])
        await watcher.until(lambda: len(watcher.keys) == 4)
        events = [event for _, events in watcher.calls for event in events]
        assert [(each.key, each.value and each.value.value, each.revision) for each in events] == [
            (b"/e/1", b"a", first.revision),
            (b"/e/2", b"b", first.revision),
            (b"/e/1", b"c", second.revision),
            (b"/e/2", None, second.revision),
        ]
        assert watcher.calls[-1][0] == second.revision

    async def test_a_watch_from_revision_0_sees_what_comes(self) -> None:
        client, watcher = self.client(self.etcd.url), Recorder()
        await client.txn([], [Put(b"/z/old", b"", 0)])
        watch = client.watch(b"/z/", b"/z0", 0, watcher)
        await self._live(client, b"/z/", watcher)
        assert b"/z/old" not in watcher.keys
        watch.cancel()
        watch.cancel()

    async def test_nothing_comes_after_cancel(self) -> None:
        client, watcher, witness = self.client(self.etcd.url), Recorder(), Recorder()
        watch = client.watch(b"/n/", b"/n0", 0, watcher)
        client.watch(b"/n/", b"/n0", 0, witness)
        await self._live(client, b"/n/", watcher)
        await self._live(client, b"/n/", witness)
        before = len(watcher.calls)
        watch.cancel()
        await client.txn([], [Put(b"/n/last", b"", 0)])
        await witness.until(lambda: b"/n/last" in witness.keys)
        assert (len(watcher.calls), watcher.end) == (before, None)
        unborn = Recorder()
        client.watch(b"/n/", b"/n0", 0, unborn).cancel()
        assert (unborn.calls, unborn.end) == ([], None)

    @pytest.mark.long
    async def test_a_revision_is_not_reported_before_all_its_events(self) -> None:
        """Etcd sends what a watch has missed in one line, which is cut in the middle of a revision."""
        client, watcher = self.client(self.etcd.url), Recorder()
        start = self.etcd.revision() + 1
        for number in range(8):
            await client.txn([], [Put(b"/f/%d/%02d" % (number, n), b"x" * 14_000, 0) for n in range(100)])
        client.watch(b"/f/", b"/f0", start, watcher)
        await watcher.until(lambda: len(watcher.keys) == 800)
        assert len(watcher.calls) > 1
        assert watcher.keys == sorted(watcher.keys)
        for (reported, _), (_, later) in pairwise(watcher.calls):
            assert reported < later[0].revision

    @pytest.mark.long
    async def test_the_end_of_a_lease_of_many_keys_costs_etcd_little(self) -> None:
        """In fragments, which begin after 2 MiB, 50,000 keys took it 15 seconds, and their watch was silent."""
        client, watcher = self.client(self.etcd.url), Recorder()
        lease = (await client.grant(600)).lease
        for number in range(300):
            keys = [b"/m/%05d/%02d" % (number, n) + 100 * b"x" for n in range(100)]
            made = await client.txn([], [Put(each, b"", lease) for each in keys])
        await deferToThread(self.etcd.ask, "lease/revoke", {"ID": lease})
        process = self.etcd.members[0].process
        assert process is not None
        before = cpu_seconds(process.pid)
        client.watch(b"/m/", b"/m0", made.revision + 1, watcher)
        await watcher.until(lambda: len(watcher.keys) == 30_000)
        assert cpu_seconds(process.pid) - before < 3.0

    async def test_the_end_of_a_lease_is_one_revision(self) -> None:
        client, watcher = self.client(self.etcd.url), Recorder()
        lease = (await client.grant(60)).lease
        made = await client.txn([], [Put(b"/x/%d" % n, b"", lease) for n in range(100)])
        client.watch(b"/x/", b"/x0", made.revision + 1, watcher)
        await client.revoke(lease)
        await watcher.until(lambda: len(watcher.keys) == 100)
        assert sorted(watcher.keys) == sorted(b"/x/%d" % n for n in range(100))
        [revision] = {each.revision for _, events in watcher.calls for each in events if each.value is None}
        assert [reported for reported, _ in watcher.calls if reported >= revision] == [revision]

    async def test_a_compacted_revision_ends_the_watch(self) -> None:
        """etcd leaves the connection open, and silent."""
        client, watcher = self.client(self.etcd.url), Recorder()
        old = self.etcd.put("/k")
        await client.compact(self.etcd.put("/k"))
        client.watch(b"/k", b"/l", old, watcher)
        reason, text = await watcher.is_ended()
        assert reason is Ended.COMPACTED
        assert f"revision {old} was compacted" in text

    async def test_a_revision_of_the_future_ends_the_watch(self) -> None:
        """etcd accepts it, and says nothing."""
        client, watcher = self.client(self.etcd.url), Recorder()
        client.watch(b"/k", b"/l", self.etcd.revision() + 1000, watcher)
        reason, text = await watcher.is_ended()
        assert reason is Ended.COMPACTED
        assert "in the future" in text
        assert "replaced" in text

    async def test_the_next_revision_is_not_in_the_future(self) -> None:
        client, watcher = self.client(self.etcd.url), Recorder()
        client.watch(b"/next", b"/nexu", self.etcd.revision() + 1, watcher)
        self.etcd.put("/next")
        await watcher.until(lambda: watcher.keys == [b"/next"])

    async def _live(self, client: Any, prefix: bytes, watcher: Recorder) -> None:
        """Write until the watcher has seen one of the writes: then its watch is open."""
        number = 0
        while not watcher.calls:
            number += 1
            await client.txn([], [Put(b"%sprobe%d" % (prefix, number), b"", 0)])
            await turn()


def turn(seconds: float = 0.01) -> Deferred[None]:
    """Fire a little later."""
    done: Deferred[None] = Deferred()
    reactor.callLater(seconds, done.callback, None)
    return done


@pytest.mark.usefixtures("directory")
class FaultsTests(ClientCase):
    directory: Path

    async def test_a_wiped_etcd_has_the_same_cluster_id_and_is_recognised(self) -> None:
        with Etcd(self.directory) as etcd:
            before = etcd.ask("maintenance/status")["header"]["cluster_id"]
            client, watcher, again = self.client(etcd.url), Recorder(), Recorder()
            for _ in range(10):
                last = etcd.put("/w/1")
            client.watch(b"/w/", b"/w0", last, watcher)
            await watcher.until(lambda: watcher.keys)
            etcd.members[0].kill()
            reason, _text = await watcher.is_ended()
            assert reason is Ended.FAILED
            etcd.members[0].wipe()
            etcd.members[0].start()
            etcd.wait()
            assert etcd.ask("maintenance/status")["header"]["cluster_id"] == before
            client.watch(b"/w/", b"/w0", last + 1, again)
            reason, text = await again.is_ended()
            assert reason is Ended.COMPACTED
            assert "replaced" in text

    @pytest.mark.long
    async def test_an_end_in_order_and_a_kill_end_the_watch(self) -> None:
        with Etcd(self.directory) as etcd:
            client = self.client(etcd.url)
            for end in (etcd.members[0].stop, etcd.members[0].kill):
                watcher = Recorder()
                client.watch(b"/s/", b"/s0", etcd.put("/s/1"), watcher)
                await watcher.until(watcher.seen)
                await deferToThread(end)
                reason, text = await watcher.is_ended()
                assert reason is Ended.FAILED
                assert etcd.url in text
                etcd.members[0].start()
                etcd.wait()

    async def test_a_paused_etcd_is_silent_and_loses_nothing(self) -> None:
        """The watch does not end by itself: its user finds out by its own writes."""
        with Etcd(self.directory) as etcd:
            client, watcher = self.client(etcd.url), Recorder()
            client.watch(b"/s/", b"/s0", etcd.put("/s/1"), watcher)
            await watcher.until(lambda: watcher.keys)
            etcd.members[0].pause()
            impatient = self.client(etcd.url, in_time=True)
            error = await self.fails(impatient.keep_alive(1), Unavailable, "gives no complete answer within 2 s")
            assert error.unknown
            assert watcher.end is None
            etcd.members[0].resume()
            etcd.put("/s/2")
            await watcher.until(lambda: watcher.keys == [b"/s/1", b"/s/2"])

    @pytest.mark.long
    async def test_a_paused_etcd_does_not_confirm_a_watch(self) -> None:
        with Etcd(self.directory) as etcd:
            client, watcher = self.client(etcd.url, in_time=True), Recorder()
            etcd.members[0].pause()
            client.watch(b"/s/", b"/s0", 0, watcher)
            reason, text = await watcher.is_ended()
            assert reason is Ended.FAILED
            assert "within 3 s" in text
