"""Hostile peers that take all places of a door: the same attack against each door of a running broker.

Hostile peers connect, and send the beginning of a conversation, begin sessions, or authenticate and stay idle.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import attrs
import pytest

from bench.robust.elko_attacks import CLIENT_HELLO
from bench.zmtp import opening
from broker.app.console_parts import LIMITS
from tests.config.certificates import certificate
from tests.contract.newcomers import AUTH, DOORS, HERE, connected, get
from tests.integration.configurations import TCP, listener
from tests.integration.daemon import Daemon, Peer, environment
from tests.integration.http_api import ask
from tests.integration.mc0_clients import counters
from tests.patience import PATIENCE, until
from tests.wires.elko.transports.virtual_links import HANDSHAKE

PLACES = 20
"""Places of each listener."""

HOSTILE = 60
"""Hostile peers, three for each place."""

CROWD = 1_000
"""Hostile peers that come faster than they give way: accept queues have room for some of them."""

CONFIG = f"""
[console]
endpoint = "{TCP}"
[mc0]
endpoint = "tcp://{HERE}:0"
connections = {PLACES}
handshake = 60.0
[dbp]
endpoint = "tcp://{HERE}:0"
beacon = []
connections = {PLACES}
handshake = 60.0
[mtl]
endpoint = "tcp://{HERE}:0"
connections = {PLACES}
handshake = 60.0
[dns]
enabled = true
endpoint = "{TCP}"
connections = {PLACES}
idle = 600.0
[http]
endpoint = "{TCP}"
connections = {PLACES}
[director]
enabled = true
{listener("director", f"limits = {{ connections = {PLACES} }}", of="director")}
"""

TRANSPORTS = {"main": "tcp", "tls": "tcp", "websocket": "websocket", "http": "http", "rtcp": "rtcp"}
"""Elko listeners, by name."""

NOTIFIED = """
[[notify.rules]]
name = "file"
events = ["listener-full"]
command = ["sh", "-c", "cat > {file}.new && mv {file}.new {file}"]
"""


def _configured(directory: Path) -> tuple[str, str]:
    public, private = certificate(directory, "broker")
    secure = f"tls:0:certificate={public}:key={private}:interface={HERE}"
    limits = f"limits = {{ connections = {PLACES} }}"
    listeners = [
        listener(name, f'transport = "{transport}"', limits, endpoint=secure if name == "tls" else TCP)
        for name, transport in TRANSPORTS.items()
    ]
    config = directory / "elkobroker.toml"
    config.write_text(CONFIG + "".join(listeners))
    return "--config", str(config)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("places")
    with Daemon(directory, *_configured(directory)) as running:
        yield running


ATTACKED = {
    **DOORS,
    "long poll, sessions": attrs.evolve(DOORS["long poll"], sends=get("/connect") * 10),
    "rtcp, sessions": attrs.evolve(DOORS["rtcp"], sends=b"start\n"),
    "tls, half open": attrs.evolve(DOORS["tls"], sends=CLIENT_HELLO),
    "websocket, upgraded": attrs.evolve(DOORS["websocket"], sends=HANDSHAKE),
    **{f"{wire}, idle": attrs.evolve(DOORS[wire], sends=opening()) for wire in ("mc0", "dbp", "mtl")},
    "elko, idle": attrs.evolve(DOORS["elko"], sends=AUTH),
    "director, idle": attrs.evolve(DOORS["director"], sends=AUTH.replace(b'"client"', b'"director"')),
}
"""Doors whose places are taken by connections in their first messages, by sessions, or by peers that have
authenticated, offer nothing and wait for nothing."""


def _attack(daemon: Daemon, name: str, stack: ExitStack, peers: int = HOSTILE) -> None:
    """Take all places, several times over, and keep them."""
    door = ATTACKED[name]
    before = counters(daemon)[f"{door.wire}_accept.displaced"]
    for _ in range(peers if name != "console" else peers + LIMITS.connections):
        hostile = stack.enter_context(connected(door.port(daemon)))
        if door.sends:
            hostile.sendall(door.sends)
    until(lambda: counters(daemon)[f"{door.wire}_accept.displaced"] > before)


@pytest.mark.parametrize(
    ("name", "peers"),
    [
        *((name, HOSTILE) for name in ATTACKED if name != "dns"),
        ("dns", CROWD),
        *(pytest.param(name, CROWD, marks=pytest.mark.long) for name in ATTACKED if name != "dns"),
    ],
)
def test_a_newcomer_is_served_beside_hostile_peers_that_take_all_places(daemon: Daemon, name: str, peers: int) -> None:
    door = ATTACKED[name]
    with ExitStack() as stack:
        _attack(daemon, name, stack, peers)
        for _ in range(5):
            door.honest(daemon, door.port(daemon))


def _providing(port: int, source: str = HERE) -> Peer:
    """A server that offers a service: it gives way to nobody."""
    peer = Peer(connected(port, source))
    peer.send(to="client", op="auth", label="server")
    peer.send(to="client", op="willserve", services=[{"service": "bank", "hostport": "h:1"}])
    peer.done()
    return peer


def test_peers_that_offer_something_stay_while_hostile_ones_come_and_go(daemon: Daemon) -> None:
    door = DOORS["elko"]
    with ExitStack() as stack:
        servers = [stack.enter_context(_providing(door.port(daemon))) for _ in range(5)]
        _attack(daemon, "elko", stack)
        for server in servers:
            server.done()
        assert any("give way" in each["reason"] for each in ask(daemon, "GET", "/readyz")[1]["degraded"])
        listeners = ask(daemon, "GET", "/v1/status")[1]["listeners"]
        [row] = [each for each in listeners if (each.get("wire"), each.get("name")) == ("elko", "main")]
        assert row["full"] is True


def test_a_listener_whose_peers_are_all_needed_refuses_newcomers_with_a_reason(tmp_path: Path) -> None:
    option, config = _configured(tmp_path)
    with open(config, "a") as file:
        file.write(NOTIFIED.format(file=tmp_path / "event"))
    with Daemon(tmp_path, option, config) as daemon, ExitStack() as stack:
        port = DOORS["elko"].port(daemon)
        servers = [stack.enter_context(_providing(port)) for _ in range(PLACES)]
        with Peer(connected(port)) as newcomer:
            assert "all places are taken" in newcomer.receive()["msg"]
            newcomer.closed()
        readiness = ask(daemon, "GET", "/readyz")[1]
        assert readiness["ready"] is False
        [reason] = [each for each in readiness["reasons"] if each["what"] == "listener elko main"]
        assert "new ones are refused" in reason["reason"]
        assert counters(daemon)["elko_accept.refused"] == 1
        doctor = [sys.executable, "-m", "broker.brokerctl", "--url", f"http://{HERE}:{daemon.http_port()}", "doctor"]
        shown = subprocess.run(doctor, capture_output=True, text=True, timeout=PATIENCE, env=environment())
        assert "new ones are refused" in shown.stdout, shown
        until(lambda: counters(daemon)["notifications.sent"])
        assert json.loads((tmp_path / "event").read_text())["name"] == "listener elko main"
        for server in servers:
            server.done()
        servers.pop().sock.close()

        def served() -> bool:
            with Peer(connected(port)) as peer:
                peer.send(to="client", op="auth")
                try:
                    return bool(peer.ask(to="error", op="ping", tag="in")["tag"] == "in")
                except (KeyError, OSError, EOFError):
                    return False

        until(served)
