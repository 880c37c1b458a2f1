"""The same broker over WebSocket, HTTP and RTCP, with real clients and the real twistd."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import ssl
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio import client as asyncio_client
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Origin

from tests.config.certificates import certificate
from tests.integration.carried_peers import HttpPeer, RtcpPeer
from tests.integration.daemon import Daemon, Peer
from tests.integration.mtl_peers import ends_in_order
from tests.patience import PATIENCE, written

PAGE = "https://game.example.org"


@pytest.fixture(scope="module")
def trusted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return certificate(tmp_path_factory.mktemp("trusted"), "broker")


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory, trusted: tuple[Path, Path]) -> Iterator[Daemon]:
    directory = tmp_path_factory.mktemp("transports")
    config = directory / "elkobroker.toml"
    tcp = "tcp:0:interface=127.0.0.1"
    tls = f"tls:0:certificate={trusted[0]}:key={trusted[1]}:interface=127.0.0.1"
    listeners = [
        f'name = "main"\nendpoint = "{tcp}"',
        f'name = "web"\nendpoint = "{tcp}"\ntransport = "websocket"\npath = "/elko"\norigins = ["{PAGE}"]',
        f'name = "poll"\nendpoint = "{tcp}"\ntransport = "http"\npath = "/Admin"\norigins = ["{PAGE}"]\n'
        "limits = { http_select_wait = 1 }\nlog_debug = true",
        f'name = "rtcp"\nendpoint = "{tcp}"\ntransport = "rtcp"',
        f'name = "wss"\nendpoint = "{tls}"\ntransport = "websocket"',
        f'name = "https"\nendpoint = "{tls}"\ntransport = "http"',
        f'name = "rtcps"\nendpoint = "{tls}"\ntransport = "rtcp"',
    ]
    config.write_text(
        "".join(f"[[elko.listeners]]\n{each}\n" for each in listeners)
        + "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    with Daemon(directory, "--config", str(config)) as running:
        running.port()
        yield running
        ends_in_order(running)


class WebPeer:
    """One WebSocket, of an independent library."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    def send(self, /, **message: Any) -> None:
        self.socket.send(json.dumps(message))

    def receive(self) -> Any:
        text = self.socket.recv(PATIENCE)
        assert isinstance(text, str)
        return json.loads(text)

    def ask(self, /, **message: Any) -> Any:
        self.send(**message)
        return self.receive()


def web(daemon: Daemon, path: str = "/elko", **options: Any) -> ClientConnection:
    socket: ClientConnection = connect(f"ws://127.0.0.1:{daemon.port('web')}{path}", proxy=None, **options)
    return socket


def offer(name: str) -> list[dict[str, str]]:
    return [{"type": "servicedesc", "service": name, "hostport": "h:1"}]


def context_for(trusted: tuple[Path, Path]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(trusted[0]))
    context.check_hostname = False
    return context


# WebSocket


def test_a_browser_finds_what_a_server_offers_on_tcp(daemon: Daemon) -> None:
    with daemon.connect() as provider, web(daemon, origin=Origin(PAGE)) as socket:
        provider.send(to="client", op="willserve", services=offer("arena"))
        provider.done()
        peer = WebPeer(socket)
        peer.send(to="client", op="auth", label="browser")
        assert peer.ask(to="client", op="find", service="arena", tag="t")["desc"][0]["hostport"] == "h:1"


def test_a_service_that_a_websocket_offers_goes_with_it(daemon: Daemon) -> None:
    with daemon.connect("admin") as admin, web(daemon) as socket:
        admin.ask(to="admin", op="watch", services=True)
        peer = WebPeer(socket)
        peer.send(to="client", op="auth")
        peer.send(to="client", op="willserve", services=offer("webbed"))
        assert admin.receive()["on"] is True
        socket.close()
        assert admin.receive()["on"] is False


def test_a_refusal_is_told_and_closes_with_a_code(daemon: Daemon) -> None:
    with web(daemon) as socket:
        told = WebPeer(socket).ask(to="admin", op="loaddesc")
        assert told["op"] == "debug"
        with pytest.raises(ConnectionClosed):
            socket.recv(PATIENCE)
        assert socket.close_code == 1008


def test_a_large_message_comes_through_and_one_too_large_closes(daemon: Daemon) -> None:
    with web(daemon, max_size=None) as socket:
        peer = WebPeer(socket)
        peer.send(to="client", op="auth")
        assert len(peer.ask(to="client", op="ping", tag="x" * 1_000_000)["tag"]) == 1_000_000
        socket.send("[" * 2_000_000)
        with suppress(ConnectionClosed):
            while True:
                socket.recv(PATIENCE)
        assert socket.close_code == 1009


