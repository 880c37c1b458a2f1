"""Real proxies before the broker: haproxy with the PROXY protocol and with header fields, and nginx."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Sequence
from contextlib import suppress

import pytest

from tests.config.certificates import certificate, unverified
from tests.contract.newcomers import DOORS, HELLO, HERE, PING, answered
from tests.integration.configurations import TCP, listener
from tests.integration.daemon import Daemon
from tests.integration.proxies import proxying
from tests.patience import PATIENCE

CONFIG = f"""
[broker]
trusted_proxies = ["127.0.0.1/32"]
[console]
endpoint = "{TCP}"
[mc0]
endpoint = "tcp://127.0.0.1:0"
[dbp]
enabled = false
[mtl]
enabled = false
[dns]
enabled = true
endpoint = "{TCP}"
[http]
endpoint = "{TCP}"
{listener("main")}
{listener("websocket", 'transport = "websocket"')}
{listener("http", 'transport = "http"')}
"""

BY_HEADER = {
    "elko": ("send-proxy", PING, "elko"),
    "tls": ("send-proxy-v2", PING, "elko"),
    "console": ("send-proxy-v2", b"nonsense\r\n", "console"),
    "mc0": ("send-proxy-v2", b"nonsense, and more of it", "mc0"),
    "dns": ("send-proxy", b"\xff\xff", "dns"),
}
"""Doors behind haproxy in the mode TCP: its option, hostile bytes, and the wire that logs their sender."""

BY_FIELDS = {"http": "http", "long poll": "elko", "websocket": "elko"}
"""Doors behind a proxy of HTTP."""

BAD = b"GET /nothing HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("proxies")
    public, private = certificate(directory, "broker")
    config = directory / "elkobroker.toml"
    secure = f"tls:0:certificate={public}:key={private}:interface={HERE}"
    config.write_text(CONFIG + listener("tls", endpoint=secure))
    with Daemon(directory, "--config", str(config)) as running:
        yield running


@pytest.fixture(scope="module")
def haproxy(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of haproxy, by door."""
    doors = [*BY_HEADER, *BY_FIELDS]

    def text(ports: Sequence[int]) -> str:
        lines = ["global", "defaults", "timeout connect 20s", "timeout client 60s", "timeout server 60s"]
        for number, (door, port) in enumerate(zip(doors, ports, strict=True)):
            server = f"server broker {HERE}:{DOORS[door].port(daemon)}"
            options = ["mode tcp", f"{server} {BY_HEADER[door][0]}"] if door in BY_HEADER else []
            lines += [
                f"listen door{number}",
                f"bind {HERE}:{port}",
                *(options or ["mode http", "option forwardfor", server]),
            ]
        return "\n".join([*lines, ""])

    with proxying("haproxy", tmp_path_factory.mktemp("haproxy"), len(doors), text) as ports:
        yield dict(zip(doors, ports, strict=True))


@pytest.fixture(scope="module")
def nginx(daemon: Daemon, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, int]]:
    """The ports of nginx, by door."""

    def text(ports: Sequence[int]) -> str:
        return "".join(
            f"server {{ listen {HERE}:{port}; location / {{ proxy_pass http://{HERE}:{DOORS[door].port(daemon)}; "
            "proxy_http_version 1.1; proxy_set_header Upgrade $http_upgrade; proxy_set_header Connection upgrade; "
            "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for; } }\n"
            for door, port in zip(BY_FIELDS, ports, strict=True)
        )

    with proxying("nginx", tmp_path_factory.mktemp("nginx"), len(BY_FIELDS), text) as ports:
        yield dict(zip(BY_FIELDS, ports, strict=True))


@pytest.mark.parametrize("door", BY_HEADER)
def test_a_client_of_haproxy_is_served_and_logged_by_its_own_address(
    daemon: Daemon, haproxy: dict[str, int], door: str
) -> None:
    DOORS[door].honest(daemon, haproxy[door])
    _, hostile, wire = BY_HEADER[door]
    client = f"127.0.1.{list(BY_HEADER).index(door) + 1}"
    with socket.create_connection((HERE, haproxy[door]), PATIENCE, (client, 0)) as plain:
        stream = unverified().wrap_socket(plain) if door == "tls" else plain
        stream.sendall(hostile)
        daemon.wait_for(rf"{wire} peer {client}\b")
        if stream is not plain:
            stream.close()


@pytest.mark.parametrize("door", BY_FIELDS)
@pytest.mark.parametrize("proxy", ["haproxy", "nginx"])
def test_a_client_of_a_proxy_of_http_is_served_and_logged_by_its_own_address(
    request: pytest.FixtureRequest, daemon: Daemon, proxy: str, door: str
) -> None:
    ports: dict[str, int] = request.getfixturevalue(proxy)
    DOORS[door].honest(daemon, ports[door])
    client = f"127.0.{2 + (proxy == 'nginx')}.{list(BY_FIELDS).index(door) + 1}"
    bad = BAD.replace(b"\r\n\r\n", b"\r\n" + UPGRADE + b"\r\n") if door == "websocket" else BAD
    with socket.create_connection((HERE, ports[door]), PATIENCE, (client, 0)) as stream:
        answered(stream, bad, b"HTTP/1.1 4")
    daemon.wait_for(rf"{BY_FIELDS[door]} peer {client}\b")


@pytest.mark.parametrize("door", ["elko", "tls", "console", "mc0", "dns", "http", "websocket"])
def test_a_header_from_elsewhere_is_refused_at_every_door(daemon: Daemon, door: str) -> None:
    with socket.create_connection((HERE, DOORS[door].port(daemon)), PATIENCE, ("127.0.0.8", 0)) as stream:
        stream.sendall(b"PROXY TCP4 198.51.100.7 127.0.0.1 4000 80\r\n" + HELLO)
        got = b""
        with suppress(ConnectionError):
            while piece := stream.recv(65_536):
                got += piece
    assert b'"here"' not in got


NO_CLIENT = {
    "bytes": b"Forwarded: for=\xff\r\nX-Forwarded-For: \xff\r\n",
    "an open quote": b'Forwarded: for="203.0.113.7\r\nForwarded: for="[2001:db8::7]"\r\n',
    "two clients": b"Forwarded: for=203.0.113.7\r\nX-Forwarded-For: 203.0.113.8\r\n",
}
"""Fields of which a client of a proxy wrote a part, by what is wrong with them."""


@pytest.mark.parametrize("fields", NO_CLIENT.values(), ids=NO_CLIENT)
@pytest.mark.parametrize("door", BY_FIELDS)
def test_a_client_whose_address_is_uncertain_has_that_of_the_proxy(daemon: Daemon, door: str, fields: bytes) -> None:
    port = DOORS[door].port(daemon)
    bad = BAD.replace(b"\r\n\r\n", b"\r\n" + fields + (UPGRADE if door == "websocket" else b"") + b"\r\n")
    with socket.create_connection((HERE, port), PATIENCE) as stream:
        answered(stream, bad, b"HTTP/1.1 4")
    DOORS[door].honest(daemon, port)
    assert not any("made the broker fail" in line or "203.0.113." in line for line in daemon.log)
