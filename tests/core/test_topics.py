"""Topics: recipients and their order, changes during a delivery, and cleanup.

The file is longer than others: it has all tests of `broker.core.topics`.
"""

from __future__ import annotations

import tracemalloc
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator, Sequence
from itertools import chain

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from twisted.logger import capturedLogs
from zope.interface.verify import verifyObject

from broker.core.errors import Reason, Refusal
from broker.core.interfaces import ITopics, Outlet
from broker.core.memory_budget import MemoryBudget, MemoryLimits
from broker.core.model import TopicInfo, is_own
from broker.core.topics import Topics, TopicsBounds


def nothing() -> None:
    pass


class Recorder:
    """Outlet that records its messages, and then runs an action."""

    def __init__(self, then: Callable[[], object] = nothing) -> None:
        self.then = then
        self.given: list[tuple[list[Hashable], bytes, Sequence[bytes], Sequence[bytes]]] = []
        self.collections: list[Collection[Hashable]] = []

    def deliver(
        self, subscribers: Collection[Hashable], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        self.given.append((list(subscribers), topic, headers, body))
        self.collections.append(subscribers)
        self.then()
        assert list(subscribers) == self.given[-1][0]

    @property
    def told(self) -> list[list[Hashable]]:
        return [subscribers for subscribers, _, _, _ in self.given]

    @property
    def bodies(self) -> list[object]:
        return [body[0] for _, _, _, body in self.given]


@pytest.fixture
def topics() -> Iterator[Topics]:
    """Topics in which nothing may raise: assertions in an outlet or an owner would only be logged."""
    with capturedLogs() as logs:
        yield Topics()
    assert [event["log_failure"] for event in logs if "log_failure" in event] == []


def put(topics: Topics, topic: bytes, text: bytes = b"") -> int:
    return topics.publish(topic, [b"TOPIC", topic], [text])


def test_topics_are_what_wires_are_promised(topics: Topics) -> None:
    assert verifyObject(ITopics, topics)


# recipients


def test_a_message_is_handed_over_once_for_all_subscribers_in_the_order_in_which_they_came(topics: Topics) -> None:
    outlet = Recorder()
    for name in "cab":
        topics.subscribe(b"t", outlet, name)
    headers, body = [b"TOPIC", b"t", b"X-A", b"1"], [b"one", b"two", b""]
    assert topics.publish(b"t", headers, body) == 3
    assert outlet.given == [(["c", "a", "b"], b"t", headers, body)]
    assert outlet.given[0][2] is headers
    assert outlet.given[0][3] is body


def test_messages_are_handed_over_in_the_order_in_which_they_are_published(topics: Topics) -> None:
    outlet = Recorder()
    topics.subscribe(b"t", outlet, "a")
    topics.subscribe(b"u", outlet, "a")
    for number in range(100):
        put(topics, b"tu"[number % 2 :][:1], b"%d" % number)
    assert outlet.bodies == [b"%d" % number for number in range(100)]


@pytest.mark.parametrize("other", [b"", b"T", b"t ", b"t\0", b"tt", b"*", b"t*", b"t.u"])
def test_a_topic_is_an_exact_string_of_bytes(topics: Topics, other: bytes) -> None:
    one, two = Recorder(), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(other, two, "b")
    assert put(topics, other) == 1
    assert (one.told, two.told) == ([], [["b"]])
    assert put(topics, b"t") == 1
    assert (one.told, two.told) == ([["a"]], [["b"]])


def test_every_outlet_is_called_once_with_its_own_subscribers(topics: Topics) -> None:
    one, two = Recorder(), Recorder()
    for outlet, name in ((one, "a"), (two, "a"), (one, "b")):
        topics.subscribe(b"t", outlet, name)
    assert put(topics, b"t") == 3
    assert (one.told, two.told) == ([["a", "b"]], [["a"]])


def test_subscribing_twice_is_the_same_as_once(topics: Topics) -> None:
    outlet = Recorder()
    for name in ("a", "b", "a"):
        topics.subscribe(b"t", outlet, name)
    assert topics.subscriptions == 2
    assert put(topics, b"t") == 2
    topics.unsubscribe(b"t", outlet, "a")
    assert put(topics, b"t") == 1
    assert outlet.told == [["a", "b"], ["b"]]


def test_unsubscribing_who_is_not_subscribed_is_harmless(topics: Topics) -> None:
    one, two = Recorder(), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.unsubscribe(b"t", one, "b")
    topics.unsubscribe(b"t", two, "a")
    topics.unsubscribe(b"u", one, "a")
    assert topics.subscriptions == 1
    assert put(topics, b"t") == 1
    topics.unsubscribe(b"t", one, "a")
    topics.unsubscribe(b"t", one, "a")
    assert topics.subscriptions == 0
    assert put(topics, b"t") == 0
    assert one.told == [["a"]]


def test_who_comes_again_comes_last(topics: Topics) -> None:
    outlet = Recorder()
    for name in "abc":
        topics.subscribe(b"t", outlet, name)
    topics.unsubscribe(b"t", outlet, "a")
    topics.subscribe(b"t", outlet, "a")
    put(topics, b"t")
    assert outlet.told == [["b", "c", "a"]]


def test_all_who_subscribe_to_a_topic_share_one_name(topics: Topics) -> None:
    outlet = Recorder()
    names = [topics.subscribe(b"to" + b"pic%d" % 1, outlet, number % 3) for number in range(4)]
    assert names[0] == b"topic1"
    assert all(name is names[0] for name in names)
    put(topics, b"topic%d" % 1)
    assert outlet.given[0][1] is names[0]


# cleanup


def test_messages_that_nobody_wants_leave_nothing_behind(topics: Topics) -> None:
    put(topics, b"t")
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        assert [topics.publish(b"topic %d" % number, [], []) for number in range(10_000)] == [0] * 10_000
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert topics.describe() == []
    assert after - before < 10_000, "not a byte for each"


def test_a_topic_ends_with_its_last_subscriber_and_begins_again_with_the_next(topics: Topics) -> None:
    one, two = Recorder(), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"t", two, "a")
    put(topics, b"t")
    topics.unsubscribe(b"t", one, "a")
    assert topics.describe() == [TopicInfo(b"t", 1, 1)]
    topics.unsubscribe(b"t", two, "a")
    assert topics.describe() == []
    topics.subscribe(b"t", two, "a")
    assert topics.describe() == [TopicInfo(b"t", 1, 0)]


