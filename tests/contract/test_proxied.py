"""Clients of trusted proxies, at every listener: limits, logins, owners and the log go by the client's address."""

from __future__ import annotations

import json
import re
import socket
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from urllib.error import HTTPError

import attrs
import pytest

from tests.contract.doors import DOORS, IN, House, open_house
from tests.contract.test_logins import exhaust, is_refused
from tests.contract.test_silence import ports_of
from tests.integration.configurations import PORTS_OF_EVERY_LISTENER, every_listener
from tests.integration.daemon import Daemon
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


def http_name(daemon: Daemon, client: str) -> bool:
    body = json.dumps({"hostport": "h:1", "ttl": 600}).encode()
    with Relay(daemon.http_port(), client) as relay:
        url = f"http://127.0.0.1:{relay.port}/v1/services/own/1"
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body, method="PUT"), timeout=PATIENCE):
                return True
        except HTTPError as error:
            assert error.code == 409
            return False


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
