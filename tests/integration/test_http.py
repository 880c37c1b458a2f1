"""HTTP of the real daemon: curl, TLS with client certificates, cross-site requests, a restart."""

from __future__ import annotations

import http.client
import json
import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.config.certificates import certificate
from tests.integration.daemon import Daemon
from tests.integration.http_api import ask
from tests.packages import program
from tests.patience import PATIENCE, until

HERE = "127.0.0.1"


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(tmp_path_factory.mktemp("http")) as running:
        running.http_port()
        yield running


def raw(daemon: Daemon, data: bytes) -> bytes:
    """All that is answered to bytes, up to the end."""
    with socket.create_connection((HERE, daemon.http_port()), PATIENCE) as sock:
        sock.sendall(data)
        answer = b""
        while piece := sock.recv(65_536):
            answer += piece
        return answer


def test_one_curl_offers_another_finds_and_an_elko_server_does_too(daemon: Daemon) -> None:
    def curl(*arguments: str) -> Any:
        base = f"http://{HERE}:{daemon.http_port()}"
        *options, path = arguments
        ended = subprocess.run(
            [program("curl"), "-sS", "--fail", *options, base + path], capture_output=True, check=True, timeout=PATIENCE
        )
        return json.loads(ended.stdout) if ended.stdout else None

    offered = curl("-X", "PUT", "-d", '{"hostport": "192.0.2.1:80", "ttl": 60}', "/v1/services/curled/a")
    assert offered["ttl"] == 60
    [found] = curl("/v1/services/curled")["services"]
    assert found["hostport"] == "192.0.2.1:80"
    with daemon.connect() as peer:
        assert peer.ask(to="client", op="find", service="curled")["desc"][0]["hostport"] == "192.0.2.1:80"
    assert curl("-X", "DELETE", "/v1/services/curled/a") is None
    assert curl("/v1/services/curled")["services"] == []


def test_attacks_of_web_pages_are_refused(daemon: Daemon) -> None:
    path, body = "/v1/services/rebound/a", {"hostport": "h:1"}
    assert ask(daemon, "PUT", path, body, Host="evil.example.com")[0] == 421
    assert ask(daemon, "PUT", path, body, Origin="http://evil.example.com")[0] == 403
    assert ask(daemon, "GET", "/v1/services/rebound")[1]["services"] == []


def test_a_smuggled_request_is_not_served(daemon: Daemon) -> None:
    put = b'PUT /v1/services/smuggled/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 16\r\n\r\n{"hostport":"h"}'
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n"
    assert raw(daemon, head + put).startswith(b"HTTP/1.1 400 ")
    assert ask(daemon, "GET", "/v1/services/smuggled")[1]["services"] == []


@pytest.mark.parametrize("chunked", [False, True])
def test_a_client_that_sends_a_whole_body_over_the_limit_reads_the_refusal(daemon: Daemon, chunked: bool) -> None:
    size = 4 << 20
    head = "PUT /v1/services/a/b HTTP/1.1\r\nHost: localhost\r\n"
    if chunked:
        message = f"{head}Transfer-Encoding: chunked\r\n\r\n{size:x}\r\n".encode() + bytes(size) + b"\r\n0\r\n\r\n"
    else:
        message = f"{head}Content-Length: {size}\r\n\r\n".encode() + bytes(size)
    for _ in range(5):
        answer = raw(daemon, message)
        assert answer.startswith(b"HTTP/1.1 413 ")
        assert answer.endswith(b"}")


def test_a_client_that_sends_without_end_after_the_refusal_is_reset(daemon: Daemon) -> None:
    head = b"PUT /v1/services/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999\r\n\r\n"
    with socket.create_connection((HERE, daemon.http_port()), PATIENCE) as sock:
        sock.sendall(head)
        assert sock.recv(1) == b"H"
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            sock.sendall(bytes(256 << 20))


def test_instances_are_known_after_a_restart(tmp_path: Path) -> None:
    with Daemon(tmp_path) as daemon:
        assert ask(daemon, "PUT", "/v1/services/bank/a", {"hostport": "h:1", "ttl": 60})[0] == 201
        until(lambda: ask(daemon, "GET", "/v1/services/bank")[1]["services"][0]["load"] is not None)
        daemon.signal(signal.SIGTERM)
        daemon.ended()
    with Daemon(tmp_path) as daemon:
        [restored] = ask(daemon, "GET", "/v1/services/bank")[1]["services"]
        assert (restored["hostport"], restored["restored"]) == ("h:1", True)
        assert ask(daemon, "POST", "/v1/services/bank/a/renew", {})[0] == 404
        assert ask(daemon, "PUT", "/v1/services/bank/a", {"hostport": "h:1"})[0] == 201
        [live] = ask(daemon, "GET", "/v1/services/bank")[1]["services"]
        assert not live["restored"]


def test_tls_with_client_certificates(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "broker")
    mine, my_key = certificate(tmp_path, "client")
    config = tmp_path / "elkobroker.toml"
    config.write_text(
        f'[[elko.listeners]]\nendpoint = "tcp:0:interface=127.0.0.1"\n[mc0]\nenabled = false\n[dbp]\nenabled = false\n'
        "[mtl]\nenabled = false\n"
        f'[http]\nendpoint = "tls:0:certificate={cert}:key={key}:ca={mine}:interface=127.0.0.1"\n'
    )
    with Daemon(tmp_path, "--config", str(config)) as daemon:
        port = daemon.http_port()

        def find(connection: http.client.HTTPSConnection) -> int:
            with closing(connection):
                connection.request("GET", "/v1/services/bank")
                return connection.getresponse().status

        def connect(chain: tuple[Path, Path] | None = None) -> http.client.HTTPSConnection:
            context = ssl.create_default_context(cafile=str(cert))
            context.check_hostname = False
            if chain:
                context.load_cert_chain(*chain)
            return http.client.HTTPSConnection(HERE, port, timeout=PATIENCE, context=context)

        with closing(connect((mine, my_key))) as connection:
            for _ in range(2):
                connection.request("PUT", "/v1/services/bank/a", '{"hostport":"h:1"}')
                answer = connection.getresponse()
                assert answer.status in (200, 201)
                answer.read()
            shutil.copy(certificate(tmp_path, "new")[0], cert)
            shutil.copy(tmp_path / "new.key.pem", key)
            daemon.signal(signal.SIGHUP)
            daemon.wait_for("the configuration was reloaded")
            connection.request("GET", "/v1/services/bank")
            assert connection.getresponse().status == 200, "connections outlive a swap of certificates"
        with pytest.raises(OSError, match=r"(?i)certificate|closed|reset|EOF"):
            find(connect())
        assert find(connect((mine, my_key))) == 200
        assert not any("Traceback" in line for line in daemon.log)


def test_a_port_that_is_taken_does_not_end_the_daemon(tmp_path: Path) -> None:
    with (
        socket.create_server((HERE, 0)) as foreign,
        Daemon(tmp_path, "--http-port", str(foreign.getsockname()[1])) as daemon,
    ):
        daemon.wait_for("http: cannot listen on .*; ")
        with daemon.connect() as peer:
            peer.done()
        foreign.close()
        daemon.http_port()
