"""Life cycle of data flows: heartbeats, detection of a dead broker, and recovery."""

from __future__ import annotations

from typing import Any

import attrs
from twisted.internet.defer import Deferred

from broker.client.errors import AuthenticationFailed, Closed, Lost, Refused
from broker.client.mtl import Delivery, Password, Reader
from broker.client.transport import data_endpoint
from broker.wires.mtl.codec import data_messages
from broker.wires.mtl.codec.data_messages import Lease, Ping, Pong, Summon
from tests.client.scripted import FORBIDDEN, QUICK, READY, ScriptedBroker, Stage, unauthorized

FAST = attrs.evolve(QUICK, heartbeat=0.05)


class Flows(Stage):
    def setUp(self) -> None:
        super().setUp()
        self.deliveries: list[Delivery] = []

    async def reader(self, *resources: str, settings: Any = FAST, confirm: Any = "full", **more: Any) -> Reader:
        client = self.client(settings=settings)
        reader = await client.reader(
            "queue", resources or ["jobs"], self.deliveries.append, confirm=confirm, on_event=self.told, **more
        )
        for resource in resources or ["jobs"]:
            await reader.summon(resource)
        self.broker.requests.clear()
        self.broker.commands.clear()
        return reader

    async def back(self, count: int = 1) -> None:
        await self.until(lambda: [event for event, _ in self.events].count("back") >= count)


class Heartbeats(Flows):
    async def test_a_silent_client_sends_pings_as_often_as_it_was_told_h10(self) -> None:
        await self.reader(settings=attrs.evolve(QUICK, heartbeat=0.2))
        before = self.reactor.seconds()
        await self.until(lambda: len(self.broker.of(Ping)) >= 4)
        self.assertGreater(self.reactor.seconds() - before, 0.55)
        self.assertEqual(self.events, [])

    async def test_pings_are_answered_h01(self) -> None:
        await self.reader(settings=QUICK)
        for _ in range(20):
            self.broker.say(self.broker.reader(), data_messages.PING)
        await self.until(lambda: len(self.broker.of(Pong)) == 20)

    async def test_a_silent_broker_is_dead_h10(self) -> None:
        reader = await self.reader()
        self.broker.mute = True
        await self.until(lambda: not reader.up)
        self.assertEqual(self.events, [("lost", "the broker is silent")])
        self.assertGreaterEqual(len(self.broker.of(Ping)), 2)
        self.broker.mute = False
        await self.back()
        self.broker.give("jobs")
        await self.until(lambda: self.deliveries)

    async def test_any_message_is_a_sign_of_life(self) -> None:
        reader = await self.reader()
        self.broker.answers["Ping"] = lambda identity, command: self.broker.say(identity, data_messages.confirm(7))
        await self.until(lambda: len(self.broker.of(Ping)) >= 8)
        self.assertEqual((reader.up, self.events), (True, []))