def test_topics_are_described_in_order_of_their_names(topics: Topics) -> None:
    one, two = Recorder(), Recorder()
    for topic, outlet, name in ((b"b", one, "a"), (b"a", one, "a"), (b"\xff", one, "a"), (b"b", two, "a")):
        topics.subscribe(topic, outlet, name)
    for topic in (b"b", b"b", b"a", b"c"):
        put(topics, topic)
    assert topics.describe() == [TopicInfo(b"a", 1, 1), TopicInfo(b"b", 2, 2), TopicInfo(b"\xff", 1, 0)]
    assert topics.subscriptions == 4


# changes during a delivery


def test_what_is_published_while_delivering_is_delivered_after_the_present_message(topics: Topics) -> None:
    answers = deque([b"2", b"3"])

    def answer() -> None:
        if answers:
            assert put(topics, b"t", answers.popleft()) == 2, "as many as are subscribed"
            assert put(topics, b"u", b"u") == 1
            assert put(topics, b"nobody's") == 0

    one, two = Recorder(answer), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"t", two, "b")
    topics.subscribe(b"u", two, "c")
    assert put(topics, b"t", b"1") == 2
    assert one.bodies == [b"1", b"2", b"3"]
    assert two.bodies == [b"1", b"2", b"u", b"3", b"u"]


