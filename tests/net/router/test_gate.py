"""Admission by key: decisions, counters and log lines."""

from __future__ import annotations

import pytest
from twisted.internet.task import Clock
from twisted.logger import capturedLogs

from broker.core.rates import LINE_EVERY
from broker.net.refusal_log import Counters, RefusalLog
from broker.net.router.router import KEYS_LOGGED, KeyGate
from tests.net.router.rig import Allowed

ALLOWED = Allowed({"a key": "web1"})


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def counters() -> Counters:
    return Counters()


@pytest.fixture
def gate(counters: Counters, clock: Clock) -> KeyGate:
    return KeyGate("mc0", ALLOWED, RefusalLog(counters, clock), clock)


def refused(gate: KeyGate, *peers: tuple[str, str]) -> list[str]:
    """The addresses in the lines that are logged when all of them are refused: keys, and where they come from."""
    with capturedLogs() as events:
        for key, address in peers:
            assert not gate.admits(key, address)
    return [str(event["address"]) for event in events]


def test_allowed_keys_are_let_in_and_others_counted(gate: KeyGate, counters: Counters) -> None:
    assert gate.admits("a key", "192.0.2.1")
    assert counters.all() == {}
    for key in ("another", ""):
        assert not gate.admits(key, "192.0.2.1")
    assert counters.all() == {"mc0_refused.key-not-allowed": 2}


def test_without_a_list_any_key_is_let_in(counters: Counters, clock: Clock) -> None:
    gate = KeyGate("mc0", None, RefusalLog(counters, clock), clock)
    assert gate.admits("another", "192.0.2.1")
    assert gate.admits("", "192.0.2.1")
    assert counters.all() == {}


def test_each_key_of_each_address_is_logged_once_a_minute(gate: KeyGate, clock: Clock) -> None:
    peers = [(key, address) for key in ("one", "two") for address in ("192.0.2.1", "::1")]
    lines = [f"{address} with key {key}" for key, address in peers]
    assert refused(gate, *peers) == lines
    assert refused(gate, *peers) == []
    clock.advance(LINE_EVERY - 1)
    assert refused(gate, *peers) == []
    clock.advance(1.1)
    assert refused(gate, *peers) == lines


def test_an_address_with_ever_new_keys_does_not_fill_the_log(gate: KeyGate, clock: Clock, counters: Counters) -> None:
    keys = [(str(number), "192.0.2.1") for number in range(200)]
    assert len(refused(gate, *keys)) == KEYS_LOGGED
    assert len(refused(gate, ("0", "192.0.2.2"))) == 1, "others are logged"
    assert counters.get("mc0_refused", "key-not-allowed") == 201
    clock.advance(LINE_EVERY + 1)
    assert len(refused(gate, *keys)) == KEYS_LOGGED


def test_a_key_that_tries_again_and_again_keeps_no_other_one_from_the_log(gate: KeyGate) -> None:
    assert len(refused(gate, *[("one", "192.0.2.1")] * 200)) == 1
    assert len(refused(gate, ("two", "192.0.2.1"))) == 1