class StartingOver(Flows):
    async def test_403_to_a_ping_means_that_the_broker_was_started_again(self) -> None:
        await self.reader("jobs", "more")
        self.broker.leased.clear()
        await self.back()
        self.assertEqual(self.events, [("lost", "the broker does not know the lease (403)"), ("back", "")])
        # from Open on, whatever the control flow looks like
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Reader"])
        ours = [type(command) for command in self.broker.commands if not isinstance(command, Ping)]
        self.assertEqual(ours, [Lease, Summon, Summon])
        self.assertEqual([command.resource for command in self.broker.of(Summon)], ["jobs", "more"])

    async def test_a_restart_is_survived_and_what_was_summoned_is_summoned_again(self) -> None:
        reader = await self.reader()
        for _ in range(5):
            self.broker.give("jobs", b"before")
        await self.until(lambda: len(self.deliveries) == 5)
        await self.broker.restart()
        await self.back()
        # the numbers of a flow begin again with it
        self.broker.give("jobs", b"after", skip=2)
        await self.until(lambda: len(self.deliveries) == 6)
        before, after = self.deliveries[-2:]
        self.assertEqual((before.body, after.body, after.missed), (b"before", b"after", 2))
        self.assertEqual((before.generation, after.generation), (1, 2))
        self.assertEqual(reader.generation, 2)

    async def test_many_restarts_are_survived(self) -> None:
        reader = await self.reader()
        for number in range(5):
            await self.broker.restart()
            await self.back(number + 1)
        self.assertEqual((reader.up, reader.summoned, reader.generation), (True, ["jobs"], 6))

    async def test_answers_to_what_came_by_a_lost_flow_are_not_sent(self) -> None:
        held: list[Any] = []
        client = self.client(settings=FAST)

        def hold(delivery: Delivery) -> Any:
            held.append((delivery, result := Deferred[None]()))
            return result

        reader = await client.reader("queue", ["jobs"], hold, confirm="full", on_event=self.told)
        await reader.summon("jobs")
        self.broker.give("jobs")
        await self.until(lambda: held)
        await self.broker.restart()
        await self.back()
        self.broker.give("jobs")
        await self.until(lambda: len(held) == 2)
        for delivery, result in held:
            delivery.reject(recycle=True)
            result.callback(None)
        await self.until(lambda: self.broker.of(data_messages.Reject) or self.broker.of(data_messages.Confirm))
        await reader.dismiss("jobs")
        self.assertEqual(self.broker.of(data_messages.Confirm), [])
        self.assertEqual(self.broker.of(data_messages.Reject), [data_messages.Reject(1, False, True)])
        self.assertEqual(reader.busy, 0)

    async def test_what_is_wanted_while_there_is_no_flow_is_summoned_when_there_is(self) -> None:
        reader = await self.reader("a", "b", "c")
        await reader.dismiss("c")
        self.broker.stop()
        await self.until(lambda: not reader.up)
        await reader.dismiss("a")
        summoned = reader.summon("c")
        self.assertFalse(summoned.called)
        self.broker.commands.clear()
        await self.broker.start()
        await summoned
        self.assertEqual([command.resource for command in self.broker.of(Summon)], ["b", "c"])

    async def test_what_is_wanted_while_the_flow_comes_back(self) -> None:
        reader = await self.reader("a", "b")
        await reader.dismiss("b")
        summoned: list[Any] = []

        def on_summon(identity: bytes, command: Summon) -> Any:
            if not summoned:
                summoned.append(reader.summon("b"))
            return ...

        self.broker.answers["Summon"] = on_summon
        self.broker.leased.clear()
        await self.back()
        await summoned[0]
        self.assertEqual([command.resource for command in self.broker.of(Summon)], ["a", "b"])

    async def test_a_summon_without_an_answer_is_said_again_by_the_next_flow(self) -> None:
        reader = await self.reader("a", "b", settings=attrs.evolve(FAST, timeout=0.2))
        await reader.dismiss("b")
        ignored: list[Any] = []

        def ignore(identity: bytes, command: Summon) -> Any:
            if not ignored:
                ignored.append(command)
                return None
            return ...

        self.broker.answers["Summon"] = ignore
        await reader.summon("b")
        self.assertEqual(self.events[0], ("lost", "no response to a command in 0.2 s"))
        self.assertEqual([command.resource for command in self.broker.of(Summon)], ["b", "a", "b"])

    async def test_a_flow_that_is_lost_while_its_summons_are_pending_was_not_restored(self) -> None:
        await self.reader("a", "b")
        forgotten: list[Any] = []

        def forget(identity: bytes, command: Summon) -> Any:
            if forgotten:
                return ...
            forgotten.append(command)
            return self.broker.say(identity, data_messages.response(command.sequence, b"403"))

        self.broker.answers["Summon"] = forget
        self.broker.leased.clear()
        await self.back()
        self.assertEqual([event for event, _ in self.events], ["lost", "back"])

    async def test_what_cannot_be_summoned_any_more_ends_the_flow(self) -> None:
        reader = await self.reader()
        self.broker.answers["Summon"] = lambda identity, command: self.broker.say(
            identity, data_messages.response(command.sequence, b"400")
        )
        self.broker.leased.clear()
        with self.assertRaises(Refused):
            await reader.ended
        with self.assertRaises(Closed):
            await reader.summon("jobs")
        self.assertEqual(reader.up, False)

    async def test_when_nothing_can_be_summoned_any_more_that_is_said_once(self) -> None:
        reader = await self.reader("a", "b", "c")
        self.broker.answers["Summon"] = lambda identity, command: self.broker.say(
            identity, data_messages.response(command.sequence, b"400")
        )
        self.broker.leased.clear()
        with self.assertRaises(Refused):
            await reader.ended

    async def test_rights_that_were_taken_away_end_the_flow_a21(self) -> None:
        for answer, error in ((FORBIDDEN, Refused), (unauthorized("PLAIN"), AuthenticationFailed)):
            reader = await self.reader()
            self.broker.answers["Reader"] = lambda members, answer=answer: answer
            self.broker.leased.clear()
            with self.assertRaises(error):
                await reader.ended
            del self.broker.answers["Reader"]

    async def test_a_client_whose_password_counts_again_is_let_in_again_a21(self) -> None:
        self.broker.answers["Open"] = lambda members: unauthorized("PLAIN")
        self.broker.answers["Authorize"] = lambda members: READY
        client = self.client(Password("anna", "pencil"), settings=FAST)
        reader = await client.reader("queue", ["jobs"], self.deliveries.append, on_event=self.told)
        self.broker.requests.clear()
        self.broker.leased.clear()
        await self.back()
        self.assertEqual(self.broker.asked(), ["Open", "Authorize", "Profile", "Reader"])
        self.assertTrue(reader.up)

    async def test_flows_that_are_lost_together_open_once(self) -> None:
        client = self.client(settings=FAST)
        readers = [await client.reader("queue", ["jobs"], self.deliveries.append, on_event=self.told) for _ in range(8)]
        self.broker.requests.clear()
        await self.broker.restart()
        await self.back(8)
        self.assertTrue(all(reader.up for reader in readers))
        # one that noticed later than others were back by then may have doubted their session
        self.assertLess(self.broker.asked().count("Open"), 5)
        self.assertEqual(self.broker.asked().count("Reader"), 8)

    async def test_a_lease_that_is_refused_is_asked_for_again_after_a_pause(self) -> None:
        refused: list[Any] = []

        def refuse(identity: bytes, command: Lease) -> Any:
            if len(refused) < 3:
                refused.append(command)
                self.broker.say(identity, data_messages.response(command.sequence, b"403"))
                return None
            return ...

        self.broker.answers["Lease"] = refuse
        reader = await self.client().reader("queue", ["jobs"], self.deliveries.append, on_event=self.told)
        self.assertEqual((reader.up, len(refused), self.events), (True, 3, []))
        self.assertEqual(len({lease.lease for lease in refused}), 3)

    async def test_an_odd_answer_to_a_lease_is_a_refusal(self) -> None:
        odd: list[bytes] = [b"400", b"500"]

        def answer(identity: bytes, command: Lease) -> Any:
            if odd:
                self.broker.say(identity, data_messages.response(command.sequence, odd.pop()))
                return None
            return ...

        self.broker.answers["Lease"] = answer
        await self.client().reader("queue", ["jobs"], self.deliveries.append)
        self.assertEqual(len(self.broker.of(Lease)), 3)

    async def test_a_data_port_where_nobody_is(self) -> None:
        self.broker.more = {"endpoint": "nonsense"}
        flow = self.client(settings=attrs.evolve(FAST, timeout=0.1)).reader("queue", ["jobs"], self.deliveries.append)
        await self.until(lambda: self.broker.asked().count("Reader") == 2)
        self.broker.more = {"endpoint": "tcp://127.0.0.1:1"}
        await self.until(lambda: self.broker.asked().count("Reader") == 5)
        self.broker.more = {}
        await flow

    async def test_who_closes_a_flow_while_it_begins(self) -> None:
        self.broker.mute = True
        flow = self.client().reader("queue", ["jobs"], self.deliveries.append)
        await self.until(lambda: self.broker.requests)
        flow.cancel()
        with self.assertRaises(Closed):
            await flow

    async def test_who_closes_in_the_very_moment_that_it_hears_of_it(self) -> None:
        closed: list[str] = []

        def close(event: Any, why: str) -> None:
            closed.append(event.value)
            if event.value == wanted:
                reader.close()

        for wanted in ("lost", "back"):
            closed.clear()
            reader = await self.client(settings=FAST).reader("queue", ["jobs"], self.deliveries.append, on_event=close)
            self.broker.leased.clear()
            await reader.ended
            self.assertEqual(closed[-1], wanted)
        first = self.client(settings=FAST).reader("queue", ["jobs"], self.deliveries.append)
        first.addCallback(lambda reader: reader.close())
        await first

    async def test_an_application_that_fails_to_hear_does_no_harm(self) -> None:
        def fail(event: Any, why: str) -> None:
            self.told(event, why)
            raise RuntimeError(event)

        reader = await self.client(settings=FAST).reader("queue", ["jobs"], self.deliveries.append, on_event=fail)
        self.broker.leased.clear()
        await self.back()
        self.assertTrue(reader.up)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 2)


