"""The profile "topic" of MTL: subscribers of a Content, exchange with mc0, and retained values.

The file is longer than others: it has all tests of `broker.wires.mtl.profiles.topic_profile`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import pytest

from broker.core.errors import Reason, Refusal
from broker.core.last_values import LastValuesBounds
from broker.core.memory_budget import MemoryBudget, MemoryLimits, Share
from broker.core.model import Rights, Service
from broker.core.topics import Topics, TopicsBounds
from broker.wires.mc0.codec.mc0_messages import MAX_HEADERS
from broker.wires.mtl.codec import data_messages as wire
from broker.wires.mtl.codec import field_table
from broker.wires.mtl.profiles import topic_profile
from broker.wires.mtl.sessions.access_policy import ConfirmMode, Principal, Side
from tests.recording.logs import nothing_fails
from tests.wires.mc0.recording import Mc0Farm, Mc0Peer
from tests.wires.mtl.data_recording import MtlPeer
from tests.wires.mtl.profiles_recording import (
    OTHER,
    Got,
    Permits,
    ProfilesFarm,
    confirmed,
    dismiss,
    got,
    put,
    refused,
    rejected,
    summon,
)

BOUNDS = TopicsBounds()


class TopicFarm:
    """MTL and mc0 over the same topics."""

    def __init__(self, bounds: TopicsBounds = BOUNDS) -> None:
        self.mc0 = Mc0Farm(topics=bounds)
        self.mtl = ProfilesFarm(topics=self.mc0.topics)
        self.mtl.memory = self.mc0.memory

    def reader(self, *topics: str, principal: Principal | None = None) -> MtlPeer:
        """A reader that has summoned these topics."""
        peer = self.mtl.reader(*topics, profile=self.mtl.topic, principal=principal)
        for topic in topics:
            assert summon(peer, topic) == []
        return peer

    def writer(
        self, *topics: str, confirm: ConfirmMode = ConfirmMode.NONE, principal: Principal | None = None
    ) -> MtlPeer:
        return self.mtl.writer(*topics, profile=self.mtl.topic, confirm=confirm, principal=principal)

    def listener(self, *topics: str) -> Mc0Peer:
        """One on mc0 who is subscribed to these topics."""
        peer = self.mc0.peer("listener")
        assert peer.ask("SUB|ID|s||" + "|".join(topics)) == ["OK|ID|s"]
        return peer


@pytest.fixture
def bounded() -> Iterator[Callable[..., TopicFarm]]:
    """Makes a farm with these bounds."""
    with nothing_fails():
        yield TopicFarm


@pytest.fixture
def farm(bounded: Callable[..., TopicFarm]) -> TopicFarm:
    return bounded()


def bodies(peer: MtlPeer) -> list[bytes]:
    return [content.body for content in got(peer)]


# who gets what


def test_a_content_goes_to_all_who_have_summoned_its_topic_and_to_nobody_else(farm: TopicFarm) -> None:
    both, one, other = farm.reader("a", "b"), farm.reader("a"), farm.reader("b")
    writer = farm.writer()
    put(writer, 1, "a", b"first", type="x")
    put(writer, 2, "b", b"second")
    put(writer, 3, "c", b"third")
    first, second = Got("a", {"type": "x"}, b"first", 1), Got("b", {}, b"second", 2)
    assert got(both) == [first, second]
    assert got(one) == [first]
    assert got(other) == [second]
    assert writer.take() == []


def test_names_are_exact(farm: TopicFarm) -> None:
    reader, writer = farm.reader("a", "é"), farm.writer()
    for number, name in enumerate(("A", "a ", "aa", "é", "e\u0301"), 1):
        put(writer, number, name)
    assert [content.resource for content in got(reader)] == ["é"]


def test_readers_confirm_nothing(farm: TopicFarm) -> None:
    assert farm.mtl.topic.confirms == {
        Side.READER: (ConfirmMode.NONE,),
        Side.WRITER: (ConfirmMode.NONE, ConfirmMode.FULL),
    }
    reader, writer = farm.reader("a"), farm.writer()
    put(writer, 1, "a", b"x")
    reader.take()
    reader.say(*wire.confirm(1))
    reader.say(*wire.reject(1, recycle=True))
    assert reader.take() == []


def test_a_reader_that_is_too_slow_misses_contents_and_its_sequences_show_it(farm: TopicFarm) -> None:
    slow, fast, writer = farm.reader("a"), farm.reader("a"), farm.writer()
    slow.stop_reading(2)
    for number in range(1, 11):
        put(writer, number, "a", b"%d" % number)
    assert [content.sequence for content in got(slow)] == [1, 2]
    slow.read_on()
    farm.mtl.wait(0.2)
    put(writer, 11, "a", b"11")
    [content] = [each for each in slow.take() if isinstance(each, wire.Content)]
    assert (content.sequence, content.body) == (11, b"11")
    assert len(bodies(fast)) == 11


def test_readers_that_vanish_are_subscribed_to_nothing(farm: TopicFarm) -> None:
    readers = [farm.reader("a", "b") for _ in range(3)]
    assert farm.mc0.topics.subscriptions == 6
    for reader in readers:
        reader.drop()
    farm.mtl.wait(2)
    assert farm.mc0.topics.subscriptions == 0
    assert farm.mc0.topics.describe() == []


def test_who_finds_the_table_of_topics_full_is_ended(bounded: Callable[..., TopicFarm]) -> None:
    farm = bounded(TopicsBounds(subscriptions=1))
    reader = farm.reader("a")
    assert reader.ask(*wire.summon(7, "a")) == [wire.Response(7, b"400")]
    peer = farm.mtl.reader(profile=farm.mtl.topic)
    assert peer.ask(*wire.summon(7, "b")) == [wire.Response(7, b"200")]
    assert peer.ask(*wire.PING) == [wire.Response(0, b"403")]
    assert farm.mtl.ends() == {"full": 1}
    assert farm.mc0.topics.subscriptions == 1


# who is who


def test_the_same_properties_of_two_users_are_told_apart(farm: TopicFarm) -> None:
    reader = farm.reader("a")
    writers = [farm.writer(principal=farm.mtl.principal(user)) for user in ("ann", "bob", "")]
    for _ in range(2):
        for writer in writers:
            put(writer, 1, "a", b"", type="same")
    assert [content.says.get("user-id") for content in got(reader)] == ["ann", "bob", None] * 2


def test_rights_are_asked_for_and_the_brokers_own_topics_are_for_reading(farm: TopicFarm) -> None:
    check = farm.mtl.topic.check
    some = farm.mtl.user("ann", Permits(("topic:in.*",), ("topic:out",)))
    check(some, Side.READER, "in.x")
    check(some, Side.WRITER, "out")
    check(farm.mtl.principal(), Side.READER, "elkobroker.services")
    for principal, side, topic in (
        (some, Side.READER, "out"),
        (some, Side.WRITER, "in.x"),
        (farm.mtl.principal(), Side.WRITER, "elkobroker.services"),
    ):
        with pytest.raises(Refusal) as caught:
            check(principal, side, topic)
        assert caught.value.reason is Reason.FORBIDDEN


# mc0


def test_headers_of_mc0_come_back_to_mc0_as_they_were(farm: TopicFarm) -> None:
    reader, peer = farm.reader("a"), farm.mc0.peer("sender")
    headers = [b"X-TEXT", "é".encode(), b"X-BYTES", b"\xff\0\xfe", b"X-\xc3\xa9", b"1", b"x-small", b"2"]
    peer.send(b"", b"PUT", b"TOPIC", b"a", *headers, b"", b"body")
    [content] = got(reader)
    assert content.says == {"X-TEXT": "é", "X-BYTES": b"\xff\0\xfe", "X-é": "1", "x-small": "2"}
    listener = farm.listener("b")
    farm.writer().say(*wire.content(1, "b", field_table.encode(dict(content.says)), b"body"))
    [frames] = listener.take_frames()
    assert frames == [b"", b"MESSAGE", b"TOPIC", b"b", *headers, b"", b"body"]


def test_what_mc0_cannot_have_as_a_header_is_lost(farm: TopicFarm) -> None:
    listener, writer = farm.listener("a"), farm.writer()
    properties: dict[str, field_table.Value] = {
        "X-EMPTY": "",
        "X-NOTHING": None,
        "X-TRUE": True,
        "X-FLOAT": 1.5,
        "X-LIST": ["a"],
        "X-TABLE": {"X-A": "b"},
        "TOPIC": "other",
        "ID": "1",
        "X-NUMBER": -7,
        "X-BYTES": b"\0",
    }
    writer.say(*wire.content(1, "a", field_table.encode(properties), b""))
    assert listener.take_frames() == [
        [b"", b"MESSAGE", b"TOPIC", b"a", b"X-NUMBER", b"-7", b"X-BYTES", b"\0", b"", b""]
    ]


@pytest.mark.parametrize(("frames", "body"), [([], b""), ([b""], b""), ([b"a", b"", b"b"], b"ab"), ([b"x"], b"x")])
def test_all_frames_of_a_body_become_one(farm: TopicFarm, frames: Sequence[bytes], body: bytes) -> None:
    reader = farm.reader("a")
    farm.mc0.peer("sender").send(b"", b"PUT", b"TOPIC", b"a", b"", *frames)
    assert bodies(reader) == [body]


def test_headers_that_no_table_holds_are_lost_and_the_body_is_not(farm: TopicFarm) -> None:
    reader, peer = farm.reader("a"), farm.mc0.peer("sender")
    many = [part for number in range(999) for part in (b"X-%d" % number, b"v" * 60)]
    for headers in ([b"X-LONG", b"v" * (field_table.MAX_TABLE + 1)], many, [b"X-" + b"n" * field_table.MAX_KEY, b"1"]):
        peer.send(b"", b"PUT", b"TOPIC", b"a", *headers, b"", b"body")
        assert got(reader) == [Got("a", {}, b"body", 1)]


def test_mc0_is_sent_no_more_headers_than_it_takes(farm: TopicFarm) -> None:
    listener, writer = farm.listener("a"), farm.writer()
    put(writer, 1, "a", b"body", **{f"X-{number}": number for number in range(MAX_HEADERS + 100)})
    [frames] = listener.take_frames()
    assert len(frames) == 4 + 2 * MAX_HEADERS + 2


def test_topics_that_mtl_cannot_name_stay_among_mc0(farm: TopicFarm) -> None:
    for name in (b"\xff", b"with\nnewline", b"n" * 256):
        listener = farm.mc0.peer(name[:1])
        listener.send(b"", b"SUB", b"", name)
        farm.mc0.peer("sender").send(b"", b"PUT", b"TOPIC", name, b"", b"body")
        assert listener.take_frames() == [[b"", b"MESSAGE", b"TOPIC", name, b"", b"body"]]


def test_the_farms_changes_can_be_read_as_topics_of_the_shared_host(farm: TopicFarm) -> None:
    reader = farm.reader("elkobroker.services")
    elsewhere = farm.reader("elkobroker.services", principal=farm.mtl.principal(host=OTHER))
    registry = farm.mc0.registry
    registry.offer([Service("bank", "h:1", registry.join("p", "test", "192.0.2.1"))], Rights())
    [content] = got(reader)
    assert content.json["service"] == "bank"
    assert got(elsewhere) == []


class Echo:
    """An outlet that publishes while it delivers."""

    def __init__(self, topics: Topics) -> None:
        self.topics = topics
        topics.subscribe(b"a", self, "echo")

    def deliver(
        self, subscribers: Collection[str], topic: bytes, headers: Sequence[object], body: Sequence[object]
    ) -> None:
        self.topics.publish(b"a" if body[0] == b"1" else b"b", (), (b"echo of " + body[0],))  # type: ignore[operator]


def test_what_is_published_in_the_middle_of_a_delivery_comes_after_it(farm: TopicFarm) -> None:
    Echo(farm.mc0.topics)  # subscribed first, and so told first
    reader, writer = farm.reader("a", "b"), farm.writer(confirm=ConfirmMode.FULL)
    put(writer, 1, "a", b"1")
    assert bodies(reader) == [b"1", b"echo of 1", b"echo of echo of 1"]
    assert writer.take() == confirmed(1)


# last values


def test_a_last_value_is_sent_first_to_later_readers(farm: TopicFarm) -> None:
    writer = farm.writer(principal=farm.mtl.principal("ann"))
    put(writer, 1, "a", b"old", retain=True, type="x")
    put(writer, 2, "a", b"new", retain=True, type="x")
    put(writer, 3, "a", b"passing")
    reader = farm.mtl.reader(profile=farm.mtl.topic)
    says = {"retain": True, "type": "x", "user-id": "ann", "retained": True}
    assert summon(reader, "a") == [Got("a", says, b"new", 1)]
    put(writer, 4, "a", b"live", retain=True)
    [content] = got(reader)
    assert "retained" not in content.says
    assert farm.mtl.counted("mtl_topics.retained") == 1


@pytest.mark.parametrize("retain", [False, "yes", 1, None])
def test_only_a_true_boolean_keeps_a_value(farm: TopicFarm, retain: field_table.Value) -> None:
    writer = farm.writer()
    put(writer, 1, "a", b"x", retain=retain)
    assert summon(farm.mtl.reader(profile=farm.mtl.topic), "a") == []
    put(writer, 2, "a", b"kept", retain=True)
    put(writer, 3, "a", b"x", retain=retain)
    [content] = summon(farm.mtl.reader(profile=farm.mtl.topic), "a")
    assert content.body == b"kept"


def test_an_empty_body_takes_the_last_value_away(farm: TopicFarm) -> None:
    reader, writer = farm.reader("a"), farm.writer()
    put(writer, 1, "a", b"kept", retain=True)
    put(writer, 2, "a", b"")
    assert farm.mtl.counted("mtl_topics.retained") == 1
    put(writer, 3, "a", b"", retain=True)
    assert bodies(reader) == [b"kept", b"", b""]
    assert summon(farm.mtl.reader(profile=farm.mtl.topic), "a") == []
    assert farm.mtl.counted("mtl_topics.retained") == 0
    assert farm.mtl.counted("mtl_topics.retained-bytes") == 0


def test_the_last_value_of_a_topic_goes_to_later_subscribers_of_each_wire(farm: TopicFarm) -> None:
    writer = farm.writer()
    put(writer, 1, "a", b"kept", retain=True, **{"X-Unit": "m"})
    listener = farm.mc0.peer("later")
    assert listener.ask("SUB|ID|s||a|b") == ["OK|ID|s", "MESSAGE|TOPIC|a|X-Unit|m||kept"]
    assert listener.ask("SUB|ID|t||a") == ["OK|ID|t"]  # it is subscribed already


def test_a_last_value_cache_keeps_the_newest_message_of_every_topic(farm: TopicFarm) -> None:
    farm.mc0.topics.last_values.every = True
    farm.mc0.peer("publisher").say("PUT|TOPIC|a|X-Unit|m||one|two")
    farm.mc0.topics.publish(b"elkobroker.services", (), (b"the broker's own",))
    [content] = summon(farm.mtl.reader(profile=farm.mtl.topic), "a")
    assert (content.body, content.says) == (b"onetwo", {"X-Unit": "m", "retained": True})
    assert farm.mc0.peer("later").ask("SUB|ID|s||a|elkobroker.services") == [
        "OK|ID|s",
        "MESSAGE|TOPIC|a|X-Unit|m||one|two",
    ]
    put(farm.writer(), 1, "a", b"newer")
    [content] = summon(farm.mtl.reader(profile=farm.mtl.topic), "a")
    assert (content.body, content.says) == (b"newer", {"retained": True})


def test_a_cached_value_gives_way_to_others_and_a_retained_one_does_not(bounded: Callable[..., TopicFarm]) -> None:
    farm = bounded(TopicsBounds(last=LastValuesBounds(values=2, bytes=10_000)))
    topics, writer = farm.mc0.topics, farm.writer(confirm=ConfirmMode.FULL)
    topics.last_values.every = True
    put(writer, 1, "retained", b"x", retain=True)
    for topic in (b"a", b"b"):
        topics.publish(topic, (), (b"x",))
    assert [topics.last(topic) is not None for topic in (b"retained", b"a", b"b")] == [True, False, True]
    put(writer, 2, "c", b"y", retain=True)
    assert [topics.last(topic) is not None for topic in (b"retained", b"b", b"c")] == [True, False, True]
    topics.publish(b"c", (), (b"x" * 20_000,))
    assert topics.last(b"c") is None  # an outdated value is worse than none
    assert farm.mtl.counted("mtl_topics.evicted") == 3
    assert writer.take() == confirmed(1, 2)


def test_a_second_summon_brings_the_last_value_again(farm: TopicFarm) -> None:
    reader, writer = farm.reader("a"), farm.writer()
    put(writer, 1, "a", b"kept", retain=True)
    reader.take()
    dismiss(reader, "a")
    assert [content.body for content in summon(reader, "a")] == [b"kept"]


def test_what_cannot_be_kept_is_refused_for_now_and_sent_to_nobody(
    bounded: Callable[..., TopicFarm],
) -> None:
    farm = bounded(TopicsBounds(last=LastValuesBounds(values=2)))
    reader, writer = farm.reader("c"), farm.writer(confirm=ConfirmMode.FULL)
    for number, topic in enumerate("abc", 1):
        put(writer, number, topic, b"x", retain=True)
    assert writer.take() == [*confirmed(1, 2), *rejected(3, recycle=True)]
    assert got(reader) == []
    assert farm.mtl.counted("mtl_topics.not-retained") == 1
    put(writer, 4, "a", b"y", retain=True)
    put(writer, 5, "c", b"not to be kept")
    put(writer, 6, "b", b"", retain=True)
    put(writer, 7, "c", b"z", retain=True)
    assert writer.take() == confirmed(4, 5, 6, 7)
    unconfirmed = farm.writer()
    put(unconfirmed, 1, "d", b"x", retain=True)
    assert unconfirmed.take() == []


def test_the_bytes_of_last_values_are_bounded(bounded: Callable[..., TopicFarm]) -> None:
    farm = bounded(TopicsBounds(last=LastValuesBounds(bytes=10_000)))
    writer = farm.writer(confirm=ConfirmMode.FULL)
    put(writer, 1, "a", b"x" * 6_000, retain=True)
    put(writer, 2, "b", b"x" * 6_000, retain=True)
    put(writer, 3, "a", b"x" * 8_800, retain=True)
    assert writer.take() == [*confirmed(1), *rejected(2, recycle=True), *confirmed(3)]
    assert 9_800 < farm.mtl.counted("mtl_topics.retained-bytes") <= 10_000
    put(writer, 4, "a", b"x" * 9_000, retain=True)
    assert writer.take() == rejected(4, recycle=True)
    [content] = summon(farm.mtl.reader(profile=farm.mtl.topic), "a")
    assert content.body == b"x" * 8_800


def test_a_stranger_has_last_values_up_to_the_limit_of_its_address(bounded: Callable[..., TopicFarm]) -> None:
    farm = bounded()
    farm.mtl.memory.limits = MemoryLimits(address=2 * 2_600)
    stranger, ann = farm.writer(confirm=ConfirmMode.FULL), farm.writer(principal=farm.mtl.principal("ann"))
    put(ann, 1, "of ann", b"x" * 5_000, retain=True)
    put(stranger, 1, "a", b"x" * 1_000, retain=True)
    put(stranger, 2, "b", b"x" * 1_000, retain=True)
    put(stranger, 3, "a", b"x" * 1_200, retain=True)
    assert stranger.take() == [*confirmed(1), *rejected(2, recycle=True), *confirmed(3)]
    put(ann, 2, "a", b"in its place", retain=True)
    assert farm.mtl.memory.held == 0
    put(stranger, 4, "b", b"x" * 1_000, retain=True)
    put(stranger, 5, "b", b"", retain=True)
    assert stranger.take() == confirmed(4, 5)
    assert farm.mtl.memory.held == 0


class SlowReader:
    """An outlet whose one subscriber does not read: what it is sent waits in the memory of its address."""

    host, trusted = "192.0.2.7", False

    def __init__(self, memory: MemoryBudget) -> None:
        self.memory = memory
        self.held = 0

    def deliver(
        self, subscribers: Collection[str], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        self.held += 12_000
        self.memory.hold(self, Share.OUTPUT, self.held)

    def evict(self, refusal: Refusal) -> None:
        raise AssertionError("there is room for it")

    def abort(self) -> None:
        """There is nothing to close."""


def test_a_retained_value_whose_fan_out_takes_the_memory_is_kept_all_the_same(farm: TopicFarm) -> None:
    writer = farm.writer(confirm=ConfirmMode.FULL)
    put(writer, 1, "a", b"former", retain=True)
    farm.mc0.topics.subscribe(b"a", SlowReader(farm.mtl.memory), "slow")
    farm.mtl.memory.limits = MemoryLimits(address=20_000)
    put(writer, 2, "a", b"x" * 8_000, retain=True)
    assert writer.take() == confirmed(1, 2)
    [content] = summon(farm.mtl.reader(profile=farm.mtl.topic), "a")
    assert content.body == b"x" * 8_000
    put(writer, 3, "a", b"x" * 9_000, retain=True)
    assert writer.take() == rejected(3, recycle=True)


def test_a_last_value_that_finds_no_room_is_sent_when_there_is_some(farm: TopicFarm) -> None:
    writer, reader = farm.writer(), farm.mtl.reader(profile=farm.mtl.topic)
    for number, topic in enumerate("abc", 1):
        put(writer, number, topic, b"kept", retain=True)
    reader.stop_reading(2)
    for number, topic in enumerate("abc", 1):
        reader.say(*wire.summon(number, topic))
    assert [type(each) for each in reader.take()] == [wire.Response, wire.Content]
    put(writer, 4, "b", b"missed")
    put(writer, 5, "c", b"newer", retain=True)
    reader.read_on()
    farm.mtl.wait(0.3)
    taken = [each for each in reader.take() if type(each) is not wire.Ping]
    assert taken[:2] == [wire.Response(2, wire.OK), wire.Response(3, wire.OK)]
    assert [(each.resource, each.body) for each in map(as_content, taken[2:])] == [("b", b"kept"), ("c", b"newer")]
    put(writer, 6, "b", b"live")
    assert [content.body for content in got(reader)] == [b"live"]


def as_content(command: wire.Command) -> wire.Content:
    assert isinstance(command, wire.Content)
    return command


def test_nothing_of_a_topic_comes_before_the_last_value_that_is_owed(farm: TopicFarm) -> None:
    writer, reader = farm.writer(), farm.mtl.reader(profile=farm.mtl.topic)
    put(writer, 1, "a", b"kept", retain=True)
    reader.stop_reading(1)
    assert summon(reader, "a") == []
    reader.read_on()  # and nobody has noticed yet
    put(writer, 2, "a", b"live")
    assert bodies(reader) == [b"kept", b"live"]
    farm.mtl.wait(0.3)
    assert [each for each in reader.take() if type(each) is wire.Content] == []


def test_a_last_value_that_was_taken_away_or_dismissed_is_not_owed(farm: TopicFarm) -> None:
    writer, reader = farm.writer(), farm.mtl.reader(profile=farm.mtl.topic)
    for number, topic in enumerate("ab", 1):
        put(writer, number, topic, b"kept", retain=True)
    reader.stop_reading(0)
    for number, topic in enumerate("ab", 1):
        reader.say(*wire.summon(number, topic))
    reader.say(*wire.dismiss(3, "a"))
    put(writer, 3, "b", b"", retain=True)
    reader.read_on()
    farm.mtl.wait(0.3)
    assert [each for each in reader.take() if type(each) is wire.Content] == []
    put(writer, 4, "b", b"live")
    assert bodies(reader) == [b"live"]


def test_who_is_gone_is_owed_nothing(farm: TopicFarm) -> None:
    writer, reader = farm.writer(), farm.mtl.reader(profile=farm.mtl.topic)
    put(writer, 1, "a", b"kept", retain=True)
    reader.stop_reading(0)
    reader.say(*wire.summon(1, "a"))
    reader.drop()
    farm.mtl.wait(2)
    assert len(farm.mtl.data) == 1
    assert farm.mtl.topic.owed == 0
    put(writer, 2, "a", b"live")
    assert farm.mtl.counted("mtl_contents.delivered") == 0


# bounds


def test_the_memory_of_properties_is_bounded(farm: TopicFarm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_profile, "MAX_KNOWN", 3)
    reader, writer = farm.reader("a"), farm.writer()
    for number in range(20):
        put(writer, number, "a", b"", type=str(number % 7), long="x" * (number % 2) * 600)
    assert [content.says["type"] for content in got(reader)] == [str(number % 7) for number in range(20)]
    assert 0 < farm.mtl.topic.known <= 3


def test_a_long_body_is_not_copied_on_its_way(farm: TopicFarm) -> None:
    passed: list[bytes] = []
    topics = farm.mc0.topics

    class Witness:
        def deliver(
            self, subscribers: Collection[str], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
        ) -> None:
            passed.extend(body)

    topics.subscribe(b"a", Witness(), "witness")
    body = b"x" * 100_000
    farm.writer().say(wire.content_header(1, wire.make_tail("a")), body)
    assert passed == [body]
    assert passed[0] is body


def test_a_content_for_the_brokers_own_topic_is_refused(farm: TopicFarm) -> None:
    writer, confirming = farm.writer(), farm.writer(confirm=ConfirmMode.FULL)
    put(writer, 1, "elkobroker.services", b"x")
    put(confirming, 1, "elkobroker.services", b"x")
    assert (writer.take(), confirming.take()) == (refused(1), rejected(1))
