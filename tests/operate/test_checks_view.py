"""The view of health checks."""

from __future__ import annotations

from twisted.internet.task import Clock

from broker.core.checks.check_rules import CheckKind, CheckRule, Question, TargetInfo
from broker.core.model import Check, CheckState, Policy
from broker.operate.broker_tables import checks_view
from tests.wires.contexts import page


def test_targets_are_shown_with_the_age_of_their_state() -> None:
    clock = Clock()
    clock.advance(1_000.0)
    tcp, ping = (
        CheckRule(("*",), kind, interval=interval) for kind, interval in ((CheckKind.TCP, 10.0), (CheckKind.PING, 30.0))
    )
    targets = [
        TargetInfo(
            Question(tcp, hostport="h:1"),
            Check(CheckState.FAILING, "refused", 987.66),
            Policy.HIDE,
            2,
            ("bank", "mint"),
            4,
        ),
        TargetInfo(
            Question(ping, "elko", 7), Check(CheckState.PASSING, "answered", 1_000.0), Policy.LAST, 0, ("shop",), 1
        ),
    ]
    assert page([checks_view(lambda: targets, clock)], "broker checks") == [
        {
            "kind": "tcp",
            "subjects": ["bank", "mint"],
            "services": 4,
            "hostport": "h:1",
            "state": "failing",
            "reason": "refused",
            "since": 12.3,
            "streak": 2,
            "interval": 10.0,
            "policy": "hide",
        },
        {
            "kind": "ping",
            "subjects": ["shop"],
            "services": 1,
            "wire": "elko",
            "peer": 7,
            "state": "passing",
            "reason": "answered",
            "since": 0.0,
            "streak": 0,
            "interval": 30.0,
            "policy": "last",
        },
    ]
