"""The open wire: binding, views, counters, reload, drain and close."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from twisted.internet.defer import Deferred
from twisted.internet.testing import MemoryReactorClock

from broker.access.principal import Method, Principal
from broker.access.rights import EVERY_ENTRY
from broker.config.daemon_settings import Broker
from broker.core.cluster.cluster_interfaces import Member, MemberHealth
from broker.rest.http_endpoint import Endpoint
from broker.wires.http.http_settings import Http
from broker.wires.http.http_wire import OpenHttp, open_http
from broker.wires.http.sessions.instances import Offer
from broker.wires.tables import ITEMS, Scan, Selection
from tests.net.http.http_peers import Link
from tests.operate.members import Members
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


def test_the_list_of_instances_bears_changes_between_its_pieces(wire: OpenHttp) -> None:
    for number in range(2 * ITEMS):
        wire.instances.put("web", str(number), ANN, Offer("h:1", "tcp", {}, None, 10.0))
    [instances] = [view for view in wire.views() if view.name == "http instances"]
    scan = Scan(instances, Selection(), EVERY_ENTRY)
    pieces = iter(scan)
    next(pieces)
    wire.instances.put("bank", "b", ANN, Offer("h:1", "tcp", {}, None, 10.0))
    assert len([*pieces]) > 1
    assert scan.total == 2 * ITEMS + 1


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


def test_a_client_whose_answer_may_not_wait_gets_the_other_brokers() -> None:
    clock = MemoryReactorClock()
    listeners = {name: {"http": f"tcp://{name}:9080"} for name in "ab"}
    members = [Member(name, f"i-{name}", listeners=listeners[name]) for name in "ab"]
    states = [MemberHealth(each, each.name == "a", True, None, 0, 0) for each in members]
    wire = open_http(Http(waiting=1), context(clock, members=Members(states=states)))
    operators = Endpoint("GET", "/v1/slow", "slow", "Answers later.", lambda call: Deferred())
    wire.context.routes.add([*wire.endpoints(), operators])
    site: Any = SimpleNamespace(factory=wire.factory, turn=lambda: clock.pump([0]))
    first, client, operator = (Link(site, "192.0.2.1", port) for port in (1, 2, 3))
    for link, path in (
        (first, "/v1/services/bank?wait=9"),
        (client, "/v1/services/bank?wait=9"),
        (operator, "/v1/slow"),
    ):
        link.ask(f"GET {path}", "Host: 127.0.0.1")
    assert first.answers() == []
    refused = client.answer()
    assert (refused.status, refused.headers["retry-after"]) == (503, "5")
    assert refused.headers.get("link") == '<http://b:9080/>; rel="alternate"'
    refused = operator.answer()
    assert (refused.status, refused.headers.get("link")) == (503, None)
    # The end of the listener ends the answer that waits.
    wire.close()
    ended = first.answer()
    assert (ended.status, ended.headers.get("link")) == (503, '<http://b:9080/>; rel="alternate"')


def test_a_closed_wire_listens_to_no_changes_of_users(wire: OpenHttp) -> None:
    changed: Any = wire.context.accounts.access.changed
    assert len(changed) == 2
    wire.close()
    assert changed == []
    assert wire.context.network.clock.getDelayedCalls() == []
