"""The page, the API and Elko's transports behind nginx and haproxy in their usual configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPConnection, HTTPResponse
from typing import Any

import pytest
from websockets.sync.client import connect

from tests.integration.carried_peers import HttpPeer
from tests.integration.configurations import OFF, TCP, listener
from tests.integration.daemon import Daemon
from tests.integration.proxies import PROXIES, Behind, proxy
from tests.patience import PATIENCE

CONFIGURATION = (
    OFF
    + f'[http]\nendpoint = "{TCP}"\n'
    + listener("main")
    + listener("web", 'transport = "websocket"', 'path = "/web"')
    + listener("poll", 'transport = "http"', 'path = "/poll"')
)


@pytest.fixture(scope="module")
def behind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Behind]:
    """A daemon with the listeners that proxies stand before."""
    directory = tmp_path_factory.mktemp("behind")
    path = directory / "broker.toml"
    path.write_text(CONFIGURATION)
    with Daemon(directory, "--config", str(path)) as running:
        yield Behind(running.http_port(), running.port("web"), running.port("poll"))


@pytest.fixture(scope="module", params=PROXIES)
def port(request: pytest.FixtureRequest, behind: Behind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    """The port of each proxy in turn."""
    with proxy(request.param, behind, tmp_path_factory.mktemp("proxy") / request.param) as port:
        yield port


def ask(
    connection: HTTPConnection, path: str, method: str = "GET", body: object = None, **headers: str
) -> tuple[HTTPResponse, bytes]:
    """The answer to a request, whole."""
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, None if body is None else json.dumps(body), fields)
    response = connection.getresponse()
    return response, response.read()


@pytest.fixture
def client(port: int) -> Iterator[HTTPConnection]:
    """A connection to the proxy, which is kept."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as connection:
        yield connection


@pytest.fixture
def direct(behind: Behind) -> Iterator[HTTPConnection]:
    """A connection to the broker itself."""
    with closing(HTTPConnection("127.0.0.1", behind.http, timeout=PATIENCE)) as connection:
        yield connection


@pytest.mark.parametrize("root", ["/", "/farm/"])
def test_the_page_and_all_its_files_are_there(client: HTTPConnection, root: str) -> None:
    response, page = ask(client, root)
    assert response.status == 200
    links = re.findall(r'(?:src|href)="([^"#]*)"', page.decode())
    assert len(links) > 5
    for link in links:
        assert not link.startswith("/"), link
        response, text = ask(client, root + link)
        assert response.status == 200, link
        for module in re.findall(r'from "\./([^"]+)"', text.decode()) if link.endswith(".js") else ():
            assert ask(client, f"{root}assets/{module}")[0].status == 200, module


def test_a_kept_connection_serves_many_requests(client: HTTPConnection) -> None:
    for number in range(50):
        response, _ = ask(client, f"/v1/services/kept/{number}", "PUT", {"hostport": "192.0.2.1:80", "ttl": 60})
        assert response.status == 201
        assert ask(client, "/farm/v1/services/kept")[0].status == 200
        assert ask(client, f"/v1/services/kept/{number}", "DELETE")[0].status == 204


def test_events_arrive_as_they_happen(port: int, client: HTTPConnection, direct: HTTPConnection) -> None:
    with closing(HTTPConnection("127.0.0.1", port, timeout=PATIENCE)) as watching:
        watching.request("GET", "/farm/v1/watch")
        response = watching.getresponse()
        assert response.headers["Content-Type"] == "text/event-stream"
        ask(direct, f"/v1/services/event-{port}/1", "PUT", {"hostport": "192.0.2.1:80", "ttl": 60})
        received = b""
        while f"event-{port}".encode() not in received:
            received += response.read1()  # the event alone, long before a buffer of the proxy is full


def test_a_find_waits_for_its_service(port: int, client: HTTPConnection, direct: HTTPConnection) -> None:
    client.request("GET", f"/v1/services/wait-{port}?wait=60")
    ask(direct, f"/v1/services/wait-{port}/1", "PUT", {"hostport": "192.0.2.1:80", "ttl": 60})
    response = client.getresponse()
    assert response.status == 200
    assert b"192.0.2.1:80" in response.read()


def test_the_body_of_a_pages_fetch_is_taken(client: HTTPConnection, port: int) -> None:
    """A string as a body is text/plain, and the proxy changes the Host."""
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    body = {"hostport": "192.0.2.1:80", "ttl": 60}
    for number in (1, 2):
        response, text = ask(
            client, f"/farm/v1/services/fetched/{number}", "PUT", body, Content_Type="text/plain;charset=UTF-8", **own
        )
        assert response.status in (200, 201), text


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "cross-site"},
        {"Origin": "http://evil.example", "Sec_Fetch_Site": "same-origin"},  # by DNS rebinding
        {"Origin": "http://127.0.0.1:1", "Sec_Fetch_Site": "same-site"},
        {"Origin": "null"},
    ],
)
@pytest.mark.parametrize("content_type", ["text/plain", "application/json", "application/x-www-form-urlencoded"])
def test_a_page_of_another_site_changes_nothing(
    client: HTTPConnection, headers: dict[str, str], content_type: str
) -> None:
    body = {"hostport": "192.0.2.1:80", "ttl": 60}
    response, _ = ask(client, "/v1/services/forged/1", "PUT", body, Content_Type=content_type, **headers)
    assert response.status == 403
    assert json.loads(ask(client, "/v1/services?pattern=forged")[1])["rows"] == []


def test_a_head_that_is_too_long_is_refused_with_the_limit(client: HTTPConnection, direct: HTTPConnection) -> None:
    response, text = ask(direct, "/healthz", Cookie="a=" + "x" * 20_000)
    assert response.status == 431
    assert "16384 bytes" in json.loads(text)["detail"]


def test_elko_is_served_over_a_websocket(port: int) -> None:
    with connect(f"ws://127.0.0.1:{port}/web", open_timeout=PATIENCE, compression=None) as peer:
        peer.send(json.dumps({"to": "client", "op": "auth", "auth": {"mode": "open"}, "label": "behind"}))
        peer.send(json.dumps({"to": "client", "op": "ping", "tag": "1"}))
        assert json.loads(peer.recv(PATIENCE))["op"] == "pong"


def test_elko_is_served_by_long_polls(port: int) -> None:
    peer = HttpPeer(port, "/poll/")
    peer.send(to="client", op="auth", auth={"mode": "open"}, label="behind")
    peer.send(to="client", op="ping", tag="1")
    [answer] = peer.receive()
    assert answer["op"] == "pong"


def test_events_are_served_over_a_websocket(behind: Behind, direct: HTTPConnection, port: int) -> None:
    with connect(f"ws://127.0.0.1:{behind.http}/v1/watch", open_timeout=PATIENCE) as watching:
        ask(direct, f"/v1/services/socket-{port}/1", "PUT", {"hostport": "192.0.2.1:80", "ttl": 60})
        received: Any = ""
        while f"socket-{port}" not in received:
            received = watching.recv(PATIENCE)
