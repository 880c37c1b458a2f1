"""Notifications: queues, repeated attempts, limits, and reloads. Attempts are made by a recording sender."""

from __future__ import annotations

import json
from typing import Any

import attrs
from twisted.internet.defer import Deferred
from twisted.internet.task import Clock

from broker.app.notifications import MAX_WAITING, Notifications
from broker.app.process import COUNTERS
from broker.config.daemon_settings import NotifyRule
from broker.operate.metrics import CounterMetrics
from broker.wires.tables import page


class Sender:
    """Attempts, which a test ends: ``end`` without an error is a success."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.under_way: list[tuple[str, dict[str, Any], Deferred[None]]] = []
        self.notifications = Notifications(self.clock, self.send, "east")

    async def send(self, rule: NotifyRule, body: bytes) -> None:
        ended: Deferred[None] = Deferred()
        self.under_way.append((rule.name, json.loads(body), ended))
        await ended

    def end(self, error: str = "") -> tuple[str, str]:
        """End the oldest attempt. Returns its rule and the subject of its event."""
        rule, body, ended = self.under_way.pop(0)
        if error:
            ended.errback(RuntimeError(error))
        else:
            ended.callback(None)
        return rule, body["name"]

    def row(self, name: str = "hook") -> dict[str, Any]:
        [row] = page(self.notifications.view(), name)
        return dict(row)


RULE = NotifyRule("hook", events=("service-gone",), url="https://user:pass@h:8/secret")


def test_an_event_goes_to_the_rules_that_want_it() -> None:
    sender = Sender()
    sender.clock.advance(1_772_600_767.089)
    other = NotifyRule("banks", events=("service-gone", "service-back"), pattern="bank*", command=("page",))
    sender.notifications.use([RULE, other])
    sender.notifications.event("service-gone", "chat", {"why": "left"})
    assert [(rule, body) for rule, body, _ in sender.under_way] == [
        (
            "hook",
            {
                "id": 1,
                "event": "service-gone",
                "name": "chat",
                "time": "2026-03-04T05:06:07.089Z",
                "broker": "east",
                "about": {"why": "left"},
            },
        )
    ]
    sender.notifications.event("service-back", "bank-1")
    sender.notifications.event("listener-ready", "mtl")
    assert [rule for rule, _, _ in sender.under_way] == ["hook", "banks"]


def test_notifications_of_a_rule_are_sent_one_by_one_in_order() -> None:
    sender = Sender()
    sender.notifications.use([RULE])
    for name in ("a", "b", "c"):
        sender.notifications.event("service-gone", name)
    assert [sender.end(), sender.end(), sender.end()] == [("hook", "a"), ("hook", "b"), ("hook", "c")]
    assert sender.row()["sent"] == 3
    assert sender.row()["way"] == "https://h:8/..."


def test_waiting_notifications_are_a_metric() -> None:
    sender = Sender()
    sender.notifications.use([RULE])
    for name in ("a", "b", "c"):
        sender.notifications.event("service-gone", name)
    found = {metric.name: metric.samples for metric in CounterMetrics(COUNTERS).collect(sender.notifications.counts())}
    assert [sample.value for sample in found["elkobroker_notifications_waiting"]] == [3]


def test_a_failed_attempt_is_repeated_with_growing_pauses() -> None:
    sender = Sender()
    sender.notifications.use([RULE])
    sender.notifications.event("service-gone", "a")
    for pause in (1.0, 2.0, 4.0):
        sender.end("refused")
        sender.clock.advance(pause - 0.01)
        assert not sender.under_way
        sender.clock.advance(0.01)
        assert len(sender.under_way) == 1
    assert (sender.row()["failed"], sender.row()["error"]) == (3, "refused")
    sender.end()
    assert (sender.row()["sent"], sender.row()["waiting"], "error" in sender.row()) == (1, 0, False)


def test_after_the_last_attempt_it_is_dropped_and_the_next_one_is_sent() -> None:
    sender = Sender()
    sender.notifications.use([attrs.evolve(RULE, attempts=2)])
    sender.notifications.event("service-gone", "a")
    sender.notifications.event("service-gone", "b")
    sender.end("refused")
    sender.clock.advance(1)
    assert sender.end("refused") == ("hook", "a")
    sender.clock.advance(2)
    assert sender.end() == ("hook", "b")
    assert sender.notifications.counts()["notifications.dropped_attempts"] == 1


def test_a_failing_rule_delays_no_other() -> None:
    sender = Sender()
    sender.notifications.use([RULE, attrs.evolve(RULE, name="second")])
    sender.notifications.event("service-gone", "a")
    sender.end("refused")
    assert sender.end() == ("second", "a")
    sender.notifications.event("service-gone", "b")
    assert sender.end() == ("second", "b")


def test_the_queue_is_bounded() -> None:
    sender = Sender()
    sender.notifications.use([attrs.evolve(RULE, per_minute=6_000)])
    for number in range(MAX_WAITING + 5):
        sender.notifications.event("service-gone", str(number))
    assert (sender.row()["waiting"], sender.row()["dropped"]) == (MAX_WAITING, 5)
    assert sender.notifications.counts()["notifications.dropped_full"] == 5


def test_the_rate_of_a_rule_is_bounded() -> None:
    sender = Sender()
    sender.notifications.use([attrs.evolve(RULE, per_minute=2)])
    for _ in range(5):
        sender.notifications.event("service-gone", "a")
    assert sender.row()["dropped"] == 3
    sender.clock.advance(30)
    sender.notifications.event("service-gone", "a")
    assert (sender.row()["waiting"], sender.notifications.counts()["notifications.dropped_rate"]) == (3, 3)


def test_a_rule_that_a_reload_corrects_is_attempted_at_once_and_as_often_as_a_new_one() -> None:
    sender = Sender()
    sender.notifications.use([attrs.evolve(RULE, attempts=2)])
    sender.notifications.event("service-gone", "a")
    sender.end("refused")
    sender.notifications.use([attrs.evolve(RULE, attempts=2)])
    sender.clock.advance(0)
    assert not sender.under_way, "nothing was corrected"
    sender.notifications.use([attrs.evolve(RULE, attempts=2, url="https://right/")])
    sender.clock.advance(0)
    sender.end("refused")
    sender.clock.advance(1)
    assert sender.end() == ("hook", "a")
    assert (sender.row()["sent"], sender.row()["dropped"]) == (1, 0)


def test_a_reload_keeps_the_queue_of_a_rule_and_ends_others() -> None:
    sender = Sender()
    sender.notifications.use([RULE, attrs.evolve(RULE, name="old")])
    sender.notifications.event("service-gone", "a")
    sender.notifications.event("service-gone", "b")
    sender.notifications.use([attrs.evolve(RULE, pattern="x*")])
    assert (sender.end(), sender.end("refused")) == (("hook", "a"), ("old", "a"))
    assert sender.end() == ("hook", "b")
    sender.notifications.event("service-gone", "c")
    assert (sender.under_way, sender.clock.getDelayedCalls()) == ([], [])


def test_the_stop_drops_what_waits() -> None:
    sender = Sender()
    sender.notifications.use([RULE])
    sender.notifications.event("service-gone", "a")
    sender.end("refused")
    sender.notifications.stop()
    sender.notifications.event("service-gone", "b")
    assert (sender.under_way, sender.clock.getDelayedCalls()) == ([], [])
