"""Writers: confirms, limits of unconfirmed Contents, and resending."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import attrs
from twisted.internet.defer import CancelledError, Deferred

from broker.client.errors import Closed, Full, NotConnected, Refused, Rejected, Unsettled
from broker.client.mtl import Writer
from broker.client.writer import MAX_FLOWS
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.data_messages import Content
from broker.wires.mtl.codec.field_table import decode
from tests.client.scripted import QUICK, Stage


class Flows(Stage):
    """A writer of the queue "jobs", to a broker that says nothing to Contents until it is told."""

    async def writer(self, *resources: str, confirm: Any = "full", resend: bool = False, **settings: Any) -> Writer:
        client = self.client(settings=attrs.evolve(QUICK, **settings))
        self.broker.answers["Content"] = lambda identity, command: None
        return await client.writer("queue", resources or ["jobs"], confirm=confirm, resend=resend, on_event=self.told)

    async def contents(self, count: int) -> list[Content]:
        await self.until(lambda: len(self.broker.of(Content)) >= count)
        return self.broker.of(Content)

    def sends(self, writer: Writer, *arguments: Any, **more: Any) -> None:
        """Send what is not of interest when the test is over."""
        writer.send(*arguments, **more).addErrback(lambda failure: failure.trap(Closed) and None)

    def say(self, frames: tuple[bytes, bytes]) -> None:
        self.broker.say(self.broker.writer(), frames)

    async def fails(self, waiting: Deferred[Any], error: type[Exception]) -> Any:
        with self.assertRaises(error) as caught:
            await waiting
        return caught.exception


class Contents(Flows):
    async def test_resource_properties_and_body_w01(self) -> None:
        writer = await self.writer("jobs", "more jobs")
        self.sends(writer, b"\x00\xff", "jobs", {"a": 1, "b": [True, None]})
        self.sends(writer, b"", "more jobs")
        first, second = await self.contents(2)
        self.assertEqual((first.sequence, first.resource, bytes(first.body)), (2, "jobs", b"\x00\xff"))
        self.assertEqual(decode(first.table), {"a": 1, "b": [True, None]})
        self.assertEqual((second.sequence, second.resource, bytes(second.body)), (3, "more jobs", b""))

    async def test_a_name_is_needed_where_there_are_several_w04(self) -> None:
        several, every, one = await self.writer("a", "b"), await self.client().writer("queue", []), await self.writer()
        for writer, resource in ((several, ""), (several, "c"), (every, ""), (every, "a\nb"), (one, "other")):
            with self.assertRaises(ValueError):
                writer.send(b"", resource)
        with self.assertRaises(ValueError):
            one.send(b"", properties={"": 1})
        with self.assertRaises(ValueError):
            one.send(b"x" * (QUICK.max_body + 1))
        self.sends(one, b"")
        self.sends(every, b"", "any")
        self.assertEqual(sorted(content.resource for content in await self.contents(2)), ["any", "jobs"])

    async def test_what_is_no_body_is_not_accepted_and_does_no_harm(self) -> None:
        writer = await self.writer()
        for wrong in ("text", None, 7):
            with self.assertRaises(TypeError):
                writer.send(wrong)  # type: ignore[arg-type]
        self.assertEqual(writer.outstanding, 0)
        self.sends(writer, b"bytes")
        self.assertEqual(bytes((await self.contents(1))[0].body), b"bytes")

    async def test_a_body_is_that_of_the_moment_of_the_call_whatever_kind_of_buffer_it_is(self) -> None:
        writer = await self.writer(window_bytes=QUICK.max_body, max_body=8)
        buffer = bytearray(b"before")
        self.broker.stop()
        await self.until(lambda: not writer.up)
        self.sends(writer, buffer)
        buffer[:] = b"after!"
        self.sends(writer, memoryview(b"a-b-c-")[::2])
        with self.assertRaises(ValueError):
            writer.send(memoryview(bytes(12)).cast("I"))  # type: ignore[arg-type]  # 3 numbers, 12 bytes
        self.sends(writer, b"last")
        await self.broker.start()
        self.assertEqual([bytes(content.body) for content in await self.contents(3)], [b"before", b"abc", b"last"])

    async def test_each_is_settled_by_its_own_confirm_k03(self) -> None:
        writer = await self.writer()
        first, second, third = [writer.send(b"%d" % number) for number in range(3)]
        await self.contents(3)
        self.say(data_messages.confirm(3))
        await second
        self.assertEqual((first.called, third.called, writer.outstanding), (False, False, 2))
        self.say(data_messages.confirm(4, multiple=True))
        await first
        await third
        self.assertEqual(writer.outstanding, 0)

    async def test_rejects_and_how_they_are_told_apart(self) -> None:
        writer = await self.writer()
        waiting = [writer.send(b"") for _ in range(4)]
        await self.contents(4)
        self.say(data_messages.reject(3, recycle=True))
        self.say(data_messages.response(5, b"400"))
        self.say(data_messages.reject(4, multiple=True))
        for content, recycle in ((waiting[1], True), (waiting[0], False), (waiting[2], False)):
            self.assertEqual((await self.fails(content, Rejected)).recycle, recycle)
        self.assertEqual((await self.fails(waiting[3], Refused)).code, 400)

    async def test_answers_to_what_is_not_outstanding_do_not_matter_k02(self) -> None:
        writer = await self.writer()
        sent = writer.send(b"")
        await self.contents(1)
        for frames in (
            data_messages.confirm(1, True),
            data_messages.confirm(0),
            data_messages.confirm(9),
            data_messages.reject(1),
        ):
            self.say(frames)
        self.say(data_messages.response(9, b"400"))
        self.say(data_messages.confirm(2))
        await sent
        self.say(data_messages.confirm(2))
        self.say(data_messages.reject(2, recycle=True))
        self.say(data_messages.confirm(99, True))
        await self.until(lambda: writer.counts["answer"] == 8)
        self.assertEqual((writer.outstanding, writer.up), (0, True))

    async def test_who_does_not_wait_any_more_does_no_harm(self) -> None:
        writer = await self.writer()
        sent = writer.send(b"")
        await self.contents(1)
        sent.cancel()
        await self.fails(sent, CancelledError)
        self.say(data_messages.confirm(2))
        await writer.settled()

    async def test_what_was_not_settled_when_it_was_closed(self) -> None:
        writer = await self.writer()
        sent, settled, room = writer.send(b""), writer.settled(), writer.room()
        await room
        await self.contents(1)
        writer.close()
        await self.fails(sent, Closed)
        await settled
        await self.fails(writer.send(b""), Closed)
        await self.fails(writer.room(), Closed)


class Room(Flows):
    async def test_a_window_bounds_what_waits(self) -> None:
        writer = await self.writer(window=3)
        for _ in range(3):
            self.assertTrue(writer.room().called)
            self.sends(writer, b"")
        await self.fails(writer.send(b""), Full)
        hopes = [writer.room() for _ in range(4)]
        hopes[1].cancel()
        await self.fails(hopes.pop(1), CancelledError)
        await self.contents(3)
        self.say(data_messages.confirm(2))
        await hopes[0]
        # nobody has used it, so that the others may try too
        await hopes[1]
        self.sends(writer, b"")
        await self.fails(writer.send(b""), Full)
        self.say(data_messages.confirm(99, True))
        await writer.settled()

    async def test_a_window_bounds_the_bytes_that_wait_but_one_content_may_go_beyond(self) -> None:
        writer = await self.writer(window_bytes=10_000)
        self.sends(writer, b"x" * 100_000)
        await self.fails(writer.send(b""), Full)
        await self.contents(1)
        self.say(data_messages.confirm(2))
        await writer.room()
        self.sends(writer, b"x" * 6_000)
        self.sends(writer, b"x" * 6_000)
        await self.fails(writer.send(b""), Full)

    async def test_what_is_sent_one_by_one_as_there_is_room_all_arrives(self) -> None:
        for window, size in ((5, 1_000_000), (1_000, 500)):
            writer = await self.writer(window=window, window_bytes=size)
            del self.broker.answers["Content"]
            for number in range(200):
                await writer.room()
                writer.send(b"%d" % number)
            await writer.settled()
            bodies = [bytes(content.body) for content in self.broker.of(Content)]
            self.assertEqual(bodies, [b"%d" % number for number in range(200)])
            self.broker.commands.clear()

    async def test_a_broker_that_does_not_read_makes_writers_wait(self) -> None:
        writer = await self.writer(confirm="none", high_water=5)
        self.broker.data.deaf = True
        body = bytes(1_000_000)
        sent = 0
        while (result := writer.send(body)).called and not isinstance(result.result, Exception):
            failure: list[Any] = []
            result.addErrback(failure.append)
            if failure:
                self.assertIsNotNone(failure[0].check(Full))
                break
            sent += 1
            self.assertLess(sent, 1_000)
        room = writer.room()
        self.assertFalse(room.called)
        self.broker.data.deaf = False
        self.broker.data.look_soon()
        await room
        await writer.send(b"last")
        self.assertEqual(bytes((await self.contents(sent + 1))[-1].body), b"last")

    async def test_confirmed_contents_wait_for_a_broker_that_does_not_read(self) -> None:
        writer = await self.writer(high_water=5, window=40, window_bytes=1 << 30)
        del self.broker.answers["Content"]
        self.broker.data.deaf = True
        waiting = [writer.send(b"%d" % number + bytes(1_000_000)) for number in range(40)]
        self.broker.data.deaf = False
        self.broker.data.look_soon()
        for content in waiting:
            await content
        bodies = [bytes(content.body[:2]).rstrip(b"\0") for content in self.broker.of(Content)]
        self.assertEqual(bodies, [b"%d" % number for number in range(40)])


class Unconfirmed(Flows):
    async def test_it_is_gone_when_it_is_handed_over_k01(self) -> None:
        writer = await self.writer(confirm="none")
        await writer.send(b"x")
        self.assertEqual((writer.outstanding, writer.settled().called), (0, True))
        await self.contents(1)

    async def test_what_the_broker_does_not_take_is_told(self) -> None:
        writer = await self.writer(confirm="none")
        await writer.send(b"x")
        sent = await self.contents(1)
        self.say(data_messages.response(sent[0].sequence, b"400"))
        await self.until(lambda: self.events)
        self.assertEqual(self.events, [("refused", "400 the broker refused the Content")])
        self.assertTrue(writer.up)

    async def test_while_there_is_no_flow_nothing_is_taken(self) -> None:
        writer = await self.writer(confirm="none", heartbeat=0.2)
        self.broker.stop()
        self.broker.leased.clear()
        await self.until(lambda: not writer.up)
        await self.fails(writer.send(b"x"), NotConnected)
        room = writer.room()
        await self.broker.start()
        await room
        await writer.send(b"y")
        self.assertEqual([bytes(content.body) for content in await self.contents(1)], [b"y"])


class Again(Flows):
    async def test_what_there_was_no_room_for_is_sent_again_after_a_pause_that_grows(self) -> None:
        writer = await self.writer(resend=True, least_resend_pause=0.02, most_resend_pause=0.08)
        sent = writer.send(b"x")
        times: list[float] = []

        def reject(identity: bytes, command: Content) -> None:
            times.append(self.reactor.seconds())
            done = len(times) == 5
            self.say(
                data_messages.confirm(command.sequence)
                if done
                else data_messages.reject(command.sequence, recycle=True)
            )

        await self.contents(1)
        self.broker.answers["Content"] = reject
        self.say(data_messages.reject(2, recycle=True))
        await sent
        pauses = [later - before for before, later in pairwise(times)]
        for pause, least in zip(pauses, (0.04, 0.08, 0.08, 0.08), strict=True):
            self.assertGreater(pause, least * 0.9)
        # each time under a new number, since numbers rise
        numbers = [content.sequence for content in self.broker.of(Content)]
        self.assertEqual(numbers, sorted(set(numbers)))

    async def test_what_pauses_counts(self) -> None:
        writer = await self.writer(resend=True, window=2, least_resend_pause=30.0, most_resend_pause=30.0)
        waiting = [writer.send(b""), writer.send(b"")]
        await self.contents(2)
        self.say(data_messages.reject(3, multiple=True, recycle=True))
        self.say(data_messages.confirm(99))
        await self.until(lambda: writer.counts["answer"])
        self.assertEqual(writer.outstanding, 2)
        await self.fails(writer.send(b""), Full)
        writer.close()
        for each in waiting:
            await self.fails(each, Closed)

    async def test_what_was_refused_for_good_is_not_sent_again(self) -> None:
        writer = await self.writer(resend=True)
        sent = writer.send(b"")
        await self.contents(1)
        self.say(data_messages.reject(2))
        await self.fails(sent, Rejected)

    async def test_a_restart_settles_nothing_and_what_was_unconfirmed_goes_out_first_in_its_order(self) -> None:
        writer = await self.writer(resend=True, heartbeat=0.2)
        waiting = [writer.send(b"%d" % number) for number in range(5)]
        await self.contents(5)
        self.say(data_messages.confirm(3))
        await waiting[1]
        self.broker.stop()
        await self.until(lambda: not writer.up)
        waiting.append(writer.send(b"5"))
        self.broker.commands.clear()
        del self.broker.answers["Content"]
        await self.broker.start()
        for each in waiting:
            await each
        bodies = [bytes(content.body) for content in self.broker.of(Content)]
        self.assertEqual(bodies, [b"0", b"2", b"3", b"4", b"5"])
        self.assertEqual([event for event, _ in self.events], ["lost", "back"])

    async def test_what_had_found_no_room_yet_goes_out_behind_what_had(self) -> None:
        writer = await self.writer(resend=True, high_water=5, window=40, window_bytes=1 << 30)
        self.broker.data.deaf = True
        waiting = [writer.send(b"%d" % number + bytes(1_000_000)) for number in range(40)]
        self.assertTrue(writer._unconfirmed)
        self.assertTrue(writer._waiting)
        self.broker.leased.clear()
        del self.broker.answers["Content"]
        self.broker.data.deaf = False
        self.broker.data.look_soon()
        for content in waiting:
            await content
        bodies = [bytes(content.body[:2]).rstrip(b"\0") for content in self.broker.of(Content)]
        self.assertEqual(bodies[-40:], [b"%d" % number for number in range(40)])
        self.assertEqual(writer.generation, 2)

    async def test_who_did_not_ask_for_it_hears_that_nobody_knows(self) -> None:
        writer = await self.writer()
        sent = writer.send(b"x")
        await self.contents(1)
        await self.broker.restart()
        await self.fails(sent, Unsettled)
        await self.until(lambda: writer.up)
        self.assertEqual(len(self.broker.of(Content)), 1)

    async def test_a_content_that_no_flow_survives_is_given_up(self) -> None:
        writer = await self.writer(resend=True, most_pause=0.02)

        def die(identity: bytes, command: Content) -> None:
            self.broker.leased.clear()
            self.broker.say(identity, data_messages.response(0, b"403"))

        self.broker.answers["Content"] = die
        await self.fails(writer.send(b"poison"), Unsettled)
        self.assertEqual(len(self.broker.of(Content)), MAX_FLOWS)
        await self.until(lambda: writer.up)
