"""The operators' view of the Elko Broker: its peers, found by pattern."""

from __future__ import annotations

import json

import pytest

from broker.wires.elko.broker_wire import broker_views
from broker.wires.elko.sessions.broker_session import BrokerWiring
from broker.wires.tables import Row
from tests.operate.test_console import Operator, enter
from tests.wires.contexts import page
from tests.wires.recording import ElkoFarm, desc


@pytest.fixture
def farm() -> ElkoFarm:
    return ElkoFarm()


@pytest.fixture
def operator(farm: ElkoFarm) -> Operator:
    operator = enter(farm, views={each.name: each for each in broker_views(farm.wiring)})
    operator.read()
    return operator


def sessions(wiring: BrokerWiring, pattern: str = "*") -> list[Row]:
    return page(broker_views(wiring), "elko sessions", pattern)


def labels(shown: list[Row]) -> list[object]:
    return [each["label"] for each in shown]


def test_a_session_is_shown_with_all_that_matters(farm: ElkoFarm, operator: Operator) -> None:
    peer = farm.client("bank-1", local=False, address="192.0.2.9:5")
    peer.say("admin", "auth", label="bank-1")
    peer.offer(desc("bank"), desc("mint"))
    peer.say("broker", "load", factor=0.5)
    peer.say("broker", "find", service="none", wait=-1)
    peer.say("broker", "find", service="none", wait=5)
    assert json.loads(operator.type("elko sessions bank*")) == [
        {
            "address": "192.0.2.9:5",
            "label": "bank-1",
            "roles": ["admin", "client"],
            "trusted": False,
            "waits": 2,
            "provider": 1,
            "services": 2,
            "load": 0.5,
        }
    ]


def test_a_peer_that_is_no_provider_is_shown_too(farm: ElkoFarm, operator: Operator) -> None:
    farm.admin("boss")
    farm.connect()
    assert sessions(farm.wiring, "boss") == [
        {"address": "192.0.2.7:4000", "label": "boss", "roles": ["admin"], "trusted": True, "waits": 0}
    ]
    assert [each["roles"] for each in sessions(farm.wiring)] == [["admin"], ["admin"], []]
    assert labels(sessions(farm.wiring))[0] == "console"


def test_a_pattern_finds_labels_and_addresses(farm: ElkoFarm, operator: Operator) -> None:
    farm.client("bank 1", address="192.0.2.1:5")
    farm.client("Bank", address="192.0.2.2:5")
    assert labels(json.loads(operator.type("elko sessions bank 1"))) == ["bank 1"]
    assert labels(sessions(farm.wiring, "192.0.2.*")) == ["bank 1", "Bank"]
    assert sessions(farm.wiring, "mint") == []


def test_who_is_gone_is_not_shown(farm: ElkoFarm) -> None:
    one, two, three = farm.client("one"), farm.client("two"), farm.client("three")
    one.drop()
    two.say("broker", "disconnect")
    three.session.input_ended()
    assert [(each["label"], each.get("provider")) for each in sessions(farm.wiring)] == [("three", None)]
    three.drop()
    assert not farm.wiring.sessions
