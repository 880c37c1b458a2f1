"""The operators' move of messages between durable queues: it counts the messages that the store has confirmed."""

from __future__ import annotations

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from broker.access.rights import AnonymousAccess
from broker.core.database import StateUnusable
from broker.core.errors import Refusal
from broker.core.operator_interfaces import MovedMessages
from broker.wires.mtl.queue_actions import MOVE_SECONDS, SLICE, QueueActs
from broker.wires.mtl.sessions.access_policy import AccessPolicy
from tests.core.queues.cluster_broker import Broker
from tests.core.queues.fenced_store import FencedDatabase, FencedStore
from tests.core.queues.owners import Claims


class Brokers:
    """Two brokers over one store. The first has the queues "q", with messages, and "other"."""

    def __init__(self, messages: int) -> None:
        self.claims = Claims()
        database = FencedDatabase()
        self.a, self.b = (Broker(self.claims, name, FencedStore(database), True) for name in "ab")
        for name in ("q", "other"):
            assert self.a.ask(name) is None
        self.a.send(*(b"%d" % number for number in range(messages)))
        self.a.run()
        policy = AccessPolicy(("/",), "/", AnonymousAccess())
        self.acts = QueueActs(self.a.queues, self.a.ownership, policy, "/", self.a.clock)
        self.results: list[object] = []

    def move(self) -> None:
        moving: Deferred[MovedMessages] = self.acts.move("q", "other", None, None)
        moving.addErrback(_refusal).addCallback(self.results.append)

    def take(self, name: str) -> None:
        """The second broker takes a queue, which the first one does not know."""
        self.claims.away.add("a")
        self.claims.set(("/", name), None)
        assert self.b.ask(name) is None


def _refusal(failure: Failure) -> str:
    assert isinstance(failure.value, Refusal)
    return failure.value.text


def test_a_move_is_answered_when_the_store_has_the_messages() -> None:
    brokers = Brokers(2 * SLICE + 1)
    brokers.move()
    assert brokers.results == []
    brokers.a.run()
    assert brokers.results == [MovedMessages(2 * SLICE + 1)]
    assert brokers.a.load("other") == (2 * SLICE + 1, 0)


def test_messages_that_return_since_their_target_was_lost_are_not_counted() -> None:
    brokers = Brokers(2 * SLICE)
    brokers.move()
    brokers.a.clock.advance(0)
    brokers.a.thread.work()
    brokers.take("other")
    brokers.a.run()
    assert brokers.results == [
        MovedMessages(SLICE, f"another broker took the queue before {SLICE} messages were written")
    ]
    assert brokers.a.load() == (SLICE, 0)


def test_a_move_of_which_all_messages_return_is_refused() -> None:
    brokers = Brokers(3)
    brokers.take("other")
    brokers.move()
    brokers.a.run()
    why = "another broker took the queue before 3 messages were written"
    assert brokers.results == [f"nothing was moved to 'other': {why}"]
    assert brokers.a.load() == (3, 0)


def test_a_move_does_not_wait_for_a_store_that_fails_for_long() -> None:
    brokers = Brokers(3)
    brokers.move()
    brokers.a.clock.advance(0)
    brokers.a.thread.fail(StateUnusable("the disk fails"))
    assert brokers.results == []
    brokers.a.clock.advance(MOVE_SECONDS)
    brokers.a.clock.advance(0)
    assert brokers.results == [MovedMessages(0, "3 messages are not written to the store of queues yet")]
    brokers.a.run()
    assert brokers.a.load("other") == (3, 0)
