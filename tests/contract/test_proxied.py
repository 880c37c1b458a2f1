"""Clients of trusted proxies, at every listener: limits, logins, owners and the log go by the client's address."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import attrs
import pytest

from tests.contract.doors import DOORS, IN, House, open_house
from tests.contract.test_logins import exhaust, is_refused
from tests.contract.test_silence import ports_of
from tests.integration.configurations import PORTS_OF_EVERY_LISTENER, every_listener
from tests.integration.daemon import Daemon, Peer
from tests.integration.dbp_nodes import Node, text
from tests.integration.mc0_clients import Clients, counters
from tests.integration.mtl_peers import Peers
from tests.integration.proxy_relay import Relay
from tests.patience import LOOK_EVERY, PATIENCE, until

TRUSTED = '[broker]\ntrusted_proxies = ["127.0.0.1/32"]\n'

ONE, OTHER, SIX = "198.51.100.7", "198.51.100.8", "2001:db8::7"


# logins


@attrs.define
class Behind:
    """The daemon of a house as its peers find it: behind a proxy, as a client of this address."""

    daemon: Daemon
    client: str
    stack: ExitStack
    _ports: dict[int, int] = attrs.field(factory=dict)

    def through(self, port: int) -> int:
        """The port of the proxy before a port of the broker."""
        if port not in self._ports:
            self._ports[port] = self.stack.enter_context(Relay(port, self.client)).port
        return self._ports[port]

    def port(self, listener: str = "main") -> int:
        return self.through(self.daemon.port(listener))

    def console_port(self) -> int:
        return self.through(self.daemon.console_port())

    def http_port(self) -> int:
        return self.through(self.daemon.http_port())

    def wait_for(self, pattern: str) -> re.Match[str]:
        """A line of the log that ends in a port, with that of the proxy."""
        found = self.daemon.wait_for(pattern)
        shown = re.search(pattern, found[0].replace(found[1], str(self.through(int(found[1])))))
        assert shown is not None
        return shown


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("proxied"), more=TRUSTED) as house:
        yield house


@contextmanager
def behind(house: House, client: str) -> Iterator[House]:
    """The house through a proxy."""
    with ExitStack() as stack:
        daemon = Behind(house.daemon, client, stack)
        control = re.sub(r"\d+$", lambda port: str(daemon.through(int(port[0]))), house.mtl.address)
        mtl = stack.enter_context(Peers(control, house.mtl.data))
        yield House(daemon, mtl)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DOORS)
def test_guesses_of_a_client_count_for_it_and_for_no_other_client_of_its_proxy(house: House, name: str) -> None:
    door, number = DOORS[name], list(DOORS).index(name)
    with behind(house, f"203.0.113.{number + 1}") as one, behind(house, f"203.0.113.{number + 101}") as other:
        assert is_refused(exhaust(one, door, "127.0.0.1"))
        house.daemon.wait_for(rf"peer 203\.0\.113\.{number + 1}\b.*too many wrong passwords")
        assert door(other, "ann", "pencil", "127.0.0.1") == IN
    assert not any("peer 127.0.0.1" in line for line in house.daemon.log)


# the log, and limits of connections


@pytest.fixture(scope="module")
def all_listeners(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("listeners")
    with Daemon(directory, *every_listener(directory, TRUSTED)) as running:
        yield running


def test_hostile_clients_are_logged_by_their_addresses_at_every_listener(all_listeners: Daemon) -> None:
    ports = until(lambda: found if len(found := ports_of(all_listeners)) >= PORTS_OF_EVERY_LISTENER else [])
    for number, port in enumerate(ports):
        client = f"198.51.100.{number + 1}"
        with Relay(port, client) as relay, socket.create_connection(("127.0.0.1", relay.port), PATIENCE) as stream:
            stream.sendall(b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n\xff\xff\xff\xff" + b"x" * 100)
            all_listeners.wait_for(rf"peer {re.escape(client)}\b")
    assert not any("peer 127.0.0.1" in line for line in all_listeners.log)


# owners


@pytest.fixture(scope="module")
def open_to_all(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker without users: hosts own."""
    directory = tmp_path_factory.mktemp("owners")
    with Daemon(directory, *every_listener(directory, TRUSTED)) as running:
        yield running


def requested(daemon: Daemon, client: str, method: str, path: str, token: str = "", **body: Any) -> tuple[int, Any]:
    """The status and answer of HTTP, to a client."""
    headers = {"Content-Type": "application/json"} | ({"Owner-Token": token} if token else {})
    with Relay(daemon.http_port(), client) as relay:
        url = f"http://127.0.0.1:{relay.port}/v1/{path}"
        try:
            request = urllib.request.Request(url, json.dumps(body).encode() if body else None, headers, method=method)
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return answer.status, json.loads(answer.read() or "null")
        except HTTPError as error:
            return error.code, json.load(error)


def http_name(daemon: Daemon, client: str) -> bool:
    status, _ = requested(daemon, client, "PUT", "services/own/1", hostport="h:1", ttl=600)
    assert status in (200, 201, 409)
    return status != 409


def dbp_name(daemon: Daemon, client: str) -> bool:
    with Relay(daemon.dbp_port(), client) as relay, Clients(f"tcp://127.0.0.1:{relay.port}") as clients:
        node = Node(clients.new(), text)
        answer = node.ask("UwU", {"name": "rohan", "heartbeat": 1, "liveness": 600, "ip": client, "port": 1})
        return answer[0] == b"OwO"


