"""Opening listeners: what descriptors say of each, what their limits are, and what cannot be opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import attrs
import pytest
from twisted.internet.selectreactor import SelectReactor

from broker.net.admission import Limits
from broker.net.endpoints import CannotListen
from broker.wires.common.password_backoff import Guesses
from broker.wires.elko.config import ConnectionLimits, Listener
from broker.wires.elko.listeners import NamedListener, make_listener, net_limits
from broker.wires.elko.sessions.authentication import Door, Policy
from tests.config.certificates import certificate
from tests.wires.contexts import context

Open = Callable[..., NamedListener]


@pytest.fixture
def open_one() -> Iterator[Open]:
    reactor = SelectReactor()
    opened: list[NamedListener] = []

    def open_one(**keys: Any) -> NamedListener:
        def converse(peer: object) -> Any:
            raise AssertionError("nobody connects")

        listener = Listener(**{"endpoint": "tcp:0:interface=127.0.0.1", **keys})
        door = Door(Policy(), Guesses(reactor.seconds))
        made = make_listener("elko", listener, door, converse, Limits(), context(reactor))
        made.open()
        opened.append(made)
        return made

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
    port: Any = opened.carrier.port
    assert port is opened.port
    closed: list[object] = []
    opened.carrier.limit(Limits(connections=1))
    opened.carrier.close().addCallback(closed.append)
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


def test_every_limit_of_connections_reaches_the_network() -> None:
    changed: dict[str, Any] = {name: value + 1 for name, value in attrs.asdict(ConnectionLimits()).items()}
    limits = net_limits(ConnectionLimits(**changed), room=10**9, authenticate_within=7)
    assert attrs.asdict(limits) == {**changed, "authenticate_within": 7}
    assert net_limits(ConnectionLimits(), room=5, authenticate_within=0).connections == 5
