"""Answers that no etcd gives: each ends the call by a sentence, in bounded time and memory, and without a traceback."""

from __future__ import annotations

import base64
import json
import tracemalloc
from typing import Any

import pytest
from twisted.internet import reactor
from twisted.internet.defer import CancelledError, Deferred

from broker.cluster.etcd.etcd_interface import Denied, Ended, Put, Unavailable
from broker.cluster.etcd.watching import PIECE
from tests.cluster.etcd.hostile import Answer, Asked, Conversation, Server
from tests.cluster.etcd.recording import ClientCase, Recorder
from tests.net.waiting import until

HEADER = {"cluster_id": "1", "member_id": "2", "revision": "7", "raft_term": "2"}


def line(**result: Any) -> bytes:
    """A line of a watch."""
    return json.dumps({"result": {"header": HEADER, **result}}).encode() + b"\n"


def event(key: bytes, revision: int = 7, **more: Any) -> dict[str, Any]:
    return {"kv": {"key": base64.b64encode(key).decode(), "mod_revision": str(revision)}, **more}


class HostileCase(ClientCase):
    def server(self, answer: Answer) -> Server:
        server = Server(answer)
        self.addCleanup(server.stop)
        return server

    def answering(self, body: bytes, status: str = "200 OK", *fields: str) -> Server:
        return self.server(lambda conversation, _: conversation.whole(body, status, *fields))

    async def call(self, server: Server, *parts: str) -> Any:
        """Assert that a read fails, with these parts in the sentence, and that nothing was logged."""
        client = self.client(server.url)
        error = await self.fails(client.range(b"/"), Unavailable, server.url, *parts)
        assert self.flushLoggedErrors() == []
        return error


