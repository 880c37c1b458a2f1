"""The data flow of MTL: heartbeats, clients that are thought gone, clients that read too slowly, and what is left.

Tests are named after the rows of tests/contract/test_mtl_conformance.py.

The file is longer than others: it has all tests of `broker.wires.mtl.sessions.data_clients`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest
from twisted.logger import capturedLogs

from broker.core.liveness import SLACK, TICK
from broker.net.peer_interfaces import Sent
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec.data_messages import Ping, Pong, Response
from broker.wires.mtl.mtl_settings import Mtl
from broker.wires.mtl.profiles.topic_profile import RESOURCE
from broker.wires.mtl.sessions import data_clients
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Side
from broker.wires.mtl.sessions.data_flow import PINGS_TOGETHER
from broker.wires.mtl.sessions.data_leases import DEAD_AFTER
from tests.recording.logs import nothing_fails
from tests.wires.mtl.data_recording import REPLIES, Keeping, MtlFarm, MtlPeer

BEAT = Mtl().heartbeat
PATIENCE = BEAT * DEAD_AFTER
AROUND = BEAT / PINGS_TOGETHER + 2 * TICK + SLACK
TAIL = wire.make_tail("a")


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    with nothing_fails() as warnings:
        yield warnings


@pytest.fixture
def farm(warnings: list[str]) -> MtlFarm:
    return MtlFarm()


def lasts(farm: MtlFarm, peer: MtlPeer, most: float = 100.0) -> float:
    """The seconds until the flows of that peer end."""
    start = farm.clock.seconds()
    while peer.client is not None:
        farm.clock.advance(TICK)
        assert farm.clock.seconds() < start + most
    return farm.clock.seconds() - start


def wait_for(farm: MtlFarm, peer: MtlPeer, command: wire.Command, most: float = 100.0) -> float:
    """The seconds until that message comes, with no other before it."""
    start = farm.clock.seconds()
    while not (taken := peer.take()):
        farm.clock.advance(TICK)
        assert farm.clock.seconds() < start + most
    assert taken == [command]
    return farm.clock.seconds() - start


# heartbeats


def test_H06_a_silent_client_is_sent_a_ping_after_a_heartbeat(farm: MtlFarm) -> None:
    for begin in (farm.reader, farm.writer):
        peer = begin()
        for _ in range(3):
            assert wait_for(farm, peer, Ping()) == pytest.approx(BEAT, abs=AROUND)
            peer.say(*wire.PONG)


def test_H06_how_long_a_heartbeat_is_can_be_set() -> None:
    with nothing_fails():
        farm = MtlFarm(Mtl(heartbeat=0.5))
        peer = farm.reader()
        assert wait_for(farm, peer, Ping()) == pytest.approx(0.5, abs=AROUND)
        farm.data.use(Mtl(heartbeat=2.0))
        peer.say(*wire.PONG)
        farm.wait(0.6)
        assert wait_for(farm, peer, Ping()) == pytest.approx(1.4, abs=AROUND)


@pytest.mark.parametrize("silent", [0.0, 10.0])
def test_H06_a_shorter_heartbeat_holds_for_present_clients_and_ends_no_silent_one(silent: float) -> None:
    with nothing_fails():
        farm = MtlFarm(Mtl(heartbeat=20.0))
        answering, dead = farm.reader(), farm.reader()
        farm.wait(silent)
        farm.data.use(Mtl(heartbeat=1.0))
        for _ in range(3):
            assert wait_for(farm, answering, Ping()) == pytest.approx(1.0, abs=AROUND)
            assert farm.ends() == {}
            answering.say(*wire.PONG)
        farm.wait(1.0)
        assert farm.ends() == {"dead": 1}
        assert dead.client is None
        assert answering.client is not None


def test_H06_a_client_that_speaks_is_sent_a_ping_if_it_is_sent_nothing_else(farm: MtlFarm) -> None:
    writer = farm.writer()
    pings = 0
    for number in range(100):
        writer.put(number)
        farm.wait(0.5)
        pings += len(writer.take())
    assert pings in (9, 10)


def test_H06_a_client_that_is_sent_contents_and_answers_nothing_is_sent_a_ping_each_heartbeat(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    got: Counter[type] = Counter()
    for number in range(28):
        writer.put(number)
        farm.wait(0.5)
        got.update(type(command) for command in reader.take())
    assert got == {wire.Content: 28, Ping: 2}


@pytest.mark.parametrize("one_by_one", [False, True])
def test_H06_a_client_that_speaks_and_is_sent_contents_is_sent_no_ping(farm: MtlFarm, one_by_one: bool) -> None:
    farm.keeping.one_by_one = one_by_one
    reader = keeper(farm)
    for _ in range(40):
        farm.keeping.give("a", b"x")
        farm.wait(0.5)
        reader.say(*wire.PONG)
    assert {type(command) for command in reader.take()} == {wire.Content}


def test_H06_pings_of_many_flows_go_out_together(farm: MtlFarm) -> None:
    peers = []
    for _ in range(64):
        peers.append(farm.writer())
        farm.clock.advance(BEAT / 2 / 64)
    moments = 0
    for _ in range(round(BEAT / TICK)):
        farm.clock.advance(TICK)
        taken = [peer.take() for peer in peers]
        moments += any(taken)
    assert moments <= PINGS_TOGETHER / 2 + 2


def test_H07_a_client_that_sends_no_frame_for_three_heartbeats_is_over(farm: MtlFarm) -> None:
    peer = farm.reader()
    assert lasts(farm, peer) == pytest.approx(PATIENCE, abs=AROUND)
    assert farm.ends() == {"dead": 1}
    peer.take()
    assert peer.ask(*wire.PING) == [Response(0, b"403")]


def test_H07_time_in_which_the_broker_stood_still_does_not_count(farm: MtlFarm) -> None:
    peer = farm.reader()
    for _ in range(10):
        farm.clock.advance(PATIENCE)
    assert peer.client is not None
    assert lasts(farm, peer) > PATIENCE / 2


@pytest.mark.parametrize("frames", [wire.PONG, wire.PING, (b"", b""), (b"\xff", b""), wire.confirm(1), (b"x",)])
def test_H08_any_frame_keeps_a_client(farm: MtlFarm, frames: tuple[bytes, ...]) -> None:
    peer = farm.reader()
    for _ in range(10):
        farm.wait(PATIENCE - 0.5)
        peer.say(*frames)
    assert peer.client is not None
    assert lasts(farm, peer) > PATIENCE / 2


def test_a_frame_in_time_is_in_time(farm: MtlFarm) -> None:
    peer = farm.reader()
    for _ in range(100):
        farm.clock.pump([TICK] * round(PATIENCE / TICK))
        peer.say(*wire.PONG)
    assert peer.client is not None


# what cannot be sent


def keeper(farm: MtlFarm, **lease: Any) -> MtlPeer:
    """A reader of the profile that takes any resource. It has summoned one."""
    peer = farm.reader("a", profile=farm.keeping, **lease)
    peer.say(*wire.summon(2, "a"))
    peer.take()
    return peer


def test_T06_what_finds_no_room_is_dropped_and_counted_and_leaves_a_gap(farm: MtlFarm) -> None:
    reader, writer = farm.reader(), farm.writer()
    reader.stop_reading(after=3)
    for number in range(10):
        writer.put(number)
    reader.read_on()
    writer.put(10)
    taken = [each for each in reader.take() if isinstance(each, wire.Content)]
    assert [each.sequence for each in taken] == [1, 2, 3, 11]
    assert farm.counted("mtl_dropped.full") == 7
    assert farm.counted("mtl_contents.delivered") == 4
    assert farm.counted("mtl_contents.received") == 11


def test_T06_a_reader_that_does_not_read_costs_the_others_nothing(farm: MtlFarm, warnings: list[str]) -> None:
    slow, others, writer = farm.reader(), [farm.reader() for _ in range(3)], farm.writer()
    slow.stop_reading()
    for number in range(500):
        writer.put(number, b"%d" % number)
    for other in others:
        assert other.bodies() == [b"%d" % number for number in range(500)]
    assert [each for each in warnings if "not-reading" in each] == warnings
    assert len(warnings) == 1


def test_T06_one_that_reads_slowly_is_sent_whatever_finds_room(farm: MtlFarm) -> None:
    slow, writer = farm.reader(), farm.writer()
    slow.stop_reading()
    for number in range(1_000):
        slow.stop_reading(after=number % 2)
        writer.put(number, b"%d" % number)
        slow.stop_reading()
        farm.wait(0.01, step=0.01)
    assert [body for body in slow.bodies() if body] == [b"%d" % number for number in range(1, 1_000, 2)]
    assert farm.counted("mtl_dropped.full") == 500


def test_T06_what_finds_no_room_is_tried_once(farm: MtlFarm) -> None:
    slow, writer = [farm.reader() for _ in range(50)], farm.writer()
    for reader in slow:
        reader.stop_reading()
    for number in range(10):
        writer.put(number)
    farm.wait(2)
    assert farm.router.refused == farm.counted("mtl_dropped.full") == 500


def test_a_reader_that_missed_too_much_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_clients, "MAX_DROPS", 100)
    with nothing_fails():
        farm = MtlFarm()
        slow, other, writer = farm.reader(), farm.reader(), farm.writer()
        slow.stop_reading()
        for number in range(99):
            writer.put(number)
        farm.wait(1)
        slow.say(*wire.PONG)
        assert slow.client is not None
        writer.put(99)
        assert slow.client is not None, "nobody is ended in the middle of a delivery"
        farm.wait(0.1)
        assert slow.client is None
        assert farm.ends() == {"slow": 1}
        assert len(other.bodies()) == 100
        writer.put(100)
        slow.read_on()
        assert slow.ask(*wire.PING) == [Response(0, b"403")]


def test_what_it_missed_long_ago_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_clients, "MAX_DROPS", 100)
    monkeypatch.setattr(data_clients, "STUCK", 10.0)
    with nothing_fails():
        farm = MtlFarm()
        slow, writer = farm.reader(), farm.writer()
        for _ in range(5):
            slow.stop_reading()
            for number in range(60):
                writer.put(number)
            slow.read_on()
            for _ in range(12):
                farm.wait(1)
                slow.say(*wire.PONG)
                writer.say(*wire.PONG)
        assert slow.client is not None
        for _ in range(2):
            slow.stop_reading()
            for number in range(60):
                writer.put(number)
            slow.read_on()
            farm.wait(1)
        assert slow.client is None


def test_a_client_without_any_room_for_too_long_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_clients, "STUCK", 20.0)
    with nothing_fails():
        farm = MtlFarm()
        reader, writer = farm.reader(), farm.writer("a", profile=farm.keeping, confirm=ConfirmMode.FULL)
        other = farm.writer()
        for peer in (reader, writer):
            peer.stop_reading()
        other.put(1)
        writer.put(1, resource="a")
        other.drop()
        start = farm.clock.seconds()
        while reader.client is not None or writer.client is not None:
            for peer in (reader, writer):
                if peer.client is not None:
                    peer.say(*wire.PONG)
            farm.wait(0.5)
            assert farm.clock.seconds() < start + 30
        assert farm.clock.seconds() - start == pytest.approx(20 + BEAT, abs=1), "for the writer from its Ping on"
        assert farm.ends() == {"closed": 1, "stuck": 2}


@pytest.mark.parametrize("asked", [False, True])
def test_a_client_that_now_and_then_takes_a_message_stays(monkeypatch: pytest.MonkeyPatch, asked: bool) -> None:
    """Also where its queue is never half empty, so that no room is reported."""
    monkeypatch.setattr(data_clients, "STUCK", 20.0)
    monkeypatch.setattr(data_clients, "MAX_DROPS", 10**6)
    with nothing_fails():
        farm = MtlFarm()
        reader, writer = farm.reader(), farm.writer()
        taken = 0
        for number in range(30):
            reader.stop_reading()
            writer.put(number)
            farm.wait(2)
            reader.stop_reading(after=1)
            if not asked:
                writer.put(number)
            for peer in (reader, writer):
                peer.say(*wire.PONG)
            farm.wait(4)
            taken += len(reader.take())
            for peer in (reader, writer):
                peer.say(*wire.PONG)
        assert reader.client is not None
        assert taken >= 15
        reader.stop_reading()
        writer.put(100)
        for _ in range(21):
            farm.wait(1)
            for peer in (reader, writer):
                peer.say(*wire.PONG)
        assert farm.ends() == {"stuck": 1}


def test_the_time_without_room_counts_from_the_last_room_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_clients, "STUCK", 20.0)
    with nothing_fails():
        farm = MtlFarm()
        reader, writer = farm.reader(), farm.writer()
        for _ in range(2):
            reader.stop_reading()
            writer.put(1)
            for _ in range(19):
                farm.wait(1)
                reader.say(*wire.PONG)
                writer.say(*wire.PONG)
            assert farm.ends() == {}
            reader.read_on()
        reader.stop_reading()
        writer.put(1)
        for _ in range(21):
            farm.wait(1)
            reader.say(*wire.PONG)
            writer.say(*wire.PONG)
        assert farm.ends() == {"stuck": 1}


def test_a_profile_hears_when_there_is_room_again(farm: MtlFarm) -> None:
    farm.keeping.one_by_one = True
    peer = keeper(farm)
    reader = peer.reading
    peer.stop_reading(after=1)
    assert [reader.send(TAIL, b"x") for _ in range(3)] == [Sent.SENT, Sent.FULL, Sent.FULL]
    farm.wait(2)
    assert farm.router.refused == 2, "nothing is tried before there is room"
    assert ("room",) not in farm.keeping.calls
    peer.read_on()
    assert farm.keeping.calls.count(("room",)) == 1
    assert reader.send(TAIL, b"y") is Sent.SENT
    assert [(type(each), each.sequence) for each in peer.take() if isinstance(each, wire.Content)] == [
        (wire.Content, 1), (wire.Content, 4),
    ]  # fmt: skip
    peer.read_on()
    assert farm.keeping.calls.count(("room",)) == 1
    peer.stop_reading()
    assert reader.send(TAIL, b"z") is Sent.FULL
    peer.read_on()
    assert farm.keeping.calls.count(("room",)) == 2


def test_a_profile_hears_so_of_readers_of_a_fan_out_too(farm: MtlFarm) -> None:
    peer = keeper(farm)
    peer.stop_reading()
    farm.keeping.give("a", b"x")
    peer.read_on()
    assert farm.keeping.calls.count(("room",)) == 1


def test_room_is_not_reported_to_a_profile_that_was_refused_nothing(farm: MtlFarm) -> None:
    peer, stranger = keeper(farm), farm.peer()
    peer.stop_reading()
    farm.wait(BEAT + 1)  # in which a Ping is refused
    assert farm.router.refused == 1
    peer.read_on()
    farm.data.room(stranger.identity)
    farm.data.room(b"nobody")
    assert ("room",) not in farm.keeping.calls


def test_room_that_is_used_up_at_once_is_reported_again(farm: MtlFarm) -> None:
    class Filling(Keeping):
        def room(self, reader: Any) -> None:
            super().room(reader)
            while reader.send(TAIL, b"x") is Sent.SENT:
                pass

    profile = Filling(farm.data)
    peer = farm.reader("a", profile=profile)
    peer.stop_reading()
    peer.reading.send(TAIL, b"x")
    for times in (1, 2, 3):
        peer.read_on(room=5)
        assert len(peer.bodies()) == 5
        assert profile.calls.count(("room",)) == times


def test_a_profile_that_fails_when_there_is_room_harms_nobody_else() -> None:
    farm = MtlFarm()

    class Failing(Keeping):
        def room(self, reader: Any) -> None:
            raise ZeroDivisionError("as it is meant to")

    profile = Failing(farm.data)
    bad = farm.reader("a", profile=profile)
    good = keeper(farm)
    with capturedLogs() as events:
        for peer in (bad, good):
            peer.stop_reading()
            peer.reading.send(TAIL, b"x")
            peer.read_on()
    assert [event for event in events if "log_failure" in event]
    assert ("room",) in farm.keeping.calls


def test_answers_that_find_no_room_come_later_and_in_order(farm: MtlFarm) -> None:
    peer = keeper(farm)
    peer.stop_reading(after=1)
    for sequence in range(10, 20):
        peer.say(*wire.summon(sequence, "unknown"))
    peer.say(*wire.PING)
    farm.keeping.give("a", b"must not overtake")
    assert peer.reading.send(TAIL, b"nor this") is Sent.FULL
    peer.stop_reading(after=3)
    farm.keeping.give("a", b"nor this")
    peer.read_on()
    farm.keeping.give("a", b"after")
    *answers, content = peer.take()
    assert answers == [*[Response(sequence, b"400") for sequence in range(10, 20)], Pong()]
    assert isinstance(content, wire.Content)
    assert (content.body, content.sequence) == (b"after", 4)
    assert farm.counted("mtl_dropped.full") == 2
    assert farm.keeping.calls.count(("room",)) == 1


def test_a_client_that_leaves_too_many_answers_unread_is_over(farm: MtlFarm) -> None:
    peer = farm.writer()
    peer.stop_reading()
    for _ in range(REPLIES):
        peer.say(*wire.PING)
    farm.wait(1)
    assert peer.client is not None
    peer.say(*wire.PING)
    assert peer.client is not None, "nobody is ended in the middle of a delivery"
    farm.wait(1)
    assert farm.ends() == {"unread": 1}
    assert farm.counted("mtl_dropped.answer") == 1
    peer.read_on()
    peer.take()
    assert peer.ask(*wire.PING) == [Response(0, b"403")]


def test_a_peer_without_a_lease_for_which_there_is_no_room_is_not_remembered(farm: MtlFarm) -> None:
    peer = farm.peer()
    peer.stop_reading()
    for number in range(REPLIES + 10):
        peer.say(*wire.summon(number, RESOURCE))
    assert farm.counted("mtl_dropped.answer") == 10
    peer.read_on()
    assert peer.take() == [Response(number, b"403") for number in range(REPLIES)]
    assert len(farm.data) == len(farm.leases) == 0


# ends


def test_a_profile_can_end_a_flow(farm: MtlFarm) -> None:
    peer = keeper(farm)
    peer.lease(farm.lease(Side.WRITER))
    reader = peer.reading
    farm.data.end(reader, "finished")
    farm.data.end(reader, "finished")
    assert farm.keeping.calls[-1] == ("left", "reader")
    assert farm.ends() == {"finished": 2}, "the other flow of the client ends with it, so that a Ping tells"
    assert peer.ask(*wire.PING) == [Response(0, b"403")]
    assert len(farm.data_leases) == 0


def test_a_flow_that_is_over_is_sent_nothing(farm: MtlFarm) -> None:
    peer = keeper(farm)
    peer.lease(farm.lease(Side.WRITER, "a", profile=farm.keeping, confirm=ConfirmMode.FULL))
    reader, writer = peer.reading, peer.writing
    farm.data.end(reader, "finished")
    assert reader.send(TAIL, b"x") is Sent.GONE
    writer.confirm(1)
    writer.reject(2, recycle=True)
    farm.wait(1)
    assert peer.take() == []


def test_a_flow_may_be_ended_while_its_profile_hears_of_room(farm: MtlFarm) -> None:
    class Ending(Keeping):
        def room(self, reader: Any) -> None:
            self.flows.end(reader, "finished")

    peer = farm.reader("a", profile=Ending(farm.data))
    peer.stop_reading()
    peer.reading.send(TAIL, b"x")
    peer.read_on()
    assert farm.ends() == {"finished": 1}
    farm.wait(1)
    assert len(farm.leases) == 0


def test_a_profile_that_hears_of_room_may_end_another_that_had_none(farm: MtlFarm) -> None:
    class Ending(Keeping):
        def room(self, reader: Any) -> None:
            self.flows.end(other.reading, "finished")

    first, other = farm.reader("a", profile=Ending(farm.data)), keeper(farm)
    for peer in (first, other):
        peer.stop_reading()
        peer.reading.send(TAIL, b"x")
    for peer in (first, other):
        peer.read_on()
    assert farm.ends() == {"finished": 1}
    assert first.client is not None


def test_a_client_that_is_over_before_it_is_ended_for_another_reason_ends_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_clients, "MAX_DROPS", 1)
    with nothing_fails():
        farm = MtlFarm()
        for how in ("finished", "closed"):
            peer = keeper(farm)
            peer.stop_reading()
            farm.keeping.give("a", b"x")
            if how == "closed":
                peer.drop()
            else:
                farm.data.end(peer.reading, "finished")
            farm.wait(1)
        assert farm.ends() == {"finished": 1, "closed": 1}


def test_A21_who_loses_its_access_loses_its_flows(farm: MtlFarm) -> None:
    alice, bob = farm.principal("alice"), farm.principal("bob")
    first, second = keeper(farm, principal=alice), keeper(farm, principal=bob)
    farm.data_leases.revoke([alice])
    assert farm.keeping.calls[-1] == ("left", "reader")
    farm.keeping.give("a", b"secret")
    assert first.take() == []
    assert first.ask(*wire.PING) == [Response(0, b"403")]
    assert second.bodies() == [b"secret"]
    assert farm.ends() == {"revoked": 1}


def test_who_loses_its_access_with_others_is_sent_nothing_at_their_ends(farm: MtlFarm) -> None:
    class Hot(Keeping):
        """Gives what a reader leaves behind to the others."""

        def left(self, flow: Any) -> None:
            super().left(flow)
            self.give("a", b"left behind")

    farm.keeping = Hot(farm.data)
    farm.keeping.one_by_one = True
    alice, bob = farm.principal("alice"), farm.principal("bob")
    revoked = [keeper(farm, principal=principal) for principal in (alice, bob, alice)]
    other = keeper(farm, principal=farm.principal("carol"))
    farm.data_leases.revoke([alice, bob])
    assert [peer.take() for peer in revoked] == [[]] * 3
    assert other.bodies() == [b"left behind"] * 3
    assert farm.ends() == {"revoked": 3}


def test_a_flow_that_fails_to_end_does_not_keep_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    farm = MtlFarm()
    alice = farm.principal("alice")
    for _ in range(3):
        keeper(farm, principal=alice)
    monkeypatch.setattr(farm.data, "_end", Mock(side_effect=RuntimeError))
    with capturedLogs() as logged:
        farm.data_leases.revoke([alice])
    assert [event["log_failure"].type for event in logged] == [RuntimeError] * 3


def test_a_profile_that_fails_at_the_end_of_a_flow_keeps_nothing_alive() -> None:
    farm = MtlFarm()

    class Failing(Keeping):
        def left(self, flow: Any) -> None:
            raise ZeroDivisionError("as it is meant to")

    peer = farm.reader("a", profile=Failing(farm.data))
    peer.lease(farm.lease(Side.WRITER, "a", profile=farm.keeping))
    with capturedLogs() as events:
        peer.drop()
        farm.wait(1)
    assert [event for event in events if "log_failure" in event]
    assert farm.keeping.calls[-1] == ("left", "writer")
    assert len(farm.data) == 0


def test_when_all_are_over_nothing_is_left(farm: MtlFarm) -> None:
    peers = [keeper(farm) for _ in range(10)] + [farm.writer() for _ in range(10)]
    for number, peer in enumerate(peers):
        if number % 2:
            peer.stop_reading()
            peer.say(*wire.PING)
        if number % 3:
            peer.drop()
    farm.wait(PATIENCE + 1)
    assert len(farm.data) == 0
    assert len(farm.data_leases) == 0
    assert len(farm.leases) == 0
    assert farm.clock.getDelayedCalls() == []
    assert farm.data._outbound._full == {}
    kept = {name: value for name, value in vars(farm.data).items() if isinstance(value, dict) and value}
    assert set(kept) == {"_commands"}
