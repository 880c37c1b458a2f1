"""Values of health checks of the right types that make no sense, and what `--check` shows of good ones."""

from __future__ import annotations

import attrs
import pytest

from broker.app.configuration import Config, problems, report
from broker.app.health_checks import connections_of, settings_of
from broker.config.checks_settings import PINGED_WIRES, PINGS, CheckRule, Checks
from broker.core.checks.check_rules import CheckKind
from broker.core.model import Policy
from broker.core.silence import AT_ONCE
from tests.config.bad_values import assert_one_problem

HERE = "[checks]\n"
RULE = '[[checks.rules]]\nservices = ["a"]\nkind = "tcp"\n'

BAD = [
    (HERE + 'networks = ["10.0.0.1/8"]', 2, "checks.networks[0]", "is no network: 10.0.0.1/8 has host bits set"),
    (RULE + "interval = 0.5", 4, "checks.rules[0].interval", "must be between 1 and 86400, not 0.5"),
    (RULE + "timeout = 31.0", 4, "checks.rules[0].timeout", "31 is longer than interval, 30"),
    (RULE + "up = 0", 4, "checks.rules[0].up", "must be between 1 and 100, not 0"),
    (RULE + "down = 101", 4, "checks.rules[0].down", "must be between 1 and 100, not 101"),
    (RULE + 'path = "health"', 4, "checks.rules[0].path", "must begin with / and have up to 1000 more visible"),
    (RULE + 'path = "/a\\r\\nX: y"', 4, "checks.rules[0].path", "must begin with / and have up to 1000 more visible"),
    (RULE + "statuses = [200]", 4, "checks.rules[0].statuses", "must be two numbers, the least and the greatest"),
    (RULE + "statuses = [300, 200]", 4, "checks.rules[0].statuses[1]", "must be between 300 and 599, not 200"),
    (RULE + 'wires = ["mc0"]', 4, "checks.rules[0].wires[0]", '"mc0" is no wire with services: elko, director, dbp'),
    ('[[checks.rules]]\nservices = []\nkind = "tcp"', 2, "checks.rules[0].services", 'is for no service; "*" is every'),
    (
        '[[checks.rules]]\nservices = [""]\nkind = "tcp"',
        2,
        "checks.rules[0].services[0]",
        'is empty; "*" is every name',
    ),
    (
        '[[checks.rules]]\nservices = ["*"]\nkind = "ping"\nwires = ["mtl"]',
        4,
        "checks.rules[0].wires[0]",
        '"mtl" is no wire with a ping: elko, director, dbp',
    ),
]


@pytest.mark.parametrize(("text", "line", "key", "problem"), BAD)
def test_bad_values(text: str, line: int, key: str, problem: str) -> None:
    assert_one_problem(text, line, key, problem)


def test_the_default_pings_elko_servers_and_takes_descriptors_for_doubtful_peers_alone() -> None:
    settings = settings_of(Checks())
    [rule] = settings.rules
    assert (rule.kind, rule.wires, rule.interval, rule.policy) == (
        CheckKind.PING,
        ("elko", "director"),
        20.0,
        Policy.LAST,
    )
    assert connections_of(Checks()) == AT_ONCE
    assert connections_of(Checks(silent_share=1.0)) == 0
    assert problems(Config()) == []


def test_checks_that_are_off() -> None:
    assert settings_of(Checks(enabled=False)).rules == ()
    rule = CheckRule(("*",), "tcp")
    assert connections_of(Checks(rules=(rule,), concurrency=7, silent_share=1.0)) == 7
    assert connections_of(Checks(enabled=False, rules=(rule,))) == 0


def test_every_key_of_a_rule_is_used() -> None:
    given = CheckRule(("x",), "http", ("dbp",), ("tcp",), 7.0, 3.0, 4, 5, "show", "/x", (201, 202))
    [rule] = settings_of(Checks(rules=(given,))).rules
    assert attrs.asdict(rule) == attrs.asdict(given)


def test_the_report_shows_rules_that_are_not_the_default() -> None:
    def shown(checks: Checks) -> list[str]:
        lines = report(Config(checks=checks), lambda host: True).splitlines()
        return [line for line in lines if "checks" in line]

    assert shown(Checks()) == []
    assert shown(Checks(enabled=False)) == ["checks: off"]
    rules = (CheckRule(("*",), "tcp", interval=10.0), PINGS)
    assert shown(Checks(rules=rules)) == [
        "checks: tcp of * every 10 s (last); ping of * every 20 s (last)",
        "warning: checks.rules[1]: never counts, since checks.rules[0] is for every service",
    ]


def test_a_network_that_is_always_refused_gets_a_warning() -> None:
    checks = Checks(networks=("10.0.0.0/8", "169.254.0.0/16", "ff00::/8", "0.0.0.0/0"))
    text = "is never connected to: link-local and multicast are refused"
    lines = report(Config(checks=checks), lambda host: True).splitlines()
    assert [line for line in lines if "checks.networks" in line] == [
        f"warning: checks.networks[1]: 169.254.0.0/16 {text}",
        f"warning: checks.networks[2]: ff00::/8 {text}",
    ]


def test_the_wires_with_a_ping_are_those_that_give_one() -> None:
    from broker.app.wires import WIRES
    from broker.wires.dbp.dbp_wire import OpenDbp
    from broker.wires.elko.broker_wire import OpenElko
    from broker.wires.elko.director_wire import OpenDirector
    from broker.wires.interface import PlainWire

    openers: dict[str, type[PlainWire]] = {"elko": OpenElko, "director": OpenDirector, "dbp": OpenDbp}
    assert set(openers) == set(PINGED_WIRES)
    assert all(opener.pinger is not PlainWire.pinger for opener in openers.values())
    assert set(PINGED_WIRES) < {wire.name for wire in WIRES}
