"""Order between connections: a Context Server has a reservation before the user who brings it."""

from __future__ import annotations

import select
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from websockets.sync.client import connect

from tests.config.certificates import certificate
from tests.integration.configurations import OFF, listener
from tests.integration.daemon import Daemon, Peer
from tests.patience import PATIENCE

ROUNDS = 20
"""Reservations of each user connection: in the wrong order, most of them would show it."""


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("trusted"), "broker")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, trusted: tuple[Path, Path]) -> Iterator[Daemon]:
    folder = tmp_path_factory.mktemp("daemon")
    config = folder / "elkobroker.toml"
    tls = f"tls:0:certificate={trusted[0]}:key={trusted[1]}:interface=127.0.0.1"
    config.write_text(
        OFF
        + "[director]\nenabled = true\n[console]\nenabled = false\n"
        + listener("main")
        + listener("tcp", of="director")
        + listener("tls", endpoint=tls, of="director")
        + listener("ws", 'transport = "websocket"', of="director")
    )
    with Daemon(folder, "--config", str(config)) as running:
        yield running


def port(daemon: Daemon, listener: str) -> int:
    return int(daemon.wait_for(rf"director listener '{listener}' on \S+:(\d+) ").group(1))


def server(daemon: Daemon, listener: str, trusted: tuple[Path, Path], context: str) -> Peer:
    """A Context Server that serves this family of contexts."""
    sock = socket.create_connection(("127.0.0.1", port(daemon, listener)), PATIENCE)
    if listener == "tls":
        tls = ssl.create_default_context(cafile=str(trusted[0]))
        tls.check_hostname = False
        sock = tls.wrap_socket(sock)
    peer = Peer(sock)
    peer.send(to="provider", op="auth", label=f"{listener} server")
    peer.send(to="provider", op="address", protocol="tcp", hostport=f"{context}.example.com:9000")
    peer.send(to="provider", op="willserve", context=context)
    peer.done()
    return peer


@pytest.mark.parametrize("listener", ["tcp", "tls"])
def test_a_server_has_the_reservation_before_the_user(
    daemon: Daemon, trusted: tuple[Path, Path], listener: str
) -> None:
    with server(daemon, listener, trusted, listener) as serving, ExitStack() as stack:
        for number in range(5):
            user = stack.enter_context(Peer(socket.create_connection(("127.0.0.1", port(daemon, "tcp")), PATIENCE)))
            user.send(to="director", op="auth", label="user")
            for attempt in range(ROUNDS):
                name, context = f"user-{number}-{attempt}", f"{listener}-{number}-{attempt}"
                answer = user.ask(to="director", op="reserve", protocol="tcp", context=context, user=name)
                assert "deny" not in answer, answer
                assert select.select([serving.sock], [], [], 0)[0], "the user has the answer, the server has nothing"
                order = serving.receive()
                assert (order["op"], order["reservation"]) == ("doreserve", answer["reservation"])


def test_the_same_holds_for_a_user_on_a_websocket(daemon: Daemon, trusted: tuple[Path, Path]) -> None:
    with (
        server(daemon, "tcp", trusted, "web") as serving,
        connect(f"ws://127.0.0.1:{port(daemon, 'ws')}/", proxy=None) as user,
    ):
        user.send('{"to":"director", "op":"auth", "label":"user"}')
        for attempt in range(ROUNDS):
            user.send(
                f'{{"to":"director", "op":"reserve", "protocol":"tcp", "context":"web-{attempt}",'
                f' "user":"user-{attempt}"}}'
            )
            user.recv(PATIENCE)
            assert select.select([serving.sock], [], [], 0)[0], "the user has the answer, the server has nothing"
            assert serving.receive()["op"] == "doreserve"
