"""The open wire: binding, views, counters, reload, drain and close."""

from __future__ import annotations

from typing import Any

import pytest
from twisted.internet.testing import MemoryReactorClock

from broker.access.principal import Method, Principal
from broker.config.daemon_settings import Broker
from broker.wires.http.http_settings import Http
from broker.wires.http.http_wire import OpenHttp, open_http
from broker.wires.http.sessions.instances import Offer
from tests.wires.contexts import context, page

ANN = Principal("ann", Method.PASSWORD, "192.0.2.1", "a password")


@pytest.fixture
def wire() -> OpenHttp:
    made = open_http(Http(), context(MemoryReactorClock()))
    made.instances.put("bank", "a", ANN, Offer("h:1", "tcp", {}, None, 10.0))
    return made


def test_views_and_counters(wire: OpenHttp) -> None:
    assert page(wire.views(), "http connections") == []
    [row] = page(wire.views(), "http instances", "bank")
    assert (row["service"], row["instance"], row["owner"], row["ttl"]) == ("bank", "a", "user ann", 10.0)
    counts = wire.counts()
    assert (counts["http_instances.now"], counts["http_services.registered"], counts["http_requests"]) == (1, 1, 0)
    assert {endpoint.name for endpoint in wire.endpoints()} >= {"registerService", "findService"}


def test_the_rest_of_a_ttl_is_known_until_the_lease_ends() -> None:
    clock = MemoryReactorClock()
    wire = open_http(Http(), context(clock))
    known, _ = wire.instances.put("bank", "a", ANN, Offer("h:1", "tcp", {}, None, 10.0))
    clock.pump([0.1] * 40)
    left = wire.left(known.provider)
    assert left is not None
    assert 6.0 <= left <= 6.5
    wire.instances.renew("bank", "a", ANN)
    assert wire.left(known.provider) == pytest.approx(left + 4, abs=0.01)
    wire.instances.withdraw("bank", "a", ANN)
    assert wire.left(known.provider) is None


def test_a_reload_applies_names_and_limits(wire: OpenHttp) -> None:
    wire.reload(Http(hosts=("b.example",), services=5, connections=7, endpoint="tcp:1"), Broker())
    assert wire.dispatch.hosts == {"b.example"}
    assert wire.instances.http.services == 5
    assert wire.factory.limits.connections == 7
    assert wire.config.endpoint == Http().endpoint


def test_a_drain_does_not_wait_for_instances(wire: OpenHttp) -> None:
    wire.drain()
    assert wire.dispatch.draining
    assert len(wire.instances) == 1
    assert wire.peers() == 0
    wire.undrain()
    assert not wire.dispatch.draining


def test_a_closed_wire_listens_to_no_changes_of_users(wire: OpenHttp) -> None:
    changed: Any = wire.context.accounts.access.changed
    assert len(changed) == 2
    wire.close()
    assert changed == []
    assert wire.context.network.clock.getDelayedCalls() == []