def test_websockets_over_tls(daemon: Daemon, trusted: tuple[Path, Path]) -> None:
    # The synchronous client uses TLS from two threads at once, and may lose what it sends (CPython 3.11).
    async def talk() -> int | None:
        address = f"wss://127.0.0.1:{daemon.port('wss')}/"
        async with asyncio_client.connect(address, ssl=context_for(trusted), proxy=None) as socket:
            await socket.send(json.dumps({"to": "client", "op": "auth"}))
            await socket.send(json.dumps({"to": "client", "op": "ping", "tag": "hidden"}))
            assert json.loads(await socket.recv())["tag"] == "hidden"
            await socket.send(json.dumps({"to": "client", "op": "disconnect"}))
            with pytest.raises(ConnectionClosed):
                await socket.recv()
            return socket.close_code

    assert asyncio.run(asyncio.wait_for(talk(), PATIENCE)) == 1000


def test_a_page_is_not_trusted_for_being_on_this_machine(daemon: Daemon) -> None:
    with daemon.connect() as provider, web(daemon) as program, web(daemon, origin=Origin(PAGE)) as page:
        vault = {**offer("vault")[0], "auth": {"mode": "password", "code": "sesame"}}
        provider.send(to="client", op="willserve", services=[vault])
        provider.done()
        for each, shown in ((program, True), (page, False)):
            peer = WebPeer(each)
            peer.send(to="client", op="auth")
            [found] = peer.ask(to="client", op="find", service="vault")["desc"]
            assert ("auth" in found) is shown


# HTTP


def test_a_session_over_http(daemon: Daemon) -> None:
    peer = HttpPeer(daemon.port("poll"), "/admin/")
    peer.send(to="client", op="auth", label="poller")
    peer.send(to="client", op="ping", tag="1")
    peer.send(to="client", op="ping", tag="2")
    assert [message["tag"] for message in peer.receive()] == ["1", "2"]
    assert peer.ask(f"disconnect/{peer.session}") == {}
    assert peer.ask(f"select/{peer.session}/2") == {"error": "sessionIDError"}


def test_a_waiting_select_is_answered_when_something_comes(daemon: Daemon) -> None:
    with daemon.connect() as provider:
        peer = HttpPeer(daemon.port("poll"), "/ADMIN/")
        peer.send(to="client", op="auth")
        peer.send(to="client", op="find", service="polled", wait=-1)
        waiting = peer.connect()
        waiting.request("GET", f"/admin/select/{peer.session}/1")
        provider.send(to="client", op="willserve", services=offer("polled"))
        answer = json.loads(waiting.getresponse().read())
        assert answer["msgs"][0]["desc"][0]["service"] == "polled"
        # and one for which nothing comes is answered in the end
        assert peer.ask(f"select/{peer.session}/2") == {"msgs": [], "seqnum": "3"}
        waiting.close()


def test_answers_and_lines_of_the_log_have_the_id_of_their_request(daemon: Daemon) -> None:
    peer = HttpPeer(daemon.port("poll"), "/admin/")
    peer.send(to="client", op="auth")
    message = json.dumps({"to": "client", "op": "debug", "msg": "told by a page"}).encode()
    response, _ = peer.request(f"xmit/{peer.session}/2", message, {"X-Request-ID": "page-17"})
    assert response.headers["X-Request-ID"] == "page-17"
    daemon.wait_for(" page-17].*told by a page")
    admin = HttpPeer(daemon.port("poll"), "/admin/")
    admin.send(to="admin", op="auth")
    message = json.dumps({"to": "admin", "op": "reinit"}).encode()
    admin.request(f"xmit/{admin.session}/2", message, {"X-Request-ID": "page-18"})
    daemon.wait_for(r" page-18] audit: .* at 127\.0\.0\.1:\d+ .* admin.reload")
    # A thread writes it, after the line of the log.
    acts = [json.loads(line) for line in written(daemon.directory / "state" / "audit.jsonl").splitlines()]
    assert [act["request_id"] for act in acts if act["operation"] == "admin.reload"] == ["page-18"]
    made = [peer.request(path)[0].headers["X-Request-ID"] for path in ("connect", "nothing-here")]
    word = made[0].partition("-")[0]
    assert all(each.startswith(f"{word}-") for each in made)
    assert len({*made, "page-17"}) == 3


def test_http_over_tls(daemon: Daemon, trusted: tuple[Path, Path]) -> None:
    peer = HttpPeer(daemon.port("https"), "/", context_for(trusted))
    peer.send(to="client", op="auth")
    peer.send(to="client", op="ping", tag="hidden")
    assert peer.receive()[0]["tag"] == "hidden"


# RTCP


