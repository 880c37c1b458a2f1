"""Opening listeners: which failures end the start, and how the others are tried again."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher

from broker.core.model import Listening
from broker.net.listeners import FIRST_RETRY, MOST_RETRY, CannotListen, ListenerRetries


class Place:
    """A place to listen at, which may be taken or be slow to prepare."""

    def __init__(self, events: list[str], name: str) -> None:
        self._events = events
        self.name = name
        self.taken: str | None = None
        self.unprepared: str | None = None
        self.attempts = 0

    def prepare(self) -> None:
        self._events.append(f"prepare {self.name}")
        if self.unprepared is not None:
            raise CannotListen(self.unprepared)

    def bind(self) -> str:
        self.attempts += 1
        self._events.append(f"bind {self.name}")
        if self.taken is not None:
            raise CannotListen(self.taken)
        return f"bound {self.name}"


class Stage:
    def __init__(self, *names: str, required: str = "") -> None:
        self.clock = Clock()
        self.clock.advance(1_000)
        self.changes = 0
        self.retries = ListenerRetries(self.clock, self._changed)
        self.events: list[str] = []
        self.places = {name: Place(self.events, name) for name in names}
        for name, place in self.places.items():
            self.retries.add(name, f"at {name}", place.bind, place.prepare, name == required)

    def _changed(self) -> None:
        self.changes += 1

    def state(self, name: str) -> Listening:
        [found] = self.retries.states(name)
        return found


@contextmanager
def logged() -> Iterator[list[str]]:
    """The errors that are logged meanwhile."""
    texts: list[str] = []

    def observe(event: dict[str, object]) -> None:
        if event.get("log_namespace") == "broker.net.listeners.ListenerRetries":
            texts.append(f"{event['name']}: {event['reason']}")

    globalLogPublisher.addObserver(observe)  # type: ignore[arg-type]
    try:
        yield texts
    finally:
        globalLogPublisher.removeObserver(observe)  # type: ignore[arg-type]


def test_all_are_prepared_before_the_first_is_bound_in_their_order() -> None:
    stage = Stage("a", "b")
    assert [each.ready for each in stage.retries.states()] == [False, False]
    stage.retries.open(strict=False)
    assert [event for event in stage.events if "bind" in event] == ["bind a", "bind b"]
    assert set(stage.events[: stage.events.index("bind a")]) == {"prepare a", "prepare b"}
    assert stage.retries.states() == [
        Listening("a", "bound a", 1_000.0),
        Listening("b", "bound b", 1_000.0),
    ]
    assert not stage.clock.getDelayedCalls()


@pytest.mark.parametrize("failing", ["taken", "unprepared"])
def test_one_that_is_missing_is_known_and_opened_later(failing: str) -> None:
    stage = Stage("a", "b")
    place = stage.places["b"]
    setattr(place, failing, "somebody is there")
    with logged() as texts:
        stage.retries.open(strict=False)
        assert texts == ["b: somebody is there"]
        assert stage.state("b") == Listening("b", "at b", 1_000.0, "somebody is there")
        assert stage.state("a").ready
        stage.clock.advance(FIRST_RETRY)
        assert (texts, stage.changes) == (["b: somebody is there"], 0)
        setattr(place, failing, "somebody else is there")
        stage.clock.advance(2 * FIRST_RETRY)
        assert texts[1:] == ["b: somebody else is there"]
        assert stage.changes == 1
        assert stage.state("b").since == 1_000.0
    setattr(place, failing, None)
    stage.clock.advance(4 * FIRST_RETRY)
    assert stage.state("b") == Listening("b", "bound b", 1_000.0 + 7 * FIRST_RETRY)
    assert stage.changes == 2
    assert not stage.clock.getDelayedCalls()


def test_pauses_double_up_to_their_bound() -> None:
    stage = Stage("a", "b")
    stage.places["b"].taken = "taken"
    stage.retries.open(strict=False)
    pauses: list[float] = []
    for _ in range(8):
        [call] = stage.clock.getDelayedCalls()
        pauses.append(call.getTime() - stage.clock.seconds())
        stage.clock.advance(pauses[-1])
    assert pauses[:3] == [FIRST_RETRY, 2 * FIRST_RETRY, 4 * FIRST_RETRY]
    assert pauses[-2:] == [MOST_RETRY, MOST_RETRY]
    assert stage.places["b"].attempts == 9


def test_a_retry_that_is_asked_for_comes_at_once_and_the_pauses_are_short_again() -> None:
    stage = Stage("a", "b")
    stage.places["b"].taken = "taken"
    stage.retries.open(strict=False)
    stage.clock.pump([MOST_RETRY] * 5)
    attempts = stage.places["b"].attempts
    stage.retries.retry()
    assert stage.places["b"].attempts == attempts + 1
    assert stage.places["a"].attempts == 1
    [call] = stage.clock.getDelayedCalls()
    assert call.getTime() - stage.clock.seconds() == FIRST_RETRY
    stage.places["b"].taken = None
    stage.retries.retry()
    assert stage.state("b").ready
    assert not stage.clock.getDelayedCalls()


@pytest.mark.parametrize(("required", "strict", "taken"), [("a", False, "a"), ("", True, "b"), ("", False, "abc")])
def test_the_start_fails_over_a_required_one_or_any_where_it_is_strict_or_all(
    required: str, strict: bool, taken: str
) -> None:
    stage = Stage("a", "b", "c", required=required)
    for name in taken:
        stage.places[name].taken = "somebody is there"
    with pytest.raises(CannotListen) as failed:
        stage.retries.open(strict)
    assert str(failed.value) == f"{taken[0]}: somebody is there"
    assert not stage.clock.getDelayedCalls()


def test_where_there_is_none_nothing_fails() -> None:
    stage = Stage()
    stage.retries.open(strict=True)
    assert stage.retries.states() == []


def test_what_is_stopped_or_removed_is_not_tried_again() -> None:
    stage = Stage("a", "b", "c")
    stage.places["b"].taken = stage.places["c"].taken = "taken"
    stage.retries.open(strict=False)
    stage.retries.remove("b")
    assert [each.name for each in stage.retries.states()] == ["a", "c"]
    stage.retries.retry()
    assert (stage.places["b"].attempts, stage.places["c"].attempts) == (1, 2)
    stage.retries.stop()
    assert not stage.clock.getDelayedCalls()


def test_a_defect_of_an_attempt_is_not_the_last_one() -> None:
    stage = Stage("a", "b")
    place = stage.places["b"]
    place.taken = "taken"
    stage.retries.open(strict=False)
    del place.taken
    with pytest.raises(AttributeError):
        stage.clock.advance(FIRST_RETRY)
    place.taken = None
    stage.clock.advance(2 * FIRST_RETRY)
    assert stage.state("b").ready