def test_who_leaves_while_another_outlet_delivers_is_not_told(topics: Topics) -> None:
    one = Recorder(lambda: topics.unsubscribe(b"t", two, "b"))
    two = Recorder()
    topics.subscribe(b"t", one, "a")
    for name in "abc":
        topics.subscribe(b"t", two, name)
    assert put(topics, b"t") == 3
    assert (one.told, two.told) == ([["a"]], [["a", "c"]])


def test_an_outlet_whose_last_subscriber_leaves_meanwhile_is_not_called(topics: Topics) -> None:
    one = Recorder(lambda: topics.unsubscribe(b"t", two, "b"))
    two, three = Recorder(), Recorder()
    for outlet in (one, two, three):
        topics.subscribe(b"t", outlet, "b")
    assert put(topics, b"t") == 2
    assert (one.told, two.told, three.told) == ([["b"]], [], [["b"]])


def test_a_topic_may_lose_everybody_while_it_is_delivered(topics: Topics) -> None:
    def leave() -> None:
        for outlet in (one, two):
            topics.unsubscribe(b"t", outlet, "a")

    one, two = Recorder(leave), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"t", two, "a")
    assert put(topics, b"t") == 1
    assert (one.told, two.told) == ([["a"]], [])
    assert (topics.describe(), topics.subscriptions) == ([], 0)
    assert put(topics, b"t") == 0


def test_who_comes_while_a_message_is_delivered_hears_from_the_next_one_on(topics: Topics) -> None:
    def add() -> None:
        for outlet in (one, two, three):
            topics.subscribe(b"t", outlet, "late")

    one, two, three = Recorder(add), Recorder(), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"t", two, "a")
    assert put(topics, b"t") == 2
    assert (one.told, two.told, three.told) == ([["a"]], [["a"]], [])
    assert put(topics, b"t") == 5
    assert (one.told[1], two.told[1], three.told) == (["a", "late"], ["a", "late"], [["late"]])


def test_a_message_published_while_delivering_goes_to_those_who_are_there_when_its_turn_comes(topics: Topics) -> None:
    def change() -> None:
        one.then = nothing
        put(topics, b"u")
        topics.unsubscribe(b"u", two, "a")
        topics.subscribe(b"u", two, "b")

    one, two = Recorder(change), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"u", two, "a")
    put(topics, b"t")
    assert two.told == [["b"]]


def test_the_subscribers_that_an_outlet_is_given_stay_as_they_are_while_it_delivers(topics: Topics) -> None:
    class Leaving:
        """Outlet that cannot reach every second subscriber, and unsubscribes it; a new one subscribes for each."""

        def deliver(
            self, subscribers: Collection[int], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
        ) -> None:
            for number in subscribers:
                told.append(number)
                if number % 2:
                    topics.unsubscribe(topic, self, number)
                    topics.subscribe(topic, self, number + 99)
            assert len(subscribers) == 100

    told: list[int] = []
    outlet = Leaving()
    for number in range(100):
        topics.subscribe(b"t", outlet, number)
    assert put(topics, b"t") == 100
    assert told == list(range(100))
    assert topics.subscriptions == 100
    told.clear()
    put(topics, b"t")
    assert told == [*range(0, 100, 2), *range(100, 200, 2)]


def test_nothing_is_copied_unless_something_changes_while_it_is_delivered(topics: Topics) -> None:
    outlet = Recorder()
    for name in "abc":
        topics.subscribe(b"t", outlet, name)
    put(topics, b"t")
    topics.unsubscribe(b"t", outlet, "b")
    put(topics, b"t")
    first, second = outlet.collections
    assert first is second

    def leave() -> None:
        for name in "ac":
            topics.unsubscribe(b"t", outlet, name)
            topics.subscribe(b"t", outlet, name)

    outlet.then = leave
    put(topics, b"t")
    outlet.then = nothing
    put(topics, b"t")
    put(topics, b"t")
    _, _, third, fourth, fifth = outlet.collections
    assert third is second
    assert fourth is not third
    assert fifth is fourth
    assert outlet.told[2:] == [["a", "c"]] * 3