def test_a_session_of_rtcp_outlives_its_connection(daemon: Daemon) -> None:
    with daemon.connect() as provider, RtcpPeer(daemon.port("rtcp")) as peer:
        peer.send(to="client", op="auth")
        peer.send(to="client", op="find", service="lasting", wait=-1, tag="w")
        peer.send(to="client", op="ping", tag="before")
        assert peer.receive()["tag"] == "before"
        peer.lose()
        provider.send(to="client", op="willserve", services=offer("lasting"))
        provider.done()
        assert peer.resume() == peer.sent
        assert peer.receive()["tag"] == "w"
        peer.send(to="client", op="ping", tag="after")
        assert peer.receive()["tag"] == "after"


def test_rtcp_over_tls(daemon: Daemon, trusted: tuple[Path, Path]) -> None:
    with RtcpPeer(daemon.port("rtcps"), context_for(trusted)) as peer:
        peer.send(to="client", op="auth")
        peer.send(to="client", op="ping", tag="hidden")
        assert peer.receive()["tag"] == "hidden"
        peer.lose()
        assert peer.resume() == 2
        peer.send(to="client", op="disconnect")
        assert peer.sock.recv(1) == b""


# what is told of them


def test_each_listener_is_registered_with_its_protocol(daemon: Daemon) -> None:
    with daemon.connect("admin") as admin:
        own = admin.ask(to="admin", op="servicedesc")["desc"]
        clients = {each["protocol"]: each["hostport"] for each in own if each["service"] == "broker-client"}
        listeners = {"tcp": "main", "ws": "web", "http": "poll", "rtcp": "rtcp"}
        listeners |= {name: name for name in ("wss", "https", "rtcps")}
        assert clients == {protocol: f"127.0.0.1:{daemon.port(listener)}" for protocol, listener in listeners.items()}


# the director, and the end


def configured(directory: Path, table: str, listeners: dict[str, str]) -> str:
    """The path of a configuration with these listeners, each with its transport."""
    config = directory / "elkobroker.toml"
    config.write_text(
        "".join(
            f'[[{table}]]\nname = "{name}"\nendpoint = "tcp:0:interface=127.0.0.1"\ntransport = "{transport}"\n'
            for name, transport in listeners.items()
        )
        + "[mc0]\nenabled = false\n[dbp]\nenabled = false\n"
    )
    return str(config)


def test_users_reach_the_director_by_websocket_and_by_http(tmp_path: Path) -> None:
    listeners = {"farm": "tcp", "web": "websocket", "poll": "http"}
    config = configured(tmp_path, "director.listeners", listeners)
    with open(config, "a") as file:
        file.write('[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n')
    with Daemon(tmp_path, "--config", config) as running:
        found = {name: running.wait_for(rf"director listener '{name}' on \S+:(\d+) ") for name in listeners}
        ports = {name: int(match.group(1)) for name, match in found.items()}
        with Peer(socket.create_connection(("127.0.0.1", ports["farm"]), PATIENCE)) as server:
            server.send(to="provider", op="auth", label="server-1")
            server.send(to="provider", op="address", protocol="tcp", hostport="game1.example.org:9000")
            server.send(to="provider", op="willserve", context="arena")
            server.ask(to="provider", op="ping")
            with connect(f"ws://127.0.0.1:{ports['web']}/", proxy=None) as each:
                user = WebPeer(each)
                user.send(to="director", op="auth", label="user")
                reserved = user.ask(to="director", op="reserve", protocol="tcp", context="arena-1", user="user-joe")
            assert reserved["hostport"] == "game1.example.org:9000"
            assert server.receive()["reservation"] == reserved["reservation"]
            poller = HttpPeer(ports["poll"], "/")
            poller.send(to="director", op="auth")
            poller.send(to="director", op="reserve", protocol="tcp", context="nowhere-1", tag="t")
            [denied] = poller.receive()
            assert (denied["tag"], "deny" in denied) == ("t", True)
            poller.connection.close()
        ends_in_order(running)


def test_a_broker_that_stops_says_so_on_each_transport(tmp_path: Path) -> None:
    config = configured(tmp_path, "elko.listeners", {"web": "websocket", "poll": "http", "rtcp": "rtcp"})
    with (
        Daemon(tmp_path, "--config", config) as running,
        web(running, "/") as page,
        RtcpPeer(running.port("rtcp")) as rtcp,
    ):
        poller = HttpPeer(running.port("poll"), "/")
        waiting = poller.connect()
        waiting.request("GET", f"/select/{poller.session}/1")
        poller.send(to="client", op="auth")
        for peer in (WebPeer(page), rtcp):
            peer.send(to="client", op="auth")
            peer.send(to="client", op="ping")
            assert peer.receive()["op"] == "pong"
        running.signal(signal.SIGTERM)
        with pytest.raises(ConnectionClosed):
            page.recv(PATIENCE)
        assert page.close_code == 1001
        assert rtcp.sock.recv(1) == b""
        assert json.loads(waiting.getresponse().read()) == {"msgs": [], "seqnum": "-1"}
        rtcp.lose()
        poller.connection.close()
        waiting.close()
        assert running.ended() == -signal.SIGTERM
