"""Memory of an address for queues that it claims, and for its requests that wait: each path gives all of it back."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from twisted.internet.defer import Deferred

from broker.core.database import StateUnusable
from broker.core.errors import Elsewhere, Reason, Refusal
from broker.core.memory_budget import STORED_PART, MemoryLimits
from broker.core.queues.ownership import REQUIRE_SECONDS, WAIT_BYTES
from broker.core.queues.queues import QUEUE_BYTES
from tests.core.queues.cluster_broker import DURABLE, Broker
from tests.core.queues.fenced_store import FencedDatabase, FencedStore
from tests.core.queues.owners import Claims

ADDRESS = "192.0.2.7"

OTHER = "192.0.2.8"


class Asked:
    """A broker at which two addresses ask for the queue "q". ``results`` has the answers: None, or the refusal."""

    def __init__(self, claimed: bool = True) -> None:
        self.claims = Claims()
        self.claims.waiting = None if claimed else []
        self.broker = Broker(self.claims, "a", FencedStore(FencedDatabase()), True, DURABLE)
        self.results: list[Any] = []
        self.requests: list[Deferred[None]] = []

    @property
    def held(self) -> int:
        return self.broker.queues.memory.held  # type: ignore[attr-defined, no-any-return]

    def ask(self, *payers: str) -> None:
        for payer in payers:
            ready = self.broker.ownership.require("/", "q", payer)
            assert ready is not None
            self.requests.append(ready)
            ready.addCallbacks(self.results.append, lambda failure: self.results.append(failure.value))

    def answer_claims(self, error: Exception | None = None) -> None:
        waiting, self.claims.waiting = self.claims.waiting, None
        for each in waiting or ():
            each.callback(None) if error is None else each.errback(error)

    def reasons(self) -> list[Reason | None]:
        return [None if each is None else each.reason for each in self.results]

    def delete(self) -> None:
        """Let the queue be deleted as an unused one, and its claim be released."""
        self.broker.wait(61)
        self.broker.run()
        assert self.broker.queues.present("/", "q") is None


def answered(asked: Asked) -> None:
    asked.answer_claims()
    asked.broker.run()
    assert asked.reasons() == [None, None]
    assert asked.held == QUEUE_BYTES
    asked.delete()


def refused(asked: Asked) -> None:
    asked.answer_claims(Refusal(Reason.UNAVAILABLE, "etcd is away"))
    assert asked.reasons() == [Reason.UNAVAILABLE] * 2


def elsewhere(asked: Asked) -> None:
    asked.claims.owners["/", "q"] = "b"
    asked.answer_claims()
    assert [type(each) for each in asked.results] == [Elsewhere, Elsewhere]


def late(asked: Asked) -> None:
    asked.broker.clock.advance(REQUIRE_SECONDS)
    assert asked.reasons() == [Reason.UNAVAILABLE] * 2
    assert asked.held == QUEUE_BYTES, "it is still being claimed"
    asked.answer_claims()
    asked.broker.run()
    asked.delete()


def cancelled(asked: Asked) -> None:
    """Their clients are gone, and with them the flows that have asked."""
    for each in asked.requests:
        each.cancel()
    assert asked.held == QUEUE_BYTES
    asked.answer_claims()
    asked.broker.run()
    asked.delete()


def taken_while_it_is_loaded(asked: Asked) -> None:
    asked.answer_claims()
    assert asked.held == QUEUE_BYTES + 2 * WAIT_BYTES
    asked.claims.set(("/", "q"), "b")
    assert [type(each) for each in asked.results] == [Elsewhere, Elsewhere]
    assert asked.held == 0
    asked.broker.run()


def taken_later(asked: Asked) -> None:
    asked.answer_claims()
    asked.broker.run()
    asked.claims.set(("/", "q"), "b")
    asked.broker.run()


def unreadable(asked: Asked) -> None:
    asked.answer_claims()
    asked.broker.thread.fail(StateUnusable("the server stops"))
    assert asked.reasons() == [Reason.UNAVAILABLE] * 2
    asked.broker.run()


def stopped(asked: Asked) -> None:
    asked.broker.ownership.stop()
    assert asked.reasons() == [Reason.UNAVAILABLE] * 2
    assert asked.held == QUEUE_BYTES, "of the claim, which ends with the process"
    asked.answer_claims(Refusal(Reason.UNAVAILABLE, "etcd is away"))


@pytest.mark.parametrize(
    "path", [answered, refused, elsewhere, late, cancelled, taken_while_it_is_loaded, taken_later, unreadable, stopped]
)
def test_each_end_of_waiting_requests_gives_their_memory_back(path: Callable[[Asked], None]) -> None:
    asked = Asked(claimed=False)
    asked.ask(ADDRESS, OTHER)
    assert asked.held == QUEUE_BYTES + 2 * WAIT_BYTES
    path(asked)
    assert asked.held == 0
    assert len(asked.results) == 2


def released(limit: int = 0) -> Asked:
    """A broker that releases the claim of the deleted queue, which takes until ``releasing`` fires."""
    asked = Asked()
    assert asked.broker.ask() is None
    asked.broker.owners.releasing = Deferred()
    asked.delete()
    assert asked.held == 0
    if limit:
        memory: Any = asked.broker.queues.memory
        memory.limits = MemoryLimits(address=math.ceil(limit / STORED_PART))
    return asked


def end_release(asked: Asked) -> None:
    releasing, asked.broker.owners.releasing = asked.broker.owners.releasing, None
    assert releasing is not None
    releasing.callback(None)


def test_a_request_that_waits_for_a_release_counts_once() -> None:
    asked = released(QUEUE_BYTES + WAIT_BYTES)
    asked.ask(ADDRESS)
    assert asked.held == WAIT_BYTES
    end_release(asked)
    assert asked.held == QUEUE_BYTES + WAIT_BYTES
    asked.broker.run()
    assert asked.results == [None]
    assert asked.held == QUEUE_BYTES
    asked.delete()
    assert asked.held == 0


def test_a_request_that_waits_for_a_release_gives_its_memory_back_if_the_queue_is_too_much() -> None:
    asked = released(QUEUE_BYTES + WAIT_BYTES - 1)
    asked.ask(ADDRESS)
    end_release(asked)
    assert asked.reasons() == [Reason.LIMIT]
    assert asked.held == 0


@pytest.mark.parametrize("during", ["release", "load"])
def test_a_request_that_waits_for_a_release_does_not_wait_for_ever(during: str) -> None:
    asked = released()
    asked.ask(ADDRESS)
    asked.broker.clock.advance(REQUIRE_SECONDS - 1)
    if during == "load":
        end_release(asked)
    asked.broker.clock.advance(1)
    assert asked.reasons() == [Reason.UNAVAILABLE]
    assert asked.held == (QUEUE_BYTES if during == "load" else 0)


def test_a_content_to_a_queue_that_is_released_gives_its_memory_back() -> None:
    asked = released()
    for _ in range(3):
        with pytest.raises(Refusal):
            asked.broker.queues.open("/", "q", ADDRESS)
    assert asked.held == WAIT_BYTES
    end_release(asked)
    asked.broker.run()
    assert asked.held == QUEUE_BYTES
    asked.delete()
    assert asked.held == 0