class Places(Flows):
    async def test_one_socket_for_both_flows_d12(self) -> None:
        self.broker.close()
        self.broker = ScriptedBroker(self.reactor, shared=True)
        self.addCleanup(self.broker.close)
        await self.reader()
        self.broker.give("jobs", b"work")
        await self.until(lambda: self.deliveries)
        writer = await self.client().writer("queue", ["jobs"], confirm="full")
        await writer.send(b"x")

    async def test_port_0_is_the_endpoint_itself(self) -> None:
        self.broker.close()
        self.broker = ScriptedBroker(self.reactor, shared=True)
        self.addCleanup(self.broker.close)
        self.broker.answers["Reader"] = lambda members: (
            self.broker.leases.update(x=("reader", members)) or (202, {"status": "", "port": 0, "lease": "x"})
        )
        await self.reader()

    def test_where_the_data_flow_is(self) -> None:
        for control, port, endpoint, there in (
            ("tcp://broker.example:5975", 5976, None, "tcp://broker.example:5976"),
            ("tcp://192.0.2.7:5975", 1, None, "tcp://192.0.2.7:1"),
            ("tcp://[2001:db8::7]:5975", 5976, None, "tcp://[2001:db8::7]:5976"),
            ("tcp://eth0:0;192.0.2.7:5975", 5976, None, "tcp://192.0.2.7:5976"),
            ("tcp://192.0.2.7:5975", 0, None, "tcp://192.0.2.7:5975"),
            ("ipc:///run/mtl", 0, None, "ipc:///run/mtl"),
            ("tcp://10.0.0.1:5975", 5976, "tcp://192.0.2.7:7", "tcp://192.0.2.7:7"),
        ):
            self.assertEqual(data_endpoint(control, port, endpoint), there)
        with self.assertRaises(Lost):
            data_endpoint("ipc:///run/mtl", 5976)


