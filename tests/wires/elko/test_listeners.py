"""Opening listeners: what descriptors say of each, what their limits are, and what cannot be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from broker.net.listeners import CannotListen
from broker.wires.elko.elko_listeners import NamedListener, make_listener, net_limits
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.config.certificates import certificate
from tests.net.reactors import poll_reactor
from tests.wires.contexts import context

Open = Callable[..., NamedListener]


@pytest.fixture
def open_one() -> Iterator[Open]:
    opened: list[NamedListener] = []

    def open_one(**keys: Any) -> NamedListener:
        def converse(peer: object) -> Any:
            raise AssertionError("nobody connects")

        listener = BrokerListener(**{"endpoint": "tcp:0:interface=127.0.0.1", **keys})
        door = AccessControl(Policy())
        made = make_listener("elko", listener, door, converse, TransportLimits(), context(reactor))
        made.open()
        opened.append(made)
        return made

    with poll_reactor() as reactor:
        yield open_one
        for listener in opened:
            listener.stop_listening()
        reactor.runUntilCurrent()


@pytest.mark.parametrize(
    ("transport", "kind", "protocol"),
    [
        ("tcp", "tcp", "tcp"),
        ("tcp", "tls", "tls"),
        ("tcp", "unix", "unix"),
        ("websocket", "tcp", "ws"),
        ("websocket", "tls", "wss"),
        ("websocket", "unix", "ws"),
        ("http", "tcp", "http"),
        ("http", "tls", "https"),
        ("rtcp", "tcp", "rtcp"),
        ("rtcp", "tls", "rtcps"),
    ],
)
def test_what_a_descriptor_says_of_a_listener(
    open_one: Open, tmp_path: Path, transport: str, kind: str, protocol: str
) -> None:
    cert, key = certificate(tmp_path, "x")
    endpoints = {
        "tcp": "tcp:0:interface=127.0.0.1",
        "tls": f"tls:0:certificate={cert}:key={key}:interface=127.0.0.1",
        "unix": f"unix:{tmp_path}/s",
    }
    opened = open_one(name="one", endpoint=endpoints[kind], transport=transport)
    assert (opened.name, opened.protocol) == ("one", protocol)
    assert (opened.certificates is not None) is (kind == "tls")
    closed: list[object] = []
    opened.port_factory.limit(TransportLimits(connections=1))
    opened.port_factory.close().addCallback(closed.append)
    assert closed == [None]


@pytest.mark.parametrize("transport", ["tcp", "websocket", "http", "rtcp"])
def test_a_port_that_is_taken_is_told_by_its_address(open_one: Open, transport: str) -> None:
    first: Any = open_one().port
    port = first.getHost().port
    with pytest.raises(CannotListen) as refused:
        open_one(endpoint=f"tcp:{port}:interface=127.0.0.1", transport=transport)
    assert str(refused.value).startswith(f"cannot listen on 127.0.0.1:{port}: ")


def test_a_certificate_that_cannot_be_used_is_told(open_one: Open, tmp_path: Path) -> None:
    cert, _ = certificate(tmp_path, "x")
    _, other = certificate(tmp_path, "y")
    with pytest.raises(CannotListen) as refused:
        open_one(endpoint=f"tls:0:certificate={cert}:key={other}:interface=127.0.0.1", transport="http")
    assert str(cert) in str(refused.value)


def test_a_listener_passes_its_limits_to_the_network() -> None:
    limits = BrokerLimits(connections=7, rtcp_backlog=5_000)
    assert net_limits(BrokerListener(limits=limits)) == limits


def test_a_listener_without_required_authentication_sets_no_deadline_for_it() -> None:
    assert net_limits(BrokerListener(allow_before_auth=True)).authenticate_within == 0
