"""Servers that are broken, hostile, or no brokers: each gives one clear sentence, soon, and in bounded memory."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from broker.brokerctl.answers import NO_PATH
from broker.brokerctl.plain_client import MAX_BODY
from tests.brokerctl.server import Canned, Server, ctl, page, problem
from tests.ports import free_port


@contextmanager
def raw(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """The address of a server that does as it likes with each connection, after the first bytes of a request."""
    listener = socket.create_server(("127.0.0.1", 0))
    over = threading.Event()

    def accept() -> None:
        while not over.is_set():
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                connection.settimeout(30)
                try:
                    if connection.recv(65536):
                        serve(connection)
                except OSError:
                    pass

    thread = threading.Thread(target=accept)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        over.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join()


def until_closed(connection: socket.socket, data: bytes) -> None:
    """Send for ever, until the client closes."""
    while True:
        connection.sendall(data)


@pytest.mark.parametrize(
    ("answer", "code", "sentence"),
    [
        (problem(404, "there is no service 'x'"), 4, "there is no service 'x'"),
        (problem(403, "you may not"), 5, "you may not"),
        (problem(401, "who are you"), 5, "who are you"),
        (problem(400, "bad \x1b[31m pattern"), 1, "bad \\x1b[31m pattern"),
        (problem(429, "too many"), 1, "too many"),
        (Canned(b"<html>x", 200, "text/html"), 6, "{url} answers with text/html where JSON is expected"),
        (Canned(b"", 200, ""), 6, "the form of the server's answer is unknown to this version of brokerctl"),
        (Canned(b'{"rows":', 200), 6, "{url} answers with JSON that cannot be read"),
        (Canned(b"[" * 100_000, 200), 6, "{url} answers with JSON that cannot be read"),
        (Canned(b"\xff\xfe", 200), 6, "{url} answers with JSON that cannot be read"),
        (Canned([1, 2]), 6, "the form of the server's answer is unknown to this version of brokerctl"),
        (Canned({"rows": [1]}), 6, "the form of the server's answer is unknown to this version of brokerctl"),
        (Canned(b"<html>", 502, "text/html"), 3, "{url} answers 502 Bad Gateway: a proxy before the broker"),
        (Canned(b"nothing", 404, "text/plain"), 6, "{url} answers 404 Not Found: the broker is of an older version"),
        (Canned(b"", 500, ""), 6, "{url} answers 500 Internal Server Error without a reason: this is another server"),
        (Canned(b"", 302, "", {"Location": "http://x/"}), 6, "{url} redirects to http://x/, which is not followed"),
        (Canned(b"[]", 403, "application/problem+json"), 5, "{url} answers 403 Forbidden without a reason: a proxy"),
    ],
)
def test_an_answer_that_is_no_success_is_one_sentence(server: Server, answer: Canned, code: int, sentence: str) -> None:
    server.answer("/v1/services", answer)
    result = ctl("--url", server.url, "services")
    assert result.exit_code == code
    assert result.stdout == ""
    assert result.stderr.startswith("brokerctl: " + sentence.format(url=server.url))
    assert result.stderr.count("\n") == 1
    assert len(server.requests) == 1


@pytest.mark.parametrize("answer", [Canned(b"nothing", 404, "text/plain"), problem(404, NO_PATH)])
def test_no_service_is_awaited_of_a_server_that_is_no_broker(server: Server, answer: Canned) -> None:
    server.answer("/v1/services/bank", answer)
    result = ctl("--url", server.url, "wait", "bank", "--within", 0.5)
    assert result.exit_code == 6
    assert len(server.requests) == 1


def test_no_server_is_exit_code_3() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    result = ctl("--url", f"http://127.0.0.1:{port}", "services")
    assert (result.exit_code, result.stderr) == (
        3, f"brokerctl: http://127.0.0.1:{port} cannot be reached: Connection refused\n"
    )  # fmt: skip
    assert ctl("--url", f"http://[::1]:{port}", "services").exit_code == 3
    unknown = ctl("--url", "http://no-such-host.invalid", "services")
    assert (unknown.exit_code, unknown.stderr) == (
        3, "brokerctl: http://no-such-host.invalid: the name of the host is unknown\n"
    )  # fmt: skip


def test_an_address_that_cannot_be_used_is_followed_by_the_next(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.answer("/v1/services", page())
    with socket.create_server(("127.0.0.2", 0), backlog=0) as full, contextlib.ExitStack() as held:
        for _ in range(3):  # the system drops what comes after the first ones
            connection = held.enter_context(socket.socket())
            connection.setblocking(False)
            connection.connect_ex(full.getsockname())
        good = (socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", server.port))
        unknown = (socket.AddressFamily(socket.AF_IRDA), socket.SOCK_STREAM, 0, "", ("x", 1))
        silent = (*good[:4], full.getsockname())
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [unknown, silent, good])
        assert ctl("--url", "http://broker.example", "services").exit_code == 0
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_: [unknown])
        result = ctl("--url", "http://broker.example", "services")
    assert result.exit_code == 3
    assert "http://broker.example cannot be reached: Address family not supported" in result.stderr


def test_an_error_of_the_network_is_none_of_the_output(monkeypatch: pytest.MonkeyPatch) -> None:
    # A request by UDP that is larger than a datagram: few errors of a connection can be had at will.
    found = [(socket.AF_INET, socket.SOCK_DGRAM, 0, "", ("127.0.0.1", free_port()))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_: found)
    result = ctl("--url", "http://broker.example", "find", "bank", "--filter", f"zone={'x' * 70_000}")
    assert (result.exit_code, result.stderr) == (
        3, "brokerctl: http://broker.example cannot be reached: Message too long\n"
    )  # fmt: skip


@pytest.mark.parametrize("host", ["a..b", "-", "xn--", "a" * 300, "%41", "1.2.3.4.5.6", "."])
def test_a_host_that_is_none_is_one_sentence(host: str) -> None:
    for scheme in ("http", "https"):
        result = ctl("--url", f"{scheme}://{host}:1", "services", "--timeout", 10)
        assert result.exit_code in (2, 3)
        assert result.stderr.startswith("brokerctl: ")
        assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("sent", "code", "sentence"),
    [
        (b"", 3, "closes the connection without a complete answer"),
        (b'{"to":"error"}\n\n', 6, "does not answer as an HTTP server does"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", 3, "closes the connection without a complete answer"),
        (b"\x15\x03\x03\x00\x02\x02\x46", 3, "closes the connection without a complete answer"),
    ],
)
def test_a_server_that_speaks_something_else_is_one_sentence(sent: bytes, code: int, sentence: str) -> None:
    with raw(lambda connection: connection.sendall(sent)) as url:
        result = ctl("--url", url, "services")
    assert (result.exit_code, result.stderr) == (code, f"brokerctl: {url} {sentence}\n")


@pytest.mark.parametrize(
    "begin", [b"", b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 10\r\n\r\n{"]
)
def test_a_silent_server_costs_the_timeout_and_no_more(begin: bytes) -> None:
    def serve(connection: socket.socket) -> None:
        connection.sendall(begin)
        connection.recv(1)

    with raw(serve) as url:
        result = ctl("--url", url, "services", "--timeout", "0.3")
    assert (result.exit_code, result.stderr) == (
        3, f"brokerctl: {url} gives no complete answer within 0.3 s\n"
    )  # fmt: skip


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"HTTP/1.1 200 OK\r\n", b"X-Header: " + b"x" * 1000 + b"\r\n"),
        (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n", b"[" * 65536),
    ],
)
def test_an_endless_answer_is_cut_off(begin: bytes, more: bytes) -> None:

    def serve(connection: socket.socket) -> None:
        connection.sendall(begin)
        until_closed(connection, more * 100)

    with raw(serve) as url:
        result = ctl("--url", url, "services")
    assert result.exit_code == 6
    assert f"more than {MAX_BODY} bytes" in result.stderr


def test_a_compressed_answer_is_counted_decompressed(server: Server) -> None:
    bomb = gzip.compress(b" " * 40_000_000)
    server.answer("/v1/services", Canned(bomb, headers={"Content-Encoding": "gzip"}))
    result = ctl("--url", server.url, "services")
    assert result.exit_code == 6
    assert f"more than {MAX_BODY} bytes" in result.stderr


def test_an_address_may_have_a_path_of_a_proxy(server: Server) -> None:
    server.answer("/broker/v1/services", page())
    assert ctl("--url", f"{server.url}/broker/", "services").exit_code == 0


def test_names_are_one_segment_of_the_path(server: Server) -> None:
    ctl("--url", server.url, "why", "../v1/status?x#y%2f")
    assert server.last.path == "/v1/why/../v1/status?x#y%2f"
    ctl("--url", server.url, "why", "..")
    assert server.last.path == "/v1/why/.."
