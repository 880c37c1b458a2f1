"""Readers: Summons, answers to each Content, and backpressure."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.client.errors import Closed, NotTaken, Refused
from broker.client.mtl import Delivery, Reader
from broker.client.reader import MOST_PENDING
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.data_messages import Confirm, Dismiss, Lease, Reject, Summon
from tests.client.scripted import QUICK, Stage


class Flows(Stage):
    """A reader of the queue "jobs"; ``deliveries`` is what came, ``results`` what the application makes of each."""

    def setUp(self) -> None:
        super().setUp()
        self.deliveries: list[Delivery] = []
        self.results: list[Any] = []

    def receive(self, delivery: Delivery) -> Any:
        self.deliveries.append(delivery)
        result = self.results.pop(0) if self.results else None
        if isinstance(result, Exception):
            raise result
        return result

    async def reader(self, *resources: str, confirm: Any = "full", **more: Any) -> Reader:
        client = self.client(**{"settings": more.pop("settings", QUICK)})
        reader = await client.reader("queue", resources or ["jobs"], self.receive, confirm=confirm, **more)
        for resource in resources or ["jobs"]:
            await reader.summon(resource)
        return reader

    async def came(self, count: int) -> list[Delivery]:
        await self.until(lambda: len(self.deliveries) >= count)
        return self.deliveries

    async def answers(self, count: int) -> list[Any]:
        """Return the Confirms and Rejects of the client."""
        await self.until(lambda: len(self.broker.of(Confirm) + self.broker.of(Reject)) >= count)
        return [command for command in self.broker.commands if isinstance(command, Confirm | Reject)]


class Summoning(Flows):
    async def test_the_lease_is_first_and_then_what_is_wanted_d01_s01(self) -> None:
        await self.reader("jobs", "more jobs")
        self.assertEqual(self.broker.commands, [Lease(1, "lease-1"), Summon(2, "jobs"), Summon(3, "more jobs")])

    async def test_what_makes_no_sense_is_not_sent_s02_s03_s04(self) -> None:
        reader = await self.reader("jobs")
        for resource in ("other", "", "x" * 256, "a\nb", "jobs"):
            with self.assertRaises(ValueError):
                reader.summon(resource)
        with self.assertRaises(ValueError):
            reader.dismiss("other")
        await reader.dismiss("jobs")
        with self.assertRaises(ValueError):
            reader.dismiss("jobs")
        await reader.summon("jobs")
        self.assertEqual(self.broker.commands[1:], [Summon(2, "jobs"), Dismiss(3, "jobs"), Summon(4, "jobs")])

    async def test_a_summon_that_is_refused_can_be_tried_again_s02(self) -> None:
        def refuse(identity: bytes, command: Summon) -> Any:
            if command.resource == "none":
                self.broker.say(identity, data_messages.response(command.sequence, b"400"))
                return None
            return ...

        self.broker.answers["Summon"] = refuse
        client = self.client()
        reader = await client.reader("queue", [], self.receive)
        for _ in range(2):
            with self.assertRaises(Refused) as caught:
                await reader.summon("none")
            self.assertEqual(caught.exception.code, 400)
        await reader.summon("jobs")
        self.assertEqual(reader.summoned, ["jobs"])

    async def test_answers_may_come_in_any_order_d05(self) -> None:
        held: list[tuple[bytes, Any]] = []

        def hold(identity: bytes, command: Any) -> Any:
            held.append((identity, command))

        client = self.client()
        reader = await client.reader("queue", [], self.receive)
        self.broker.answers["Summon"] = hold
        fired: list[str] = []
        for name in "abc":
            reader.summon(name).addCallback(lambda _, name: fired.append(name), name)
        await self.until(lambda: len(held) == 3)
        for identity, command in reversed(held):
            self.broker.say(identity, data_messages.response(command.sequence, b"200"))
        await self.until(lambda: len(fired) == 3)
        self.assertEqual(fired, ["c", "b", "a"])

    async def test_contents_come_until_the_dismiss_is_answered(self) -> None:
        reader = await self.reader()
        self.broker.answers["Dismiss"] = lambda identity, command: self.broker.give("jobs", b"late") and ...
        left = reader.dismiss("jobs")
        await left
        self.assertEqual([delivery.body for delivery in self.deliveries], [b"late"])
        del self.broker.answers["Dismiss"]
        # and what comes after it goes back
        sequence = self.broker.give("jobs", b"too late")
        self.assertEqual(await self.answers(2), [Confirm(1, False), Reject(sequence, False, True)])
        self.assertEqual(len(self.deliveries), 1)

    async def test_what_was_dismissed_before_it_was_summoned(self) -> None:
        reader = await self.client().reader("queue", ["jobs"], self.receive)
        summoned, left = reader.summon("jobs"), reader.dismiss("jobs")
        with self.assertRaises(Closed):
            await summoned
        await left
        self.assertEqual(self.broker.commands[1:], [Summon(2, "jobs"), Dismiss(3, "jobs")])

    async def test_who_changes_its_mind_often_gets_what_it_wanted_last(self) -> None:
        reader = await self.client().reader("queue", ["jobs"], self.receive)
        first, left, second = reader.summon("jobs"), reader.dismiss("jobs"), reader.summon("jobs")
        with self.assertRaises(Closed):
            await first
        await left
        await second
        self.assertEqual((reader.summoned, self.broker.leased[self.broker.reader()].summoned), (["jobs"], ["jobs"]))

    async def test_a_resource_without_a_name_is_the_only_one(self) -> None:
        await self.reader()
        self.broker.give("", b"work")
        self.assertEqual((await self.came(1))[0].resource, "jobs")

    async def test_the_window_is_asked_for_and_told(self) -> None:
        self.broker.more = {"window": 7}
        reader = await self.reader(window=20)
        self.assertEqual(self.broker.requests[-1][1]["window"], 20)
        assert reader.lease is not None
        self.assertEqual(reader.lease.window, 7)


class Answers(Flows):
    async def test_each_content_is_confirmed_or_rejected_k12(self) -> None:
        later: Deferred[None] = Deferred()

        async def coroutine() -> None:
            await later
            raise NotTaken("no")

        self.results = [None, "anything", later, coroutine(), ValueError("oh"), NotTaken(), NotTaken(recycle=True)]
        reader = await self.reader()
        for number in range(8):
            self.broker.give("jobs", b"%d" % number)
        await self.came(8)
        self.assertEqual(
            await self.answers(6),
            [
                Confirm(1, False),
                Confirm(2, False),
                Reject(5, False, True),
                Reject(6, False, False),
                Reject(7, False, True),
                Confirm(8, False),
            ],
        )
        self.assertEqual(reader.busy, 2)
        later.callback(None)
        answers = await self.answers(8)
        self.assertEqual(
            sorted(answers[6:], key=lambda each: each.sequence), [Confirm(3, False), Reject(4, False, False)]
        )
        self.assertEqual(reader.busy, 0)
        self.flushLoggedErrors(ValueError)

    async def test_a_handler_of_which_nothing_runs_has_not_processed_a_content(self) -> None:
        async def asynchronous() -> Any:
            yield

        self.results = [(number for number in range(1)), asynchronous()]
        await self.reader()
        for body in (b"0", b"1"):
            self.broker.give("jobs", body)
        self.assertEqual(await self.answers(2), [Reject(1, False, True), Reject(2, False, True)])
        self.assertEqual(len(self.flushLoggedErrors(TypeError)), 2)

    async def test_the_application_may_answer_itself_and_only_the_first_answer_counts_k07(self) -> None:
        self.results = [later := Deferred[None](), Deferred[None]()]
        await self.reader()
        self.broker.give("jobs")
        self.broker.give("jobs")
        first, second = await self.came(2)
        first.confirm()
        first.reject(recycle=True)
        second.reject(recycle=False)
        second.confirm()
        later.callback(None)
        self.broker.give("jobs")
        self.assertEqual(await self.answers(3), [Confirm(1, False), Reject(2, False, False), Confirm(3, False)])

    async def test_one_answer_for_all_up_to_a_content_k04(self) -> None:
        self.results = [Deferred[None]() for _ in range(6)]
        await self.reader()
        for _ in range(6):
            self.broker.give("jobs")
        deliveries = await self.came(6)
        deliveries[1].confirm(multiple=True)
        deliveries[4].reject(recycle=True, multiple=True)
        for delivery in deliveries:
            delivery.confirm()
        self.assertEqual(await self.answers(3), [Confirm(2, True), Reject(5, True, True), Confirm(6, False)])

    async def test_a_broker_that_uses_a_number_twice_gets_two_answers(self) -> None:
        self.results = [later := Deferred[None](), Deferred[None]()]
        reader = await self.reader()
        for _ in range(2):
            self.broker.give("jobs")
            self.broker.leased[self.broker.reader()].sequence = 0
        first, second = await self.came(2)
        later.callback(None)
        second.reject(recycle=True)
        self.assertEqual(await self.answers(2), [Confirm(1, False), Reject(1, False, True)])
        self.assertTrue(first.answered)
        self.assertTrue(reader.up)

    async def test_without_confirmation_nothing_is_answered_k01(self) -> None:
        self.results = [None, ValueError("oh"), NotTaken()]
        reader = await self.reader(confirm="none")
        for _ in range(4):
            self.broker.give("jobs")
        for delivery in await self.came(4):
            delivery.confirm()
            delivery.reject(recycle=True)
        await reader.dismiss("jobs")
        self.assertEqual(self.broker.of(Confirm) + self.broker.of(Reject), [])
        self.flushLoggedErrors(ValueError)

    async def test_properties_and_gaps(self) -> None:
        reader = await self.reader(confirm="none")
        self.broker.give("jobs", b"\x00\xff", delivery_count=3, content_type="text/plain", flag=True)
        self.broker.give("jobs", b"", skip=4)
        first, second = await self.came(2)
        self.assertEqual((first.body, first.missed, second.body, second.missed), (b"\x00\xff", 0, b"", 4))
        self.assertEqual(first.properties, {"delivery-count": 3, "content-type": "text/plain", "flag": True})
        self.assertEqual((first.number("delivery-count"), first.text("content-type")), (3, "text/plain"))
        self.assertEqual((first.number("flag"), first.text("flag"), first.text("no")), (0, "", ""))
        self.assertEqual((second.properties, reader.missed), ({}, 4))

    async def test_what_makes_no_sense_from_a_broker_is_dropped_and_counted_k02(self) -> None:
        reader = await self.reader()
        identity = self.broker.reader()
        for frames in (
            data_messages.confirm(1),
            data_messages.reject(1),
            data_messages.response(99, b"400"),
            data_messages.lease(1, "x"),
            data_messages.summon(1, "x"),
            data_messages.PONG,
            (b"", b""),
            (b"\x0a", b""),
            (b"\x05", b""),
            (b"\x02" + bytes(8), b"20"),
            (b"\x08\x00", b""),
            (b"\x05" + bytes(8) + b"\x04jobs" + b"\0\0\0\x01\0", b""),
        ):
            self.broker.say(identity, frames)
        self.broker.data.send(identity, b"\x08")
        self.broker.give("jobs")
        await self.answers(1)
        self.assertEqual(sum(reader.counts.values()), 12)
        self.assertTrue(reader.up)

    async def test_a_content_of_what_was_not_summoned_goes_back(self) -> None:
        await self.reader()
        self.broker.give("other", b"x")
        self.assertEqual(await self.answers(1), [Reject(1, False, True)])


class Busy(Flows):
    async def test_what_is_too_much_is_not_received_and_the_flow_lives_on(self) -> None:
        settings = attrs.evolve(QUICK, pending=4, heartbeat=0.1, high_water=10)
        self.results = [Deferred[None]() for _ in range(50)]
        waiting = list(self.results)
        reader = await self.reader(confirm="none", settings=settings, on_event=self.told)
        for number in range(50):
            self.broker.give("jobs", b"%d" % number)
        await self.came(5)
        # ten heartbeats: it sends its own, and silence is no fault
        before = len(self.broker.of(data_messages.Ping))
        await self.until(lambda: len(self.broker.of(data_messages.Ping)) >= before + 10)
        self.assertEqual((len(self.deliveries), reader.busy), (5, 5))
        for result in waiting[:3]:
            result.callback(None)
        await self.came(8)
        for result in waiting[3:]:
            result.callback(None)
        await self.came(50)
        self.assertEqual([delivery.body for delivery in self.deliveries], [b"%d" % number for number in range(50)])
        self.assertEqual((self.events, reader.missed, reader.busy), ([], 0, 0))

    async def test_what_has_too_many_bytes_is_not_received_either(self) -> None:
        self.broker.more = {"window": 10**18}
        self.results = [Deferred[None]() for _ in range(20)]
        waiting = list(self.results)
        reader = await self.reader(settings=attrs.evolve(QUICK, pending_bytes=100_000))
        for _ in range(20):
            self.broker.give("jobs", bytes(10_000))
        await self.came(11)
        before = len(self.broker.of(data_messages.Ping))
        await self.until(lambda: len(self.broker.of(data_messages.Ping)) > before)
        self.assertEqual(reader.busy, 11)
        for result in waiting[:5]:
            result.callback(None)
        self.assertEqual(reader.busy, 6)
        waiting[5].callback(None)
        await self.came(16)
        for result in waiting[6:]:
            result.callback(None)
        await self.answers(20)
        self.assertEqual(reader._most, MOST_PENDING)

    async def test_a_command_is_not_late_while_the_client_does_not_listen(self) -> None:
        settings = attrs.evolve(QUICK, pending=1, timeout=0.1, heartbeat=0.1)
        self.results = [first := Deferred[None](), second := Deferred[None]()]
        reader = await self.reader(confirm="none", settings=settings, on_event=self.told)
        self.broker.give("jobs")
        self.broker.give("jobs")
        await self.came(2)
        left = reader.dismiss("jobs")
        pings = len(self.broker.of(data_messages.Ping))
        await self.until(lambda: len(self.broker.of(data_messages.Ping)) >= pings + 4)
        self.assertFalse(left.called)
        first.callback(None)
        second.callback(None)
        await left
        self.assertEqual(self.events, [])

    async def test_draining_finishes_what_was_begun_and_takes_nothing_new(self) -> None:
        self.results = [later := Deferred[None]()]
        reader = await self.reader()
        self.broker.give("jobs")
        await self.came(1)
        drained = reader.drain()
        await self.until(lambda: self.broker.of(Dismiss))
        self.assertFalse(drained.called)
        later.callback(None)
        await drained
        self.assertEqual(await self.answers(1), [Confirm(1, False)])
        await reader.ended

    async def test_draining_what_has_nothing_to_do(self) -> None:
        reader = await self.reader()
        await reader.drain()
        self.assertEqual(len(self.broker.of(Dismiss)), 1)
        with self.assertRaises(Closed):
            await reader.summon("jobs")

    async def test_closing_gives_back_what_was_not_answered(self) -> None:
        self.results = [None, Deferred[None](), Deferred[None](), None]
        reader = await self.reader()
        for _ in range(4):
            self.broker.give("jobs")
        deliveries = await self.came(4)
        await self.answers(2)
        reader.close()
        deliveries[1].confirm()
        self.assertEqual((await self.answers(3))[2], Reject(3, True, True))
        await reader.ended
        self.assertEqual([delivery.answered for delivery in deliveries], [True] * 4)

    async def test_who_dismisses_what_was_not_summoned_when_the_flow_was_closed(self) -> None:
        reader = await self.client().reader("queue", ["a", "b"], self.receive)
        self.broker.answers["Summon"] = lambda identity, command: None
        refused: list[str] = []

        def failed(failure: Failure, resource: str) -> None:
            with self.assertRaises(ValueError):
                reader.dismiss(resource)
            refused.append(resource)

        for resource in ("a", "b"):
            reader.summon(resource).addErrback(failed, resource)
        reader.close()
        await reader.ended
        self.assertEqual((reader.up, reader.summoned, refused), (False, [], ["a", "b"]))

    async def test_nobody_waits_for_what_will_not_come(self) -> None:
        client = self.client()
        reader = await client.reader("queue", [], self.receive)
        self.broker.mute = True
        waiting = [reader.summon("a"), reader.summon("b")]
        left = reader.dismiss("b")
        client.close()
        await left
        for each in waiting:
            with self.assertRaises(Closed):
                await each