def mc0_name(daemon: Daemon, client: str) -> bool:
    before = counters(daemon).get("mc0_refused.identity-taken", 0)
    with Relay(daemon.mc0_port(), client) as relay, Clients(f"tcp://127.0.0.1:{relay.port}") as clients:
        peer = clients.new(b"one identity")
        peer.say("CONNECT|ID|c|TTL|600000")
        while not peer.socket.poll(int(LOOK_EVERY * 1_000)):
            if counters(daemon).get("mc0_refused.identity-taken", 0) > before:
                return False
        return peer.hear() == "OK|ID|c"


NAMES: dict[str, Callable[[Daemon, str], bool]] = {"http": http_name, "dbp": dbp_name, "mc0": mc0_name}


@pytest.mark.parametrize("wire", NAMES)
def test_a_client_of_a_proxy_owns_its_names_and_no_other_client_takes_them(open_to_all: Daemon, wire: str) -> None:
    take = NAMES[wire]
    assert take(open_to_all, ONE)
    assert take(open_to_all, ONE)
    assert not take(open_to_all, OTHER)
    assert not take(open_to_all, SIX)
    assert take(open_to_all, ONE)


def test_a_moved_instance_keeps_its_entry_by_the_owner_token(open_to_all: Daemon) -> None:
    path = "services/moved/1"
    offer: dict[str, Any] = {"hostport": "h:1", "ttl": 600}
    status, answer = requested(open_to_all, ONE, "PUT", path, **offer)
    assert status == 201
    token = answer["owner_token"]
    for method, where, body in (("PUT", path, offer), ("POST", f"{path}/renew", {"load": 0.5}), ("DELETE", path, {})):
        for given in ("", token[:-1] + "!"):
            status, refused = requested(open_to_all, OTHER, method, where, given, **body)
            assert (status, refused["code"]) == (409, "name-taken"), (method, refused)
    for client, given, method, where, body in (
        (OTHER, token, "POST", f"{path}/renew", {"load": 0.5}),
        (SIX, token, "PUT", path, offer | {"hostport": "h:2"}),
        (SIX, "", "PUT", path, offer | {"hostport": "h:3"}),
        (ONE, token, "DELETE", path, {}),
    ):
        assert requested(open_to_all, client, method, where, given, **body)[0] in (200, 204), (client, method)


# outgoing connections


SPECIAL = {
    "own": "127.0.0.1 is an address of this machine, and its provider is on another one",
    "meta": "169.254.169.254 is a link-local address",
    "many": "224.0.0.1 is a multicast address",
    "here": "127.0.0.1 is an address of this machine, and its provider is on another one",
    "mapped": "127.0.0.1 is an address of this machine, and its provider is on another one",
}
"""Services, and why the broker does not connect to them for a check."""


def places(daemon: Daemon, elsewhere: int) -> dict[str, str]:
    """The hostports of these services. ``elsewhere`` is the port of another program of this machine."""
    return {
        "own": f"127.0.0.1:{daemon.port()}",
        "meta": "169.254.169.254:80",
        "many": "224.0.0.1:80",
        "here": f"127.0.0.1:{elsewhere}",
        "mapped": f"[::ffff:127.0.0.1]:{elsewhere}",
    }


@pytest.mark.parametrize("wire", ["http", "elko", pytest.param("dbp", marks=pytest.mark.long)])
def test_the_broker_connects_to_no_special_address_for_a_stranger(tmp_path: Path, wire: str) -> None:
    rule = '[checks]\nnetworks = ["0.0.0.0/0", "::/0"]\n' + (
        '[[checks.rules]]\nservices = ["*"]\nkind = "tcp"\ninterval = 1\ntimeout = 0.5\nwires = ["http", "elko"]\n'
    )
    options = every_listener(tmp_path, TRUSTED + rule)
    with Daemon(tmp_path, *options) as daemon, socket.create_server(("127.0.0.1", 0)) as program, ExitStack() as stack:
        program.setblocking(False)
        where = places(daemon, program.getsockname()[1])
        if wire == "dbp":  # its addresses are IPv4, and loopback ones become those of the connection
            del where["mapped"]
            relay = stack.enter_context(Relay(daemon.dbp_port(), ONE))
            clients = stack.enter_context(Clients(f"tcp://127.0.0.1:{relay.port}"))
        for name, hostport in where.items():
            host, _, port = hostport.rpartition(":")
            if wire == "http":
                assert requested(daemon, ONE, "PUT", f"services/{name}/1", hostport=hostport, ttl=600)[0] == 201
            elif wire == "dbp":
                about = {"name": name, "heartbeat": 1, "liveness": 5, "ip": host, "port": int(port)}
                assert Node(clients.new(), text).ask("UwU", about)[0] == b"OwO"
            else:
                relay = stack.enter_context(Relay(daemon.port(), ONE))
                peer = stack.enter_context(Peer(socket.create_connection(("127.0.0.1", relay.port), PATIENCE)))
                peer.send(to="client", op="auth", label=name)
                peer.send(to="client", op="willserve", services=[{"service": name, "hostport": hostport}])
                if peer.ask(to="error", op="ping", tag="done").get("op") == "debug":  # a remark on the address
                    assert peer.receive()["tag"] == "done"

        def refused() -> dict[str, str]:
            found = {name: requested(daemon, ONE, "GET", f"why/{name}")[1].get("entries") for name in where}
            return {name: entries[0].get("check", "") if entries else "" for name, entries in found.items()}

        if wire == "dbp":  # they end without heartbeats, whatever the probes
            until(lambda: counters(daemon).get("checks_refused.special", 0) >= 2)
        else:
            until(lambda: all(SPECIAL[name] in text for name, text in refused().items()))
            assert counters(daemon)["checks_refused.loopback"] > 0
        with pytest.raises(BlockingIOError):
            program.accept()