class Both(Flows):
    async def test_a_flow_in_both_directions_has_two_leases_and_one_socket_d08(self) -> None:
        reader, writer = await self.client(settings=FAST).both(
            "service", ["reply"], ["service/bank"], self.deliveries.append, write_confirm="full", on_event=self.told
        )
        await reader.summon("reply")
        await writer.send(b"x")
        self.broker.give("reply", b"y")
        await self.until(lambda: self.deliveries)
        self.assertEqual(len(set(self.broker.peers)), 1)
        self.assertEqual([lease.lease for lease in self.broker.of(Lease)], ["lease-1", "lease-2"])
        self.assertEqual(self.broker.asked(), ["Open", "Profile", "Reader", "Writer"])
        await self.broker.restart()
        await self.back()
        await writer.send(b"x")
        self.assertEqual((reader.summoned, reader.generation, writer.generation), (["reply"], 2, 2))
        writer.close()
        await reader.ended

    async def test_each_of_the_two_leases_may_be_refused(self) -> None:
        for turn in (1, 2):
            refused: list[Lease] = []

            def refuse(identity: bytes, command: Lease, turn: int = turn, refused: list[Lease] = refused) -> Any:
                refused.append(command)
                if len(refused) == turn:
                    self.broker.say(identity, data_messages.response(command.sequence, b"403"))
                    return None
                return ...

            self.broker.answers["Lease"] = refuse
            reader, _ = await self.client().both("service", ["reply"], ["service/bank"], self.deliveries.append)
            self.assertTrue(reader.up)
            self.assertEqual(len(refused), 4)

    async def test_two_places_for_one_flow_are_none(self) -> None:
        places: list[dict[str, Any]] = [{}, {"endpoint": "tcp://127.0.0.1:1"}]
        usual = self.broker._usual

        def answer(session: Any, name: str, members: dict[str, Any]) -> Any:
            self.broker.more = places.pop(0) if places and name.endswith("er") else {}
            return usual(session, name, members)

        self.broker._usual = answer  # type: ignore[method-assign]
        reader, _ = await self.client().both("service", ["reply"], ["service/bank"], self.deliveries.append)
        self.assertEqual((self.broker.asked().count("Reader"), reader.generation), (2, 1))