def test_a_topic_counts_its_messages_over_changes_while_it_is_delivered(topics: Topics) -> None:
    outlet = Recorder(lambda: topics.subscribe(b"t", outlet, object()))
    topics.subscribe(b"t", outlet, "a")
    for _ in range(5):
        put(topics, b"t")
    assert topics.describe() == [TopicInfo(b"t", 6, 5)]


def test_an_outlet_that_fails_keeps_the_others_from_nothing() -> None:
    topics = Topics()

    def fail() -> None:
        put(topics, b"u", b"secret")
        raise ZeroDivisionError("as it is meant to")

    one, two = Recorder(fail), Recorder()
    topics.subscribe(b"t", one, "a")
    topics.subscribe(b"t", two, "a")
    topics.subscribe(b"u", two, "a")
    with capturedLogs() as logs:
        for number in range(2):
            assert put(topics, b"t", b"secret %d" % number) == 2
    assert one.bodies == [b"secret 0", b"secret 1"]
    assert two.bodies == [b"secret 0", b"secret", b"secret 1", b"secret"]
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError] * 2
    for event in logs:
        assert "secret" not in repr({key: value for key, value in event.items() if key != "log_failure"})


# the broker's own topics


@pytest.mark.parametrize("topic", [b"elkobroker.", b"elkobroker.services", b"elkobroker.\xff"])
def test_topics_that_begin_with_our_name_are_our_own(topic: bytes) -> None:
    assert is_own(topic)


@pytest.mark.parametrize("topic", [b"", b"elkobroker", b"Elkobroker.services", b" elkobroker.services", b"x"])
def test_all_others_are_not(topic: bytes) -> None:
    assert not is_own(topic)


def test_the_owner_hears_when_its_topic_is_wanted_first_and_when_no_longer(topics: Topics) -> None:
    heard: list[bool] = []
    one, two = Recorder(), Recorder()
    topics.own(b"elkobroker.load", heard.append)
    topics.subscribe(b"elkobroker.services", one, "a")
    assert (heard, len(topics.describe())) == ([], 1)
    topics.subscribe(b"elkobroker.load", one, "a")
    assert heard == [True]
    topics.subscribe(b"elkobroker.load", one, "a")
    topics.subscribe(b"elkobroker.load", two, "b")
    topics.unsubscribe(b"elkobroker.load", one, "a")
    assert heard == [True]
    topics.unsubscribe(b"elkobroker.load", two, "b")
    assert heard == [True, False]
    topics.unsubscribe(b"elkobroker.load", two, "b")
    topics.subscribe(b"elkobroker.load", two, "b")
    assert heard == [True, False, True]


def test_a_topic_of_our_own_that_nobody_wants_is_not_described(topics: Topics) -> None:
    topics.own(b"elkobroker.load", lambda wanted: None)
    assert topics.describe() == []
    assert put(topics, b"elkobroker.load") == 0


def test_an_owner_that_comes_late_hears_at_once_that_its_topic_is_wanted(topics: Topics) -> None:
    outlet = Recorder()
    heard: list[bool] = []
    topics.subscribe(b"elkobroker.load", outlet, "a")
    topics.own(b"elkobroker.load", heard.append)
    assert heard == [True]
    topics.unsubscribe(b"elkobroker.load", outlet, "a")
    assert heard == [True, False]


def test_an_owner_sees_the_change_made(topics: Topics) -> None:
    outlet = Recorder()
    seen: list[int] = []
    topics.own(b"elkobroker.load", lambda wanted: seen.append(topics.subscriptions))
    topics.subscribe(b"elkobroker.load", outlet, "a")
    topics.unsubscribe(b"elkobroker.load", outlet, "a")
    assert seen == [1, 0]


def test_a_topic_that_is_left_and_wanted_again_while_it_is_delivered_tells_its_owner_so(topics: Topics) -> None:
    def change() -> None:
        topics.unsubscribe(b"elkobroker.load", outlet, "a")
        topics.subscribe(b"elkobroker.load", outlet, "b")

    heard: list[bool] = []
    outlet = Recorder(change)
    topics.own(b"elkobroker.load", heard.append)
    topics.subscribe(b"elkobroker.load", outlet, "a")
    put(topics, b"elkobroker.load")
    assert heard == [True, False, True]
    assert topics.describe() == [TopicInfo(b"elkobroker.load", 1, 0)]


