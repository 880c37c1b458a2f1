"""Opening listeners: what descriptors say of each, what their limits are, what cannot be opened, and what a reload
changes for the peers that are connected."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock

from broker.access.principal import Access
from broker.access.rights import AnonymousAccess
from broker.config.daemon_settings import Broker
from broker.net.line_protocol import LineProtocol
from broker.net.listeners import CannotListen
from broker.wires.elko.broker_wire import OpenElko
from broker.wires.elko.director_wire import OpenDirector
from broker.wires.elko.elko_listeners import NamedListener, make_listener, net_limits
from broker.wires.elko.elko_settings import BrokerLimits, BrokerListener, Director, DirectorListener, Elko
from broker.wires.elko.sessions.authentication import AccessControl, Policy
from broker.wires.elko.transports.transport_limits import TransportLimits
from tests.config.certificates import certificate
from tests.net.reactors import poll_reactor
from tests.net.words import Link
from tests.wires.contexts import context
from tests.wires.elko.sessions.test_authentication import SlowAccess

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


# reload


class Listening:
    """A wire with one listener of these keys, to which peers connect without sockets."""

    def __init__(self, wire: str = "elko", access: Access | None = None, **keys: Any) -> None:
        self.clock = Clock()
        self._broker = wire == "elko"
        parts = context(self.clock, access=AnonymousAccess() if access is None else access)
        self.wire: Any = (OpenElko if self._broker else OpenDirector)(self._config(keys), parts)

    def _config(self, keys: dict[str, Any]) -> Any:
        return Elko((BrokerListener(**keys),)) if self._broker else Director(listeners=(DirectorListener(**keys),))

    def reload(self, **keys: Any) -> None:
        """Apply other keys."""
        self.wire.reload(self._config(keys), Broker())

    def connect(self) -> Link:
        """A peer connects."""
        [lines] = self.wire.connection_factories()
        protocol = lines.buildProtocol(IPv4Address("TCP", "192.0.2.1", 4000))
        assert isinstance(protocol, LineProtocol)
        return Link(protocol, None)

    def authenticated(self, *roles: str) -> Link:
        """A peer has authenticated to the objects of these names."""
        link = self.connect()
        assert [ask(link, role, "auth") for role in roles] == [[]] * len(roles)
        return link


def ask(link: Link, to: str, op: str, **parameters: Any) -> list[dict[str, Any]]:
    """Send a message. Returns the answers, and all messages before them."""
    link.send(json.dumps({"to": to, "op": op, **parameters}), "")
    return told(link)


def told(link: Link) -> list[dict[str, Any]]:
    """The messages to a peer since the last call."""
    return [json.loads(block) for block in b"".join(link.take()).split(b"\n\n") if block]


@pytest.mark.parametrize(
    ("wire", "kept", "lost"),
    [("elko", "client", "admin"), ("elko", "admin", "client"), ("director", "provider", "admin")],
)
def test_a_reload_ends_the_sessions_of_roles_that_the_listener_serves_no_more(wire: str, kept: str, lost: str) -> None:
    listening = Listening(wire)
    staying, ended, with_both = (listening.authenticated(*roles) for roles in ((kept,), (lost,), (kept, lost)))
    waiting = listening.connect()
    listening.reload(allow=(kept,))
    for each in (ended, with_both):
        [diagnostic] = told(each)
        assert diagnostic["msg"] == f"a peer without a user may not be {lost} any more: closing"
        assert each.wire.half_closed
    assert ask(staying, kept, "ping") == [{"to": kept, "op": "pong"}]
    assert ask(waiting, kept, "auth") == told(staying) == []
    listening.reload(allow=(kept, lost))
    assert not staying.wire.half_closed
    assert not waiting.wire.half_closed


def test_a_password_that_is_checked_during_a_reload_gives_no_role_that_is_served_no_more() -> None:
    access = SlowAccess()
    listening = Listening(access=access)
    ann = listening.connect()
    assert ask(ann, "admin", "auth", auth={"mode": "password", "id": "ann", "code": "pencil"}) == []
    listening.reload(allow=("client",))
    access.right("ann")
    listening.clock.advance(0)
    [diagnostic] = told(ann)
    assert diagnostic["msg"] == "auth: ann may not be admin here"


@pytest.mark.parametrize("wire", ["elko", "director"])
def test_a_reload_that_requires_auth_requires_it_of_connected_peers_too(wire: str) -> None:
    role = "client" if wire == "elko" else "user"
    to = "client" if wire == "elko" else "director"
    listening = Listening(wire, allow_before_auth=True)
    stranger, other, known = listening.connect(), listening.connect(), listening.authenticated(to)
    assert ask(stranger, to, "ping") == [{"to": to, "op": "pong"}]
    listening.reload(allow=(role,))
    [diagnostic] = ask(stranger, to, "ping")
    assert diagnostic["msg"] == "the first message must be auth, not 'ping'"
    assert stranger.wire.half_closed
    assert ask(other, to, "auth") == []
    for each in (other, known):
        assert ask(each, to, "ping") == [{"to": to, "op": "pong"}]


def test_a_reload_that_requires_no_auth_serves_connected_peers_too() -> None:
    listening = Listening()
    stranger = listening.connect()
    listening.reload(allow_before_auth=True)
    assert ask(stranger, "client", "ping") == [{"to": "client", "op": "pong"}]


def test_a_reload_that_requires_auth_ends_the_finds_of_peers_without_it() -> None:
    listening = Listening(allow_before_auth=True)
    stranger, known = listening.connect(), listening.authenticated("client")
    for each in (stranger, known):
        assert ask(each, "client", "find", service="bank", wait=60, tag="t") == []
        assert ask(each, "client", "find", service="bank", wait=-1, monitor=True) == []
    listening.reload()
    listening.clock.advance(0)
    failure = {"type": "servicedesc", "service": "bank", "failure": "find: not authenticated to 'client'"}
    answer = {"to": "client", "op": "find", "desc": [failure]}
    assert told(stranger) == [{**answer, "tag": "t"}, answer]
    assert not stranger.wire.half_closed
    ask(known, "client", "willserve", services=[{"type": "servicedesc", "service": "bank", "hostport": "h:1"}])
    assert told(stranger) == []


def test_a_password_that_is_checked_while_a_reload_requires_auth_is_required() -> None:
    access = SlowAccess()
    listening = Listening(access=access, allow_before_auth=True)
    ann = listening.connect()
    assert ask(ann, "admin", "auth", auth={"mode": "password", "id": "ann", "code": "pencil"}) == []
    assert ask(ann, "client", "ping") == []
    listening.reload(allow=("client",))
    access.right("ann")
    listening.clock.advance(0)
    denied, diagnostic = told(ann)
    assert denied["msg"] == "auth: ann may not be admin here"
    assert diagnostic["msg"] == "the first message must be auth, not 'ping'"
    assert ann.wire.half_closed


def test_peers_that_a_reload_requires_to_authenticate_have_the_time_of_new_ones() -> None:
    limits = BrokerLimits(authenticate_within=5)
    listening = Listening(allow_before_auth=True, limits=limits)
    stranger, known = listening.connect(), listening.authenticated("client")
    listening.clock.pump([1.0] * 60)
    listening.reload(limits=limits)
    listening.clock.pump([1.0] * 4)
    assert told(stranger) == []
    listening.clock.pump([1.0] * 2)
    [diagnostic] = told(stranger)
    assert diagnostic["msg"] == "no auth in time: closing"
    assert not known.wire.half_closed


def test_peers_of_which_a_reload_requires_no_auth_may_take_their_time() -> None:
    listening = Listening(limits=BrokerLimits(authenticate_within=5))
    stranger = listening.connect()
    listening.reload(allow_before_auth=True)
    listening.clock.pump([1.0] * 60)
    assert not stranger.wire.half_closed