class CallTests(HostileCase):
    async def test_bodies_that_are_not_of_etcd(self) -> None:
        good = json.dumps({"header": HEADER})
        for body in (
            b"",
            b"{}",
            b"null",
            b"[]",
            b"{",
            b"<html>hello</html>",
            b"\xff\xfe",
            b'{"header": 7}',
            b'{"header": {"revision": "many"}}',
            b'{"header": {"revision": {}}}',
            b'{"header": {"revision": "7"}, "kvs": 3}',
            b'{"header": {"revision": "7"}, "kvs": [{"key": "***"}]}',
            b'{"header": {"revision": "7"}, "kvs": [{"key": 3}]}',
            b'{"header": {"revision": "7"}, "kvs": [null]}',
            b"[" * 100_000,
            good.encode() + good.encode(),
        ):
            await self.call(self.answering(body), "does not answer as etcd does")

    async def test_statuses_of_other_servers(self) -> None:
        for status in (
            "404 Not Found",
            "301 Moved",
            "204 No Content",
            "500 Error",
            "503 Busy",
            "302 Found",
            "418 Teapot",
        ):
            await self.call(self.answering(b"<html>\x00\xff\n" * 9, status, "Location: http://127.0.0.1:1/"))
        for status in ("401 Who", "403 No"):
            client = self.client(self.answering(b"go away", status).url)
            await self.fails(client.range(b"/"), Denied, status[:3], "go away")

    async def test_errors_with_any_content(self) -> None:
        for body in (
            b'{"error": "x", "code": 999}',
            b'{"error": {"grpc_code": 14}}',
            b'{"error": {"message": 3}}',
            b'{"code": "x"}',
            b'{"error": "' + b"long " * 10_000 + b'"}',
            b'{"error": "a\\nb\\u001b[31m", "code": 13}',
        ):
            error = await self.call(self.answering(body, "500 Error"))
            assert len(str(error)) < 1000
            assert str(error).isprintable()

    async def test_bytes_that_are_not_http(self) -> None:
        for data in (
            b"\0\0\0\0\n\n\n",
            b"SSH-2.0-OpenSSH\r\n",
            b"HTTP/1.1 200 OK\r\nno colon\r\n\r\n",
            b"HTTP/1.1 abc OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: magic\r\n\r\nx",
            b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
            b"HTTP/1.1 200 OK\r\n" + b"a" * 100_000 + b"\r\n\r\n",
        ):

            def answer(conversation: Conversation, _: Asked, data: bytes = data) -> None:
                conversation.write(data)
                conversation.transport.loseConnection()

            await self.call(self.server(answer))

    async def test_an_early_end(self) -> None:
        for data in (b"", b"HTTP/1.1", b"HTTP/1.1 200 OK\r\n", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"):

            def answer(conversation: Conversation, _: Asked, data: bytes = data) -> None:
                conversation.write(data)
                conversation.transport.loseConnection()

            server = self.server(answer)
            await self.call(server, "closes the connection without")
            error = await self.fails(self.client(server.url).txn([], [Put(b"/", b"", 0)]), Unavailable)
            assert error.unknown

    @pytest.mark.long
    async def test_silence_ends_in_time_with_headers_or_without(self) -> None:
        """treq's own timeout ends with the headers."""
        for data in (b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"):

            def answer(conversation: Conversation, _: Asked, data: bytes = data) -> None:
                conversation.write(data)

            server = self.server(answer)
            client = self.client(server.url, in_time=True)
            error = await self.fails(client.keep_alive(1), Unavailable, "no complete answer within 2 s")
            assert error.unknown
            await until_lost(server)

    @pytest.mark.long
    async def test_memory_is_bounded(self) -> None:
        head = b"HTTP/1.1 200 OK\r\n"
        for first, piece in (
            (head, b"X-Header: %s\r\n" % (b"x" * 1000) * 100),
            (head + b"Transfer-Encoding: chunked\r\n\r\n", b"10000\r\n%s\r\n" % (b" " * 65536)),
            (head + b"\r\n", b" " * 100_000),
            (b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000),
        ):

            def answer(conversation: Conversation, _: Asked, first: bytes = first, piece: bytes = piece) -> None:
                conversation.write(first)
                conversation.without_end(piece)

            server = self.server(answer)
            client = self.client(server.url, limit=1_000_000)
            tracemalloc.start()
            try:
                with self.assertRaises(Exception) as caught:
                    await client.range(b"/")
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
            assert "more" in str(caught.exception) or "no complete answer" in str(caught.exception)
            assert peak < 20_000_000, peak
            await until_lost(server)
            assert self.flushLoggedErrors() == []

    async def test_cookies_and_redirections_are_not_followed(self) -> None:
        body = json.dumps({"header": HEADER}).encode()
        server = self.answering(body, "200 OK", "Set-Cookie: a=b; Path=/")
        client = self.client(server.url)
        await client.range(b"/")
        await client.range(b"/")
        assert [each.fields.get("cookie") for each in server.asked] == [None, None]
        assert server.asked[0].fields["grpc-metadata-hasleader"] == "true"
        assert server.asked[0].fields["host"] == server.url.removeprefix("http://")
        elsewhere = self.answering(body)
        moved = self.answering(b"", "307 Moved", f"Location: {elsewhere.url}/v3/kv/range")
        await self.call(moved, "HTTP status 307")
        assert elsewhere.asked == []

    async def test_a_lease_without_an_id_and_a_token_for_no_header(self) -> None:
        server = self.answering(json.dumps({"header": HEADER, "TTL": "10"}).encode())
        await self.fails(self.client(server.url).grant(10), Unavailable, "without an id")
        server = self.answering(json.dumps({"token": "a\r\nX-Evil: 1"}).encode())
        client = self.client(server.url, user="u", password="p")
        await self.fails(client.range(b"/"), Unavailable, "token")
        assert len(server.asked) == 1


class TokenTests(HostileCase):
    def tokens(self, name: str, refused: list[str]) -> Server:
        """A server that accepts the tokens that it has given, unless they are refused."""
        given: list[str] = []

        def answer(conversation: Conversation, asked: Asked) -> None:
            if asked.path == "auth/authenticate":
                given.append(f"{name}.{len(given)}")
                conversation.whole(json.dumps({"header": HEADER, "token": given[-1]}).encode())
            elif asked.fields.get("authorization") in set(given) - set(refused):
                conversation.whole(json.dumps({"header": HEADER}).encode())
            else:
                error = {"error": "etcdserver: invalid auth token", "code": 16}
                conversation.whole(json.dumps(error).encode(), "401 Unauthorized")

        return self.server(answer)

    async def test_each_endpoint_has_a_token_of_its_own_for_many_calls(self) -> None:
        """etcd keeps a token alive by its use at that very member: used at another one, it dies here."""
        one, two = self.tokens("one", []), self.tokens("two", [])
        client = self.client(one.url, two.url, user="u", password="p")
        for _ in range(2):
            for each in [client.range(b"/") for _ in range(10)]:
                await each
            client.change_endpoint()
            for each in [client.range(b"/") for _ in range(10)]:
                await each
            client.change_endpoint()
        for server in (one, two):
            paths = [each.path for each in server.asked]
            assert (paths.count("auth/authenticate"), paths.count("kv/range")) == (1, 20)

    async def test_a_refused_token_is_replaced_once(self) -> None:
        refused: list[str] = []
        server = self.tokens("one", refused)
        client = self.client(server.url, user="u", password="p")
        await client.range(b"/")
        refused.append("one.0")
        for each in [client.range(b"/") for _ in range(5)]:
            await each
        assert [each.path for each in server.asked].count("auth/authenticate") == 2
        refused += ["one.1", "one.2"]
        await self.fails(client.range(b"/"), Denied, "refuses a fresh token")
        assert [each.path for each in server.asked].count("auth/authenticate") == 3

    async def test_the_end_of_the_call_that_asked_for_a_token_ends_no_other_one(self) -> None:
        """A renewal of the lease is given up before a transaction that waits for the same token."""
        asking: list[Conversation] = []

        def answer(conversation: Conversation, asked: Asked) -> None:
            if asked.path == "auth/authenticate":
                asking.append(conversation)
            if asked.path != "auth/authenticate" or len(asking) > 1:
                conversation.whole(json.dumps({"header": HEADER, "token": "t"}).encode())

        client = self.client(self.server(answer).url, user="u", password="p")
        first, *others = [client.range(b"/") for _ in range(3)]
        await until(lambda: bool(asking))
        first.addErrback(lambda failure: failure.trap(CancelledError))
        first.cancel()
        assert [(await each).revision for each in others] == [7, 7]
        assert len(asking) == 2


class WatchTests(HostileCase):
    async def watching(self, *lines: bytes, revision: int = 0, end: bool = False) -> tuple[Server, Recorder]:
        """A watcher whose server sends these bytes after the confirmation."""

        def answer(conversation: Conversation, asked: Asked) -> None:
            if asked.path != "watch":
                conversation.whole(json.dumps({"header": HEADER}).encode())
                return
            conversation.chunked()
            for each in lines:
                conversation.chunk(each)
            if end:
                conversation.write(b"0\r\n\r\n")

        server, watcher = self.server(answer), Recorder()
        self.client(server.url).watch(b"/", b"0", revision, watcher)
        return server, watcher

    async def test_a_watch_whose_token_is_refused_is_opened_again_and_its_connection_closed(self) -> None:
        refused = line(created=True, canceled=True, cancel_reason="rpc error: code = Unauthenticated desc = x")
        watches: list[Conversation] = []

        def answer(conversation: Conversation, asked: Asked) -> None:
            if asked.path != "watch":
                conversation.whole(json.dumps({"header": HEADER, "token": "t"}).encode())
                return
            watches.append(conversation)
            conversation.chunked()
            for each in [refused] if len(watches) == 1 else [line(created=True), line(events=[event(b"a")])]:
                conversation.chunk(each)

        server, watcher = self.server(answer), Recorder()
        self.client(server.url, user="broker", password="secret").watch(b"/", b"0", 0, watcher)
        await watcher.until(watcher.seen)
        assert watcher.keys == [b"a"]
        await until(lambda: watches[0].lost)
        assert not watches[1].lost
        assert watcher.end is None

    async def test_a_watch_whose_fresh_token_is_refused_as_well_ends(self) -> None:
        refused = line(created=True, canceled=True, cancel_reason="rpc error: code = Unauthenticated desc = x")
        asked_for: list[str] = []

        def answer(conversation: Conversation, asked: Asked) -> None:
            asked_for.append(asked.path)
            if asked.path != "watch":
                conversation.whole(json.dumps({"header": HEADER, "token": "t"}).encode())
                return
            conversation.chunked()
            conversation.chunk(refused)

        server, watcher = self.server(answer), Recorder()
        self.client(server.url, user="broker", password="secret").watch(b"/", b"0", 0, watcher)
        reason, _text = await watcher.is_ended()
        assert reason is Ended.DENIED
        assert asked_for.count("watch") == 2

    async def test_lines_that_are_not_of_etcd(self) -> None:
        for bad in (
            b"hello\n",
            b"{}\n",
            b"[]\n",
            b'{"result": 3}\n',
            b'{"result": {"events": [3]}}\n',
            b'{"result": {"events": [{}]}}\n',
            b'{"result": {"events": [{"kv": {"key": "***"}}]}}\n',
            b'{"result": {"header": {"revision": "x"}}}\n',
            line(events=[event(b"a", type="EXPIRE")]),
            b"\xff\n",
            b"[" * 100_000 + b"\n",
        ):
            server, watcher = await self.watching(line(created=True), bad)
            reason, text = await watcher.is_ended()
            assert reason is Ended.FAILED
            assert f"{server.url} does not answer as etcd does" in text
            assert watcher.calls == []
            await until_lost(server)
        assert self.flushLoggedErrors() == []

    async def test_cancellations(self) -> None:
        for result, expected in (
            ({"canceled": True}, Ended.FAILED),
            ({"canceled": True, "cancel_reason": "etcdserver: no leader"}, Ended.FAILED),
            ({"canceled": True, "cancel_reason": "rpc error: code = PermissionDenied desc = x"}, Ended.DENIED),
            ({"canceled": True, "created": True, "watch_id": "-1", "cancel_reason": "x"}, Ended.FAILED),
            ({"canceled": True, "compact_revision": "5"}, Ended.COMPACTED),
        ):
            server, watcher = await self.watching(line(created=True), line(**result))
            reason, _text = await watcher.is_ended()
            assert reason is expected
            await until_lost(server)
        _, watcher = await self.watching(b'{"error": {"grpc_code": 14, "message": "etcdserver: no leader"}}\n')
        reason, text = await watcher.is_ended()
        assert (reason, "no leader" in text) == (Ended.FAILED, True)

    async def test_a_line_in_pieces_and_several_in_one(self) -> None:
        whole = line(created=True) + line(events=[event(b"a", 8)]) + b"\n" + line(events=[event(b"b", 9)])
        for size in (1, 7, len(whole)):
            pieces = [whole[n : n + size] for n in range(0, len(whole), size)]
            _, watcher = await self.watching(*pieces, end=True)
            await watcher.is_ended()
            assert watcher.keys == [b"a", b"b"]

    async def test_a_revision_is_reported_once_all_its_fragments_have_come(self) -> None:
        _, watcher = await self.watching(
            line(created=True),
            line(events=[event(b"a", 8), event(b"b", 9)], fragment=True),
            line(events=[event(b"c", 9)], fragment=True),
            line(events=[event(b"d", 9), event(b"e", 10)]),
            line(),
        )
        await watcher.until(lambda: len(watcher.keys) == 5)
        assert [(revision, [each.key for each in events]) for revision, events in watcher.calls] == [
            (8, [b"a", b"b"]),
            (8, [b"c"]),
            (10, [b"d", b"e"]),
        ]

    async def test_events_of_a_long_message_come_in_slices_and_in_order(self) -> None:
        """Between two slices the reactor has a turn; the end of the connection does not overtake them."""
        keys = [b"%05d" % number for number in range(10_000)]
        _, watcher = await self.watching(
            line(created=True),
            line(events=[event(key, 8) for key in keys[:8_000]], fragment=True),
            line(events=[event(key, 8) for key in keys[8_000:]]) + line(events=[event(b"last", 9)]),
        )
        last = Deferred[Any]()
        turns: list[int] = []

        def turn() -> None:
            turns.append(len(watcher.calls))
            if watcher.calls and watcher.calls[-1][0] == 9:
                last.callback(None)
            else:
                reactor.callLater(0, turn)  # type: ignore[attr-defined]

        turn()
        await last
        assert len({calls for calls in turns if 0 < calls < turns[-1]}) > 1
        assert watcher.keys == [*keys, b"last"]
        assert {revision for revision, _ in watcher.calls[:-2]} == {7}
        assert [revision for revision, _ in watcher.calls[-2:]] == [8, 9]

    async def test_a_line_is_cut_between_its_events(self) -> None:
        """Events are passed on before the line has ended, and their revision with the last of them."""
        keys = [b"%05d" % number for number in range(30_000)]
        whole = line(events=[event(key, 8) for key in keys]).replace(b" ", b"")
        assert len(whole) > 3 * PIECE
        half = len(whole) // 2
        sent: list[Conversation] = []

        def answer(conversation: Conversation, _: Asked) -> None:
            sent.append(conversation)
            conversation.chunked()
            conversation.chunk(line(created=True))
            conversation.chunk(whole[:half])

        server, watcher = self.server(answer), Recorder()
        self.client(server.url).watch(b"/", b"0", 0, watcher)
        await watcher.until(lambda: len(watcher.keys) > len(keys) // 3)
        assert {revision for revision, _ in watcher.calls} == {7}
        sent[0].chunk(whole[half:])
        await watcher.until(lambda: watcher.calls[-1][0] == 8)
        assert watcher.keys == keys

    async def test_a_member_that_is_behind_is_not_a_wiped_etcd(self) -> None:
        """The header of the confirmation is the member's own revision; the read that follows is the cluster's."""

        def answer(conversation: Conversation, asked: Asked) -> None:
            if asked.path == "watch":
                conversation.chunked()
                conversation.chunk(line(created=True))
                self.watched = conversation
            else:
                conversation.whole(json.dumps({"header": {**HEADER, "revision": "20"}}).encode())
                self.watched.chunk(line(events=[event(b"a", 21)]))

        server, watcher = self.server(answer), Recorder()
        self.client(server.url).watch(b"/", b"0", 21, watcher)
        await watcher.until(lambda: watcher.keys == [b"a"])
        assert watcher.end is None

    async def test_a_line_without_an_end_is_bounded(self) -> None:
        def answer(conversation: Conversation, _: Asked) -> None:
            conversation.chunked()
            conversation.without_end(b"10000\r\n%s\r\n" % (b" " * 65536))

        server, watcher = self.server(answer), Recorder()
        tracemalloc.start()
        try:
            self.client(server.url).watch(b"/", b"0", 0, watcher)
            reason, text = await watcher.is_ended()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert reason is Ended.FAILED
        assert "sends a line of more than 16777216 bytes" in text
        assert peak < 60_000_000, peak
        await until_lost(server)

    async def test_a_watch_refused_by_status(self) -> None:
        server, watcher = self.answering(b"<html>", "404 Not Found"), Recorder()
        self.client(server.url).watch(b"/", b"0", 0, watcher)
        reason, text = await watcher.is_ended()
        assert (reason, "HTTP status 404" in text) == (Ended.FAILED, True)

    @pytest.mark.long
    async def test_no_confirmation(self) -> None:
        server, watcher = self.server(lambda conversation, _: conversation.chunked()), Recorder()
        self.client(server.url, in_time=True).watch(b"/", b"0", 0, watcher)
        reason, text = await watcher.is_ended()
        assert (reason, "does not confirm" in text) == (Ended.FAILED, True)
        await until_lost(server)


async def until_lost(server: Server) -> None:
    """Wait until all connections to a server are closed: the client keeps none with a bad answer."""
    while not all(each.lost for each in server.conversations):
        done: Deferred[None] = Deferred()
        reactor.callLater(0.01, done.callback, None)  # type: ignore[attr-defined]
        await done