def test_an_owner_that_fails_keeps_nobody_from_subscribing() -> None:
    def fail(wanted: bool) -> None:
        raise ZeroDivisionError("as it is meant to")

    topics = Topics()
    outlet = Recorder()
    topics.own(b"elkobroker.load", fail)
    with capturedLogs() as logs:
        assert topics.subscribe(b"elkobroker.load", outlet, "a") == b"elkobroker.load"
        assert put(topics, b"elkobroker.load") == 1
        topics.unsubscribe(b"elkobroker.load", outlet, "a")
    assert topics.describe() == []
    assert [event["log_failure"].type for event in logs] == [ZeroDivisionError] * 2


# bounds


def refused(subscribe: Callable[[], object]) -> str:
    with pytest.raises(Refusal) as raised:
        subscribe()
    assert raised.value.reason is Reason.LIMIT
    return raised.value.text


def test_a_subscription_too_many_is_refused_until_one_ends() -> None:
    topics, outlet = Topics(TopicsBounds(subscriptions=10_000)), Recorder()
    names = [b"topic %d" % number for number in range(1_000)]
    for subscriber in range(10):
        for name in names:
            topics.subscribe(name, outlet, subscriber)
    assert topics.subscriptions == 10_000
    topics.subscribe(names[0], outlet, 0)
    assert "10000" in refused(lambda: topics.subscribe(names[0], outlet, "new"))
    refused(lambda: topics.subscribe(b"new", outlet, 0))
    assert len(topics.describe()) == len(names)
    topics.unsubscribe(names[0], outlet, 0)
    topics.subscribe(b"new", outlet, 0)
    refused(lambda: topics.subscribe(b"newer", outlet, 0))
    assert topics.subscriptions == 10_000


def test_names_of_topics_that_are_too_long_together_are_refused_until_one_goes() -> None:
    topics, outlet = Topics(TopicsBounds(name_bytes=4_000)), Recorder()
    size = 1_000
    names = [b"%d" % number * size for number in range(4)]
    for name in names:
        topics.subscribe(name, outlet, "a")
    assert "4000" in refused(lambda: topics.subscribe(b"x", outlet, "a"))
    topics.subscribe(names[0], outlet, "b")
    topics.subscribe(b"", outlet, "a")
    topics.unsubscribe(names[0], outlet, "a")
    refused(lambda: topics.subscribe(b"x", outlet, "a"))
    topics.unsubscribe(names[0], outlet, "b")
    topics.subscribe(b"y" * size, outlet, "a")
    refused(lambda: topics.subscribe(b"x", outlet, "a"))


def test_the_topics_of_an_address_are_bounded_by_its_memory() -> None:
    memory = MemoryBudget(MemoryLimits(address=2 * 3_500))
    topics, outlet = Topics(memory=memory), Recorder()
    for name in (b"1", b"2", b"3"):
        topics.subscribe(name, outlet, "a", "192.0.2.1")
    assert "address" in refused(lambda: topics.subscribe(b"4", outlet, "a", "192.0.2.1"))
    topics.subscribe(b"1", outlet, "b", "192.0.2.1")
    topics.subscribe(b"4", outlet, "a", "192.0.2.2")
    topics.subscribe(b"5", outlet, "a")
    topics.unsubscribe(b"1", outlet, "a")
    refused(lambda: topics.subscribe(b"6", outlet, "a", "192.0.2.1"))
    for subscriber, name in (("b", b"1"), ("a", b"2"), ("a", b"3"), ("a", b"4"), ("a", b"5")):
        topics.unsubscribe(name, outlet, subscriber)
    assert memory.held == 0


# comparison with a reference model


