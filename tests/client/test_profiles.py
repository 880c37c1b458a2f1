"""Functions of the profiles, against a scripted broker.

The file is longer than others: all profiles share one scripted broker.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from broker.client.errors import Closed, Full, NotTaken, Refused, Rejected, Unsettled
from broker.client.profiles import queue, registry, service, test, topic
from broker.client.profiles.registry import Load, Service
from broker.client.profiles.service import RequestFailed
from broker.client.reader import Delivery
from broker.client.testing import FakeBroker
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.data_messages import Confirm, Content, Dismiss, Reject, Summon
from broker.wires.mtl.codec.field_table import decode
from tests.client.scripted import QUICK, Stage

FAST = attrs.evolve(QUICK, heartbeat=0.05)


class Helpers(Stage):
    async def contents(self, count: int) -> list[Content]:
        await self.until(lambda: len(self.broker.of(Content)) >= count)
        return self.broker.of(Content)

    async def summons(self, count: int) -> None:
        await self.until(lambda: len(self.broker.of(Summon)) >= count)

    def asked_for(self) -> list[dict[str, Any]]:
        """Leases that were requested."""
        return [members for command, members in self.broker.requests if command.endswith("er")]

    def profiles(self) -> list[str]:
        return [members["profile"] for command, members in self.broker.requests if command.endswith("Profile")]

    def refuse(self, kind: str) -> None:
        """Answer these commands by 400."""
        self.broker.answers[kind] = lambda identity, command: self.broker.say(
            identity, data_messages.response(command.sequence, b"400")
        )


class Plain(Helpers):
    async def test_the_test_profile(self) -> None:
        bodies: list[bytes] = []
        client = self.client()
        await test.reader(client, lambda delivery: bodies.append(delivery.body))
        writer = await test.writer(client)
        self.broker.give("resource", b"x")
        await self.until(lambda: bodies == [b"x"])
        await writer.send(b"y")
        self.assertEqual((await self.contents(1))[0].resource, "resource")
        self.assertEqual(self.profiles(), ["test"])
        self.assertEqual([members["confirm"] for members in self.asked_for()], ["none", "none"])

    async def test_topics(self) -> None:
        client = self.client()
        news: list[bytes] = []
        reader = await topic.subscribe(client, ["a", "b"], lambda delivery: news.append(delivery.body))
        self.assertEqual(reader.summoned, ["a", "b"])
        publisher = await topic.publisher(client, confirm="full")
        await topic.publish(publisher, "a", b"x", {"X-Y": "z"})
        await topic.publish(publisher, "b", b"", retain=True)
        first, second = await self.contents(2)
        self.assertEqual((first.resource, decode(first.table)), ("a", {"X-Y": "z"}))
        self.assertEqual((second.resource, decode(second.table)), ("b", {"retain": True}))

    async def test_queues(self) -> None:
        client = self.client()
        done: list[bytes] = []
        await queue.worker(client, ["jobs"], lambda work: done.append(work.body), window=5)
        self.broker.give("jobs", b"x")
        await self.until(lambda: self.broker.of(Confirm))
        writer = await queue.writer(client)
        await queue.put(writer, "jobs", b"y", {"a": 1}, ttl=1.5, id="7")
        await queue.put(writer, "jobs", b"z")
        first, second = await self.contents(2)
        self.assertEqual(decode(first.table), {"a": 1, "ttl": 1500, "message-id": "7"})
        self.assertEqual(decode(second.table), {})
        asked = [(members["resources"], members["confirm"], members.get("window")) for members in self.asked_for()]
        self.assertEqual(asked, [(["jobs"], "full", 5), ([], "full", None)])

    async def test_what_cannot_be_summoned_leaves_no_flow_behind(self) -> None:
        client = self.client()
        self.refuse("Summon")
        for begin in (
            queue.worker(client, ["a", "b"], print),
            topic.subscribe(client, ["a"], print),
            test.reader(client, print),
            registry.services(client),
            registry.loads(client),
            service.worker(client, "a", lambda request: b""),
            service.caller(client),
        ):
            with self.assertRaises(Refused):
                await begin
        self.assertEqual(client._flows, {})


class Views(Helpers):
    def setUp(self) -> None:
        super().setUp()
        self.changes: list[tuple[str, Any]] = []

    def changed(self, event: str, entry: Any) -> None:
        self.changes.append((event, entry.name if isinstance(entry, Service) else entry.load))

    def tell(self, event: str, name: str, provider: int = 1, hostport: str = "h:1", revision: int = 1) -> None:
        body = {"type": "servicedesc", "service": name, "hostport": hostport, "protocol": "tcp", "provider": provider}
        self.broker.give(
            "services",
            json.dumps(body).encode(),
            event=event,
            service=name,
            provider=provider,
            revision=revision,
        )

    def synced(self, resource: str = "services", revision: int = 1) -> None:
        self.broker.give(resource, b"", event="synced", revision=revision)

    async def view(self, *names: str, settings: Any = FAST) -> registry.View[Service]:
        """A view whose snapshot has these."""
        client = self.client(settings=settings)
        view = Deferred.fromCoroutine(registry.services(client, on_change=self.changed, on_event=self.told))
        await self.until(lambda: self.broker.of(Summon))
        for name in names:
            self.tell("snapshot", name)
        self.synced()
        return await view

    async def changes_are(self, *changes: tuple[str, Any]) -> None:
        await self.until(lambda: len(self.changes) >= len(changes))
        self.assertEqual(self.changes, list(changes))
        self.changes.clear()

    async def test_a_view_is_there_when_the_snapshot_is_complete_and_is_kept(self) -> None:
        view = await self.view("bank", "shop")
        await self.changes_are(("up", "bank"), ("up", "shop"))
        self.assertTrue(view.synced)
        self.assertEqual(next(iter(view.entries.values())), Service("bank", "h:1", "tcp", 1))
        self.tell("up", "zoo", 2, revision=2)
        self.tell("update", "bank", hostport="h:2", revision=3)
        self.tell("up", "zoo", 2, revision=4)
        self.tell("down", "shop", revision=5)
        self.tell("down", "shop", revision=6)
        await self.changes_are(("up", "zoo"), ("update", "bank"), ("down", "shop"))
        self.assertEqual({entry.name: entry.hostport for entry in view.entries.values()}, {"bank": "h:2", "zoo": "h:1"})
        await self.until(lambda: view.revision == 6)
        view.close()
        await view.ended

    async def test_what_changes_while_the_snapshot_comes_belongs_to_it(self) -> None:
        client = self.client()
        view = Deferred.fromCoroutine(registry.services(client, on_change=self.changed))
        await self.until(lambda: self.broker.of(Summon))
        for event, name in (("snapshot", "a"), ("snapshot", "b"), ("down", "a"), ("up", "c"), ("down", "d")):
            self.tell(event, name)
        self.synced()
        await view
        await self.changes_are(("up", "b"), ("up", "c"))

    async def test_after_a_restart_only_what_is_different_is_told(self) -> None:
        view = await self.view("a", "b", "c")
        self.changes.clear()
        before = len(self.broker.of(Summon))
        await self.broker.restart()
        await self.until(lambda: len(self.broker.of(Summon)) > before)
        self.tell("snapshot", "b")
        self.tell("snapshot", "c", hostport="h:2")
        self.tell("snapshot", "d")
        await self.until(lambda: [event for event, _ in self.events] == ["lost", "back"])
        self.assertFalse(view.synced)
        self.assertEqual(([entry.name for entry in view.entries.values()], self.changes), (["a", "b", "c"], []))
        self.synced()
        await self.changes_are(("down", "a"), ("update", "c"), ("up", "d"))
        self.assertTrue(view.synced)

    async def test_a_snapshot_that_is_cut_off_is_forgotten(self) -> None:
        view = await self.view("a")
        self.changes.clear()
        for part in ("x", "y"):
            before = len(self.broker.of(Summon))
            await self.broker.restart()
            await self.summons(before + 1)
            self.tell("snapshot", part)
        self.synced()
        await self.changes_are(("down", "a"), ("up", "y"))
        self.assertTrue(view.synced)

    async def test_what_cannot_be_read_is_left_out(self) -> None:
        view = await self.view("a")
        self.changes.clear()
        for body in (b"", b"{", b"\xff", b"[" * 10_000, b'{"hostport": "x"}', b'{"service": 7}'):
            self.broker.give("services", body, event="up", provider=1)
        self.broker.give("services", b'{"service": "x"}', event="up")
        self.broker.give("services", b'{"service": "x"}', event="up", provider="1")
        self.tell("up", "b")
        await self.changes_are(("up", "b"))
        self.assertEqual(view.counts, {"unreadable": 8})

    async def test_an_application_that_fails_to_hear_keeps_its_view(self) -> None:
        view = await self.view("a")

        def fail(event: str, entry: Any) -> None:
            raise RuntimeError(event)

        view._on_change = fail
        self.tell("up", "b")
        await self.until(lambda: len(view.entries) == 2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    async def test_loads(self) -> None:
        begun = Deferred.fromCoroutine(registry.loads(self.client(), "bank", self.changed))
        await self.until(lambda: self.broker.of(Summon))
        self.assertEqual(self.broker.of(Summon)[0].resource, "load/bank")
        for event, load in (("snapshot", 0.5), ("load", 1)):
            self.broker.give("load/bank", b'{"label": "x", "load": %r}' % load, event=event, provider=3, revision=1)
        self.synced("load/bank")
        view = await begun
        self.assertEqual(view.entries, {3: Load(3, "x", 1.0)})
        self.broker.give("load/bank", b"", event="down", provider=3, revision=2)
        await self.changes_are(("up", 1.0), ("down", 1.0))

    async def test_who_waits_for_a_view_that_will_not_come_hears_so(self) -> None:
        for close in (True, False):
            client = self.client()
            before = len(self.broker.of(Summon))
            begun = Deferred.fromCoroutine(registry.services(client, "bank"))
            await self.summons(before + 1)
            if close:
                client.close()
                error: type[Exception] = Closed
            else:
                self.broker.answers["Reader"] = lambda members: (403, {"status": "Forbidden"})
                self.broker.say(self.broker.reader(), data_messages.response(0, b"403"))
                error = Refused
            with self.assertRaises(error):
                await begun


class Offers(Helpers):
    def offers(self) -> list[tuple[str, Any, Any]]:
        """Offers, and reported loads."""
        return [
            (content.resource, decode(content.table).get("type"), json.loads(bytes(content.body) or b"null"))
            for content in self.broker.of(Content)
        ]

    async def test_an_offer_is_made_again_by_each_flow_with_its_latest_load(self) -> None:
        offer = await registry.offer(
            self.client(settings=FAST), "bank", "h:1", label="Bank", load=0.25, on_event=self.told
        )
        service = {"service": "bank", "hostport": "h:1", "protocol": "tcp", "label": "Bank"}
        self.assertEqual(self.offers(), [("service/bank", "offer", service), ("load", None, {"load": 0.25})])
        await offer.load(0.5, requests=120, errors=2, in_flight=3, latency_ms=41.5)
        told = {"load": 0.5, "requests": 120, "errors": 2, "in_flight": 3, "latency_ms": 41.5}
        self.assertEqual(self.offers()[2], ("load", None, told))
        self.broker.commands.clear()
        await self.broker.restart()
        await self.until(lambda: len(self.broker.of(Content)) == 2)
        self.assertEqual(self.offers(), [("service/bank", "offer", service), ("load", None, {"load": 0.5})])
        self.assertEqual([event for event, _ in self.events], ["lost", "back"])
        await offer.withdraw()
        self.assertEqual(self.offers()[2], ("service/bank", "withdraw", None))
        await offer.ended

    async def test_an_offer_is_made_again_after_more_reports_than_there_is_room_for(self) -> None:
        settings = attrs.evolve(FAST, window=2)
        offer = await registry.offer(self.client(settings=settings), "bank", "h:1", load=0.25, on_event=self.told)
        self.broker.stop()
        await self.until(lambda: not offer.writer.up)
        reports = [offer.load(0.5), offer.load(0.75)]
        with self.assertRaises(Full):
            await offer.load(1.0)
        self.broker.commands.clear()
        await self.broker.start()
        for report in reports:
            await report
        await self.until(lambda: len(self.broker.of(Content)) == 4 or offer.writer.flow.closed)
        self.assertEqual([what for _, what, _ in self.offers()], [None, None, "offer", None])
        self.assertEqual(self.offers()[3], ("load", None, {"load": 1.0}))

    async def test_a_load_needs_a_lease_for_loads(self) -> None:
        offer = await registry.offer(self.client(), "bank", "h:1")
        self.assertEqual(self.asked_for()[0]["resources"], ["service/bank"])
        with self.assertRaises(ValueError):
            offer.load(0.5)

    async def test_what_the_broker_does_not_register_is_not_offered(self) -> None:
        self.broker.answers["Content"] = lambda identity, command: self.broker.say(
            identity, data_messages.reject(command.sequence)
        )
        client = self.client()
        with self.assertRaises(Rejected):
            await registry.offer(client, "bank", "h:1")
        self.assertEqual(client._flows, {})

    async def test_an_offer_there_is_no_room_for_is_made_later(self) -> None:
        rejects = [True, True]

        def reject(identity: bytes, command: Content) -> Any:
            if not rejects:
                return ...
            rejects.pop()
            return self.broker.say(identity, data_messages.reject(command.sequence, recycle=True))

        self.broker.answers["Content"] = reject
        await registry.offer(self.client(), "bank", "h:1")
        self.assertEqual(len(self.broker.of(Content)), 3)

    async def test_an_offer_that_is_refused_after_a_restart_has_ended(self) -> None:
        offer = await registry.offer(self.client(settings=FAST), "bank", "h:1")
        self.broker.answers["Content"] = lambda identity, command: self.broker.say(
            identity, data_messages.reject(command.sequence)
        )
        self.broker.leased.clear()
        with self.assertRaises(Rejected):
            await offer.ended

    async def test_an_offer_whose_flow_is_lost_in_the_middle_is_made_by_the_next(self) -> None:
        def lose(identity: bytes, command: Content) -> None:
            del self.broker.answers["Content"]
            self.broker.leased.clear()
            self.broker.say(identity, data_messages.response(0, b"403"))

        self.broker.answers["Content"] = lose
        offer = await registry.offer(self.client(), "bank", "h:1")
        self.assertEqual((offer.writer.generation, len(self.broker.of(Content))), (2, 2))

    async def test_withdrawing_while_there_is_no_flow(self) -> None:
        offer = await registry.offer(self.client(settings=FAST), "bank", "h:1")
        self.broker.stop()
        await self.until(lambda: not offer.writer.up)
        await offer.withdraw()
        await offer.ended


class Workers(Helpers):
    def setUp(self) -> None:
        super().setUp()
        self.broker.answers["Content"] = self.content
        self.replies: list[tuple[bytes, dict[str, Any]]] = []
        self.reject = False

    def content(self, identity: bytes, command: Content) -> Any:
        if command.resource != "reply":
            return ...
        self.replies.append((bytes(command.body), decode(command.table)))
        if self.reject:
            return self.broker.say(identity, data_messages.reject(command.sequence))
        return ...

    async def worker(self, serve: Any, **more: Any) -> service.Worker:
        return await service.worker(self.client(), "bank", serve, **more)

    def ask(self, body: bytes, **properties: Any) -> None:
        self.broker.give("service/bank", body, **properties)

    async def answers(self, count: int) -> list[Any]:
        await self.until(lambda: len(self.broker.of(Confirm) + self.broker.of(Reject)) >= count)
        return [command for command in self.broker.commands if isinstance(command, Confirm | Reject)]

    async def test_a_reply_goes_where_the_request_says_before_the_request_is_confirmed(self) -> None:
        async def slow(request: Any) -> bytes:
            return bytes(request.body.upper())

        for serve in (lambda request: request.body.upper(), slow):
            worker = await self.worker(serve)
            self.ask(b"hello", reply_to="reply/x", correlation_id="7")
            self.ask(b"bye", reply_to="reply/y")
            self.ask(b"nobody listens")
            await self.answers(3)
            self.assertEqual(
                self.replies,
                [(b"HELLO", {"reply-to": "reply/x", "correlation-id": "7"}), (b"BYE", {"reply-to": "reply/y"})],
            )
            kinds = [type(command) for command in self.broker.commands if isinstance(command, Confirm | Content)]
            self.assertLess(kinds.index(Content), kinds.index(Confirm))
            self.replies.clear()
            self.broker.commands.clear()
            worker.close()
            await worker.ended

    async def test_a_worker_that_fails_says_so(self) -> None:
        errors = [ValueError("oh"), NotTaken(recycle=True), NotTaken()]

        def serve(request: Any) -> bytes:
            raise errors.pop(0)

        await self.worker(serve)
        for _ in range(3):
            self.ask(b"", reply_to="reply/x")
        self.assertEqual(
            await self.answers(3), [Reject(1, False, False), Reject(2, False, True), Reject(3, False, False)]
        )
        self.assertEqual(self.replies, [])
        self.flushLoggedErrors(ValueError)

    async def test_a_reply_that_cannot_be_sent_is_a_failure_of_the_worker(self) -> None:
        replies: list[Any] = ["text", b"x" * (QUICK.max_body + 1), b"bytes"]
        await self.worker(lambda request: replies.pop(0))
        for _ in range(3):
            self.ask(b"", reply_to="reply/x")
        self.assertEqual(
            set(await self.answers(3)), {Reject(1, False, False), Reject(2, False, False), Confirm(3, False)}
        )
        self.assertEqual([body for body, _ in self.replies], [b"bytes"])
        self.assertEqual(len(self.flushLoggedErrors(TypeError, ValueError)), 2)

    async def test_a_reply_that_nobody_waits_for_is_no_failure(self) -> None:
        self.reject = True
        await self.worker(lambda request: b"x")
        self.ask(b"", reply_to="reply/x")
        self.assertEqual(await self.answers(1), [Confirm(1, False)])

    async def test_loads_and_the_end(self) -> None:
        worker = await self.worker(lambda request: b"x", loads=True, window=3)
        await worker.load(0.5)
        self.assertEqual(self.asked_for()[0], {"resources": ["service/bank"], "confirm": "full", "window": 3})
        self.assertEqual(self.asked_for()[1], {"resources": ["reply", "load"], "confirm": "full"})
        self.assertEqual(bytes(self.broker.of(Content)[0].body), b'{"load":0.5}')
        await worker.load(0.5, requests=7)
        self.assertEqual(bytes(self.broker.of(Content)[1].body), b'{"load":0.5,"requests":7}')
        await worker.drain()
        self.assertEqual(len(self.broker.of(Dismiss)), 1)


class Callers(Helpers):
    def setUp(self) -> None:
        super().setUp()
        self.reader_answers = 0
        self.broker.answers["Reader"] = self.lease

    def lease(self, members: dict[str, Any]) -> Any:
        self.reader_answers += 1
        self.broker.more = {"reply": f"reply/{self.reader_answers}"}
        return ...

    async def caller(self, *names: str, settings: Any = FAST) -> service.Caller:
        return await service.caller(self.client(settings=settings), names, on_event=self.told)

    async def asked(self, count: int) -> list[dict[str, Any]]:
        return [decode(content.table) for content in await self.contents(count)]

    async def fails(self, waiting: Deferred[Any], error: type[Exception]) -> Any:
        with self.assertRaises(error) as caught:
            await waiting
        return caught.exception

    async def test_requests_and_replies_in_any_order(self) -> None:
        caller = await self.caller("bank", "shop")
        first, second = caller.call("bank", b"a", {"x": 1}), caller.call("shop", b"b", retry=True, timeout=2.5)
        asked = await self.asked(2)
        self.assertEqual(
            asked[0],
            {"x": 1, "ttl": 30_000, "retry": False, "wait": False, "reply-to": "reply/1", "correlation-id": "1"},
        )
        self.assertEqual(
            asked[1], {"ttl": 2_500, "retry": True, "wait": True, "reply-to": "reply/1", "correlation-id": "2"}
        )
        self.assertEqual([content.resource for content in self.broker.of(Content)], ["service/bank", "service/shop"])
        for body, id in ((b"B", "2"), (b"?", "9"), (b"A", "1"), (b"A again", "1")):
            self.broker.give("reply", body, correlation_id=id)
        self.assertEqual(((await second).body, (await first).body), (b"B", b"A"))
        await self.until(lambda: caller.unexpected == 2)
        self.assertEqual(caller.waiting, 0)

    async def test_errors_of_the_broker(self) -> None:
        caller = await self.caller()
        waiting = caller.call("bank", b"")
        await self.contents(1)
        self.broker.give("reply", b"", event="error", code=503, reason="nobody", correlation_id="1")
        error = await self.fails(waiting, RequestFailed)
        self.assertEqual((error.code, error.reason), (503, "nobody"))

    async def test_what_the_broker_does_not_take(self) -> None:
        for recycle, reason in ((True, "no worker has room"), (False, "the broker refused the request")):
            self.broker.answers["Content"] = lambda identity, command, recycle=recycle: self.broker.say(
                identity, data_messages.reject(command.sequence, recycle=recycle)
            )
            error = await self.fails((await self.caller()).call("bank", b""), RequestFailed)
            self.assertEqual((error.code, error.reason), (503, reason))
        error = await self.fails((await self.caller("bank")).call("other", b""), ValueError)

    async def test_a_request_that_cannot_be_sent_fails_and_keeps_no_place(self) -> None:
        caller = await self.caller("bank")
        await self.fails(caller.call("bank", "text"), TypeError)  # type: ignore[arg-type]
        self.assertEqual(caller.waiting, 0)
        caller.writer.flow.lose("as it happens")
        unsent, sent = caller.call("bank", "text"), caller.call("bank", b"bytes")  # type: ignore[arg-type]
        await self.fails(unsent, TypeError)
        [properties] = await self.asked(1)
        self.broker.give("reply", b"done", correlation_id=properties["correlation-id"])
        self.assertEqual((await sent).body, b"done")

    async def test_patience_has_an_end(self) -> None:
        caller = await self.caller()
        await self.fails(caller.call("bank", b"", timeout=0.05), TimeoutError)
        self.broker.give("reply", b"late", correlation_id="1")
        await self.until(lambda: caller.unexpected)
        self.assertEqual(caller.waiting, 0)

    async def test_a_request_that_is_sent_after_a_recovery_has_the_rest_of_its_time(self) -> None:
        broker, clock = FakeBroker(), Clock()
        client = broker.client(clock)
        self.addCleanup(client.close)
        opening = Deferred.fromCoroutine(service.caller(client))
        clock.pump([0.1] * 10)
        caller = await opening
        again = caller.call("bank", b"", retry=True, timeout=10.0)
        broker.stop()
        clock.pump([0.1] * 5)
        held = caller.call("bank", b"", wait=True, timeout=9.0)
        clock.pump([0.1] * 50)
        broker.start()
        # The pauses before reconnections are random.
        for _ in range(600):
            clock.advance(0.1)
            if caller.writer.generation == 2 and again.called and held.called:
                break
        for call in (again, held):
            # The broker's end of a request and the caller's come at one time.
            with contextlib.suppress(TimeoutError, service.RequestFailed):
                self.fail(f"{await call} is an answer")
        self.assertEqual(caller.writer.generation, 2)
        requests: list[bytes] = []

        def serve(request: Delivery) -> bytes:
            requests.append(request.body)
            return b""

        Deferred.fromCoroutine(service.worker(client, "bank", serve))
        clock.pump([0.1] * 10)
        self.assertEqual(requests, [])

    async def test_there_is_a_limit(self) -> None:
        caller = await self.caller(settings=attrs.evolve(FAST, window=2))
        waiting = [caller.call("bank", b""), caller.call("bank", b"")]
        await self.fails(caller.call("bank", b""), Full)
        caller.close()
        for each in [*waiting, caller.call("bank", b"")]:
            await self.fails(each, Closed)
        await caller.ended

    async def test_a_restart_fails_what_may_not_be_done_twice_and_asks_again_what_may(self) -> None:
        caller = await self.caller()
        once, twice = caller.call("bank", b"once"), caller.call("bank", b"twice", retry=True)
        await self.contents(2)
        self.broker.stop()
        await self.fails(once, Unsettled)
        # what was never sent may be sent
        buffer = bytearray(b"later")
        later = caller.call("bank", buffer)  # type: ignore[arg-type]
        buffer[:] = b"changed"
        self.broker.commands.clear()
        await self.broker.start()
        asked = await self.asked(2)
        self.assertEqual([bytes(content.body) for content in self.broker.of(Content)], [b"twice", b"later"])
        self.assertEqual({properties["reply-to"] for properties in asked}, {"reply/2"})
        for properties in asked:
            self.broker.give("reply", b"done", correlation_id=properties["correlation-id"])
        self.assertEqual(((await twice).body, (await later).body), (b"done", b"done"))
        self.assertEqual([event for event, _ in self.events], ["lost", "back"])
