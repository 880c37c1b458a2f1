"""Several members of the real etcd: failover, a change of the leader, and members without a quorum."""

from __future__ import annotations

from pathlib import Path

import pytest
from twisted.internet import reactor
from twisted.internet.threads import deferToThread

from broker.cluster.etcd.etcd_interface import Compare, Delete, Ended, Get, NoSpace, Put, Unavailable
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.cluster.etcd.test_watching import turn
from tests.cluster.real_etcd import Etcd
from tests.patience import PATIENCE


@pytest.mark.usefixtures("directory")
class FailoverTests(ClientCase):
    directory: Path

    async def test_another_endpoint_answers_when_one_is_gone(self) -> None:
        with Etcd(self.directory, members=3) as etcd:
            follower = etcd.followers()[0]
            others = [each.url for each in etcd.members if each is not follower]
            client = self.client(follower.url, *others)
            lease = (await client.grant(60)).lease
            follower.kill()
            # A connection that is known to be closed, or one that is found to be.
            assert await client.keep_alive(lease) == 60
            assert client.endpoint in others
            result = await client.txn([Compare("CREATE", b"/f", 0)], [Put(b"/f", b"1", lease)])
            assert result.succeeded
            watcher = Recorder()
            client.watch(b"/f", b"/g", result.revision, watcher)
            await watcher.until(lambda: watcher.keys == [b"/f"])

    async def test_a_watch_is_resumed_at_another_endpoint_without_a_gap(self) -> None:
        with Etcd(self.directory, members=3) as etcd:
            member = etcd.followers()[0]
            others = [each.url for each in etcd.members if each is not member]
            client, writer = self.client(member.url, *others), self.client(*others)
            watcher = Recorder()
            first = await writer.txn([], [Put(b"/w/00", b"", 0)])
            client.watch(b"/w/", b"/w0", first.revision, watcher)
            await watcher.until(lambda: watcher.keys)
            member.kill()
            await watcher.is_ended()
            for number in range(1, 50):
                await writer.txn([], [Put(b"/w/%02d" % number, b"", 0)])
            again = Recorder()
            client.watch(b"/w/", b"/w0", watcher.calls[-1][0] + 1, again)
            await again.until(lambda: len(watcher.keys + again.keys) == 50)
            assert watcher.keys + again.keys == [b"/w/%02d" % number for number in range(50)]

    async def test_the_death_of_the_leader_ends(self) -> None:
        """Writes fail for a while, each with a sentence, and go on; none is executed twice."""
        with Etcd(self.directory, members=3) as etcd:
            client = self.client(*etcd.urls)
            await client.txn([], [Put(b"/n", b"0", 0)])
            etcd.leader().kill()
            done = unknown = 0
            while done < 20:
                [[present]] = (await self._patiently(lambda: client.txn([], [Get(b"/n")]))).found
                try:
                    result = await client.txn(
                        [Compare("MOD", b"/n", present.mod_revision)], [Put(b"/n", b"%d" % (int(present.value) + 1), 0)]
                    )
                except Unavailable as error:
                    unknown += error.unknown
                    await turn(0.1)
                    continue
                assert result.succeeded
                done += 1
            [[last]] = (await client.txn([], [Get(b"/n")])).found
            assert done <= int(last.value) <= done + unknown

    @pytest.mark.long
    async def test_a_member_without_a_quorum_refuses_at_once_and_ends_its_watches(self) -> None:
        """Only with the header hasleader: without it calls hang for seven seconds, and watches are silent."""
        with Etcd(self.directory, members=3) as etcd:
            alone, *others = etcd.members
            client, watcher = self.client(alone.url), Recorder()
            lease = (await client.grant(60)).lease
            client.watch(b"/q", b"/r", etcd.put("/q"), watcher)
            await watcher.until(lambda: watcher.keys)
            for each in others:
                each.kill()
            reason, _text = await watcher.is_ended()
            assert reason is Ended.FAILED
            # A leader notices after a while that it has no quorum.
            while (await client.status()).errors == ():
                await turn(0.1)
            error = await self.fails(client.range(b"/q"), Unavailable, "no quorum")
            assert not error.unknown
            error = await self.fails(client.txn([], [Put(b"/q", b"", lease)]), Unavailable, "no quorum")
            assert not error.unknown
            assert "etcdserver: no leader" in (await client.status()).errors
            again = Recorder()
            client.watch(b"/q", b"/r", 0, again)
            reason, _text = await again.is_ended()
            assert reason is Ended.FAILED

    @pytest.mark.long
    async def test_a_paused_member_costs_one_timeout(self) -> None:
        with Etcd(self.directory, members=3) as etcd:
            paused = etcd.followers()[0]
            others = [each.url for each in etcd.members if each is not paused]
            client = self.client(paused.url, *others, in_time=True)
            lease = (await client.grant(60)).lease
            paused.pause()
            assert await client.keep_alive(lease) == 60
            assert client.endpoint != paused.url
            # A write with an unknown result is not repeated by the client.
            while client.endpoint != paused.url:
                client.change_endpoint()
            error = await self.fails(client.txn([], [Put(b"/p", b"", lease)]), Unavailable, "no complete answer")
            assert error.unknown
            assert client.endpoint != paused.url
            paused.resume()

    async def test_all_endpoints_gone_is_one_sentence_with_each(self) -> None:
        with Etcd(self.directory, members=1) as etcd:
            client = self.client(etcd.url, "http://127.0.0.1:1", "http://127.0.0.1:2")
            etcd.members[0].stop()
            error = await self.fails(client.grant(10), Unavailable, etcd.url, "127.0.0.1:1 ", "127.0.0.1:2 ")
            assert not error.unknown

    async def test_change_endpoint_is_for_later_calls(self) -> None:
        with Etcd(self.directory) as etcd:
            client = self.client(etcd.url, "http://127.0.0.1:1")
            client.change_endpoint()
            assert client.endpoint == "http://127.0.0.1:1"
            await client.status()
            assert client.endpoint == etcd.url

    async def test_change_endpoint_leaves_the_endpoint_of_a_watch_once(self) -> None:
        client = self.client("http://127.0.0.1:1", "http://127.0.0.1:2", "http://127.0.0.1:3")
        watch = client.watch(b"/", b"0", 0, Recorder())
        for _ in range(2):
            client.change_endpoint(watch)
            assert client.endpoint == "http://127.0.0.1:2"
        watch.cancel()

    async def test_a_full_database(self) -> None:
        """Writes and grants are refused; renewals, reads, deletes and watches go on."""
        with Etcd(self.directory, options=["--quota-backend-bytes", "2000000"]) as etcd:
            client, watcher = self.client(etcd.url), Recorder()
            lease = (await client.grant(60)).lease
            await client.txn([], [Put(b"/s", b"", lease)])
            await deferToThread(etcd.fill)
            await self.fails(client.txn([], [Put(b"/s", b"1", lease)]), NoSpace, "full", "defragment")
            await self.fails(client.grant(10), NoSpace)
            assert await client.keep_alive(lease) == 60
            [found] = (await client.range(b"/s")).keys
            client.watch(b"/s", b"/t", found.mod_revision + 1, watcher)
            await client.revoke(lease)
            await watcher.until(lambda: watcher.keys == [b"/s"])
            await client.txn([], [Delete(b"/fill/", b"/fill0")])
            await client.compact((await client.range(b"/s")).revision)
            await deferToThread(etcd.ask, "maintenance/defragment")
            [alarm] = etcd.ask("maintenance/alarm")["alarms"]
            etcd.ask("maintenance/alarm", {"action": "DEACTIVATE", **alarm})
            await client.txn([], [Put(b"/s", b"2", (await client.grant(10)).lease)])

    async def _patiently(self, call):
        end = reactor.seconds() + PATIENCE
        while True:
            try:
                return await call()
            except Unavailable:
                assert reactor.seconds() < end
                await turn(0.1)
