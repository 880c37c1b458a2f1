"""Calls of the client against one member of the real etcd."""

from __future__ import annotations

from typing import Literal

import pytest
from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.internet.threads import deferToThread

from broker.cluster.etcd.etcd_client import connect
from broker.cluster.etcd.etcd_interface import (
    BadRequest,
    Compacted,
    Compare,
    Delete,
    FutureRevision,
    Get,
    LeaseGone,
    Put,
    Unavailable,
)
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.cluster.real_etcd import Etcd


@pytest.mark.usefixtures("one_etcd")
class CallsTests(ClientCase):
    """Each test uses keys of its own."""

    etcd: Etcd

    async def test_a_transaction_writes_under_a_lease_and_reads(self) -> None:
        client = self.client(self.etcd.url)
        lease = (await client.grant(60)).lease
        made = await client.txn(
            [Compare("CREATE", b"/a/1", 0)],
            [Put(b"/a/1", b"\x00one", lease), Put(b"/a/2", b"", lease), Get(b"/a/1")],
            [Get(b"/a/1")],
        )
        assert made.succeeded
        [[one]] = made.found
        assert (one.key, one.value, one.lease) == (b"/a/1", b"\x00one", lease)
        assert one.create_revision == one.mod_revision == made.revision
        lost = await client.txn([Compare("CREATE", b"/a/1", 0)], [Delete(b"/a/1")], [Get(b"/a/1"), Get(b"/a/", b"/a0")])
        assert not lost.succeeded
        assert lost.found[0] == (one,)
        assert [each.key for each in lost.found[1]] == [b"/a/1", b"/a/2"]
        targets: dict[Literal["MOD", "LEASE", "CREATE"], int] = {
            "MOD": one.mod_revision,
            "LEASE": lease,
            "CREATE": one.create_revision,
        }
        for target, value in targets.items():
            assert (await client.txn([Compare(target, b"/a/1", value)], [])).succeeded
            assert not (await client.txn([Compare(target, b"/a/1", value + 1)], [])).succeeded

    async def test_a_range_is_read_in_pages_at_one_revision(self) -> None:
        client = self.client(self.etcd.url)
        await client.txn([], [Put(b"/p/%03d" % n, b"%d" % n, 0) for n in range(100)])
        first = await client.range(b"/p/", b"/p0", 40)
        await client.txn([], [Put(b"/p/050", b"later", 0), Delete(b"/p/060"), Put(b"/p/070x", b"new", 0)])
        keys, page = list(first.keys), first
        while page.more:
            page = await client.range(page.keys[-1].key + b"\0", b"/p0", 40, first.revision)
            keys += page.keys
        assert [each.value for each in keys] == [b"%d" % n for n in range(100)]
        assert (first.count, len(first.keys)) == (100, 40)

    async def test_a_range_without_an_end_is_one_key(self) -> None:
        client = self.client(self.etcd.url)
        await client.txn([], [Put(b"/one", b"1", 0), Put(b"/one/more", b"2", 0)])
        assert [each.key for each in (await client.range(b"/one")).keys] == [b"/one"]
        assert (await client.range(b"/none")).keys == ()

    async def test_a_lease_lives_is_renewed_and_ends_with_its_keys(self) -> None:
        client = self.client(self.etcd.url)
        granted = await client.grant(60)
        assert granted.ttl == 60
        await client.txn([], [Put(b"/l/1", b"", granted.lease)])
        assert await client.keep_alive(granted.lease) == 60
        assert 50 < await client.time_to_live(granted.lease) <= 60
        await client.revoke(granted.lease)
        assert (await client.range(b"/l/1")).keys == ()
        await client.revoke(granted.lease)

    async def test_a_lease_that_is_gone_is_no_success(self) -> None:
        """etcd answers its renewal with status 200."""
        client = self.client(self.etcd.url)
        lease = (await client.grant(60)).lease
        await client.revoke(lease)
        await self.fails(client.keep_alive(lease), LeaseGone)
        await self.fails(client.time_to_live(lease), LeaseGone)
        await self.fails(client.txn([], [Put(b"/g", b"", lease)]), LeaseGone)
        assert (await client.range(b"/g")).keys == ()

    async def test_etcd_raises_a_short_ttl(self) -> None:
        client = self.client(self.etcd.url)
        granted = await client.grant(1)
        assert granted.ttl == 2
        await client.revoke(granted.lease)

    async def test_a_put_under_a_lease_moves_the_key_and_one_without_frees_it(self) -> None:
        client = self.client(self.etcd.url)
        one, two = [(await client.grant(60)).lease for _ in range(2)]
        await client.txn([], [Put(b"/m/1", b"", one), Put(b"/m/2", b"", one)])
        await client.txn([], [Put(b"/m/1", b"", two), Put(b"/m/2", b"", 0)])
        await client.revoke(one)
        assert [(each.key, each.lease) for each in (await client.range(b"/m/", b"/m0")).keys] == [
            (b"/m/1", two),
            (b"/m/2", 0),
        ]

    async def test_revisions_of_the_past_and_of_the_future(self) -> None:
        client = self.client(self.etcd.url)
        present = self.etcd.put("/r")
        later = self.etcd.put("/r")
        await client.compact(later)
        await client.compact(present)
        await self.fails(client.range(b"/r", revision=present), Compacted)
        assert (await client.range(b"/r", revision=later)).keys
        await self.fails(client.range(b"/r", revision=later + 1000), FutureRevision, "replaced")

    async def test_requests_that_etcd_refuses(self) -> None:
        client = self.client(self.etcd.url)
        await self.fails(client.txn([], [Put(b"/d", b"", 0), Put(b"/d", b"", 0)]), BadRequest, "duplicate key")
        many = [Put(b"/d/%d" % n, b"", 0) for n in range(129)]
        await self.fails(client.txn([], many), BadRequest, "too many operations")
        await self.fails(client.txn([], [Put(b"/d", b"x" * 1_600_000, 0)]), BadRequest, "too large")
        await self.fails(client.txn([], [Put(b"", b"", 0)]), BadRequest, "key is not provided")
        assert (await client.range(b"/d", b"/e")).keys == ()

    async def test_an_answer_above_the_limit_is_refused(self) -> None:
        client = self.client(self.etcd.url, limit=100_000)
        for number in range(3):
            await client.txn([], [Put(b"/big/%d" % number, b"x" * 50_000, 0)])
        await self.fails(client.range(b"/big/", b"/big0"), BadRequest, "more than 100000 bytes")
        assert len((await client.range(b"/big/", b"/big0", 1)).keys) == 1

    async def test_status(self) -> None:
        status = await self.client(self.etcd.url).status()
        assert status.version.startswith("3.")
        assert 0 < status.used <= status.size
        assert status.errors == ()

    async def test_many_calls_at_a_time_all_end(self) -> None:
        client = self.client(self.etcd.url)
        await gatherResults([client.txn([], [Put(b"/c/%d" % n, b"%d" % n, 0)]) for n in range(100)])
        found = await gatherResults([client.range(b"/c/%d" % n) for n in range(100)])
        assert [each.keys[0].value for each in found] == [b"%d" % n for n in range(100)]

    async def test_close_ends_calls_and_watches(self) -> None:
        client = connect(reactor, deferToThread, [self.etcd.url])
        watcher = Recorder()
        client.watch(b"/", b"0", 0, watcher)
        running = [client.range(b"/", b"0") for _ in range(20)]
        await client.close()
        for each in running:
            await self.fails(each, Unavailable, "closed")
        assert watcher.end is not None
        await self.fails(client.status(), Unavailable, "closed")
        late = Recorder()
        client.watch(b"/", b"0", 0, late)
        await late.is_ended()
        await client.close()


