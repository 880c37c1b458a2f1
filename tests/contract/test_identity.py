"""One identity on every wire: the owner of a name is a user, or a host by whichever of its addresses.

Each wire has a name that one peer takes and another peer would take from it: the instance of a service (HTTP), a
service (DBP), an identity (mc0). MTL, DBP and mc0 share the identities of the ROUTER. Elko's and MTL's registrations
belong to their connections.
"""

from __future__ import annotations

import hashlib
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import attrs
import pytest
import zmq

from broker.access.principal import Method, Principal
from broker.core.errors import Reason, Refusal
from broker.wires.http.sessions.instances import Offer
from tests.integration.daemon import Daemon
from tests.patience import PATIENCE
from tests.wires.dbp.recording import DbpFarm, T
from tests.wires.http.recording import HttpFarm
from tests.wires.mc0.recording import Mc0Farm

HERE = ["127.0.0.1", "127.200.0.1", "::1", "::ffff:127.0.0.1", "uid 0 here", "unix"]
"""Addresses of this machine."""

ELSEWHERE = "192.0.2.7"


class Names(Protocol):
    """A wire with one name that peers take."""

    def take(self, address: str) -> bool:
        """Take the name by a new connection from an address, whether or not it is taken. Returns True if it is had."""


class HttpNames:
    """The instance of a service."""

    def __init__(self) -> None:
        self._farm = HttpFarm()

    def take(self, address: str) -> bool:
        return self._farm.put("bank", "a", address=address).status in (200, 201)


class DbpNames:
    """A service under contract."""

    def __init__(self) -> None:
        self._farm = DbpFarm()

    def take(self, address: str) -> bool:
        peer = self._farm.dealer(address)
        [answer] = peer.register("rohan", heartbeat_ms=500)
        if answer[0] != b"OwO":
            return False
        peer.send("<3", T, "rohan")
        return bool(self._farm.entry("rohan").contract)


class Mc0Names:
    """An identity with a session."""

    def __init__(self) -> None:
        self._farm = Mc0Farm()

    def take(self, address: str) -> bool:
        peer = self._farm.peer("A", address=address)
        return peer.line is not None and peer.ask("CONNECT|ID|c|TTL|30000") == ["OK|ID|c"]


WIRES: dict[str, type[Any]] = {"http": HttpNames, "dbp": DbpNames, "mc0": Mc0Names}


@pytest.fixture(params=WIRES)
def names(request: pytest.FixtureRequest) -> Names:
    made: Names = WIRES[request.param]()
    return made


@pytest.mark.parametrize("address", HERE)
def test_this_machine_is_one_host(names: Names, address: str) -> None:
    assert names.take("127.0.0.1")
    assert names.take(address)
    assert names.take("127.0.0.1")
    assert not names.take(ELSEWHERE)


def test_an_ipv4_address_is_one_host_as_it_stands_and_mapped(names: Names) -> None:
    assert names.take(ELSEWHERE)
    assert names.take(f"::ffff:{ELSEWHERE}")
    assert not names.take("192.0.2.8")
    assert not names.take("::ffff:192.0.2.8")
    assert not names.take("127.0.0.1")


def test_an_ipv6_address_is_one_host_in_all_its_spellings(names: Names) -> None:
    assert names.take("2001:db8::1")
    assert names.take("2001:DB8:0:0:0:0:0:1")
    # A neighbour in the same network shares its rates, and not its names.
    assert not names.take("2001:db8::2")


# users


ANN = Principal("ann", Method.TOKEN, "192.0.2.7", "a token")
BOB = Principal("bob", Method.TOKEN, "192.0.2.7", "another token")


def test_a_user_owns_an_instance_from_any_address_and_by_any_credential() -> None:
    instances = HttpFarm().instances
    offer = Offer("h:1", "tcp", {}, None, 30.0)
    instances.put("bank", "a", ANN, offer)
    instances.put("bank", "a", attrs.evolve(ANN, address="2001:db8::1", credential="a newer token"), offer)
    for other in (BOB, Principal(address="192.0.2.7"), Principal("anonymous", address="192.0.2.7")):
        with pytest.raises(Refusal) as refused:
            instances.put("bank", "a", other, offer)
        assert refused.value.reason is Reason.NAME_TAKEN
    # The user "anonymous" is none: its host owns.
    instances.put("bank", "b", Principal("anonymous", address="127.0.0.1"), offer)
    instances.renew("bank", "b", Principal(address="::1"))