@attrs.define
class Simple:
    """Reference model of `Topics` in the simplest form: everything is copied, and searched from the beginning."""

    table: list[tuple[bytes, Outlet, list[Hashable]]] = attrs.field(factory=list)
    queue: list[tuple[bytes, Sequence[bytes], Sequence[bytes]]] = attrs.field(factory=list)
    busy: bool = False

    def of(self, topic: bytes, outlet: Outlet) -> list[Hashable]:
        return next((names for known, other, names in self.table if (known, other) == (topic, outlet)), [])

    def subscribe(self, topic: bytes, outlet: Outlet, subscriber: Hashable) -> bytes:
        if not self.of(topic, outlet):
            self.table.append((topic, outlet, []))
        if subscriber not in self.of(topic, outlet):
            self.of(topic, outlet).append(subscriber)
        return topic

    def unsubscribe(self, topic: bytes, outlet: Outlet, subscriber: Hashable) -> None:
        if subscriber in self.of(topic, outlet):
            self.of(topic, outlet).remove(subscriber)
        self.table = [row for row in self.table if row[2]]

    def publish(self, topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]) -> int:
        count = sum(len(names) for known, _, names in self.table if known == topic)
        self.queue.append((topic, headers, body))
        if self.busy:
            return count
        self.busy = True
        counts = []
        while self.queue:
            topic, headers, body = self.queue.pop(0)
            counts.append(0)
            for outlet, then in [(outlet, list(names)) for known, outlet, names in self.table if known == topic]:
                told = [name for name in then if name in self.of(topic, outlet)]
                counts[-1] += len(told)
                if told:
                    outlet.deliver(told, topic, headers, body)
        self.busy = False
        return counts[0]

    def subscribed(self) -> dict[bytes, int]:
        return {topic: sum(len(row[2]) for row in self.table if row[0] == topic) for topic, _, _ in self.table}


Action = tuple[str, bytes, int, int]

actions = st.lists(
    st.tuples(
        st.sampled_from(["subscribe", "subscribe", "unsubscribe", "publish"]),
        st.sampled_from([b"t", b"u"]),
        st.integers(0, 2),
        st.integers(0, 3),
    ),
    max_size=8,
)


class Player:
    """Player of a script on some topics, with a part of it in each delivery; records the events."""

    def __init__(self, topics: Topics | Simple, reactions: list[list[Action]]) -> None:
        self.record: list[object] = []
        self._topics = topics
        self._reactions = deque(reactions)
        self._outlets = [Numbered(self, number) for number in range(3)]
        self._count = 0

    def play(self, script: list[Action]) -> None:
        for what, topic, outlet, subscriber in script:
            if what == "publish":
                self._count += 1
                number = self._count
                self.record.append((number, self._topics.publish(topic, [b"X"], [b"%d" % number])))
            elif what == "subscribe":
                self._topics.subscribe(topic, self._outlets[outlet], subscriber)
            else:
                self._topics.unsubscribe(topic, self._outlets[outlet], subscriber)

    def react(self) -> None:
        if self._reactions:
            self.play(self._reactions.popleft())


class Numbered:
    def __init__(self, player: Player, number: int) -> None:
        self.player = player
        self.number = number

    def deliver(
        self, subscribers: Collection[int], topic: bytes, headers: Sequence[bytes], body: Sequence[bytes]
    ) -> None:
        told = list(subscribers)
        self.player.record.append((self.number, told, topic, list(headers), list(body)))
        self.player.react()
        assert list(subscribers) == told


@given(st.lists(actions, max_size=4).map(lambda lists: list(chain(*lists))), st.lists(actions, max_size=8))
def test_they_do_the_same_as_simple_ones(script: list[Action], reactions: list[list[Action]]) -> None:
    topics, simple = Topics(), Simple()
    one, two = Player(topics, reactions), Player(simple, reactions)
    with capturedLogs() as logs:
        one.play(script)
    two.play(script)
    assert logs == []
    assert one.record == two.record
    assert {info.name: info.subscribers for info in topics.describe()} == simple.subscribed()
    assert topics.subscriptions == sum(simple.subscribed().values())