class SettingsTests(ClientCase):
    def test_addresses_that_cannot_be_one(self) -> None:
        for wrong in (
            "",
            "etcd1:2379",
            "ftp://a:1",
            "http://",
            "http://a:b",
            "http://a:1/path",
            "http://u:p@a:1",
            "http://[::1",
        ):
            with self.assertRaises(ValueError) as caught:
                connect(reactor, deferToThread, [wrong])
            assert "is not an endpoint of etcd" in str(caught.exception)
        for several, sentence in (([], "no endpoint"), (["http://a:1", "http://a:1/"], "twice")):
            with self.assertRaises(ValueError) as caught:
                connect(reactor, deferToThread, several)
            assert sentence in str(caught.exception)

    def test_the_first_endpoint_is_random(self) -> None:
        urls = [f"http://etcd{n}:2379" for n in range(4)]
        assert {connect(reactor, deferToThread, urls).endpoint for _ in range(200)} == set(urls)

    async def test_an_unknown_host(self) -> None:
        client = self.client("http://no-such-host.invalid:2379")
        error = await self.fails(client.status(), Unavailable, "http://no-such-host.invalid:2379", "unknown")
        assert not error.unknown

    async def test_a_closed_port(self) -> None:
        client = self.client("http://127.0.0.1:1")
        error = await self.fails(client.grant(10), Unavailable, "http://127.0.0.1:1 cannot be reached", "refused")
        assert not error.unknown
        watcher = Recorder()
        client.watch(b"/", b"0", 0, watcher)
        _reason, text = await watcher.is_ended()
        assert "cannot be reached" in text