def test_a_user_owns_an_identity_from_any_address_and_by_any_key() -> None:
    farm = Mc0Farm(keys={"OLD": "ann", "NEW": "ann", "OTHER": "bob"})
    assert farm.peer("A", "OLD", "192.0.2.7").ask("CONNECT|ID|c|TTL|30000") == ["OK|ID|c"]
    assert farm.peer("A", "NEW", "2001:db8::1").ask("CONNECT|ID|c|TTL|30000") == ["OK|ID|c"]
    assert farm.peer("A", "OTHER", "2001:db8::1").line is None


# a real machine with two families


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """A broker that listens on all addresses of both families."""
    folder = tmp_path_factory.mktemp("both")
    (folder / "elkobroker.toml").write_text(
        "[[elko.listeners]]\nendpoint = 'tcp:0:interface=127.0.0.1'\n"
        "[http]\nendpoint = 'tcp:0:interface=\\:\\:'\n"
        "[mc0]\nendpoint = 'tcp://[::]:0'\n"
        "[mtl]\nendpoint = 'tcp://[::]:0'\n"
        "[dbp]\nendpoint = 'tcp://127.0.0.1:0'\n"
    )
    with Daemon(folder, "--open", "--config", str(folder / "elkobroker.toml")) as daemon:
        yield daemon


def test_the_owner_token_survives_a_restart_and_no_file_or_log_has_it(tmp_path: Path) -> None:
    body = json.dumps({"hostport": "h:1", "ttl": 600}).encode()

    def put(daemon: Daemon, **headers: str) -> str:
        url = f"http://127.0.0.1:{daemon.http_port()}/v1/services/bank/1"
        with urlopen(Request(url, body, headers, method="PUT"), timeout=PATIENCE) as answer:
            return str(json.load(answer)["owner_token"])

    logs = []
    token = ""
    for _ in range(2):
        with Daemon(tmp_path) as daemon:
            given = {"Owner-Token": token} if token else {}
            assert put(daemon, **given) == (token or put(daemon))
            token = token or put(daemon)
            shown = [f"http://127.0.0.1:{daemon.http_port()}/v1/{name}" for name in ("services", "providers", "config")]
            for url in shown:
                with urlopen(url, timeout=PATIENCE) as answer:
                    logs.append(answer.read().decode())
            daemon.signal(signal.SIGTERM)
            daemon.ended()
            logs += daemon.log
    files = [path.read_bytes() for path in (tmp_path / "state").rglob("*") if path.is_file()]
    digest = hashlib.sha256(token.encode()).hexdigest()
    assert any(digest.encode() in content for content in files)
    assert not any(token.encode() in content for content in files)
    assert not any(token in text or digest in text for text in logs)


def asked(method: str, host: str, port: int, path: str, body: Any = None) -> int:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"http://{host}:{port}{path}", data, {"Content-Type": "application/json"}, method=method)
    try:
        with urlopen(request, timeout=PATIENCE) as answer:
            return int(answer.status)
    except HTTPError as error:
        return error.code


def test_an_instance_is_changed_by_both_families(both: Daemon) -> None:
    port = int(both.wait_for(r"http on \S+:(\d+) ")[1])
    path, body = "/v1/services/own/1", {"hostport": "127.0.0.1:1", "ttl": 600}
    assert asked("PUT", "127.0.0.1", port, path, body) == 201
    assert asked("PUT", "[::1]", port, path, body) == 200
    assert asked("POST", "[::1]", port, f"{path}/renew", {}) == 200
    assert asked("POST", "127.0.0.1", port, f"{path}/renew", {}) == 200
    assert asked("DELETE", "[::1]", port, path) == 204


@pytest.mark.parametrize("wire", ["mc0", "mtl"])
def test_an_identity_of_a_router_moves_between_both_families(both: Daemon, wire: str) -> None:
    port = both.wait_for(rf"{wire} on tcp://\[?\S+\]?:(\d+) ")[1]
    context = zmq.Context()
    try:
        for host in ("127.0.0.1", "[::1]", "127.0.0.1"):
            peer = context.socket(zmq.DEALER)
            peer.linger = 0
            peer.ipv6 = True
            peer.identity = b"one identity"
            peer.connect(f"tcp://{host}:{port}")
            if wire == "mc0":
                peer.send_multipart([b"", b"CONNECT", b"TTL", b"60000", b"ID", b"1"])
            else:
                peer.send_multipart([b"", b"Connection.Open", b'{"protocol": {"name": "MTL", "version": 1}}'])
            assert peer.poll(round(PATIENCE * 1_000)), f"no answer by {host}"
    finally:
        context.destroy(linger=0)
